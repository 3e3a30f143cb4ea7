//! Whether memory of another process is there: a copy to or from what is not there waits for the
//! process or machine that brings it.
//!
//! That may be another process that never does (userfaultfd(2), a file system in user space) or a
//! machine that does not answer, and process_vm_readv(2) and process_vm_writev(2) end for nothing
//! but the caller's death. So the pages of each copy are looked up before it (/proc/PID/pagemap).
//! What is not there goes as packets, so that its own process waits for it. A page of a short copy
//! is looked up once in [`TICK`] to two of them, as that takes a third of such a copy's time.
//!
//! A process that takes pages away just between the look and the copy holds one thread up. One that
//! was found without pages is left alone for a while, each time twice as long: to try that costs it
//! the way.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nic::Errno;
use sys::fork::Fd;
use sys::time::monotonic;

const PAGE: u64 = 4096;
/// Nanoseconds.
const TICK: u64 = 1 << 16;
/// How many pages are remembered as looked up.
const REMEMBERED: usize = 64;
/// Most pages of a copy that are looked up so.
const FEW: u64 = 2;
/// How long a process is left alone at first, in nanoseconds, and how often that is doubled.
const ALONE: u64 = 10_000_000;
const MAX_DOUBLED: u32 = 12;

/// The pages of another process.
#[derive(Debug)]
pub(super) struct Pages {
    /// The /proc/PID/pagemap of the process, of the program that it runs now. `None`: all of it
    /// counts as not there.
    map: Option<Fd>,
    /// Pages that were there, and when: the page's number above 20 bits of [`TICK`]s.
    seen: [AtomicU64; REMEMBERED],
    found_none: AtomicU32,
    alone_until: AtomicU64,
}

impl Pages {
    pub(super) fn of(pid: i32) -> Self {
        let open = || std::fs::File::open(format!("/proc/{pid}/pagemap"));
        Self {
            map: Fd::open(open).ok(),
            seen: [const { AtomicU64::new(0) }; REMEMBERED],
            found_none: AtomicU32::new(0),
            alone_until: AtomicU64::new(0),
        }
    }

    /// Whether it is left alone now.
    #[inline]
    pub(super) fn is_left_alone(&self) -> bool {
        let until = self.alone_until.load(Ordering::Relaxed);
        until != 0 && monotonic() < until
    }

    /// Whether `len` bytes at an address are there and may be written without a wait for another
    /// process.
    pub(super) fn are_there(&self, addr: u64, len: u64) -> bool {
        let Some(more) = len.checked_sub(1) else { return true };
        let Some(last) = addr.checked_add(more) else { return false };
        let (first, last) = (addr / PAGE, last / PAGE);
        // No program has addresses there, and what is below can be counted.
        if last >> 51 != 0 {
            return false;
        }
        let now = monotonic();
        let is_few = last - first < FEW;
        if is_few && (first..=last).all(|page| self.was_seen(page, now)) {
            return true;
        }
        let there = self.map.as_ref().is_some_and(|map| look_up(map, first, last + 1));
        if there && is_few {
            (first..=last).for_each(|page| self.place(page).store(entry(page, now), Ordering::Relaxed));
        }
        if !there {
            let doubled = self.found_none.fetch_add(1, Ordering::Relaxed).min(MAX_DOUBLED);
            self.alone_until.store(now + (ALONE << doubled), Ordering::Relaxed);
        }
        there
    }

    fn place(&self, page: u64) -> &AtomicU64 {
        &self.seen[page as usize % REMEMBERED]
    }

    fn was_seen(&self, page: u64, now: u64) -> bool {
        let seen = self.place(page).load(Ordering::Relaxed);
        seen == entry(page, now) || seen == entry(page, now.saturating_sub(TICK))
    }
}

fn entry(page: u64, now: u64) -> u64 {
    page << 20 | ((now / TICK) & 0xf_ffff)
}

