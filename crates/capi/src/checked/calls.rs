//! Posting and polling, checked: in a context's table in place of the plain functions.

use std::ffi::{CStr, c_int};

use check::calls::is_of_ends;
use check::ends::Peer;
use check::reads::Reads;
use check::{Checker, Completion, Direction, Element, Finding, Program, Queue, Refusal, Request};
use nic::QpType;
use rdma_core_abi::verbs::{
    self as v, ibv_context_ops, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc,
};

use super::objects::{
    completes, executes, is_in_domain, kind_of, reads, refuse_gone, state_name, unannounced,
};
use super::site::Place;
use super::{ends, events, handle, note, note_at};
use crate::ffi_guard;
use crate::verbs::cq::poll;
use crate::verbs::qp::{post, request};
use crate::verbs::{srq, strings};

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// Puts the checked functions into a context's table.
pub(crate) fn set_functions(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(events::req_notify_cq);
}

/// This process.
pub(super) struct Own;

impl Program for Own {
    /// A CRC-32C, which differs wherever 32 bits in a row, or fewer, have changed.
    fn digest(&self, addr: u64, len: u64) -> Option<u64> {
        let end = addr.checked_add(len)?;
        let (mut sum, mut bytes, mut at) = (0, vec![0; CHUNK.min(len as usize)], addr);
        while at < end {
            let some = &mut bytes[..(end - at).min(CHUNK as u64) as usize];
            sys::read_own(at, some).ok()?;
            sum = crc32c::crc32c_append(sum, some);
            at += some.len() as u64;
        }
        Some(sum.into())
    }

    fn executes(&self, pair: u64) -> bool {
        executes(pair)
    }

    fn completes(&self, pair: u64) -> bool {
        completes(pair)
    }

    fn unannounced(&self, queue: u64) -> u32 {
        unannounced(queue)
    }

    fn reads(&self, pair: u64) -> Option<Reads> {
        reads(pair)
    }
}

/// A work request as the C structures have it.
pub(super) trait Posted {
    /// Where in the peer's memory it begins, and the right that this needs.
    fn remote(&self) -> Option<(u64, &'static str)> {
        None
    }
    /// What is wrong with a request that was refused, in a sentence, where that is known.
    fn mistake(&self, queue: Queue) -> Option<&'static str>;
    fn next(&self) -> *mut Self;
    fn list(&self) -> (*const ibv_sge, c_int);
    /// The request, but for its elements.
    fn request(&self) -> Request<'static>;
}

impl Posted for ibv_send_wr {
    fn mistake(&self, queue: Queue) -> Option<&'static str> {
        let Queue::Send(pair) = queue else { return None };
        let (kind, _) = kind_of(pair)?;
        let request = self.request();
        if self.send_flags & v::IBV_SEND_INLINE != 0 && request.direction == Direction::Writes {
            return Some("IBV_SEND_INLINE is for SEND and WRITE only.");
        }
        match kind {
            QpType::Ud if request.name != "SEND" => Some("UD queue pairs have SEND only."),
            QpType::Uc if request.direction == Direction::Writes => {
                Some("UC queue pairs have neither READ nor atomics.")
            }
            QpType::Ud => {
                // SAFETY: any bit pattern is a value of this member.
                let to = unsafe { self.wr.ud };
                // SAFETY: NULL or a handle of ours, by the man page's contract.
                match unsafe { to.ah.as_ref() } {
                    None => Some("wr.ud.ah is NULL: a datagram needs an address handle."),
                    Some(ah) if !is_in_domain(pair, ah.pd) => {
                        Some("The address handle is of another protection domain.")
                    }
                    Some(_) => None,
                }
            }
            _ => None,
        }
    }
    fn remote(&self) -> Option<(u64, &'static str)> {
        // SAFETY: the opcode says which member is set, and all are integers.
        let (of_rdma, of_atomic) = unsafe { (self.wr.rdma.remote_addr, self.wr.atomic.remote_addr) };
        match self.opcode {
            v::IBV_WR_RDMA_WRITE | v::IBV_WR_RDMA_WRITE_WITH_IMM => Some((of_rdma, "REMOTE_WRITE")),
            v::IBV_WR_RDMA_READ => Some((of_rdma, "REMOTE_READ")),
            v::IBV_WR_ATOMIC_CMP_AND_SWP | v::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                Some((of_atomic, "REMOTE_ATOMIC"))
            }
            _ => None,
        }
    }
    fn next(&self) -> *mut Self {
        self.next
    }
    fn list(&self) -> (*const ibv_sge, c_int) {
        (self.sg_list, self.num_sge)
    }
    fn request(&self) -> Request<'static> {
        let (name, direction) = match self.opcode {
            v::IBV_WR_SEND | v::IBV_WR_SEND_WITH_IMM | v::IBV_WR_SEND_WITH_INV => ("SEND", Direction::Reads),
            v::IBV_WR_RDMA_WRITE | v::IBV_WR_RDMA_WRITE_WITH_IMM => ("RDMA WRITE", Direction::Reads),
            v::IBV_WR_RDMA_READ => ("RDMA READ", Direction::Writes),
            v::IBV_WR_ATOMIC_CMP_AND_SWP | v::IBV_WR_ATOMIC_FETCH_AND_ADD => ("ATOMIC", Direction::Writes),
            v::IBV_WR_ATOMIC_WRITE => ("ATOMIC WRITE", Direction::Reads),
            _ => ("request", Direction::Reads),
        };
        Request {
            wr_id: self.wr_id,
            name,
            direction,
            is_inline: self.send_flags & v::IBV_SEND_INLINE != 0,
            is_signaled: self.send_flags & v::IBV_SEND_SIGNALED != 0,
            elements: &[],
            remote: self.remote(),
        }
    }
}

