//! Names to addresses, reported by an event (rdma_resolve_addrinfo(3), rdma_query_addrinfo(3)).

use std::ffi::{c_char, c_int};

use nic::rdma_cm::EventKind;
use rdma_core_abi::cma::{self, rdma_addrinfo, rdma_cm_id};
use stack::Progress;

use crate::cma::addrinfo::{Failure, Owned, Resolution, look_up};
use crate::cma::cm_id::CmId;
use crate::cma::id::complete;
use crate::ffi_guard::{self, Errno};

/// rdma_resolve_addrinfo(3): looks the name up as `rdma_getaddrinfo` does, while the caller waits,
/// and then reports RDMA_CM_EVENT_ADDRINFO_RESOLVED; the answer is `rdma_query_addrinfo`'s. errno:
/// EINVAL for a NULL identifier, EBUSY while an answer waits to be taken, EOPNOTSUPP for RAI_SA
/// with RAI_DNS, a node, or an identifier bound to a device (none here knows a subnet
/// administrator), EINVAL for RAI_SA and one not bound; for names as `rdma_getaddrinfo`.
pub unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    let started = ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        if matches!(*ours.resolution(), Resolution::Resolved(_)) {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: a structure of the caller, or NULL.
        let by_administrator = unsafe { hints.as_ref() }.is_some_and(|h| h.ai_flags & cma::RAI_SA != 0);
        // SAFETY: strings and structures of the caller, by the man page's contract.
        match unsafe { look_up(node, service, hints) } {
            Ok(list) => {
                *ours.resolution() = Resolution::Resolved(Owned(list));
                ours.instance.node().write_event(&ours.node, EventKind::AddrinfoResolved, 0, 0);
                Ok(0)
            }
            Err(Failure::Errno(Errno(libc::ENOENT))) if by_administrator => {
                let bound = ours.node.lock().progress == Progress::Bound;
                Err(Errno(if bound { libc::EOPNOTSUPP } else { libc::EINVAL }))
            }
            Err(failure) => Err(failure.errno()),
        }
    });
    // SAFETY: an identifier of ours where that has succeeded; this frame has nothing to drop.
    unsafe { complete(id, started) }
}

/// rdma_query_addrinfo(3): the answer to `rdma_resolve_addrinfo`, once; to be freed by
/// `rdma_freeaddrinfo`. errno: EINVAL for NULL, ENOENT where there is none.
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        if info.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        match std::mem::take(&mut *ours.resolution()) {
            Resolution::None => Err(Errno(libc::ENOENT)),
            Resolution::Resolved(mut list) => {
                // SAFETY: the caller's variable.
                unsafe { *info = std::mem::replace(&mut list.0, std::ptr::null_mut()) };
                Ok(0)
            }
        }
    })
}
