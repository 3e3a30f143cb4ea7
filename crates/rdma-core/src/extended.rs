//! What came to libibverbs later, where the library and the device have it: the second table of a
//! context's functions (`struct verbs_context`, which verbs.h's inline functions call), extended
//! queue pairs, and with them FLUSH and ATOMIC WRITE (IBA annex A19), which ibv_post_send(3) has no
//! opcodes for.

use std::mem::{MaybeUninit, offset_of};
use std::ptr::{NonNull, null};

use rdma_core_abi::verbs::{
    IBV_FLUSH_GLOBAL, IBV_FLUSH_MR, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, IBV_QP_EX_WITH_ATOMIC_WRITE,
    IBV_QP_EX_WITH_FLUSH, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_SEND_FENCE,
    IBV_SEND_SIGNALED, VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device_attr_ex, ibv_pd, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, verbs_context,
};
use transport::op::{AtomicOp, SendOp, SendWr};

use crate::libraries::Calls;
use crate::number;
use crate::posting::{Refusal, refused};

/// A function of the second table; `None` where the library's table does not reach so far, or it is
/// not there.
///
/// # Safety
///
/// The context lives, and the type is that of the member at this offset.
pub(crate) unsafe fn member<F>(context: *mut ibv_context, offset: usize) -> Option<F> {
    // SAFETY: the context lives.
    if unsafe { (*context).abi_compat } != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    // The table grows at its front, where an older library's begins later.
    let at = |offset: usize| {
        context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).wrapping_add(offset)
    };
    // SAFETY: an extended context has its size just before it.
    let size = unsafe { at(offset_of!(verbs_context, sz)).cast::<usize>().read() };
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the size says that the member is there; the caller, that an `Option<F>` is.
    unsafe { at(offset).cast::<Option<F>>().read() }
}

/// `device_cap_flags_ex`: what the device can beyond the first 32 bits; 0 where it is not known.
///
/// # Safety
///
/// The context lives.
pub(crate) unsafe fn capabilities(context: *mut ibv_context) -> u64 {
    type Query = unsafe extern "C" fn(
        *mut ibv_context,
        *const rdma_core_abi::verbs::ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
        usize,
    ) -> i32;
    // SAFETY: the context lives; verbs.h has this type.
    let query: Option<Query> = unsafe { member(context, offset_of!(verbs_context, query_device_ex)) };
    let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
    let asked = query.map(|query| {
        // SAFETY: there is room for so many bytes.
        number(unsafe { query(context, null(), attr.as_mut_ptr(), size_of::<ibv_device_attr_ex>()) })
    });
    match asked {
        // SAFETY: numbers, written or zero.
        Some(Ok(())) => unsafe { attr.assume_init() }.device_cap_flags_ex,
        _ => 0,
    }
}

/// IB_UVERBS_DEVICE_FLUSH_GLOBAL, FLUSH_PERSISTENT, ATOMIC_WRITE (<rdma/ib_user_verbs.h>).
pub(crate) const CAN_FLUSH_GLOBAL: u64 = 1 << 38;
pub(crate) const CAN_FLUSH_PERSISTENT: u64 = 1 << 39;
pub(crate) const CAN_WRITE_ATOMICALLY: u64 = 1 << 40;

/// A queue pair that can do more than ibv_post_send(3), and what of it.
#[derive(Clone, Copy)]
pub(crate) struct Extended {
    qp: NonNull<ibv_qp_ex>,
    flush: bool,
    atomic_write: bool,
}

