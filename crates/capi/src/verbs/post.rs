//! Posting work requests (ibv_post_send(3), ibv_post_recv(3)), through the context's table.

use std::ffi::c_int;
use std::time::Instant;

use abi::verbs::{self as v, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};
use nic::{Datagram, PostError, QpType};
use transport::Sge;
use transport::op::{AtomicOp, Data, MAX_SGE, RecvWr, SendOp, SendWr, SgeList};
use wire::roce::SendTail;
use wire::{Qkey, Qpn, Rkey};

use crate::border::{self, Errno};
use crate::verbs::ah::Ah;
use crate::verbs::qp::Qp;

/// The elements of a request.
///
/// # Safety
///
/// `list` has `n` elements.
unsafe fn elements<'a>(list: *const ibv_sge, n: c_int) -> Result<&'a [ibv_sge], Errno> {
    let n = usize::try_from(n).ok().filter(|&n| n <= MAX_SGE).ok_or(Errno(libc::EINVAL))?;
    if n == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says; the list itself is plain memory that nobody changes during the call.
    Ok(unsafe { std::slice::from_raw_parts(list, n) })
}

fn list(sges: &[ibv_sge]) -> SgeList {
    sges.iter().map(|s| Sge { addr: s.addr, length: s.length, lkey: Rkey(s.lkey) }).collect()
}

/// The bytes of an inline request, copied now: their memory need not be registered.
fn inline(sges: &[ibv_sge]) -> Result<Data, Errno> {
    let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(nic::limits::MAX_INLINE) {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = [0_u8; nic::limits::MAX_INLINE as usize];
    let mut at = 0;
    for s in sges {
        let n = s.length as usize;
        // SAFETY: the program's own memory, named by itself for this call; `bytes` has room for the total.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::with_exposed_provenance::<u8>(s.addr as usize),
                bytes.as_mut_ptr().add(at),
                n,
            );
        }
        at += n;
    }
    Ok(Data::inline(&bytes[..at]))
}

/// # Safety
///
/// A work request as the man page describes it.
unsafe fn convert(wr: &ibv_send_wr) -> Result<SendWr, Errno> {
    let flags = wr.send_flags;
    if flags & v::IBV_SEND_IP_CSUM != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
    // SAFETY: any bit pattern is a value of these members; the opcode says which one is meant.
    let (imm, invalidate, rdma, atomic) =
        unsafe { (wr.imm.imm_data.to_ne_bytes(), Rkey(wr.imm.invalidate_rkey), wr.wr.rdma, wr.wr.atomic) };
    let write = |immediate| SendOp::Write { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey), immediate };
    let on_eight = |op| SendOp::Atomic { addr: atomic.remote_addr, rkey: Rkey(atomic.rkey), op };
    let op = match wr.opcode {
        v::IBV_WR_SEND => SendOp::Send(SendTail::None),
        v::IBV_WR_SEND_WITH_IMM => SendOp::Send(SendTail::Immediate(imm)),
        v::IBV_WR_SEND_WITH_INV => SendOp::Send(SendTail::Invalidate(invalidate)),
        v::IBV_WR_RDMA_WRITE => write(None),
        v::IBV_WR_RDMA_WRITE_WITH_IMM => write(Some(imm)),
        v::IBV_WR_RDMA_READ => SendOp::Read { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) },
        v::IBV_WR_ATOMIC_CMP_AND_SWP => {
            on_eight(AtomicOp::CompareSwap { compare: atomic.compare_add, swap: atomic.swap })
        }
        v::IBV_WR_ATOMIC_FETCH_AND_ADD => on_eight(AtomicOp::FetchAdd(atomic.compare_add)),
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    let data = if flags & v::IBV_SEND_INLINE != 0 { inline(sges)? } else { Data::Sges(list(sges)) };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op,
        data,
        signaled: flags & v::IBV_SEND_SIGNALED != 0,
        solicited: flags & v::IBV_SEND_SOLICITED != 0,
        fence: flags & v::IBV_SEND_FENCE != 0,
    })
}

/// Whom a datagram is for.
///
/// # Safety
///
/// A work request of a datagram queue pair as the man page describes it: its address handle lives.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<Datagram<'_>, Errno> {
    // SAFETY: any bit pattern is a value of these members.
    let to = unsafe { wr.wr.ud };
    if to.ah.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let ah = unsafe { Ah::of(to.ah) };
    Ok(Datagram { ah: &ah.nic, qpn: Qpn::new(to.remote_qpn), qkey: Qkey(to.remote_qkey) })
}

impl From<PostError> for Errno {
    fn from(e: PostError) -> Errno {
        Errno(e.errno())
    }
}

/// `ibv_post_send`: takes the list in order under one lock and sends. Where one is refused, `bad_wr` names it and those before
/// it stay posted. EINVAL for a wrong state or request, ENOMEM for a full queue, EOPNOTSUPP for an operation
/// that is not built, ENODEV for a parent's queue pair in a forked child.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    border::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        if !ours.instance.is_ours() {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = wr };
            return Err(Errno(libc::ENODEV));
        }
        let mut sender = ours.nic.sender(Instant::now());
        let mut at = wr;
        while !at.is_null() {
            // SAFETY: a list of requests, by the man page's contract.
            let posted = unsafe {
                convert(&*at).and_then(|wr| match ours.nic.init().kind {
                    QpType::Ud => sender.post_datagram(wr, datagram(&*at)?).map_err(Errno::from),
                    QpType::Rc | QpType::Uc => sender.post(wr).map_err(Errno::from),
                })
            };
            if let Err(e) = posted {
                // SAFETY: the caller's variable.
                unsafe { *bad_wr = at };
                return Err(e);
            }
            // SAFETY: as above.
            at = unsafe { (*at).next };
        }
        Ok(())
    })
}

/// `ibv_post_recv`: as [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    border::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        if !ours.instance.is_ours() {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = wr };
            return Err(Errno(libc::ENODEV));
        }
        let mut at = wr;
        while !at.is_null() {
            // SAFETY: a list of requests, by the man page's contract.
            let one = unsafe { &*at };
            // SAFETY: as above.
            let posted = unsafe { elements(one.sg_list, one.num_sge) }.and_then(|sges| {
                let wr = RecvWr { wr_id: one.wr_id, sges: list(sges) };
                Ok(ours.nic.post_receive(wr)?)
            });
            if let Err(e) = posted {
                // SAFETY: the caller's variable.
                unsafe { *bad_wr = at };
                return Err(e);
            }
            at = one.next;
        }
        Ok(())
    })
}
