//! Requests built step by step (ibv_wr_post(3)), and completions taken so (ibv_start_poll(3)): in
//! the tables of extended queue pairs and completion queues, in place of the plain functions.

use std::ffi::{c_int, c_void};

use check::{Direction, Element, Queue, Request};
use rdma_core_abi::verbs::{
    ibv_ah, ibv_cq_ex, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_poll_cq_attr, ibv_qp_ex, ibv_sge,
};
use transport::op::{AtomicOp, Data, SendOp};

use super::calls::{self, Own};
use super::objects::refuse_gone;
use super::{events, handle, note};
use crate::ffi_guard;
use crate::verbs::cq::cq_ex;
use crate::verbs::cq::object::Cq;
use crate::verbs::qp::wr;

/// Puts the checked functions into the table of an extended completion queue.
pub(crate) fn set_poll_functions(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    if let Err(gone) = events::polled(cq.cast()) {
        return ffi_guard::or_errno(|| Err(gone));
    }
    // SAFETY: the man page's contract.
    let found = unsafe { cq_ex::start_poll(cq, attr) };
    if found == 0 {
        // SAFETY: as above; a completion was taken.
        unsafe { taken(cq) };
    }
    found
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the man page's contract.
    let found = unsafe { cq_ex::next_poll(cq) };
    if found == 0 {
        // SAFETY: as above; a completion was taken.
        unsafe { taken(cq) };
    }
    found
}

/// Tells of the completion that is being read.
///
/// # Safety
///
/// A queue of ours, taken by this thread.
unsafe fn taken(cq: *mut ibv_cq_ex) {
    // SAFETY: as the caller says.
    let wc = unsafe { Cq::of(cq.cast()) }.reader.current.get();
    calls::completed(cq.cast(), &[wc]);
}

/// The plain functions, which a queue pair that was destroyed does not reach, and all that go into
/// the table.
macro_rules! unless_gone {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// Puts the checked functions into the table of an extended queue pair.
        pub(crate) fn set_wr_functions(c: &mut ibv_qp_ex) {
            $(c.$name = Some($name);)*
            c.wr_complete = Some(wr_complete);
        }

        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            if refuse_gone(qp).is_ok() {
                // SAFETY: the man page's contract.
                unsafe { wr::$name(qp, $($arg),*) }
            }
        })*
    };
}

unless_gone! {
    wr_start();
    wr_abort();
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64);
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64);
    wr_atomic_write(rkey: u32, addr: u64, value: *const c_void);
    wr_flush(rkey: u32, addr: u64, len: usize, kind: u8, level: u8);
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info);
    wr_local_inv(rkey: u32);
    wr_rdma_read(rkey: u32, addr: u64);
    wr_rdma_write(rkey: u32, addr: u64);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32);
    wr_send();
    wr_send_imm(imm: u32);
    wr_send_inv(rkey: u32);
    wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    wr_set_xrc_srqn(remote_srqn: u32);
    wr_set_inline_data(addr: *mut c_void, length: usize);
    wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
    wr_set_sge(lkey: u32, addr: u64, length: u32);
    wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    if let Err(gone) = refuse_gone(qp) {
        return ffi_guard::or_errno(|| Err(gone));
    }
    let queue = Queue::Send(handle(qp));
    // SAFETY: the man page's contract: this thread builds.
    let built = unsafe { wr::built(qp) };
    let place = note(|checker, place| {
        let tell = |request: &nic::Request| {
            let elements = elements(&request.wr.data);
            checker.posting(queue, &described(request, &elements), &Own, place)
        };
        built.iter().flat_map(tell).collect()
    });
    let count = built.len();
    // SAFETY: the man page's contract.
    let error = unsafe { wr::wr_complete(qp) };
    let Some(place) = place else { return error };
    if error != 0 {
        calls::refused(queue, count, error, None, &place);
    } else {
        calls::accepted(queue, &place);
    }
    error
}

/// The elements of a request; inline bytes are of no region.
fn elements(data: &Data) -> Vec<Element> {
    match data {
        Data::Sges(list) => {
            let element =
                |sge: &transport::op::Sge| Element { addr: sge.addr, len: sge.length, key: sge.lkey.0 };
            list.as_slice().iter().map(element).collect()
        }
        Data::Inline(bytes) => vec![Element { addr: 0, len: bytes.len() as u32, key: 0 }],
        Data::InlineLong(bytes) => vec![Element { addr: 0, len: bytes.len() as u32, key: 0 }],
    }
}

fn described<'a>(request: &nic::Request, elements: &'a [Element]) -> Request<'a> {
    let (name, direction) = match &request.wr.op {
        SendOp::Send(_) => ("SEND", Direction::Reads),
        SendOp::Write { .. } => ("RDMA WRITE", Direction::Reads),
        SendOp::Read { .. } => ("RDMA READ", Direction::Writes),
        SendOp::Atomic { op: AtomicOp::Write(_), .. } => ("ATOMIC WRITE", Direction::Reads),
        SendOp::Atomic { .. } => ("ATOMIC", Direction::Writes),
        SendOp::Flush { .. } | SendOp::Local(_) => ("request", Direction::Reads),
    };
    Request {
        wr_id: request.wr.wr_id,
        name,
        direction,
        is_inline: !matches!(request.wr.data, Data::Sges(_)),
        is_signaled: request.wr.signaled,
        elements,
        remote: match &request.wr.op {
            SendOp::Write { addr, .. } => Some((*addr, "REMOTE_WRITE")),
            SendOp::Read { addr, .. } => Some((*addr, "REMOTE_READ")),
            SendOp::Atomic { op: AtomicOp::Write(_), .. } => None,
            SendOp::Atomic { addr, .. } => Some((*addr, "REMOTE_ATOMIC")),
            _ => None,
        },
    }
}
