//! What lies behind memory, and how what is written there becomes persistent.
//!
//! | behind it | persistent by |
//! |---|---|
//! | a file mapped MAP_SHARED | msync(2), which waits for the file system |
//! | such a file of a file system in memory (tmpfs, ramfs) | msync(2), which has nothing to wait for |
//! | a file mapped MAP_SYNC (DAX), or /dev/dax | writing back cache lines: mmap(2) says that nothing else is needed |
//! | what the environment keeps itself, as simulated hosts do | [`Storage`] |
//! | anything else: anonymous memory, MAP_PRIVATE, memfd, System V | nothing: it ends with the process, and is not registered for it |
//!
//! It is found out when memory is registered. msync is right for all files, so what can not be
//! found out is left to it. The bytes of a file in memory outlive the process, not the machine, as
//! with fdatasync(2).

use std::ffi::CString;

use super::guard;
use crate::error::Error;
use crate::link::Storage;

/// See the table of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    File,
    Lines,
    Env,
    /// The storage failed once. The kernel tells that once, and then takes the pages for written.
    Failed,
    Memory,
}

impl From<Backing> for u32 {
    fn from(backing: Backing) -> Self {
        backing as Self
    }
}

impl From<u32> for Backing {
    fn from(number: u32) -> Self {
        match number {
            1 => Self::Lines,
            2 => Self::Env,
            3 => Self::Failed,
            4 => Self::Memory,
            _ => Self::File,
        }
    }
}

/// What is wrong with memory that is to be flushed to persistence, and cannot be.
pub const NO_FILE: &str = "memory for FLUSH to persistence is not of a file mapped MAP_SHARED";

/// What lies behind a range. `Value` with the first address behind which nothing persists, as the
/// kernel's rdma_rxe refuses memory that is not persistent.
pub(super) fn find(addr: u64, len: u64, storage: Option<&dyn Storage>) -> Result<Backing, Error> {
    if storage.is_some_and(|storage| storage.keeps(addr, len)) {
        return Ok(Backing::Env);
    }
    let none = |at: u64| Error::hex(NO_FILE, at);
    let end = addr.checked_add(len).ok_or(none(addr))?;
    let maps = std::fs::read("/proc/self/maps").map_err(|_| none(addr))?;
    let under = mappings(&maps, addr, end);
    let mut covered = addr;
    for mapping in &under {
        if mapping.from > covered || !mapping.is_file() {
            return Err(none(covered));
        }
        covered = mapping.to;
    }
    if covered < end {
        return Err(none(covered));
    }
    if under.is_empty() {
        return Ok(Backing::File);
    }
    if under.iter().all(Mapping::is_in_memory) {
        return Ok(Backing::Memory);
    }
    if !guard::writes_back() {
        return Ok(Backing::File);
    }
    if under.iter().all(|mapping| mapping.path.starts_with(b"/dev/dax")) {
        return Ok(Backing::Lines);
    }
    // smaps costs a walk over all pages of the process, so only files that may be mapped so are
    // looked up there.
    if !under.iter().all(Mapping::is_dax) {
        return Ok(Backing::File);
    }
    let smaps = std::fs::read("/proc/self/smaps").unwrap_or_default();
    let under = mappings(&smaps, addr, end);
    let synchronous = !under.is_empty() && under.iter().all(|mapping| mapping.synchronous);
    Ok(if synchronous { Backing::Lines } else { Backing::File })
}

/// A mapping, as /proc/PID/maps and /proc/PID/smaps (proc(5)) show it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    from: u64,
    to: u64,
    shared: bool,
    path: &'a [u8],
    /// `sf` of its VmFlags: mapped MAP_SYNC.
    synchronous: bool,
}

/// The mappings that have a part of a range, in order.
fn mappings(text: &[u8], addr: u64, end: u64) -> Vec<Mapping<'_>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    let mut inside = false;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(mapping) = Mapping::parse(line) {
            inside = mapping.to > addr && mapping.from < end;
            if inside {
                found.push(mapping);
            }
        } else if inside
            && let Some(flags) = line.strip_prefix(b"VmFlags:")
            && let Some(mapping) = found.last_mut()
        {
            mapping.synchronous = flags.split(|byte| *byte == b' ').any(|flag| flag == b"sf");
        }
    }
    found
}

