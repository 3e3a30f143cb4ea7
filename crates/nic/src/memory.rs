//! Registered memory: the table of regions and the only code that touches what they name.
//!
//! No slice is ever formed over registered memory: the program, other threads and peers change it at will. Bytes move
//! by raw copies between it and buffers of our own.
//!
//! A region is a slot of a table that lies in one block of plain atomics, ready to be placed in shared memory, so that
//! another process of this host can run the same checks and copy by itself:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | key: slot number in the upper 16 bits, random lower 16; 0 while the slot is free |
//! | 4..8 | protection domain |
//! | 8..12 | access flags |
//! | 12..16 | accesses in flight |
//! | 16..24 | address of the first byte |
//! | 24..32 | length in bytes |
//! | 32..40 | iova: the address that peers and work requests use for the first byte |
//! | 40..64 | reserved |
//!
//! Whoever copies counts itself in, then reads the key; whoever deregisters clears the key, then waits for the count:
//! one of the two sees the other.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use transport::op::{self, AtomicOp, Fault, Memory, Remote, Sge, Tail};
use wire::Rkey;

use crate::{Error, limits};
use guard::Change;

mod dm;
mod guard;
mod pages;

pub(crate) use dm::take as take_dm;
pub use dm::{DeviceMemory, GRANULE, RegionOn};
pub use pages::can_populate;

/// Bits of `enum ibv_access_flags`.
#[allow(missing_docs, non_snake_case)]
pub mod Access {
    pub const LOCAL_WRITE: u32 = 1 << 0;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// Bits from here up are hints that may be ignored (IBV_ACCESS_OPTIONAL_RANGE).
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

const SLOTS: usize = limits::MAX_MR as usize + 1;

#[repr(C, align(64))]
struct Slot {
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    in_flight: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    iova: AtomicU64,
    reserved: [u64; 3],
}

/// The regions of one device in this process.
pub struct Table {
    slots: NonNull<Slot>,
    free: Mutex<Free>,
}

struct Free {
    /// First slot never used; slot 0 stays free, so that no key is 0.
    fresh: u32,
    /// Slots given back, the oldest first, so that a key's slot is reused late.
    used: VecDeque<u32>,
}

// SAFETY: the slots are atomics that live until the table is dropped; the rest is a mutex.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

/// A registered region; its keys die with [`Table::deregister`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Local and remote key.
    pub key: Rkey,
}

impl Table {
    /// An empty table. Its pages are taken from the system when they are first used.
    pub fn new() -> Table {
        // SAFETY: the layout is not empty; all-zero bytes are valid atomics.
        let block = unsafe { alloc_zeroed(Self::layout()) };
        let Some(slots) = NonNull::new(block.cast::<Slot>()) else { handle_alloc_error(Self::layout()) };
        Table { slots, free: Mutex::new(Free { fresh: 1, used: VecDeque::new() }) }
    }

    fn layout() -> Layout {
        const {
            match Layout::array::<Slot>(SLOTS) {
                Ok(l) => l,
                Err(_) => panic!("the table's size is a constant that fits"),
            }
        }
    }

    fn slot(&self, index: u32) -> &Slot {
        // SAFETY: a 16-bit index lies inside the block, which lives as long as `self`.
        unsafe { &*self.slots.as_ptr().add((index & 0xffff) as usize) }
    }

    /// Registers `len` bytes at `addr` for a protection domain, to be named by addresses from `iova` on. `random` makes
    /// the key unpredictable.
    ///
    /// The pages must be mapped with the rights that `access` needs (`Fault` otherwise), as with an adapter they are
    /// brought in now.
    pub fn register(
        &self,
        pd: u32,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
        random: u32,
    ) -> Result<Mr, Error> {
        check_region(addr, len, iova, access)?;
        let index = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            if (free.fresh as usize) < SLOTS {
                free.fresh += 1;
                free.fresh - 1
            } else {
                free.used.pop_front().ok_or(Error::Limit("memory regions"))?
            }
        };
        let slot = self.slot(index);
        slot.pd.store(pd, Ordering::Relaxed);
        slot.access.store(access, Ordering::Relaxed);
        slot.addr.store(addr, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.iova.store(iova, Ordering::Relaxed);
        let key = index << 16 | random & 0xffff;
        slot.key.store(key, Ordering::SeqCst);
        Ok(Mr { key: Rkey(key) })
    }

