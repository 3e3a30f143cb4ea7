//! Copies to and from memory that may not be mapped: regions registered for on-demand paging. The system copies, brings
//! pages in, and tells of what is not there instead of ending the process.

use std::ffi::c_void;

use transport::op::Fault;

use super::populate;
use crate::Error;

/// Copies out of memory of this process; `Unmapped` where some of it is not there.
pub(super) fn copy_out(real: u64, dst: &mut [u8]) -> Result<(), Fault> {
    let ours = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let theirs = libc::iovec { iov_base: real as *mut c_void, iov_len: dst.len() };
    // SAFETY: `ours` describes a buffer of our own; an address that is not mapped is an error, not a fault.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
    settled(n, real, dst.len(), false, || {
        // SAFETY: as in the mapped case: the range was found readable just now; the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(real as *const u8, dst.as_mut_ptr(), dst.len()) }
    })
}

/// Copies into memory of this process; `Unmapped` where some of it is not there or may not be written.
pub(super) fn copy_in(real: u64, src: &[u8]) -> Result<(), Fault> {
    let ours = libc::iovec { iov_base: src.as_ptr().cast_mut().cast(), iov_len: src.len() };
    let theirs = libc::iovec { iov_base: real as *mut c_void, iov_len: src.len() };
    // SAFETY: `ours` is only read; an address that is not mapped or may not be written is an error, not a fault.
    let n = unsafe { libc::process_vm_writev(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0) };
    settled(n, real, src.len(), true, || {
        // SAFETY: as in the mapped case: the range was found writable just now; the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), real as *mut u8, src.len()) }
    })
}

/// Whether eight bytes may be changed now; brings their page in.
pub(super) fn writable(real: u64) -> Result<(), Fault> {
    populate(real, 8, true).map_err(|_| Fault::Unmapped)
}

/// What the system's answer means. Where it may not copy for us (a sandbox), the pages are brought in and `copy` runs.
fn settled(n: isize, real: u64, len: usize, write: bool, copy: impl FnOnce()) -> Result<(), Fault> {
    if n == len as isize {
        return Ok(());
    }
    let forbidden = n < 0
        && matches!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES)
        );
    if !forbidden {
        return Err(Fault::Unmapped);
    }
    populate(real, len as u64, write).map_err(|_: Error| Fault::Unmapped)?;
    copy();
    Ok(())
}
