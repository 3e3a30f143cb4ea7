//! Memory of this process that processes of its user may map, too: they write and read it by the
//! processor's own instructions, with no system call.
//!
//! Each buffer is a file without a name (memfd_create(2)) of its own, in whole pages ([`take`]). A
//! local peer maps the buffer of a region, and nothing else of this process, once a request of its
//! that named the region by its key was executed (`peer_memory`). Where the region lets peers
//! read only, so does the file: F_SEAL_FUTURE_WRITE, from the first such local peer on.
//!
//! A region that peers may write to and not read is not mapped, as memory that is mapped to be
//! written can be read; nor is one that is only a part of its buffer.
//!
//! A buffer that is gone is nothing else afterwards: a local peer that keeps it mapped has pages of
//! its own, which are zero.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};
use nic::{Access, Errno};
use sys::fork::{self, Fd};
use sys::limits;
use sys::per_process::PerProcess;

use crate::env::Connection;
use crate::memory::SharedMemory;
use crate::same_host::{self, Wish};

const PAGE: usize = 4096;
/// Of the descriptors that this process may have, one in so many may be a buffer's.
const OF_DESCRIPTORS: usize = 8;
/// Buffers at most.
const MAX_BUFFERS: usize = 1024;
/// Buffers of other processes that are mapped here, at most, and their bytes in sum.
const MAX_MAPPED: usize = 4096;
const MAX_MAPPED_BYTES: u64 = 1 << 40;

/// The buffers of this process by their addresses.
static BUFFERS: PerProcess<Mutex<BTreeMap<u64, Arc<File>>>> =
    PerProcess::new(|| Mutex::new(Rank::Buffers, BTreeMap::new()));
/// Bytes of other processes that are mapped here, and in how many buffers.
static MAPPED: PerProcess<(AtomicU64, AtomicUsize)> = PerProcess::new(Default::default);

/// A buffer of whole pages, zero at first, that local peers may map. Its pages are given back with
/// it.
#[derive(Debug)]
pub struct Buffer(Arc<File>);

/// See [`Buffer`].
#[derive(Debug)]
pub(crate) struct File {
    memory: SharedMemory,
    fd: Fd,
    generation: u32,
    given: Mutex<Given>,
}

/// What local peers were given of a buffer.
#[derive(Debug, Default)]
struct Given {
    how: Option<How>,
    to: Vec<(u64, Weak<dyn Connection>)>,
}

/// How a buffer may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// To be read.
    Read,
    /// To be read and written.
    Write,
}

impl How {
    /// How the region of these rights (`enum ibv_access_flags`) may be mapped; `None` where it may
    /// not.
    fn of(access: u32) -> Option<Self> {
        let has = |right| access & right != 0;
        match (has(Access::REMOTE_READ), has(Access::REMOTE_WRITE)) {
            (true, true) => Some(Self::Write),
            (true, false) => Some(Self::Read),
            (false, _) => None,
        }
    }
}

/// A buffer of at least `len` bytes. `None` where there is none to be had, or processes of this
/// host speak by the network only (`VERBENA_SAME_HOST=off`): any other memory serves as well then.
#[must_use]
pub fn take(len: usize) -> Option<Buffer> {
    let bytes = len.max(1).checked_next_multiple_of(PAGE)?;
    // A file that is longer than the process may have is answered with a signal.
    let most = (limits::memory_of_machine() as u64).min(limits::longest_file());
    if same_host::wish() == Ok(Wish::Off) || bytes as u64 > most {
        return None;
    }
    let most = (limits::descriptors() / OF_DESCRIPTORS).min(MAX_BUFFERS);
    if BUFFERS.get().lock().len() >= most {
        return None;
    }
    let (memory, fd) = SharedMemory::create_named(c"verbena memory", bytes).ok()?;
    memory.keep_in_children();
    let given = Mutex::new(Rank::BufferGiven, Given::default());
    let file = Arc::new(File { memory, fd, generation: fork::generation(), given });
    BUFFERS.get().lock().insert(file.address(), file.clone());
    Some(Buffer(file))
}

/// Whether an address is of a buffer of this process.
pub(crate) fn holds(addr: u64) -> bool {
    let buffers = BUFFERS.get().lock();
    let before = buffers.range(..=addr).next_back();
    before.is_some_and(|(first, file)| addr - first < file.len() as u64)
}

/// Gives a local peer the buffer that a region is, where it is one and the region's rights allow
/// that, and has the local peer told of it. Whether the local peer has it.
pub(crate) fn give(addr: u64, len: u64, access: u32, to: &Arc<dyn Connection>) -> bool {
    let Some(how) = How::of(access) else { return false };
    let file = BUFFERS.get().lock().get(&addr).cloned();
    file.filter(|file| len.next_multiple_of(PAGE as u64) == file.len() as u64)
        .is_some_and(|file| file.give(how, to))
}

