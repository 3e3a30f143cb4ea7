//! FLUSH (IBA annex A19): what peers have written becomes visible to all, or lies on the storage behind it.
//!
//! Copies into registered memory are stores of this process, so for visibility a fence is enough. Persistence is that of the file
//! which is mapped: msync(2). Memory without a file has none, and is not registered for it.

use std::sync::atomic::{Ordering, fence};
use std::task::Poll;

use transport::op::{Fault, Flush, Remote};
use wire::Rkey;

use super::copy::Place;
use super::rights::Access;
use super::slot::{InFlight, kind};
use super::view::View;
use crate::error::Error;

/// Bytes of a page, or a part of one: msync takes whole pages.
const PAGE: u64 = 4096;

impl View<'_> {
    /// Its protection domain.
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// A peer's FLUSH: done, or `Pending` where it is for [`View::persist`].
    pub(super) fn begin_flush(&self, range: Remote, how: Flush) -> Poll<Result<(), Fault>> {
        let flushed = self.flush_range(range, how).and_then(|range| {
            self.remote(range, rights(how), |_| {
                fence(Ordering::SeqCst);
                Ok(())
            })
        });
        match flushed {
            Ok(()) if how.persistent => Poll::Pending,
            done => Poll::Ready(done),
        }
    }

    /// Waits until a range that a peer may flush lies on its storage. Not under a lock.
    ///
    /// # Errors
    ///
    /// The key, the range or the rights are not good any more; the storage failed (`Unmapped`).
    pub(crate) fn persist(&self, range: Remote, how: Flush) -> Result<(), Fault> {
        self.persist_by(range, how, |start, len| {
            // SAFETY: msync changes no content; a range that is not mapped any more is an error, not a fault.
            unsafe { libc::msync(start as *mut libc::c_void, len as usize, libc::MS_SYNC) == 0 }
        })
    }

    /// The same by `sync`, which gets the first byte's address and the length of the pages, and waits.
    fn persist_by(
        &self,
        range: Remote,
        how: Flush,
        sync: impl FnOnce(u64, u64) -> bool,
    ) -> Result<(), Fault> {
        let range = self.flush_range(range, how)?;
        let Place::At(real) = self.remote(range, rights(how), Ok)? else { return Ok(()) };
        // Not counted in: whoever deregisters need not wait for the storage, which reads what is mapped and changes nothing.
        let start = real & !(PAGE - 1);
        let len = real + range.length - start;
        if sync(start, len) { Ok(()) } else { Err(Fault::Unmapped) }
    }

    /// What is to be flushed: the range, or all that the key is for.
    fn flush_range(&self, range: Remote, how: Flush) -> Result<Remote, Fault> {
        if how.whole { self.whole(range.rkey) } else { Ok(range) }
    }

    /// All that a key is for, whoever may name it.
    fn whole(&self, rkey: Rkey) -> Result<Remote, Fault> {
        let slot = self.table.slot(rkey.0 >> 16);
        let _guard = InFlight::enter(&slot.in_flight);
        if rkey.0 == 0
            || slot.key.load(Ordering::SeqCst) != rkey.0
            || slot.kind.load(Ordering::Relaxed) == kind::NULL
        {
            return Err(Fault::Key);
        }
        let (addr, length) = (slot.iova.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
        Ok(Remote { addr, length, rkey })
    }
}

fn rights(how: Flush) -> u32 {
    let bit = |wanted, bit| if wanted { bit } else { 0 };
    bit(how.global, Access::FLUSH_GLOBAL) | bit(how.persistent, Access::FLUSH_PERSISTENT)
}

/// Whether all of a range is of files that are mapped shared, so that what is written there can persist. `Value` where not, with the first
/// address that is not,
/// as the kernel's rdma_rxe says of memory that is not persistent.
pub(super) fn check_persistent(addr: u64, len: u64) -> Result<(), Error> {
    let none = |at: u64| Error::hex("memory for FLUSH to persistence is not of a file mapped MAP_SHARED", at);
    let maps = std::fs::read("/proc/self/maps").map_err(|_| none(addr))?;
    let end = addr.checked_add(len).ok_or(none(addr))?;
    let mut covered = addr;
    for (from, to, of_file) in maps.split(|byte| *byte == b'\n').filter_map(mapping) {
        if to <= covered || covered >= end {
            continue;
        }
        if from > covered || !of_file {
            return Err(none(covered));
        }
        covered = to;
    }
    if covered >= end { Ok(()) } else { Err(none(covered)) }
}

/// A line of /proc/PID/maps (proc(5)): first address, the one behind the last, whether it is a shared mapping of a file. What is
/// shared without one has a name too: /dev/zero, /memfd:, /SYSV.
fn mapping(line: &[u8]) -> Option<(u64, u64, bool)> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let shared = fields.next()?.ends_with('s');
    let name = fields.nth(3).unwrap_or("");
    let no_file = ["/dev/zero", "/memfd:", "/SYSV"].iter().any(|prefix| name.starts_with(prefix));
    let of_file = shared && name.starts_with('/') && !no_file;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, of_file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Table;

    #[test]
    fn only_shared_mappings_of_files_persist() {
        let of_file = |rest: &str| mapping(format!("1000-3000 {rest}").as_bytes());
        assert_eq!(of_file("rw-s 00000000 08:01 77 /data/log"), Some((0x1000, 0x3000, true)));
        for other in [
            "rw-p 00000000 08:01 77 /data/log",
            "rw-s 00000000 00:01 77 /dev/zero (deleted)",
            "rw-s 00000000 00:01 77 /memfd:x (deleted)",
            "rw-p 00000000 00:00 0 [heap]",
            "rw-p 00000000 00:00 0",
        ] {
            assert_eq!(of_file(other), Some((0x1000, 0x3000, false)), "{other}");
        }
        assert_eq!(mapping(b""), None);
    }

    /// A mapping of a file on a file system, which is removed at once; the address of its one page.
    fn file_page() -> u64 {
        let path = std::env::current_exe().unwrap().with_extension(format!("page-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(PAGE).unwrap();
        // SAFETY: a new mapping, which this process keeps.
        let at = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                PAGE as usize,
                rights,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    #[test]
    fn a_deregistration_does_not_wait_for_the_storage() {
        let (table, addr) = (Table::new(), file_page());
        let access = Access::FLUSH_PERSISTENT;
        // SAFETY: the page stays mapped, and nothing else uses it.
        let mr = unsafe { table.register(1, addr, PAGE, addr, access, 7) }.unwrap();
        let view = table.view(1, access);
        let (range, how) = (
            Remote { addr: addr + 8, length: 8, rkey: mr.key },
            Flush { global: false, persistent: true, whole: false },
        );
        let done = view.persist_by(range, how, |start, len| {
            assert_eq!((start, len), (addr, 16));
            // The storage takes its time, and the program deregisters: here it would wait for itself.
            assert_eq!(table.slot(mr.key.0 >> 16).in_flight.load(Ordering::SeqCst), 0);
            table.deregister(mr).unwrap();
            true
        });
        assert_eq!(done, Ok(()));
        assert_eq!(view.persist(range, how), Err(Fault::Key));
    }
}
