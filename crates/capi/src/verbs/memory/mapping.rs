//! Shared memory mapped into the process for a memory region: what lies under `ibv_reg_dmabuf_mr`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::ffi_guard::Errno;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Shared memory mapped for one region; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on; with the address of the first. EINVAL beyond the
    /// end, EBADF, EACCES and EPERM as of mmap(2), EOPNOTSUPP for what cannot be mapped.
    pub(crate) fn of(fd: c_int, offset: u64, len: usize, writable: bool) -> Result<(Self, u64), Errno> {
        // SAFETY: moves the end mark of nothing: dma-bufs and memory files tell their size so, and
        // the place is put back.
        let size = unsafe {
            let at = libc::lseek(fd, 0, libc::SEEK_CUR);
            let size = libc::lseek(fd, 0, libc::SEEK_END);
            libc::lseek(fd, at.max(0), libc::SEEK_SET);
            size
        };
        let size = u64::try_from(size).map_err(|_| match Errno::last() {
            Errno(libc::EBADF) => Errno(libc::EBADF),
            _ => Errno(libc::EOPNOTSUPP),
        })?;
        let end = offset.checked_add(len as u64).ok_or(Errno(libc::EINVAL))?;
        if len == 0 || end > size {
            return Err(Errno(libc::EINVAL));
        }
        let inside = (offset % PAGE) as usize;
        let from = i64::try_from(offset - offset % PAGE).map_err(|_| Errno(libc::EINVAL))?;
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let len = len + inside;
        // SAFETY: a new mapping, wherever there is room.
        let start =
            unsafe { libc::mmap(null_mut(), len, prot, libc::MAP_SHARED | libc::MAP_POPULATE, fd, from) };
        if start == libc::MAP_FAILED {
            return Err(match Errno::last() {
                Errno(libc::ENODEV) => Errno(libc::EOPNOTSUPP),
                other => other,
            });
        }
        Ok((Self { start, len }, start.expose_provenance() as u64 + inside as u64))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, and no region names it any more.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
