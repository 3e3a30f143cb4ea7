//! A peer: a device with a protection domain (rpma_peer_new(3)), and the queue pairs of its
//! connections.

use std::ffi::{CStr, c_int};

use rdma_core_abi::cma::rdma_cm_id;
use rdma_core_abi::verbs::{
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC, ibv_context, ibv_pd, ibv_qp_cap,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};

use crate::codes::{NOMEM, Result, UNKNOWN, answer, errno, errno_of, failed, number, require, set_errno};
use crate::object::{end, make, put, take};
use crate::peer_cfg::{self, ATOMIC_WRITE, FLUSH};
use crate::stack::{Calls, calls, query_device_ex};
use crate::utils::has_odp;

/// `struct rpma_peer`.
pub struct Peer {
    /// The libraries' functions.
    pub calls: &'static Calls,
    /// The peer's protection domain.
    pub pd: *mut ibv_pd,
    /// Bits of `device_cap_flags_ex`, or none.
    pub capabilities: u64,
    /// Whether its device pages regions on demand.
    pub odp: bool,
}

/// Bits of `device_cap_flags_ex` that verbs.h has no names for: kernel headers have
/// (`IB_UVERBS_DEVICE_*`).
pub const CAN_FLUSH_GLOBAL: u64 = 1 << 38;
/// Bit of `device_cap_flags_ex` for FLUSH to persistence, as [`CAN_FLUSH_GLOBAL`].
pub const CAN_FLUSH_PERSISTENT: u64 = 1 << 39;
/// Bit of `device_cap_flags_ex` for ATOMIC WRITE, as [`CAN_FLUSH_GLOBAL`].
pub const CAN_WRITE_ATOMICALLY: u64 = 1 << 40;

/// Bytes that a work request can carry in itself: those of an atomic write.
const INLINE: u32 = 8;

/// rpma_peer_new(3).
pub unsafe extern "C" fn rpma_peer_new(context: *mut ibv_context, peer: *mut *mut Peer) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { new(context, peer) })
}

/// # Safety
///
/// That of the function above.
unsafe fn new(context: *mut ibv_context, out: *mut *mut Peer) -> Result<()> {
    const NEW: &CStr = c"rpma_peer_new";
    require(!context.is_null() && !out.is_null())?;
    let calls = calls()?;
    // SAFETY: the context lives. A library or device that can not be asked has nothing that came
    // later.
    let (capabilities, odp) = match unsafe { query_device_ex(context) } {
        Ok(attr) => (attr.device_cap_flags_ex, has_odp(&attr)),
        Err(_) => (0, false),
    };
    let peer = make(Peer { calls, pd: std::ptr::null_mut(), capabilities, odp })?;
    set_errno(0);
    // SAFETY: the context lives.
    let pd = unsafe { (calls.ibv_alloc_pd)(context) };
    if pd.is_null() {
        let why = errno();
        // SAFETY: just made, and no other thread has it.
        unsafe { end(peer) };
        let code = failed(NEW, "ibv_alloc_pd", why);
        return Err(match why {
            libc::ENOMEM => NOMEM,
            0 => UNKNOWN,
            _ => code,
        });
    }
    let all = CAN_FLUSH_GLOBAL | CAN_FLUSH_PERSISTENT;
    let has_flush = if capabilities & all == all { FLUSH } else { 0 };
    let has_write = if capabilities & CAN_WRITE_ATOMICALLY != 0 { ATOMIC_WRITE } else { 0 };
    peer_cfg::executes(has_flush | has_write);
    // SAFETY: just made; there is room for its address.
    unsafe {
        (*peer).pd = pd;
        put(out, peer)
    }
}

/// rpma_peer_delete(3). As with upstream's, the peer is no more after a failure either: its domain
/// has something yet.
pub unsafe extern "C" fn rpma_peer_delete(peer: *mut *mut Peer) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(peer) }.and_then(|peer| {
        if peer.is_null() {
            return Ok(());
        }
        // SAFETY: likewise: no thread uses it any more.
        unsafe {
            let result = ((*peer).calls.ibv_dealloc_pd)((*peer).pd);
            end(peer);
            errno_of(c"rpma_peer_delete", "ibv_dealloc_pd", result)
        }
    }))
}

impl Peer {
    /// The queue pair of a connection, made on its identifier. Where the device has FLUSH or ATOMIC
    /// WRITE it is an extended one, which is returned.
    ///
    /// # Safety
    ///
    /// The identifier and what `init` names live.
    pub unsafe fn create_qp(
        &self,
        function: &'static CStr,
        id: *mut rdma_cm_id,
        init: &mut ibv_qp_init_attr,
    ) -> Result<*mut ibv_qp_ex> {
        init.qp_type = IBV_QPT_RC;
        (init.cap.max_send_sge, init.cap.max_recv_sge, init.cap.max_inline_data) = (1, 1, INLINE);
        // SAFETY: as the caller says.
        if let Some(extended) = unsafe { self.create_extended(id, init) } {
            return Ok(extended);
        }
        // SAFETY: likewise.
        number(function, "rdma_create_qp", unsafe { (self.calls.rdma_create_qp)(id, self.pd, init) })?;
        Ok(std::ptr::null_mut())
    }

    /// `None` where library or device has none of what a plain one has not, or refuses.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn create_extended(&self, id: *mut rdma_cm_id, init: &ibv_qp_init_attr) -> Option<*mut ibv_qp_ex> {
        let can = |capability: u64, flag: u32| if self.capabilities & capability != 0 { flag } else { 0 };
        let late = can(CAN_FLUSH_GLOBAL | CAN_FLUSH_PERSISTENT, IBV_QP_EX_WITH_FLUSH)
            | can(CAN_WRITE_ATOMICALLY, IBV_QP_EX_WITH_ATOMIC_WRITE);
        let extend = self.calls.ibv_qp_to_qp_ex.filter(|_| late != 0)?;
        // SAFETY: numbers and addresses: all zeros are attributes.
        let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        (attr.send_cq, attr.recv_cq, attr.srq) = (init.send_cq, init.recv_cq, init.srq);
        (attr.cap, attr.qp_type) = (init.cap, init.qp_type);
        (attr.comp_mask, attr.pd) = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, self.pd);
        attr.send_ops_flags = u64::from(
            IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_RDMA_WRITE
                | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                | IBV_QP_EX_WITH_SEND
                | IBV_QP_EX_WITH_SEND_WITH_IMM
                | late,
        );
        // SAFETY: as the caller says; a library that does not know the operations refuses.
        unsafe {
            if (self.calls.rdma_create_qp_ex)(id, &raw mut attr) != 0 {
                return None;
            }
            let extended = extend((*id).qp);
            if extended.is_null() {
                (self.calls.rdma_destroy_qp)(id);
                return None;
            }
            Some(extended)
        }
    }
}

/// Sizes of a queue pair.
pub fn sizes(sq_size: u32, rq_size: u32) -> ibv_qp_cap {
    ibv_qp_cap { max_send_wr: sq_size, max_recv_wr: rq_size, ..ibv_qp_cap::default() }
}
