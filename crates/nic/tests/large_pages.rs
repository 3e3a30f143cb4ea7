//! Regions in large pages, which other processes copy faster.

mod support;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::Access;
use support::Kept;

const LARGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// A mapping of its own, whose pages are small unless the test asks for others.
struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Self {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel finds room.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: all of the mapping of just now; changes no content. A kernel that knows no large
        // pages says no.
        unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
        Self { at: at.cast(), len }
    }
    /// Where the first large page begins.
    fn large(&self) -> usize {
        self.at.addr().next_multiple_of(LARGE)
    }
    /// A number in each page.
    fn fill(&self) {
        // SAFETY: inside of the mapping, whose bytes no thread has a reference to; also below.
        (0..self.len).step_by(PAGE).for_each(|at| unsafe { self.at.add(at).write((at / PAGE) as u8) });
    }
    fn is_filled(&self) -> bool {
        // SAFETY: as above.
        (0..self.len).step_by(PAGE).all(|at| unsafe { self.at.add(at).read() } == (at / PAGE) as u8)
    }
    /// Bytes of it that lie in large pages (proc_pid_smaps(5)).
    fn in_large_pages(&self) -> usize {
        let range = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
        };
        let (mine, mut is_mine, mut kib) = (self.at.addr()..self.at.addr() + self.len, false, 0);
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            if let Some(Range { start, end }) = range(line) {
                is_mine = start < mine.end && mine.start < end;
            } else if let Some(size) = line.strip_prefix("AnonHugePages:").filter(|_| is_mine) {
                kib += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        kib << 10
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no thread has it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Whether this system gives large pages: not where its kernel is before 6.1, or built without
/// them.
fn are_to_be_had() -> bool {
    let mapping = Mapping::new(2 * LARGE);
    mapping.fill();
    let wish = |advice| {
        // SAFETY: inside of the mapping; changes no content.
        unsafe { libc::madvise(mapping.large() as *mut libc::c_void, LARGE, advice) == 0 }
    };
    wish(libc::MADV_HUGEPAGE) && wish(libc::MADV_COLLAPSE)
}

#[test]
fn what_a_registration_brings_in_lies_in_large_pages_where_they_are_wanted_and_the_rest_where_it_is() {
    let env = Arc::new(Kept::default());
    let device = support::device(env.clone());
    let pd = Arc::new(device.alloc_pd().unwrap());
    let are_to_be_had = are_to_be_had();
    for (wanted, touched) in [(false, false), (false, true), (true, false), (true, true)] {
        env.large_pages.store(wanted, Ordering::Relaxed);
        let mapping = Mapping::new(3 * LARGE);
        if touched {
            mapping.fill();
        }
        // From a page before the large one, or from it on, to two pages after it.
        let from = mapping.at.addr().max(mapping.large() - PAGE);
        let len = mapping.large() + LARGE + 2 * PAGE - from;
        // SAFETY: mapped until it is deregistered, and no thread has a reference to its bytes.
        let mr = unsafe { pd.register(from as u64, len as u64, 0, Access::LOCAL_WRITE) }.unwrap();
        // An older kernel gives them for what was not touched, or not.
        if are_to_be_had || !wanted {
            let large = if wanted && !touched { LARGE } else { 0 };
            assert_eq!(mapping.in_large_pages(), large, "wanted: {wanted}, touched: {touched}");
        }
        assert!(!touched || mapping.is_filled(), "the bytes are what they were");
        pd.deregister(mr).unwrap();
    }
}

#[test]
fn what_is_not_mapped_is_an_error_with_large_pages_too() {
    let env = Arc::new(Kept::default());
    env.large_pages.store(true, Ordering::Relaxed);
    let pd = Arc::new(support::device(env).alloc_pd().unwrap());
    let mapping = Mapping::new(4 * LARGE);
    // SAFETY: a part of the mapping that no thread uses.
    unsafe { libc::munmap(mapping.at.add(3 * LARGE).cast(), PAGE) };
    let (at, len) = (mapping.at.addr() as u64, mapping.len as u64);
    // SAFETY: mapped until it is deregistered; nothing is registered where it is an error.
    unsafe {
        assert!(matches!(pd.register(at, len, 0, Access::LOCAL_WRITE), Err(nic::Error::Fault)));
        // A range that wraps, and one at the end of all addresses.
        assert!(pd.register(u64::MAX - 100, 200, 0, 0).is_err());
        assert!(pd.register(u64::MAX - 3 * LARGE as u64, 2 * LARGE as u64, 0, 0).is_err());
    }
}
