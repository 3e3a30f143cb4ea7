//! Asynchronous events (ibv_get_async_event(3)).

use std::ffi::c_int;

use nic::{AsyncEvent, Element};
use rdma_core_abi::verbs::{ibv_async_event, ibv_async_event_element, ibv_context};

use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::object::Cq;
use crate::verbs::device::context::{self, Context};
use crate::verbs::qp::object::Qp;
use crate::verbs::srq::object::Srq;
use crate::waiting;

/// ibv_get_async_event(3): waits on the context's `async_fd` unless that is non-blocking. -1 with
/// EAGAIN or EINTR; ENODEV for a parent's context in a forked child, EBADF where another thread has
/// closed it meanwhile. Unlike rdma-core: a context that another thread closes meanwhile is an
/// error, not undefined.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: a context of ours, by the man page's contract.
    if unsafe { !context::is_ours(context) } {
        return -1;
    }
    // SAFETY: as above.
    let fd = unsafe { (*context).async_fd };
    loop {
        let find = || context::still_open(context).map(|context| context.counter());
        // SAFETY: this frame has nothing to drop while it waits.
        if unsafe { !waiting::wait(fd, find) } {
            return -1;
        }
        let found = ffi_guard::or_minus_one(|| {
            // Another thread may have closed it meanwhile.
            let open = context::still_open(context).ok_or(Errno(libc::EBADF))?;
            let Some(found) = next(&open) else { return Ok(0) };
            // SAFETY: the caller's variable.
            unsafe { *event = found };
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
        // The event was taken back with its object.
    }
}

/// The oldest event, handed out; `None` where it was taken back.
fn next(context: &Context) -> Option<ibv_async_event> {
    let _handing_out = context.handing_out.begin();
    convert(&context.events.pop()?)
}

/// The event as C has it, handed out; `None` where its object is being destroyed.
fn convert(event: &AsyncEvent) -> Option<ibv_async_event> {
    let element = match &event.element {
        Element::Qp(qp) => {
            let c = Qp::c_of(&**qp);
            if c.is_null() {
                return None;
            }
            // SAFETY: the C object lives: it is not withdrawn yet, and its destruction waits for
            // what is handed out.
            unsafe { Qp::of(c) }.async_events.hand_out();
            ibv_async_event_element { qp: c }
        }
        Element::Cq(cq) => {
            let c = Cq::c_of(&**cq);
            if c.is_null() {
                return None;
            }
            // SAFETY: as above.
            unsafe { Cq::of(c) }.async_events.hand_out();
            ibv_async_event_element { cq: c }
        }
        Element::Srq(srq) => {
            let c = Srq::c_of(&**srq);
            if c.is_null() {
                return None;
            }
            // SAFETY: as above.
            unsafe { Srq::of(c) }.async_events.hand_out();
            ibv_async_event_element { srq: c }
        }
        Element::Port(n) => ibv_async_event_element { port_num: (*n).into() },
        Element::Device => ibv_async_event_element { port_num: 0 },
    };
    Some(ibv_async_event { element, event_type: event.kind as u32 })
}

/// `ibv_ack_async_event`, ibv_get_async_event(3): the destruction of the event's queue pair or
/// completion queue waits for it.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    use rdma_core_abi::verbs as v;
    // SAFETY: an event from `ibv_get_async_event`; its type says which member is set.
    ffi_guard::nothing(|| unsafe {
        match (*event).event_type {
            v::IBV_EVENT_SRQ_ERR | v::IBV_EVENT_SRQ_LIMIT_REACHED => {
                Srq::of((*event).element.srq).async_events.ack(1);
            }
            v::IBV_EVENT_CQ_ERR => Cq::of((*event).element.cq).async_events.ack(1),
            v::IBV_EVENT_QP_FATAL
            | v::IBV_EVENT_QP_REQ_ERR
            | v::IBV_EVENT_QP_ACCESS_ERR
            | v::IBV_EVENT_COMM_EST
            | v::IBV_EVENT_SQ_DRAINED
            | v::IBV_EVENT_QP_LAST_WQE_REACHED => Qp::of((*event).element.qp).async_events.ack(1),
            _ => {}
        }
    });
}
