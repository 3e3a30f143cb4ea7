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

use crate::border::{self, Errno};
use crate::per_process::PerProcess;
use crate::verbs::{ah, channel, context, cq, device, event, mcast, memory, qp, query, srq};

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
    border::or_null(|| {
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
    border::nothing(|| {
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
    border::or_null(|| {
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
    border::or_minus_one(|| {
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

// ---- objects ----

/// Puts an old object before a new one, where there is one: errno is set where not.
fn stand<T>(made: bool, old: impl FnOnce() -> T) -> *mut T {
    border::or_null(|| if made { Ok(Box::into_raw(Box::new(old()))) } else { Err(Errno::last()) })
}

/// Frees an old object whose new one is destroyed; the code of that.
///
/// # Safety
///
/// From [`stand`], and used by nobody any more where the code is 0.
unsafe fn done<T>(code: c_int, old: *mut T) -> c_int {
    if code == 0 {
        // SAFETY: as the caller says.
        border::nothing(|| drop(unsafe { Box::from_raw(old) }));
    }
    code
}

/// `ibv_alloc_pd`.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    // SAFETY: the man page's contract.
    let real = unsafe { memory::ibv_alloc_pd((*context).real) };
    stand(!real.is_null(), || Pd { context, handle: 0, real })
}

/// `ibv_dealloc_pd`.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(memory::ibv_dealloc_pd((*pd).real), pd) }
}

/// `ibv_reg_mr`.
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    // SAFETY: the man page's contract.
    let (context, real) = unsafe { ((*pd).context, memory::ibv_reg_mr((*pd).real, addr, length, access)) };
    // SAFETY: a region just made.
    stand(!real.is_null(), || unsafe {
        Mr { context, pd, handle: (*real).handle, lkey: (*real).lkey, rkey: (*real).rkey, real }
    })
}

/// `ibv_dereg_mr`.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(memory::ibv_dereg_mr((*mr).real), mr) }
}

/// `ibv_create_cq`.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut Cq {
    // SAFETY: the man page's contract.
    let real = unsafe { cq::ibv_create_cq((*context).real, cqe, cq_context, channel, vector) };
    let old = stand(!real.is_null(), || Cq {
        context,
        cq_context,
        handle: 0,
        cqe,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: [0; 2],
        real,
    });
    if !old.is_null() {
        // SAFETY: a queue just made.
        unsafe { (*real).cq_context = old.cast() };
    }
    old
}

/// `ibv_resize_cq`.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { cq::ibv_resize_cq((*cq).real, cqe) }
}

/// `ibv_destroy_cq`.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(cq::ibv_destroy_cq((*cq).real), cq) }
}

/// `ibv_create_srq`.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, attr: *mut v::ibv_srq_init_attr) -> *mut Srq {
    // SAFETY: the man page's contract.
    let (context, real) = unsafe { ((*pd).context, srq::ibv_create_srq((*pd).real, attr)) };
    let old = stand(!real.is_null(), || Srq {
        context,
        // SAFETY: as above.
        srq_context: unsafe { (*attr).srq_context },
        pd,
        handle: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
        real,
    });
    if !old.is_null() {
        // SAFETY: a queue just made.
        unsafe { (*real).srq_context = old.cast() };
    }
    old
}

/// `ibv_modify_srq`.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut v::ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { srq::ibv_modify_srq((*srq).real, attr, mask) }
}

/// `ibv_query_srq`.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut v::ibv_srq_attr) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { srq::ibv_query_srq((*srq).real, attr) }
}

/// `ibv_destroy_srq`.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(srq::ibv_destroy_srq((*srq).real), srq) }
}

/// `ibv_create_ah`.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut v::ibv_ah_attr) -> *mut Ah {
    // SAFETY: the man page's contract.
    let (context, real) = unsafe { ((*pd).context, ah::ibv_create_ah((*pd).real, attr)) };
    stand(!real.is_null(), || Ah { context, pd, handle: 0, real })
}

/// `ibv_destroy_ah`.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(ah::ibv_destroy_ah((*ah).real), ah) }
}

/// `ibv_create_qp`. errno: EINVAL for NULL, and as of the newer call.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the man page's contract.
    let made = border::or(None, || unsafe {
        if pd.is_null() || attr.is_null() || (*attr).send_cq.is_null() || (*attr).recv_cq.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let a = &mut *attr;
        let mut init = v::ibv_qp_init_attr {
            qp_context: a.qp_context,
            send_cq: (*a.send_cq).real,
            recv_cq: (*a.recv_cq).real,
            srq: a.srq.as_ref().map_or(null_mut(), |srq| srq.real),
            cap: a.cap,
            qp_type: a.qp_type,
            sq_sig_all: a.sq_sig_all,
        };
        let real = qp::create((*pd).real, &raw mut init)?;
        a.cap = init.cap;
        let old = Box::into_raw(Box::new(Qp {
            context: (*pd).context,
            qp_context: a.qp_context,
            pd,
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            srq: a.srq,
            handle: 0,
            qp_num: (*real).qp_num,
            state: v::IBV_QPS_RESET,
            qp_type: a.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
            real,
        }));
        (*real).qp_context = old.cast();
        Ok(Some(old))
    });
    made.unwrap_or(null_mut())
}

/// `ibv_query_qp`.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut v::ibv_qp_attr,
    mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let mut real: v::ibv_qp_init_attr = std::mem::zeroed();
        let code = qp::ibv_query_qp((*qp).real, attr, mask, &raw mut real);
        if code == 0 {
            init.write(QpInitAttr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: real.cap,
                qp_type: real.qp_type,
                sq_sig_all: real.sq_sig_all,
            });
        }
        code
    }
}