impl File {
    fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn len(&self) -> usize {
        size_of_val(&*self.memory)
    }

    fn give(&self, how: How, to: &Arc<dyn Connection>) -> bool {
        let mut given = self.given.lock();
        match given.how {
            None if how == How::Read && !self.memory.seal_future_writes(&self.fd) => return false,
            Some(before) if before != how => return false,
            _ => given.how = Some(how),
        }
        given.to.retain(|(_, known)| known.strong_count() > 0);
        if given.to.iter().any(|(token, _)| *token == to.token()) {
            return true;
        }
        let told = to.export_buffer(self.address(), how == How::Write, &self.fd);
        if told {
            given.to.push((to.token(), Arc::downgrade(to)));
        }
        told
    }
}

impl Buffer {
    /// The buffer's first byte, at a multiple of 4,096.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.memory.as_ptr().cast::<u8>().cast_mut()
    }

    /// Bytes, a multiple of 4,096.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A forked child maps the same pages, which are its parent's.
        if self.0.generation != fork::generation() {
            return;
        }
        BUFFERS.get().lock().remove(&self.0.address());
        for (_, connection) in std::mem::take(&mut self.0.given.lock().to) {
            if let Some(connection) = connection.upgrade() {
                connection.tell_gone(self.0.address());
            }
        }
        // A local peer that keeps it mapped keeps none of its pages, where the system can take
        // them.
        self.0.memory.give_back(&(0..self.len()));
    }
}

/// Buffers of another process that are mapped here, too, by their addresses there.
#[derive(Clone, Default)]
pub(crate) struct Theirs(Vec<Arc<Mapped>>);

/// A buffer of another process that is mapped here, too.
struct Mapped {
    memory: SharedMemory,
    /// Where the other process has the buffer.
    address: u64,
    how: How,
    generation: u32,
}

impl Theirs {
    /// A copy of this list with one more buffer, which the process has at an address.
    ///
    /// # Errors
    ///
    /// EINVAL for memory that may change its length, is longer than the machine's, or can not be
    /// mapped where the other process says; ENOMEM where too much is mapped; those of mmap(2).
    pub(crate) fn with(&self, fd: &Fd, address: u64, writable: bool) -> std::io::Result<Self> {
        if !address.is_multiple_of(PAGE as u64) {
            return Err(Errno::EINVAL.into());
        }
        let how = if writable { How::Write } else { How::Read };
        let mapped = Mapped::new(fd, address, how)?;
        let end = address.checked_add(mapped.len()).ok_or(Errno::EINVAL)?;
        // What lay there before is gone.
        let is_apart = |other: &Arc<Mapped>| end <= other.address || other.address + other.len() <= address;
        let mut all: Vec<_> = self.0.iter().filter(|other| is_apart(other)).cloned().collect();
        let at = all.partition_point(|other| other.address < address);
        all.insert(at, Arc::new(mapped));
        Ok(Self(all))
    }

    /// A copy of this list without the buffer at this address.
    pub(crate) fn without(&self, address: u64) -> Self {
        Self(self.0.iter().filter(|other| other.address != address).cloned().collect())
    }

    /// Where `len` bytes are here that the other process has at an address; `None` where they are
    /// in none of the buffers, or may not be written to.
    #[inline]
    pub(crate) fn at(&self, addr: u64, len: u64, how: How) -> Option<NonNull<u8>> {
        let behind = self.0.partition_point(|mapped| mapped.address <= addr);
        let mapped = &self.0[behind.checked_sub(1)?];
        let begin = usize::try_from(addr - mapped.address).ok()?;
        let end = begin.checked_add(usize::try_from(len).ok()?)?;
        let allowed = how == How::Read || mapped.how == How::Write;
        mapped.memory.bytes(&(begin..end)).filter(|_| allowed)
    }
}

impl Mapped {
    fn new(fd: &Fd, address: u64, how: How) -> std::io::Result<Self> {
        let (bytes, count) = MAPPED.get();
        let most = limits::memory_of_machine();
        let memory = match how {
            How::Read => SharedMemory::open_read_only(fd, most)?,
            How::Write => SharedMemory::open(fd, most)?,
        };
        let len = size_of_val(&*memory) as u64;
        let mapped = Self { memory, address, how, generation: fork::generation() };
        let before = (bytes.fetch_add(len, Ordering::Relaxed), count.fetch_add(1, Ordering::Relaxed));
        if before.0 + len > MAX_MAPPED_BYTES || before.1 >= MAX_MAPPED {
            return Err(Errno::ENOMEM.into());
        }
        mapped.memory.leave_out_of_dumps();
        nic::memory::can_copy_granted();
        Ok(mapped)
    }

