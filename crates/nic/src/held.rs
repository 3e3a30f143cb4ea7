//! Queue pairs that may hold an ACK back for a request to leave with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use crate::Qp;

#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Readable without the lock: whoever polls asks each time.
    any: AtomicBool,
    qps: Mutex<Vec<Weak<Qp>>>,
}

impl Held {
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
    pub fn add(&self, qp: Weak<Qp>) {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.push(qp);
        self.any.store(true, Ordering::Release);
    }
    /// Empties the list. Its lock is not held while `each` runs, which may lock a queue pair.
    pub fn take(&self, mut each: impl FnMut(&Qp)) {
        let mut taken = {
            let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
            self.any.store(false, Ordering::Release);
            std::mem::take(&mut *qps)
        };
        taken.drain(..).filter_map(|qp| qp.upgrade()).for_each(|qp| each(&qp));
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        if qps.is_empty() {
            // The memory serves again.
            *qps = taken;
        }
    }
}
