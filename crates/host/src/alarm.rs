//! The engine's alarm clock: when it must wake, and how another thread makes it wake earlier.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sys::Bell;

/// The next time something is due, in nanoseconds of the host's clock; `u64::MAX` for never.
pub(crate) struct Alarm {
    earliest: AtomicU64,
    /// The engine sleeps, or is about to, and will not look at `earliest` again by itself.
    asleep: AtomicBool,
    pub(crate) bell: Bell,
}

impl Alarm {
    pub(crate) fn new(bell: Bell) -> Alarm {
        Alarm { earliest: AtomicU64::new(u64::MAX), asleep: AtomicBool::new(false), bell }
    }

    /// Something is due at `at`. A system call only where the engine sleeps past that.
    #[inline]
    pub(crate) fn set(&self, at: u64) {
        // Sequentially consistent, like the engine's side: either it sees the new time, or we see it asleep.
        let before = self.earliest.fetch_min(at, Ordering::SeqCst);
        if at < before && self.asleep.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// The engine is awake and will look at everything: what was set is forgotten. Returns it.
    pub(crate) fn take(&self) -> u64 {
        self.asleep.store(false, Ordering::SeqCst);
        self.earliest.swap(u64::MAX, Ordering::SeqCst)
    }

    /// The engine goes to sleep; when it has to wake, given that it knows of something due at `at` itself.
    pub(crate) fn sleep(&self, at: u64) -> u64 {
        self.earliest.fetch_min(at, Ordering::SeqCst);
        self.asleep.store(true, Ordering::SeqCst);
        self.earliest.load(Ordering::SeqCst)
    }
}
