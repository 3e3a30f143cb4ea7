//! What the services without acknowledgements share: their states, the pace at which they send, how
//! their requests and receives complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use wire::Qpn;

use crate::op::{Completed, Completion, LocalOp, SendOp, SendWr, Status};

/// The state of a queue pair without acknowledgements (IBA 1.4 figure 124), as far as the engine
/// knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreliableState {
    /// Neither side works; receives may be posted.
    Init,
    /// The queue pair receives.
    Rtr,
    /// The queue pair receives and sends.
    Rts,
    /// The queue pair receives, and ends the message it is sending.
    Sqd,
    /// The queue pair receives; a send request failed, and all after it were flushed (send queue
    /// error).
    Sqe,
    /// Everything is flushed.
    Error,
}

impl UnreliableState {
    /// RTS to SQD. Nothing in other states.
    pub fn drain(&mut self) {
        if *self == Self::Rts {
            *self = Self::Sqd;
        }
    }
    /// SQD or SQE back to RTS. Nothing in other states.
    pub fn resume(&mut self) {
        if matches!(self, Self::Sqd | Self::Sqe) {
            *self = Self::Rts;
        }
    }
    /// Whether packets are taken.
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
    /// Whether requests are flushed as they are posted.
    pub fn flushes(self) -> bool {
        matches!(self, Self::Sqe | Self::Error)
    }
}

/// A send request that is to fail when its turn comes, as by a fault of the adapter.
#[derive(Debug, Default)]
pub struct Failing(Option<(usize, Status)>);

impl Failing {
    /// The last of so many requests is the one, unless one before it is. Nothing where there are
    /// none.
    pub fn set_last(&mut self, outstanding: usize, status: Status) {
        if let Some(before) = outstanding.checked_sub(1) {
            self.0.get_or_insert((before, status));
        }
    }
    /// How the oldest request fails, if it is the one.
    #[inline]
    pub fn oldest(&self) -> Option<Status> {
        self.0.and_then(|(before, status)| (before == 0).then_some(status))
    }
    /// The oldest request has gone.
    #[inline]
    pub fn advance(&mut self) {
        self.0 = self.0.and_then(|(before, status)| Some((before.checked_sub(1)?, status)));
    }
}

/// What a sender buys at once; twice that may leave together after a pause: a SEND of 64 KiB, with
/// its headers, does.
const QUANTUM: Duration = Duration::from_micros(80);
/// The least bytes a packet counts for: a receiver's work for it, and what the kernel books for it
/// in the socket's buffer.
const LEAST_COST: u64 = 768;

/// What a packet takes from its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Room in its socket: a WRITE.
    Room = 1,
    /// A posted receive too, which only its program can replace, and that may not be running: it
    /// counts twice.
    Receive = 2,
}

/// The pace of a port at which unacknowledged messages leave: a byte of a WRITE each nanosecond, of
/// a SEND every other. After a pause 160 us of that leave at once. All queue pairs of these
/// services share it, as a cable would be, each getting its turn.
///
/// A receiver with a thread of its own keeps up with that. Its socket buffer has 208 KiB by the
/// system's default, of which the kernel lets twice as much be used. That holds such a burst while
/// the thread is being woken; the 16 MiB that Verbena asks for hold what comes while a thread waits
/// for several turns of others on a busy machine. Beyond that nothing is promised: the services are
/// unreliable.
#[derive(Debug)]
pub struct Pace {
    /// When all that was bought will have been paid for.
    paid_at: Mutex<Option<Instant>>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { paid_at: Mutex::new(Rank::Pace, None) }
    }
}

impl Pace {
    /// Buys a quantum; when it may be used.
    fn buy(&self, now: Instant) -> Instant {
        let mut paid_at = self.paid_at.lock();
        let from = paid_at.map_or(now, |paid_at| paid_at.max(now));
        *paid_at = Some(from + QUANTUM);
        from.checked_sub(QUANTUM).map_or(now, |at| at.max(now))
    }
    /// Takes back what was not used.
    fn give_back(&self, rest: Duration) {
        let mut paid_at = self.paid_at.lock();
        *paid_at = paid_at.and_then(|paid_at| paid_at.checked_sub(rest));
    }
}

