//! FLUSH (IBA annex A19): what peers have written becomes visible to all, or persistent.
//!
//! Copies into registered memory are stores of this process, so for visibility a fence is enough.
//! Persistence is that of what lies behind the memory (`backing`): a file in memory has nothing to
//! wait for, and cache lines of a short range are written back at once; all else is for a thread
//! that may wait.

use std::sync::atomic::{Ordering, fence};
use std::task::Poll;

use transport::op::{Fault, Flush, Remote};
use wire::Rkey;

use super::backing::Backing;
use super::copy::Place;
use super::guard;
use super::rights::Access;
use super::slot::{InFlight, Slot, kind};
use super::view::View;
use crate::errno::Errno;

/// Bytes whose cache lines are written back without a pause, some microseconds at most: under a
/// queue pair's lock, or while a deregistration waits.
const AT_ONCE: u64 = 64 << 10;

impl View<'_> {
    /// The protection domain of the queue pair.
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// A peer's FLUSH: done, or `Pending` where it is for [`View::persist`].
    pub(super) fn begin_flush(&self, range: Remote, how: Flush) -> Poll<Result<(), Fault>> {
        let flushed = self.flush_range(range, how).and_then(|range| {
            self.remote(range, rights(how), |place| {
                fence(Ordering::SeqCst);
                Ok(!how.persistent || self.flush_now(range, place)?)
            })
        });
        match flushed {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(fault) => Poll::Ready(Err(fault)),
        }
    }

    /// Whether a range was made persistent now, since that takes no time. It is counted in.
    fn flush_now(&self, range: Remote, place: Place) -> Result<bool, Fault> {
        let Place::At(real) = place else { return Ok(true) };
        match self.backing(range.rkey) {
            Backing::Failed => Err(Fault::Storage),
            // SAFETY: inside a region that is counted in.
            Backing::Lines if range.length <= AT_ONCE => unsafe { guard::write_back(real, range.length) },
            Backing::Memory => sync(real, range.length).map(|()| true).map_err(fault),
            _ => Ok(range.length == 0),
        }
    }

    /// Waits until a range that a peer may flush lies on its storage. Not under a lock.
    ///
    /// # Errors
    ///
    /// The key, the range or the rights are not good any more; `Unmapped`; `Storage`, from then on
    /// for all of the region: what the kernel could not write it takes for written once it has
    /// said so.
    pub(crate) fn persist(&self, range: Remote, how: Flush) -> Result<(), Fault> {
        self.persist_by(range, how, sync)
    }

    /// Like [`View::persist`], by `sync` where a file is behind the memory. `sync` gets the first
    /// byte's address and the length, and waits.
    fn persist_by(
        &self,
        range: Remote,
        how: Flush,
        sync: impl FnOnce(u64, u64) -> Result<(), Errno>,
    ) -> Result<(), Fault> {
        let range = self.flush_range(range, how)?;
        let found = self.remote(range, rights(how), |place| Ok((place, self.backing(range.rkey))))?;
        let (Place::At(real), backing) = found else { return Ok(()) };
        // Not counted in: a thread that deregisters need not wait for the storage, which reads what
        // is mapped and changes nothing.
        let done = match backing {
            Backing::Failed => return Err(Fault::Storage),
            Backing::Lines if self.write_back(range, how)? => return Ok(()),
            Backing::Env => match self.table.storage() {
                Some(storage) => storage.persist(real, range.length),
                None => Err(Errno::ENOMEM),
            },
            Backing::Lines | Backing::File | Backing::Memory => sync(real, range.length),
        };
        done.map_err(|errno| {
            if fault(errno) == Fault::Unmapped {
                return Fault::Unmapped;
            }
            // Where the region is gone meanwhile there is none to mark.
            _ = self.remote(range, rights(how), |_| {
                self.region(range.rkey).backing.store(Backing::Failed.into(), Ordering::Relaxed);
                Ok(())
            });
            Fault::Storage
        })
    }

    /// Writes the cache lines of a long range back, a piece at a time, so that no thread waits long
    /// for all. `false` where only a system call can.
    fn write_back(&self, range: Remote, how: Flush) -> Result<bool, Fault> {
        let mut done = 0;
        while done < range.length {
            let length = (range.length - done).min(AT_ONCE);
            // No overflow: the whole range was checked.
            let piece = Remote { addr: range.addr + done, length, ..range };
            let written = self.remote(piece, rights(how), |place| match place {
                // SAFETY: inside a region that is counted in.
                Place::At(real) => unsafe { guard::write_back(real, length) },
                Place::Null | Place::Late(_) => Ok(true),
            })?;
            if !written {
                return Ok(false);
            }
            done += length;
        }
        Ok(true)
    }

    /// The slot of a key, counted in. Windows grant no FLUSH, so it is a region's.
    fn region(&self, rkey: Rkey) -> &Slot {
        self.table.slot(rkey.0 >> 16)
    }

    /// How it persists; as for [`View::region`].
    fn backing(&self, rkey: Rkey) -> Backing {
        self.region(rkey).backing.load(Ordering::Relaxed).into()
    }

    /// What is to be flushed: the range, or all that the key is for.
    fn flush_range(&self, range: Remote, how: Flush) -> Result<Remote, Fault> {
        if how.whole { self.whole(range.rkey) } else { Ok(range) }
    }

    /// All that a key is for, whether we or a peer may name it.
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

