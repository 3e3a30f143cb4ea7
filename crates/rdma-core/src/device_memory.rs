//! Memory of a device (ibv_alloc_dm(3)), and what is registered without an address of the process:
//! that, and dma-bufs.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nic::Error;
use rdma_core_abi::verbs::{
    IBV_ACCESS_ZERO_BASED, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd, verbs_context,
};

use crate::device::{Device, Pd};
use crate::extended::member;
use crate::memory::Mr;
use crate::{number, object};

const NO_DM: Error = Error::Unsupported("memory of a device for programs");
const NO_DMABUF: Error = Error::Unsupported("dma-bufs, in this libibverbs");

/// Memory of a device.
pub struct DeviceMemory {
    device: Arc<Device>,
    raw: NonNull<ibv_dm>,
}

// SAFETY: device memory may be used by all threads at once; only `drop` ends it.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates so many bytes, at least one.
    ///
    /// # Errors
    ///
    /// `Unsupported` where library or device have none; errno of ibv_alloc_dm(3).
    pub fn alloc(device: &Arc<Device>, len: usize) -> Result<Arc<Self>, Error> {
        type Alloc = unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
        let context = device.context();
        // SAFETY: the context lives; verbs.h has this type.
        let alloc: Option<Alloc> = unsafe { member(context, offset_of!(verbs_context, alloc_dm)) };
        let mut attr = ibv_alloc_dm_attr { length: len, log_align_req: 0, comp_mask: 0 };
        // SAFETY: the context lives; the attributes are read.
        let raw = object(unsafe { alloc.ok_or(NO_DM)?(context, &raw mut attr) }).map_err(known)?;
        Ok(Arc::new(Self { device: device.clone(), raw }))
    }

    /// Copies in, to `at`.
    ///
    /// # Errors
    ///
    /// Errno of ibv_memcpy_to_dm.
    pub fn copy_in(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        // SAFETY: it lives, and has its functions; so many bytes are read.
        number(unsafe {
            let copy = self.raw.as_ref().memcpy_to_dm.ok_or(NO_DM)?;
            copy(self.raw.as_ptr(), at, from.as_ptr().cast(), from.len())
        })
    }

    /// Copies out, from `at` on.
    ///
    /// # Errors
    ///
    /// Errno of ibv_memcpy_from_dm.
    pub fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        // SAFETY: it lives, and has its functions; there is room for so many bytes.
        number(unsafe {
            let copy = self.raw.as_ref().memcpy_from_dm.ok_or(NO_DM)?;
            copy(to.as_mut_ptr().cast(), self.raw.as_ptr(), at, to.len())
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        type Free = unsafe extern "C" fn(*mut ibv_dm) -> c_int;
        let system = &self.device.system;
        if !system.is_ours() {
            return;
        }
        // SAFETY: the context lives; verbs.h has this type.
        let free: Option<Free> = unsafe { member(self.device.context(), offset_of!(verbs_context, free_dm)) };
        // SAFETY: what was registered on it kept it; it is not used any more.
        if free.is_none_or(|free| unsafe { free(self.raw.as_ptr()) } != 0) {
            system.leak();
        }
    }
}

impl Mr {
    /// Registers all of a device's memory: `len` bytes, which count from 0 on.
    ///
    /// # Errors
    ///
    /// `Unsupported`; errno of ibv_reg_dm_mr: EINVAL for rights that it can not have, or more bytes
    /// than there are.
    pub fn on_device(
        pd: &Arc<Pd>,
        memory: &Arc<DeviceMemory>,
        len: usize,
        access: u32,
    ) -> Result<Self, Error> {
        type Register = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr;
        // SAFETY: the context lives; verbs.h has this type.
        let register: Option<Register> =
            unsafe { member(pd.device.context(), offset_of!(verbs_context, reg_dm_mr)) };
        let (register, access) = (register.ok_or(NO_DM)?, access | IBV_ACCESS_ZERO_BASED);
        // SAFETY: domain and memory live; the registration keeps both.
        let made =
            object(unsafe { register(pd.raw(), memory.raw.as_ptr(), 0, len, access) }).map_err(known)?;
        // SAFETY: just made.
        Ok(unsafe { Self::of(pd, made, 0, Some(memory.clone())) })
    }

    /// Registers `len` bytes of a dma-buf from `offset` on, which count from `iova` on: both lie
    /// alike in their pages.
    ///
    /// # Errors
    ///
    /// `Unsupported`; errno of ibv_reg_dmabuf_mr.
    pub fn of_dmabuf(
        pd: &Arc<Pd>,
        (fd, offset): (RawFd, u64),
        len: usize,
        iova: u64,
        access: u32,
    ) -> Result<Self, Error> {
        let register = pd.system().calls.ibv_reg_dmabuf_mr.ok_or(NO_DMABUF)?;
        // SAFETY: the domain lives; the library keeps what it needs of the descriptor's file, and
        // touches no memory of the process's own.
        let made =
            object(unsafe { register(pd.raw(), offset, len, iova, fd, access as c_int) }).map_err(known)?;
        // SAFETY: just made.
        Ok(unsafe { Self::of(pd, made, iova, None) })
    }
}

/// Not each adapter does it.
fn known(error: Error) -> Error {
    match error {
        Error::System(nic::Errno::EOPNOTSUPP) => NO_DM,
        other => other,
    }
}
