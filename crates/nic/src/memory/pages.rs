//! Pages of the program's memory: brought in when it is registered, or for on-demand paging when it is used.

use crate::Error;

const PAGE: u64 = 4096;

/// Brings the pages in and finds out whether they may be read, or written.
pub(super) fn populate(addr: u64, len: u64, write: bool) -> Result<(), Error> {
    if len == 0 {
        return Ok(());
    }
    let start = addr & !(PAGE - 1);
    let bytes = (addr + len - start).next_multiple_of(PAGE) as usize;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: this advice changes no content; a range that is not mapped is an error, not a fault.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOMEM | libc::EFAULT) => Err(Error::Fault),
        // Wrong rights, or a kernel (before 5.14) that does not know the advice.
        Some(libc::EINVAL) if can_populate() => Err(Error::Fault),
        _ => Ok(()),
    }
}

/// Whether the kernel knows MADV_POPULATE_WRITE: asked of a page of our own. Without it nobody can tell what is
/// mapped, and there is no on-demand paging.
pub fn can_populate() -> bool {
    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    #[repr(align(4096))]
    struct Page([u8; PAGE as usize]);
    *KNOWN.get_or_init(|| {
        let mut page = Box::new(Page([0; PAGE as usize]));
        let at = page.0.as_mut_ptr().cast();
        // SAFETY: a whole page of our own.
        unsafe { libc::madvise(at, PAGE as usize, libc::MADV_POPULATE_WRITE) == 0 }
    })
}
