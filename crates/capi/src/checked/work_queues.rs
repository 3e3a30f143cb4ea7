//! Receive work queues (ibv_create_wq(3)): what the checker hears of them.

use std::ffi::c_int;

use check::Queue;
use check::objects::SharedQueue;
use rdma_core_abi::verbs::{self as v, ibv_recv_wr, ibv_wq};

use super::{calls, handle, note};
use crate::verbs::steering::wq;

/// A work queue was made, whose fields for C are set.
///
/// # Safety
///
/// A queue of ours that lives.
pub(crate) unsafe fn made(wq: *mut ibv_wq) {
    // SAFETY: as the caller says.
    let (pd, cq) = unsafe { ((*wq).pd, (*wq).cq) };
    note(|checker, made| {
        checker.shared_made(handle(wq), SharedQueue::work_queue(handle(pd), handle(cq), made.clone()));
        Vec::new()
    });
}

/// A work queue is in this state (`enum ibv_wq_state`).
pub(crate) fn modified(wq: *mut ibv_wq, state: u32) {
    note(|checker, _| {
        if state == v::IBV_WQS_RESET {
            checker.shared_reset(handle(wq));
        }
        checker.work_queue_executes(handle(wq), state == v::IBV_WQS_RDY);
        Vec::new()
    });
}

/// A work queue was destroyed.
pub(crate) fn gone(wq: *mut ibv_wq) {
    note(|checker, _| {
        checker.shared_gone(handle(wq));
        Vec::new()
    });
}

/// `ibv_post_wq_recv`, checked: in the table of a work queue in place of the plain function.
pub(crate) unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { calls::posted(Queue::Shared(handle(wq)), wr, bad_wr, || wq::post_wq_recv(wq, wr, bad_wr)) }
}