    /// Takes the key back and waits until no copy uses the region any more.
    pub fn deregister(&self, mr: Mr) -> Result<(), Error> {
        self.still(mr)?;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used.push_back(mr.key.0 >> 16);
        Ok(())
    }

    /// Gives a region another domain, other memory (address, length, iova), other rights, or several of them. Its key stays;
    /// who uses it meanwhile is refused. After an error the region is as it was.
    pub fn reregister(
        &self,
        mr: Mr,
        pd: Option<u32>,
        range: Option<(u64, u64, u64)>,
        access: Option<u32>,
    ) -> Result<(), Error> {
        let slot = self.slot(mr.key.0 >> 16);
        let now = [&slot.addr, &slot.len, &slot.iova].map(|field| field.load(Ordering::Relaxed));
        let (addr, len, iova) = range.unwrap_or(now.into());
        let rights = access.unwrap_or_else(|| slot.access.load(Ordering::Relaxed));
        if range.is_some() || access.is_some() {
            check_region(addr, len, iova, rights)?;
        }
        self.still(mr)?;
        if let Some(pd) = pd {
            slot.pd.store(pd, Ordering::Relaxed);
        }
        slot.access.store(rights, Ordering::Relaxed);
        slot.addr.store(addr, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.iova.store(iova, Ordering::Relaxed);
        slot.key.store(mr.key.0, Ordering::SeqCst);
        Ok(())
    }

    /// Clears a region's key and waits until no copy uses it any more.
    fn still(&self, mr: Mr) -> Result<(), Error> {
        let index = mr.key.0 >> 16;
        let slot = self.slot(index);
        if index == 0 || slot.key.compare_exchange(mr.key.0, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Err(Error::Invalid("no such memory region"));
        }
        // A copy takes microseconds; the last one may be of a thread that was just put to sleep.
        while slot.in_flight.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The region of a protection domain that has a slot, and its length in bytes.
    pub fn region(&self, pd: u32, slot: u32) -> Option<(Mr, u64)> {
        if slot > u32::from(u16::MAX) {
            return None;
        }
        let slot = self.slot(slot);
        let _guard = InFlight::enter(&slot.in_flight);
        let key = slot.key.load(Ordering::SeqCst);
        let found = key != 0 && slot.pd.load(Ordering::Relaxed) == pd;
        found.then(|| (Mr { key: Rkey(key) }, slot.len.load(Ordering::Relaxed)))
    }

    /// The memory that a queue pair of this protection domain sees, whose peers have these rights.
    pub fn view(&self, pd: u32, remote_access: u32) -> View<'_> {
        View { table: self, pd, remote_access }
    }

    /// Runs `copy` on the real address of a checked range while the region can not go away; with on-demand paging once the
    /// pages are there.
    fn with<T>(
        &self,
        pd: u32,
        range: Remote,
        right: u32,
        copy: impl FnOnce(u64) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        const CHANGE: u32 = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.reach(pd, range, right, |real, access| {
            if access & Access::ON_DEMAND != 0 {
                pages::populate(real, range.length, right & CHANGE != 0).map_err(|_| Fault::Unmapped)?;
            }
            copy(real)
        })
    }

    /// Brings in the pages of a range that work requests of a protection domain are about to use (ibv_advise_mr(3)): to be
    /// read; to be written; or, with `None`, only where that takes no page fault, which is never more than a check.
    pub fn prefetch(&self, pd: u32, range: Remote, write: Option<bool>) -> Result<(), Error> {
        const REFUSED: Error = Error::Invalid("no region with on-demand paging");
        let rights = if write == Some(true) { Access::LOCAL_WRITE } else { 0 };
        let found = self.reach(pd, range, 0, |real, access| {
            Ok(match write {
                _ if access & Access::ON_DEMAND == 0 => Err(REFUSED),
                _ if access & rights != rights => Err(Error::System(libc::EPERM)),
                Some(write) => pages::populate(real, range.length, write),
                None => Ok(()),
            })
        });
        found.unwrap_or(Err(Error::Fault))
    }

    /// Runs `then` on the real address of a checked range, and its region's rights, while the region can not go away.
    fn reach<T>(
        &self,
        pd: u32,
        range: Remote,
        right: u32,
        then: impl FnOnce(u64, u32) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let slot = self.slot(range.rkey.0 >> 16);
        let _guard = InFlight::enter(&slot.in_flight);
        let key = slot.key.load(Ordering::SeqCst);
        if key == 0 || key != range.rkey.0 || slot.pd.load(Ordering::Relaxed) != pd {
            return Err(Fault::Key);
        }
        let access = slot.access.load(Ordering::Relaxed);
        if access & right != right {
            return Err(Fault::Rights);
        }
        let at = range.addr.checked_sub(slot.iova.load(Ordering::Relaxed)).ok_or(Fault::Range)?;
        let end = at.checked_add(range.length).ok_or(Fault::Range)?;
        if end > slot.len.load(Ordering::Relaxed) {
            return Err(Fault::Range);
        }
        // No overflow: registration checked addr + len.
        then(slot.addr.load(Ordering::Relaxed) + at, access)
    }
}

impl Default for Table {
    fn default() -> Self {
        Table::new()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout; slots need no drop.
        unsafe { dealloc(self.slots.as_ptr().cast(), Self::layout()) }
    }
}

/// An access counted in; counted out even when a copy unwinds.
struct InFlight<'a>(&'a AtomicU32);

