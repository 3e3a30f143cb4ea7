//! A count that one thread at a time adds to, under a lock that it holds anyhow. So none of its
//! steps is a locked instruction. What has come about is brought to a counter when a thread reads
//! that.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one thread at a time adds to, under a lock that it holds anyhow: see the module.
#[derive(Debug, Default)]
pub struct DeferredCounter {
    count: AtomicU64,
    /// What of it was brought to the counter.
    told: AtomicU64,
}

impl DeferredCounter {
    /// Counts so many more; no other thread does meanwhile.
    #[inline]
    pub fn add(&self, n: u64) {
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// All that was counted.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Brings what has not been brought yet to a counter, always the same. Each thread that reads
    /// that may do so, also several at once.
    pub fn fold_into(&self, counter: &AtomicU64) {
        let count = self.count.load(Ordering::Relaxed);
        let before = self.told.swap(count, Ordering::Relaxed);
        // Less than nothing where another thread was between these two lines, and has brought more.
        counter.fetch_add(count.wrapping_sub(before), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_brought_once_however_many_read() {
        let (deferred, counter) = (DeferredCounter::default(), AtomicU64::new(5));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..10_000).for_each(|_| deferred.fold_into(&counter)));
            }
            (0..10_000).for_each(|_| deferred.add(2));
        });
        deferred.fold_into(&counter);
        assert_eq!(counter.load(Ordering::Relaxed), 20_005);
    }
}
