//! Objects shared between contexts (ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3),
//! ibv_import_dm(3)). A device is found by what its context's `cmd_fd` is (`command_fd`), an object
//! by its handle (`handles`).

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rdma_core_abi::verbs::{ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::device::list::{self, Device};
use crate::verbs::device::{command_fd, open};
use crate::verbs::memory::pd::{self, Pd};
use crate::verbs::memory::{dm, handles, mr};

/// ibv_import_device(3): a context of its own, which takes the descriptor over. errno: EBADF for a
/// descriptor that is no context's `cmd_fd`, ENODEV where the device is gone; and those of
/// `ibv_open_device`. Unlike rdma-core: `cmd_fd` is no file of /dev/infiniband, and objects are
/// shared within one process only.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    ffi_guard::or_null(|| {
        let name = command_fd::name_behind(cmd_fd).ok_or(Errno(libc::EBADF))?;
        // SAFETY: a device of our list.
        let named = |d: &*mut _| unsafe { Device::of(*d) }.nic.config.name == name;
        let found = list::all()?.into_iter().find(named).ok_or(Errno(libc::ENODEV))?;
        let context = open::open(found)?;
        // SAFETY: the caller gives it away.
        let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        // SAFETY: a context just made, that no other thread knows.
        unsafe {
            (*context).cmd_fd = fd.as_raw_fd();
            *Context::of(context).command.lock() = fd;
        }
        Ok(context)
    })
}

/// ibv_import_pd(3): the same domain for another context of the device. errno: ENOENT for a handle
/// that is none of this process. Unlike rdma-core: only handles of this process name anything.
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let ours = unsafe { Context::usable(context)? };
        let nic = handles::recall_domain(&ours.nic, handle)?;
        // SAFETY: as above.
        Ok(unsafe { Pd::make(context, nic, None) })
    })
}

/// `ibv_unimport_pd`, ibv_import_pd(3): the domain itself stays. Where objects made through it
/// still stand, so does what they point to.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    ffi_guard::nothing(|| {
        // SAFETY: an imported domain, by the man page's contract.
        _ = unsafe { pd::ibv_dealloc_pd(pd) };
    });
}

/// ibv_import_mr(3): the same region for another context; `addr` is NULL. errno: ENOENT for a
/// handle that is no region of the domain. Unlike rdma-core: only handles of this process name
/// anything.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    ffi_guard::or_null(|| {
        // SAFETY: a domain of ours, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        let (nic, len) = ours.nic.region(handle).ok_or(Errno(libc::ENOENT))?;
        let length = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: as above.
        Ok(unsafe { mr::make_imported(pd, nic, length) })
    })
}

/// `ibv_unimport_mr`, ibv_import_mr(3): the region itself stays.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: an imported region, by the man page's contract.
    ffi_guard::nothing(|| drop(unsafe { mr::forget(mr) }));
}

/// ibv_import_dm(3): the same memory for another context. errno: ENOENT for a handle that is none
/// of this process. Unlike rdma-core: only handles of this process name anything.
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let ours = unsafe { Context::usable(context)? };
        let nic = handles::recall_dm(&ours.nic, handle)?;
        // SAFETY: as above.
        Ok(unsafe { dm::make(context, nic, handle) })
    })
}

/// `ibv_unimport_dm`, ibv_import_dm(3): the memory itself stays while its maker or a region has it.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: imported memory, by the man page's contract.
    ffi_guard::nothing(|| unsafe { dm::forget(dm) });
}
