//! The time as a number that fits an atomic.

use std::time::Instant;

/// Nanoseconds since the host started.
pub(crate) struct Clock {
    base: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { base: Instant::now() }
    }

    /// An instant as nanoseconds; what lies before the start is 0, what lies 580 years ahead the largest number.
    #[inline]
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.nanos(Instant::now())
    }
}
