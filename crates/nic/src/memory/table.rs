//! The table of regions: registration and its end.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use locks::{Mutex, Rank};
use transport::op::Remote;
use wire::Rkey;

use super::backing::{self, Backing};
use super::free::Free;
use super::guard;
use super::large::Large;
use super::late::LATE;
use super::lock_pinned::LockPinned;
use super::pages::bring_in;
use super::rights::Access;
use super::slot::{InFlight, RegionSnapshot, SLOTS, Slot, Slots, kind};
use crate::error::Error;
#[cfg(doc)]
use crate::limits;
use crate::link::Link;
use crate::link::{Platform, Storage};
use crate::peer_memory::LocalLink;

/// The regions of one device in this process.
pub struct Table {
    /// Others may have them, too ([`super::Regions`]).
    pub(super) slots: Arc<Slots>,
    pub(super) free: Free,
    pub(super) binding: Mutex<()>,
    /// The environment, which may have storage of its own, and may let other processes reach
    /// regions.
    platform: Option<Arc<dyn Platform>>,
    link: Option<Arc<dyn Link>>,
    /// The table of regions that other processes reach.
    pub(super) reached: OnceLock<Option<u8>>,
    /// The queue pairs that use regions without being counted.
    pub(super) lock_pinned: LockPinned,
    /// Regions whose small pages may become large.
    pub(super) large: Arc<Large>,
}

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
    pub fn new() -> Self {
        let (free, binding) = (Free::default(), Mutex::new(Rank::Binding, ()));
        Self {
            slots: Arc::new(Slots::new()),
            free,
            binding,
            platform: None,
            link: None,
            reached: OnceLock::new(),
            lock_pinned: LockPinned::default(),
            large: Arc::default(),
        }
    }

    /// An empty table of an environment that may have storage of its own ([`Platform::storage`]).
    pub fn of(platform: Arc<dyn Platform>) -> Self {
        let mut table = Self::new();
        table.platform = Some(platform);
        table
    }

    /// The table of an adapter on a link, by which processes of the same host may reach regions.
    pub fn on_link(self, link: Arc<dyn Link>) -> Self {
        Self { link: Some(link), ..self }
    }

    /// The environment's own storage.
    pub(super) fn storage(&self) -> Option<&dyn Storage> {
        self.platform.as_ref()?.storage()
    }

    /// How other processes reach regions.
    pub(super) fn local(&self) -> Option<&dyn LocalLink> {
        self.link.as_ref()?.local()
    }

    /// Regions and windows that exist.
    pub fn used(&self) -> u64 {
        self.free.used()
    }

    /// The slot of an index, of which the lower 16 bits count.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> &Slot {
        self.slots.get(index)
    }

    /// Registers `len` bytes at `addr` for a protection domain, to be named by addresses from
    /// `iova` on. `random` makes the key unpredictable, its slot with it.
    ///
    /// The pages must be mapped with the rights that `access` needs (`Fault` otherwise), as with an
    /// adapter they are brought in now; those of a region with `ON_DEMAND` when they are used.
    ///
    /// # Errors
    ///
    /// `Value` for flags that are not known or do not go together and a range that wraps the
    /// address space, `Fault` as above, `Limit` at [`limits::MAX_MR`].
    ///
    /// # Safety
    ///
    /// From now until [`Table::deregister`] has returned, queue pairs and peers read these bytes
    /// and, as `access` says, write them, at any time and from any thread. So meanwhile no Rust
    /// reference may claim that they do not change (atomics and raw pointers do not), and they
    /// are not given to other owners: neither freed for the allocator to use again, nor mapped as
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
        let backing = self.check_region(addr, len, iova, access)?;
        let index = self.free.take(random)?;
        let slot = self.slot(index);
        slot.describe(pd, addr, len, iova, access | self.lateness(addr, len));
        slot.backing.store(backing.into(), Ordering::Relaxed);
        slot.kind.store(kind::REGION, Ordering::Relaxed);
        let key = index << 16 | random & 0xffff;
        slot.key.store(key, Ordering::SeqCst);
        self.publish(index);
        let mr = Mr { key: Rkey(key) };
        if access & Access::ON_DEMAND == 0 {
            self.list_large(mr, addr, len);
        }
        Ok(mr)
    }

    /// A region of all addresses that holds nothing: reads give zeros, what is written is lost.
    /// Local use only.
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

    /// Hands each region that exists now to `each`, without its keys. No lock is held meanwhile.
    pub fn each_region(&self, mut each: impl FnMut(RegionSnapshot)) {
        // Slots are taken in no order. A slot that was never used is not written to.
        let mut left = self.used();
        for index in 1..SLOTS as u32 {
            if left == 0 {
                break;
            }
            let slot = self.slot(index);
            if slot.key.load(Ordering::Relaxed) != 0 {
                left -= 1;
                slot.snapshot().into_iter().for_each(&mut each);
            }
        }
    }

    /// Takes the key back and waits until no copy uses the region any more. `Busy` while windows
    /// are bound to it.
    pub fn deregister(&self, mr: Mr) -> Result<(), Error> {
        let index = mr.key.0 >> 16;
        let slot = self.slot(index);
        {
            let _binding = self.binding();
            if index == 0 || slot.key.load(Ordering::SeqCst) != mr.key.0 {
                return Err(Error::hex("no memory region has the key", mr.key.0));
            }
            if slot.windows.load(Ordering::Relaxed) != 0 {
                return Err(Error::Busy);
            }
            slot.key.store(0, Ordering::SeqCst);
        }
        self.large.unlist(mr.key.0);
        self.withdraw(index);
        self.wait_for_users(index);
        self.free.give(index);
        Ok(())
    }
}

