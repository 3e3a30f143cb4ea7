//! Places in the send queue of requests that are executed already, but whose completions no thread
//! has polled yet.

use std::collections::VecDeque;

use crate::cq::Cq;

/// A program that has posted so many requests and waited for none of them wants many to be done,
/// not each to be done soon.
const STREAM: usize = 64;
/// A program that has posted so many bytes, too, wants many requests to be done, not each soon.
const STREAM_BYTES: u64 = 2 << 20;

/// Places in the send queue of requests that were executed at once: each until its completion is
/// polled, or that of a later request where it has none. So a program that posts until the queue is
/// full meets its end as with an adapter.
#[derive(Debug, Default)]
pub(crate) struct SqOccupancy {
    /// How many there are.
    taken: usize,
    /// Places of requests after which no completion has come yet.
    open: usize,
    /// Places of other requests: how many completions were added to the queue before theirs, and
    /// how many places that one frees.
    unpolled: VecDeque<(u64, usize)>,
    /// Requests that took a place or were under way when the last one was posted.
    outstanding: usize,
    /// Requests come in a stream.
    stream: bool,
}

impl SqOccupancy {
    #[inline]
    pub(super) fn take(&mut self) {
        self.taken += 1;
        self.open += 1;
    }

    /// A completion is about to be added to the queue: the thread that polls it frees them.
    #[inline(always)]
    pub(crate) fn ends(&mut self, cq: &Cq) {
        if self.open > 0 {
            self.unpolled.push_back((cq.passed().0, std::mem::take(&mut self.open)));
        }
    }

    /// Notes how many requests of the queue, beside the one that is posted now, take a place in it
    /// or are under way. A stream ends where there are none, and no completion that is not polled.
    #[inline]
    pub(super) fn note_outstanding(&mut self, requests: usize, cq: &Cq) {
        self.outstanding = requests;
        self.stream = requests >= STREAM || self.stream && (requests > 0 || !cq.is_empty());
    }

    /// Whether no other request took one or was under way when the last one was posted, and it is
    /// none of a stream.
    #[inline]
    pub(super) fn are_free(&self) -> bool {
        self.outstanding == 0 && !self.stream
    }

    /// Whether a request of so many bytes is one of a stream, if the others are as long.
    pub(super) fn are_a_stream_with(&self, len: u64) -> bool {
        self.stream || (self.outstanding as u64).saturating_mul(len) >= STREAM_BYTES
    }

    /// How many there are now.
    #[inline]
    pub(super) fn taken(&mut self, cq: &Cq) -> usize {
        if !self.unpolled.is_empty() {
            let (_, polled) = cq.passed();
            while let Some(&(before, freed)) = self.unpolled.front()
                && before < polled
            {
                self.unpolled.pop_front();
                self.taken -= freed;
            }
        }
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use transport::op::{Completed, Completion, Status};
    use wire::Qpn;
    use wire::roce::SendTail;

    use super::*;
    use crate::device::async_events::AsyncEventQueue;
    use crate::link::Signal;

    struct Unheard;
    impl Signal for Unheard {
        fn signal(&self) {}
        fn take_back(&self) {}
    }

    fn written() -> Completion {
        Completion {
            wr_id: 0,
            status: Status::Success,
            opcode: Completed::Write,
            byte_len: 0,
            tail: SendTail::None,
            qpn: Qpn::new(2),
            source_qp: Qpn::new(0),
            solicited: false,
            header: Default::default(),
            tm: Default::default(),
        }
    }

    #[test]
    fn many_that_nobody_waits_for_are_a_stream_until_nothing_is_left_to_wait_for() {
        let cq = Cq::new(8, None, AsyncEventQueue::new(Box::new(Unheard))).unwrap();
        let mut sq_occupancy = SqOccupancy::default();
        let mut after = |requests| {
            sq_occupancy.note_outstanding(requests, &cq);
            sq_occupancy.are_a_stream_with(0)
        };
        assert_eq!([0, 63, 64, 1].map(&mut after), [false, false, true, true]);
        cq.push(written(), &mut Vec::new());
        assert!(after(0), "it is to be polled yet");
        cq.poll(1, |_| {}).unwrap();
        assert_eq!([1, 0, 63].map(&mut after), [true, false, false]);
        let len = STREAM_BYTES / 3;
        let mut is_stream = |requests, len| {
            sq_occupancy.note_outstanding(requests, &cq);
            sq_occupancy.are_a_stream_with(len)
        };
        assert_eq!([len, len + 1].map(|len| is_stream(3, len)), [false, true]);
        assert_eq!([(0, u64::MAX), (64, 8)].map(|(n, len)| is_stream(n, len)), [false, true]);
    }

    #[test]
    fn a_place_is_taken_until_its_completion_or_a_later_one_is_polled() {
        let cq = Cq::new(8, None, AsyncEventQueue::new(Box::new(Unheard))).unwrap();
        let add = || cq.push(written(), &mut Vec::new());
        let mut sq_occupancy = SqOccupancy::default();
        add(); // another thread's
        (0..3).for_each(|_| sq_occupancy.take());
        assert_eq!(sq_occupancy.taken(&cq), 3, "no completion is to come for them yet");
        sq_occupancy.ends(&cq);
        add();
        sq_occupancy.take();
        assert_eq!(sq_occupancy.taken(&cq), 4);
        assert_eq!(cq.poll(1, |_| {}).unwrap(), 1);
        assert_eq!(sq_occupancy.taken(&cq), 4, "what was polled came before theirs");
        assert_eq!(cq.poll(1, |_| {}).unwrap(), 1);
        assert_eq!(sq_occupancy.taken(&cq), 1, "the fourth has none yet");
        sq_occupancy.ends(&cq);
        add();
        assert_eq!(cq.poll(1, |_| {}).unwrap(), 1);
        assert_eq!(sq_occupancy.taken(&cq), 0);
    }
}
