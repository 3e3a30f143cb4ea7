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
//! | 0..4 | key: slot number, itself random, in the upper 16 bits, random lower 16; 0 while the slot is free |
//! | 4..8 | protection domain |
//! | 8..12 | access flags |
//! | 12..16 | accesses in flight |
//! | 16..24 | address of the first byte |
//! | 24..32 | length in bytes |
//! | 32..40 | iova: the address that peers and work requests use for the first byte |
//! | 40..44 | kind: 0 region, 1 and 2 window of that type, 3 null region |
//! | 44..48 | serial number: counts the windows that have had the slot |
//! | 48..52 | windows bound to this region |
//! | 52..56 | of a window: the slot of its region |
//! | 56..60 | of a window: the one queue pair it is good on, or 0 |
//! | 60..64 | reserved |
//!
//! Whoever copies counts itself in, then reads the key; whoever deregisters clears the key, then waits for the count:
//! one of the two sees the other.

mod guard;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::task::Poll;

use transport::op::{self, AtomicOp, Fault, Memory, Remote, Sge, Tail};
use wire::Rkey;

use crate::{Error, limits};
use free::Free;
use guard::Change;

mod buffer;
mod dm;
mod flush;
mod free;
mod pd;
mod rereg;
mod window;

pub use buffer::Buffer;
pub(crate) use dm::take as take_dm;
pub use dm::{DeviceMemory, GRANULE, RegionOn};
pub use guard::handler::{program_sets, system_sets};
pub use pd::Pd;
pub use rereg::Advice;
pub use window::{Mw, WindowType};

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
    kind: AtomicU32,
    serial: AtomicU32,
    windows: AtomicU32,
    region: AtomicU32,
    qpn: AtomicU32,
    reserved: u32,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// What a slot is.
mod kind {
    pub const REGION: u32 = 0;
    pub const WINDOW_1: u32 = 1;
    pub const WINDOW_2: u32 = 2;
    pub const NULL: u32 = 3;
}

impl Slot {
    /// Waits until no copy uses it, its key being taken back: a copy takes microseconds; the last one may be of a thread
    /// that was just put to sleep.
    fn wait(&self) {
        while self.in_flight.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
}

/// The memory of a range.
#[derive(Clone, Copy)]
enum Place {
    /// At this address.
    At(u64),
    /// Nowhere: reads as zero, what is written is lost.
    Null,
}

/// Who names a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A work request, by a local key.
    Us,
    /// A peer, by a remote key.
    Peer,
}

/// The regions of one device in this process.
pub struct Table {
    slots: NonNull<Slot>,
    free: Free,
    binding: Mutex<()>,
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
        Table { slots, free: Free::default(), binding: Mutex::default() }
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
    /// the key unpredictable, its slot with it.
    ///
    /// The pages must be mapped with the rights that `access` needs (`Fault` otherwise), as with an adapter they are
    /// brought in now; those of a region with `ON_DEMAND` when they are used.
    ///
    /// # Errors
    ///
    /// `Invalid` for flags that are not known or do not go together and a range that wraps the address space, `Fault` as above,
    /// `Limit` at [`limits::MAX_MR`].
    ///
    /// # Safety
    ///
    /// From now until [`Table::deregister`] has returned, queue pairs and peers read these bytes and, as `access` says, write
    /// them, at any time and from any thread. So meanwhile no Rust reference may claim that they do not change (atomics and raw
    /// pointers do not), and they are not given to other owners: neither freed for the allocator to use again, nor mapped as
    /// something else. Memory that is not there is harmless: copies fail.
    pub unsafe fn register(
        &self,
        pd: u32,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
        random: u32,
    ) -> Result<Mr, Error> {
        check_region(addr, len, iova, access)?;
        let index = self.free.take(random)?;
        let slot = self.slot(index);
        slot.describe(pd, addr, len, iova, access);
        slot.kind.store(kind::REGION, Ordering::Relaxed);
        let key = index << 16 | random & 0xffff;
        slot.key.store(key, Ordering::SeqCst);
        Ok(Mr { key: Rkey(key) })
    }