impl Table {
    /// What a region must be; what lies behind it, where that matters.
    pub(super) fn check_region(&self, addr: u64, len: u64, iova: u64, access: u32) -> Result<Backing, Error> {
        const KNOWN: u32 = 0x3ff | Access::OPTIONAL;
        const REMOTE_CHANGE: u32 = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let unknown = access & !KNOWN;
        if unknown != 0 {
            return Err(Error::hex("unknown access flags", unknown));
        }
        if access & REMOTE_CHANGE != 0 && access & Access::LOCAL_WRITE == 0 {
            return Err(Error::hex("access with remote write or atomic, without local write", access));
        }
        if let Some(start) = [addr, iova].into_iter().find(|start| start.checked_add(len).is_none()) {
            return Err(Error::hex("the region wraps the address space, for it begins at", start));
        }
        let backing = match access & Access::FLUSH_PERSISTENT {
            0 => Backing::File,
            _ => backing::find(addr, len, self.storage())?,
        };
        guard::handler::install();
        if access & Access::ON_DEMAND != 0 {
            return Ok(backing);
        }
        bring_in(addr, len, access & Access::LOCAL_WRITE != 0, self.wants_large_pages())?;
        Ok(backing)
    }

    /// A region is registered, whose pages are there: small ones become large after that
    /// ([`super::large`]).
    pub(super) fn list_large(&self, mr: Mr, addr: u64, len: u64) {
        if self.wants_large_pages() && self.large.list(mr.key.0, addr, len) {
            self.move_pages();
        }
    }

    /// A neighbour may reach regions from now on. The caller may hold the lock of a queue pair.
    pub(crate) fn has_neighbours(&self) {
        if self.large.has_neighbours() && self.wants_large_pages() {
            self.move_pages();
        }
    }

    fn move_pages(&self) {
        if let Some(platform) = &self.platform {
            self.large.move_pages(&self.slots, |work| platform.in_background(work));
        }
    }

    /// A range is about to be watched: from now on peers are served as [`super::late`] says.
    pub(crate) fn will_be_late(&self, range: &Range<u64>) {
        let slots = (1..SLOTS as u32).map(|index| self.slot(index));
        slots.filter(|slot| slot.is_under(range)).for_each(|slot| {
            slot.access.fetch_or(LATE, Ordering::SeqCst);
        });
    }

    /// The flag of a new region that is watched, or 0.
    pub(super) fn lateness(&self, addr: u64, len: u64) -> u32 {
        let is_late = self.platform.as_ref().is_some_and(|platform| platform.is_late(addr, len));
        if is_late { LATE } else { 0 }
    }

    /// Has what a peer named brought, which was not there.
    #[cold]
    pub(super) fn bring(&self, range: Remote) {
        if let (Some(platform), Ok(real)) =
            (&self.platform, self.slot(range.rkey.0 >> 16).place(range.addr, range.length))
        {
            platform.bring(real, range.length);
        }
    }

    /// Whether regions shall lie in large pages.
    pub(super) fn wants_large_pages(&self) -> bool {
        self.platform.as_ref().is_some_and(|platform| platform.large_pages())
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::access_names;

    #[test]
    fn an_observer_sees_the_regions_that_exist_and_no_windows_or_bits_of_our_own() {
        const RIGHTS: u32 = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let (table, bytes) = (Table::new(), vec![0_u8; 64]);
        let addr = bytes.as_ptr() as u64;
        // SAFETY: no queue pair uses the bytes, which live until the regions are gone.
        let register = |access| unsafe { table.register(1, addr, 64, addr, access, 0xabcd).unwrap() };
        let (mr, other) = (register(RIGHTS), register(Access::LOCAL_WRITE));
        let _null = table.register_null(1, 0xffff_0000).unwrap();
        let seen = || {
            let mut seen = Vec::new();
            table.each_region(|region| seen.push(region));
            seen.sort_by_key(|region| region.access);
            seen
        };
        let says = |access| RegionSnapshot { pd: 1, addr, len: 64, access };
        assert_eq!(seen(), [says(Access::LOCAL_WRITE), says(RIGHTS)]);
        table.deregister(mr).unwrap();
        assert_eq!(seen(), [says(Access::LOCAL_WRITE)]);
        table.deregister(other).unwrap();
        assert_eq!(seen(), []);
        let names: Vec<_> = access_names(RIGHTS).collect();
        assert_eq!(names, ["LOCAL_WRITE", "REMOTE_READ"]);
    }
}
