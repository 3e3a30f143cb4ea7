//! What queue pairs see of registered memory: each range is checked against its slot, then copied,
//! while the slot is counted in.

use std::sync::atomic::Ordering;
use std::task::Poll;

use transport::batch::Payloads;
use transport::likely::unlikely;
use transport::op::{self, AtomicOp, Fault, Memory, Remote, Sge, SharedBytes, Tail};
use wire::icrc::Remainder;
use wire::run::Strided;
use wire::{Qpn, Rkey};

use super::copy::{
    Place, change, copy_from_shared, copy_in, copy_out, copy_out_for_icrc, copy_pieces_in, copy_run_out,
    copy_to_shared,
};
use super::late::{self, LATE};
use super::lock_pinned::PinningLock;
use super::rights::Access;
use super::slot::{InFlight, kind};
use super::table::Table;
use crate::peer_memory::Peer;

/// Whether a work request or a peer names a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// A work request, by a local key.
    Us,
    /// A peer, by a remote key.
    Peer,
}

impl Table {
    /// The memory that a queue pair of this protection domain sees, whose peers have these rights.
    #[inline]
    pub fn view(&self, pd: u32, remote_access: u32) -> View<'_> {
        View { table: self, pd, remote_access, qpn: 0, seals: true, lock: None, number: 0, peer: None }
    }
}

/// Memory as the queue pairs of one protection domain may use it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(super) table: &'a Table,
    pub(super) pd: u32,
    /// `qp_access_flags`: what the queue pair lets its peer do, whatever regions allow.
    remote_access: u32,
    /// The queue pair, for the windows that are good on one only.
    pub(super) qpn: u32,
    /// What is copied out leaves in packets that bear an ICRC.
    seals: bool,
    /// The user that is locked for as long as the view is used, and its number.
    pub(super) lock: Option<&'a dyn PinningLock>,
    pub(super) number: u32,
    /// The peer whose memory is reached, too, where it exports any.
    pub(super) peer: Option<&'a Peer<'a>>,
}

impl<'a> View<'a> {
    /// The view, for a user that is locked for as long as the view is used.
    #[must_use]
    #[inline]
    pub fn pinned_by<T: PinningLock>(self, who: &'a T) -> Self {
        View { number: who.number(), lock: Some(who), ..self }
    }

    /// The view, with what this peer exports.
    #[must_use]
    #[inline]
    pub(crate) fn reaching(self, peer: Option<&'a Peer<'a>>) -> Self {
        View { peer, ..self }
    }
}