    /// A region of all addresses that holds nothing: reads give zeros, what is written is lost. Local use only.
    pub fn register_null(&self, pd: u32, random: u32) -> Result<Mr, Error> {
        let index = self.free.take(random)?;
        let slot = self.slot(index);
        slot.describe(pd, 0, u64::MAX, 0, Access::LOCAL_WRITE);
        slot.kind.store(kind::NULL, Ordering::Relaxed);
        let key = index << 16 | random & 0xffff;
        slot.key.store(key, Ordering::SeqCst);
        Ok(Mr { key: Rkey(key) })
    }

    /// The region of a protection domain that has a slot, and its length in bytes.
    pub fn region(&self, pd: u32, slot: u32) -> Option<(Mr, u64)> {
        if slot > u32::from(u16::MAX) {
            return None;
        }
        let slot = self.slot(slot);
        let _guard = InFlight::enter(&slot.in_flight);
        let key = slot.key.load(Ordering::SeqCst);
        let found = key != 0 && slot.is_region() && slot.pd.load(Ordering::Relaxed) == pd;
        found.then(|| (Mr { key: Rkey(key) }, slot.len.load(Ordering::Relaxed)))
    }

    /// Takes the key back and waits until no copy uses the region any more. `Busy` while windows are bound to it.
    pub fn deregister(&self, mr: Mr) -> Result<(), Error> {
        let index = mr.key.0 >> 16;
        let slot = self.slot(index);
        {
            let _binding = self.binding();
            if index == 0 || slot.key.load(Ordering::SeqCst) != mr.key.0 {
                return Err(Error::Invalid("no such memory region"));
            }
            if slot.windows.load(Ordering::Relaxed) != 0 {
                return Err(Error::Busy);
            }
            slot.key.store(0, Ordering::SeqCst);
        }
        slot.wait();
        self.free.give(index);
        Ok(())
    }

    /// The memory that a queue pair of this protection domain sees, whose peers have these rights.
    pub fn view(&self, pd: u32, remote_access: u32) -> View<'_> {
        View { table: self, pd, remote_access, qpn: 0 }
    }

    /// Runs `copy` on the memory of a checked range while the region can not go away.
    fn with<T>(
        &self,
        view: &View<'_>,
        range: Remote,
        right: u32,
        who: Who,
        copy: impl FnOnce(Place) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let slot = self.slot(range.rkey.0 >> 16);
        let _guard = InFlight::enter(&slot.in_flight);
        let key = slot.key.load(Ordering::SeqCst);
        if key == 0 || key != range.rkey.0 || slot.pd.load(Ordering::Relaxed) != view.pd {
            return Err(Fault::Key);
        }
        let kind = slot.kind.load(Ordering::Relaxed);
        let good = match (kind, who) {
            (kind::REGION, _) | (kind::NULL, Who::Us) | (kind::WINDOW_1, Who::Peer) => true,
            (kind::WINDOW_2, Who::Peer) => slot.qpn.load(Ordering::Relaxed) == view.qpn,
            _ => false,
        };
        if !good {
            return Err(Fault::Key);
        }
        if slot.access.load(Ordering::Relaxed) & right != right {
            return Err(Fault::Rights);
        }
        let at = range.addr.checked_sub(slot.iova.load(Ordering::Relaxed)).ok_or(Fault::Range)?;
        let end = at.checked_add(range.length).ok_or(Fault::Range)?;
        if end > slot.len.load(Ordering::Relaxed) {
            return Err(Fault::Range);
        }
        // No overflow: registration checked addr + len.
        let real = slot.addr.load(Ordering::Relaxed) + at;
        copy(if kind == kind::NULL { Place::Null } else { Place::At(real) })
    }
}

