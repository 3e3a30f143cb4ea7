//! Copies where the program has replaced the handler.

use transport::op::Fault;

/// A copy that the kernel does and checks.
pub(super) fn crawl(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let local = libc::iovec { iov_base: to.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    // SAFETY: the kernel checks both ranges; our own is good.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if copied == len as isize { Ok(()) } else { Err(Fault::Unmapped) }
}

/// Whether the eight bytes may be read and written now.
pub(super) fn probe(at: *mut u64) -> Result<(), Fault> {
    let page = at.map_addr(|a| a & !4095);
    // SAFETY: the advice changes no content; a range that is not mapped for writing is an error,
    // not a fault.
    let code = unsafe { libc::madvise(page.cast(), 4096, libc::MADV_POPULATE_WRITE) };
    if code == 0 || !crate::memory::pages::advice_is_known() { Ok(()) } else { Err(Fault::Unmapped) }
}
