//! The pages under a region.

use std::ops::Range;

use crate::errno::Errno;
use crate::error::Error;

/// Bytes of a large page, as processors of 64 bits have it.
pub(super) const LARGE: u64 = 2 << 20;

/// Brings the pages of a new region in as [`populate`] does; what is not there yet as large ones
/// where it fills such, if `large` says so. A copy between two processes looks each page up, which
/// takes two thirds of its time where they are small. Where large pages are not to be had (no
/// memory, a file system without) all is as it would be without the wish. What is there in small
/// pages is moved later ([`super::large`]).
pub(super) fn bring_in(addr: u64, len: u64, write: bool, large: bool) -> Result<(), Error> {
    if let Some(Range { start, end }) = inside(addr, len).filter(|_| large && !cfg!(miri)) {
        // SAFETY: this advice changes no content and no rights; a range that is not mapped is an
        // error, not a fault.
        _ = unsafe { libc::madvise(start as *mut libc::c_void, (end - start) as usize, libc::MADV_HUGEPAGE) };
    }
    populate(addr, len, write)
}

/// The large pages that a range fills.
pub(super) fn inside(addr: u64, len: u64) -> Option<Range<u64>> {
    let (first, end) = (addr.checked_next_multiple_of(LARGE)?, addr.checked_add(len)? / LARGE * LARGE);
    (first < end).then_some(first..end)
}

#[cfg(test)]
thread_local! {
    /// Pages that this thread has asked to be moved. What is in large pages does not tell: the
    /// kernel may move some by itself.
    pub(super) static MOVED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Moves what lies in small pages to a large one, which begins at an address. The bytes stay what
/// they are.
pub(super) fn collapse(at: u64) -> Result<(), Errno> {
    #[cfg(test)]
    MOVED.with(|moved| moved.set(moved.get() + 1));
    // SAFETY: this advice changes no content and no rights; a range that is not mapped is an error,
    // not a fault.
    let code = unsafe { libc::madvise(at as *mut libc::c_void, LARGE as usize, libc::MADV_COLLAPSE) };
    if code == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Brings the pages in and finds out whether they may be read, or written.
pub(super) fn populate(addr: u64, len: u64, write: bool) -> Result<(), Error> {
    // Miri has no pages: it finds out by itself what may be read and written.
    if len == 0 || cfg!(miri) {
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
