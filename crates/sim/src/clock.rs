//! Virtual time: nanoseconds since the beginning of the simulation, and the same as an [`Instant`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Clock {
    /// An [`Instant`] can not be made from nothing; only differences to this one are ever looked
    /// at.
    zero: Instant,
    nanos: AtomicU64,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the zero of virtual time; its value is never seen")]
    pub(crate) fn new() -> Self {
        Self { zero: Instant::now(), nanos: AtomicU64::new(0) }
    }
    pub(crate) fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
    pub(crate) fn now(&self) -> Instant {
        self.zero + Duration::from_nanos(self.nanos())
    }
    /// An instant as nanoseconds; those before the beginning are the beginning.
    pub(crate) fn nanos_of(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.zero))
    }
    /// Time does not go back.
    pub(crate) fn advance(&self, to: u64) {
        self.nanos.fetch_max(to, Ordering::Relaxed);
    }
}

/// A duration in nanoseconds, at most 584 years.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
