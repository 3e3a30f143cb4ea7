//! Which regions of this process others reach by themselves: none that may keep a thread that
//! touches it waiting.
//!
//! Memory of a file may wait for its file system: another machine, or a process of any user's
//! (FUSE). Memory that is watched by userfaultfd(2) waits for the process that watches. A process
//! that copies to or from there waits likewise, and nothing but its death ends that. So peers reach
//! such memory by packets only: then it is this process that waits. What is anonymous or in memory
//! (memfd, System V, tmpfs, hugetlbfs) never waits.
//!
//! What lies under a region is found out when it is registered (PROCMAP_QUERY of /proc/self/maps,
//! or its lines before Linux 6.11). A program that has memory watched afterwards says so by
//! ioctl(2), which the shared object intercepts: the region is taken back before
//! ([`Exportable::coming`]). For a program that goes around that there is `peer_memory::present`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use locks::{Mutex, Rank};
use nic::peer_memory::Region;
use sys::fork::Fd;

use crate::arena;

/// The slot of a region, in a table.
type Slot = (u8, u16);

/// Memory of this process has been watched: what is watched is to be looked up from then on, which
/// takes a walk over all pages.
static HAS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Which regions of this process others reach by themselves.
pub(crate) struct Exportable(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    regions: BTreeMap<Slot, Range<u64>>,
    /// Ranges that are about to be watched.
    coming: Vec<Range<u64>>,
}

/// A range that is about to be watched.
pub struct Coming<'a>(&'a Exportable, Range<u64>);

impl Default for Exportable {
    fn default() -> Self {
        Self(Mutex::new(Rank::Exportable, Lists::default()))
    }
}

impl Exportable {
    /// Exports a region to others by `show`, if they may reach it.
    pub(crate) fn export(&self, slot: Slot, region: &Region, show: impl FnOnce()) {
        let range = region.addr..region.addr.saturating_add(region.len);
        let is_of_arena = || arena::holds(region.addr);
        if !is_of_arena() && may_wait(&range) {
            return;
        }
        let mut lists = self.0.lock();
        if !lists.coming.iter().any(|coming| overlap(coming, &range)) {
            lists.regions.insert(slot, range);
            show();
        }
    }

    /// The region in this slot is not exported any more.
    pub(crate) fn forget(&self, slot: Slot) {
        self.0.lock().regions.remove(&slot);
    }

    /// Whether a range is watched, or about to be.
    pub(crate) fn is_late(&self, addr: u64, len: u64) -> bool {
        let range = addr..addr.saturating_add(len);
        HAS_WATCHED.load(Ordering::SeqCst)
            && (self.0.lock().coming.iter().any(|coming| overlap(coming, &range)) || is_watched(&range))
    }

