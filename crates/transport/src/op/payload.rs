//! The bytes of a piece of a message: in memory of our own, or in memory that two processes share.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in memory that another process may change at any time: words of eight, the first byte in the lowest bits.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    words: &'a [AtomicU64],
    len: usize,
}

impl<'a> SharedBytes<'a> {
    /// The first `len` bytes of these words, or as many as there are.
    pub fn new(words: &'a [AtomicU64], len: usize) -> SharedBytes<'a> {
        let len = len.min(size_of_val(words));
        SharedBytes { words: &words[..len.div_ceil(8)], len }
    }
    /// How many they are.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The words that they fill; the last one in part, perhaps.
    pub fn words(&self) -> &'a [AtomicU64] {
        self.words
    }
    /// A copy of them, as they are at some moment each.
    pub fn to_vec(&self) -> Vec<u8> {
        let words = self.words.iter();
        let mut bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(self.len);
        bytes
    }
    /// Stores so many of `bytes` there as there are places; what else is in the last word becomes 0.
    pub fn store(&self, bytes: &[u8]) {
        for (word, eight) in self.words.iter().zip(bytes[..bytes.len().min(self.len)].chunks(8)) {
            let mut whole = [0; 8];
            whole[..eight.len()].copy_from_slice(eight);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
    }
}

/// The bytes of a piece of a message that has come.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Ours: nobody changes them.
    Own(&'a [u8]),
    /// Each of them is looked at once, where it goes.
    Shared(SharedBytes<'a>),
}

impl<'a> Payload<'a> {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Own(bytes) => bytes.len(),
            Payload::Shared(bytes) => bytes.len(),
        }
    }
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Those that nobody changes; of others none.
    #[inline]
    pub fn own(&self) -> &'a [u8] {
        match self {
            Payload::Own(bytes) => bytes,
            Payload::Shared(_) => &[],
        }
    }
    /// A part of them: of those that nobody changes. Others are delivered whole.
    #[inline]
    #[must_use]
    pub fn part(self, part: Range<usize>) -> Payload<'a> {
        match self {
            Payload::Own(bytes) => Payload::Own(bytes.get(part).unwrap_or_default()),
            shared @ Payload::Shared(_) => shared,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Payload<'a> {
        Payload::Own(bytes)
    }
}
