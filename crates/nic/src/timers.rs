//! When queue pairs want to be looked at. Entries are hints: a queue pair has at most one here, at or before its real
//! deadline, and renews it when it fires, so that moving a deadline with every ACK costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use wire::Qpn;

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, u32)>>>,
}

impl Timers {
    /// Adds an entry; whether it is now the first.
    pub fn add(&self, at: Instant, qpn: Qpn) -> bool {
        let mut heap = self.lock();
        let first = heap.peek().is_none_or(|Reverse((t, _))| at < *t);
        heap.push(Reverse((at, qpn.get())));
        first
    }
    /// Takes an entry that is due.
    pub fn due(&self, now: Instant) -> Option<Qpn> {
        let mut heap = self.lock();
        let Reverse((at, qpn)) = *heap.peek()?;
        if at > now {
            return None;
        }
        heap.pop();
        Some(Qpn::new(qpn))
    }
    /// The earliest entry.
    pub fn next(&self) -> Option<Instant> {
        self.lock().peek().map(|Reverse((at, _))| *at)
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, BinaryHeap<Reverse<(Instant, u32)>>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
