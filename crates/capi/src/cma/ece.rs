//! Enhanced Connection Establishment (rdma_set_local_ece(3), rdma_get_remote_ece(3)): options of
//! queue pairs that no identifier owns, carried by requests and replies. Queue pairs here have no
//! such options; those of other adapters may.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_abi::cma::rdma_cm_id;
use rdma_core_abi::verbs::ibv_ece;
use wire::mad::Ece;

use crate::cma::cm_id::CmId;
use crate::ffi_guard::{self, Errno};

/// Vendors have 24 bits on the wire.
const VENDOR_MASK: u32 = 0xff_ffff;

fn without_qp(id: *mut rdma_cm_id, ece: *const ibv_ece) -> Result<Arc<CmId>, Errno> {
    let ours = CmId::checked(id)?;
    // SAFETY: the C structure lives as long as `ours`.
    if ece.is_null() || unsafe { !(*id).qp.is_null() } {
        return Err(Errno(libc::EINVAL));
    }
    Ok(ours)
}

/// rdma_set_local_ece(3): what the next rdma_connect or rdma_accept tells the peer; an answer bears
/// the asker's vendor. errno: EINVAL for NULL, an identifier with a queue pair of its own, no
/// vendor or one of more than 24 bits, a `comp_mask`.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = without_qp(id, ece)?;
        // SAFETY: the caller's structure.
        let given = unsafe { *ece };
        if given.vendor_id == 0 || given.vendor_id & !VENDOR_MASK != 0 || given.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        ours.node.lock().local_ece = Ece { vendor_id: given.vendor_id, options: given.options };
        Ok(0)
    })
}

/// rdma_get_remote_ece(3): what the peer's request or reply told; zeros where it told nothing, or
/// nothing has come. errno: EINVAL for NULL and for an identifier with a queue pair of its own.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = without_qp(id, ece)?;
        let told = ours.node.lock().remote_ece;
        // SAFETY: the caller's structure.
        unsafe { *ece = ibv_ece { vendor_id: told.vendor_id, options: told.options, comp_mask: 0 } };
        Ok(0)
    })
}
