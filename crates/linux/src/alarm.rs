//! The engine's alarm clock: when it must wake, and how another thread makes it wake earlier.

use std::sync::atomic::{AtomicU64, Ordering};

use local::lease::MAX_PAUSE_NANOS;
use sys::WakeFd;

/// The next time something is due, in nanoseconds of the host's clock; `u64::MAX` for never.
pub(crate) struct Alarm {
    earliest: AtomicU64,
    /// Until when the engine sleeps, or is about to, with no further look at `earliest`; 0 where it
    /// is awake, or was rung for.
    sleeps_until: AtomicU64,
    pub(crate) wake_fd: WakeFd,
}

impl Alarm {
    pub(crate) fn new(wake_fd: WakeFd) -> Self {
        Self { earliest: AtomicU64::new(u64::MAX), sleeps_until: AtomicU64::new(0), wake_fd }
    }

    /// Something is due at `at`. A system call only where the engine sleeps past that.
    #[inline]
    pub(crate) fn set(&self, at: u64) {
        self.set_within(at, 0);
    }

    /// Something is due at `at`, or when a thread that polls looks next. Where one polls, the
    /// engine is not woken for it.
    #[inline]
    pub(crate) fn set_about(&self, at: u64) {
        self.set_within(at, MAX_PAUSE_NANOS);
    }

    /// Something is due at `at`, or so much later. The engine is not woken where it wakes by then.
    #[inline]
    fn set_within(&self, at: u64, slack: u64) {
        // Sequentially consistent, like the engine's side: either it sees the new time, or we see
        // it asleep.
        self.earliest.fetch_min(at, Ordering::SeqCst);
        if at.saturating_add(slack) < self.sleeps_until.load(Ordering::SeqCst)
            && self.sleeps_until.swap(0, Ordering::SeqCst) != 0
        {
            self.wake_fd.wake();
        }
    }

    /// The engine is awake and will look at everything: what was set is forgotten. Returns it.
    pub(crate) fn take(&self) -> u64 {
        self.sleeps_until.store(0, Ordering::SeqCst);
        self.earliest.swap(u64::MAX, Ordering::SeqCst)
    }

    /// The engine goes to sleep; when it has to wake, given that it knows of something due at `at`
    /// itself.
    pub(crate) fn sleep(&self, at: u64) -> u64 {
        self.sleeps_until.store(at, Ordering::SeqCst);
        at.min(self.earliest.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_awake_or_wakes_in_time_is_not_rung_for_and_who_sleeps_past_it_is_once() {
        let alarm = Alarm::new(WakeFd::new().unwrap());
        alarm.set(500);
        assert_eq!((alarm.wake_fd.drain(), alarm.take()), (0, 500), "it is awake, and looks");
        assert_eq!(alarm.sleep(10_000), 10_000);
        alarm.set(10_000);
        assert_eq!(alarm.wake_fd.drain(), 0);
        alarm.set(9_000);
        alarm.set(8_000);
        assert_eq!((alarm.wake_fd.drain(), alarm.take()), (1, 8_000));
        alarm.set(300);
        assert_eq!(alarm.sleep(10_000), 300, "what was set before it slept");
    }

    #[test]
    fn nobody_rings_for_what_is_due_a_little_before_it_wakes_unless_it_has_to_be_then() {
        let alarm = Alarm::new(WakeFd::new().unwrap());
        alarm.sleep(MAX_PAUSE_NANOS + 100);
        alarm.set_about(100);
        assert_eq!(alarm.wake_fd.drain(), 0);
        alarm.set_about(99);
        assert_eq!(alarm.wake_fd.drain(), 1);
        alarm.take();
        alarm.sleep(1_000);
        alarm.set_within(500, 500);
        assert_eq!((alarm.wake_fd.drain(), alarm.take()), (0, 500));
        alarm.sleep(1_001);
        alarm.set_within(500, 500);
        assert_eq!((alarm.wake_fd.drain(), alarm.take()), (1, 500));
        alarm.sleep(MAX_PAUSE_NANOS);
        alarm.set_about(100);
        alarm.set(200);
        assert_eq!(
            (alarm.wake_fd.drain(), alarm.take()),
            (1, 100),
            "an earlier time that nobody rang for hides none"
        );
    }
}
