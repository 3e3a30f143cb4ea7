//! The names of node IBVERBS_1.0, for programs linked before 2007: objects had other layouts then. Each old object points to the
//! one it stands for, and the new one's user context leads back to it. Layouts: libibverbs 1.0's `verbs.h`, with the real
//! object behind the old fields.
//!
//! ```text
//! old object                       new object
//! [ fields of 1.0 | real ] ------> [ fields | *_context ]
//!        ^------------------------------------'
//! ```

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abi::verbs::{
    self as v, ibv_comp_channel, ibv_context, ibv_device, ibv_gid, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use libc::{pthread_cond_t, pthread_mutex_t};

use crate::ffi_guard::{self, Errno};
use crate::per_process::PerProcess;
use crate::verbs::{ah, channel, context, cq, device, event, mcast, memory, qp, query, srq};

mod inline;
mod objects;

use inline::{poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq};
pub use objects::*;

/// A device.
#[repr(C)]
pub struct Device {
    sysfs: [*mut c_void; 2],
    real: *mut ibv_device,
    ops: [*mut c_void; 2],
}

type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// The calls that the inline functions of 1.0 made; the others were not called by programs.
#[repr(C)]
pub struct ContextOps {
    before_poll: [*mut c_void; 7],
    /// `poll_cq`.
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut ibv_wc) -> c_int,
    /// `req_notify_cq`.
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    before_post_srq_recv: [*mut c_void; 7],
    /// `post_srq_recv`.
    pub post_srq_recv: PostSrqRecv,
    before_post_send: [*mut c_void; 4],
    /// `post_send`.
    pub post_send: PostSend,
    /// `post_recv`.
    pub post_recv: PostRecv,
    rest: [*mut c_void; 4],
}

/// An opened device.
#[repr(C)]
pub struct Context {
    device: *mut Device,
    /// What inline functions call.
    pub ops: ContextOps,
    cmd_fd: c_int,
    /// For poll(2).
    pub async_fd: c_int,
    num_comp_vectors: c_int,
    real: *mut ibv_context,
}

/// A protection domain.
#[repr(C)]
pub struct Pd {
    context: *mut Context,
    handle: u32,
    real: *mut v::ibv_pd,
}

/// A memory region.
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    real: *mut v::ibv_mr,
}

/// A completion queue.
#[repr(C)]
pub struct Cq {
    context: *mut Context,
    cq_context: *mut c_void,
    handle: u32,
    /// Its size as it was asked for.
    pub cqe: c_int,
    mutex: pthread_mutex_t,
    cond: pthread_cond_t,
    events_completed: [u32; 2],
    real: *mut v::ibv_cq,
}

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    context: *mut Context,
    srq_context: *mut c_void,
    pd: *mut Pd,
    handle: u32,
    mutex: pthread_mutex_t,
    cond: pthread_cond_t,
    events_completed: u32,
    real: *mut v::ibv_srq,
}

/// A queue pair.
#[repr(C)]
pub struct Qp {
    context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    /// Its number.
    pub qp_num: u32,
    state: v::ibv_qp_state,
    qp_type: v::ibv_qp_type,
    mutex: pthread_mutex_t,
    cond: pthread_cond_t,
    events_completed: u32,
    real: *mut v::ibv_qp,
}

/// An address handle.
#[repr(C)]
pub struct Ah {
    context: *mut Context,
    pd: *mut Pd,
    handle: u32,
    real: *mut v::ibv_ah,
}

/// What a queue pair is made from.
#[repr(C)]
pub struct QpInitAttr {
    /// The program's.
    pub qp_context: *mut c_void,
    /// Queue of send completions.
    pub send_cq: *mut Cq,
    /// Queue of receive completions.
    pub recv_cq: *mut Cq,
    /// Shared receive queue, or NULL.
    pub srq: *mut Srq,
    /// Sizes.
    pub cap: v::ibv_qp_cap,
    /// Transport service.
    pub qp_type: v::ibv_qp_type,
    /// Every send request completes visibly.
    pub sq_sig_all: c_int,
}

