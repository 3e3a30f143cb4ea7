//! Queue pairs destroyed (ibv_destroy_qp(3)).

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_abi::verbs::ibv_qp;

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::qp::object::{self, Qp};
use crate::verbs::qp::users::{count_over, count_users};

/// Ends what a context's queue pairs do, as its file is closing; their C objects stay.
pub(crate) fn end_all(context: &Context) {
    let mut ended = Vec::new();
    object::each_of(context, |qp, ours| ended.push((qp, ours.nic.clone())));
    ended.iter().for_each(|(qp, nic)| give_back(*qp, nic, context));
}

/// Gives a handle back, and the queue pair with the last.
fn give_back(handle: *mut ibv_qp, nic: &Arc<nic::Qp>, context: &Context) {
    let last = nic.handles.fetch_sub(1, Ordering::AcqRel) == 1;
    {
        let _handing_out = context.handing_out.begin();
        // Events are told of the handle that made it; the others go on without.
        if Qp::c_of(&**nic) == handle {
            nic.cookie.store(0, Ordering::Release);
        }
    }
    if last {
        nic.destroy();
    }
}

/// `ibv_destroy_qp`, ibv_create_qp(3): EBUSY while it is attached to a multicast group or a flow
/// rule leads to it; waits until its asynchronous events are acknowledged. Unlike rdma_rxe: of the
/// completions it leaves, receives and flushed sends are taken back (guide/src/deviations.md).
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(qp)?;
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        // What its context's end has left of it is the C object.
        if ours.instance.is_ours() && !ours.context.is_closed() {
            if ours.nic.is_attached() || ours.nic.is_steered_to() {
                return Err(Errno(libc::EBUSY));
            }
            give_back(qp, &ours.nic, &ours.context);
            // Its last messages, or ACKs, are repeated by no thread, and the program may end now.
            ours.instance.host.drain_sent();
        }
        if ours.instance.is_ours() {
            ours.async_events.wait();
        }
        // SAFETY: what a queue pair uses lives as long as it, by their EBUSY. The adapter forgot
        // it, and no other thread uses it.
        unsafe {
            count_users(&*qp, |n| _ = n.fetch_sub(1, Ordering::AcqRel));
            count_over(ours.over, |n| _ = n.fetch_sub(1, Ordering::AcqRel));
            Qp::free(qp);
        }
        Ok(())
    })
}
