//! The shared receive queue of an identifier (rdma_create_srq(3)): its queue pair takes receives
//! from there. Where that is an XRC target, the queue is one for XRC, in the device's default
//! domain and with a completion queue of the identifier's own.

use std::ffi::c_int;

use rdma_core_abi::cma::rdma_cm_id;
use rdma_core_abi::verbs::{self as v, ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex};

use crate::cma::cm_id::CmId;
use crate::cma::devices::{default_xrcd, domain};
use crate::cma::qp::{receive_queue, release_queues};
use crate::ffi_guard::{self, Errno};
use crate::verbs::srq::object as srq;

/// # Safety
///
/// An identifier of ours, and a domain of ours or NULL.
unsafe fn create(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let _ours = CmId::checked(id)?;
        if attr.is_null() || !(*id).srq.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        if (*id).qp_type == v::IBV_QPT_XRC_RECV {
            let mut xrc: ibv_srq_init_attr_ex = std::mem::zeroed();
            (xrc.attr, xrc.srq_context, xrc.pd) = ((*attr).attr, (*attr).srq_context, pd);
            create_xrc(id, &mut xrc)?;
            (*attr).attr = xrc.attr;
            return Ok(());
        }
        let pd = domain(id, pd)?;
        (*id).srq = srq::create(pd, &mut *attr)?;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
        Ok(())
    }
}

/// One for XRC; what `attr` lacks of domains and completion queue is the identifier's.
///
/// # Safety
///
/// As for [`create`]; what `attr` names by its mask lives.
unsafe fn create_xrc(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        attr.pd = domain(id, attr.pd)?;
        if attr.comp_mask & v::IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = default_xrcd(id)?;
        }
        if attr.comp_mask & v::IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            attr.cq = receive_queue(id, attr.attr.max_wr)?;
        }
        attr.srq_type = v::IBV_SRQT_XRC;
        attr.comp_mask = v::IBV_SRQ_INIT_ATTR_TYPE
            | v::IBV_SRQ_INIT_ATTR_PD
            | v::IBV_SRQ_INIT_ATTR_XRCD
            | v::IBV_SRQ_INIT_ATTR_CQ;
        let made = srq::create_srq_ex((*id).verbs, attr);
        if made.is_null() {
            let why = Errno::last();
            if attr.cq == (*id).recv_cq {
                release_queues(id);
            }
            return Err(why);
        }
        (*id).srq = made;
        if (*id).pd.is_null() {
            (*id).pd = attr.pd;
        }
        Ok(())
    }
}

/// rdma_create_srq(3). errno: EINVAL for NULL, an identifier without a device or with a queue; and
/// those of `ibv_create_srq`.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the man page's contract.
    ffi_guard::making(|| unsafe { create(id, pd, attr).map(|()| 0) })
}

/// `rdma_create_srq_ex`, rdma_create_srq(3): as [`rdma_create_srq`]; EINVAL without a type,
/// EOPNOTSUPP for tag matching.
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    ffi_guard::making(|| {
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's structure, by the man page's contract; the plain attributes are its
        // first part.
        unsafe {
            let given = |bit| (*attr).comp_mask & bit != 0;
            match (*attr).srq_type {
                _ if !given(v::IBV_SRQ_INIT_ATTR_TYPE) => return Err(Errno(libc::EINVAL)),
                v::IBV_SRQT_BASIC => {}
                v::IBV_SRQT_XRC => {
                    let _ours = CmId::checked(id)?;
                    if !(*id).srq.is_null() {
                        return Err(Errno(libc::EINVAL));
                    }
                    if !given(v::IBV_SRQ_INIT_ATTR_PD) {
                        (*attr).pd = std::ptr::null_mut();
                    }
                    return create_xrc(id, &mut *attr).map(|()| 0);
                }
                _ => return Err(Errno(libc::EOPNOTSUPP)),
            }
            let pd = if given(v::IBV_SRQ_INIT_ATTR_PD) { (*attr).pd } else { std::ptr::null_mut() };
            create(id, pd, attr.cast())?;
        }
        Ok(0)
    })
}

/// rdma_destroy_srq(3): after the queue pair's end; also of an identifier that was destroyed with
/// it.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the C structure lives as long as `ours`; a program calls on it from one thread at a
    // time.
    ffi_guard::nothing(|| unsafe {
        let Some(_ours) = CmId::even_destroyed(id) else { return };
        let made = std::mem::replace(&mut (*id).srq, std::ptr::null_mut());
        if srq::exists(made) {
            srq::ibv_destroy_srq(made);
            if (*id).qp_type == v::IBV_QPT_XRC_RECV {
                release_queues(id);
            }
        }
    });
}
