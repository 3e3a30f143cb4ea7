//! Events of libibverbs 1.0: told about the old objects.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use rdma_core_abi::verbs::{self as v, ibv_comp_channel};

use crate::verbs::abi_1_0::layout::{Context, Cq, Qp, Srq};
use crate::verbs::cq::event as completion;
use crate::verbs::device::async_event;

/// `ibv_get_async_event` of libibverbs 1.0, for old objects.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut Context,
    to: *mut v::ibv_async_event,
) -> c_int {
    // SAFETY: the man page's contract; this frame has nothing to drop while it waits. The new
    // objects' contexts are the old objects.
    unsafe {
        let code = async_event::ibv_get_async_event((*context).real, to);
        if code == 0 {
            let element = &mut (*to).element;
            match of((*to).event_type) {
                Of::Cq => element.cq = (*element.cq).cq_context.cast(),
                Of::Qp => element.qp = (*element.qp).qp_context.cast(),
                Of::Srq => element.srq = (*element.srq).srq_context.cast(),
                Of::Other => {}
            }
        }
        code
    }
}

/// `ibv_ack_async_event` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_ack_async_event(given: *mut v::ibv_async_event) {
    // SAFETY: the man page's contract: an event of `ibv_get_async_event`, whose objects are old
    // ones that live.
    unsafe {
        let mut real = *given;
        match of(real.event_type) {
            Of::Cq => real.element.cq = (*real.element.cq.cast::<Cq>()).real,
            Of::Qp => real.element.qp = (*real.element.qp.cast::<Qp>()).real,
            Of::Srq => real.element.srq = (*real.element.srq.cast::<Srq>()).real,
            Of::Other => {}
        }
        async_event::ibv_ack_async_event(&raw mut real);
    }
}

/// What kind of object an event happens to.
enum Of {
    Cq,
    Qp,
    Srq,
    Other,
}

fn of(kind: v::ibv_event_type) -> Of {
    match kind {
        v::IBV_EVENT_CQ_ERR => Of::Cq,
        v::IBV_EVENT_QP_FATAL
        | v::IBV_EVENT_QP_REQ_ERR
        | v::IBV_EVENT_QP_ACCESS_ERR
        | v::IBV_EVENT_COMM_EST
        | v::IBV_EVENT_SQ_DRAINED
        | v::IBV_EVENT_PATH_MIG
        | v::IBV_EVENT_PATH_MIG_ERR
        | v::IBV_EVENT_QP_LAST_WQE_REACHED => Of::Qp,
        v::IBV_EVENT_SRQ_ERR | v::IBV_EVENT_SRQ_LIMIT_REACHED => Of::Srq,
        _ => Of::Other,
    }
}

/// `ibv_get_cq_event` of libibverbs 1.0, for old objects.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let (mut real, mut old) = (null_mut(), null_mut());
    // SAFETY: the man page's contract; this frame has nothing to drop while it waits. The new
    // queue's context is the old queue.
    unsafe {
        let code = completion::ibv_get_cq_event(channel, &raw mut real, &raw mut old);
        if code == 0 {
            *cq = old.cast();
            *cq_context = (*old.cast::<Cq>()).cq_context;
        }
        code
    }
}

/// `ibv_ack_cq_events` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, n: c_uint) {
    // SAFETY: the man page's contract.
    unsafe { completion::ibv_ack_cq_events((*cq).real, n) }
}
