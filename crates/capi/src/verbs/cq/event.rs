//! Completion events (ibv_get_cq_event(3), ibv_ack_cq_events(3)).

use std::ffi::{c_int, c_uint, c_void};

use rdma_core_abi::verbs::{ibv_comp_channel, ibv_cq};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::channel::Channel;
use crate::verbs::cq::object::Cq;
use crate::verbs::device::context;
use crate::waiting;

/// ibv_get_cq_event(3): waits on the channel's descriptor unless that is non-blocking. -1 with
/// EAGAIN or EINTR; ENODEV for a parent's channel in a forked child, EBADF where another thread has
/// destroyed it meanwhile. Unlike rdma-core: a channel that another thread destroys meanwhile is an
/// error, not undefined.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel of ours and its context, by the man page's contract.
    if unsafe { !context::is_ours((*channel).context) } {
        return -1;
    }
    checked::events::waiting(channel);
    // SAFETY: as above.
    let fd = unsafe { (*channel).fd };
    loop {
        // SAFETY: this frame has nothing to drop while it waits.
        if unsafe { !waiting::wait(fd, || Channel::with(channel, Channel::counter)) } {
            return -1;
        }
        let found = ffi_guard::or_minus_one(|| {
            // Another thread may have destroyed it meanwhile.
            let next = Channel::with(channel, next);
            let Some(ours) = next.ok_or(Errno(libc::EBADF))? else { return Ok(0) };
            // SAFETY: the caller's variables; the queue lives until its events are acknowledged.
            unsafe {
                *cq = ours;
                *cq_context = (*ours).cq_context;
            }
            checked::events::taken(ours);
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
        // The queue of this event was destroyed meanwhile.
    }
}

/// The queue of the channel's oldest event, handed out.
fn next(channel: &Channel) -> Option<*mut ibv_cq> {
    let _handing_out = channel.handing_out.begin();
    let popped = channel.nic.pop()?;
    let cq = Cq::c_of(&*popped);
    if cq.is_null() {
        return None;
    }
    // SAFETY: it is not withdrawn yet, and its destruction waits for what is handed out.
    unsafe { Cq::of(cq) }.completion_events.hand_out();
    Some(cq)
}

/// `ibv_ack_cq_events`, ibv_get_cq_event(3): `ibv_destroy_cq` waits for it.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    if checked::objects::refuse_gone(cq).is_ok() {
        // SAFETY: a queue of ours, by the man page's contract.
        ffi_guard::nothing(|| unsafe { Cq::of(cq) }.completion_events.ack(nevents));
    }
}
