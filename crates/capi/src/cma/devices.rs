//! The devices that identifiers use, with their default domains (rdma_get_devices(3)).

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use abi::cma::rdma_cm_id;
use abi::verbs::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr,
};

use crate::cma::cm_id::CmId;
use crate::ffi_guard::{self, Errno};
use crate::instance;
use crate::per_process::PerProcess;
use crate::verbs::{context, device, memory, xrc};

/// A device's context, opened once a process and shared by all identifiers, as librdmacm does; its default protection
/// domain and XRC domain likewise.
struct Opened {
    context: usize,
    pd: Option<usize>,
    xrcd: Option<usize>,
}

static OPENED: PerProcess<Mutex<BTreeMap<usize, Opened>>> = PerProcess::new();

/// The shared context of a device.
pub(crate) fn context_of(nic: &Arc<nic::Device>) -> Result<*mut ibv_context, Errno> {
    let key = Arc::as_ptr(nic) as usize;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(o) = opened.get(&key) {
        return Ok(std::ptr::with_exposed_provenance_mut(o.context));
    }
    for d in device::all()? {
        // SAFETY: a device of our list.
        if Arc::ptr_eq(&unsafe { device::Device::of(d) }.nic, nic) {
            let context = context::open(d)?;
            opened.insert(key, Opened { context: context.expose_provenance(), pd: None, xrcd: None });
            return Ok(context);
        }
    }
    Err(Errno(libc::ENODEV))
}

/// The default protection domain of a device.
pub(crate) fn default_pd(nic: &Arc<nic::Device>) -> Result<*mut ibv_pd, Errno> {
    let context = context_of(nic)?;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    let entry = opened.get_mut(&(Arc::as_ptr(nic) as usize)).ok_or(Errno(libc::ENODEV))?;
    if let Some(pd) = entry.pd {
        return Ok(std::ptr::with_exposed_provenance_mut(pd));
    }
    // SAFETY: a context just opened, or kept since.
    let pd = unsafe { memory::ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(Errno::last());
    }
    entry.pd = Some(pd.expose_provenance());
    Ok(pd)
}

/// The default XRC domain of an identifier's device; ENODEV without a device.
pub(crate) fn default_xrcd(id: *mut rdma_cm_id) -> Result<*mut ibv_xrcd, Errno> {
    let device = CmId::checked(id)?.node.lock().device.clone().ok_or(Errno(libc::ENODEV))?;
    let context = context_of(&device)?;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    let entry = opened.get_mut(&(Arc::as_ptr(&device) as usize)).ok_or(Errno(libc::ENODEV))?;
    if let Some(xrcd) = entry.xrcd {
        return Ok(std::ptr::with_exposed_provenance_mut(xrcd));
    }
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: a context just opened, or kept since.
    let xrcd = unsafe { xrc::open_xrcd(context, &raw mut attr) };
    if xrcd.is_null() {
        return Err(Errno::last());
    }
    entry.xrcd = Some(xrcd.expose_provenance());
    Ok(xrcd)
}

/// The domain for an object of an identifier: the one given, else the identifier's, else its device's default. EINVAL for an
/// identifier without a device and for another device's domain.
///
/// # Safety
///
/// An identifier of ours, and a domain of ours or NULL.
pub(crate) unsafe fn domain(id: *mut rdma_cm_id, given: *mut ibv_pd) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let ours = CmId::checked(id)?;
        ours.refresh();
        let device = ours.node.lock().device.clone().ok_or(Errno(libc::EINVAL))?;
        let pd = match () {
            () if !given.is_null() => given,
            () if !(*id).pd.is_null() => (*id).pd,
            () => default_pd(&device)?,
        };
        if (*pd).context == (*id).verbs { Ok(pd) } else { Err(Errno(libc::EINVAL)) }
    }
}

/// `rdma_get_devices`: the shared contexts, NULL-terminated; to be freed by [`rdma_free_devices`].
pub unsafe extern "C" fn rdma_get_devices(num: *mut c_int) -> *mut *mut ibv_context {
    ffi_guard::or_null(|| {
        let devices = instance::get()?.node().devices();
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

/// `rdma_free_devices`: the contexts stay open.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: from `rdma_get_devices`, or NULL.
    unsafe { libc::free(list.cast()) }
}