/// A send request.
#[repr(C)]
pub struct SendWr {
    /// The next of the list, or NULL.
    pub next: *mut SendWr,
    /// The program's mark.
    pub wr_id: u64,
    /// Elements.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
    /// Operation.
    pub opcode: v::ibv_wr_opcode,
    /// Flags.
    pub send_flags: c_uint,
    /// Immediate data.
    pub imm_data: abi::be32,
    /// The far end; `ud.ah` is an [`Ah`].
    pub wr: v::ibv_send_wr_wr,
}

/// A receive request.
#[repr(C)]
pub struct RecvWr {
    /// The next of the list, or NULL.
    pub next: *mut RecvWr,
    /// The program's mark.
    pub wr_id: u64,
    /// Elements.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
}

// ---- devices ----

/// `ibv_get_device_list`: behind the NULL-terminated array's front stands the new list.
pub unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut Device {
    let mut n = 0;
    // SAFETY: a variable of ours.
    let list = unsafe { device::ibv_get_device_list(&raw mut n) };
    if list.is_null() {
        return null_mut();
    }
    ffi_guard::or_null(|| {
        let mut whole: Vec<*mut Device> = vec![list.cast()];
        for i in 0..n as usize {
            // SAFETY: the list has `n` devices.
            let real = unsafe { *list.add(i) };
            whole.push(Box::into_raw(Box::new(Device {
                sysfs: [null_mut(); 2],
                real,
                ops: [null_mut(); 2],
            })));
        }
        whole.push(null_mut());
        if !num.is_null() {
            // SAFETY: the caller's integer.
            unsafe { *num = n };
        }
        // SAFETY: inside the array, which has two elements at least.
        Ok(unsafe { Box::into_raw(whole.into_boxed_slice()).cast::<*mut Device>().add(1) })
    })
}

/// `ibv_free_device_list`: opened devices must be closed before, as in 1.0.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    ffi_guard::nothing(|| {
        // SAFETY: an array of `ibv_get_device_list`, by the man page's contract: one element before, NULL at the end.
        unsafe {
            let mut n = 0;
            while !(*list.add(n)).is_null() {
                drop(Box::from_raw(*list.add(n)));
                n += 1;
            }
            let whole = std::ptr::slice_from_raw_parts_mut(list.sub(1), n + 2);
            device::ibv_free_device_list((*list.sub(1)).cast());
            drop(Box::from_raw(whole));
        }
    });
}

/// `ibv_get_device_name`.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: a device of the list, by the man page's contract.
    unsafe { device::ibv_get_device_name((*device).real) }
}

/// `ibv_get_device_guid`.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut Device) -> abi::be64 {
    // SAFETY: as above.
    unsafe { device::ibv_get_device_guid((*device).real) }
}

// ---- contexts ----

/// The old contexts there are, by address: `ibv_create_comp_channel` has one version for both kinds.
static CONTEXTS: PerProcess<Mutex<BTreeSet<usize>>> = PerProcess::new();

fn contexts() -> MutexGuard<'static, BTreeSet<usize>> {
    CONTEXTS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The new context of an old one; any other as it is.
pub(crate) fn real_context(context: *mut ibv_context) -> *mut ibv_context {
    if contexts().contains(&context.addr()) {
        // SAFETY: the table says that it is an old context that lives.
        unsafe { (*context.cast::<Context>()).real }
    } else {
        context
    }
}

/// `ibv_open_device`.
pub unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    ffi_guard::or_null(|| {
        // SAFETY: a device of the list, by the man page's contract.
        let real = context::open(unsafe { (*device).real })?;
        // SAFETY: a context just made.
        let (cmd_fd, async_fd, num_comp_vectors) =
            unsafe { ((*real).cmd_fd, (*real).async_fd, (*real).num_comp_vectors) };
        let ops = ContextOps {
            before_poll: [null_mut(); 7],
            poll_cq,
            req_notify_cq,
            before_post_srq_recv: [null_mut(); 7],
            post_srq_recv,
            before_post_send: [null_mut(); 4],
            post_send,
            post_recv,
            rest: [null_mut(); 4],
        };
        let old = Box::into_raw(Box::new(Context { device, ops, cmd_fd, async_fd, num_comp_vectors, real }));
        contexts().insert(old.expose_provenance());
        Ok(old)
    })
}

