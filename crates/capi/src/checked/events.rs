//! Events asked for, taken and waited for.

use std::ffi::c_int;

use rdma_core_abi::verbs::{ibv_comp_channel, ibv_cq};

use super::calls::Own;
use super::objects::refuse_gone;
use super::taken::thread;
use super::{handle, look, note};
use crate::ffi_guard;
use crate::verbs::cq::poll;

/// ibv_req_notify_cq(3), in a context's table.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    if let Err(gone) = refuse_gone(cq) {
        return ffi_guard::or_errno(|| Err(gone));
    }
    note(|checker, site| {
        checker.armed(handle(cq), thread(), &Own, site);
        Vec::new()
    });
    // SAFETY: the man page's contract.
    unsafe { poll::req_notify_cq(cq, solicited_only) }
}

/// A queue is about to be polled.
pub(super) fn polled(cq: *mut ibv_cq) {
    // SAFETY: a queue of ours, by the man page's contract.
    if unsafe { !(*cq).channel.is_null() } {
        look(|checker| checker.polled(handle(cq), thread()));
    }
}

/// A thread asks for the next event of a channel.
pub(crate) fn waiting(channel: *mut ibv_comp_channel) {
    // SAFETY: a channel of ours, by the man page's contract; its flags are asked for.
    let flags = unsafe { libc::fcntl((*channel).fd, libc::F_GETFL) };
    let waits = flags != -1 && flags & libc::O_NONBLOCK == 0;
    note(|checker, site| {
        let mut findings = checker.waiting(handle(channel), thread(), site);
        if waits {
            findings.extend(checker.waiting_in_vain(handle(channel), thread(), site));
        }
        findings
    });
}

/// The program is handed an event of a completion queue.
pub(crate) fn taken(cq: *mut ibv_cq) {
    note(|checker, site| {
        checker.event_taken(handle(cq), site);
        Vec::new()
    });
}
