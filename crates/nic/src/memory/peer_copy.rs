//! Regions that other processes of the host reach by themselves, and memory of ours while it is
//! copied to or from theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use transport::op::{DirectOutcome, Fault, Remote, Sge, Tail};

use super::backing::Backing;
use super::copy::{Place, last_word};
use super::rights::Access;
use super::slot::InFlight;
use super::table::Table;
use super::transfer::{Copy, Piece, Prepared, Regions, Transfer, put};
use super::view::{View, Who};
use crate::link::PathCache;
use crate::peer_memory::{LocalLink, Peer, Region};

/// Most pieces of a list that are copied at once.
const MAX_PIECES: usize = 8;
/// What peers may do without the responder.
pub(crate) const PEER_RIGHTS: u32 = Access::REMOTE_WRITE
    | Access::REMOTE_READ
    | Access::REMOTE_ATOMIC
    | Access::FLUSH_GLOBAL
    | Access::FLUSH_PERSISTENT;

/// Pieces of registered memory that can not go away.
#[derive(Default)]
struct Held<'a> {
    /// The pieces, in order.
    pieces: ArrayVec<Piece, MAX_PIECES>,
    counted: ArrayVec<InFlight<'a>, MAX_PIECES>,
}

impl Table {
    /// Other processes reach the region of a slot from now on, as its rights let peers; and where
    /// it exports them its bytes ([`Copy::Pull`]), whatever they are.
    pub(super) fn publish(&self, index: u32) {
        let slot = self.slot(index);
        let access = slot.access.load(Ordering::Relaxed);
        let (Some(local), Some(table)) = (self.local(), self.peer_table()) else { return };
        let region = Region {
            key: slot.key.load(Ordering::Relaxed),
            pd: slot.pd.load(Ordering::Relaxed),
            access,
            addr: slot.addr.load(Ordering::Relaxed),
            len: slot.len.load(Ordering::Relaxed),
            iova: slot.iova.load(Ordering::Relaxed),
            persists: access & Access::FLUSH_PERSISTENT != 0
                && Backing::from(slot.backing.load(Ordering::Relaxed)) == Backing::Memory,
        };
        local.publish(table, index as u16, &region);
    }

    /// Peers may not reach a region any more.
    pub(super) fn withdraw(&self, index: u32) {
        if let (Some(local), Some(Some(table))) = (self.local(), self.reached.get()) {
            local.withdraw(*table, index as u16);
        }
    }

    /// The table of the regions that other processes reach, which is asked for once.
    pub fn peer_table(&self) -> Option<u8> {
        *self.reached.get_or_init(|| self.local()?.table(&Regions(Arc::downgrade(&self.slots))))
    }
}

