//! A look at memory that others change at any time: [`SharedSlice`].
//!
//! Rust's memory model leaves racing accesses undefined unless all of them are atomic and of one
//! size. So there is one size: every access of this process to such memory is an atomic one of
//! eight aligned bytes, also where a copy wants fewer. Bytes at the ends of a copy out are cut out
//! of their word; at the ends of a copy in they are put into it by compare and swap, so that
//! their neighbours in the word keep what others store there meanwhile. [`SharedSlice::word`] gives
//! the same words away. The adapter and other processes are machine code outside of this model, as
//! a device is: on all our machines eight aligned bytes that they store are never seen in part.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::access::Plain;
use crate::error::{Error, Result};

/// Bytes of a word.
const WORD: usize = 8;

/// Bytes that others change at any time: copies in and out, atomic words. A copy may be torn
/// between its aligned words, not inside of one; a [`SharedSlice::word`] is one.
///
/// # Examples
///
/// ```
/// use std::sync::atomic::Ordering;
/// use verbena::{Memory, RemoteWrite};
///
/// let memory = Memory::<RemoteWrite>::zeroed(64)?;
/// let shared = memory.shared();
/// shared.store(8, 7_u32)?;
/// shared.word(0)?.fetch_add(1, Ordering::AcqRel);
/// assert_eq!((shared.load::<u64>(0)?, shared.load::<u32>(8)?), (1, 7));
/// # Ok::<(), verbena::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct SharedSlice<'a> {
    /// All words of which a byte is part of this.
    words: &'a [AtomicU64],
    /// Where in the first word it begins: 0 to 7.
    offset: usize,
    /// Bytes of the slice: no more than the words have after the offset.
    len: usize,
}

impl<'a> SharedSlice<'a> {
    /// The `len` bytes of these words.
    pub(super) fn new(words: &'a [AtomicU64], len: usize) -> Self {
        debug_assert!(len <= words.len() * WORD);
        SharedSlice { words, offset: 0, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where it is not inside.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        self.part("SharedSlice::slice", range.start, range.end.checked_sub(range.start))
    }

    /// Copies out, as many bytes as `to` has.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where they are not inside.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> Result<()> {
        let part = self.part("SharedSlice::copy_to", at, Some(to.len()))?;
        let (head, body, tail) = part.split();
        let (to_head, rest) = to.split_at_mut(head.map_or(0, |(_, bytes)| bytes.len()));
        if let Some((word, bytes)) = head {
            to_head.copy_from_slice(&load(word)[bytes]);
        }
        let (pieces, remainder) = rest.as_chunks_mut::<WORD>();
        for (to, word) in pieces.iter_mut().zip(body) {
            *to = load(word);
        }
        if let Some((word, bytes)) = tail {
            remainder.copy_from_slice(&load(word)[bytes]);
        }
        Ok(())
    }

    /// Copies in.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where there is no room for the bytes.
    pub fn copy_from(&self, at: usize, from: &[u8]) -> Result<()> {
        let part = self.part("SharedSlice::copy_from", at, Some(from.len()))?;
        let (head, body, tail) = part.split();
        let (from_head, rest) = from.split_at(head.map_or(0, |(_, bytes)| bytes.len()));
        if let Some((word, bytes)) = head {
            change(word, bytes, from_head);
        }
        let (pieces, remainder) = rest.as_chunks::<WORD>();
        for (from, word) in pieces.iter().zip(body) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        if let Some((word, bytes)) = tail {
            change(word, bytes, remainder);
        }
        Ok(())
    }

    /// A value, copied out.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where it is not inside.
    pub fn load<T: Plain>(&self, at: usize) -> Result<T> {
        let mut value = T::new_zeroed();
        // SAFETY: all bytes of a T are initialised (`IntoBytes`), any bytes are one (`FromBytes`),
        // and it is borrowed exclusively.
        let to = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
        self.copy_to(at, to)?;
        Ok(value)
    }

    /// A value, copied in.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where there is no room for it.
    pub fn store<T: Plain>(&self, at: usize, value: T) -> Result<()> {
        self.copy_from(at, value.as_bytes())
    }

