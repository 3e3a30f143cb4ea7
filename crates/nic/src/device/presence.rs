//! Whether a device is there.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a device went or came back: an odd number while it is gone.
#[derive(Debug, Default)]
pub(crate) struct Presence(AtomicU64);

impl Presence {
    /// The device goes. Nothing where it was gone.
    pub(crate) fn leave(&self) {
        if self.is_there() {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The device comes back. Nothing where it was there.
    pub(crate) fn come_back(&self) {
        if !self.is_there() {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Ordering::Acquire).is_multiple_of(2)
    }

    pub(crate) fn removals(&self) -> u64 {
        self.0.load(Ordering::Acquire).div_ceil(2)
    }
}