/// One queue pair's part in a [`Pace`].
#[derive(Debug)]
pub(crate) struct Pacer {
    pace: Arc<Pace>,
    /// Bought and not used.
    credit: Duration,
    /// When it may be used, where that is not yet so.
    wake_at: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new(pace: Arc<Pace>) -> Self {
        Self { pace, credit: Duration::ZERO, wake_at: None }
    }
    /// Whether a packet of `len` bytes, at most 2^15, may leave, and if so counts it; if not,
    /// [`Pacer::deadline`] says when.
    pub(crate) fn may_send(&mut self, now: Instant, len: usize, takes: Takes) -> bool {
        let cost = Duration::from_nanos((len as u64).max(LEAST_COST) * takes as u64);
        if self.wake_at.is_none() && self.credit < cost {
            self.credit += QUANTUM;
            self.wake_at = Some(self.pace.buy(now));
        }
        if self.wake_at.is_some_and(|at| now < at) {
            return false;
        }
        self.wake_at = None;
        self.credit = self.credit.saturating_sub(cost);
        true
    }
    /// Nothing waits to be sent.
    pub(crate) fn rest(&mut self) {
        if self.credit > Duration::ZERO {
            self.pace.give_back(std::mem::take(&mut self.credit));
        }
        self.wake_at = None;
    }
    /// When a packet that was held back may leave.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.wake_at
    }
}

/// The completion of a send request.
pub fn sent(wr: &SendWr, status: Status, qpn: Qpn) -> Completion {
    let opcode = match wr.op {
        SendOp::Send(_) => Completed::Send,
        SendOp::Write { .. } => Completed::Write,
        SendOp::Read { .. } => Completed::Read,
        SendOp::Atomic { .. } => Completed::FetchAdd,
        SendOp::Flush { .. } => Completed::Flush,
        SendOp::Local(LocalOp::Bind(_)) => Completed::BindMw,
        SendOp::Local(LocalOp::Invalidate(_)) => Completed::LocalInvalidate,
    };
    Completion::new(wr.wr_id, status, opcode, qpn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "where the virtual clock starts does not matter")]
    fn start() -> Instant {
        Instant::now()
    }

    fn send_all_that_may(pacer: &mut Pacer, now: Instant, len: usize, takes: Takes) -> usize {
        (0..).take_while(|_| pacer.may_send(now, len, takes)).count()
    }

    #[test]
    fn a_burst_is_two_quanta_and_then_a_byte_a_nanosecond() {
        let (mut pacer, now) = (Pacer::new(Arc::default()), start());
        assert_eq!(send_all_that_may(&mut pacer, now, 1000, Takes::Room), 160);
        let next = pacer.deadline().expect("held back");
        assert_eq!(next, now + QUANTUM);
        assert_eq!(send_all_that_may(&mut pacer, next, 1000, Takes::Room), 80);
        let much_later = now + Duration::from_secs(1);
        assert_eq!(send_all_that_may(&mut pacer, much_later, 1000, Takes::Room), 80 + 160);
    }

    #[test]
    fn what_takes_a_receive_leaves_at_half_of_the_pace() {
        let (mut pacer, now) = (Pacer::new(Arc::default()), start());
        assert_eq!(send_all_that_may(&mut pacer, now, 1000, Takes::Receive), 160 / 2);
        for quantum in 1..10 {
            let next = pacer.deadline().expect("held back");
            assert_eq!(next, now + quantum * QUANTUM);
            assert_eq!(send_all_that_may(&mut pacer, next, 1000, Takes::Receive), 80 / 2);
        }
    }

    #[test]
    fn a_send_of_64_kib_leaves_at_once() {
        let mut pacer = Pacer::new(Arc::default());
        assert!(send_all_that_may(&mut pacer, start(), 1024 + 16, Takes::Receive) >= 64);
    }

    #[test]
    fn small_packets_count_for_more_than_their_bytes() {
        let mut pacer = Pacer::new(Arc::default());
        assert_eq!(send_all_that_may(&mut pacer, start(), 64, Takes::Room), 160_000 / 768);
    }

    #[test]
    fn what_is_not_used_is_there_for_others() {
        let (pace, now) = (Arc::<Pace>::default(), start());
        for _ in 0..81 {
            let mut pacer = Pacer::new(pace.clone());
            assert!(pacer.may_send(now, 1000, Takes::Room));
            pacer.rest();
        }
        assert!(!Pacer::new(pace).may_send(now, 1000, Takes::Room));
    }

    #[test]
    fn queue_pairs_of_a_port_take_turns() {
        let (pace, mut now) = (Arc::<Pace>::default(), start());
        let mut pacers: Vec<Pacer> = (0..4).map(|_| Pacer::new(pace.clone())).collect();
        let mut sent = [0; 4];
        for _ in 0..40 {
            for (pacer, sent) in pacers.iter_mut().zip(&mut sent) {
                *sent += send_all_that_may(pacer, now, 1000, Takes::Room);
            }
            now = pacers.iter().filter_map(Pacer::deadline).min().expect("all are held back");
        }
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 3 * 80, "{sent:?}");
    }
}
