//! Events asked for, taken and waited for.

use std::ffi::c_int;

use check::Checker;
use rdma_core_abi::verbs::{ibv_comp_channel, ibv_cq};

use super::calls::Own;
use super::objects::refuse_gone;
use super::site::Place;
use super::taken::thread;
use super::{handle, look, note};
use crate::ffi_guard::{self, Errno};
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

/// A queue is about to be polled; EINVAL, and a finding, for one that was destroyed.
pub(super) fn polled(cq: *mut ibv_cq) -> Result<(), Errno> {
    let look_at_it = |checker: &mut Checker<Place>| {
        let is_gone = checker.is_gone(handle(cq));
        (is_gone, !is_gone && checker.polled(handle(cq), thread()))
    };
    match look(look_at_it) {
        Some((true, _)) => refuse_gone(cq),
        Some((_, true)) => {
            note(|checker, site| checker.polled_in_vain(handle(cq), &Own, site));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A thread asks for the next event of a channel.
pub(crate) fn waiting(channel: *mut ibv_comp_channel) {
    // SAFETY: a channel of ours, by the man page's contract.
    let fd = unsafe { (*channel).fd };
    let mut ready = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: a descriptor's flags, and one structure of ours, without waiting.
    let (flags, has_event) =
        unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::poll(&raw mut ready, 1, 0) > 0) };
    let waits = flags != -1 && flags & libc::O_NONBLOCK == 0;
    note(|checker, site| {
        let mut findings = checker.waiting(handle(channel), thread(), site);
        if waits {
            findings.extend(checker.waiting_in_vain(handle(channel), thread(), site));
        }
        if waits && !has_event && findings.is_empty() {
            findings.extend(checker.waiting_beside_completions(handle(channel), thread(), &Own, site));
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
