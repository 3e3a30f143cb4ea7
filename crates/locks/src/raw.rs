//! What is under a [`Mutex`](crate::Mutex) and a [`Condvar`](crate::Condvar): a word, and the
//! kernel's futex(2) where a thread has to wait.
//!
//! The standard library's are the same, and note beside it whether a thread panicked with one held.
//! No caller here asks for that. Crates that keep waiting threads in a table of the process would
//! leave a forked child the locks of that table as the fork found them.

use std::sync::atomic::Ordering;

use crate::futex::Futex;

/// No thread holds the lock.
const FREE: u32 = 0;
/// A thread holds it.
const HELD: u32 = 1;
/// A thread holds the lock, and wakes one that may wait when it gives the lock back.
const AWAITED: u32 = 2;

/// How often a thread looks again before it waits: most locks are held for less time than a call of
/// the kernel takes.
const SPINS: usize = if cfg!(loom) { 0 } else { 100 };

/// A lock without what it guards.
#[derive(Debug)]
pub(crate) struct Lock(Futex);

#[cfg(loom)]
impl Default for Lock {
    fn default() -> Self {
        Self(Futex::new(FREE))
    }
}

impl Lock {
    /// Whether it was free, and is now held.
    #[inline(always)]
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits until no other thread has it, and takes it.
    #[inline(always)]
    pub(crate) fn wait_and_take(&self) {
        if !self.take() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            match self.0.load(Ordering::Relaxed) {
                FREE if self.take() => return,
                AWAITED => break,
                _ => std::hint::spin_loop(),
            }
        }
        // Others may wait as well: so it stays awaited until none did.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            self.0.wait(AWAITED);
        }
    }

    /// Gives the lock back; called by the thread that has it.
    #[inline(always)]
    pub(crate) fn give_back(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.0.wake_one();
    }
}

// SAFETY: only the thread that changed the word from FREE has the lock, and it is FREE again when
// that thread gives it back.
#[cfg(not(loom))]
unsafe impl lock_api::RawMutex for Lock {
    const INIT: Self = Self(Futex::new(FREE));
    type GuardMarker = lock_api::GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        self.wait_and_take();
    }
    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.take()
    }
    #[inline(always)]
    unsafe fn unlock(&self) {
        self.give_back();
    }
}

/// A mutex without a rank.
#[cfg(not(loom))]
pub(crate) type Mutex<T> = lock_api::Mutex<Lock, T>;
#[cfg(not(loom))]
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Lock, T>;

/// Threads that wait until what a mutex guards has changed: how often they were notified.
#[derive(Debug)]
pub(crate) struct Condvar(Futex);

impl Condvar {
    /// Gives the mutex back, waits until it is notified, and takes the mutex again.
    #[cfg(not(loom))]
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let notified = self.notified();
        lock_api::MutexGuard::unlocked(&mut guard, || self.wait_behind(notified));
        guard
    }

    /// How often the threads have been notified. Asked with the mutex held: what changes after that
    /// is told of after that.
    pub(crate) fn notified(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until it has been notified more often.
    pub(crate) fn wait_behind(&self, notified: u32) {
        self.0.wait(notified);
    }

    /// Wakes all that wait.
    pub(crate) fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.0.wake_all();
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self(Futex::new(0))
    }
}
