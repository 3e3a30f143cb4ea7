//! Memory that processes share (memfd_create(2)), of a size that none of them can change.

use std::ffi::CStr;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nic::Errno;
use sys::file_size;
use sys::fork::{self, Fd};
use transport::op::SharedBytes;

use crate::ring::Word;

/// The length stays what it is, so an access to mapped memory never faults. Seals can not be
/// taken off again.
const LENGTH: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

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

/// A part of shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    first: NonNull<Word>,
    words: usize,
    _memory: Arc<SharedMemory>,
}

// SAFETY: as for the whole.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl SharedMemory {
    /// New memory of `len` bytes (whole pages), all zero, and the descriptor by which another
    /// process maps it.
    pub(crate) fn create(len: usize) -> io::Result<(Self, Fd)> {
        Self::create_sealed(c"verbena ring", len, LENGTH | libc::F_SEAL_SEAL)
    }

    /// Like [`SharedMemory::create`], of another name, which /proc/PID/maps shows.
    #[cfg(not(loom))]
    pub(crate) fn create_sized(name: &CStr, len: usize) -> io::Result<(Self, Fd)> {
        Self::create_sealed(name, len, LENGTH | libc::F_SEAL_SEAL)
    }

    /// New memory of another name, which /proc/PID/maps shows. It takes one more seal
    /// ([`SharedMemory::seal_future_writes`]).
    pub(crate) fn create_named(name: &CStr, len: usize) -> io::Result<(Self, Fd)> {
        Self::create_sealed(name, len, LENGTH)
    }

    /// Like [`SharedMemory::create`], for memory that no other process can write to.
    pub(crate) fn create_read_only(len: usize) -> io::Result<(Self, Fd)> {
        let seals = LENGTH | libc::F_SEAL_SEAL | libc::F_SEAL_FUTURE_WRITE;
        Self::create_sealed(c"verbena ring", len, seals)
    }

    fn create_sealed(name: &CStr, len: usize, seals: i32) -> io::Result<(Self, Fd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a string that lives across the call.
        let fd = Fd::open_raw(|| unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        let raw = fd.as_raw_fd();
        file_size::without_signal(|| {
            // SAFETY: integers only.
            let grown = unsafe { libc::ftruncate(raw, len as libc::off_t) } == 0;
            if grown { Ok(()) } else { Err(io::Error::last_os_error()) }
        })?;
        let memory = Self::map(&fd, len, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: integers only.
        if unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((memory, fd))
    }

    /// Memory that another process made, at most `most` bytes.
    ///
    /// # Errors
    ///
    /// EINVAL where its size may change or does not fit; those of mmap(2).
    pub(crate) fn open(fd: &Fd, most: usize) -> io::Result<Self> {
        Self::open_as(fd, most, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Like [`SharedMemory::open`], to read only. Nothing may be stored there.
    pub(crate) fn open_read_only(fd: &Fd, most: usize) -> io::Result<Self> {
        Self::open_as(fd, most, libc::PROT_READ)
    }

    fn open_as(fd: &Fd, most: usize, rights: i32) -> io::Result<Self> {
        let raw = fd.as_raw_fd();
        // SAFETY: integers only.
        let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
        if seals < 0 || seals & LENGTH != LENGTH {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: all zero is a valid stat, which the kernel fills.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: one stat that lives across the call.
        if unsafe { libc::fstat(raw, &raw mut about) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match usize::try_from(about.st_size) {
            Ok(len) if len > 0 && len <= most && len.is_multiple_of(4096) => Self::map(fd, len, rights),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// From now on no other mapping of it is written to; this one is. Whether that is so.
    pub(crate) fn seal_future_writes(&self, fd: &Fd) -> bool {
        // SAFETY: integers only. The descriptor is that of this memory.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) == 0 }
    }

    /// Has it stay in forked children, where it is the same memory.
    pub(crate) fn keep_in_children(&self) {
        self.advise(&(0..size_of_val(&**self)), libc::MADV_DOFORK);
    }

    /// Leaves the memory out of dumps of this process: it is another process's.
    pub(crate) fn leave_out_of_dumps(&self) {
        self.advise(&(0..size_of_val(&**self)), libc::MADV_DONTDUMP);
    }

    /// Gives pages back to the system; they are zero from then on. False where they are what they
    /// were.
    pub(crate) fn give_back(&self, pages: &Range<usize>) -> bool {
        self.advise(pages, libc::MADV_REMOVE)
    }

    fn advise(&self, pages: &Range<usize>, advice: i32) -> bool {
        let Some(at) = self.bytes(pages) else { return false };
        // SAFETY: pages of the mapping. What two processes share is looked at as atomics or by raw
        // copies, of which none minds that it becomes zero.
        unsafe { libc::madvise(at.as_ptr().cast(), pages.len(), advice) == 0 }
    }

    /// Where the first byte of a range is; `None` where it is not all in it.
    #[inline]
    pub(crate) fn bytes(&self, range: &Range<usize>) -> Option<NonNull<u8>> {
        let inside = range.start <= range.end && range.end <= self.words * size_of::<Word>();
        // SAFETY: inside of the mapping, or just after it.
        inside.then(|| unsafe { self.address.cast::<u8>().add(range.start) })
    }

    /// The first `bytes` bytes, and the others; `None` where there are not so many.
    pub(crate) fn split(self, bytes: usize) -> Option<(Part, Part)> {
        let memory = Arc::new(self);
        let (first, second) = memory.split_at_checked(bytes / size_of::<Word>())?;
        let part = |words: &[Word]| Part {
            first: NonNull::from(words).cast(),
            words: words.len(),
            _memory: memory.clone(),
        };
        Some((part(first), part(second)))
    }

    fn map(fd: &Fd, len: usize, rights: i32) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping that was just made. Where it fails a forked child keeps it mapped,
        // and never looks at it.
        unsafe { libc::madvise(address, len, libc::MADV_DONTFORK) };
        let address = NonNull::new(address.cast::<Word>()).ok_or(Errno::ENOMEM)?;
        Ok(Self { address, words: len / size_of::<Word>(), generation: fork::generation() })
    }
}

impl Deref for SharedMemory {
    type Target = [Word];

    #[inline]
    fn deref(&self) -> &[Word] {
        // SAFETY: mapped while `self` lives, page-aligned, of a size that is sealed, and any bytes
        // make atomic integers. In a forked child it is not mapped; an object that holds it there
        // is inert and does not look (`linux::LinuxEnv::is_ours`).
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }
}

impl Deref for Part {
    type Target = [Word];

    #[inline]
    fn deref(&self) -> &[Word] {
        // SAFETY: words of the memory that the part keeps.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.words) }
    }
}

// Word by word a processor moves 8 bytes a cycle, and looks few lines ahead of those that it
// fetches from the other one's cache.
#[cfg(target_arch = "x86_64")]
impl crate::ring::Memory for Part {
    #[inline]
    fn store(words: &[Word], bytes: &[[u8; 8]]) {
        let len = words.len().min(bytes.len()) * size_of::<Word>();
        // SAFETY: atomics may be written through a shared borrow, and there are so many bytes of
        // both.
        unsafe { copy(words.as_ptr().cast_mut().cast(), bytes.as_ptr().cast(), len) }
    }

    #[inline]
    fn load(words: &[Word], bytes: &mut [[u8; 8]]) {
        let len = words.len().min(bytes.len()) * size_of::<Word>();
        // SAFETY: there are so many bytes of both.
        unsafe { copy(bytes.as_mut_ptr().cast(), words.as_ptr().cast(), len) }
    }

    #[inline]
    fn fetch(word: &Word) {
        // SAFETY: every processor of this architecture has the instruction, which changes nothing
        // but what is in its caches.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                std::ptr::from_ref(word).cast(),
            )
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl crate::ring::Memory for Part {}

/// Copies bytes that another process may change meanwhile: each comes from some moment of the copy.
/// The copy comes after what was loaded before it and before what is stored after it (Intel SDM,
/// volume 3A, "Fast-String Operation and Out-of-Order Stores").
///
/// # Safety
///
/// `from` and `to` are `len` bytes that may be read and written, and do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as the caller says. The direction flag is clear, as the ABI has it. What an
    // instruction of the processor's reads while others write it is no data race, as it would be if
    // the language copied.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// The first `len` bytes of words of shared memory, for code that copies to and from there.
pub(crate) fn shared(words: &[Word], len: usize) -> SharedBytes<'_> {
    // SAFETY: words are atomics of eight bytes, in memory that processes share; models of such
    // memory, which are more, are given to no caller.
    let words = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<AtomicU64>(), words.len()) };
    SharedBytes::new(words, len)
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