impl<'a> Mapping<'a> {
    /// `from-to rights offset device inode   path`, numbers hexadecimal.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let at = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
            let (field, after) = rest.split_at(at);
            rest = after.trim_ascii_start();
            std::str::from_utf8(field).ok()
        };
        let (from, to) = field()?.split_once('-')?;
        let shared = field()?.ends_with('s');
        for _offset_device_inode in 0..3 {
            field()?;
        }
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Mapping { from: number(from)?, to: number(to)?, shared, path: rest, synchronous: false })
    }

    /// Whether it is of a file that others may open: what is shared without one has a name, too.
    fn is_file(&self) -> bool {
        let no_file: [&[u8]; 3] = [b"/dev/zero", b"/memfd:", b"/SYSV"];
        self.shared && self.path.starts_with(b"/") && !no_file.iter().any(|name| self.path.starts_with(name))
    }

    /// Whether its file is of a file system in memory. One that has lost its name is not found.
    fn is_in_memory(&self) -> bool {
        /// The kernel's linux/magic.h; the C libraries differ in the type.
        const TMPFS_MAGIC: i64 = 0x0102_1994;
        const RAMFS_MAGIC: i64 = 0x8584_58f6;
        let Ok(path) = CString::new(self.path) else { return false };
        // SAFETY: all zero bytes are one.
        let mut found: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: a string that ends, and room for what is found.
        let code = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
        code == 0 && [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(found.f_type as i64))
    }

    /// Whether its file is accessed without a page cache. One that has lost its name is not found.
    fn is_dax(&self) -> bool {
        let Ok(path) = CString::new(self.path) else { return false };
        // SAFETY: all zero bytes are one.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: a string that ends, and room for what is found.
        let code = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, 0, &raw mut found) };
        code == 0 && found.stx_attributes & libc::STATX_ATTR_DAX as u64 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mappings_of_files_persist() {
        let is_file = |rest: &str| {
            let line = format!("1000-3000 {rest}");
            let mapping = Mapping::parse(line.as_bytes()).unwrap();
            assert_eq!((mapping.from, mapping.to), (0x1000, 0x3000));
            mapping.is_file()
        };
        assert!(is_file("rw-s 00000000 08:01 77                         /data/log"));
        assert!(is_file("rw-s 00000000 08:01 77 /data/a log (deleted)"));
        for other in [
            "rw-p 00000000 08:01 77 /data/log",
            "rw-s 00000000 00:01 77 /dev/zero (deleted)",
            "rw-s 00000000 00:01 77 /memfd:x (deleted)",
            "rw-s 00000000 00:01 77 /SYSV00000000 (deleted)",
            "rw-p 00000000 00:00 0                                  [heap]",
            "rw-p 00000000 00:00 0 ",
        ] {
            assert!(!is_file(other), "{other}");
        }
        assert_eq!(Mapping::parse(b""), None);
    }

    #[test]
    fn a_mapping_is_synchronous_where_its_flags_say_so() {
        let smaps = b"1000-3000 rw-s 00000000 103:00 12   /mnt/pmem/log\nSize: 8 kB\nVmFlags: rd wr sh mr mw me ms sf \n\
            3000-4000 rw-s 00000000 103:00 13   /mnt/pmem/other\nVmFlags: rd wr sh mr mw me ms mm hg \n";
        let flags = |from, to| mappings(smaps, from, to).iter().map(|m| m.synchronous).collect::<Vec<_>>();
        assert_eq!(flags(0x1000, 0x4000), [true, false]);
        assert_eq!((flags(0x2fff, 0x3000), flags(0x3000, 0x3001)), (vec![true], vec![false]));
        assert_eq!(mappings(smaps, 0x1000, 0x1001)[0].path, b"/mnt/pmem/log");
        assert!(flags(0x4000, 0x5000).is_empty());
    }

    /// VERBENA_TEST_DAX names the folder.
    #[test]
    #[ignore = "needs a folder on a file system mounted with dax"]
    fn a_file_on_dax_persists_by_cache_lines_where_it_is_mapped_synchronously() {
        use std::os::fd::AsRawFd;
        let path = std::path::Path::new(&std::env::var("VERBENA_TEST_DAX").expect("a folder")).join("dax");
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).expect("made");
        file.set_len(8192).expect("grown");
        let found = |flags| {
            let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
            // SAFETY: a new mapping, which the process keeps.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, rights, flags, fd, 0) };
            assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            find(at as u64 + 8, 8184, None)
        };
        assert_eq!(found(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC), Ok(Backing::Lines));
        assert_eq!(found(libc::MAP_SHARED), Ok(Backing::File));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_number_in_the_table_is_the_backing_again() {
        for backing in [Backing::File, Backing::Lines, Backing::Env, Backing::Failed, Backing::Memory] {
            assert_eq!(Backing::from(u32::from(backing)), backing);
        }
    }
}