impl Extended {
    /// Makes one, where the device can do more and the library knows of it.
    ///
    /// # Safety
    ///
    /// Context and domain live, and what the attributes name.
    pub(crate) unsafe fn create(
        calls: &Calls,
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        init: &ibv_qp_init_attr,
        capabilities: u64,
    ) -> Option<(NonNull<ibv_qp>, Self)> {
        type Create = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
        let flush = capabilities & (CAN_FLUSH_GLOBAL | CAN_FLUSH_PERSISTENT) != 0;
        let atomic_write = capabilities & CAN_WRITE_ATOMICALLY != 0;
        if !flush && !atomic_write {
            return None;
        }
        // SAFETY: the context lives; verbs.h has this type.
        let create: Create = unsafe { member(context, offset_of!(verbs_context, create_qp_ex)) }?;
        let extend = calls.ibv_qp_to_qp_ex?;
        // SAFETY: numbers and addresses: all zeros are attributes.
        let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        (attr.send_cq, attr.recv_cq, attr.cap) = (init.send_cq, init.recv_cq, init.cap);
        (attr.qp_type, attr.sq_sig_all, attr.srq) = (init.qp_type, init.sq_sig_all, init.srq);
        (attr.comp_mask, attr.pd) = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, pd);
        let all_but_late = u64::from(IBV_QP_EX_WITH_FLUSH) - 1;
        // Without segmentation. Windows go by ibv_post_send(3).
        attr.send_ops_flags = all_but_late
            & !u64::from(rdma_core_abi::verbs::IBV_QP_EX_WITH_BIND_MW)
            & !u64::from(rdma_core_abi::verbs::IBV_QP_EX_WITH_LOCAL_INV)
            & !u64::from(rdma_core_abi::verbs::IBV_QP_EX_WITH_TSO);
        let late = |on: bool, flag: u32| if on { u64::from(flag) } else { 0 };
        attr.send_ops_flags |=
            late(flush, IBV_QP_EX_WITH_FLUSH) | late(atomic_write, IBV_QP_EX_WITH_ATOMIC_WRITE);
        // SAFETY: as the caller says; a library that does not know the operations refuses.
        let qp = NonNull::new(unsafe { create(context, &raw mut attr) })?;
        // SAFETY: just made as an extended one.
        match NonNull::new(unsafe { extend(qp.as_ptr()) }) {
            Some(extended) => Some((qp, Self { qp: extended, flush, atomic_write })),
            None => {
                // SAFETY: just made, and no other thread has it.
                unsafe { (calls.ibv_destroy_qp)(qp.as_ptr()) };
                None
            }
        }
    }

    /// Whether the device does what ibv_post_send(3) does not.
    pub(crate) fn does(&self, op: &SendOp) -> bool {
        match op {
            SendOp::Flush { .. } => self.flush,
            SendOp::Atomic { op: AtomicOp::Write(_), .. } => self.atomic_write,
            _ => false,
        }
    }

    /// Posts such a request.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it was not posted.
    ///
    /// # Safety
    ///
    /// The queue pair lives.
    pub(crate) unsafe fn post(&self, wr: &SendWr) -> Result<(), Refusal> {
        const NONE: Refusal = Refusal::Unsupported("this operation");
        let qp = self.qp.as_ptr();
        // SAFETY: it lives; its functions do not change.
        let (start, complete, flush, atomic_write) =
            unsafe { ((*qp).wr_start, (*qp).wr_complete, (*qp).wr_flush, (*qp).wr_atomic_write) };
        let (start, complete) = (start.ok_or(NONE)?, complete.ok_or(NONE)?);
        let (flush, atomic_write) =
            (flush.filter(|_| self.flush), atomic_write.filter(|_| self.atomic_write));
        if !matches!(
            (&wr.op, flush, atomic_write),
            (SendOp::Flush { .. }, Some(_), _) | (SendOp::Atomic { op: AtomicOp::Write(_), .. }, _, Some(_))
        ) {
            return Err(NONE);
        }
        // SAFETY: it lives. Between start and complete the library holds its own lock, and this
        // thread is the only one to write the fields.
        let posted = unsafe {
            start(qp);
            (*qp).wr_id = wr.wr_id;
            (*qp).wr_flags =
                if wr.fence { IBV_SEND_FENCE } else { 0 } | if wr.signaled { IBV_SEND_SIGNALED } else { 0 };
            match (&wr.op, flush, atomic_write) {
                (&SendOp::Flush { addr, rkey, length, how }, Some(flush), _) => {
                    let global = if how.global { IBV_FLUSH_GLOBAL } else { 0 };
                    let persistent = if how.persistent { IBV_FLUSH_PERSISTENT } else { 0 };
                    let level = if how.whole { IBV_FLUSH_MR } else { IBV_FLUSH_RANGE };
                    flush(qp, rkey.0, addr, length as usize, (global | persistent) as u8, level as u8);
                }
                (&SendOp::Atomic { addr, rkey, op: AtomicOp::Write(value) }, _, Some(write)) => {
                    write(qp, rkey.0, addr, (&raw const value).cast());
                }
                _ => {}
            }
            complete(qp)
        };
        refused(posted)
    }
}