impl Transfer<'_> {
    /// Has the environment do it.
    ///
    /// # Safety
    ///
    /// That of [`Prepared::new`], for as long as this takes.
    #[inline]
    unsafe fn carry_out(
        &self,
        local: &dyn LocalLink,
        pieces: &[Piece],
        cache: &mut PathCache,
    ) -> DirectOutcome {
        // SAFETY: as the caller says.
        local.copy(&unsafe { Prepared::new(self, pieces) }, cache)
    }

    /// Copies between the peer's memory and that of a scatter/gather list. `Refused`, too, where
    /// the list is not all good.
    pub(crate) fn copy(
        &self,
        local: &dyn LocalLink,
        sges: &[Sge],
        view: &View<'_>,
        cache: &mut PathCache,
    ) -> DirectOutcome {
        let mut held = Held::default();
        if !view.hold(&mut held, part(sges, self.remote.length), self.what) {
            return DirectOutcome::Refused;
        }
        // SAFETY: the pieces are registered and held, and the first so many bytes of the list.
        unsafe { self.carry_out(local, &held.pieces, cache) }
    }

    /// Like [`Transfer::copy`], for one element, all of it.
    #[inline]
    pub(crate) fn copy_one(
        &self,
        local: &dyn LocalLink,
        sge: &Sge,
        view: &View<'_>,
        cache: &mut PathCache,
    ) -> DirectOutcome {
        let range = Remote { addr: sge.addr, length: sge.length.into(), rkey: sge.lkey };
        let copied = view.with(range, self.what.needs_of_ours(), Who::Us, |place| {
            self.copy_at(local, place, range.length, cache)
        });
        copied.unwrap_or(DirectOutcome::Refused)
    }

    /// Copies what the peer reads of ours to its memory.
    pub(crate) fn copy_of(
        &self,
        local: &dyn LocalLink,
        from: Remote,
        view: &View<'_>,
        cache: &mut PathCache,
    ) -> DirectOutcome {
        let copied =
            view.remote(from, Access::REMOTE_READ, |place| self.copy_at(local, place, from.length, cache));
        copied.unwrap_or(DirectOutcome::Refused)
    }

    /// Copies between the peer's memory and so many bytes at a place of ours.
    #[inline]
    fn copy_at(
        &self,
        local: &dyn LocalLink,
        place: Place,
        len: u64,
        cache: &mut PathCache,
    ) -> Result<DirectOutcome, Fault> {
        let Place::At(addr) = place else { return Err(Fault::Key) };
        // SAFETY: the code that has a place has checked it, and holds it.
        Ok(unsafe { self.carry_out(local, &[Piece { addr, len }], cache) })
    }

    /// Copies to memory of ours at an address. Its last word is stored last, where it ends a
    /// message.
    ///
    /// # Safety
    ///
    /// As much memory as the peer names is registered there, and stays so until this returns.
    unsafe fn fetch(&self, local: &dyn LocalLink, to: u64, tail: Tail) -> Result<(), Fault> {
        let len = self.remote.length;
        let split = match tail {
            Tail::More => len,
            Tail::End => last_word(to, len as usize) as u64,
        };
        let pieces = [Piece { addr: to, len: split }, Piece { addr: to + split, len: len - split }];
        let pieces = if split == len { &pieces[..1] } else { &pieces[..] };
        // SAFETY: as the caller says.
        match unsafe { self.carry_out(local, pieces, &mut PathCache::default()) } {
            DirectOutcome::Done => Ok(()),
            DirectOutcome::Refused | DirectOutcome::Unavailable => Err(Fault::Away),
        }
    }

    /// Flushes what was written to the peer's memory. False where only the peer can.
    pub(crate) fn flush(&self, local: &dyn LocalLink, cache: &mut PathCache) -> bool {
        // SAFETY: no memory of ours is named.
        let flushed = unsafe { self.carry_out(local, &[], cache) };
        flushed == DirectOutcome::Done
    }

    /// Changes eight bytes of the peer's memory; what was there goes where a list says, where it is
    /// asked for.
    pub(crate) fn change(
        &self,
        local: &dyn LocalLink,
        sges: Option<&[Sge]>,
        view: &View<'_>,
        cache: &mut PathCache,
    ) -> DirectOutcome {
        let mut held = Held::default();
        // SAFETY: the pieces are registered and held.
        let put = |held: &Held<'_>, value: u64| unsafe { put(&held.pieces, value) };
        // Nothing is changed where what was there could not be told.
        if let Some(sges) = sges
            && !(view.hold(&mut held, part(sges, self.remote.length), Copy::Read) && put(&held, 0))
        {
            return DirectOutcome::Refused;
        }
        let mut before = 0_u64;
        let piece = Piece { addr: (&raw mut before) as u64, len: 8 };
        // SAFETY: a variable of ours.
        let outcome = unsafe { self.carry_out(local, &[piece], cache) };
        if outcome == DirectOutcome::Done && sges.is_some() {
            put(&held, before);
        }
        outcome
    }

    /// Copies bytes of our own to the peer's memory.
    pub(crate) fn write(&self, local: &dyn LocalLink, bytes: &[u8], cache: &mut PathCache) -> DirectOutcome {
        let piece = Piece { addr: bytes.as_ptr() as u64, len: bytes.len() as u64 };
        // SAFETY: bytes that are borrowed across the call, and read only.
        unsafe { self.carry_out(local, &[piece], cache) }
    }
}

/// The ranges of a list that hold the first `len` bytes of it.
fn part(sges: &[Sge], len: u64) -> impl Iterator<Item = Remote> {
    let mut left = len;
    sges.iter().filter_map(move |sge| {
        let length = left.min(sge.length.into());
        left -= length;
        (length > 0).then_some(Remote { addr: sge.addr, length, rkey: sge.lkey })
    })
}

impl<'a> View<'a> {
    /// Copies what the peer exports, so much of it from `at` on, to memory of ours.
    pub(super) fn fetch(
        &self,
        from: Remote,
        at: usize,
        to: Place,
        len: usize,
        tail: Tail,
    ) -> Result<(), Fault> {
        let (Some(peer), Place::At(to)) = (self.peer, to) else { return Err(Fault::Away) };
        let addr = from.addr.checked_add(at as u64).ok_or(Fault::Away)?;
        let remote = Remote { addr, length: len as u64, ..from };
        let Peer { path, from, mtu, .. } = peer;
        let transfer = Transfer { path, from: *from, mtu: *mtu, remote, what: Copy::Pull };
        // SAFETY: the code that has a place has checked it, and holds it.
        unsafe { transfer.fetch(peer.local, to, tail) }
    }

