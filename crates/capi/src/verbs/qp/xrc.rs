//! XRC targets: made (ibv_create_qp_ex(3) with an XRC domain), and opened by a further handle
//! (ibv_open_qp(3)).

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core_abi::verbs::{self as v, ibv_context, ibv_qp, ibv_qp_open_attr, ibv_xrcd};
use wire::Qpn;

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::qp::object::{Over, Qp};
use crate::verbs::qp::users::count_over;
use crate::verbs::srq::object::Srq;
use crate::verbs::xrcd::Xrcd;

/// ibv_open_qp(3), through the context's table: one more handle of an XRC target of this process.
/// Its asynchronous events go to the handle that made it. errno: EINVAL without all attributes that
/// say which, or where the domain has no such target; EOPNOTSUPP for attributes that are not known.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let (ours, open) = unsafe { (Context::usable(context)?, &*attr) };
        let needed = v::IBV_QP_OPEN_ATTR_NUM | v::IBV_QP_OPEN_ATTR_XRCD | v::IBV_QP_OPEN_ATTR_TYPE;
        let known = needed | v::IBV_QP_OPEN_ATTR_CONTEXT;
        if open.comp_mask & !known != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if open.comp_mask & needed != needed {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: a domain of ours, by the man page's contract.
        let xrcd = unsafe { Xrcd::usable(open.xrcd)? };
        let in_domain = |qp: &Arc<nic::Qp>| {
            qp.init().kind as u32 == open.qp_type && qp.xrcd().is_some_and(|x| Arc::ptr_eq(x, &xrcd.nic))
        };
        let nic = ours.nic.qp(Qpn::new(open.qp_num)).filter(in_domain).ok_or(Errno(libc::EINVAL))?;
        // One that is being destroyed is not there any more.
        let count = |n: u32| (n > 0).then_some(n + 1);
        let counted = nic.handles.try_update(Ordering::AcqRel, Ordering::Acquire, count);
        counted.map_err(|_| Errno(libc::EINVAL))?;
        let qp_context = if open.comp_mask & v::IBV_QP_OPEN_ATTR_CONTEXT == 0 {
            std::ptr::null_mut()
        } else {
            open.qp_context
        };
        // SAFETY: objects of ours, as above.
        Ok(unsafe { make(context, nic, open.xrcd, qp_context) })
    })
}

/// Makes an XRC target and its first handle, for `ibv_create_qp_ex`. It has an XRC domain and
/// nothing else: protection domain, completion queues and sizes are ignored. EINVAL for a shared
/// receive queue that is not for XRC.
///
/// # Safety
///
/// A context of ours, NULL or a domain of ours that is not closed, NULL or a shared receive queue
/// of ours that lives.
pub(crate) unsafe fn create_target(
    context: *mut ibv_context,
    init: &v::ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    if !init.srq.is_null() && !unsafe { Srq::of(init.srq) }.nic.is_for_xrc() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    let (ours, xrcd) = unsafe { (Context::usable(context)?, Xrcd::usable(init.xrcd)?) };
    ours.instance.attach(&ours.nic)?;
    let nic = nic::Qp::create_target(&ours.nic, &xrcd.nic, ours.events.clone())?;
    // SAFETY: as the caller says.
    let qp = unsafe { make(context, nic, init.xrcd, init.qp_context) };
    // SAFETY: just made.
    unsafe { Qp::of(qp) }.take_events();
    Ok(qp)
}

/// A handle of an XRC target, counted already.
///
/// # Safety
///
/// A context and a domain of ours that live.
unsafe fn make(
    context: *mut ibv_context,
    nic: Arc<nic::Qp>,
    xrcd: *mut ibv_xrcd,
    qp_context: *mut c_void,
) -> *mut ibv_qp {
    let (ex, over) = (Qp::blank(context, qp_context, &nic), Over::Xrcd(xrcd));
    // SAFETY: as the caller says.
    let context = unsafe {
        count_over(over, |n| _ = n.fetch_add(1, Ordering::AcqRel));
        Context::share(context)
    };
    let qp = Qp::make(ex, nic, over, None, context);
    // SAFETY: just made.
    unsafe { checked::objects::pair_made(qp, 0) };
    qp
}