impl Slot {
    fn describe(&self, pd: u32, addr: u64, len: u64, iova: u64, access: u32) {
        self.pd.store(pd, Ordering::Relaxed);
        self.access.store(access, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.iova.store(iova, Ordering::Relaxed);
    }
    fn is_region(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == kind::REGION
    }
}

/// What a region must be, whatever table it is for.
fn check_region(addr: u64, len: u64, iova: u64, access: u32) -> Result<(), Error> {
    const KNOWN: u32 = 0x3ff | Access::OPTIONAL;
    const REMOTE_CHANGE: u32 = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access & !KNOWN != 0 {
        return Err(Error::Invalid("unknown access flag"));
    }
    if access & REMOTE_CHANGE != 0 && access & Access::LOCAL_WRITE == 0 {
        return Err(Error::Invalid("remote write or atomic access without local write"));
    }
    if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(Error::Invalid("region wraps the address space"));
    }
    if access & Access::FLUSH_PERSISTENT != 0 {
        flush::check_persistent(addr, len)?;
    }
    guard::handler::install();
    if access & Access::ON_DEMAND != 0 {
        Ok(())
    } else {
        populate(addr, len, access & Access::LOCAL_WRITE != 0)
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
    /// The queue pair, for the windows that are good on one only.
    qpn: u32,
}

impl View<'_> {
    /// The same for a queue pair of this number.
    #[must_use]
    pub fn on(self, qpn: wire::Qpn) -> Self {
        View { qpn: qpn.get(), ..self }
    }

    fn remote<T>(
        &self,
        range: Remote,
        right: u32,
        copy: impl FnOnce(Place) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.remote_access & right != right {
            return Err(Fault::Rights);
        }
        self.table.with(self, range, right, Who::Peer, copy)
    }

    /// Visits the pieces of a scatter/gather list that cover `len` bytes from `at` on.
    fn pieces(
        &self,
        sges: &[Sge],
        mut at: u64,
        len: usize,
        right: u32,
        mut piece: impl FnMut(Place, usize, usize) -> Result<(), Fault>,
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
            self.table.with(self, range, right, Who::Us, |place| piece(place, done, n as usize))?;
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
        self.remote(range, right, |_| Ok(()))
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
        self.remote(Remote { length: 8, ..at }, right, |place| {
            let Place::At(real) = place else { return Err(Fault::Rights) };
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

    fn flush(&self, range: Remote, how: op::Flush) -> Poll<Result<(), Fault>> {
        self.begin_flush(range, how)
    }

    fn bind(&self, bind: &op::Bind) -> Result<(), Fault> {
        self.bind_window(bind)
    }

    fn invalidate(&self, key: Rkey) -> Result<(), Fault> {
        self.invalidate_window(key)
    }
}

/// Copies out of registered memory.
fn copy_out(place: Place, dst: &mut [u8]) -> Result<(), Fault> {
    let Place::At(real) = place else {
        dst.fill(0);
        return Ok(());
    };
    // SAFETY: the caller checked the range against a region that is counted in; the two can not overlap, `dst` is a
    // buffer of our own. The program may change the source meanwhile: then the copy holds some mixture, as with any DMA.
    unsafe { guard::copy(dst.as_mut_ptr(), real as *const u8, dst.len()) }
}

/// Copies into registered memory. Programs poll on the last byte of a message, so its last word is stored after
/// everything before it; aligned eight bytes are one store.
fn copy_in(place: Place, src: &[u8], tail: Tail) -> Result<(), Fault> {
    let Place::At(real) = place else { return Ok(()) };
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

/// Brings the pages in and finds out whether they may be read, or written.
fn populate(addr: u64, len: u64, write: bool) -> Result<(), Error> {
    if len == 0 {
        return Ok(());
    }
    let page = 4096;
    let start = addr & !(page - 1);
    let Some(bytes) = (addr + len - start).checked_next_multiple_of(page) else { return Err(Error::Fault) };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: this advice changes no content; a range that is not mapped is an error, not a fault.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes as usize, advice) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM | libc::EFAULT) => Err(Error::Fault),
        // Wrong rights, or a kernel (before 5.14) that does not know the advice.
        Some(libc::EINVAL) if advice_is_known() => Err(Error::Fault),
        _ => Ok(()),
    }
}

/// Whether the kernel knows MADV_POPULATE_WRITE: asked of a page of our own.
fn advice_is_known() -> bool {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Box::new(Page([0; 4096]));
    let at = page.0.as_mut_ptr().cast();
    // SAFETY: a whole page of our own.
    unsafe { libc::madvise(at, 4096, libc::MADV_POPULATE_WRITE) == 0 }
}

#[cfg(test)]
mod tests;