impl<'a> InFlight<'a> {
    fn enter(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Memory as the queue pairs of one protection domain may use it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    table: &'a Table,
    pd: u32,
    /// `qp_access_flags`: what the queue pair lets its peer do, whatever regions allow.
    remote_access: u32,
}

impl View<'_> {
    fn remote<T>(
        &self,
        range: Remote,
        right: u32,
        copy: impl FnOnce(u64) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.remote_access & right != right {
            return Err(Fault::Rights);
        }
        self.table.with(self.pd, range, right, copy)
    }

    /// Visits the pieces of a scatter/gather list that cover `len` bytes from `at` on.
    fn pieces(
        &self,
        sges: &[Sge],
        mut at: u64,
        len: usize,
        right: u32,
        mut piece: impl FnMut(u64, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        for sge in sges {
            if done == len {
                break;
            }
            let size = u64::from(sge.length);
            if at >= size {
                at -= size;
                continue;
            }
            let n = (size - at).min((len - done) as u64);
            let addr = sge.addr.checked_add(at).ok_or(Fault::Range)?;
            let range = Remote { addr, length: n, rkey: sge.lkey };
            self.table.with(self.pd, range, right, |real| piece(real, done, n as usize))?;
            done += n as usize;
            at = 0;
        }
        if done == len { Ok(()) } else { Err(Fault::Range) }
    }
}

impl Memory for View<'_> {
    fn gather(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        self.pieces(sges, at, dst.len(), 0, |real, from, n| copy_out(real, &mut dst[from..from + n]))
    }

    fn scatter(&self, sges: &[Sge], at: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
        self.pieces(sges, at, src.len(), Access::LOCAL_WRITE, |real, from, n| {
            let last = from + n == src.len();
            copy_in(real, &src[from..from + n], if last { tail } else { Tail::More })
        })
    }

