//! Work requests built by one call a part (ibv_wr_post(3)), on queue pairs of ibv_create_qp_ex(3).
//! Between `wr_start` and `wr_complete` or `wr_abort` the building belongs to one thread; nothing
//! is posted before `wr_complete`, and then all or nothing.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use nic::{Datagram, QpType, Request};
use rdma_core_abi::verbs::{
    self as v, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge,
};
use transport::op::{AtomicOp, Data, Flush, LocalOp, MAX_SGE, SendOp};
use wire::roce::SendTail;
use wire::{Qkey, Qpn, Rkey};

use crate::ffi_guard::{self, Errno};
use crate::verbs::ah::Ah;
use crate::verbs::memory::mw;
use crate::verbs::qp::builder::{Builder, Work};
use crate::verbs::qp::object::Qp;
use crate::verbs::qp::request;

/// `ibv_qp_to_qp_ex`, ibv_wr_post(3): NULL where the queue pair was not made with `send_ops_flags`.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    ffi_guard::or_null(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let extended = unsafe { Qp::of(qp) }.builder.is_some();
        Ok(if extended { qp.cast() } else { std::ptr::null_mut() })
    })
}

/// Fills the table of an extended queue pair. What it was not made for fails in `wr_complete`.
pub(crate) fn set_functions(c: &mut ibv_qp_ex) {
    c.qp_base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_atomic_write = Some(wr_atomic_write);
    c.wr_flush = Some(wr_flush);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
}

// ---- the critical section ----

/// `ibv_wr_start`, ibv_wr_post(3): the building belongs to this thread until `ibv_wr_complete` or
/// `ibv_wr_abort`.
pub(crate) unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    ffi_guard::nothing(|| {
        // SAFETY: an extended queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp.cast()) };
        let Some(builder) = &ours.builder else { return };
        // A forked child may find it locked for ever; it has nothing to build anyway.
        if ours.instance.is_ours() {
            // SAFETY: the queue pair's own mutex, initialized with it.
            unsafe { libc::pthread_mutex_lock(&raw mut (*qp).qp_base.mutex) };
        }
        builder.building.store(true, Ordering::Relaxed);
        // SAFETY: locked just now.
        unsafe { *builder.work.get() = Work::default() };
    });
}

/// Ends the critical section; what was built, or `None` where there is none.
///
/// # Safety
///
/// An extended queue pair of ours; the section is this thread's.
unsafe fn end(qp: *mut ibv_qp_ex, finish: impl FnOnce(&Qp, Work) -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let ours = unsafe { Qp::of(qp.cast()) };
    let builder = ours.builder.as_ref().ok_or(Errno(libc::EINVAL))?;
    if !builder.building.swap(false, Ordering::Relaxed) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: this thread still holds the mutex.
    let work = std::mem::take(unsafe { &mut *builder.work.get() });
    let finished = finish(ours, work);
    if ours.instance.is_ours() {
        // SAFETY: locked by `wr_start` in this thread.
        unsafe { libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex) };
    }
    finished
}

/// `ibv_wr_complete`, ibv_wr_post(3): posts all that was built, or nothing. The errno of the first
/// failure: EINVAL for a wrong state or request, ENOMEM for a full queue, EOPNOTSUPP for an
/// operation that is not built, ENODEV for a parent's queue pair in a forked child.
pub(crate) unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let post = |ours: &Qp, work: Work| {
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        match work.failure {
            Some(failure) => Err(failure),
            None => {
                let now = || ours.instance.host.just_now();
                let mut sender = ours.nic.sender_asking(&now);
                let posted = sender.post_all(&work.requests);
                sender.finish();
                posted.map_err(Errno::from)
            }
        }
    };
    // SAFETY: an extended queue pair of ours, by the man page's contract.
    ffi_guard::or_errno(|| unsafe { end(qp, post) })
}

/// `ibv_wr_abort`, ibv_wr_post(3): forgets all that was built.
pub(crate) unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    ffi_guard::nothing(|| {
        // Nothing can fail but ending what never began.
        // SAFETY: an extended queue pair of ours, by the man page's contract.
        _ = unsafe { end(qp, |_, _| Ok(())) };
    });
}

/// What is being built.
///
/// # Safety
///
/// An extended queue pair of ours; this thread is between `wr_start` and the end.
unsafe fn work<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Builder, &'a mut Work)> {
    // SAFETY: as the caller says.
    let builder = unsafe { Qp::of(qp.cast()) }.builder.as_deref()?;
    if !builder.building.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: as the caller says: no other thread is in here.
    Some((builder, unsafe { &mut *builder.work.get() }))
}

/// Copies of the requests that this thread has built.
///
/// # Safety
///
/// As for [`work`].
pub(crate) unsafe fn built(qp: *mut ibv_qp_ex) -> Vec<Request> {
    // SAFETY: as the caller says.
    unsafe { work(qp) }.map_or_else(Vec::new, |(_, work)| work.requests.clone())
}

