//! The queue pair of an identifier (rdma_create_qp(3)).

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rdma_core_abi::cma::rdma_cm_id;
use rdma_core_abi::verbs::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_comp_channel, ibv_cq,
    ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_xrcd,
};

use crate::cma::cm_id::CmId;
use crate::cma::devices::{default_xrcd, domain};
use crate::ffi_guard::{self, Errno};
use crate::verbs::cq;
use crate::verbs::qp::object::{Qp, exists};
use crate::verbs::qp::{create as verbs_qp, create_ex, ibv_destroy_qp};

/// Makes an identifier's queue pair and takes it to INIT; without a domain in the device's default
/// one, without completion queues with some of its own, without a shared receive queue on the
/// identifier's, where it has one.
///
/// # Safety
///
/// An identifier of ours, and objects of ours or NULL.
pub(crate) unsafe fn create(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        if !attr.is_null() && (*attr).qp_type == IBV_QPT_XRC_RECV {
            return create_by(id, pd, attr, |_| target(id, attr, default_xrcd(id)?));
        }
        create_by(id, pd, attr, |pd| verbs_qp::create(pd, attr))
    }
}

/// An XRC target in a domain: it has nothing else.
unsafe fn target(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr,
    xrcd: *mut ibv_xrcd,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as for `create`; integers and pointers.
    unsafe {
        let mut init: ibv_qp_init_attr_ex = std::mem::zeroed();
        (init.qp_type, init.qp_context) = (IBV_QPT_XRC_RECV, (*attr).qp_context);
        (init.comp_mask, init.xrcd) = (IBV_QP_INIT_ATTR_XRCD, xrcd);
        create_ex::create((*id).verbs, &raw mut init)
    }
}

/// Like [`create`], where `make` makes the queue pair from `attr` in a domain.
///
/// # Safety
///
/// As for [`create`].
unsafe fn create_by(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    make: impl FnOnce(*mut ibv_pd) -> Result<*mut ibv_qp, Errno>,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let ours = CmId::checked(id)?;
        if attr.is_null() || !(*id).qp.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // The program may have destroyed one, and set the pointer to NULL.
        ours.take_in_qp()?;
        let pd = domain(id, pd)?;
        own_queues(id, attr)?;
        if (*attr).srq.is_null() && (*attr).qp_type != IBV_QPT_XRC_RECV {
            (*attr).srq = (*id).srq;
        }
        let made = make(pd).inspect_err(|_| release_queues(id))?;
        if let Err(e) = ours.instance.node().set_qp(&ours.node, &Qp::of(made).nic) {
            ibv_destroy_qp(made);
            release_queues(id);
            return Err(e.into());
        }
        (*made).state = Qp::of(made).nic.state() as u32;
        (*id).qp = made;
        (*id).pd = pd;
        (*id).qp_type = (*attr).qp_type;
        Ok(())
    }
}

/// Makes the completion queues that `attr` lacks, each with a channel, as librdmacm does.
unsafe fn own_queues(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: as for `create`.
    unsafe {
        let cap = (*attr).cap;
        if (*attr).qp_type == IBV_QPT_XRC_RECV {
            // It completes nothing: its receives do so to their queue's.
            return Ok(());
        }
        if (*attr).send_cq.is_null() {
            let (ch, q) = queue(id, cap.max_send_wr)?;
            ((*id).send_cq_channel, (*id).send_cq) = (ch, q);
            CmId::checked(id)?.owns_cqs.store(true, Ordering::Release);
            (*attr).send_cq = q;
        }
        if (*attr).recv_cq.is_null() && (*attr).qp_type != IBV_QPT_XRC_SEND {
            let (ch, q) = queue(id, cap.max_recv_wr).inspect_err(|_| release_queues(id))?;
            ((*id).recv_cq_channel, (*id).recv_cq) = (ch, q);
            CmId::checked(id)?.owns_cqs.store(true, Ordering::Release);
            (*attr).recv_cq = q;
        }
    }
    Ok(())
}

