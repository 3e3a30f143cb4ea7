//! Objects shared between contexts (ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3)).
//!
//! `cmd_fd` of a context is a file in memory that holds the device's name: whoever is given a duplicate can open the
//! device by it. Handles are good in the process that has the objects: there is no kernel between processes that
//! would hold them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use abi::verbs::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use nic::memory::dm::DeviceMemory;

use crate::ffi_guard::{self, Errno};
use crate::per_process::PerProcess;
use crate::verbs::context::{self, Context};
use crate::verbs::device::{self, Device};
use crate::verbs::dm;
use crate::verbs::memory::{self, Pd};

/// Where a command descriptor leads.
const LINK: &str = "/memfd:verbena-device (deleted)";
/// Longest name of a device.
const NAME: usize = 64;

/// A command descriptor for a device.
pub(crate) fn command_fd(device: &nic::Device) -> Result<OwnedFd, Errno> {
    // SAFETY: a string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"verbena-device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(device.config.name.as_bytes())?;
    Ok(file.into())
}

/// The name of the device behind a command descriptor; `None` for any other descriptor.
fn name_behind(fd: c_int) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    if link.as_os_str() != LINK {
        return None;
    }
    // SAFETY: open, as its link was just read; it is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut name = [0; NAME];
    let len = file.read_at(&mut name, 0).ok()?;
    String::from_utf8(name[..len].to_vec()).ok()
}

/// `ibv_import_device`: a context of its own, which takes the descriptor over. errno: EBADF for a descriptor that is
/// no context's `cmd_fd`, ENODEV where the device is gone; and those of `ibv_open_device`.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    ffi_guard::or_null(|| {
        let name = name_behind(cmd_fd).ok_or(Errno(libc::EBADF))?;
        // SAFETY: a device of our list.
        let named = |d: &*mut _| unsafe { Device::of(*d) }.nic.config.name == name;
        let found = device::all()?.into_iter().find(named).ok_or(Errno(libc::ENODEV))?;
        let context = context::open(found)?;
        // SAFETY: the caller gives it away.
        let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        // SAFETY: a context just made, that nobody else knows.
        unsafe {
            (*context).cmd_fd = fd.as_raw_fd();
            *Context::of(context).command.lock().unwrap_or_else(PoisonError::into_inner) = fd;
        }
        Ok(context)
    })
}

/// What handles name: device and number.
type Known<T> = PerProcess<Mutex<BTreeMap<(usize, u32), Weak<T>>>>;

static DOMAINS: Known<nic::Pd> = PerProcess::new();
static DEVICE_MEMORY: Known<DeviceMemory> = PerProcess::new();

fn remember<T: Send + Sync>(known: &Known<T>, device: &Arc<nic::Adapter>, handle: u32, object: &Arc<T>) {
    let mut known = known.get().lock().unwrap_or_else(PoisonError::into_inner);
    // What is gone is swept out each time the number has doubled: a step for each object made, not one for each known.
    if known.len().is_power_of_two() {
        known.retain(|_, object| object.strong_count() > 0);
    }
    known.insert((Arc::as_ptr(device) as usize, handle), Arc::downgrade(object));
}

fn recall<T: Send + Sync>(
    known: &Known<T>,
    device: &Arc<nic::Adapter>,
    handle: u32,
) -> Result<Arc<T>, Errno> {
    let known = known.get().lock().unwrap_or_else(PoisonError::into_inner);
    known.get(&(Arc::as_ptr(device) as usize, handle)).and_then(Weak::upgrade).ok_or(Errno(libc::ENOENT))
}

/// A domain can be imported from now on; its handle.
pub(crate) fn remember_domain(pd: &Arc<nic::Pd>) -> u32 {
    remember(&DOMAINS, &pd.device, pd.number(), pd);
    pd.number()
}

/// Device memory can be imported from now on, by `handle`.
pub(crate) fn remember_dm(device: &Arc<nic::Adapter>, handle: u32, dm: &Arc<DeviceMemory>) {
    remember(&DEVICE_MEMORY, device, handle, dm);
}

/// `ibv_import_pd`: the same domain for another context of the device. errno: ENOENT for a handle that is none of
/// this process.
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let ours = unsafe { Context::usable(context)? };
        let nic = recall(&DOMAINS, &ours.nic, handle)?;
        // SAFETY: as above.
        Ok(unsafe { Pd::make(context, nic, None) })
    })
}

/// `ibv_unimport_pd`: the domain itself stays. Where objects made through it still stand, so does what they point to.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    ffi_guard::nothing(|| {
        // SAFETY: an imported domain, by the man page's contract.
        _ = unsafe { memory::ibv_dealloc_pd(pd) };
    });
}

/// `ibv_import_mr`: the same region for another context; `addr` is NULL. errno: ENOENT for a handle that is no region
/// of the domain.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    ffi_guard::or_null(|| {
        // SAFETY: a domain of ours, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        let (nic, len) = ours.nic.region(handle).ok_or(Errno(libc::ENOENT))?;
        let length = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: as above.
        Ok(unsafe { memory::make_imported(pd, nic, length) })
    })
}

/// `ibv_unimport_mr`: the region itself stays.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: an imported region, by the man page's contract.
    ffi_guard::nothing(|| drop(unsafe { memory::forget(mr) }));
}

/// `ibv_import_dm`: the same memory for another context. errno: ENOENT for a handle that is none of this process.
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let ours = unsafe { Context::usable(context)? };
        let nic = recall(&DEVICE_MEMORY, &ours.nic, handle)?;
        // SAFETY: as above.
        Ok(unsafe { dm::make(context, nic, handle) })
    })
}

/// `ibv_unimport_dm`: the memory itself stays while its maker or a region has it.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: imported memory, by the man page's contract.
    ffi_guard::nothing(|| unsafe { dm::forget(dm) });
}
