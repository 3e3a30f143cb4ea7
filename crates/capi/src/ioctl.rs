//! `ioctl` as programs call it: memory that a program has watched by userfaultfd(2) comes late or
//! never, and a peer that copies to or from there by itself would wait. So regions there are taken
//! back from peers before the kernel is told (`linux::LinuxEnv::watched`). The shared object stands
//! in front of the C library where a program is linked with it; all other requests go straight
//! through.

use std::ffi::{c_int, c_ulong, c_void};

use linux::process;

/// `_IOWR(UFFDIO, _UFFDIO_REGISTER, struct uffdio_register)` of linux/userfaultfd.h.
const UFFDIO_REGISTER: u32 = 3 << 30 | (4 * 8) << 16 | 0xaa << 8;

/// ioctl(2). The C library's has an ellipsis in place of the last argument, which is passed in the
/// same way.
///
/// # Safety
///
/// What the request needs.
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: as the caller says. The result of this call fits.
    let call = || unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int };
    // The kernel takes 32 bits.
    if request as u32 != UFFDIO_REGISTER || argument.is_null() {
        return call();
    }
    let Some(instance) = process::try_get().filter(|instance| instance.is_ours()) else { return call() };
    // SAFETY: as the caller says: the structure begins with the address and the length.
    let [start, len] = unsafe { argument.cast::<[u64; 2]>().read_unaligned() };
    let range = start..start.saturating_add(len);
    instance.node().devices().iter().for_each(|device| device.will_be_late(&range));
    instance.host.env().watched(range, call)
}
