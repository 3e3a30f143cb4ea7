//! Identifiers made and destroyed (rdma_create_id(3), rdma_migrate_id(3)), and calls that wait for
//! their event.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use nic::QpType;
use rdma_core_abi::cma::{self, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use rdma_core_abi::verbs::ibv_qp_type;
use wire::mad::PortSpace;

use crate::checked;
use crate::cma::channel;
use crate::cma::cm_id::CmId;
use crate::cma::event_channel;
use crate::ffi_guard::{self, Errno};
use crate::instance;

/// Makes an identifier; without a channel, one for synchronous operation. `kind` is the type of its
/// queue pair in RDMA_PS_IB.
pub(crate) fn create(
    channel: *mut rdma_event_channel,
    user: *mut c_void,
    ps: u32,
    kind: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = match ps {
        cma::RDMA_PS_TCP => PortSpace::Tcp,
        cma::RDMA_PS_UDP => PortSpace::Udp,
        cma::RDMA_PS_IPOIB => PortSpace::Ipoib,
        cma::RDMA_PS_IB => PortSpace::Ib,
        _ => return Err(Errno(libc::EPROTONOSUPPORT)),
    };
    let instance = instance::get()?;
    instance.node().allow_id()?;
    let synchronous = channel.is_null();
    let channel = match synchronous {
        true => event_channel::create(&instance)?,
        false => (channel, event_channel::find(channel)?),
    };
    let kind = QpType::from_code(kind).unwrap_or(QpType::Rc);
    let node = instance.node().create_id_for(&channel.1.node, space, kind);
    Ok(CmId::make(node, instance, channel, user, ps, synchronous).c())
}

/// rdma_create_id(3). errno: EINVAL for NULL, EPROTONOSUPPORT for an unknown port space, EBADF for
/// a channel destroyed, ENODEV, EMFILE, ENOMEM.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    user: *mut c_void,
    ps: u32,
) -> c_int {
    ffi_guard::making(|| {
        if id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let made = create(channel, user, ps, rdma_core_abi::verbs::IBV_QPT_RC)?;
        // SAFETY: the caller's variable.
        unsafe { *id = made };
        Ok(0)
    })
}

/// rdma_destroy_id(3): waits until its events are acknowledged. Its queue pair, if it has one, goes
/// on, and is destroyed by `ibv_destroy_qp` or, as librdmacm bears it, by `rdma_destroy_qp` of the
/// identifier that was. errno: EINVAL for NULL, one destroyed already and a parent's in a forked
/// child. Unlike rdma-core: one destroyed before is an error, not undefined.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: the C structure lives as long as `ours`.
        unsafe { release_event(id) };
        {
            let channel = ours.channel();
            let _handing_out = channel.handing_out.begin();
            CmId::retire(id)?;
            ours.instance.node().destroy(&ours.node);
            ours.node.cookie.store(0, Ordering::Release);
        }
        // Its last message may be the process's last.
        ours.instance.host.drain_sent();
        ours.unacked.wait();
        // SAFETY: as above; no other thread uses it any more, by the man page's contract.
        unsafe { ours.stay_with_what_it_names() };
        checked::keep_counted(&ours, "identifier");
        if ours.is_synchronous() {
            // SAFETY: as above; its own channel.
            event_channel::free(unsafe { (*id).channel });
        }
        Ok(0)
    })
}

/// Acknowledges the event that a synchronous call left in the identifier.
///
/// # Safety
///
/// An identifier of ours.
pub(crate) unsafe fn release_event(id: *mut rdma_cm_id) {
    // SAFETY: as the caller says.
    unsafe {
        let event = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
        if !event.is_null() {
            channel::rdma_ack_cm_event(event);
        }
    }
}

fn is_synchronous(id: *mut rdma_cm_id) -> bool {
    ffi_guard::or(false, || Ok(CmId::checked(id)?.is_synchronous()))
}

/// Ends a call: on a synchronous identifier waits for its event, which stays in `id->event`; a
/// failure it tells becomes errno.
///
/// # Safety
///
/// An identifier of ours; the caller's frame has nothing to drop, as the thread may be cancelled
/// while it waits.
pub(crate) unsafe fn complete(id: *mut rdma_cm_id, started: c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if started != 0 || !is_synchronous(id) {
            return started;
        }
        release_event(id);
        let mut event: *mut rdma_cm_event = std::ptr::null_mut();
        if channel::rdma_get_cm_event((*id).channel, &raw mut event) != 0 {
            return -1;
        }
        (*id).event = event;
        match (*event).status {
            0 => 0,
            _ if (*event).event == cma::RDMA_CM_EVENT_REJECTED => {
                ffi_guard::set_errno(Errno(libc::ECONNREFUSED));
                -1
            }
            // A reason out of the answer to a question for a datagram service is no errno.
            1.. if (*event).event == cma::RDMA_CM_EVENT_UNREACHABLE => {
                ffi_guard::set_errno(Errno(libc::ECONNREFUSED));
                -1
            }
            status => {
                ffi_guard::set_errno(Errno(status.abs()));
                -1
            }
        }
    }
}

/// rdma_migrate_id(3): to a channel, or with NULL to synchronous operation. Waits until its events
/// are acknowledged. errno: EINVAL for a NULL identifier and for NULL where it is synchronous
/// already, EBADF for a channel destroyed.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    ffi_guard::making(|| {
        let ours = CmId::checked(id)?;
        let synchronous = to.is_null();
        if synchronous && ours.is_synchronous() {
            return Err(Errno(libc::EINVAL));
        }
        let (to, target) = match synchronous {
            true => event_channel::create(&ours.instance)?,
            false => (to, event_channel::find(to)?),
        };
        // SAFETY: the C structure lives as long as `ours`.
        unsafe { release_event(id) };
        ours.instance.node().migrate(&ours.node, &target.node);
        ours.unacked.wait();
        // SAFETY: `to` is that channel's.
        if let Some(own) = unsafe { ours.move_to(target, to, synchronous) } {
            event_channel::free(own);
        }
        Ok(0)
    })
}
