//! Regions that are watched by userfaultfd(2): what is not there of them comes when the process
//! that watches brings it, perhaps never. A thread that touches such a page waits, and the engine
//! thread serves all queue pairs. So for a peer they are copied through /proc/self/mem: there the
//! kernel fails where others wait (EIO). The peer is told to come again (RNR NAK), as by an adapter
//! whose memory is paged on demand, and meanwhile a thread of its own touches the page.
//!
//! What the program's own requests and receives name waits as everything of the program's does that
//! touches such memory.

use std::fs::File;
use std::os::fd::AsRawFd;

use transport::op::Fault;

use super::guard;

/// Beside the access flags of a region, of which it is none.
pub(super) const LATE: u32 = 1 << 31;
/// Pages of a range that are looked at before it is read.
const MAX_PAGES: u64 = 1 << 12;
const PAGE: u64 = 4096;

/// Copies to such memory.
///
/// # Safety
///
/// As many bytes may be read at `from`; `to` is an address of a region that is counted in.
pub(super) unsafe fn copy_in(to: u64, from: *const u8, len: usize) -> Result<(), Fault> {
    let Some(memory) = memory() else {
        // SAFETY: as the caller says.
        return unsafe { guard::copy(to as *mut u8, from, len) };
    };
    // SAFETY: as the caller says; the kernel checks the address that it writes to.
    let done = unsafe { libc::pwrite(memory.as_raw_fd(), from.cast(), len, to as libc::off_t) };
    if done == len as isize { Ok(()) } else { Err(Fault::Absent) }
}

/// Like [`copy_in`], from memory of the program to `to`.
///
/// # Safety
///
/// As many bytes may be written at `to`; `from` is an address of a region that is counted in.
pub(super) unsafe fn copy_out(to: *mut u8, from: u64, len: usize) -> Result<(), Fault> {
    let Some(memory) = memory() else {
        // SAFETY: as the caller says.
        return unsafe { guard::copy(to, from as *const u8, len) };
    };
    // SAFETY: as the caller says; the kernel checks the address that it reads from.
    let done = unsafe { libc::pread(memory.as_raw_fd(), to.cast(), len, from as libc::off_t) };
    if done == len as isize { Ok(()) } else { Err(Fault::Absent) }
}

/// Whether a range is there, as far as it is looked at.
pub(super) fn look(at: u64, len: u64) -> Result<(), Fault> {
    let last = at.saturating_add(len.saturating_sub(1));
    let pages = (at / PAGE..=last / PAGE).take(MAX_PAGES as usize);
    pages.map(|page| at.max(page * PAGE)).try_for_each(|byte| {
        let mut seen = 0_u8;
        // SAFETY: a byte of ours, and one of the range.
        unsafe { copy_out(&raw mut seen, byte, 1) }
    })
}

/// `None` where there is no /proc: then all waits.
fn memory() -> Option<File> {
    File::options().read(true).write(true).open("/proc/self/mem").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_memory_is_copied_and_looked_at_where_it_is_mapped_and_absent_where_not() {
        let (mut memory, mut out) = ([0_u8; 3000], [0; 3000]);
        let bytes: Vec<u8> = (0..3000_u32).map(|n| n as u8).collect();
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as long as the arrays are.
        unsafe {
            copy_in(at, bytes.as_ptr(), 3000).unwrap();
            copy_out(out.as_mut_ptr(), at, 3000).unwrap();
            assert_eq!(copy_in(64, bytes.as_ptr(), 8), Err(Fault::Absent));
            assert_eq!(copy_out(out.as_mut_ptr(), 64, 8), Err(Fault::Absent));
        }
        assert_eq!(out[..], bytes[..]);
        assert_eq!((look(at, 3000), look(64, 8)), (Ok(()), Err(Fault::Absent)));
    }
}
