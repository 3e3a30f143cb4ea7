//! Clocks that cost less than the exact one, and the one of the process.

use std::time::Duration;

/// A count that grows with the time, by a thousand or more in a microsecond; cheaper to read than a
/// clock.
#[inline]
#[cfg(target_arch = "x86_64")]
pub fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the instruction, and Linux lets programs use
    // it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A count that grows with the time, by a thousand in a microsecond.
#[inline]
#[cfg(not(target_arch = "x86_64"))]
pub fn ticks() -> u64 {
    monotonic()
}

/// CLOCK_MONOTONIC in nanoseconds: what [`std::time::Instant`] counts, as a number.
#[inline]
pub fn monotonic() -> u64 {
    nanos(libc::CLOCK_MONOTONIC)
}

/// CLOCK_MONOTONIC as of the last timer tick, in nanoseconds.
#[inline]
pub fn coarse_monotonic() -> u64 {
    nanos(libc::CLOCK_MONOTONIC_COARSE)
}

/// The processor time of all threads of this process.
pub fn of_process() -> Duration {
    Duration::from_nanos(nanos(libc::CLOCK_PROCESS_CPUTIME_ID))
}

/// What one of the clocks says that do not tell the date.
#[inline]
fn nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one writable timespec. All of them exist since Linux 2.6.32, so the call does not
    // fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
