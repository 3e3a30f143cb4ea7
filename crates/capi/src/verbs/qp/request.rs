//! The parts of work requests that all posting calls convert alike: elements, inline bytes, flags,
//! lists.

use std::ffi::{c_int, c_uint};

use rdma_core_abi::verbs::{self as v, ibv_recv_wr, ibv_sge};
use transport::Sge;
use transport::op::{Data, MAX_SGE, RecvWr, SendOp, SendWr, SgeList};
use wire::Rkey;

use crate::ffi_guard::Errno;

/// The elements of a request.
///
/// # Safety
///
/// `list` has `n` elements.
#[inline]
pub(crate) unsafe fn elements<'a>(list: *const ibv_sge, n: c_int) -> Result<&'a [ibv_sge], Errno> {
    let n = usize::try_from(n).ok().filter(|&n| n <= MAX_SGE).ok_or(Errno(libc::EINVAL))?;
    if n == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says; the list itself is plain memory that no thread changes during the
    // call.
    Ok(unsafe { std::slice::from_raw_parts(list, n) })
}

/// The elements as the engines take them.
#[inline(always)]
pub(crate) fn list(sges: &[ibv_sge]) -> SgeList {
    match sges {
        [one] => SgeList::one(sge(one)),
        _ => several(sges),
    }
}

#[inline(never)]
fn several(sges: &[ibv_sge]) -> SgeList {
    sges.iter().map(sge).collect()
}

/// One element of a request.
#[inline]
pub(crate) fn sge(s: &ibv_sge) -> Sge {
    Sge { addr: s.addr, length: s.length, lkey: Rkey(s.lkey) }
}

/// The bytes of an inline request, copied now: their memory need not be registered.
pub(crate) fn inline(sges: &[ibv_sge]) -> Result<Data, Errno> {
    let piece = |s: &ibv_sge| (std::ptr::with_exposed_provenance(s.addr as usize), s.length as usize);
    // SAFETY: the program's own memory, named by itself for this call.
    unsafe { gather_inline(sges.iter().map(piece)) }
}

/// The bytes of the pieces, one after the other. EINVAL for more than the device takes.
///
/// # Safety
///
/// Each piece is readable, of so many bytes.
pub(crate) unsafe fn gather_inline(pieces: impl Iterator<Item = (*const u8, usize)>) -> Result<Data, Errno> {
    let mut bytes = [0_u8; nic::limits::MAX_INLINE as usize];
    let mut at = 0_usize;
    for (from, n) in pieces {
        let to = at.checked_add(n).and_then(|end| bytes.get_mut(at..end)).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) };
        at += n;
    }
    Ok(Data::inline(&bytes[..at]))
}

/// A send request with its flags (`ibv_send_flags`).
#[inline]
pub(crate) fn send_wr(wr_id: u64, flags: c_uint, op: SendOp, data: Data) -> SendWr {
    SendWr {
        wr_id,
        op,
        data,
        signaled: flags & v::IBV_SEND_SIGNALED != 0,
        solicited: flags & v::IBV_SEND_SOLICITED != 0,
        fence: flags & v::IBV_SEND_FENCE != 0,
    }
}

/// Hands each request of a list to `post`; where one is refused, says which and why.
///
/// # Safety
///
/// A list of requests as ibv_post_recv(3) describes it.
#[inline]
pub(crate) unsafe fn each_receive(
    list_of: *mut ibv_recv_wr,
    mut post: impl FnMut(RecvWr) -> Result<(), Errno>,
) -> Result<(), (*mut ibv_recv_wr, Errno)> {
    let mut at = list_of;
    while !at.is_null() {
        // SAFETY: as the caller says.
        let one = unsafe { &*at };
        // SAFETY: as above.
        let sges = unsafe { elements(one.sg_list, one.num_sge) };
        let posted = sges.and_then(|sges| post(RecvWr { wr_id: one.wr_id, sges: list(sges) }));
        posted.map_err(|e| (at, e))?;
        at = one.next;
    }
    Ok(())
}
