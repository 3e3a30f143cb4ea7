//! Objects of libibverbs 1.0: made, asked, changed, destroyed.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use rdma_core_abi::verbs::{self as v, ibv_comp_channel, ibv_gid};

use crate::ffi_guard::{self, Errno};
use crate::verbs::abi_1_0::layout::{Ah, Context, Cq, Mr, Pd, Qp, QpInitAttr, Srq};
use crate::verbs::memory::{mr, pd as domain};
use crate::verbs::qp::{create, destroy, modify};
use crate::verbs::steering::mcast;
use crate::verbs::{ah, cq, srq};

/// Puts an old object before a new one, where there is one: errno is set where not.
fn stand<T>(made: bool, old: impl FnOnce() -> T) -> *mut T {
    ffi_guard::or_null(|| if made { Ok(Box::into_raw(Box::new(old()))) } else { Err(Errno::last()) })
}

/// Frees an old object whose new one is destroyed; the code of that.
///
/// # Safety
///
/// From [`stand`], and no thread uses it any more where the code is 0.
unsafe fn done<T>(code: c_int, old: *mut T) -> c_int {
    if code == 0 {
        // SAFETY: as the caller says.
        ffi_guard::nothing(|| drop(unsafe { Box::from_raw(old) }));
    }
    code
}

/// `ibv_alloc_pd` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    // SAFETY: the man page's contract.
    let real = unsafe { domain::ibv_alloc_pd((*context).real) };
    stand(!real.is_null(), || Pd { context, handle: 0, real })
}

/// `ibv_dealloc_pd` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(domain::ibv_dealloc_pd((*pd).real), pd) }
}

/// `ibv_reg_mr` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    // SAFETY: the man page's contract.
    let (context, real) = unsafe { ((*pd).context, mr::ibv_reg_mr((*pd).real, addr, length, access)) };
    // SAFETY: a region just made.
    stand(!real.is_null(), || unsafe {
        Mr { context, pd, handle: (*real).handle, lkey: (*real).lkey, rkey: (*real).rkey, real }
    })
}

/// `ibv_dereg_mr` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(mr::ibv_dereg_mr((*mr).real), mr) }
}

/// `ibv_create_cq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut Cq {
    // SAFETY: the man page's contract.
    let real = unsafe { cq::create::ibv_create_cq((*context).real, cqe, cq_context, channel, vector) };
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

/// `ibv_resize_cq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { cq::create::ibv_resize_cq((*cq).real, cqe) }
}

/// `ibv_destroy_cq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(cq::create::ibv_destroy_cq((*cq).real), cq) }
}

/// `ibv_create_srq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, attr: *mut v::ibv_srq_init_attr) -> *mut Srq {
    // SAFETY: the man page's contract.
    let (context, real) = unsafe { ((*pd).context, srq::object::ibv_create_srq((*pd).real, attr)) };
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

/// `ibv_modify_srq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut v::ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { srq::object::ibv_modify_srq((*srq).real, attr, mask) }
}

/// `ibv_query_srq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut v::ibv_srq_attr) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { srq::object::ibv_query_srq((*srq).real, attr) }
}

/// `ibv_destroy_srq` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(srq::object::ibv_destroy_srq((*srq).real), srq) }
}

/// `ibv_create_ah` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut v::ibv_ah_attr) -> *mut Ah {
    // SAFETY: the man page's contract.
    let (context, real) = unsafe { ((*pd).context, ah::ibv_create_ah((*pd).real, attr)) };
    stand(!real.is_null(), || Ah { context, pd, handle: 0, real })
}

/// `ibv_destroy_ah` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(ah::ibv_destroy_ah((*ah).real), ah) }
}

/// `ibv_create_qp` of libibverbs 1.0, for old objects. errno: EINVAL for NULL, and as of the newer
/// call.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the man page's contract.
    let made = ffi_guard::or(None, || unsafe {
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
        let real = create::create((*pd).real, &raw mut init)?;
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

/// `ibv_query_qp` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut v::ibv_qp_attr,
    mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let mut real: v::ibv_qp_init_attr = std::mem::zeroed();
        let code = modify::ibv_query_qp((*qp).real, attr, mask, &raw mut real);
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

/// `ibv_modify_qp` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut v::ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let code = modify::ibv_modify_qp((*qp).real, attr, mask);
        (*qp).state = (*(*qp).real).state;
        code
    }
}

/// `ibv_destroy_qp` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { done(destroy::ibv_destroy_qp((*qp).real), qp) }
}

/// `ibv_attach_mcast` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut Qp, gid: *mut ibv_gid, lid: u16) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { mcast::ibv_attach_mcast((*qp).real, gid, lid) }
}

/// `ibv_detach_mcast` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut Qp, gid: *mut ibv_gid, lid: u16) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { mcast::ibv_detach_mcast((*qp).real, gid, lid) }
}
