//! Queue pairs that may hold an ACK back for a request to leave with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::Qp;

/// How long an ACK may wait where the program does nothing: far less than any peer waits for it.
const HOLD: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Readable without the lock: whoever polls asks each time.
    any: AtomicBool,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    qps: Vec<Weak<Qp>>,
    /// When the first of them has waited for long enough.
    until: Option<Instant>,
}

impl Held {
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
    /// Adds one; when the list must be emptied, where it is the first.
    pub fn add(&self, now: Instant, qp: Weak<Qp>) -> Option<Instant> {
        let mut list = self.lock();
        list.qps.push(qp);
        self.any.store(true, Ordering::Release);
        if list.until.is_some() {
            return None;
        }
        list.until = Some(now + HOLD);
        list.until
    }
    /// When the list must be emptied.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.lock().until }
    }
    /// Empties the list. Its lock is not held while `each` runs, which may lock a queue pair.
    pub fn take(&self, each: impl FnMut(Arc<Qp>)) {
        let mut taken = {
            let mut list = self.lock();
            self.any.store(false, Ordering::Release);
            list.until = None;
            std::mem::take(&mut list.qps)
        };
        taken.drain(..).filter_map(|qp| qp.upgrade()).for_each(each);
        let mut list = self.lock();
        if list.qps.is_empty() {
            // The memory serves again.
            list.qps = taken;
        }
    }
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