    fn check(&self, range: Remote, access: op::Access) -> Result<(), Fault> {
        if range.length == 0 {
            return Ok(());
        }
        let right = match access {
            op::Access::Write => Access::REMOTE_WRITE,
            op::Access::Read => Access::REMOTE_READ,
            op::Access::Atomic => Access::REMOTE_ATOMIC,
            op::Access::FlushGlobal => Access::FLUSH_GLOBAL,
            op::Access::FlushPersistent => Access::FLUSH_PERSISTENT,
        };
        // On-demand paging looks for the pages when they are used: a request may name more than will ever come.
        if self.remote_access & right != right {
            return Err(Fault::Rights);
        }
        self.table.reach(self.pd, range, right, |_, _| Ok(()))
    }

    fn write(&self, to: Remote, at: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
        let addr = to.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: src.len() as u64, rkey: to.rkey };
        self.remote(range, Access::REMOTE_WRITE, |real| copy_in(real, src, tail))
    }

    fn read(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let addr = from.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: dst.len() as u64, rkey: from.rkey };
        self.remote(range, Access::REMOTE_READ, |real| copy_out(real, dst))
    }

    fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault> {
        let right = match op {
            AtomicOp::Write(_) => Access::REMOTE_WRITE,
            _ => Access::REMOTE_ATOMIC,
        };
        self.remote(Remote { length: 8, ..at }, right, |real| {
            if real % 8 != 0 {
                return Err(Fault::Range);
            }
            let change = match op {
                AtomicOp::CompareSwap { compare, swap } => Change::CompareSwap { compare, swap },
                AtomicOp::FetchAdd(n) => Change::Add(n),
                AtomicOp::Write(v) => Change::Swap(v),
            };
            // SAFETY: eight bytes inside a registered region, aligned; programs share them with peers through atomics.
            unsafe { guard::change(real as *mut u64, change) }
        })
    }
}

/// Copies out of registered memory.
fn copy_out(real: u64, dst: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the caller checked the range against a region that is counted in; the two can not overlap, `dst` is a
    // buffer of our own. The program may change the source meanwhile: then the copy holds some mixture, as with any DMA.
    unsafe { guard::copy(dst.as_mut_ptr(), real as *const u8, dst.len()) }
}

/// Copies into registered memory. Programs poll on the last byte of a message, so its last word is stored after
/// everything before it; aligned eight bytes are one store.
fn copy_in(real: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
    let to = real as *mut u8;
    let split = match tail {
        Tail::More => src.len(),
        Tail::End => last_word(real, src.len()),
    };
    // SAFETY: the caller checked the range; `src` is a buffer of our own, so the two do not overlap.
    unsafe { guard::copy(to, src.as_ptr(), split)? };
    let rest = &src[split..];
    if rest.is_empty() {
        return Ok(());
    }
    fence(Ordering::Release);
    if let Ok(word) = <[u8; 8]>::try_from(rest) {
        // SAFETY: `last_word` leaves eight bytes only where they are aligned.
        return unsafe { guard::store(to.add(split).cast(), u64::from_ne_bytes(word)) };
    }
    // SAFETY: inside the checked range; fewer than eight bytes are stored one after the other.
    unsafe { guard::copy(to.add(split), rest.as_ptr(), rest.len()) }
}

/// Where the last word of `len` bytes at `real` begins: at the last multiple of eight below the end.
fn last_word(real: u64, len: usize) -> usize {
    let end = real + len as u64;
    let start = (end - 1) & !7;
    start.saturating_sub(real).min(len as u64) as usize
}

