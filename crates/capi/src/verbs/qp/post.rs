//! Posting work requests (ibv_post_send(3), ibv_post_recv(3)), through the context's table.

use std::ffi::c_int;

use nic::{Datagram, PostFlags, QpType, Sender};
use rdma_core_abi::verbs::{self as v, ibv_qp, ibv_recv_wr, ibv_send_wr};
use transport::likely::{likely, unlikely};
use transport::op::{AtomicOp, Data, LocalOp, SendOp};
use wire::roce::SendTail;
use wire::{Qkey, Qpn, Rkey};

use crate::ffi_guard::{self, Errno};
use crate::verbs::ah::Ah;
use crate::verbs::memory::mw;
use crate::verbs::qp::object::Qp;
use crate::verbs::qp::request::{each_receive, elements, inline, list, send_wr};

/// What a request that is no plain SEND does.
///
/// # Safety
///
/// A work request as the man page describes it.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: any bit pattern is a value of these members; the opcode says which one is meant.
    let (imm, invalidate, rdma, atomic) =
        unsafe { (wr.imm.imm_data.to_ne_bytes(), Rkey(wr.imm.invalidate_rkey), wr.wr.rdma, wr.wr.atomic) };
    let write = |immediate| SendOp::Write { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey), immediate };
    let on_eight = |op| SendOp::Atomic { addr: atomic.remote_addr, rkey: Rkey(atomic.rkey), op };
    Ok(match wr.opcode {
        v::IBV_WR_SEND_WITH_IMM => SendOp::Send(SendTail::Immediate(imm)),
        v::IBV_WR_SEND_WITH_INV => SendOp::Send(SendTail::Invalidate(invalidate)),
        v::IBV_WR_RDMA_WRITE => write(None),
        v::IBV_WR_RDMA_WRITE_WITH_IMM => write(Some(imm)),
        v::IBV_WR_RDMA_READ => SendOp::Read { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) },
        v::IBV_WR_ATOMIC_CMP_AND_SWP => {
            on_eight(AtomicOp::CompareSwap { compare: atomic.compare_add, swap: atomic.swap })
        }
        v::IBV_WR_ATOMIC_FETCH_AND_ADD => on_eight(AtomicOp::FetchAdd(atomic.compare_add)),
        v::IBV_WR_ATOMIC_WRITE => {
            // The value is the request's data.
            SendOp::Atomic { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey), op: AtomicOp::Write(0) }
        }
        v::IBV_WR_LOCAL_INV => SendOp::Local(LocalOp::Invalidate(invalidate)),
        v::IBV_WR_BIND_MW => {
            // SAFETY: the opcode says that this member is meant.
            let bind = unsafe { wr.op.bind_mw };
            // SAFETY: objects of ours, by the man page's contract.
            unsafe { mw::bind_second(bind.mw, &bind.bind_info, bind.rkey)? }
        }
        // Of FLUSH too: `struct ibv_send_wr` has no room for what it says, only `ibv_wr_flush` has.
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    })
}

/// The destination of a datagram.
///
/// # Safety
///
/// A work request of a datagram queue pair as the man page describes it: its address handle lives.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<Datagram, Errno> {
    // SAFETY: any bit pattern is a value of these members.
    let to = unsafe { wr.wr.ud };
    if to.ah.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let ah = unsafe { Ah::of(to.ah) };
    Ok(Datagram { ah: ah.nic.clone(), qpn: Qpn::new(to.remote_qpn), qkey: Qkey(to.remote_qkey) })
}

/// ibv_post_send(3): takes the list in order under one lock and sends. Where one is refused,
/// `bad_wr` names it and those before it stay posted. EINVAL for a wrong state or request, ENOMEM
/// for a full queue, EOPNOTSUPP for an operation that is not built, ENODEV for a parent's queue
/// pair in a forked child.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        if unlikely(!ours.instance.is_ours()) {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = wr };
            return Err(Errno(libc::ENODEV));
        }
        let now = || ours.instance.host.just_now();
        let mut sender = ours.nic.sender_asking(&now);
        // SAFETY: a list of requests, by the man page's contract.
        let posted = unsafe { each_send(wr, ours.nic.init().kind, &mut sender) };
        // Those before the one that was refused leave too.
        sender.finish();
        posted.map_err(|(at, e)| {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = at };
            e
        })
    })
}

/// Posts each request of a list to a queue pair of this kind; where one is refused, says which and
/// why.
///
/// # Safety
///
/// A list of requests as ibv_post_send(3) describes it.
unsafe fn each_send(
    list_of: *mut ibv_send_wr,
    kind: QpType,
    sender: &mut Sender<'_>,
) -> Result<(), (*mut ibv_send_wr, Errno)> {
    let mut at = list_of;
    while !at.is_null() {
        // SAFETY: as the caller says.
        let one = unsafe { &*at };
        // SAFETY: as above.
        unsafe { post_one(one, kind, sender) }.map_err(|e| (at, e))?;
        at = one.next;
    }
    Ok(())
}

/// Posts a request to a queue pair of this kind. It is converted where it is posted: to hand it on
/// would be to copy it.
///
/// # Safety
///
/// A work request as the man page describes it.
#[inline]
unsafe fn post_one(one: &ibv_send_wr, kind: QpType, sender: &mut Sender<'_>) -> Result<(), Errno> {
    let flags = one.send_flags;
    if unlikely(flags & v::IBV_SEND_IP_CSUM != 0) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let sges = unsafe { elements(one.sg_list, one.num_sge)? };
    let is_inline = flags & v::IBV_SEND_INLINE != 0;
    let listed = if is_inline { &[] } else { sges };
    // What most requests are; made in one go, so that nothing just written is moved.
    let mut wr = send_wr(one.wr_id, flags, SendOp::Send(SendTail::None), Data::Sges(list(listed)));
    if is_inline {
        wr.data = inline(sges)?;
    }
    if one.opcode != v::IBV_WR_SEND {
        // SAFETY: as the caller says.
        wr.op = unsafe { operation(one)? };
    }
    let mut flags = PostFlags { last: kind == QpType::Rc && one.next.is_null(), ..PostFlags::default() };
    match kind {
        QpType::Ud => {
            // SAFETY: as the caller says.
            let to = unsafe { datagram(one)? };
            return Ok(sender.post_datagram(&mut wr, &to)?);
        }
        // SAFETY: any bit pattern is a value of this member.
        QpType::XrcSend => flags.srq = unsafe { one.qp_type.xrc.remote_srqn },
        QpType::Rc | QpType::Uc | QpType::RawPacket | QpType::XrcRecv => {}
    }
    sender.post(&mut wr, flags)?;
    Ok(())
}

/// ibv_post_recv(3): as [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        let posted = if likely(ours.instance.is_ours()) {
            // SAFETY: a list of requests, by the man page's contract.
            unsafe { each_receive(wr, |wr| Ok(ours.nic.post_receive(wr)?)) }
        } else {
            Err((wr, Errno(libc::ENODEV)))
        };
        posted.map_err(|(at, e)| {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = at };
            e
        })
    })
}
