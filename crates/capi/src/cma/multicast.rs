//! Multicast groups (rdma_join_multicast(3), rdma_join_multicast_ex(3), rdma_leave_multicast(3)).

use std::ffi::{c_int, c_void};

use rdma_core_abi::cma::{self, rdma_cm_id, rdma_cm_join_mc_attr_ex};
use stack::Group;

use crate::cma::cm_id::CmId;
use crate::cma::id::complete;
use crate::cma::sockaddr::{self, Address};
use crate::ffi_guard::{self, Errno};

/// The group of an address; of one of the family `AF_IB` that of its GID.
///
/// # Safety
///
/// An address or NULL.
unsafe fn group_at(addr: *const libc::sockaddr) -> Result<Group, Errno> {
    // SAFETY: as the caller says.
    Ok(match unsafe { sockaddr::read(addr)? } {
        Address::Ip(addr) => addr.ip().into(),
        Address::Ib(gid, _) => Group::Gid(gid),
    })
}

/// # Safety
///
/// An identifier of ours or NULL, and an address or NULL.
unsafe fn join(
    id: *mut rdma_cm_id,
    addr: *const libc::sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    let ours = CmId::checked(id)?;
    // SAFETY: as the caller says; a program calls on an identifier from one thread at a time.
    let group = unsafe {
        ours.take_in_qp()?;
        group_at(addr)?
    };
    let context = context.expose_provenance() as u64;
    ours.instance.node().join_multicast(&ours.node, group, send_only, context)?;
    Ok(0)
}

/// rdma_join_multicast(3): RDMA_CM_EVENT_MULTICAST_JOIN follows, or RDMA_CM_EVENT_MULTICAST_ERROR;
/// either bears `context` as its private data. errno: EINVAL for NULL, an address that is no
/// multicast group's or of another family than the identifier's, an identifier without a device,
/// beyond address resolution, or of a connected port space; EADDRNOTAVAIL where the device has lost
/// the identifier's address, or an InfiniBand port has no subnet manager; ENODEV in RDMA_PS_IPOIB,
/// ENOMEM for too many groups.
pub unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the man page's contract.
    let started = ffi_guard::or_minus_one(|| unsafe { join(id, addr, false, context) });
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// rdma_join_multicast_ex(3): as a full member or to send only. errno: as [`rdma_join_multicast`];
/// EINVAL without an address or flags, or with unknown flags, EOPNOTSUPP for unknown bits of
/// `comp_mask`.
pub unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let started = ffi_guard::or_minus_one(|| {
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's structure, by the man page's contract.
        let attr = unsafe { &*attr };
        if attr.comp_mask >= cma::RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let wanted = cma::RDMA_CM_JOIN_MC_ATTR_ADDRESS | cma::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & wanted != wanted || attr.join_flags >= cma::RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(Errno(libc::EINVAL));
        }
        let send_only = attr.join_flags == cma::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        // SAFETY: the man page's contract.
        unsafe { join(id, attr.addr, send_only, context) }
    });
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// rdma_leave_multicast(3): events of the join that were fetched stay valid until they are
/// acknowledged. No call waits for that. errno: EINVAL for NULL, EADDRNOTAVAIL where the identifier
/// does not belong to the group.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: an address or NULL, by the man page's contract.
        let group = unsafe { group_at(addr)? };
        ours.instance.node().leave_multicast(&ours.node, group)?;
        Ok(0)
    })
}
