//! A slot of the table of regions, and what is said of it in plain atomics.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::limits;

/// Slots of a table, the one that is not used included.
pub(super) const SLOTS: usize = limits::MAX_MR as usize + 1;

/// See the table in [`memory`](super).
#[repr(C, align(64))]
pub(super) struct Slot {
    pub key: AtomicU32,
    pub pd: AtomicU32,
    pub access: AtomicU32,
    pub in_flight: AtomicU32,
    pub addr: AtomicU64,
    pub len: AtomicU64,
    pub iova: AtomicU64,
    pub kind: AtomicU32,
    pub serial: AtomicU32,
    pub windows: AtomicU32,
    pub region: AtomicU32,
    pub user: AtomicU32,
    pub backing: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// What a slot is.
pub(super) mod kind {
    pub const REGION: u32 = 0;
    pub const WINDOW_1: u32 = 1;
    pub const WINDOW_2: u32 = 2;
    pub const NULL: u32 = 3;
}

impl Slot {
    /// Waits until no copy uses it, its key being taken back: a copy takes microseconds; the last one may be of a thread
    /// that was just put to sleep.
    pub fn wait(&self) {
        while self.in_flight.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
    /// What it names from now on, its key apart.
    pub fn describe(&self, pd: u32, addr: u64, len: u64, iova: u64, access: u32) {
        self.pd.store(pd, Ordering::Relaxed);
        self.access.store(access, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.iova.store(iova, Ordering::Relaxed);
    }
    /// Whether it is a region with memory.
    pub fn is_region(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == kind::REGION
    }
}

/// An access counted in; counted out even when a copy unwinds.
pub(super) struct InFlight<'a>(&'a AtomicU32);

impl<'a> InFlight<'a> {
    /// Counts one in.
    #[inline]
    pub fn enter(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
