//! What is to be done when the thread at hand holds no lock: a [`Signal`](crate::Signal) may call nothing, the wakers of a Rust program may
//! call anything. So the signal puts the work here, and the world does it when whatever brought the event is over: the
//! thread that polls before it returns to the program, the engine thread before it sleeps.

use std::sync::Arc;

use locks::{Mutex, Rank};

use crate::sync::{AtomicBool, Ordering};

/// Something to be done.
pub trait Work: Send + Sync {
    /// Does it. The thread holds no lock; what is asked for meanwhile is done afterwards.
    fn run(self: Arc<Self>);
}

/// What waits to be done, in the order in which it was asked for.
pub struct Later {
    /// Readable without the lock: whoever polls asks each time.
    any: AtomicBool,
    queue: Mutex<Vec<Arc<dyn Work>>>,
}

impl Default for Later {
    fn default() -> Later {
        Later { any: AtomicBool::new(false), queue: Mutex::new(Rank::Later, Vec::new()) }
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Later")
    }
}

impl Later {
    /// Asks for something to be done; with any lock held.
    pub fn add(&self, work: Arc<dyn Work>) {
        let mut queue = self.queue.lock();
        queue.push(work);
        self.any.store(true, Ordering::Release);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Does what there is to do, until there is no more. Call it with no lock held.
    #[inline]
    pub fn run(&self) {
        while self.any.load(Ordering::Acquire) {
            self.take().for_each(Work::run);
        }
    }

    /// All of it. Mostly that is one, and its place stays for the next.
    fn take(&self) -> impl Iterator<Item = Arc<dyn Work>> + use<> {
        let mut queue = self.queue.lock();
        self.any.store(false, Ordering::Release);
        let (only, several) = match queue.len() {
            1 => (queue.pop(), Vec::new()),
            _ => (None, std::mem::take(&mut *queue)),
        };
        only.into_iter().chain(several)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::AtomicU32;

    use super::*;

    struct Again {
        later: Weak<Later>,
        runs: AtomicU32,
    }

    impl Work for Again {
        fn run(self: Arc<Self>) {
            if self.runs.fetch_add(1, Ordering::Relaxed) < 2 {
                self.later.upgrade().unwrap().add(self.clone());
            }
        }
    }

    #[test]
    fn work_that_asks_for_more_is_done_until_there_is_none() {
        let later = Arc::new(Later::default());
        let again = Arc::new(Again { later: Arc::downgrade(&later), runs: AtomicU32::new(0) });
        later.add(again.clone());
        later.run();
        later.run();
        assert_eq!(again.runs.load(Ordering::Relaxed), 3);
    }
}
