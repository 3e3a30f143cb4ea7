//! Memory of this process that the processes of its user map, too: they write and read it by the processor's own instructions, with no system call, where a region of it is
//! granted to them.
//!
//! One file without a name (memfd_create(2)) for all of it, as long as the machine has memory and mapped as a whole: what nobody uses takes none. Buffers are whole
//! pages of it ([`take`]). Who lends to another process hands it the descriptor and says where it is mapped here, and the other one finds an address of
//! ours at the same distance from the begin of its own mapping.
//!
//! It is there from the first buffer on. A process that maps it could write to all of it, as one that may copy to another's memory could to all of that: processes of one
//! user trust each other so far, and so do those that share memory by UCX or MPI.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use locks::{Mutex, Rank};
use nic::Errno;
use range_alloc::RangeAllocator;

use crate::fork::{self, Fd};
use crate::per_process::PerProcess;
use crate::process::environment::{self, SameHost};
use crate::rings::memory::SharedMemory;
use crate::sys::limits;

const PAGE: usize = 4096;
/// Bytes of one at least, and at most.
const FEWEST: usize = 64 << 20;
const MOST: usize = 1 << 40;

static ARENA: PerProcess<Mutex<Option<&'static Arena>>> = PerProcess::new(|| Mutex::new(Rank::Arena, None));
/// The same, to look at.
static MADE: PerProcess<AtomicPtr<Arena>> = PerProcess::new(|| AtomicPtr::new(std::ptr::null_mut()));

/// The arena of this process. It stays as long as the process.
pub(crate) struct Arena {
    memory: SharedMemory,
    fd: Fd,
    free: Mutex<RangeAllocator<usize>>,
    generation: u32,
}

/// A buffer of whole pages, zero at first, that neighbours may map. Its pages are given back with it.
#[derive(Debug)]
pub struct Buffer {
    at: NonNull<u8>,
    range: Range<usize>,
    arena: &'static Arena,
}

// SAFETY: an address and a range; who may touch which byte when is the matter of whoever has the buffer.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// A buffer of at least `len` bytes. `None` where there is none to be had, or processes of this host speak by the network only (`VERBENA_SAME_HOST=off`): any other
/// memory serves as well then.
#[must_use]
pub fn take(len: usize) -> Option<Buffer> {
    let bytes = len.max(1).checked_next_multiple_of(PAGE)?;
    arena()?.take(bytes)
}

/// This process's arena, made now where there is none yet.
fn arena() -> Option<&'static Arena> {
    if let Some(arena) = made() {
        return Some(arena);
    }
    if environment::same_host() == Ok(SameHost::Off) {
        return None;
    }
    let mut arena = ARENA.get().lock();
    if arena.is_none() {
        let new: &'static Arena = Box::leak(Box::new(Arena::new()?));
        MADE.get().store(std::ptr::from_ref(new).cast_mut(), Ordering::Release);
        *arena = Some(new);
    }
    *arena
}

/// This process's arena, where there is one.
#[inline]
pub(crate) fn made() -> Option<&'static Arena> {
    // SAFETY: NULL, or what `arena` leaked.
    unsafe { MADE.get().load(Ordering::Acquire).as_ref() }
}

impl Arena {
    fn new() -> Option<Arena> {
        let mut len = limits::memory_of_machine().next_multiple_of(FEWEST).clamp(FEWEST, MOST);
        // A process may have a limit of addresses, and one of the length of files, which is told by a signal.
        while len >= FEWEST && len as u64 <= limits::longest_file() {
            if let Ok((memory, fd)) = SharedMemory::create_named(c"verbena memory", len) {
                memory.keep_in_children();
                let free = Mutex::new(Rank::ArenaRanges, RangeAllocator::new(0..len));
                return Some(Arena { memory, fd, free, generation: fork::generation() });
            }
            len /= 4;
        }
        None
    }

    fn take(&'static self, bytes: usize) -> Option<Buffer> {
        let range = self.free.lock().allocate_range(bytes).ok()?;
        let at = self.memory.bytes(&range)?;
        Some(Buffer { at, range, arena: self })
    }