impl Posted for ibv_recv_wr {
    fn mistake(&self, queue: Queue) -> Option<&'static str> {
        let Queue::Receive(pair) = queue else { return None };
        let takes_shared = kind_of(pair).is_some_and(|(_, has_shared)| has_shared);
        takes_shared.then_some("The queue pair takes its receives from its shared receive queue.")
    }
    fn next(&self) -> *mut Self {
        self.next
    }
    fn list(&self) -> (*const ibv_sge, c_int) {
        (self.sg_list, self.num_sge)
    }
    fn request(&self) -> Request<'static> {
        let direction = Direction::Writes;
        Request {
            remote: None,
            wr_id: self.wr_id,
            name: "RECV",
            direction,
            is_inline: false,
            is_signaled: true,
            elements: &[],
        }
    }
}

/// Runs `f` on each request of a list.
///
/// # Safety
///
/// A list of requests as ibv_post_send(3) describes it.
unsafe fn each<T: Posted>(list: *mut T, mut f: impl FnMut(&T)) {
    let mut at = list;
    // SAFETY: as the caller says.
    while let Some(one) = unsafe { at.as_ref() } {
        f(one);
        at = one.next();
    }
}

/// Posts a list by `post`, of which the checker hears before, and of what is refused behind.
///
/// # Safety
///
/// A list of requests as ibv_post_send(3) describes it, and the caller's variable.
pub(super) unsafe fn posted<T: Posted>(
    queue: Queue,
    list: *mut T,
    bad: *mut *mut T,
    post: impl FnOnce() -> c_int,
) -> c_int {
    let tell = |checker: &mut Checker<Place>, place: &Place| {
        let mut findings: Vec<Finding<Place>> = Vec::new();
        let one = |wr: &T| {
            let (first, count) = wr.list();
            // SAFETY: as the caller says. What has too many elements is refused.
            let sges = unsafe { request::elements(first, count) }.unwrap_or_default();
            let elements: Vec<_> =
                sges.iter().map(|sge| Element { addr: sge.addr, len: sge.length, key: sge.lkey }).collect();
            let request = Request { elements: &elements, ..wr.request() };
            findings.extend(checker.posting(queue, &request, &Own, place));
        };
        // SAFETY: as the caller says.
        unsafe { each(list, one) };
        findings
    };
    let place = note(tell);
    let error = post();
    let Some(place) = place else { return error };
    if error != 0 {
        let mut count = 0;
        // SAFETY: the call has said which one it refused.
        let why = unsafe {
            each(*bad, |_| count += 1);
            (*bad).as_ref().and_then(|wr| wr.mistake(queue))
        };
        refused(queue, count, error, why, &place);
    } else {
        accepted(queue, &place);
    }
    error
}