    /// Eight aligned bytes. Whether peers' atomics are atomic with ours is the device's
    /// `atomic_caps`: always in software. Load it with `Acquire` to see what a peer wrote
    /// before it.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where they are not inside, or `at` is no multiple of eight from the beginning
    /// of the memory.
    pub fn word(&self, at: usize) -> Result<&'a AtomicU64> {
        let part = self.part("SharedSlice::word", at, Some(WORD))?;
        match (part.offset, part.words) {
            (0, [word]) => Ok(word),
            _ => Err(self.outside("SharedSlice::word", at, WORD)),
        }
    }

    fn outside(&self, call: &'static str, at: usize, len: usize) -> Error {
        Error::range(call, at as u64, len as u64, self.len as u64)
    }

    /// `None` stands for a length below zero.
    fn part(&self, call: &'static str, at: usize, len: Option<usize>) -> Result<Self> {
        let inside = len.and_then(|len| at.checked_add(len)).is_some_and(|end| end <= self.len);
        let (Some(len), true) = (len, inside) else { return Err(self.outside(call, at, len.unwrap_or(0))) };
        let (first, offset) = ((self.offset + at) / WORD, (self.offset + at) % WORD);
        let end = first + (offset + len).div_ceil(WORD);
        // There are so many, as `len` says; no words where it is empty.
        let words = self.words.get(first..end).unwrap_or_default();
        Ok(SharedSlice { words, offset, len: if words.is_empty() { 0 } else { len } })
    }

    /// Bytes of a first word, whole words, bytes of a last word.
    fn split(self) -> (End<'a>, &'a [AtomicU64], End<'a>) {
        if self.len == 0 {
            return (None, &[], None);
        }
        let mut words = self.words;
        let mut end = self.offset + self.len;
        let mut head = None;
        if (self.offset > 0 || end < WORD)
            && let Some((first, rest)) = words.split_first()
        {
            head = Some((first, Span { from: self.offset, to: end.min(WORD) }));
            words = rest;
            end = end.saturating_sub(WORD);
        }
        let (body, rest) = words.split_at((end / WORD).min(words.len()));
        let tail = rest.first().filter(|_| !end.is_multiple_of(WORD));
        (head, body, tail.map(|last| (last, Span { from: 0, to: end % WORD })))
    }
}

/// Some bytes of a word.
type End<'a> = Option<(&'a AtomicU64, Span)>;

/// `from..to`, at most 0..8; a range that can be copied.
#[derive(Clone, Copy)]
struct Span {
    from: usize,
    to: usize,
}

impl Span {
    fn len(self) -> usize {
        self.to - self.from
    }
}

impl std::ops::Index<Span> for [u8; WORD] {
    type Output = [u8];
    fn index(&self, span: Span) -> &[u8] {
        &self[span.from..span.to]
    }
}

impl std::ops::IndexMut<Span> for [u8; WORD] {
    fn index_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self[span.from..span.to]
    }
}

fn load(word: &AtomicU64) -> [u8; WORD] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

/// Stores some bytes of a word; the others keep what is there, also what comes there meanwhile.
fn change(word: &AtomicU64, at: Span, bytes: &[u8]) {
    let put = |before: u64| {
        let mut word = before.to_ne_bytes();
        word[at].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(word))
    };
    // It is never refused: `put` always has a word.
    _ = word.try_update(Ordering::Relaxed, Ordering::Relaxed, put);
}

impl std::fmt::Debug for SharedSlice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedSlice({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(u64::MAX)).collect()
    }

    #[test]
    fn copies_of_any_range_touch_that_range_only() {
        for (at, len) in (0..24).flat_map(|at| (0..=24 - at).map(move |len| (at, len))) {
            let words = words(3);
            let all = SharedSlice::new(&words, 24);
            let bytes: Vec<u8> = (1..=len as u8).collect();
            all.copy_from(at, &bytes).unwrap();
            let mut seen = [0; 24];
            all.copy_to(0, &mut seen).unwrap();
            let mut wanted = [0xff; 24];
            wanted[at..at + len].copy_from_slice(&bytes);
            assert_eq!(seen, wanted, "{len} at {at}");
            let mut back = vec![0; len];
            all.slice(at..24).unwrap().copy_to(0, &mut back).unwrap();
            assert_eq!(back, bytes, "{len} at {at}");
        }
    }

    #[test]
    fn ranges_that_leave_the_memory_are_refused() {
        let words = words(2);
        let all = SharedSlice::new(&words, 13);
        assert!(all.copy_to(6, &mut [0; 8]).is_err());
        assert!(all.copy_from(usize::MAX, &[0; 2]).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
        let reversed = all.slice(3..2);
        assert!(reversed.is_err());
        assert!(all.slice(13..13).unwrap().is_empty());
        assert!(all.load::<[u8; 14]>(0).is_err());
        assert!(all.store(5, 1_u64).is_ok() && all.store(6, 1_u64).is_err());
        assert!(all.word(0).is_ok() && all.word(4).is_err() && all.word(8).is_err());
        assert!(all.slice(3..11).unwrap().word(0).is_err(), "it is the memory that is aligned");
        assert!(SharedSlice::new(&[], 0).copy_to(0, &mut []).is_ok());
    }

    #[test]
    fn values_and_words_are_the_same_bytes() {
        let words = words(2);
        let all = SharedSlice::new(&words, 16);
        all.store(8, 7_u64).unwrap();
        assert_eq!(all.word(8).unwrap().fetch_add(1, Ordering::AcqRel), 7);
        assert_eq!(all.load::<u64>(8).unwrap(), 8);
        all.store(3, [1_u8, 2, 3]).unwrap();
        assert_eq!(all.load::<[u8; 4]>(2).unwrap(), [0xff, 1, 2, 3]);
    }

    #[test]
    fn neighbours_in_a_word_are_not_lost_when_threads_store_at_once() {
        const STORES: u16 = if cfg!(miri) { 10 } else { 1000 };
        let words = words(1);
        let all = SharedSlice::new(&words, 8);
        std::thread::scope(|scope| {
            for at in 0..4 {
                scope.spawn(move || (0..STORES).for_each(|n| all.store(at * 2, n).unwrap()));
            }
        });
        assert_eq!(all.load::<[u16; 4]>(0).unwrap(), [STORES - 1; 4]);
    }
}
