//! What a thread that polls does with the rings by which packets come: it looks at a word of each,
//! and takes out what is there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arc_swap::Guard;

use crate::env::{Delivery, Drained, PacketHandler};
use crate::rings::Rings;
use crate::rings::rx_ring::RxRing;

/// How many records one poll takes out of a ring that brings bulk.
const RECORDS_PER_POLL: usize = 8;
/// A poll looks at so many rings.
const RINGS_PER_POLL: usize = 16;
/// While rings bring packets, a thread that polls looks at the sockets so often: each look is a
/// system call.
const SOCKETS_NANOS: u64 = 10_000;
/// How often a thread that polls looks at idle sockets, while rings bring packets.
const IDLE_SOCKETS_NANOS: u64 = 100_000;
/// Sockets are idle where they brought nothing for so long.
const IDLE_NANOS: u64 = 100_000_000;
/// A ring that brought nothing for so long does not keep a thread from the sockets.
const QUIET_NANOS: u64 = 100_000;

/// The rings that are read.
pub struct List<O>(Guard<Arc<Vec<Arc<RxRing<O>>>>>);

impl<O: Send> Rings<O> {
    /// An ACK is held back until all is read that is there (`Delivery::all_is_read`).
    #[inline]
    pub fn ack_waits(&self) {
        self.ack_waits.store(true, Ordering::Release);
    }

    /// The rings that are read now; they stay while one looks at them.
    #[inline]
    pub fn list(&self) -> List<O> {
        List(self.rx.load())
    }

    /// Whether a look at rings and sockets would find nothing new to do, as far as the rings tell:
    /// they are what brings packets now.
    #[inline]
    pub fn are_quiet(&self, rings: &List<O>) -> bool {
        self.busy.load(Ordering::Relaxed)
            && !self.waiting.load(Ordering::Relaxed)
            && rings.0.iter().all(|ring| ring.seems_empty())
    }

    /// For a thread that polls a completion queue, at this time: takes in what came by some of the
    /// rings. `None` where no process sends by a ring.
    #[inline(always)]
    pub fn poll<H: PacketHandler<Origin = O>>(
        &self,
        List(rings): &List<O>,
        at: Instant,
        now: u64,
        to: &Delivery<'_, H>,
    ) -> Option<Drained> {
        if rings.is_empty() {
            return None;
        }
        self.lease.renew(now);
        self.polled_at.store(now, Ordering::Relaxed);
        let mut drained = Drained::Empty;
        if rings.len() <= RINGS_PER_POLL {
            for ring in rings.iter() {
                drained = drained.plus(ring.drain(RECORDS_PER_POLL, Some(at), to));
            }
        } else {
            drained = self.poll_some(rings, at, to);
        }
        if drained != Drained::Empty {
            self.delivered_at.store(now, Ordering::Relaxed);
            self.lease.poll_found();
        }
        Some(drained)
    }

    /// Reads those of many rings whose turn it is.
    #[inline(never)]
    fn poll_some<H: PacketHandler<Origin = O>>(
        &self,
        rings: &[Arc<RxRing<O>>],
        at: Instant,
        to: &Delivery<'_, H>,
    ) -> Drained {
        let first = self.turn.fetch_add(RINGS_PER_POLL as u32, Ordering::Relaxed) as usize % rings.len();
        let some = rings.iter().cycle().skip(first).take(RINGS_PER_POLL);
        some.fold(Drained::Empty, |drained, ring| drained.plus(ring.drain(RECORDS_PER_POLL, Some(at), to)))
    }

    /// Whether a thread that polls and found nothing in a ring shall look at the sockets: a system
    /// call that costs more than many looks at a ring.
    #[inline]
    pub fn sockets_are_due(&self, now: u64) -> bool {
        let busy = now.saturating_sub(self.delivered_at.load(Ordering::Relaxed)) < QUIET_NANOS;
        self.busy.store(busy, Ordering::Relaxed);
        let idle = now.saturating_sub(self.sockets_brought_at.load(Ordering::Relaxed)) >= IDLE_NANOS;
        let pause = if idle { IDLE_SOCKETS_NANOS } else { SOCKETS_NANOS };
        if busy && now.saturating_sub(self.sockets_at.load(Ordering::Relaxed)) < pause {
            return false;
        }
        self.sockets_at.store(now, Ordering::Relaxed);
        true
    }

    /// A thread that polls found something in the sockets.
    pub fn sockets_brought(&self, now: u64) {
        self.sockets_brought_at.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use transport::Short;
    use transport::op::SharedBytes;
    use transport::rc::AckDelay;

    use super::*;
    use crate::counters::Counters;
    use crate::record::Ends;

    /// Counts how often ACKs that need not wait for the program leave.
    #[derive(Default)]
    struct Released(AtomicUsize);

    impl PacketHandler for &Released {
        type Origin = ();
        fn come_from(&self, _: &Ends, _: &mut Option<()>) {}
        fn packets(&self, _: Instant, (): &(), _: AckDelay, _: &[u8], _: usize) {}
        fn short(&self, _: Instant, (): &mut (), _: AckDelay, _: &Short, _: &[u8]) {}
        fn fragment(&self, _: Instant, (): &(), _: AckDelay, _: &[u8], _: SharedBytes<'_>) {}
        fn release(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn acks_that_wait_until_all_is_read_leave_then_and_nobody_is_asked_where_there_are_none() {
        let (rings, handler) = (Rings::<()>::new(true).unwrap(), Released::default());
        let counters = Counters::default();
        let mut released = |waits: bool| {
            if waits {
                rings.ack_waits();
            }
            rings.delivery(&handler, &counters).all_is_read();
            handler.0.swap(0, Ordering::Relaxed)
        };
        assert_eq!([false, true, false, true].map(&mut released), [0, 1, 0, 1]);
    }

    #[test]
    fn sockets_are_looked_at_less_often_where_rings_bring_packets_and_least_where_they_bring_none() {
        let (rings, start) = (Rings::<()>::new(true).unwrap(), 10 * IDLE_NANOS);
        let looks = |from: u64| {
            let mut looks = 0;
            for now in (from..from + 1_000_000).step_by(1_000) {
                rings.delivered_at.store(now, Ordering::Relaxed);
                looks += u32::from(rings.sockets_are_due(now));
            }
            looks
        };
        assert_eq!(looks(start), 10);
        rings.sockets_brought(start + 1_000_000);
        assert_eq!(looks(start + 1_000_000), 100);
        rings.delivered_at.store(0, Ordering::Relaxed);
        assert!((0..10).all(|n| rings.sockets_are_due(start + 3_000_000 + n)), "no ring brings anything");
    }
}
