//! What is copied between memory of ours and that of another process, or changed there; and how,
//! where both are in one address space.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use transport::op::{AtomicOp, Flush, Remote};
use wire::{Mtu, Qpn};

use super::copy::{Place, change};
use super::guard;
pub use super::piece::Piece;
use super::rights::{Access, terms};
use super::slot::{InFlight, Slots};
use crate::link::Path;

/// What is copied, or changed.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// To the peer.
    pub path: &'a Path,
    /// Our queue pair.
    pub from: Qpn,
    /// The connection's path MTU.
    pub mtu: Mtu,
    /// What the peer names so.
    pub remote: Remote,
    /// Which way, or how.
    pub what: Copy,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// To the peer.
    Write,
    /// From it.
    Read,
    /// To the peer, where it shows a place for a message, and names that by a local key.
    Put,
    /// From it, what it exports for a piece of a message that came from there, and names by a local
    /// key.
    Pull,
    /// No copy: what was written to the peer's memory becomes visible to all, or persistent.
    Flush(Flush),
    /// Eight bytes of the peer's change; those that were there come to us.
    Atomic(AtomicOp),
}

impl Transfer<'_> {
    /// What the peer's queue pair must grant for it: rights, and [`terms`] of what takes the place
    /// of a request. A piece of a message is one of those that packets bring.
    #[inline]
    pub fn asks(&self) -> u32 {
        let terms = match self.what {
            Copy::Pull | Copy::Put => 0,
            Copy::Read | Copy::Atomic(_) => terms::of_mtu(self.mtu) | terms::RESOURCES,
            Copy::Write | Copy::Flush(_) => terms::of_mtu(self.mtu),
        };
        self.what.rights() | terms
    }
}

impl Copy {
    /// What a queue pair and a region must let a peer do for it (`enum ibv_access_flags`).
    #[inline]
    pub fn rights(&self) -> u32 {
        let bit = |wanted, bit| if wanted { bit } else { 0 };
        match *self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            // It is the peer's wish.
            Self::Pull | Self::Put => 0,
            Self::Flush(how) => {
                bit(how.global, Access::FLUSH_GLOBAL) | bit(how.persistent, Access::FLUSH_PERSISTENT)
            }
            Self::Atomic(AtomicOp::Write(_)) => Access::REMOTE_WRITE,
            Self::Atomic(_) => Access::REMOTE_ATOMIC,
        }
    }

    /// What a region alone must let a peer do for this ([`Copy::rights`] says it of both).
    #[inline]
    pub fn rights_of_region(&self) -> u32 {
        if matches!(self, Self::Put) { Access::LOCAL_WRITE } else { self.rights() }
    }

    /// What regions of ours must allow for it.
    #[inline]
    pub(super) fn needs_of_ours(&self) -> u32 {
        if matches!(self, Self::Write | Self::Put) { 0 } else { Access::LOCAL_WRITE }
    }
}

/// A transfer, and the memory of ours that it goes to, or comes from.
#[derive(Clone, Copy, Debug)]
pub struct Prepared<'a> {
    transfer: &'a Transfer<'a>,
    pieces: &'a [Piece],
}

impl<'a> Prepared<'a> {
    /// The two belong together.
    ///
    /// # Safety
    ///
    /// Until `'a` ends the pieces may be read, and written to where it is neither a WRITE nor a
    /// [`Copy::Put`]. No code claims then that they do not change. They have as many bytes in all
    /// as the peer names, but for a FLUSH, which has none. They need not be mapped.
    #[inline]
    pub unsafe fn new(transfer: &'a Transfer<'a>, pieces: &'a [Piece]) -> Self {
        Prepared { transfer, pieces }
    }

    /// What is to be done.
    #[inline]
    pub fn transfer(&self) -> &'a Transfer<'a> {
        self.transfer
    }

    /// Memory of ours, as [`Prepared::new`] says.
    #[inline]
    pub fn pieces(&self) -> &'a [Piece] {
        self.pieces
    }
}

/// The regions of an adapter, for an environment in which all processes of a host have one address
/// space, as a simulated one. They are there as long as the adapter is.
#[derive(Clone, Debug, Default)]
pub struct Regions(pub(super) Weak<Slots>);

impl Regions {
    /// Does a transfer that names one of them, in order; how many bytes it did, `most` at most. An
    /// atomic does eight or none, a FLUSH none. None, too, where the region is not there or
    /// does not let peers do that, where the bytes are not in it, and where they are those of the
    /// pieces; memory that is not there ends it.
    pub fn carry_out(&self, prepared: &Prepared<'_>, most: u64) -> u64 {
        let Prepared { transfer: &Transfer { remote, what, .. }, pieces } = *prepared;
        let Some(slots) = self.0.upgrade() else { return 0 };
        let slot = slots.get(remote.rkey.0 >> 16);
        let _in_flight = InFlight::enter(&slot.in_flight);
        let right = what.rights_of_region();
        let is_it =
            remote.rkey.0 != 0 && slot.key.load(Ordering::SeqCst) == remote.rkey.0 && slot.is_region();
        if !is_it || slot.access.load(Ordering::Relaxed) & right != right {
            return 0;
        }
        let Ok(at) = slot.place(remote.addr, remote.length) else { return 0 };
        if pieces.iter().any(|piece| piece.addr < at + remote.length && at < piece.addr + piece.len) {
            return 0;
        }
        match what {
            Copy::Flush(_) => 0,
            Copy::Atomic(op) => {
                let before = change(Place::At(at), op.into());
                // SAFETY: the pieces are as `Prepared` says.
                let is_told = before.is_ok_and(|before| unsafe { put(pieces, before) });
                if is_told { 8 } else { 0 }
            }
            // SAFETY: the pieces are as `Prepared` says. The bytes are in a region that lets peers
            // do this, and that is not taken back before this is counted out.
            _ => unsafe { copy_here(what, pieces, at, most) },
        }
    }
}

