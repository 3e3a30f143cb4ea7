//! What a queue pair uses, and counts itself in at: none of it is destroyed before it (EBUSY).

use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

use rdma_core_abi::verbs::{IBV_QPT_XRC_SEND, ibv_qp};

use crate::verbs::cq::object::Cq;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::object::Over;
use crate::verbs::srq::object::Srq;
use crate::verbs::steering::wq::Table;
use crate::verbs::xrcd::Xrcd;

/// Runs `count` on the counter of all that C sees in a queue pair and that it uses; what it has not
/// is NULL. An XRC initiator does not use its `recv_cq`.
///
/// # Safety
///
/// Objects of ours that live, or NULL.
pub(crate) unsafe fn count_users(qp: &ibv_qp, count: impl Fn(&AtomicU32)) {
    // SAFETY: as the caller says.
    unsafe {
        let recv_cq = if qp.qp_type == IBV_QPT_XRC_SEND { null_mut() } else { qp.recv_cq };
        for cq in [qp.send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
            count(&Cq::of(cq).users);
        }
        if !qp.pd.is_null() {
            count(&Pd::of(qp.pd).users);
        }
        if !qp.srq.is_null() {
            count(&Srq::of(qp.srq).users);
        }
    }
}

/// Counts the users of what a queue pair was made over.
///
/// # Safety
///
/// An object of ours that lives.
pub(crate) unsafe fn count_over(over: Over, count: impl Fn(&AtomicU32)) {
    // SAFETY: as the caller says.
    unsafe {
        match over {
            Over::Nothing => {}
            Over::Xrcd(xrcd) => count(&Xrcd::of(xrcd).users),
            Over::Table(table) => count(&Table::of(table).users),
        }
    }
}
