//! Memory that two processes share (memfd_create(2)), of a size that neither can change.

use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use nic::Errno;
use ring::Word;

use crate::fork::{self, Fd};

/// What nobody may do to the descriptor any more: so an access to mapped memory never faults.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Shared memory, mapped. It is not there in a forked child.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    address: NonNull<Word>,
    words: usize,
    generation: u32,
}

// SAFETY: words are read and written as atomics, by any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory of `len` bytes (whole pages), all zero, and the descriptor by which another process maps it.
    pub(crate) fn create(len: usize) -> io::Result<(SharedMemory, Fd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a string that lives as long as the process.
        let fd = Fd::open_raw(|| unsafe { libc::memfd_create(c"verbena ring".as_ptr(), flags) })?;
        let raw = fd.as_raw_fd();
        // SAFETY: integers only.
        let made = unsafe {
            libc::ftruncate(raw, len as libc::off_t) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) == 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        Ok((SharedMemory::map(&fd, len)?, fd))
    }

    /// Memory that another process made, at most `most` bytes.
    ///
    /// # Errors
    ///
    /// EINVAL where its size may change or does not fit; those of mmap(2).
    pub(crate) fn open(fd: &Fd, most: usize) -> io::Result<SharedMemory> {
        let raw = fd.as_raw_fd();
        // SAFETY: integers only.
        let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: all zero is a valid stat, which the kernel fills.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: one stat that lives across the call.
        if unsafe { libc::fstat(raw, &raw mut about) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match usize::try_from(about.st_size) {
            Ok(len) if len > 0 && len <= most && len.is_multiple_of(4096) => SharedMemory::map(fd, len),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn map(fd: &Fd, len: usize) -> io::Result<SharedMemory> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping that was just made. Where it fails a forked child keeps it mapped, and never looks at it.
        unsafe { libc::madvise(address, len, libc::MADV_DONTFORK) };
        let address = NonNull::new(address.cast::<Word>()).ok_or(Errno::ENOMEM)?;
        Ok(SharedMemory { address, words: len / size_of::<Word>(), generation: fork::generation() })
    }
}

impl Deref for SharedMemory {
    type Target = [Word];

    #[inline]
    fn deref(&self) -> &[Word] {
        // SAFETY: mapped while `self` lives, page-aligned, of a size that is sealed, and any bytes make atomic integers. In a forked child it
        // is not mapped; whoever holds it there is inert and does not look (`RealWorld::is_ours`).
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // In a forked child something else may be at this address by now.
        if self.generation == fork::generation() {
            // SAFETY: the mapping that `map` made, which nothing borrows any more.
            unsafe { libc::munmap(self.address.as_ptr().cast(), self.words * size_of::<Word>()) };
        }
    }
}