/// What msync(2) says.
fn fault(errno: Errno) -> Fault {
    if errno == Errno::ENOMEM { Fault::Unmapped } else { Fault::Storage }
}

/// msync(2) of whole pages, waiting.
fn sync(real: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: asks for a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = real & !(page - 1);
    // SAFETY: msync changes no content; a range that is not mapped any more is an error, not a
    // fault.
    let code =
        unsafe { libc::msync(start as *mut libc::c_void, (real + len - start) as usize, libc::MS_SYNC) };
    if code == 0 { Ok(()) } else { Err(Errno::last()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::error::Error;
    use crate::memory::{Mr, Table};

    /// Bytes of a page.
    const PAGE: usize = 4096;
    const HOW: Flush = Flush { global: false, persistent: true, whole: false };

    /// A mapping of two pages of a file on a file system, which is removed at once; the address of
    /// the first.
    fn file_pages(test: &str) -> u64 {
        let file = format!("{test}-{}", std::process::id());
        let path = std::env::current_exe().unwrap().with_extension(file);
        let at = pages(&path);
        std::fs::remove_file(&path).unwrap();
        at
    }

    /// Makes this file of two pages, and maps it; where that is.
    fn pages(path: &std::path::Path) -> u64 {
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(2 * PAGE as u64).unwrap();
        let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping, which this process keeps.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, rights, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    /// The first page, registered for peers that flush it, as if `backing` were behind it.
    fn region(table: &Table, addr: u64, backing: Backing) -> Mr {
        let access = Access::FLUSH_PERSISTENT;
        // SAFETY: the page is only looked at by tests that expect it to be gone.
        let mr = unsafe { table.register(1, addr, PAGE as u64, addr, access, 7) }.unwrap();
        table.slot(mr.key.0 >> 16).backing.store(backing.into(), Ordering::Relaxed);
        mr
    }

    fn view(table: &Table) -> View<'_> {
        table.view(1, Access::FLUSH_PERSISTENT)
    }

    #[test]
    fn a_deregistration_does_not_wait_for_the_storage() {
        let (table, addr) = (Table::new(), file_pages("deregistered"));
        let mr = region(&table, addr, Backing::File);
        let range = Remote { addr: addr + 8, length: 8, rkey: mr.key };
        let done = view(&table).persist_by(range, HOW, |start, len| {
            assert_eq!((start, len), (addr + 8, 8));
            // The storage takes its time, and the program deregisters: here it would wait for
            // itself.
            assert_eq!(table.slot(mr.key.0 >> 16).in_flight.load(Ordering::SeqCst), 0);
            table.deregister(mr).unwrap();
            Ok(())
        });
        assert_eq!(done, Ok(()));
        assert_eq!(view(&table).persist(range, HOW), Err(Fault::Key));
    }

    #[test]
    fn a_file_in_memory_has_nothing_to_wait_for() {
        let path = std::path::PathBuf::from(format!("/dev/shm/verbena-test-{}", std::process::id()));
        if !path.parent().is_some_and(std::path::Path::is_dir) {
            return;
        }
        let (table, addr) = (Table::new(), pages(&path));
        // SAFETY: the pages stay until the end of the test, which looks at none.
        let mr = unsafe { table.register(1, addr, PAGE as u64, addr, Access::FLUSH_PERSISTENT, 7) }.unwrap();
        std::fs::remove_file(&path).unwrap();
        let range = Remote { addr: addr + 8, length: 8, rkey: mr.key };
        assert_eq!(view(&table).begin_flush(range, HOW), Poll::Ready(Ok(())));
        // SAFETY: pages of this test.
        unsafe { libc::munmap(addr as *mut libc::c_void, 2 * PAGE) };
        assert_eq!(view(&table).begin_flush(range, HOW), Poll::Ready(Err(Fault::Unmapped)));
    }

    #[test]
    fn a_storage_that_failed_is_not_believed_again_before_its_memory_is_registered_anew() {
        let (table, addr) = (Table::new(), file_pages("failed"));
        let mr = region(&table, addr, Backing::File);
        let range = Remote { addr, length: 8, rkey: mr.key };
        assert_eq!(view(&table).persist_by(range, HOW, |_, _| Err(Errno::EIO)), Err(Fault::Storage));
        // The kernel would say that all is well now.
        assert_eq!(view(&table).begin_flush(range, HOW), Poll::Ready(Err(Fault::Storage)));
        assert_eq!(view(&table).persist(range, HOW), Err(Fault::Storage));
        table.deregister(mr).unwrap();
        let range = Remote { rkey: region(&table, addr, Backing::File).key, ..range };
        assert_eq!(view(&table).begin_flush(range, HOW), Poll::Pending);
        assert_eq!(view(&table).persist(range, HOW), Ok(()));
    }

    #[test]
    fn memory_that_failed_and_was_deregistered_meanwhile_leaves_no_mark() {
        let (table, addr) = (Table::new(), file_pages("unmarked"));
        let mr = region(&table, addr, Backing::File);
        let range = Remote { addr, length: 8, rkey: mr.key };
        let failed = view(&table).persist_by(range, HOW, |_, _| {
            table.deregister(mr).unwrap();
            Err(Errno::EIO)
        });
        assert_eq!(failed, Err(Fault::Storage));
        assert_eq!(Backing::from(table.slot(mr.key.0 >> 16).backing.load(Ordering::Relaxed)), Backing::File);
    }

    #[test]
    fn short_ranges_on_dax_are_written_back_at_once_and_long_ones_are_not() {
        if !guard::writes_back() {
            return;
        }
        // That its instructions are the right ones for any memory is all that can be seen without
        // DAX.
        let (table, addr) = (Table::new(), file_pages("lines"));
        let mr = region(&table, addr, Backing::Lines);
        for (at, length) in [(0, 0), (0, 1), (63, 2), (4095, 1), (0, 4096)] {
            let range = Remote { addr: addr + at, length, rkey: mr.key };
            assert_eq!(view(&table).begin_flush(range, HOW), Poll::Ready(Ok(())), "{length} at {at}");
            assert_eq!(view(&table).persist_by(range, HOW, |_, _| unreachable!()), Ok(()));
        }
        let mut long = vec![0_u8; 2 * AT_ONCE as usize + 1];
        let (start, length) = (long.as_mut_ptr() as u64, long.len() as u64);
        let slot = table.slot(mr.key.0 >> 16);
        slot.addr.store(start, Ordering::Relaxed);
        slot.iova.store(start, Ordering::Relaxed);
        slot.len.store(length, Ordering::Relaxed);
        let range = Remote { addr: start, length, rkey: mr.key };
        assert_eq!(view(&table).begin_flush(range, HOW), Poll::Pending);
        assert_eq!(view(&table).persist_by(range, HOW, |_, _| unreachable!()), Ok(()));
    }

    #[test]
    fn a_mapping_that_is_gone_or_moved_is_an_error_however_it_was_to_persist() {
        for backing in [Backing::File, Backing::Lines] {
            let (table, addr) = (Table::new(), file_pages("gone"));
            let mr = region(&table, addr, backing);
            let range = Remote { addr, length: PAGE as u64, rkey: mr.key };
            // SAFETY: pages of this test, which are moved to where the kernel finds room.
            let moved =
                unsafe { libc::mremap(addr as *mut libc::c_void, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE) };
            assert_ne!(moved, libc::MAP_FAILED);
            // SAFETY: what is left of them, wherever it is.
            unsafe {
                libc::munmap(moved, 2 * PAGE);
                libc::munmap(addr as *mut libc::c_void, PAGE);
            }
            let begun = view(&table).begin_flush(range, HOW);
            assert!(matches!(begun, Poll::Pending | Poll::Ready(Err(Fault::Unmapped))), "{begun:?}");
            assert_eq!(view(&table).persist(range, HOW), Err(Fault::Unmapped), "{backing:?}");
        }
    }

    #[test]
    fn a_environments_own_storage_is_asked_before_the_system() {
        struct Keeps(std::sync::atomic::AtomicU64);
        impl crate::link::Storage for Keeps {
            fn keeps(&self, _: u64, len: u64) -> bool {
                len == self.0.load(Ordering::Relaxed)
            }
            fn persist(&self, _: u64, _: u64) -> Result<(), Errno> {
                Ok(())
            }
        }
        let find = |len| super::super::backing::find(0x1000, len, Some(&Keeps(64.into())));
        assert_eq!(find(64), Ok(Backing::Env));
        assert!(matches!(find(65), Err(Error::Value { .. })), "anonymous, or nothing at all");
    }
}