impl View<'_> {
    /// The view, for a queue pair of this number.
    #[must_use]
    #[inline]
    pub fn on(self, qpn: Qpn) -> Self {
        View { qpn: qpn.get(), ..self }
    }

    /// The view, for a queue pair whose packets bear an ICRC, or do not.
    #[must_use]
    #[inline]
    pub fn sealing(self, seals: bool) -> Self {
        View { seals, ..self }
    }

    /// Runs `copy` on the memory of a checked range while the region can not go away.
    #[inline(always)]
    pub(super) fn with<T>(
        &self,
        range: Remote,
        right: u32,
        who: Who,
        copy: impl FnOnce(Place) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (place, _here) = self.place(range, right, who)?;
        copy(place)
    }

    /// Where a checked range is. The region can not go away as long as what comes with that is
    /// there.
    #[inline(always)]
    pub(super) fn place(
        &self,
        range: Remote,
        right: u32,
        who: Who,
    ) -> Result<(Place, Option<InFlight<'_>>), Fault> {
        let (index, key) = (range.rkey.0 >> 16, range.rkey.0);
        let slot = self.table.slot(index);
        let is_lock_pinned = self.is_lock_pinned(index, slot, key);
        let here = if is_lock_pinned { None } else { Some(InFlight::enter(&slot.in_flight)) };
        let is_its_key =
            key != 0 && slot.key.load(Ordering::SeqCst) == key && slot.pd.load(Ordering::Relaxed) == self.pd;
        if unlikely(!is_its_key) {
            return Err(Fault::Key);
        }
        let kind = slot.kind.load(Ordering::Relaxed);
        let good = match (kind, who) {
            (kind::REGION, _) => true,
            // The slot was a region's just now, and what it is since then was not there when this
            // began.
            _ if is_lock_pinned => false,
            (kind::NULL, Who::Us) | (kind::WINDOW_1, Who::Peer) => true,
            (kind::WINDOW_2, Who::Peer) => slot.user.load(Ordering::Relaxed) == self.qpn,
            _ => false,
        };
        if unlikely(!good) {
            return Err(Fault::Key);
        }
        let access = slot.access.load(Ordering::Relaxed);
        if unlikely(access & right != right) {
            return Err(Fault::Rights);
        }
        let real = slot.place(range.addr, range.length)?;
        let place = match kind {
            kind::NULL => Place::Null,
            _ if unlikely(access & LATE != 0) && who == Who::Peer => Place::Late(real),
            _ => Place::At(real),
        };
        Ok((place, here))
    }

    /// Whether the queue pair gives its peer these rights, whatever regions do.
    pub(super) fn lets_peer(&self, right: u32) -> bool {
        self.remote_access & right == right
    }
    /// Like [`View::with`], for a peer, which has the rights of the queue pair too.
    pub(super) fn remote<T>(
        &self,
        range: Remote,
        right: u32,
        copy: impl FnOnce(Place) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if !self.lets_peer(right) {
            return Err(Fault::Rights);
        }
        let done = self.with(range, right, Who::Peer, copy);
        if matches!(done, Err(Fault::Absent)) {
            self.table.bring(range);
        }
        if done.is_ok()
            && self.qpn != 0
            && let Some(local) = self.table.local()
        {
            local.named(Qpn::new(self.qpn), range.rkey, self.remote_access);
        }
        done
    }

    /// Writes a whole message to the begin of an element.
    #[inline]
    pub fn put(&self, to: &Sge, bytes: &[u8]) -> Result<(), Fault> {
        let length = bytes.len() as u64;
        if unlikely(length > to.length.into()) {
            return Err(Fault::Range);
        }
        let range = Remote { addr: to.addr, length, rkey: to.lkey };
        let (place, _here) = self.place(range, Access::LOCAL_WRITE, Who::Us)?;
        copy_in(place, bytes, Tail::End)
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
            self.with(range, right, Who::Us, |place| piece(place, done, n as usize))?;
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

    fn gather_for_icrc(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<Option<Remainder>, Fault> {
        if !self.seals {
            return self.gather(sges, at, dst).map(|()| None);
        }
        // Of pieces no code knows the whole.
        let (mut remainder, len) = (None, dst.len());
        self.pieces(sges, at, len, 0, |real, from, n| {
            let copied = copy_out_for_icrc(real, &mut dst[from..from + n])?;
            remainder = copied.filter(|_| n == len);
            Ok(())
        })?;
        Ok(remainder)
    }

    fn gather_run(&self, sges: &[Sge], at: u64, dst: &mut Payloads<'_>) -> Result<(), Fault> {
        self.pieces(sges, at, dst.len_bytes(), 0, |real, from, n| {
            copy_run_out(real, dst.range_mut(from, n), self.seals)
        })
    }

    fn scatter(&self, sges: &[Sge], at: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
        self.pieces(sges, at, src.len(), Access::LOCAL_WRITE, |real, from, n| {
            let last = from + n == src.len();
            copy_in(real, &src[from..from + n], if last { tail } else { Tail::More })
        })
    }

    fn scatter_strided(&self, sges: &[Sge], at: u64, src: Strided<'_>, tail: Tail) -> Result<(), Fault> {
        let len = src.len();
        self.pieces(sges, at, len, Access::LOCAL_WRITE, |real, from, n| {
            copy_pieces_in(real, src.range(from, n), if from + n == len { tail } else { Tail::More })
        })
    }

    #[inline(always)]
    fn get(&self, from: &Sge, dst: &mut [u8]) -> Result<(), Fault> {
        let length = dst.len() as u64;
        if unlikely(length > from.length.into()) {
            return Err(Fault::Range);
        }
        let range = Remote { addr: from.addr, length, rkey: from.lkey };
        let (place, _here) = self.place(range, 0, Who::Us)?;
        copy_out(place, dst)
    }

    fn gather_shared(&self, sges: &[Sge], at: u64, dst: SharedBytes<'_>) -> Result<(), Fault> {
        self.pieces(sges, at, dst.len(), 0, |real, from, n| copy_to_shared(real, dst, from, n))
    }

    fn scatter_shared(&self, sges: &[Sge], at: u64, src: SharedBytes<'_>, tail: Tail) -> Result<(), Fault> {
        self.pieces(sges, at, src.len(), Access::LOCAL_WRITE, |real, from, n| {
            let last = from + n == src.len();
            copy_from_shared(real, src, from, n, if last { tail } else { Tail::More })
        })
    }

    fn scatter_exported(&self, sges: &[Sge], at: u64, exported: Remote, tail: Tail) -> Result<(), Fault> {
        let len = exported.length as usize;
        self.pieces(sges, at, len, Access::LOCAL_WRITE, |place, from, n| {
            self.fetch(exported, from, place, n, if from + n == len { tail } else { Tail::More })
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
        self.remote(range, right, |place| match place {
            // It is answered piece by piece, and has to be there then.
            Place::Late(real) if matches!(access, op::Access::Read) => late::look(real, range.length),
            _ => Ok(()),
        })
    }

    fn write(&self, to: Remote, at: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
        let addr = to.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: src.len() as u64, rkey: to.rkey };
        self.remote(range, Access::REMOTE_WRITE, |real| copy_in(real, src, tail))
    }

    fn write_strided(&self, to: Remote, at: u64, src: Strided<'_>, tail: Tail) -> Result<(), Fault> {
        let addr = to.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: src.len() as u64, rkey: to.rkey };
        self.remote(range, Access::REMOTE_WRITE, |real| copy_pieces_in(real, src.pieces(), tail))
    }

    fn write_shared(&self, to: Remote, at: u64, src: SharedBytes<'_>, tail: Tail) -> Result<(), Fault> {
        let addr = to.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: src.len() as u64, rkey: to.rkey };
        self.remote(range, Access::REMOTE_WRITE, |real| copy_from_shared(real, src, 0, src.len(), tail))
    }

    fn write_exported(&self, to: Remote, at: u64, exported: Remote, tail: Tail) -> Result<(), Fault> {
        let addr = to.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: exported.length, rkey: to.rkey };
        let len = exported.length as usize;
        self.remote(range, Access::REMOTE_WRITE, |place| self.fetch(exported, 0, place, len, tail))
    }

    fn read_shared(&self, from: Remote, at: u64, dst: SharedBytes<'_>) -> Result<(), Fault> {
        let addr = from.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: dst.len() as u64, rkey: from.rkey };
        self.remote(range, Access::REMOTE_READ, |real| copy_to_shared(real, dst, 0, dst.len()))
    }

    fn read(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let addr = from.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: dst.len() as u64, rkey: from.rkey };
        self.remote(range, Access::REMOTE_READ, |real| copy_out(real, dst))
    }

    fn read_for_icrc(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<Option<Remainder>, Fault> {
        if !self.seals {
            return self.read(from, at, dst).map(|()| None);
        }
        let addr = from.addr.checked_add(at).ok_or(Fault::Range)?;
        let range = Remote { addr, length: dst.len() as u64, rkey: from.rkey };
        self.remote(range, Access::REMOTE_READ, |real| copy_out_for_icrc(real, dst))
    }

    fn read_run(&self, from: Remote, at: u64, dst: &mut Payloads<'_>) -> Result<(), Fault> {
        let (addr, len) = (from.addr.checked_add(at).ok_or(Fault::Range)?, dst.len_bytes());
        let range = Remote { addr, length: len as u64, rkey: from.rkey };
        self.remote(range, Access::REMOTE_READ, |real| copy_run_out(real, dst.range_mut(0, len), self.seals))
    }

    fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault> {
        let right = match op {
            AtomicOp::Write(_) => Access::REMOTE_WRITE,
            _ => Access::REMOTE_ATOMIC,
        };
        self.remote(Remote { length: 8, ..at }, right, |place| change(place, op.into()))
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