/// `ibv_close_device`.
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    ffi_guard::or_minus_one(|| {
        contexts().remove(&context.addr());
        // SAFETY: made by `Box::into_raw` in `ibv_open_device`, and used by nobody any more, by the man page's contract.
        let old = unsafe { Box::from_raw(context) };
        // SAFETY: as above.
        Ok(unsafe { context::ibv_close_device(old.real) })
    })
}

/// `ibv_query_device`.
pub unsafe extern "C" fn ibv_query_device(context: *mut Context, attr: *mut v::ibv_device_attr) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_device((*context).real, attr) }
}

/// `ibv_query_port`.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    attr: *mut v::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_port((*context).real, port, attr) }
}

/// `ibv_query_gid`.
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_gid((*context).real, port, index, gid) }
}

/// `ibv_query_pkey`.
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_pkey((*context).real, port, index, pkey) }
}

// ---- events ----

/// `ibv_get_async_event`.
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut Context,
    to: *mut v::ibv_async_event,
) -> c_int {
    // SAFETY: the man page's contract; this frame has nothing to drop while it waits. The new objects' contexts are the old
    // objects.
    unsafe {
        let code = event::ibv_get_async_event((*context).real, to);
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

/// `ibv_ack_async_event`.
pub unsafe extern "C" fn ibv_ack_async_event(given: *mut v::ibv_async_event) {
    // SAFETY: the man page's contract: an event of `ibv_get_async_event`, whose objects are old ones that live.
    unsafe {
        let mut real = *given;
        match of(real.event_type) {
            Of::Cq => real.element.cq = (*real.element.cq.cast::<Cq>()).real,
            Of::Qp => real.element.qp = (*real.element.qp.cast::<Qp>()).real,
            Of::Srq => real.element.srq = (*real.element.srq.cast::<Srq>()).real,
            Of::Other => {}
        }
        event::ibv_ack_async_event(&raw mut real);
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

/// `ibv_get_cq_event`.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let (mut real, mut old) = (null_mut(), null_mut());
    // SAFETY: the man page's contract; this frame has nothing to drop while it waits. The new queue's context is the old queue.
    unsafe {
        let code = channel::ibv_get_cq_event(channel, &raw mut real, &raw mut old);
        if code == 0 {
            *cq = old.cast();
            *cq_context = (*old.cast::<Cq>()).cq_context;
        }
        code
    }
}

/// `ibv_ack_cq_events`.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, n: c_uint) {
    // SAFETY: the man page's contract.
    unsafe { channel::ibv_ack_cq_events((*cq).real, n) }
}

/// Sizes on a 64-bit machine with glibc, as libibverbs 1.0 had them, each with the pointer to its new object behind.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const _: () = {
    assert!(size_of::<Context>() == 8 + 27 * 8 + 16 + 8);
    assert!(std::mem::offset_of!(ContextOps, poll_cq) == 7 * 8);
    assert!(std::mem::offset_of!(ContextOps, post_srq_recv) == 16 * 8);
    assert!(std::mem::offset_of!(ContextOps, post_send) == 21 * 8);
    assert!(size_of::<Pd>() == 24 && size_of::<Mr>() == 40 && size_of::<Ah>() == 32);
    assert!(size_of::<Cq>() == 24 + 40 + 48 + 8 + 8);
    assert!(size_of::<Srq>() == 32 + 40 + 48 + 8 + 8);
    assert!(size_of::<Qp>() == 64 + 40 + 48 + 8 + 8);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<SendWr>() == 72 && size_of::<RecvWr>() == 32);
};
