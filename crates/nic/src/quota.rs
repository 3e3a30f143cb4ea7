//! How many of a kind a device has given out.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::limits;

/// Counts up to a limit.
#[derive(Debug)]
pub(crate) struct Quota {
    used: AtomicU64,
    limit: u64,
    what: &'static str,
}

impl Quota {
    const fn new(limit: u64, what: &'static str) -> Self {
        Self { used: AtomicU64::new(0), limit, what }
    }
    /// Counts `n` in.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] where there would be more than the limit.
    pub(crate) fn take(&self, n: u64) -> Result<(), Error> {
        self.used
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(n).filter(|&sum| sum <= self.limit)
            })
            .map(drop)
            .map_err(|_| Error::Limit(self.what))
    }
    /// How many there are.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
    /// Counts `n` out.
    pub(crate) fn give(&self, n: u64) {
        self.used.fetch_sub(n, Ordering::Relaxed);
    }
}

/// The quotas of one device.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub pds: Quota,
    pub cqs: Quota,
    pub wqs: Quota,
    pub completion_counters: Quota,
    pub dm_bytes: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            pds: Quota::new(limits::MAX_PD as u64, "protection domains"),
            cqs: Quota::new(limits::MAX_CQ as u64, "completion queues"),
            wqs: Quota::new(limits::MAX_WQ as u64, "work queues"),
            completion_counters: Quota::new(limits::MAX_COMPLETION_COUNTERS as u64, "completion counters"),
            dm_bytes: Quota::new(limits::MAX_DM, "device memory"),
        }
    }
}
