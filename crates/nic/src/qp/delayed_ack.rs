//! Queue pairs that may hold an ACK back for a request to leave with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use locks::{Mutex, MutexGuard, Rank};

/// How long an ACK may wait where the program does nothing: far less than any peer waits for it.
const HOLD: Duration = Duration::from_micros(200);

/// The list of them, which keeps none.
#[derive(Debug)]
pub(crate) struct DelayedAcks<T> {
    /// Readable without the lock: whoever polls asks each time.
    any: AtomicBool,
    list: Mutex<List<T>>,
}

#[derive(Debug)]
struct List<T> {
    qps: Vec<Weak<T>>,
    /// When the first of those that wait for the program has waited for long enough.
    until: Option<Instant>,
}

impl<T> Default for DelayedAcks<T> {
    fn default() -> Self {
        DelayedAcks {
            any: AtomicBool::new(false),
            list: Mutex::new(Rank::DelayedAcks, List { qps: Vec::new(), until: None }),
        }
    }
}

impl<T> DelayedAcks<T> {
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
    /// Adds one.
    pub fn add(&self, qp: Weak<T>) {
        self.lock().qps.push(qp);
        self.any.store(true, Ordering::Release);
    }
    /// When all must go.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.lock().until }
    }
    /// Asks `each` queue pair in the list to let its ACK go; those that say true stay, for [`HOLD`] from their first time. When
    /// that is over, where the list stays now. Its lock is not held while `each` runs, which may lock a queue pair.
    pub fn release(&self, now: Instant, mut each: impl FnMut(Arc<T>) -> bool) -> Option<Instant> {
        let (mut taken, until) = {
            let mut list = self.lock();
            self.any.store(false, Ordering::Release);
            (std::mem::take(&mut list.qps), list.until.take())
        };
        taken.retain(|qp| qp.upgrade().is_some_and(&mut each));
        let stays = !taken.is_empty();
        let mut list = self.lock();
        // The memory serves again.
        taken.append(&mut list.qps);
        list.qps = taken;
        if stays {
            self.any.store(true, Ordering::Release);
            list.until = Some(until.unwrap_or(now + HOLD));
        }
        list.until.filter(|_| stays && until.is_none())
    }
    /// Visits those in the list if nobody has its lock.
    pub fn try_each(&self, mut each: impl FnMut(Arc<T>)) {
        if let Some(list) = self.list.try_lock() {
            list.qps.iter().filter_map(Weak::upgrade).for_each(&mut each);
        }
    }
    fn lock(&self) -> MutexGuard<'_, List<T>> {
        self.list.lock()
    }
}