/// Whether all pages from one to before another are there, and none is write-protected by
/// userfaultfd(2).
fn look_up(map: &Fd, first: u64, end: u64) -> bool {
    static IS_OLD: AtomicBool = AtomicBool::new(false);
    if !IS_OLD.load(Ordering::Relaxed) {
        match scan(map, first, end) {
            Ok(there) => return there,
            // Before Linux 6.7.
            Err(Errno::ENOTTY | Errno::EINVAL) => IS_OLD.store(true, Ordering::Relaxed),
            Err(_) => return false,
        }
    }
    read(map, first, end)
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// One call for all pages (PAGEMAP_SCAN): asks for the first that is not there, or is
/// write-protected.
fn scan(map: &Fd, first: u64, end: u64) -> Result<bool, Errno> {
    /// `_IOWR('f', 16, struct pm_scan_arg)`.
    const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;
    const PAGE_IS_WRITTEN: u64 = 1 << 1;
    const PAGE_IS_PRESENT: u64 = 1 << 3;
    let wanted = PAGE_IS_PRESENT | PAGE_IS_WRITTEN;
    // Start, end and categories of what is found.
    let mut region = [0_u64; 3];
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        flags: 0,
        start: first * PAGE,
        end: end * PAGE,
        walk_end: 0,
        vec: (&raw mut region) as u64,
        vec_len: 1,
        max_pages: 1,
        category_inverted: wanted,
        category_mask: 0,
        category_anyof_mask: wanted,
        return_mask: wanted,
    };
    // SAFETY: both structures live across the call, and the kernel writes one region at most.
    match unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) } {
        0 => Ok(true),
        1.. => Ok(false),
        _ => Err(Errno::last()),
    }
}

/// Eight bytes a page.
fn read(map: &Fd, first: u64, end: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const WRITE_PROTECTED: u64 = 1 << 57;
    const AT_ONCE: u64 = 512;
    let mut words = [0_u64; AT_ONCE as usize];
    let mut page = first;
    while page < end {
        let wanted = (end - page).min(AT_ONCE) as usize;
        let (at, bytes) = ((page * 8) as libc::off_t, wanted * 8);
        // SAFETY: no more than the words have, which are integers.
        let got = unsafe { libc::pread(map.as_raw_fd(), words.as_mut_ptr().cast(), bytes, at) };
        let all = got == bytes as isize
            && words[..wanted].iter().all(|word| word & (PRESENT | WRITE_PROTECTED) == PRESENT);
        if !all {
            return false;
        }
        page += wanted as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a mapping that is this process's, of which every second one is touched.
    fn mapping(pages: usize) -> u64 {
        let (len, rights) = (pages * PAGE as usize, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which the process keeps, and to whose bytes there is no reference.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            at.cast::<u8>().write_bytes(7, len);
            at as u64
        }
    }

    fn take_away(at: u64) {
        // SAFETY: a page of the mapping.
        unsafe { libc::madvise(at as *mut libc::c_void, PAGE as usize, libc::MADV_DONTNEED) };
    }

    #[test]
    fn memory_is_there_while_each_of_its_pages_is() {
        let own = std::process::id() as i32;
        let at = mapping(1200);
        let (end, len) = (at + 1200 * PAGE, 1200 * PAGE);
        let map = Pages::of(own).map.unwrap();
        for look in [read, look_up] {
            assert!(look(&map, at / PAGE, end / PAGE));
        }
        take_away(at + 1100 * PAGE);
        for look in [read, look_up] {
            assert!(!look(&map, at / PAGE, end / PAGE));
            assert!(look(&map, at / PAGE, at / PAGE + 1100) && look(&map, at / PAGE + 1101, end / PAGE));
        }
        let pages = Pages::of(own);
        assert!(pages.are_there(at + 8, 8) && !pages.is_left_alone());
        assert!(!pages.are_there(at, len) && pages.is_left_alone());
        assert!(!pages.are_there(u64::MAX - 8, 64), "behind the last address");
        assert!(!Pages::of(-1).are_there(at, 8), "nothing is there of what cannot be looked up");
    }

    #[test]
    fn a_page_of_short_copies_is_looked_up_again_after_a_while() {
        let (pages, at) = (Pages::of(std::process::id() as i32), mapping(2));
        assert!(pages.are_there(at, 8));
        take_away(at);
        let gone = (0..10_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_micros(50));
            !pages.are_there(at, 8)
        });
        assert!(gone);
    }

    #[test]
    fn a_process_found_without_pages_again_is_left_alone_for_longer() {
        let (pages, at) = (Pages::of(std::process::id() as i32), mapping(1));
        take_away(at);
        let mut last = 0;
        for _ in 0..20 {
            let before = monotonic();
            assert!(!pages.are_there(at, 8));
            let alone = pages.alone_until.load(Ordering::Relaxed) - before;
            assert!(alone >= last, "{alone} behind {last}");
            last = ALONE << pages.found_none.load(Ordering::Relaxed).saturating_sub(1).min(MAX_DOUBLED);
        }
        assert_eq!(last, ALONE << MAX_DOUBLED);
    }
}