unsafe fn queue(id: *mut rdma_cm_id, size: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: as for `create`.
    unsafe {
        let ch = cq::ibv_create_comp_channel((*id).verbs);
        if ch.is_null() {
            return Err(Errno::last());
        }
        let q = cq::ibv_create_cq((*id).verbs, size.max(1) as c_int, id.cast(), ch, 0);
        if q.is_null() {
            let why = Errno::last();
            cq::ibv_destroy_comp_channel(ch);
            return Err(why);
        }
        Ok((ch, q))
    }
}

/// The completion queue of a shared receive queue for XRC, where `rdma_get_recv_comp` finds it.
///
/// # Safety
///
/// An identifier of ours with a device.
pub(crate) unsafe fn receive_queue(id: *mut rdma_cm_id, size: u32) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        if (*id).recv_cq.is_null() {
            ((*id).recv_cq_channel, (*id).recv_cq) = queue(id, size)?;
            CmId::checked(id)?.owns_cqs.store(true, Ordering::Release);
        }
        Ok((*id).recv_cq)
    }
}

/// Destroys the completion queues that were made for the identifier.
///
/// # Safety
///
/// An identifier of ours; nothing of it uses them any more.
pub(crate) unsafe fn release_queues(id: *mut rdma_cm_id) {
    let Some(ours) = CmId::even_destroyed(id) else { return };
    if !ours.owns_cqs.swap(false, Ordering::AcqRel) {
        return;
    }
    // SAFETY: as for `create`; the queues are this identifier's own.
    unsafe {
        for (q, ch) in [
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
        ] {
            if !(*q).is_null() {
                cq::ibv_destroy_cq(*q);
                cq::ibv_destroy_comp_channel(*ch);
                (*q, *ch) = (std::ptr::null_mut(), std::ptr::null_mut());
            }
        }
    }
}

/// rdma_create_qp(3). errno: EINVAL for NULL, an identifier without a device or with a queue pair;
/// and those of `ibv_create_qp`.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the man page's contract.
    ffi_guard::making(|| unsafe { create(id, pd, attr).map(|()| 0) })
}

/// `rdma_create_qp_ex`, rdma_create_qp(3): `attr` says the domain. errno: EINVAL for NULL, an
/// identifier without a device or with a queue pair; and those of `ibv_create_qp_ex`.
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    ffi_guard::making(|| {
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the man page's contract; the plain attributes are the first part of the extended
        // ones.
        unsafe {
            let given = (*attr).comp_mask & IBV_QP_INIT_ATTR_PD != 0;
            let pd = if given { (*attr).pd } else { std::ptr::null_mut() };
            create_by(id, pd, attr.cast(), |pd| {
                if (*attr).qp_type == IBV_QPT_XRC_RECV {
                    let given = (*attr).comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !(*attr).xrcd.is_null();
                    let xrcd = if given { (*attr).xrcd } else { default_xrcd(id)? };
                    return target(id, attr.cast(), xrcd);
                }
                (*attr).pd = pd;
                (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
                create_ex::create((*id).verbs, attr)
            })?;
        }
        Ok(0)
    })
}

/// rdma_destroy_qp(3): also of an identifier that was destroyed with its queue pair. One that the
/// program has destroyed already (`ibv_destroy_qp(id->qp)`) is forgotten.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the C structure lives as long as `ours`; a program calls on it from one thread at a
    // time.
    ffi_guard::nothing(|| unsafe {
        let Some(ours) = CmId::even_destroyed(id) else { return };
        _ = ours.take_in_qp();
        ours.instance.node().take_qp(&ours.node);
        let made = std::mem::replace(&mut (*id).qp, std::ptr::null_mut());
        if exists(made) {
            ibv_destroy_qp(made);
        }
        // A queue for XRC goes on completing there.
        if (*id).qp_type != IBV_QPT_XRC_RECV || (*id).srq.is_null() {
            release_queues(id);
        }
    });
}
