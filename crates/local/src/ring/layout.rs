//! How a ring lies in the memory that two processes share.

use std::ops::Deref;
use std::sync::Arc;

#[cfg(loom)]
pub(super) use loom::sync::atomic;
#[cfg(not(loom))]
pub(super) use std::sync::atomic;

use super::words;
use atomic::Ordering::Acquire;

/// One word of the shared memory.
pub type Word = atomic::AtomicU64;

/// The memory that two processes share. The process that maps it may know a faster way to copy many
/// words than one by one.
pub trait Memory: Deref<Target = [Word]> {
    /// Stores bytes, as many words as there are eights of them.
    fn store(words: &[Word], bytes: &[[u8; 8]]) {
        words::store(words, bytes);
    }

    /// Loads them, at any moment at which the other process stores something else there.
    fn load(words: &[Word], bytes: &mut [[u8; 8]]) {
        words::load(words, bytes);
    }

    /// Has the processor fetch the line of a word that is read soon, while it does other things.
    fn fetch(_word: &Word) {}
}

impl Memory for Arc<[Word]> {}

/// Whether nothing is there to read, as the word says that the reader watches
/// (`Reader::watches`). Where there is, most of it may be in the line after that word's, which is
/// on its way from the writer's processor then.
#[inline]
pub fn seems_empty<M: Memory>(memory: &M, watches: usize) -> bool {
    let is_empty = memory[watches].load(Acquire) == 0;
    if !is_empty && let Some(behind) = memory.get(watches + LINE) {
        M::fetch(behind);
    }
    is_empty
}

/// Words of a line.
pub(super) const LINE: usize = 8;
/// Bytes of a line.
pub(super) const LINE_BYTES: usize = 64;
/// Lines before the records.
pub(super) const HEAD: usize = 2;
/// Where the reader's progress is, and whether it sleeps.
pub(super) const DONE: usize = 0;
pub(super) const ASLEEP: usize = 1;
/// Bytes of a record that are not the message's.
pub(super) const RECORD_HEADER: usize = 8;
/// Where the body of a record begins that has a head and a body (`Writer::push_with`): with a
/// line, so that a long one is copied fast.
pub const BODY: usize = LINE_BYTES - RECORD_HEADER;
/// The length that says that the rest of the ring is left out.
pub(super) const SKIP: u32 = u32::MAX;
/// Fewest lines of records that make a ring.
pub(super) const MIN: usize = 4;

/// Which thread is to be woken when a record is written while the reader sleeps. A process that
/// reads has two that may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WakeTarget {
    /// The thread that is always there.
    Engine,
    /// A thread that came to wait.
    AppThread,
}

impl WakeTarget {
    pub(super) const fn word(self) -> u64 {
        match self {
            Self::Engine => 1,
            Self::AppThread => 2,
        }
    }

    /// What the reader wrote; `None` where it does not sleep. No number is an error: the thread
    /// that is always there is woken.
    pub(super) const fn of(word: u64) -> Option<Self> {
        match word {
            0 => None,
            2 => Some(Self::AppThread),
            _ => Some(Self::Engine),
        }
    }
}

/// The other process wrote what can not be. The ring is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the other end of a ring wrote what can not be")
    }
}

impl std::error::Error for Broken {}

/// Bytes of memory that a ring takes whose records have `bytes` of room, their headers included;
/// whole pages of 4,096 bytes.
pub const fn memory_len(bytes: usize) -> usize {
    (bytes + HEAD * LINE_BYTES).next_multiple_of(4096)
}

/// Lines for records in memory of so many words; `None` where that is no ring.
#[inline]
pub(super) fn capacity(words: usize) -> Option<usize> {
    let lines = (words / LINE).checked_sub(HEAD)?;
    (lines >= MIN).then_some(lines)
}

/// Lines of a record of `len` bytes.
#[inline]
pub(super) fn lines(len: usize) -> usize {
    (RECORD_HEADER + len).div_ceil(LINE_BYTES)
}

/// The first word of a record; never 0.
#[inline]
pub(super) fn header(len: u32, position: u64) -> u64 {
    u64::from(len) << 32 | u64::from(mark(position))
}

/// The lower half of that word.
#[inline]
pub(super) fn mark(position: u64) -> u32 {
    (position as u32) << 1 | 1
}
