//! A slot of the table of regions, and what is said of it in plain atomics.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use transport::likely::unlikely;
use transport::op::Fault;

use super::late::LATE;
use crate::limits;

/// Slots of a table, the one that is not used included.
pub(super) const SLOTS: usize = limits::MAX_MR as usize + 1;

/// A region as an operator may see it: not by its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSnapshot {
    /// Number of the protection domain.
    pub pd: u32,
    /// Where it begins.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights: bits of `enum ibv_access_flags`.
    pub access: u32,
}

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
    pub(crate) const REGION: u32 = 0;
    pub(crate) const WINDOW_1: u32 = 1;
    pub(crate) const WINDOW_2: u32 = 2;
    pub(crate) const NULL: u32 = 3;
}

impl Slot {
    /// Waits until no copy uses it, its key being taken back: a copy takes microseconds; the last
    /// one may be of a thread that was just put to sleep.
    pub(super) fn wait(&self) {
        while self.in_flight.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
    /// What it names from now on, its key apart.
    pub(super) fn describe(&self, pd: u32, addr: u64, len: u64, iova: u64, access: u32) {
        self.pd.store(pd, Ordering::Relaxed);
        self.access.store(access, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.iova.store(iova, Ordering::Relaxed);
    }
    /// Whether it is a region with memory.
    pub(super) fn is_region(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == kind::REGION
    }
    /// The region in it, where it is one with memory and has a key.
    pub(super) fn snapshot(&self) -> Option<RegionSnapshot> {
        let _guard = InFlight::enter(&self.in_flight);
        let is_there = self.key.load(Ordering::SeqCst) != 0 && self.is_region();
        is_there.then(|| RegionSnapshot {
            pd: self.pd.load(Ordering::Relaxed),
            addr: self.addr.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            access: self.access.load(Ordering::Relaxed) & !LATE,
        })
    }
    /// Whether it is a region that has a part of a range.
    pub(super) fn is_under(&self, range: &Range<u64>) -> bool {
        let (addr, len) = (self.addr.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        let is_there = self.key.load(Ordering::SeqCst) != 0 && self.is_region();
        is_there && addr < range.end && range.start < addr.saturating_add(len)
    }
    /// Where the bytes are that others name so.
    #[inline(always)]
    pub(super) fn place(&self, addr: u64, length: u64) -> Result<u64, Fault> {
        let at = addr.checked_sub(self.iova.load(Ordering::Relaxed)).ok_or(Fault::Range)?;
        let end = at.checked_add(length).ok_or(Fault::Range)?;
        if unlikely(end > self.len.load(Ordering::Relaxed)) {
            return Err(Fault::Range);
        }
        // No overflow: registration checked addr + len.
        Ok(self.addr.load(Ordering::Relaxed) + at)
    }
}

/// All slots of a table.
#[derive(Debug)]
pub(super) struct Slots {
    /// What was allocated: the slots lie in it.
    block: NonNull<u8>,
    first: NonNull<Slot>,
}

// SAFETY: the slots are atomics that live until this is dropped.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// All free. Their pages are taken from the system when they are first used.
    pub(super) fn new() -> Self {
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc_zeroed(Self::layout()) };
        let Some(block) = NonNull::new(block) else { handle_alloc_error(Self::layout()) };
        // SAFETY: the block is longer than the slots by as much as is left out here at most.
        // All-zero bytes are valid atomics.
        let first = unsafe { block.add(block.as_ptr().align_offset(align_of::<Slot>())).cast::<Slot>() };
        Self { block, first }
    }

    /// Of the slots, with room to align them. To align them is not asked of the allocator: where
    /// that is more than malloc(3) does anyway, it writes the zeros, and so takes all pages at
    /// once.
    fn layout() -> Layout {
        const {
            match Layout::array::<u64>((SLOTS * size_of::<Slot>() + align_of::<Slot>()) / size_of::<u64>()) {
                Ok(l) => l,
                Err(_) => panic!("the table's size is a constant that fits"),
            }
        }
    }

    /// The slot of an index, of which the lower 16 bits count.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &Slot {
        // SAFETY: a 16-bit index lies inside the block, which lives as long as `self`.
        unsafe { &*self.first.as_ptr().add((index & 0xffff) as usize) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout; slots need no drop.
        unsafe { dealloc(self.block.as_ptr(), Self::layout()) }
    }
}

/// An access counted in; counted out even when a copy unwinds.
#[derive(Debug)]
pub(super) struct InFlight<'a>(&'a AtomicU32);

impl<'a> InFlight<'a> {
    /// Counts one in.
    #[inline]
    pub(super) fn enter(count: &'a AtomicU32) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of this process that are in memory (proc_pid_statm(5)).
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn slots_take_pages_when_they_are_first_used() {
        let before = resident();
        let all: Vec<Slots> = std::iter::repeat_with(Slots::new).take(16).collect();
        let pages = 16 * Slots::layout().size() / 4096;
        assert!(resident() - before < pages / 2, "{} of {pages}", resident() - before);
        assert!(all.iter().all(|slots| slots.first.as_ptr().is_aligned()));
    }
}