/// Tells that the adapter has taken the requests of a call.
pub(super) fn accepted(queue: Queue, place: &Place) {
    let mut wanted = None;
    note_at(place, |checker, site| {
        wanted = checker.peer_wanted(queue, &Own);
        checker.posted(queue, site)
    });
    // Other processes are asked while the checker's lock is free.
    let peer = wanted.and_then(|number| ends::peer_of(number, false));
    if let Some(served) = peer.and_then(|peer| peer.reads_served) {
        note_at(place, |checker, site| checker.peer_serves(queue, served, &Own, site));
    }
}

/// Tells of the last requests, which were refused with an errno.
pub(super) fn refused(queue: Queue, count: usize, error: c_int, why: Option<&'static str>, place: &Place) {
    let state = state_name(queue);
    let why = (error == libc::EINVAL).then_some(Refusal { error: "EINVAL", state, why });
    note_at(place, |checker, site| checker.refused(queue, count, why.as_ref(), site));
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    if let Err(gone) = refuse_gone(qp) {
        // SAFETY: the caller's variable.
        unsafe { *bad_wr = wr };
        return ffi_guard::or_errno(|| Err(gone));
    }
    // SAFETY: the man page's contract.
    unsafe { posted(Queue::Send(handle(qp)), wr, bad_wr, || post::post_send(qp, wr, bad_wr)) }
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    if let Err(gone) = refuse_gone(qp) {
        // SAFETY: the caller's variable.
        unsafe { *bad_wr = wr };
        return ffi_guard::or_errno(|| Err(gone));
    }
    // SAFETY: the man page's contract.
    unsafe { posted(Queue::Receive(handle(qp)), wr, bad_wr, || post::post_recv(qp, wr, bad_wr)) }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    if let Err(gone) = refuse_gone(srq) {
        // SAFETY: the caller's variable.
        unsafe { *bad_wr = wr };
        return ffi_guard::or_errno(|| Err(gone));
    }
    // SAFETY: the man page's contract.
    unsafe { posted(Queue::Shared(handle(srq)), wr, bad_wr, || srq::object::post_srq_recv(srq, wr, bad_wr)) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    if let Err(gone) = events::polled(cq) {
        return ffi_guard::or(-gone.0, || Err(gone));
    }
    // SAFETY: the man page's contract.
    let taken = unsafe { poll::poll_cq(cq, num_entries, wc) };
    if taken > 0 {
        // SAFETY: so many were written.
        completed(cq, unsafe { std::slice::from_raw_parts(wc, taken as usize) });
    }
    taken
}

/// Tells of completions that the program takes from a queue.
pub(super) fn completed(cq: *mut ibv_cq, all: &[ibv_wc]) {
    // Other processes are asked before the checker's lock is taken.
    let failed = all.iter().find(|wc| is_of_ends(wc.status));
    let peer = failed
        .and_then(|wc| Some((wc.qp_num, ends::peer_of(wc.qp_num, wc.status == v::IBV_WC_RETRY_EXC_ERR)?)));
    note(|checker, place| {
        let tell = |wc| checker.completed(&completion(cq, wc, peer.as_ref()), &Own, place);
        all.iter().flat_map(tell).collect()
    });
}

fn completion<'a>(cq: *mut ibv_cq, wc: &ibv_wc, peer: Option<&'a (u32, Peer)>) -> Completion<'a> {
    let words = || {
        // SAFETY: a static string.
        let words = unsafe { CStr::from_ptr(strings::ibv_wc_status_str(wc.status)) };
        words.to_str().unwrap_or_default()
    };
    let peer = peer.filter(|(number, _)| *number == wc.qp_num && is_of_ends(wc.status));
    Completion {
        queue: handle(cq),
        number: wc.qp_num,
        wr_id: wc.wr_id,
        is_receive: wc.opcode & v::IBV_WC_RECV != 0,
        failure: (wc.status != v::IBV_WC_SUCCESS).then(|| (words(), wc.status)),
        peer: peer.map(|(_, peer)| peer),
    }
}
