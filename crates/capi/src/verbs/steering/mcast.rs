//! Multicast groups (ibv_attach_mcast(3)).

use std::ffi::c_int;

use rdma_core_abi::verbs::{ibv_gid, ibv_qp};
use wire::Gid;

use crate::ffi_guard::{self, Errno};
use crate::verbs::qp::object::Qp;

/// ibv_attach_mcast(3): joins the group on the wire with the first queue pair of the process, and
/// delivers to the queue pair, its own datagrams included. EINVAL for what is not a datagram queue
/// pair or not a group, ENOMEM at the limit, ENODEV in a forked child. RoCE has no LIDs: `lid` is
/// not looked at.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours and a GID, by the man page's contract.
        let (ours, gid) = unsafe { (Qp::of(qp), Gid((*gid).raw)) };
        ours.instance.check()?;
        Ok(ours.nic.attach_group(gid)?)
    })
}

/// `ibv_detach_mcast`, ibv_attach_mcast(3): EINVAL where the queue pair is not attached to the
/// group; ENODEV in a forked child.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue pair of ours and a GID, by the man page's contract.
        let (ours, gid) = unsafe { (Qp::of(qp), Gid((*gid).raw)) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        Ok(ours.nic.detach_group(gid)?)
    })
}