    fn len(&self) -> u64 {
        size_of_val(&*self.memory) as u64
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            let (bytes, count) = MAPPED.get();
            bytes.fetch_sub(self.len(), Ordering::Relaxed);
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another mapping of a buffer.
    fn mapped(buffer: &Buffer, writable: bool) -> Theirs {
        Theirs::default().with(&buffer.0.fd, buffer.0.address(), writable).unwrap()
    }

    #[test]
    fn buffers_are_apart_and_zero_and_whole_pages() {
        let Some(first) = take(5000) else { return };
        assert_eq!((first.len(), first.as_ptr() as usize % PAGE), (8192, 0));
        let second = take(1).unwrap();
        assert_eq!(second.len(), 4096);
        let apart = first.as_ptr().wrapping_add(first.len()) <= second.as_ptr()
            || second.as_ptr().wrapping_add(second.len()) <= first.as_ptr();
        assert!(apart);
        // SAFETY: the buffer's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), first.len()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_forked_child_has_the_same_bytes_and_gives_none_of_them_back() {
        let Some(buffer) = take(4096) else { return };
        // SAFETY: the buffer's first word.
        let word = unsafe { buffer.as_ptr().cast::<u64>().as_mut() }.unwrap();
        *word = 7;
        // SAFETY: the child makes a few system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = *word;
            drop(buffer);
            // SAFETY: no destructors run.
            unsafe { libc::_exit(i32::from(seen != 7)) };
        }
        let mut status = -1;
        // SAFETY: a variable of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, *word), (0, 7));
    }

    #[test]
    fn what_there_is_no_room_for_is_not_to_be_had() {
        for len in [usize::MAX, 1 << 60, 1 << 45] {
            assert!(take(len).is_none());
        }
    }

    #[test]
    fn another_mapping_has_the_same_bytes_until_the_buffer_is_gone() {
        let Some(buffer) = take(8192) else { return };
        let theirs = mapped(&buffer, true);
        let addr = buffer.as_ptr() as u64;
        let place = theirs.at(addr + 8, 8, How::Write).unwrap();
        // SAFETY: words of the buffer, in either mapping.
        unsafe {
            place.cast::<u64>().write(99);
            assert_eq!(buffer.as_ptr().add(8).cast::<u64>().read_volatile(), 99);
        }
        let none = [(addr - 1, 1), (0, 8), (u64::MAX, 8), (addr + 8184, 9), (addr, u64::MAX)];
        assert!(none.iter().all(|&(addr, len)| theirs.at(addr, len, How::Read).is_none()));
        assert!(theirs.at(addr + 8184, 8, How::Read).is_some());
        assert!(theirs.with(&buffer.0.fd, addr + 8, true).is_err(), "no page begins there");
        assert!(theirs.without(addr).at(addr, 8, How::Read).is_none());
        drop(buffer);
        // SAFETY: what is still mapped here.
        assert_eq!(unsafe { place.cast::<u64>().read_volatile() }, 0, "its pages are given back");
    }

    #[test]
    fn what_may_be_read_only_is_not_written_to_by_whatever_descriptor() {
        let Some(buffer) = take(4096) else { return };
        assert!(buffer.0.memory.seal_future_writes(&buffer.0.fd));
        let theirs = mapped(&buffer, false);
        let addr = buffer.as_ptr() as u64;
        assert!(theirs.at(addr, 8, How::Read).is_some() && theirs.at(addr, 8, How::Write).is_none());
        assert!(SharedMemory::open(&buffer.0.fd, 4096).is_err());
        use std::os::fd::AsRawFd;
        let again = format!("/proc/self/fd/{}", buffer.0.fd.as_raw_fd());
        let again = std::fs::OpenOptions::new().read(true).write(true).open(again);
        let written = again.and_then(|mut file| std::io::Write::write(&mut file, b"x"));
        assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // SAFETY: the buffer's first word; its owner still writes to it.
        unsafe { buffer.as_ptr().cast::<u64>().write(5) };
    }

    #[test]
    fn the_sum_of_what_local_peers_show_is_bounded() {
        let (bytes, _) = MAPPED.get();
        let Some(buffer) = take(4096) else { return };
        bytes.fetch_add(MAX_MAPPED_BYTES, Ordering::Relaxed);
        let mapped = Theirs::default().with(&buffer.0.fd, buffer.0.address(), true);
        bytes.fetch_sub(MAX_MAPPED_BYTES, Ordering::Relaxed);
        assert!(mapped.is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM)));
    }

    #[test]
    fn a_region_is_mapped_as_it_lets_peers_read_it_and_no_otherwise() {
        const READ: u32 = Access::REMOTE_READ;
        const WRITE: u32 = Access::REMOTE_WRITE;
        let cases = [(READ, Some(How::Read)), (READ | WRITE, Some(How::Write)), (WRITE, None), (0, None)];
        assert!(cases.iter().all(|&(access, how)| How::of(access) == how));
    }
}