/// `ibv_modify_qp`.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut v::ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let code = qp::ibv_modify_qp((*qp).real, attr, mask);
        (*qp).state = (*(*qp).real).state;
        code
    }
}

/// `ibv_destroy_qp`.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(qp::ibv_destroy_qp((*qp).real), qp) }
}

/// `ibv_attach_mcast`.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut Qp, gid: *mut ibv_gid, lid: u16) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { mcast::ibv_attach_mcast((*qp).real, gid, lid) }
}

/// `ibv_detach_mcast`.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut Qp, gid: *mut ibv_gid, lid: u16) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { mcast::ibv_detach_mcast((*qp).real, gid, lid) }
}

// ---- what inline functions call ----

/// The call of a context's table, which [`context::open`] has filled.
fn built<T>(call: Option<T>) -> Result<T, Errno> {
    call.ok_or(Errno(libc::EOPNOTSUPP))
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: objects of ours, by the man page's contract.
    border::or_minus_one(|| unsafe {
        let poll = built((*(*(*cq).context).real).ops.poll_cq)?;
        Ok(poll((*cq).real, n, wc))
    })
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited: c_int) -> c_int {
    // SAFETY: objects of ours, by the man page's contract.
    border::or(libc::EIO, || unsafe {
        let arm = built((*(*(*cq).context).real).ops.req_notify_cq)?;
        Ok(arm((*cq).real, solicited))
    })
}

/// A list of requests in the new form, and the old one of each.
struct List<N, O> {
    new: Vec<N>,
    old: Vec<*mut O>,
}

impl<N, O> List<N, O> {
    /// # Safety
    ///
    /// A list as `next` walks it, ending in NULL.
    unsafe fn of(first: *mut O, next: impl Fn(&O) -> *mut O, convert: impl Fn(&O) -> N) -> List<N, O> {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        let mut at = first;
        // SAFETY: as the caller says.
        while let Some(wr) = unsafe { at.as_ref() } {
            new.push(convert(wr));
            old.push(at);
            at = next(wr);
        }
        List { new, old }
    }

    /// The old request of a new one of this list.
    fn old_of(&self, new: *const N) -> *mut O {
        let at = (new.addr().wrapping_sub(self.new.as_ptr().addr())) / size_of::<N>();
        self.old.get(at).copied().unwrap_or(null_mut())
    }
}

fn receive(wr: &RecvWr) -> ibv_recv_wr {
    ibv_recv_wr { wr_id: wr.wr_id, next: null_mut(), sg_list: wr.sg_list, num_sge: wr.num_sge }
}

/// Posts receives in the new form by `post`, and names the old one that was bad.
///
/// # Safety
///
/// A list of the caller's, ending in NULL, and its variable.
unsafe fn post_receives(
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> c_int {
    // SAFETY: as the caller says.
    let mut list = unsafe { List::of(wr, |wr| wr.next, receive) };
    for i in 1..list.new.len() {
        list.new[i - 1].next = &raw mut list.new[i];
    }
    let mut new_bad = null_mut();
    let code = post(list.new.as_mut_ptr(), &raw mut new_bad);
    if code != 0 {
        // SAFETY: as the caller says.
        unsafe { *bad = list.old_of(new_bad) };
    }
    code
}

unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: objects of ours and the caller's list, by the man page's contract.
    border::or(libc::EIO, || unsafe {
        let post = built((*(*(*qp).context).real).ops.post_recv)?;
        Ok(post_receives(wr, bad, |list, new_bad| post((*qp).real, list, new_bad)))
    })
}

unsafe extern "C" fn post_srq_recv(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: objects of ours and the caller's list, by the man page's contract.
    border::or(libc::EIO, || unsafe {
        let post = built((*(*(*srq).context).real).ops.post_srq_recv)?;
        Ok(post_receives(wr, bad, |list, new_bad| post((*srq).real, list, new_bad)))
    })
}

unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    // SAFETY: objects of ours and the caller's list, by the man page's contract.
    border::or(libc::EIO, || unsafe {
        let post = built((*(*(*qp).context).real).ops.post_send)?;
        let datagrams = (*qp).qp_type == v::IBV_QPT_UD;
        let convert = |wr: &SendWr| {
            // SAFETY: integers, pointers and unions of them.
            let mut new: ibv_send_wr = std::mem::zeroed();
            (new.wr_id, new.sg_list, new.num_sge) = (wr.wr_id, wr.sg_list, wr.num_sge);
            (new.opcode, new.send_flags) = (wr.opcode, wr.send_flags);
            new.imm.imm_data = wr.imm_data;
            new.wr = wr.wr;
            if datagrams {
                // SAFETY: a datagram's request has an old address handle, by the man page's contract.
                if let Some(ah) = new.wr.ud.ah.cast::<Ah>().as_ref() {
                    new.wr.ud.ah = ah.real;
                }
            }
            new
        };
        let mut list = List::of(wr, |wr| wr.next, convert);
        for i in 1..list.new.len() {
            list.new[i - 1].next = &raw mut list.new[i];
        }
        let mut new_bad = null_mut();
        let code = post((*qp).real, list.new.as_mut_ptr(), &raw mut new_bad);
        if code != 0 {
            *bad = list.old_of(new_bad);
        }
        Ok(code)
    })
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
