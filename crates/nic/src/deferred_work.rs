//! What is to be done when the thread at hand holds no lock: a [`Signal`](crate::Signal) may call
//! nothing, the wakers of a Rust program may call anything. So the signal puts the work here, and
//! the environment does it when whatever brought the event is over: the thread that polls before it
//! returns to the program, the engine thread before it sleeps.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use locks::{Mutex, Rank};

use crate::sync::{AtomicBool, Ordering};

/// Something to be done.
pub trait Work: Send + Sync {
    /// Does it. The thread holds no lock; what is asked for meanwhile is done afterwards.
    fn run(self: Arc<Self>);
}

/// What waits to be done, in the order in which it was asked for.
pub struct DeferredWork {
    /// Readable without the lock: a polling thread asks each time.
    any: AtomicBool,
    queue: Mutex<Vec<Arc<dyn Work>>>,
}

impl Default for DeferredWork {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), queue: Mutex::new(Rank::DeferredWork, Vec::new()) }
    }
}

impl std::fmt::Debug for DeferredWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Later")
    }
}

impl DeferredWork {
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
    ///
    /// # Panics
    ///
    /// With the first panic of the work, a fault of the stack itself, once all of the work was
    /// done. The program's code in it does not panic: it is called by
    /// [`program::call`](crate::program::call).
    #[inline]
    pub fn run(&self) {
        if self.any.load(Ordering::Acquire) {
            self.run_all();
        }
    }

    fn run_all(&self) {
        let mut first = None;
        while self.any.load(Ordering::Acquire) {
            for work in self.take() {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work.run())) {
                    first.get_or_insert(panic);
                }
            }
        }
        if let Some(panic) = first.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
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
        later: Weak<DeferredWork>,
        runs: AtomicU32,
    }

    impl Work for Again {
        fn run(self: Arc<Self>) {
            if self.runs.fetch_add(1, Ordering::Relaxed) < 2 {
                self.later.upgrade().unwrap().add(self.clone());
            }
        }
    }

    struct Panics;

    impl Work for Panics {
        fn run(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    #[test]
    fn work_behind_one_that_panics_is_done_and_the_panic_goes_on() {
        let later = Arc::new(DeferredWork::default());
        let again = Arc::new(Again { later: Arc::downgrade(&later), runs: AtomicU32::new(0) });
        let works: [Arc<dyn Work>; 3] = [Arc::new(Panics), again.clone(), Arc::new(Panics)];
        works.into_iter().for_each(|work| later.add(work));
        assert!(catch_unwind(AssertUnwindSafe(|| later.run())).is_err());
        assert_eq!((again.runs.load(Ordering::Relaxed), later.is_empty()), (3, true));
    }

    #[test]
    fn work_that_asks_for_more_is_done_until_there_is_none() {
        let later = Arc::new(DeferredWork::default());
        let again = Arc::new(Again { later: Arc::downgrade(&later), runs: AtomicU32::new(0) });
        later.add(again.clone());
        later.run();
        later.run();
        assert_eq!(again.runs.load(Ordering::Relaxed), 3);
    }
}
