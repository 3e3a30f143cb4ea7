//! What the identifiers of a device share: its context, a protection domain and an XRC domain.

use std::collections::BTreeMap;
use std::sync::Arc;

use locks::{Mutex, Rank};
use rdma_core_abi::verbs::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr,
};

use crate::checked;
use crate::ffi_guard::Errno;
use crate::verbs::device::context::Context;
use crate::verbs::device::{list, open};
use crate::verbs::memory::pd;
use crate::verbs::xrcd;
use sys::per_process::PerProcess;

/// A device's context, opened once a process and shared by all identifiers, as librdmacm does, and
/// once more when a device that was removed is back; its default protection domain and XRC domain
/// likewise.
struct Opened {
    context: usize,
    pd: Option<usize>,
    xrcd: Option<usize>,
}

static OPENED: PerProcess<Mutex<BTreeMap<usize, Opened>>> =
    PerProcess::new(|| Mutex::new(Rank::OpenedDevices, BTreeMap::new()));

/// The shared context of a device.
pub(crate) fn context_of(nic: &Arc<nic::Device>) -> Result<*mut ibv_context, Errno> {
    let key = Arc::as_ptr(nic) as usize;
    let mut opened = OPENED.get().lock();
    if let Some(o) = opened.get(&key) {
        let context = std::ptr::with_exposed_provenance_mut(o.context);
        // SAFETY: opened here, and never closed: identifiers of a device that was removed have it.
        let is_current = unsafe { !Context::of(context).is_removed() };
        if is_current || !nic.is_there() {
            return Ok(context);
        }
    }
    for d in list::all()? {
        // SAFETY: a device of our list.
        if Arc::ptr_eq(&unsafe { list::Device::of(d) }.nic, nic) {
            let context = open::open(d)?;
            opened.insert(key, Opened { context: context.expose_provenance(), pd: None, xrcd: None });
            return Ok(context);
        }
    }
    Err(Errno(libc::ENODEV))
}

/// The default protection domain of a device.
pub(crate) fn default_pd(nic: &Arc<nic::Device>) -> Result<*mut ibv_pd, Errno> {
    let context = context_of(nic)?;
    let mut opened = OPENED.get().lock();
    let entry = opened.get_mut(&(Arc::as_ptr(nic) as usize)).ok_or(Errno(libc::ENODEV))?;
    if let Some(pd) = entry.pd {
        return Ok(std::ptr::with_exposed_provenance_mut(pd));
    }
    // SAFETY: a context just opened, or kept since.
    let pd = unsafe { pd::ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(Errno::last());
    }
    checked::objects::domain_gone(pd);
    entry.pd = Some(pd.expose_provenance());
    Ok(pd)
}

/// The default XRC domain of a device.
pub(crate) fn default_xrcd(nic: &Arc<nic::Device>) -> Result<*mut ibv_xrcd, Errno> {
    let context = context_of(nic)?;
    let mut opened = OPENED.get().lock();
    let entry = opened.get_mut(&(Arc::as_ptr(nic) as usize)).ok_or(Errno(libc::ENODEV))?;
    if let Some(xrcd) = entry.xrcd {
        return Ok(std::ptr::with_exposed_provenance_mut(xrcd));
    }
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: a context just opened, or kept since.
    let xrcd = unsafe { xrcd::open_xrcd(context, &raw mut attr) };
    if xrcd.is_null() {
        return Err(Errno::last());
    }
    checked::objects::domain_gone(xrcd);
    entry.xrcd = Some(xrcd.expose_provenance());
    Ok(xrcd)
}
