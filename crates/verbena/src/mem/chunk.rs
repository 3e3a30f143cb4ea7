//! Where bytes are: an allocation, a mapped file, memory of the program's own, or not the
//! processor's at all. It knows nothing of registrations and makes no reference to its bytes; code
//! that does says why it may.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use super::access::Access;
use super::opaque::Outside;
use crate::error::{Error, ErrorKind, Result};

/// Alignment and granularity of what is allocated here.
pub(super) const PAGE: usize = 4096;

/// What is as long as a large page begins with one, so that it can lie in such
/// ([`nic::Platform::large_pages`]).
const LARGE_PAGE: usize = 2 << 20;

/// Bytes at a fixed place. All are initialised. After the last there is room up to the next
/// multiple of eight, which no other object uses.
pub(super) struct Chunk {
    at: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// The allocator's, of this layout.
    Heap(Layout),
    /// A mapping of so many bytes.
    File(usize),
    /// A mapping of so many bytes, without a file.
    Anonymous(usize),
    /// Of the memory that processes of this host map.
    #[cfg(feature = "software")]
    Arena(#[expect(dead_code, reason = "it keeps the bytes")] local::arena::Buffer),
    /// A simulated host's.
    #[cfg(feature = "sim")]
    Simulated(::sim::Mapped),
    /// The program's, which is told of the end.
    Program(Option<Box<dyn FnOnce() + Send>>),
    /// Not the processor's; it has no place.
    Outside(Outside),
}

// SAFETY: an address, a length, and a closure that is `Send` and is touched in `drop` only; or what
// stands for other memory. Which code may touch which byte when is decided by the handles over the
// chunk (see the module).
unsafe impl Send for Chunk {}
// SAFETY: as above; nothing is done through `&Chunk` but reading the address and the length.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// `len` zero bytes, in whole pages of their own.
    pub(super) fn zeroed(call: &'static str, len: usize) -> Result<Self> {
        let no_room = || Error::new(ErrorKind::Exhausted, call);
        let pages = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(no_room)?;
        if pages >= LARGE_PAGE {
            return Self::anonymous(pages)
                .map(|at| Self { at, len, owner: Owner::Anonymous(pages) })
                .ok_or_else(no_room);
        }
        let layout = Layout::from_size_align(pages, PAGE).map_err(|_| no_room())?;
        // SAFETY: the layout has at least a page.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_room)?;
        Ok(Self { at, len, owner: Owner::Heap(layout) })
    }

    /// Like [`Chunk::zeroed`], for what peers write and read: where it can, in memory that
    /// processes of this host map, too, which they reach without a system call. An adapter has no
    /// use for that.
    pub(super) fn zeroed_for_peers(call: &'static str, len: usize) -> Result<Self> {
        #[cfg(feature = "software")]
        if !crate::provider::has_opened_libraries()
            && let Some(buffer) = local::arena::take(len)
            && let Some(at) = NonNull::new(buffer.as_ptr())
        {
            return Ok(Self { at, len, owner: Owner::Arena(buffer) });
        }
        Self::zeroed(call, len)
    }

