//! The bytes of a piece of a message: in memory of our own, in memory that two processes share, or
//! in that of one of the two.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::Rkey;
use wire::run::Strided;

use super::Remote;

/// Bytes in memory that another process may change at any time: words of eight, the first byte in
/// the lowest bits.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    words: &'a [AtomicU64],
    len: usize,
}

impl<'a> SharedBytes<'a> {
    /// The first `len` bytes of these words, or as many as there are.
    pub fn new(words: &'a [AtomicU64], len: usize) -> Self {
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
    /// Stores so many of `bytes` there as there are places; what else is in the last word becomes
    /// 0.
    pub fn store(&self, bytes: &[u8]) {
        for (word, eight) in self.words.iter().zip(bytes[..bytes.len().min(self.len)].chunks(8)) {
            let mut whole = [0; 8];
            whole[..eight.len()].copy_from_slice(eight);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
    }
}

/// Where the bytes of a piece are that do not come with it, because one end, a process of the same
/// host, copies them from where they are to where they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// In the sender's memory, as it names that by a local key: the receiver copies them.
    Exported(Remote),
    /// Where they belong: the sender has copied so many.
    Placed(u32),
}

impl ZeroCopy {
    /// Bytes of it between two processes.
    pub const LEN: usize = 16;

    /// How many bytes there are, 2^32 - 1 at most.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            Self::Exported(from) => from.length as usize,
            Self::Placed(len) => len as usize,
        }
    }
    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// The bytes that go to the receiver: address, key and length, each little-endian. No memory
    /// has the key 0: with it bytes are placed.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let (addr, key) = match self {
            Self::Exported(from) => (from.addr, from.rkey.0),
            Self::Placed(_) => (0, 0),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&key.to_le_bytes());
        bytes[12..].copy_from_slice(&(self.len() as u32).to_le_bytes());
        bytes
    }
    /// The place that a sender's bytes name; `None` for another number of bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (key, len) = rest.split_first_chunk()?;
        let len = u32::from_le_bytes(len.try_into().ok()?);
        Some(match u32::from_le_bytes(*key) {
            0 => Self::Placed(len),
            key => Self::Exported(Remote {
                addr: u64::from_le_bytes(*addr),
                length: len.into(),
                rkey: Rkey(key),
            }),
        })
    }
}

/// The bytes of a piece of a message that has come.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes of our own: no other process changes them.
    Own(&'a [u8]),
    /// Bytes of our own in several packets, which one read brought.
    Strided(Strided<'a>),
    /// Bytes in memory that two processes share: each is looked at once, where it goes.
    Shared(SharedBytes<'a>),
    /// Bytes that have not come with the piece.
    ZeroCopy(ZeroCopy),
}

impl<'a> Payload<'a> {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Own(bytes) => bytes.len(),
            Payload::Strided(pieces) => pieces.len(),
            Payload::Shared(bytes) => bytes.len(),
            Payload::ZeroCopy(place) => place.len(),
        }
    }
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes of a single packet that no other process changes; of others none.
    #[inline]
    pub fn own(&self) -> &'a [u8] {
        match self {
            Payload::Own(bytes) => bytes,
            Payload::Strided(_) | Payload::Shared(_) | Payload::ZeroCopy(_) => &[],
        }
    }
    /// The first `len` of them, or as many as there are; of several packets, as many as are in the
    /// first one.
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        match self {
            Payload::Own(bytes) => Payload::Own(bytes.get(..len).unwrap_or(bytes)),
            Payload::Strided(pieces) => Payload::Own(pieces.range(0, len).next().unwrap_or_default()),
            Payload::Shared(bytes) => Payload::Shared(SharedBytes::new(bytes.words(), len.min(bytes.len()))),
            Payload::ZeroCopy(ZeroCopy::Placed(most)) => {
                Payload::ZeroCopy(ZeroCopy::Placed(u32::try_from(len).map_or(most, |len| len.min(most))))
            }
            Payload::ZeroCopy(ZeroCopy::Exported(place)) => {
                let length = place.length.min(len as u64);
                Payload::ZeroCopy(ZeroCopy::Exported(Remote { length, ..place }))
            }
        }
    }
    /// A part of the bytes, of those that no other process changes. Others are delivered whole.
    #[inline]
    #[must_use]
    pub fn part(self, part: Range<usize>) -> Self {
        match self {
            Payload::Own(bytes) => Payload::Own(bytes.get(part).unwrap_or_default()),
            whole @ (Payload::Strided(_) | Payload::Shared(_) | Payload::ZeroCopy(_)) => whole,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Payload::Own(bytes)
    }
}