// ---- builders ----

/// Begins a request, with the queue pair's `wr_id` and `wr_flags` as they are now.
///
/// # Safety
///
/// As for [`work`].
unsafe fn begin(qp: *mut ibv_qp_ex, operation: u32, op: SendOp) {
    ffi_guard::nothing(|| {
        // SAFETY: as the caller says.
        let Some((builder, work)) = (unsafe { work(qp) }) else { return };
        if builder.operations & u64::from(operation) == 0 {
            return work.fail(libc::EINVAL);
        }
        // SAFETY: as the caller says.
        let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        if flags & v::IBV_SEND_IP_CSUM != 0 {
            return work.fail(libc::EINVAL);
        }
        let wr = request::send_wr(wr_id, flags, op, Data::Sges(request::list(&[])));
        work.requests.push(Request { wr, to: None, srq: 0 });
    });
}

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $operation:ident: $op:expr;)*) => {
        $($(#[$doc])* pub(crate) unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) {
            // SAFETY: an extended queue pair of ours, by the man page's contract.
            unsafe { begin(qp, v::$operation, $op) }
        })*
    };
}

builders! {
    /// `ibv_wr_send`, ibv_wr_post(3).
    wr_send() = IBV_QP_EX_WITH_SEND: SendOp::Send(SendTail::None);
    /// `ibv_wr_send_imm`, ibv_wr_post(3); the data in network byte order.
    wr_send_imm(imm: u32) = IBV_QP_EX_WITH_SEND_WITH_IMM: SendOp::Send(SendTail::Immediate(imm.to_ne_bytes()));
    /// `ibv_wr_send_inv`, ibv_wr_post(3).
    wr_send_inv(rkey: u32) = IBV_QP_EX_WITH_SEND_WITH_INV: SendOp::Send(SendTail::Invalidate(Rkey(rkey)));
    /// `ibv_wr_local_inv`, ibv_wr_post(3).
    wr_local_inv(rkey: u32) = IBV_QP_EX_WITH_LOCAL_INV: SendOp::Local(LocalOp::Invalidate(Rkey(rkey)));
    /// `ibv_wr_rdma_write`, ibv_wr_post(3).
    wr_rdma_write(rkey: u32, addr: u64) = IBV_QP_EX_WITH_RDMA_WRITE:
        SendOp::Write { addr, rkey: Rkey(rkey), immediate: None };
    /// `ibv_wr_rdma_write_imm`, ibv_wr_post(3); the data in network byte order.
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM:
        SendOp::Write { addr, rkey: Rkey(rkey), immediate: Some(imm.to_ne_bytes()) };
    /// `ibv_wr_rdma_read`, ibv_wr_post(3).
    wr_rdma_read(rkey: u32, addr: u64) = IBV_QP_EX_WITH_RDMA_READ: SendOp::Read { addr, rkey: Rkey(rkey) };
    /// `ibv_wr_atomic_cmp_swp`, ibv_wr_post(3).
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP:
        SendOp::Atomic { addr, rkey: Rkey(rkey), op: AtomicOp::CompareSwap { compare, swap } };
    /// `ibv_wr_atomic_fetch_add`, ibv_wr_post(3).
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD:
        SendOp::Atomic { addr, rkey: Rkey(rkey), op: AtomicOp::FetchAdd(add) };
}

/// `ibv_wr_atomic_write`, ibv_wr_post(3): the eight bytes are copied now.
pub(crate) unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    value: *const c_void,
) {
    let op = SendOp::Atomic { addr, rkey: Rkey(rkey), op: AtomicOp::Write(0) };
    let set_value = |request: &mut Request| {
        // SAFETY: eight bytes of the program's, by the man page's contract.
        request.wr.data = unsafe { request::gather_inline(std::iter::once((value.cast(), 8)))? };
        Ok(())
    };
    // SAFETY: an extended queue pair of ours, by the man page's contract.
    unsafe {
        begin(qp, v::IBV_QP_EX_WITH_ATOMIC_WRITE, op);
        set(qp, set_value);
    }
}

/// `ibv_wr_flush`, ibv_wr_post(3): EINVAL for a placement type or level that is not known, and for
/// more bytes than a RETH can say.
pub(crate) unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    let (kind, level) = (u32::from(kind), u32::from(level));
    let known = v::IBV_FLUSH_GLOBAL | v::IBV_FLUSH_PERSISTENT;
    match u32::try_from(len) {
        Ok(length) if kind != 0 && kind & !known == 0 && level <= v::IBV_FLUSH_MR => {
            let how = Flush {
                global: kind & v::IBV_FLUSH_GLOBAL != 0,
                persistent: kind & v::IBV_FLUSH_PERSISTENT != 0,
                whole: level == v::IBV_FLUSH_MR,
            };
            let op = SendOp::Flush { addr, rkey: Rkey(rkey), length, how };
            // SAFETY: an extended queue pair of ours, by the man page's contract.
            unsafe { begin(qp, v::IBV_QP_EX_WITH_FLUSH, op) }
        }
        // SAFETY: as above.
        _ => unsafe { refuse(qp, libc::EINVAL) },
    }
}