    /// Whether an element of ours is good for what needs this right, and memory.
    pub(crate) fn has(&self, sge: &Sge, right: u32) -> bool {
        let range = Remote { addr: sge.addr, length: sge.length.into(), rkey: sge.lkey };
        matches!(self.with(range, right, Who::Us, Ok), Ok(Place::At(_)))
    }

    /// Adds the memory of ranges of ours, which stays registered as long as it is held. False where
    /// that is not all good, or more than is held. It is filled in its place: to hand it on
    /// would be to copy it.
    #[inline]
    fn hold(&self, held: &mut Held<'a>, mut ranges: impl Iterator<Item = Remote>, what: Copy) -> bool {
        let right = what.needs_of_ours();
        ranges.all(|range| {
            let (index, key) = (range.rkey.0 >> 16, range.rkey.0);
            let slot = self.table.slot(index);
            // Before it is looked at. A thread that takes the key back afterwards waits for this,
            // or for the queue pair. The queue pair is locked as long as the view is used.
            if !self.is_lock_pinned(index, slot, key)
                && held.counted.try_push(InFlight::enter(&slot.in_flight)).is_err()
            {
                return false;
            }
            let Ok(Place::At(addr)) = self.with(range, right, Who::Us, Ok) else { return false };
            held.pieces.try_push(Piece { addr, len: range.length }).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, OnceLock, Weak};
    use std::time::Instant;

    use wire::Qpn;

    use super::super::rights::terms;
    use super::*;
    use crate::errno::Errno;
    use crate::link::Link;
    use crate::link::{Path, Persist, Platform};
    use crate::peer_memory::Grant;
    use transport::TxBatch;

    /// Neighbours that are waited for.
    #[derive(Default)]
    struct Neighbours {
        table: OnceLock<Weak<Table>>,
        /// How often that was, and how often windows could be bound meanwhile.
        waits: AtomicUsize,
        free: AtomicUsize,
    }

    impl Platform for Neighbours {
        fn wake_at(&self, _: Instant) {}
        fn fill_random(&self, _: &mut [u8]) {}
        fn persist(&self, _: Persist) {}
    }

    impl Link for Neighbours {
        fn send(&self, _: &Path, _: &mut TxBatch) {}
        fn local(&self) -> Option<&dyn LocalLink> {
            Some(self)
        }
        fn join(&self, _: u32, _: IpAddr) -> Result<(), Errno> {
            Err(Errno::ENODEV)
        }
        fn leave(&self, _: u32, _: IpAddr) {}
    }

    impl LocalLink for Neighbours {
        fn table(&self, _: &Regions) -> Option<u8> {
            Some(0)
        }
        fn publish(&self, _: u8, _: u16, _: &Region) {}
        fn withdraw(&self, _: u8, _: u16) {
            let table = self.table.get().and_then(Weak::upgrade).unwrap();
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.free.fetch_add(table.binding.try_lock().is_some().into(), Ordering::Relaxed);
        }
        fn open(&self, _: &Grant<'_>) -> bool {
            true
        }
        fn close(&self, _: Qpn, _: bool) {}
        fn is_local(&self, _: &Path) -> bool {
            true
        }
        fn reaches(&self, _: &Path) -> bool {
            false
        }
        fn copy(&self, _: &Prepared<'_>, _: &mut PathCache) -> DirectOutcome {
            DirectOutcome::Unavailable
        }
    }

    #[test]
    fn each_term_has_a_bit_of_its_own_which_is_no_right() {
        use wire::Mtu::*;
        let bits = [M256, M512, M1024, M2048, M4096].map(terms::of_mtu);
        let all = bits.iter().fold(terms::RESOURCES, |all, bit| all | bit);
        assert_eq!((all, all.count_ones(), all & PEER_RIGHTS), (terms::ALL, 6, 0));
    }

    #[test]
    fn windows_are_bound_while_neighbours_are_waited_for() {
        let neighbours = Arc::new(Neighbours::default());
        let table = Arc::new(Table::of(neighbours.clone()).on_link(neighbours.clone()));
        neighbours.table.set(Arc::downgrade(&table)).unwrap();
        let mut bytes = [0_u8; 64];
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let addr = bytes.as_mut_ptr() as u64;
        // SAFETY: the bytes live longer than the region, and no peer reaches them.
        let mr = unsafe { table.register(1, addr, 64, 0, access, 7) }.unwrap();
        // SAFETY: as above.
        unsafe { table.reregister(mr, None, Some((addr, 32, 0)), None) }.unwrap();
        table.deregister(mr).unwrap();
        let count = [&neighbours.waits, &neighbours.free].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(count, [2, 2]);
    }
}
