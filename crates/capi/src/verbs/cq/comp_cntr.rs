//! Completion counters (ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3),
//! ibv_query_comp_cntr_caps(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nic::{CompletionCounter, cq::counter::ops, limits};
use rdma_core_abi::verbs::{
    IBV_COMP_CNTR_TYPE_WRS, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_qp,
    ibv_qp_attach_comp_cntr_attr,
};

use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::device::context::Context;
use crate::verbs::qp::object::Qp;

/// A counter as C sees it, and the adapter's.
#[repr(C)]
struct Counter {
    c: UnsafeCell<ibv_comp_cntr>,
    nic: Arc<CompletionCounter>,
    instance: Arc<Instance>,
}

impl Counter {
    /// EINVAL for NULL.
    ///
    /// # Safety
    ///
    /// NULL, or it came from [`ibv_create_comp_cntr`] and lives.
    unsafe fn of<'a>(counter: *mut ibv_comp_cntr) -> Result<&'a Self, Errno> {
        // SAFETY: the C part is the first field.
        unsafe { counter.cast::<Self>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }
}

/// The next counter's handle.
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);

/// ibv_query_comp_cntr_caps(3): fills the `size` bytes that the program knows.
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a context of ours, by the man page's contract.
        unsafe { Context::usable(context)? };
        let all = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: limits::MAX_COMPLETION_COUNTERS,
            supported_qp_attach_ops: ops::ALL,
        };
        // SAFETY: the caller's structure has `size` bytes.
        unsafe {
            caps.cast::<u8>().write_bytes(0, size);
            let n = size.min(size_of::<ibv_comp_cntr_caps>());
            std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), caps.cast::<u8>(), n);
        }
        Ok(())
    })
}

/// ibv_create_comp_cntr(3): of work requests. errno: EINVAL for an unknown `comp_mask` or flags,
/// EOPNOTSUPP (ENOTSUP) for bytes, ENOMEM at the limit.
pub unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Context::usable(context)?, &*attr) };
        if attr.comp_mask != 0 || attr.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr.type_ != IBV_COMP_CNTR_TYPE_WRS {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let nic = CompletionCounter::new(&ours.nic)?;
        let c = ibv_comp_cntr { context, handle: NEXT_HANDLE.fetch_add(1, Ordering::Relaxed) };
        Ok(Box::into_raw(Box::new(Counter { c: c.into(), nic, instance: ours.instance.clone() })).cast())
    })
}

/// `ibv_destroy_comp_cntr`, ibv_create_comp_cntr(3): EBUSY while queue pairs count into it.
pub unsafe extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a counter of ours, by the man page's contract.
        let ours = unsafe { Counter::of(counter)? };
        // The queue pairs of a forked child's parent stay.
        if ours.instance.is_ours() && ours.nic.is_attached() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `ibv_create_comp_cntr`, and no thread uses it.
        drop(unsafe { Box::from_raw(counter.cast::<Counter>()) });
        Ok(())
    })
}

/// Does something with one of a counter's numbers.
///
/// # Safety
///
/// As for [`Counter::of`].
unsafe fn with(
    counter: *mut ibv_comp_cntr,
    number: fn(&CompletionCounter) -> &AtomicU64,
    f: impl FnOnce(&AtomicU64),
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: as the caller says.
        f(number(&unsafe { Counter::of(counter)? }.nic));
        Ok(())
    })
}

macro_rules! calls {
    ($($number:ident: $set:ident $inc:ident $read:ident;)*) => { $(
        #[doc = concat!("`", stringify!($set), "`, ibv_create_comp_cntr(3). EINVAL for NULL.")]
        pub unsafe extern "C" fn $set(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
            // SAFETY: the man page's contract.
            unsafe { with(counter, |c| &c.$number, |n| n.store(value, Ordering::Release)) }
        }

        #[doc = concat!("`", stringify!($inc), "`, ibv_create_comp_cntr(3). EINVAL for NULL.")]
        pub unsafe extern "C" fn $inc(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
            // SAFETY: the man page's contract.
            unsafe { with(counter, |c| &c.$number, |n| _ = n.fetch_add(amount, Ordering::AcqRel)) }
        }

        #[doc = concat!("`", stringify!($read), "`, ibv_create_comp_cntr(3). EINVAL for NULL.")]
        pub unsafe extern "C" fn $read(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
            if value.is_null() {
                return ffi_guard::or_errno(|| Err(Errno(libc::EINVAL)));
            }
            // SAFETY: the man page's contract.
            unsafe { with(counter, |c| &c.$number, |n| *value = n.load(Ordering::Acquire)) }
        }
    )* };
}

calls! {
    done: ibv_set_comp_cntr ibv_inc_comp_cntr ibv_read_comp_cntr;
    failed: ibv_set_err_comp_cntr ibv_inc_err_comp_cntr ibv_read_err_comp_cntr;
}

/// ibv_qp_attach_comp_cntr(3): EINVAL for an unknown `comp_mask`, no operations, another device's
/// counter or a state beyond INIT; EOPNOTSUPP (ENOTSUP) for operations of peers; EBUSY where one is
/// counted already.
pub unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: objects of ours and the caller's structure, by the man page's contract.
        let (ours, of, attr) = unsafe { (Qp::of(qp), Counter::of(counter)?, &*attr) };
        ours.instance.check()?;
        if attr.comp_mask != 0 || !of.nic.is_of(&ours.nic.pd().device) {
            return Err(Errno(libc::EINVAL));
        }
        Ok(ours.nic.count_into(&of.nic, attr.op_mask)?)
    })
}