/// `ibv_wr_bind_mw`, ibv_wr_post(3): EINVAL for a window that is not of type 2.
pub(crate) unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: objects of ours and the caller's structure, by the man page's contract.
    match unsafe { mw::bind_second(mw, &*info, rkey) } {
        // SAFETY: an extended queue pair of ours, by the man page's contract.
        Ok(op) => unsafe { begin(qp, v::IBV_QP_EX_WITH_BIND_MW, op) },
        // SAFETY: as above.
        Err(Errno(errno)) => unsafe { refuse(qp, errno) },
    }
}

/// Fails what is being built.
///
/// # Safety
///
/// As for [`work`].
unsafe fn refuse(qp: *mut ibv_qp_ex, errno: c_int) {
    // SAFETY: as the caller says.
    ffi_guard::nothing(|| unsafe {
        if let Some((_, work)) = work(qp) {
            work.fail(errno);
        }
    });
}

// ---- setters ----

/// Changes the request begun last. A setter before any builder fails the posting (EINVAL).
///
/// # Safety
///
/// As for [`work`].
unsafe fn set(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Request) -> Result<(), Errno>) {
    ffi_guard::nothing(|| {
        // SAFETY: as the caller says.
        let Some((_, work)) = (unsafe { work(qp) }) else { return };
        if work.failure.is_some() {
            return;
        }
        let changed = work.requests.last_mut().ok_or(Errno(libc::EINVAL)).and_then(change);
        if let Err(Errno(errno)) = changed {
            work.fail(errno);
        }
    });
}

/// `ibv_wr_set_sge`, ibv_wr_post(3).
pub(crate) unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let set_one = |request: &mut Request| {
        request.wr.data = Data::Sges(request::list(&[ibv_sge { addr, length, lkey }]));
        Ok(())
    };
    // SAFETY: an extended queue pair of ours, by the man page's contract.
    unsafe { set(qp, set_one) }
}

/// `ibv_wr_set_sge_list`, ibv_wr_post(3): EINVAL for more elements than the device takes.
pub(crate) unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    let set_list = |request: &mut Request| {
        let n = c_int::try_from(num_sge).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: the caller's list, by the man page's contract.
        request.wr.data = Data::Sges(request::list(unsafe { request::elements(sg_list, n)? }));
        Ok(())
    };
    // SAFETY: as above.
    unsafe { set(qp, set_list) }
}

/// `ibv_wr_set_inline_data`, ibv_wr_post(3): the bytes are copied now.
pub(crate) unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let set_inline = |request: &mut Request| {
        // SAFETY: the program's own memory, by the man page's contract.
        request.wr.data =
            unsafe { request::gather_inline(std::iter::once((addr.cast_const().cast(), length)))? };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { set(qp, set_inline) }
}

/// `ibv_wr_set_inline_data_list`, ibv_wr_post(3): as [`wr_set_inline_data`].
pub(crate) unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    let set_inline = |request: &mut Request| {
        if num_buf > MAX_SGE || (num_buf > 0 && buf_list.is_null()) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's list, by the man page's contract.
        let pieces = (0..num_buf).map(|i| unsafe {
            let piece = &*buf_list.add(i);
            (piece.addr.cast_const().cast(), piece.length)
        });
        // SAFETY: the program's own memory, by the man page's contract.
        request.wr.data = unsafe { request::gather_inline(pieces)? };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { set(qp, set_inline) }
}

/// `ibv_wr_set_ud_addr`, ibv_wr_post(3): `wr_complete` refuses it on a queue pair that is connected
/// (EINVAL).
pub(crate) unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    let set_address = |request: &mut Request| {
        if ah.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: an address handle of ours, by the man page's contract.
        let ah = unsafe { Ah::of(ah) }.nic.clone();
        request.to = Some(Datagram { ah, qpn: Qpn::new(remote_qpn), qkey: Qkey(remote_qkey) });
        Ok(())
    };
    // SAFETY: as above.
    unsafe { set(qp, set_address) }
}

/// `ibv_wr_set_xrc_srqn`, ibv_wr_post(3): EINVAL on a queue pair that is not XRC.
pub(crate) unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: an extended queue pair of ours, by the man page's contract.
    let kind = unsafe { Qp::of(qp.cast()) }.nic.init().kind;
    let set_queue = |request: &mut Request| {
        if kind != QpType::XrcSend {
            return Err(Errno(libc::EINVAL));
        }
        request.srq = remote_srqn;
        Ok(())
    };
    // SAFETY: as above.
    unsafe { set(qp, set_queue) }
}
