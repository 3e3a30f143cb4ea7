//! The structures of libibverbs 1.0's `verbs.h`, each with the pointer to its new object after the
//! old fields.

use std::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};
use rdma_core_abi::verbs::{self as v, ibv_context, ibv_device, ibv_sge, ibv_wc};

/// A device.
#[repr(C)]
pub struct Device {
    pub(super) sysfs: [*mut c_void; 2],
    pub(super) real: *mut ibv_device,
    pub(super) ops: [*mut c_void; 2],
}

type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// The calls that the inline functions of 1.0 made; the others were not called by programs.
#[repr(C)]
pub struct ContextOps {
    pub(super) before_poll: [*mut c_void; 7],
    /// `poll_cq`.
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut ibv_wc) -> c_int,
    /// `req_notify_cq`.
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub(super) before_post_srq_recv: [*mut c_void; 7],
    /// `post_srq_recv`.
    pub post_srq_recv: PostSrqRecv,
    pub(super) before_post_send: [*mut c_void; 4],
    /// `post_send`.
    pub post_send: PostSend,
    /// `post_recv`.
    pub post_recv: PostRecv,
    pub(super) rest: [*mut c_void; 4],
}

/// An opened device.
#[repr(C)]
pub struct Context {
    pub(super) device: *mut Device,
    /// What inline functions call.
    pub ops: ContextOps,
    pub(super) cmd_fd: c_int,
    /// For poll(2).
    pub async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    pub(super) real: *mut ibv_context,
}

/// A protection domain.
#[repr(C)]
pub struct Pd {
    pub(super) context: *mut Context,
    pub(super) handle: u32,
    pub(super) real: *mut v::ibv_pd,
}

/// A memory region.
#[repr(C)]
pub struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    pub(super) real: *mut v::ibv_mr,
}

/// A completion queue.
#[repr(C)]
pub struct Cq {
    pub(super) context: *mut Context,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    /// The queue's size as it was asked for.
    pub cqe: c_int,
    pub(super) mutex: pthread_mutex_t,
    pub(super) cond: pthread_cond_t,
    pub(super) events_completed: [u32; 2],
    pub(super) real: *mut v::ibv_cq,
}

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    pub(super) context: *mut Context,
    pub(super) srq_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) handle: u32,
    pub(super) mutex: pthread_mutex_t,
    pub(super) cond: pthread_cond_t,
    pub(super) events_completed: u32,
    pub(super) real: *mut v::ibv_srq,
}

/// A queue pair.
#[repr(C)]
pub struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) handle: u32,
    /// The queue pair's number.
    pub qp_num: u32,
    pub(super) state: v::ibv_qp_state,
    pub(super) qp_type: v::ibv_qp_type,
    pub(super) mutex: pthread_mutex_t,
    pub(super) cond: pthread_cond_t,
    pub(super) events_completed: u32,
    pub(super) real: *mut v::ibv_qp,
}

/// An address handle.
#[repr(C)]
pub struct Ah {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) handle: u32,
    pub(super) real: *mut v::ibv_ah,
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
    pub next: *mut Self,
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
    pub imm_data: rdma_core_abi::be32,
    /// The far end; `ud.ah` is an [`Ah`].
    pub wr: v::ibv_send_wr_wr,
}

/// A receive request.
#[repr(C)]
pub struct RecvWr {
    /// The next of the list, or NULL.
    pub next: *mut Self,
    /// The program's mark.
    pub wr_id: u64,
    /// Elements.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
}

/// Sizes on a 64-bit machine with glibc, as libibverbs 1.0 had them, each with the pointer to its
/// new object behind.
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
