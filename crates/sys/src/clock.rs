//! The time as a number that fits an atomic.

use std::time::{Duration, Instant};

use crate::time;

/// Nanoseconds since the host started.
#[derive(Clone, Copy)]
pub struct Clock {
    base: Instant,
    /// When the host started, as the system counts nanoseconds.
    base_nanos: u64,
}

/// How often a host that starts looks at both clocks: the system may take its processor away in
/// between.
const LOOKS: u32 = 10;

impl Clock {
    /// A clock that counts from now on.
    pub fn start() -> Self {
        let look = || {
            let (base_nanos, base) = (time::monotonic(), Instant::now());
            (Self { base, base_nanos }, time::monotonic() - base_nanos)
        };
        // The one that took the shortest.
        let looks = (1..LOOKS).map(|_| look());
        looks.fold(look(), |best, next| if next.1 < best.1 { next } else { best }).0
    }

    /// An instant as nanoseconds; what lies before the start is 0, what lies 580 years ahead the
    /// largest number.
    #[inline]
    pub fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant so many nanoseconds after the host's start.
    #[inline]
    pub fn instant(&self, nanos: u64) -> Instant {
        self.base + Duration::from_nanos(nanos)
    }

    /// The time to within a timer tick, for a few nanoseconds.
    #[inline]
    pub fn roughly(&self) -> u64 {
        time::coarse_monotonic().saturating_sub(self.base_nanos)
    }

    /// Asks the system itself: to make an [`Instant`] of now and to count from the start takes 55
    /// instructions more.
    #[inline]
    pub fn now(&self) -> u64 {
        time::monotonic().saturating_sub(self.base_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_an_instant_of_now() {
        let clock = Clock::start();
        // A thread that loses the processor in between looks again.
        let near = (0..100).any(|_| {
            let (before, at, after) = (clock.now(), Instant::now(), clock.now());
            let at = clock.nanos(at);
            after - before < 10_000 && (before.saturating_sub(2_000)..=after + 2_000).contains(&at)
        });
        assert!(near);
        assert_eq!(clock.nanos(clock.instant(1_234_567_890_123)), 1_234_567_890_123);
    }
}
