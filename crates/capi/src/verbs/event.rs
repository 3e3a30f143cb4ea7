//! Asynchronous events (ibv_get_async_event(3)), and the count of events that a destroy waits for.

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, PoisonError};

use abi::verbs::{ibv_async_event, ibv_async_event_element, ibv_context};
use nic::{AsyncEvent, Element};

use crate::border;
use crate::fds;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::qp::Qp;

/// Events handed to the program and not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    count: Mutex<u32>,
    zero: Condvar,
}

impl Unacked {
    /// One more is handed out.
    pub fn hand_out(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
    /// The program acknowledges `n`.
    pub fn ack(&self, n: u32) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.zero.notify_all();
        }
    }
    /// Waits until all are acknowledged.
    pub fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            count = self.zero.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// `ibv_get_async_event`: waits on the context's `async_fd` unless that is non-blocking. -1 with EAGAIN or EINTR.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        // SAFETY: a context of ours; this frame has nothing to drop while it waits.
        if unsafe { !fds::wait((*context).async_fd) } {
            return -1;
        }
        // SAFETY: as above.
        let found =
            border::or(None, || Ok(unsafe { Context::of(context) }.events.pop().and_then(|e| convert(&e))));
        if let Some(found) = found {
            // SAFETY: the caller's variable.
            unsafe { *event = found };
            return 0;
        }
    }
}

/// The event as C has it, handed out; `None` where its object is being destroyed.
fn convert(event: &AsyncEvent) -> Option<ibv_async_event> {
    let element = match &event.element {
        Element::Qp(qp) => {
            let c = Qp::c_of(qp);
            if c.is_null() {
                return None;
            }
            // SAFETY: the C object lives: its destruction waits for what is handed out here.
            unsafe { Qp::of(c) }.async_events.hand_out();
            ibv_async_event_element { qp: c }
        }
        Element::Cq(cq) => {
            let c = Cq::c_of(cq);
            if c.is_null() {
                return None;
            }
            // SAFETY: as above.
            unsafe { Cq::of(c) }.async_events.hand_out();
            ibv_async_event_element { cq: c }
        }
        Element::Port(n) => ibv_async_event_element { port_num: (*n).into() },
        Element::Device => ibv_async_event_element { port_num: 0 },
    };
    Some(ibv_async_event { element, event_type: event.kind as u32 })
}

/// `ibv_ack_async_event`: the destruction of the event's queue pair or completion queue waits for it.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    use abi::verbs as v;
    // SAFETY: an event from `ibv_get_async_event`; its type says which member is set.
    border::nothing(|| unsafe {
        match (*event).event_type {
            v::IBV_EVENT_CQ_ERR => Cq::of((*event).element.cq).async_events.ack(1),
            v::IBV_EVENT_QP_FATAL
            | v::IBV_EVENT_QP_REQ_ERR
            | v::IBV_EVENT_QP_ACCESS_ERR
            | v::IBV_EVENT_COMM_EST
            | v::IBV_EVENT_SQ_DRAINED => Qp::of((*event).element.qp).async_events.ack(1),
            _ => {}
        }
    });
}
