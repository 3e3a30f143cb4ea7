//! The shared receive queue of an identifier (rdma_create_srq(3)): its queue pair takes receives from there.

use std::ffi::c_int;

use abi::cma::rdma_cm_id;
use abi::verbs::{self as v, ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex};

use crate::border::{self, Errno};
use crate::cma::id::{CmId, domain};
use crate::verbs::srq;

/// # Safety
///
/// An identifier of ours, and a domain of ours or NULL.
unsafe fn create(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        CmId::checked(id)?;
        if attr.is_null() || !(*id).srq.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let pd = domain(id, pd)?;
        (*id).srq = srq::create(pd, &mut *attr)?;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
        Ok(())
    }
}

/// `rdma_create_srq`. errno: EINVAL for NULL, an identifier without a device or with a queue; and those of
/// `ibv_create_srq`.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the man page's contract.
    border::or_minus_one(|| unsafe { create(id, pd, attr).map(|()| 0) })
}

/// `rdma_create_srq_ex`: as [`rdma_create_srq`]; EINVAL without a type, EOPNOTSUPP for XRC and tag matching.
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    border::or_minus_one(|| {
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's structure, by the man page's contract; the plain attributes are its first part.
        unsafe {
            let given = |bit| (*attr).comp_mask & bit != 0;
            match (*attr).srq_type {
                _ if !given(v::IBV_SRQ_INIT_ATTR_TYPE) => return Err(Errno(libc::EINVAL)),
                v::IBV_SRQT_BASIC => {}
                _ => return Err(Errno(libc::EOPNOTSUPP)),
            }
            let pd = if given(v::IBV_SRQ_INIT_ATTR_PD) { (*attr).pd } else { std::ptr::null_mut() };
            create(id, pd, attr.cast())?;
        }
        Ok(0)
    })
}

/// `rdma_destroy_srq`: after the queue pair's end.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: an identifier of ours or NULL, by the man page's contract.
    border::nothing(|| unsafe {
        if CmId::checked(id).is_ok() && !(*id).srq.is_null() {
            srq::ibv_destroy_srq(std::mem::replace(&mut (*id).srq, std::ptr::null_mut()));
        }
    });
}
