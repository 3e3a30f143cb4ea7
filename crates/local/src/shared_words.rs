//! Words of memory that processes share, for whatever else they share beside rings.

use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicU64;

use sys::fork::{self, Fd};

use crate::memory::SharedMemory;

/// Words that other processes map, too, of a number that none of them can change. In a forked
/// child there are none.
#[derive(Debug)]
pub struct SharedWords {
    memory: SharedMemory,
    generation: u32,
}

impl SharedWords {
    /// New words, `len` bytes of them (whole pages), all zero; and the descriptor by which another
    /// process maps them. The name is for /proc/PID/maps.
    ///
    /// # Errors
    ///
    /// What memfd_create(2), ftruncate(2) and mmap(2) say.
    pub fn create(name: &CStr, len: usize) -> io::Result<(Self, Fd)> {
        let (memory, fd) = SharedMemory::create_sized(name, len)?;
        Ok((Self { memory, generation: fork::generation() }, fd))
    }

    /// Words that another process made, at most `most` bytes.
    ///
    /// # Errors
    ///
    /// EINVAL where their number may change or does not fit; those of mmap(2).
    pub fn open(fd: &Fd, most: usize) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::open(fd, most)?, generation: fork::generation() })
    }
}

impl AsRef<[AtomicU64]> for SharedWords {
    #[inline]
    fn as_ref(&self) -> &[AtomicU64] {
        if self.generation == fork::generation() { &self.memory } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn both_ends_see_the_same_words_and_none_more_than_it_allows() {
        let (ours, fd) = SharedWords::create(c"test", 8192).unwrap();
        let theirs = SharedWords::open(&fd, 8192).unwrap();
        ours.as_ref()[1023].store(5, Relaxed);
        assert_eq!((theirs.as_ref().len(), theirs.as_ref()[1023].load(Relaxed)), (1024, 5));
        assert!(SharedWords::open(&fd, 4096).is_err());
    }
}
