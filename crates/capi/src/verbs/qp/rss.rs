//! Raw packet queue pairs that spread their frames (ibv_create_qp_ex(3) with an indirection table).

use std::sync::atomic::Ordering;

use nic::{QpCap, QpInit, QpType};
use rdma_core_abi::verbs::{ibv_context, ibv_qp, ibv_qp_init_attr_ex};

use crate::checked;
use crate::ffi_guard::Errno;
use crate::verbs::device::context::Context;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::object::{Over, Qp};
use crate::verbs::qp::users::{count_over, count_users};
use crate::verbs::steering::wq::Table;

/// Makes a raw packet queue pair that spreads what it receives over the work queues of a table; it
/// sends nothing, and has no completion queues. EOPNOTSUPP for other types and for a send queue,
/// EINVAL for a receive queue of its own or a shared one.
///
/// # Safety
///
/// A context of ours and objects of ours that live, with an indirection table and a hash, as
/// ibv_create_qp_ex(3) asks.
pub(crate) unsafe fn create_over_table(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    let (context_of_it, init, domain) = unsafe { (Context::usable(context)?, &*attr, Pd::of((*attr).pd)) };
    if init.qp_type != QpType::RawPacket as u32 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let receives = (init.cap.max_recv_wr, init.cap.max_recv_sge) != (0, 0)
        || !init.recv_cq.is_null()
        || !init.srq.is_null();
    if init.rwq_ind_tbl.is_null() || receives {
        return Err(Errno(libc::EINVAL));
    }
    if init.cap.max_send_wr != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // SAFETY: as the caller says.
    let spread = unsafe { Table::of(init.rwq_ind_tbl).spread(&init.rx_hash_conf)? };
    let events = context_of_it.events.clone();
    // Nothing completes to it.
    let cq = nic::Cq::new(1, None, events.clone())?;
    let init_of_it = QpInit {
        kind: QpType::RawPacket,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
        events,
    };
    let nic = nic::Qp::create(&context_of_it.nic, &domain.nic, init_of_it)?;
    nic.spread_over(spread)?;
    let over = Over::Table(init.rwq_ind_tbl);
    let mut ex = Qp::blank(context, init.qp_context, &nic);
    ex.qp_base.pd = init.pd;
    // SAFETY: as the caller says.
    let context = unsafe {
        count_users(&ex.qp_base, |n| _ = n.fetch_add(1, Ordering::AcqRel));
        count_over(over, |n| _ = n.fetch_add(1, Ordering::AcqRel));
        Context::share(context)
    };
    let qp = Qp::make(ex, nic, over, None, context);
    // SAFETY: just made.
    unsafe {
        Qp::of(qp).take_events();
        checked::objects::pair_made(qp, 0);
    }
    Ok(qp)
}