    /// Where it is mapped in this process.
    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// By which another process maps it.
    pub(crate) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Whether an address is of it.
    pub(crate) fn contains(&self, addr: u64) -> bool {
        addr.checked_sub(self.address()).is_some_and(|at| at < size_of_val(&*self.memory) as u64)
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes at {:#x})", size_of_val(&*self.memory), self.address())
    }
}

impl Buffer {
    /// Its first byte, at a multiple of 4,096.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Bytes, a multiple of 4,096.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A forked child maps the same pages, which are its parent's.
        if self.arena.generation != fork::generation() {
            return;
        }
        // What could not be given back to the system is not zero, and nobody's any more.
        if self.arena.memory.give_back(&self.range) {
            self.arena.free.lock().free_range(self.range.clone());
        }
    }
}

/// Another process's arena, mapped here, too.
pub(crate) struct Theirs {
    memory: SharedMemory,
    /// Where that process has it.
    address: u64,
}

impl Theirs {
    /// # Errors
    ///
    /// EINVAL for memory that may change its length, or that can not be mapped where the other one says; those of mmap(2).
    pub(crate) fn new(fd: &Fd, address: u64) -> std::io::Result<Theirs> {
        if !address.is_multiple_of(PAGE as u64) {
            return Err(Errno::EINVAL.into());
        }
        let memory = SharedMemory::open(fd, MOST)?;
        memory.leave_out_of_dumps();
        nic::memory::can_copy_granted();
        Ok(Theirs { memory, address })
    }

    /// Where `len` bytes are here that the other process has at an address; `None` where they are not of its arena.
    #[inline]
    pub(crate) fn at(&self, addr: u64, len: u64) -> Option<NonNull<u8>> {
        let begin = usize::try_from(addr.checked_sub(self.address)?).ok()?;
        let end = begin.checked_add(usize::try_from(len).ok()?)?;
        self.memory.bytes(&(begin..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_zero_also_where_one_was_before() {
        let Some(first) = take(5000) else { return };
        assert_eq!((first.len(), first.as_ptr() as usize % PAGE), (8192, 0));
        let second = take(1).unwrap();
        assert_eq!(second.len(), 4096);
        let apart = first.as_ptr().wrapping_add(first.len()) <= second.as_ptr()
            || second.as_ptr().wrapping_add(second.len()) <= first.as_ptr();
        assert!(apart);
        // SAFETY: the buffer's bytes.
        unsafe { first.as_ptr().write_bytes(7, first.len()) };
        let was = first.as_ptr();
        drop(first);
        let third = take(8192).unwrap();
        assert_eq!(third.as_ptr(), was, "addresses are used again");
        // SAFETY: the buffer's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(third.as_ptr(), third.len()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        let arena = made().unwrap();
        assert!(arena.contains(was as u64) && !arena.contains(&raw const arena as u64));
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
            unsafe { libc::_exit(i32::from(seen != 7 || made().is_some())) };
        }
        let mut status = -1;
        // SAFETY: a variable of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, *word), (0, 7));
    }

    #[test]
    fn what_there_is_no_room_for_is_not_to_be_had() {
        for len in [usize::MAX, 1 << 60, MOST + 1] {
            assert!(take(len).is_none());
        }
    }

    #[test]
    fn another_mapping_has_the_same_bytes_at_the_same_distance() {
        let Some(buffer) = take(4096) else { return };
        let arena = made().unwrap();
        let theirs = Theirs::new(arena.fd(), arena.address()).unwrap();
        let at = |addr, len| theirs.at(addr, len);
        let addr = buffer.as_ptr() as u64;
        let place = at(addr + 8, 8).unwrap();
        // SAFETY: words of the buffer, in either mapping.
        unsafe {
            place.cast::<u64>().write(99);
            assert_eq!(buffer.as_ptr().add(8).cast::<u64>().read_volatile(), 99);
        }
        let len = size_of_val(&*arena.memory) as u64;
        assert!(at(arena.address() - 1, 1).is_none() && at(0, 8).is_none() && at(u64::MAX, 8).is_none());
        assert!(at(arena.address() + len - 8, 8).is_some());
        assert!(at(arena.address() + len - 8, 9).is_none() && at(addr, u64::MAX).is_none());
        assert!(Theirs::new(arena.fd(), arena.address() + 8).is_err());
    }
}
