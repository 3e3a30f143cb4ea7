//! Queue pairs made (ibv_create_qp(3)).

use std::sync::atomic::Ordering;

use nic::{QpCap, QpInit, QpType};
use rdma_core_abi::verbs::{IBV_QPT_DRIVER, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_sge};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::object::Cq;
use crate::verbs::device::context::Context;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::builder::Builder;
use crate::verbs::qp::object::{Over, Qp};
use crate::verbs::qp::users::count_users;
use crate::verbs::qp::wr;
use crate::verbs::srq::object::Srq;

/// Bytes of a scatter/gather element in an adapter's queue entry.
const SGE_BYTES: u32 = 16;

/// Inline bytes of a queue pair: as many as its elements take room in a request, if more were not
/// asked for. Programs count on it, because adapters and the kernel's rxe give that much unasked
/// (rdma_xclient).
fn granted_inline(cap: &ibv_qp_cap) -> u32 {
    let room = cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32);
    cap.max_inline_data.max(room.min(nic::limits::MAX_INLINE))
}

/// The sizes that a queue pair gets where these are asked for.
fn granted(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: granted_inline(cap),
    }
}

/// The completion queue of receives, or NULL. An XRC initiator receives nothing: its `recv_cq`,
/// `max_recv_wr` and `max_recv_sge` are ignored.
fn recv_cq_of(kind: QpType, init: &mut ibv_qp_init_attr) -> *mut ibv_cq {
    if kind != QpType::XrcSend {
        return init.recv_cq;
    }
    (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    init.send_cq
}

/// EINVAL for completion queues that are NULL, or destroyed.
fn are_there(send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq) -> Result<(), Errno> {
    if send_cq.is_null() || recv_cq.is_null() {
        let why = nic::Error::Invalid("send_cq or recv_cq is NULL");
        return Err(checked::refusals::because("ibv_create_qp", why));
    }
    checked::objects::refuse_gone(send_cq)?;
    checked::objects::refuse_gone(recv_cq)
}

/// What uverbs answers for a type that it does not know, and a device for one that it has not.
fn unknown_type(qp_type: u32) -> Errno {
    Errno(if qp_type == IBV_QPT_DRIVER { libc::EOPNOTSUPP } else { libc::EINVAL })
}

/// Makes a queue pair; its packets need the device's UDP port, which is opened here.
///
/// # Safety
///
/// Objects of ours that live, as ibv_create_qp(3) asks.
pub(crate) unsafe fn create(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    unsafe { create_with(pd, attr, None) }
}

/// Like [`create`], with what an extended queue pair has.
///
/// # Safety
///
/// As for [`create`].
pub(crate) unsafe fn create_with(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    builder: Option<Box<Builder>>,
) -> Result<*mut ibv_qp, Errno> {
    if pd.is_null() || attr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    checked::objects::refuse_gone(pd)?;
    // SAFETY: as the caller says.
    let (domain, init) = unsafe { (Pd::of(pd), &mut *attr) };
    let kind = QpType::from_code(init.qp_type).ok_or(unknown_type(init.qp_type))?;
    let recv_cq = recv_cq_of(kind, init);
    are_there(init.send_cq, recv_cq)?;
    // SAFETY: as the caller says.
    let srq = (!init.srq.is_null()).then(|| unsafe { Srq::of(init.srq) });
    // SAFETY: as the caller says.
    let (context, send_cq, recv_cq) = unsafe {
        (Context::usable((*pd).context)?, Cq::of(init.send_cq).nic.clone(), Cq::of(recv_cq).nic.clone())
    };
    if kind != QpType::RawPacket {
        context.instance.attach(&context.nic)?;
    }
    let asked_inline = init.cap.max_inline_data;
    // As adapters whose queue entries hold elements or bytes; rdma_xclient sends 16 bytes inline
    // and asked for none.
    init.cap.max_inline_data =
        init.cap.max_inline_data.max(init.cap.max_send_sge.min(nic::limits::MAX_SGE) * SGE_BYTES);
    let cap = granted(&init.cap);
    let nic = nic::Qp::create(
        &context.nic,
        &domain.nic,
        QpInit {
            kind,
            send_cq,
            recv_cq,
            srq: srq.map(|s| s.nic.clone()),
            cap,
            sq_sig_all: init.sq_sig_all != 0,
            events: context.events.clone(),
        },
    )
    .inspect_err(checked::refusals::tell("ibv_create_qp"))?;
    init.cap.max_inline_data = cap.max_inline_data;
    // SAFETY: as the caller says.
    let of = unsafe { (*pd).context };
    let mut ex = Qp::blank(of, init.qp_context, &nic);
    if builder.is_some() {
        wr::set_functions(&mut ex);
        if checked::is_on() {
            checked::steps::set_wr_functions(&mut ex);
        }
    }
    let c = &mut ex.qp_base;
    c.pd = pd;
    c.send_cq = init.send_cq;
    c.recv_cq = init.recv_cq;
    c.srq = init.srq;
    // SAFETY: as the caller says.
    let context = unsafe {
        count_users(c, |n| _ = n.fetch_add(1, Ordering::AcqRel));
        Context::share(of)
    };
    let qp = Qp::make(ex, nic, Over::Nothing, builder, context);
    // SAFETY: just made.
    unsafe {
        Qp::of(qp).take_events();
        checked::objects::pair_made(qp, asked_inline);
    }
    Ok(qp)
}

/// ibv_create_qp(3). errno: EINVAL for NULL, sizes out of range or types that there are not, ENOMEM
/// at the limit, EOPNOTSUPP for IBV_QPT_DRIVER, EADDRINUSE where the UDP port belongs to another.
/// Beside a shared receive queue `max_recv_wr` and `max_recv_sge` are ignored: they come back as
/// they were asked for, and ibv_query_qp(3) says 0.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the man page's contract.
    ffi_guard::or_null(|| unsafe { create(pd, attr) })
}