/// Whether memory can be registered so; its pages are brought in.
fn check_region(addr: u64, len: u64, iova: u64, access: u32) -> Result<(), Error> {
    const KNOWN: u32 = 0x3ff | Access::OPTIONAL;
    const REMOTE_CHANGE: u32 = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access & !KNOWN != 0 {
        return Err(Error::Invalid("unknown access flag"));
    }
    if access & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) != 0 {
        return Err(Error::Unsupported("FLUSH"));
    }
    if access & REMOTE_CHANGE != 0 && access & Access::LOCAL_WRITE == 0 {
        return Err(Error::Invalid("remote write or atomic access without local write"));
    }
    if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(Error::Invalid("region wraps the address space"));
    }
    guard::install();
    if access & Access::ON_DEMAND != 0 {
        // Its pages are looked for whenever they are used, so that what is mapped there may change.
        return if can_populate() {
            Ok(())
        } else {
            Err(Error::Unsupported("on-demand paging on this kernel"))
        };
    }
    pages::populate(addr, len, access & Access::LOCAL_WRITE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHTS: u32 =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;

    fn region(table: &Table, bytes: &mut [u8], access: u32) -> (Mr, u64) {
        let addr = bytes.as_mut_ptr() as u64;
        (table.register(1, addr, bytes.len() as u64, addr, access, 0xabcd).unwrap(), addr)
    }

    #[test]
    fn a_range_that_wraps_64_bits_is_refused() {
        let (table, mut bytes) = (Table::new(), vec![0; 64]);
        let (mr, addr) = region(&table, &mut bytes, RIGHTS);
        let view = table.view(1, RIGHTS);
        for (addr, length) in
            [(u64::MAX, 2), (addr, u64::MAX), (addr + 1, 64), (addr - 1, 8), (u64::MAX - 7, u64::MAX)]
        {
            let range = Remote { addr, length, rkey: mr.key };
            assert_eq!(view.check(range, op::Access::Write), Err(Fault::Range), "{addr:#x}+{length:#x}");
        }
        assert!(table.register(1, u64::MAX - 3, 8, 0, 0, 0).is_err());
    }

    #[test]
    fn a_zero_length_region_grants_nothing() {
        let (table, mut bytes) = (Table::new(), vec![0; 64]);
        let addr = bytes.as_mut_ptr() as u64;
        let mr = table.register(1, addr, 0, addr, RIGHTS, 7).unwrap();
        let range = Remote { addr, length: 1, rkey: mr.key };
        assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Read), Err(Fault::Range));
    }

    #[test]
    fn keys_stay_in_their_slot_after_65536_registrations() {
        let (table, mut bytes) = (Table::new(), vec![0; 8]);
        let mut last = None;
        for i in 0..70_000_u32 {
            let addr = bytes.as_mut_ptr() as u64;
            let mr = table.register(1, addr, 8, addr, 0, i.wrapping_mul(0x9e37)).unwrap();
            assert_ne!(mr.key.0 >> 16, 0);
            assert_ne!(Some(mr), last);
            table.deregister(mr).unwrap();
            assert!(table.deregister(mr).is_err());
            last = Some(mr);
        }
    }

    #[test]
    fn another_protection_domain_has_no_access() {
        let (table, mut bytes) = (Table::new(), vec![0; 8]);
        let (mr, addr) = region(&table, &mut bytes, RIGHTS);
        let range = Remote { addr, length: 8, rkey: mr.key };
        assert_eq!(table.view(2, RIGHTS).check(range, op::Access::Read), Err(Fault::Key));
        assert_eq!(table.view(1, 0).check(range, op::Access::Read), Err(Fault::Rights));
    }

    #[test]
    fn memory_that_is_not_mapped_or_read_only_is_refused_at_registration() {
        static READ_ONLY: [u8; 4096] = [7; 4096];
        let table = Table::new();
        let addr = READ_ONLY.as_ptr() as u64;
        assert_eq!(table.register(1, addr, 4096, addr, Access::LOCAL_WRITE, 0), Err(Error::Fault));
        assert!(table.register(1, addr, 4096, addr, 0, 0).is_ok());
        assert_eq!(table.register(1, 0x1000, 4096, 0x1000, 0, 0), Err(Error::Fault));
    }

    #[test]
    fn a_region_registered_anew_keeps_its_key_and_has_the_new_rights_domain_and_memory() {
        let (table, mut bytes, mut other) = (Table::new(), vec![0_u8; 64], vec![7_u8; 32]);
        let (mr, addr) = region(&table, &mut bytes, Access::LOCAL_WRITE);
        let range = Remote { addr, length: 8, rkey: mr.key };
        assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Write), Err(Fault::Rights));
        table.reregister(mr, None, None, Some(RIGHTS)).unwrap();
        assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Write), Ok(()));
        table.reregister(mr, Some(2), None, None).unwrap();
        assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Write), Err(Fault::Key));
        assert_eq!(table.view(2, RIGHTS).check(range, op::Access::Write), Ok(()));
        let to = other.as_mut_ptr() as u64;
        table.reregister(mr, None, Some((to, 32, to)), None).unwrap();
        let mut read = [0; 4];
        table.view(2, RIGHTS).read(Remote { addr: to, length: 4, rkey: mr.key }, 0, &mut read).unwrap();
        assert_eq!(read, [7; 4]);
        assert_eq!(
            table.view(2, RIGHTS).check(Remote { addr: to, length: 33, ..range }, op::Access::Read),
            Err(Fault::Range)
        );
    }

    #[test]
    fn a_region_that_cannot_be_registered_anew_stays_as_it_was() {
        let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
        let (mr, addr) = region(&table, &mut bytes, RIGHTS);
        assert_eq!(table.reregister(mr, Some(2), Some((0x1000, 4096, 0x1000)), None), Err(Error::Fault));
        assert!(table.reregister(mr, Some(2), None, Some(Access::REMOTE_WRITE)).is_err());
        let range = Remote { addr, length: 64, rkey: mr.key };
        assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Write), Ok(()));
        table.deregister(mr).unwrap();
        assert!(table.reregister(mr, None, None, Some(0)).is_err());
    }

    #[test]
    fn with_on_demand_paging_memory_may_come_and_go_and_what_is_not_mapped_is_a_fault() {
        let table = Table::new();
        // SAFETY: a new mapping of two pages.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let addr = at as u64;
        // SAFETY: the second page of the mapping just made.
        assert_eq!(unsafe { libc::munmap(at.byte_add(4096), 4096) }, 0);
        let mr = table.register(1, addr, 8192, addr, RIGHTS | Access::ON_DEMAND, 1).unwrap();
        let view = table.view(1, RIGHTS);
        let there = Remote { addr, length: 8, rkey: mr.key };
        let gone = Remote { addr: addr + 4096, length: 8, rkey: mr.key };
        assert_eq!(view.write(there, 0, &[5; 8], Tail::End), Ok(()));
        assert_eq!(view.write(gone, 0, &[5; 8], Tail::End), Err(Fault::Unmapped));
        assert_eq!(view.read(gone, 0, &mut [0; 8]), Err(Fault::Unmapped));
        assert_eq!(view.check(gone, op::Access::Write), Ok(()));
        // SAFETY: the first page, which nobody uses as memory of Rust.
        assert_eq!(unsafe { libc::mprotect(at, 4096, libc::PROT_READ) }, 0);
        assert_eq!(view.write(there, 0, &[6; 8], Tail::End), Err(Fault::Unmapped));
        let mut read = [0; 8];
        assert_eq!(view.read(there, 0, &mut read), Ok(()));
        assert_eq!(read, [5; 8]);
        assert_eq!(table.prefetch(1, there, Some(false)), Ok(()));
        assert_eq!(table.prefetch(1, there, Some(true)), Err(Error::Fault));
        assert_eq!(table.prefetch(1, gone, Some(false)), Err(Error::Fault));
        assert_eq!(table.prefetch(1, gone, None), Ok(()));
        // SAFETY: as above.
        unsafe { libc::munmap(at, 4096) };
    }

    #[test]
    fn a_region_of_the_whole_address_space_grants_what_is_mapped() {
        let (table, mut bytes) = (Table::new(), vec![3_u8; 16]);
        let mr = table.register(1, 0, u64::MAX, 0, RIGHTS | Access::ON_DEMAND, 1).unwrap();
        let view = table.view(1, RIGHTS);
        let addr = bytes.as_mut_ptr() as u64;
        let mut read = [0; 16];
        assert_eq!(view.read(Remote { addr, length: 16, rkey: mr.key }, 0, &mut read), Ok(()));
        assert_eq!(read, [3; 16]);
        for addr in [0, 0x1000, u64::MAX - 16, 1 << 63] {
            assert_eq!(
                view.read(Remote { addr, length: 16, rkey: mr.key }, 0, &mut read),
                Err(Fault::Unmapped)
            );
        }
    }

    #[test]
    fn memory_that_was_unmapped_or_became_read_only_is_an_error_and_the_process_lives() {
        accesses_to_memory_that_changes();
    }

    #[test]
    fn the_same_holds_where_the_program_has_taken_the_signal_handlers() {
        guard::install();
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: the default disposition; the test ends if anything faults.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        accesses_to_memory_that_changes();
    }

    fn accesses_to_memory_that_changes() {
        const LEN: usize = 3 * 4096;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of our own.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0) };
        let (table, addr) = (Table::new(), at as u64);
        let mr = table.register(1, addr, LEN as u64, addr, RIGHTS, 1).unwrap();
        let view = table.view(1, RIGHTS);
        let to = |length| Remote { addr, length, rkey: mr.key };
        let bytes = vec![7; LEN];
        view.write(to(LEN as u64), 0, &bytes, Tail::End).unwrap();
        // SAFETY: the middle page of the mapping.
        unsafe { libc::mprotect(at.byte_add(4096), 4096, libc::PROT_READ) };
        let mut back = vec![0; LEN];
        view.read(to(LEN as u64), 0, &mut back).unwrap();
        assert_eq!(back, bytes);
        assert_eq!(view.write(to(LEN as u64), 0, &bytes, Tail::End), Err(Fault::Unmapped));
        assert_eq!(view.write(to(4096), 4096, &bytes[..8], Tail::End), Err(Fault::Unmapped));
        let cell = Remote { addr: addr + 4096, ..to(8) };
        for op in [
            AtomicOp::FetchAdd(1),
            AtomicOp::Write(1),
            AtomicOp::CompareSwap { compare: 0x0707_0707_0707_0707, swap: 1 },
        ] {
            assert_eq!(view.atomic(cell, op), Err(Fault::Unmapped));
            assert_eq!(view.atomic(to(8), op).map(drop), Ok(()), "the first page is writable");
        }
        // SAFETY: nobody has a reference into it.
        unsafe { libc::munmap(at, LEN) };
        for len in [1, 8, 63, 64, 4096, LEN] {
            assert_eq!(view.read(to(len as u64), 0, &mut back[..len]), Err(Fault::Unmapped));
        }
    }

    #[test]
    fn scatter_and_gather_cross_elements_at_any_offset() {
        let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
        let (mr, addr) = region(&table, &mut bytes, RIGHTS);
        let sges = [
            Sge { addr: addr + 3, length: 5, lkey: mr.key },
            Sge { addr: addr + 20, length: 0, lkey: mr.key },
            Sge { addr: addr + 32, length: 17, lkey: mr.key },
        ];
        let view = table.view(1, RIGHTS);
        let src: Vec<u8> = (1..=22).collect();
        for at in 0..22 {
            view.scatter(&sges, at, &src[at as usize..], Tail::End).unwrap();
            let mut back = vec![0; 22 - at as usize];
            view.gather(&sges, at, &mut back).unwrap();
            assert_eq!(back, src[at as usize..]);
        }
        assert_eq!(bytes[3..8], src[..5]);
        assert_eq!(bytes[32..49], src[5..]);
        assert_eq!(view.scatter(&sges, 1, &src, Tail::End), Err(Fault::Range));
    }
}