    /// A range is about to be watched; until what is returned is dropped no region of it is
    /// exported. Those that are are taken back by `withdraw`, which waits for the processes
    /// that use them.
    pub(crate) fn coming(&self, range: Range<u64>, withdraw: impl Fn(Slot)) -> Coming<'_> {
        HAS_WATCHED.store(true, Ordering::SeqCst);
        let exportable: Vec<Slot> = {
            let mut lists = self.0.lock();
            lists.coming.push(range.clone());
            let regions = lists.regions.iter();
            regions.filter(|(_, exportable)| overlap(exportable, &range)).map(|(slot, _)| *slot).collect()
        };
        exportable.into_iter().for_each(withdraw);
        Coming(self, range)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut lists = self.0.0.lock();
        if let Some(at) = lists.coming.iter().position(|coming| *coming == self.1) {
            lists.coming.swap_remove(at);
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Whether a thread that touches a range may have to wait for a process or machine. True where that
/// can not be found out.
fn may_wait(range: &Range<u64>) -> bool {
    let Ok(maps) = Fd::open(|| File::open("/proc/self/maps")) else { return true };
    let files = files_by_query(&maps, range).or_else(|| files_by_lines(range));
    let Some(files) = files else { return true };
    let is_slow = |device: &Device| !is_in_memory(*device);
    files.iter().any(is_slow) || HAS_WATCHED.load(Ordering::SeqCst) && is_watched(range)
}

/// A device of a file system, as the kernel numbers it.
type Device = (u32, u32);

/// The devices of the files that a range maps. `None` where the kernel does not say so.
fn files_by_query(maps: &Fd, range: &Range<u64>) -> Option<Vec<Device>> {
    /// `struct procmap_query` of linux/fs.h.
    #[derive(Default)]
    #[repr(C)]
    struct Query {
        size: u64,
        flags: u64,
        addr: u64,
        vma_start: u64,
        vma_end: u64,
        vma_flags: u64,
        page_size: u64,
        offset: u64,
        inode: u64,
        device: [u32; 2],
        name_size: u32,
        build_id_size: u32,
        name: u64,
        build_id: u64,
    }
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
    const COVERING_OR_NEXT: u64 = 0x10;
    let (mut files, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let (size, flags) = (size_of::<Query>() as u64, COVERING_OR_NEXT);
        let mut query = Query { size, flags, addr: at, ..Query::default() };
        // SAFETY: one structure that lives across the call, and asks for nothing beside it.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) } != 0 {
            // Nothing is mapped from there on.
            let is_end = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
            return is_end.then_some(files);
        }
        let [major, minor] = query.device;
        if query.vma_start < range.end && (query.inode, major, minor) != (0, 0, 0) {
            files.push((major, minor));
        }
        at = query.vma_end.max(at + 1);
    }
    Some(files)
}

/// The devices of the files that a range maps, by the lines of /proc/self/maps. Each line is
/// `from-to rights offset major:minor inode path`, all numbers but the inode's hexadecimal
/// (proc_pid_maps(5)).
fn files_by_lines(range: &Range<u64>) -> Option<Vec<Device>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let file = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let mapping = mapping(fields.next()?)?;
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let is_file = fields.next()? != "0";
        let device = (number(major)?, number(minor)?);
        (is_file && overlap(&mapping, range)).then_some(device)
    };
    Some(maps.lines().filter_map(file).collect())
}

/// `from-to`, hexadecimal.
fn mapping(text: &str) -> Option<Range<u64>> {
    let (from, to) = text.split_once('-')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

/// Whether a file system is one in memory. Mounts are looked up each time, as a number may be
/// another one's later.
fn is_in_memory(device: Device) -> bool {
    const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];
    // The major number of file systems without a block device (linux/major.h, UNNAMED_MAJOR).
    const UNNAMED: u32 = 0;
    if device.0 != UNNAMED {
        return false;
    }
    if kernels_own().any(|own| own == device) {
        return true;
    }
    // In few reads: the kernel writes the list anew for each.
    let mut mounts = String::with_capacity(1 << 14);
    let list = File::open("/proc/self/mountinfo");
    let _ = list.and_then(|mut list| list.read_to_string(&mut mounts));
    let (major, minor) = device;
    let number = format!("{major}:{minor}");
    // `id parent major:minor root point options [field]... - type source options`
    // (proc_pid_mountinfo(5)).
    mounts.lines().any(|line| {
        line.split(' ').nth(2) == Some(&number)
            && line
                .split(" - ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next())
                .is_some_and(|kind| IN_MEMORY.contains(&kind))
    })
}

/// The file systems that the kernel mounts for itself: of shared memory without a name, and of
/// large pages. They stay as long as the kernel runs, and are looked up once.
fn kernels_own() -> impl Iterator<Item = Device> {
    const SIZE_2M: libc::c_uint = 21 << 26;
    const SIZE_1G: libc::c_uint = 30 << 26;
    const KINDS: [libc::c_uint; 4] =
        [0, libc::MFD_HUGETLB, libc::MFD_HUGETLB | SIZE_2M, libc::MFD_HUGETLB | SIZE_1G];
    const NOT_KNOWN: u64 = 0;
    const NONE: u64 = u64::MAX;
    /// Each kind's number, 1 added.
    static KNOWN: [AtomicU64; KINDS.len()] = [const { AtomicU64::new(NOT_KNOWN) }; KINDS.len()];
    let look_up = |flags: libc::c_uint| {
        let flags = flags | libc::MFD_CLOEXEC;
        // SAFETY: a string that lives across the call.
        let fd = Fd::open_raw(|| unsafe { libc::memfd_create(c"verbena kind".as_ptr(), flags) });
        match fd.and_then(|fd| std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()))) {
            Ok(file) => {
                let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
                (u64::from(major) << 32 | u64::from(minor)) + 1
            }
            Err(error) => match error.raw_os_error() {
                // There are no pages of this size.
                Some(libc::EINVAL | libc::ENODEV | libc::ENOENT) => NONE,
                _ => NOT_KNOWN,
            },
        }
    };
    KINDS.into_iter().zip(&KNOWN).filter_map(move |(flags, known)| {
        let mut number = known.load(Ordering::Relaxed);
        if number == NOT_KNOWN {
            number = look_up(flags);
            known.store(number, Ordering::Relaxed);
        }
        let is_there = number != NOT_KNOWN && number != NONE;
        is_there.then(|| (((number - 1) >> 32) as u32, (number - 1) as u32))
    })
}

