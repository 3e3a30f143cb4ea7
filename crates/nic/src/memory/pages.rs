//! The pages under a region.

use crate::errno::Errno;
use crate::error::Error;

/// Brings the pages in and finds out whether they may be read, or written.
pub(super) fn populate(addr: u64, len: u64, write: bool) -> Result<(), Error> {
    if len == 0 {
        return Ok(());
    }
    let page = 4096;
    let start = addr & !(page - 1);
    let Some(bytes) = (addr + len - start).checked_next_multiple_of(page) else { return Err(Error::Fault) };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: this advice changes no content; a range that is not mapped is an error, not a fault.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes as usize, advice) } == 0 {
        return Ok(());
    }
    match Errno::last() {
        Errno::ENOMEM | Errno::EFAULT => Err(Error::Fault),
        // Wrong rights, or a kernel (before 5.14) that does not know the advice.
        Errno::EINVAL if advice_is_known() => Err(Error::Fault),
        _ => Ok(()),
    }
}

/// Whether the kernel knows MADV_POPULATE_WRITE: asked of a page of our own.
pub(super) fn advice_is_known() -> bool {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Box::new(Page([0; 4096]));
    let at = page.0.as_mut_ptr().cast();
    // SAFETY: a whole page of our own.
    unsafe { libc::madvise(at, 4096, libc::MADV_POPULATE_WRITE) == 0 }
}