    /// Maps so many zero bytes that begin with a large page. Nothing of them is in memory yet: it
    /// comes in when it is registered, as large pages where there are such.
    fn anonymous(bytes: usize) -> Option<NonNull<u8>> {
        let room = bytes.checked_add(LARGE_PAGE)?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel finds room.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), room, rights, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let before = at.addr().next_multiple_of(LARGE_PAGE) - at.addr();
        // SAFETY: parts of the mapping of just now, in whole pages, whose address no code has yet.
        // That they can not be given back costs addresses, no memory.
        unsafe {
            if before > 0 {
                libc::munmap(at, before);
            }
            libc::munmap(at.add(before + bytes), LARGE_PAGE - before);
            NonNull::new(at.add(before).cast())
        }
    }

    /// All of a file as it is now, shared with all processes that map it.
    pub(super) fn map(call: &'static str, file: &File) -> Result<Self> {
        let io = |e: std::io::Error| Error::of_io(call, &e);
        let bytes = file.metadata().map_err(io)?.len();
        let len = usize::try_from(bytes).ok().filter(|len| (1..=isize::MAX as usize - PAGE).contains(len));
        let len = len.ok_or_else(|| {
            Error::number(call, "length of the file", bytes, 1..=(isize::MAX as u64 - PAGE as u64))
        })?;
        let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping where the kernel finds room; the descriptor is open.
        let map = |flags| unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, fd, 0) };
        // Where the file system has it, cache lines are all that is to be written back (mmap(2)).
        let synchronous = map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
        let at = if synchronous == libc::MAP_FAILED { map(libc::MAP_SHARED) } else { synchronous };
        if at == libc::MAP_FAILED {
            return Err(io(std::io::Error::last_os_error()));
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| Error::new(ErrorKind::System, call))?;
        Ok(Self { at, len, owner: Owner::File(len) })
    }

    /// A file of a simulated host.
    #[cfg(feature = "sim")]
    pub(super) fn simulated(mapped: ::sim::Mapped) -> Self {
        let at = NonNull::new(mapped.first().cast_mut().cast());
        // A slice begins somewhere.
        Self { at: at.unwrap_or(NonNull::dangling()), len: mapped.len(), owner: Owner::Simulated(mapped) }
    }

    /// The program's memory; `at` and `len` are multiples of eight.
    ///
    /// # Safety
    ///
    /// That of [`Memory::from_raw`](crate::Memory::from_raw).
    pub(super) unsafe fn of_program(at: NonNull<u8>, len: usize, done: Box<dyn FnOnce() + Send>) -> Self {
        Self { at, len, owner: Owner::Program(Some(done)) }
    }

    /// Bytes of another owner, of any length, at any place: no code looks at them by a
    /// [`SharedSlice`](super::SharedSlice).
    ///
    /// # Safety
    ///
    /// They are there as long as the chunk.
    pub(super) unsafe fn borrowed(at: NonNull<u8>, len: usize) -> Self {
        Self { at, len, owner: Owner::Program(None) }
    }

    /// Memory that is not the processor's.
    pub(super) fn outside(outside: Outside, len: usize) -> Self {
        Self { at: NonNull::dangling(), len, owner: Owner::Outside(outside) }
    }

    /// What it is, where it is not the processor's.
    pub(super) fn as_outside(&self) -> Option<&Outside> {
        match &self.owner {
            Owner::Outside(outside) => Some(outside),
            _ => None,
        }
    }
    /// The rights that registrations of it may have at most.
    pub(super) fn most(&self) -> Access {
        self.as_outside().map_or(Access::ALL, Outside::most)
    }

    /// The first byte, where it is the processor's.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
    /// Whether the bytes are a file's.
    pub(super) fn is_file(&self) -> bool {
        match self.owner {
            Owner::File(_) => true,
            #[cfg(feature = "sim")]
            Owner::Simulated(_) => true,
            #[cfg(feature = "software")]
            Owner::Arena(_) => false,
            Owner::Heap(_) | Owner::Anonymous(_) | Owner::Program(_) | Owner::Outside(_) => false,
        }
    }
    /// The simulated host's file that it is.
    #[cfg(feature = "sim")]
    pub(super) fn mapped(&self) -> Option<&::sim::Mapped> {
        if let Owner::Simulated(mapped) = &self.owner { Some(mapped) } else { None }
    }

    /// Waits until bytes of a mapped file, all inside, lie on its storage.
    pub(super) fn sync(&self, range: Range<usize>) -> std::io::Result<()> {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE);
        let start = range.start / page * page;
        // SAFETY: inside of the mapping; msync changes no content.
        let code = unsafe {
            let at = self.at.as_ptr().add(start).cast();
            libc::msync(at, range.end.saturating_sub(start), libc::MS_SYNC)
        };
        if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        match &mut self.owner {
            // SAFETY: allocated in `zeroed` with this layout; no handle has the chunk any more.
            Owner::Heap(layout) => unsafe { dealloc(self.at.as_ptr(), *layout) },
            Owner::File(len) | Owner::Anonymous(len) => {
                // SAFETY: mapped in `map` or `anonymous` with this length; no handle has the chunk
                // any more.
                _ = unsafe { libc::munmap(self.at.as_ptr().cast(), *len) };
            }
            #[cfg(feature = "sim")]
            Owner::Simulated(_) => {}
            // It ends itself.
            #[cfg(feature = "software")]
            Owner::Arena(_) => {}
            Owner::Program(done) => {
                if let Some(done) = done.take() {
                    nic::program::call(done);
                }
            }
            // It ends itself.
            Owner::Outside(_) => {}
        }
    }
}
