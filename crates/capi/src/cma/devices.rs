//! The devices that identifiers use (rdma_get_devices(3)).

use std::ffi::c_int;

use rdma_core_abi::cma::rdma_cm_id;
use rdma_core_abi::verbs::{ibv_context, ibv_pd, ibv_xrcd};

use crate::cma::cm_id::CmId;
use crate::cma::shared::{self, context_of, default_pd};
use crate::ffi_guard::{self, Errno};
use crate::instance;

/// The default XRC domain of an identifier's device; ENODEV without a device.
pub(crate) fn default_xrcd(id: *mut rdma_cm_id) -> Result<*mut ibv_xrcd, Errno> {
    let ours = CmId::checked(id)?;
    // In a statement of its own: the identifier is not locked while the device is opened.
    let device = ours.node.lock().device.clone().ok_or(Errno(libc::ENODEV))?;
    shared::default_xrcd(&device)
}

/// The domain for an object of an identifier: the one given, else the identifier's, else its
/// device's default. EINVAL for an identifier without a device and for another device's domain.
///
/// # Safety
///
/// An identifier of ours, and a domain of ours or NULL.
pub(crate) unsafe fn domain(id: *mut rdma_cm_id, given: *mut ibv_pd) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let ours = CmId::checked(id)?;
        ours.refresh()?;
        let device = ours.node.lock().device.clone().ok_or(Errno(libc::EINVAL))?;
        let pd = match () {
            () if !given.is_null() => given,
            () if !(*id).pd.is_null() => (*id).pd,
            () => default_pd(&device)?,
        };
        if (*pd).context == (*id).verbs { Ok(pd) } else { Err(Errno(libc::EINVAL)) }
    }
}

/// rdma_get_devices(3): the shared contexts, NULL-terminated; to be freed by [`rdma_free_devices`].
pub unsafe extern "C" fn rdma_get_devices(num: *mut c_int) -> *mut *mut ibv_context {
    ffi_guard::or_null(|| {
        let mut devices = instance::get()?.node().devices();
        devices.retain(|device| device.is_there());
        let bytes = (devices.len() + 1) * size_of::<*mut ibv_context>();
        // SAFETY: plain allocation of at least one pointer.
        let list = unsafe { libc::calloc(1, bytes) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (i, d) in devices.iter().enumerate() {
            let context = context_of(d)?;
            // SAFETY: inside the array.
            unsafe { list.add(i).write(context) };
        }
        if !num.is_null() {
            // SAFETY: the caller's variable.
            unsafe { *num = devices.len() as c_int };
        }
        Ok(list)
    })
}

/// rdma_free_devices(3): the contexts stay open.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: from `rdma_get_devices`, or NULL.
    unsafe { libc::free(list.cast()) }
}
