//! Extended queue pairs made (ibv_create_qp_ex(3)).

use std::sync::atomic::Ordering;

use rdma_core_abi::verbs::{self as v, ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};

use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::qp::builder::Builder;
use crate::verbs::qp::create::create_with;
use crate::verbs::qp::object::Qp;
use crate::verbs::qp::{rss, xrc};

/// The operations of `send_ops_flags` that a service offers.
fn operations(qp_type: u32) -> u64 {
    let datagrams = v::IBV_QP_EX_WITH_SEND | v::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagrams
        | v::IBV_QP_EX_WITH_RDMA_WRITE
        | v::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | v::IBV_QP_EX_WITH_LOCAL_INV
        | v::IBV_QP_EX_WITH_BIND_MW
        | v::IBV_QP_EX_WITH_SEND_WITH_INV;
    let reliable = unreliable
        | v::IBV_QP_EX_WITH_RDMA_READ
        | v::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | v::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | v::IBV_QP_EX_WITH_ATOMIC_WRITE
        | v::IBV_QP_EX_WITH_FLUSH;
    u64::from(match qp_type {
        v::IBV_QPT_RC | v::IBV_QPT_XRC_SEND => reliable,
        v::IBV_QPT_UC => unreliable,
        v::IBV_QPT_UD => datagrams,
        v::IBV_QPT_RAW_PACKET => v::IBV_QP_EX_WITH_SEND,
        _ => 0,
    })
}

/// The creation flags that libibverbs knows, and those of them that are for frames only.
const KNOWN_FLAGS: u32 = v::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
    | v::IBV_QP_CREATE_SOURCE_QPN
    | v::IBV_QP_CREATE_PCI_WRITE_END_PADDING
    | FRAME_FLAGS;
const FRAME_FLAGS: u32 = v::IBV_QP_CREATE_SCATTER_FCS | v::IBV_QP_CREATE_CVLAN_STRIPPING;

/// Whether the queue pair blocks its multicast loopback, which is the one creation flag that is
/// built. EINVAL for flags that are not known, or that its service has not; EOPNOTSUPP for others.
fn is_quiet(qp_type: u32, flags: u32) -> Result<bool, Errno> {
    let services = match flags & !v::IBV_QP_CREATE_SOURCE_QPN {
        0 => return if flags == 0 { Ok(false) } else { Err(Errno(libc::EOPNOTSUPP)) },
        more if more & FRAME_FLAGS != 0 => [v::IBV_QPT_RAW_PACKET, v::IBV_QPT_RAW_PACKET],
        _ => [v::IBV_QPT_UD, v::IBV_QPT_RAW_PACKET],
    };
    match (flags, qp_type) {
        _ if flags & !KNOWN_FLAGS != 0 || !services.contains(&qp_type) => Err(Errno(libc::EINVAL)),
        (v::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, v::IBV_QPT_UD) => Ok(true),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Bits of `comp_mask` that a queue pair may have.
const KNOWN_MASK: u32 = v::IBV_QP_INIT_ATTR_PD
    | v::IBV_QP_INIT_ATTR_XRCD
    | v::IBV_QP_INIT_ATTR_CREATE_FLAGS
    | v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    | v::IBV_QP_INIT_ATTR_IND_TABLE
    | v::IBV_QP_INIT_ATTR_RX_HASH;

/// Makes a queue pair of ordinary type with what an extended one has. Errors as of
/// [`create_qp_ex`].
///
/// # Safety
///
/// A context of ours and objects of ours that live, as ibv_create_qp_ex(3) asks.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: a context of ours and the caller's structure, as the caller says.
    let init = unsafe {
        Context::usable(context)?;
        &*attr
    };
    let given = |bit| init.comp_mask & bit != 0;
    if given(v::IBV_QP_INIT_ATTR_MAX_TSO_HEADER) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let is_target = init.qp_type == v::IBV_QPT_XRC_RECV;
    let needed = if is_target { v::IBV_QP_INIT_ATTR_XRCD } else { v::IBV_QP_INIT_ATTR_PD };
    if init.comp_mask & !KNOWN_MASK != 0 || !given(needed) {
        return Err(Errno(libc::EINVAL));
    }
    let flags = if given(v::IBV_QP_INIT_ATTR_CREATE_FLAGS) { init.create_flags } else { 0 };
    let quiet = is_quiet(init.qp_type, flags)?;
    if is_target {
        // SAFETY: as the caller says.
        return unsafe { xrc::create_target(context, init) };
    }
    if init.pd.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    if given(v::IBV_QP_INIT_ATTR_IND_TABLE) != given(v::IBV_QP_INIT_ATTR_RX_HASH) {
        return Err(Errno(libc::EINVAL));
    }
    if given(v::IBV_QP_INIT_ATTR_IND_TABLE) {
        // SAFETY: as the caller says.
        return unsafe { rss::create_over_table(context, attr) };
    }
    let builder = if given(v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        if init.send_ops_flags & !operations(init.qp_type) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Some(Builder::new(init.send_ops_flags))
    } else {
        None
    };
    // SAFETY: the plain attributes are the first part of the extended ones; objects of ours, as the
    // caller says.
    unsafe {
        let made = create_with(init.pd, attr.cast::<ibv_qp_init_attr>(), builder)?;
        Qp::of(made).nic.no_multicast_loop.store(quiet, Ordering::Relaxed);
        Ok(made)
    }
}

/// ibv_create_qp_ex(3), through the context's table. errno: as `ibv_create_qp`; EINVAL for a mask
/// that is not known, without a protection domain, for a target without an XRC domain, and for
/// creation flags that are not known or not of this service; EOPNOTSUPP for operations that the
/// service has not, and for other creation flags.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the man page's contract.
    ffi_guard::or_null(|| unsafe { create(context, attr) })
}