/// Whether a mapping under a range is watched: `um`, `uw` or `ui` of its flags (proc_pid_smaps(5)).
fn is_watched(range: &Range<u64>) -> bool {
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return true };
    let mut inside = false;
    smaps.lines().any(|line| {
        if let Some(mapping) = line.split(' ').next().and_then(mapping) {
            inside = overlap(&mapping, range);
        }
        let flags = line.strip_prefix("VmFlags:").filter(|_| inside);
        flags.is_some_and(|flags| flags.split(' ').any(|flag| ["um", "uw", "ui"].contains(&flag)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 2 << 20;

    fn map(flags: i32, fd: i32) -> Range<u64> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which the process keeps.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64..at as u64 + LEN as u64
    }

    fn file(path: &std::path::Path) -> Range<u64> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(LEN as u64).unwrap();
        let range = map(libc::MAP_SHARED, file.as_raw_fd());
        std::fs::remove_file(path).unwrap();
        range
    }

    fn region(range: &Range<u64>) -> Region {
        let (addr, len) = (range.start + 100, LEN as u64 - 200);
        Region { key: 0x1_0000, pd: 1, access: 0, addr, len, iova: addr, persists: false }
    }

    fn is_exported(exportable: &Exportable, range: &Range<u64>) -> bool {
        let mut is = false;
        exportable.export((0, 1), &region(range), || is = true);
        is
    }

    #[test]
    fn anonymous_memory_and_files_in_memory_never_wait_and_other_files_may() {
        let private = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        let shared = map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
        // SAFETY: a string that lives across the call.
        let memfd = unsafe { libc::memfd_create(c"exported".as_ptr(), 0) };
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::ftruncate(memfd, LEN as i64) }, 0);
        let own = format!("verbena-exported-{}", std::process::id());
        let mut in_memory = vec![private.clone(), shared, map(libc::MAP_SHARED, memfd)];
        if std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" /dev/shm ") {
            in_memory.push(file(&std::path::Path::new("/dev/shm").join(&own)));
        }
        let of_a_disk = file(&std::env::current_exe().unwrap().with_file_name(own));
        let maps = Fd::open(|| File::open("/proc/self/maps")).unwrap();
        for range in in_memory.iter().chain([&of_a_disk]) {
            let by_lines = files_by_lines(range).unwrap();
            assert!(files_by_query(&maps, range).is_none_or(|files| files == by_lines));
            assert_eq!(by_lines.iter().all(|device| is_in_memory(*device)), *range != of_a_disk);
            assert_eq!(is_exported(&Exportable::default(), range), *range != of_a_disk);
        }
        assert_eq!(files_by_lines(&private).unwrap(), []);
    }

    #[test]
    fn a_region_that_comes_to_be_watched_is_taken_back_before_and_not_exported_meanwhile() {
        let (range, exportable) = (map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1), Exportable::default());
        assert!(is_exported(&exportable, &range));
        let taken_back = std::cell::RefCell::new(Vec::new());
        let withdraw = |slot| taken_back.borrow_mut().push(slot);
        let elsewhere = exportable.coming(range.end..range.end + 4096, withdraw);
        assert!(taken_back.borrow().is_empty());
        let coming = exportable.coming(range.start..range.start + 4096, withdraw);
        assert_eq!(*taken_back.borrow(), [(0, 1)]);
        assert!(!is_exported(&exportable, &range));
        drop((coming, elsewhere));
        assert!(is_exported(&exportable, &range), "it is not watched after all");
        exportable.forget((0, 1));
        drop(exportable.coming(range, |slot| panic!("{slot:?} is not exported")));
    }
}
