//! The clocks that completions are stamped by.

use std::time::Instant;

use nic::{Clock, Stamp};

/// The system's clocks.
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
    fn stamp(&self) -> Stamp {
        Stamp { raw_ns: clock_ns(libc::CLOCK_MONOTONIC_RAW), wall_ns: clock_ns(libc::CLOCK_REALTIME) }
    }
}

/// Nanoseconds on a clock of the system.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a variable of our own. The clocks asked for exist on every Linux; else the time is 0.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}
