//! The time as a number that fits an atomic.

use std::time::{Duration, Instant};

use crate::sys;

/// Nanoseconds since the host started.
pub(crate) struct Clock {
    base: Instant,
    /// The same, as the system counts.
    base_nanos: u64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { base: Instant::now(), base_nanos: sys::time::coarse_monotonic() }
    }

    /// An instant as nanoseconds; what lies before the start is 0, what lies 580 years ahead the largest number.
    #[inline]
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
    }

    /// So many nanoseconds as an instant.
    #[inline]
    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        self.base + Duration::from_nanos(nanos)
    }

    /// The time to within a timer tick, for a few nanoseconds.
    #[inline]
    pub(crate) fn roughly(&self) -> u64 {
        sys::time::coarse_monotonic().saturating_sub(self.base_nanos)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.nanos(Instant::now())
    }
}