/// Puts a value into the one piece there is, of eight bytes; whether it did.
///
/// # Safety
///
/// The pieces may be written to, and no code claims that they do not change.
pub(super) unsafe fn put(pieces: &[Piece], value: u64) -> bool {
    let from = [Piece { addr: (&raw const value) as u64, len: 8 }];
    // SAFETY: as the caller says; what is copied is ours.
    matches!(*pieces, [Piece { addr, len: 8 }] if unsafe { copy_here(Copy::Write, &from, addr, 8) } == 8)
}

/// Copies in order between pieces of memory of one process and what another one has at an address,
/// where both are in one address space, as the processes of a simulated host are; `most` bytes at
/// most. How many it copied: memory that is not there ends it.
///
/// # Safety
///
/// The pieces may be read, and written to where it is not a WRITE. As many bytes at `at` may be
/// read, or written to where it is one. No code claims that those which are written do not change.
/// Neither needs to be mapped.
pub unsafe fn copy_here(what: Copy, pieces: &[Piece], at: u64, most: u64) -> u64 {
    let mut copied = 0;
    for piece in pieces {
        let len = piece.len.min(most - copied);
        let (ours, theirs) = (piece.addr as *mut u8, at.wrapping_add(copied) as *mut u8);
        let (to, from) =
            if matches!(what, Copy::Write | Copy::Put) { (theirs, ours) } else { (ours, theirs) };
        // SAFETY: as the caller says.
        if unsafe { guard::copy(to, from, len as usize) }.is_err() {
            break;
        }
        copied += len;
    }
    copied
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use wire::Rkey;

    use super::super::table::Table;
    use super::*;

    #[test]
    fn a_region_is_reached_as_it_lets_peers_and_not_behind_its_end() {
        let table = Table::new();
        let (theirs, ours) = ([const { AtomicU64::new(1) }; 2], [const { AtomicU64::new(2) }; 2]);
        let address = |words: &[AtomicU64; 2]| words.as_ptr() as u64;
        let register = |access| {
            // SAFETY: the words are atomics, and live longer than the region.
            unsafe { table.register(1, address(&theirs), 16, 0x100, access, 7) }.unwrap()
        };
        let regions = Regions(Arc::downgrade(&table.slots));
        let here = wire::Address::from(std::net::Ipv4Addr::LOCALHOST);
        let path = Path {
            source: here,
            dest: here,
            interface: 1,
            dest_qpn: Qpn::new(2),
            traffic_class: 0,
            hop_limit: 0,
            source_port_epoch: 0,
            no_multicast_loop: false,
        };
        let done = |what, key, addr, length, piece: u64, most| {
            let remote = Remote { addr, length, rkey: key };
            let transfer = Transfer { path: &path, from: Qpn::new(1), mtu: Mtu::M1024, remote, what };
            let pieces = [Piece { addr: piece, len: length }];
            // SAFETY: the words are atomics, which are there.
            regions.carry_out(&unsafe { Prepared::new(&transfer, &pieces) }, most)
        };
        let words =
            || [&theirs, &ours].map(|words| words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let piece = address(&ours);
        let mr = register(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        assert_eq!(done(Copy::Write, mr.key, 0x100, 16, piece, 8), 8, "as much as is asked for");
        assert_eq!(words(), [[2, 1], [2, 2]]);
        let add = Copy::Atomic(AtomicOp::FetchAdd(5));
        assert_eq!(done(add, mr.key, 0x108, 8, piece, 8), 8);
        assert_eq!(words(), [[2, 6], [1, 2]]);
        for (what, key, addr, length, piece, why) in [
            (Copy::Read, mr.key, 0x100, 8, piece, "no right"),
            (Copy::Write, Rkey(mr.key.0 + 1), 0x100, 8, piece, "no such key"),
            (Copy::Write, Rkey(0), 0x100, 8, piece, "no key"),
            (Copy::Write, mr.key, 0x108, 16, piece, "not in it"),
            (Copy::Write, mr.key, 0x100, 8, address(&theirs), "the same bytes"),
            (add, mr.key, 0x104, 8, piece, "not aligned"),
        ] {
            assert_eq!(done(what, key, addr, length, piece, length), 0, "{why}");
        }
        table.deregister(mr).unwrap();
        assert_eq!(done(Copy::Write, mr.key, 0x100, 8, piece, 8), 0, "taken back");
        let mr = register(Access::REMOTE_READ);
        assert_eq!(done(Copy::Read, mr.key, 0x100, 16, piece, 16), 16);
        assert_eq!(words(), [[2, 6], [2, 6]]);
        drop(table);
        assert!(regions.0.upgrade().is_none());
    }
}
