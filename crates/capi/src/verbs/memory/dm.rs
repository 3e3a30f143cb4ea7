//! Device memory (ibv_alloc_dm(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nic::memory::dm::DeviceMemory;
use rdma_core_abi::verbs::{
    IBV_ACCESS_ZERO_BASED, IBV_DM_MASK_HANDLE, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd,
};

use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::memory::{handles, mr};

/// Device memory as C sees it, and the adapter's.
#[repr(C)]
struct Dm {
    c: UnsafeCell<ibv_dm>,
    nic: Arc<DeviceMemory>,
    _context: Arc<Context>,
}

impl Dm {
    /// # Safety
    ///
    /// `dm` came from [`make`] and lives.
    unsafe fn of<'a>(dm: *mut ibv_dm) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*dm.cast::<Self>() }
    }
}

/// The next buffer's handle.
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);

/// ibv_alloc_dm(3). errno: EINVAL for an unknown `comp_mask`, no bytes, or an alignment beyond a
/// page; ENOMEM where the device has not so much left.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Context::of(context), &*attr) };
        // A forked child may have memory of a device that it cannot use otherwise: no socket and no
        // thread is behind it.
        if ours.instance.is_ours() {
            ours.instance.check()?;
        }
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let nic = DeviceMemory::alloc(&ours.nic, attr.length as u64, attr.log_align_req)?;
        let handle = NEXT_HANDLE.fetch_add(1, Ordering::Relaxed);
        handles::remember_dm(&ours.nic, handle, &nic);
        // SAFETY: as above.
        Ok(unsafe { make(context, nic, handle) })
    })
}

/// Device memory for a context.
///
/// # Safety
///
/// A context of ours that is not closed.
pub(crate) unsafe fn make(context: *mut ibv_context, nic: Arc<DeviceMemory>, handle: u32) -> *mut ibv_dm {
    let c = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle,
    };
    // SAFETY: as the caller says.
    let _context = unsafe { Context::share(context) };
    Box::into_raw(Box::new(Dm { c: c.into(), nic, _context })).cast()
}

/// Takes away what [`make`] made.
///
/// # Safety
///
/// No thread uses it any more.
pub(crate) unsafe fn forget(dm: *mut ibv_dm) {
    // SAFETY: made by `Box::into_raw` in `make`.
    drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
}

/// `ibv_free_dm`, ibv_alloc_dm(3): EBUSY while regions lie on it.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: device memory of ours, by the man page's contract.
        if unsafe { Dm::of(dm) }.nic.is_used() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: no thread uses it any more, by the man page's contract.
        unsafe { forget(dm) };
        Ok(())
    })
}

/// `ibv_memcpy_to_dm`, ibv_alloc_dm(3): EINVAL for bytes beyond the end, or an offset or a length
/// that is no multiple of 4.
unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: device memory of ours, and `length` bytes of the caller's, by the man page's
    // contract.
    ffi_guard::or_errno(|| unsafe { Ok(Dm::of(dm).nic.copy_in(offset, from.cast(), length as u64)?) })
}

/// `ibv_memcpy_from_dm`, ibv_alloc_dm(3): as [`memcpy_to_dm`].
unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: as in `memcpy_to_dm`.
    ffi_guard::or_errno(|| unsafe { Ok(Dm::of(dm).nic.copy_out(offset, to.cast(), length as u64)?) })
}

/// `ibv_reg_dm_mr`, ibv_alloc_dm(3): named by offsets from the region's first byte. errno: EINVAL
/// without `IBV_ACCESS_ZERO_BASED`, for other illegal flags, bytes beyond the end or another
/// device's memory.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    ffi_guard::or_null(|| {
        // SAFETY: objects of ours, by the man page's contract.
        let (context, dm) = unsafe { (Context::usable((*pd).context)?, Dm::of(dm)) };
        if access & IBV_ACCESS_ZERO_BASED == 0 || !dm.nic.is_of(&context.nic) {
            return Err(Errno(libc::EINVAL));
        }
        let (on, at) = dm.nic.region(offset, length as u64)?;
        mr::register_on(pd, at, length, access, on)
    })
}
