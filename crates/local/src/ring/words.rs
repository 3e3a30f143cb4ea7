//! Bytes as words: eight bytes a word, the first of them in the lowest bits.

use std::marker::PhantomData;

use super::layout::atomic::Ordering::Relaxed;
use super::layout::{Memory, Word};

/// From so many words on the memory may know a faster way than one by one.
pub(crate) const MANY: usize = 32;

/// Writes pieces of bytes one after the other.
pub(crate) struct Filler<'a, M> {
    to: &'a [Word],
    memory: PhantomData<M>,
    /// Bytes that do not fill a word yet.
    begun: u64,
    count: u32,
}

impl<'a, M: Memory> Filler<'a, M> {
    pub(crate) fn new(to: &'a [Word]) -> Self {
        Filler { to, memory: PhantomData, begun: 0, count: 0 }
    }

    /// Writes a piece. What goes beyond the words is left out.
    #[inline]
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        while self.count > 0 && !bytes.is_empty() {
            self.add_byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let (whole, mut rest) = bytes.as_chunks::<8>();
        let (words, after) = self.to.split_at(whole.len().min(self.to.len()));
        let whole = &whole[..words.len()];
        if words.len() < MANY {
            store(words, whole)
        } else {
            M::store(words, whole)
        }
        self.to = after;
        // Packets are whole words of four bytes.
        if let Some((four, after)) = rest.split_first_chunk::<4>() {
            (self.begun, self.count, rest) = (u32::from_le_bytes(*four).into(), 4, after);
        }
        rest.iter().for_each(|byte| self.add_byte(*byte));
    }

    /// Writes what does not fill a word.
    pub(crate) fn finish(mut self) {
        if self.count > 0 {
            self.write();
        }
    }

    fn add_byte(&mut self, byte: u8) {
        self.begun |= u64::from(byte) << (8 * self.count);
        self.count += 1;
        if self.count == 8 {
            self.write();
        }
    }

    fn write(&mut self) {
        if let Some((word, after)) = self.to.split_first() {
            word.store(self.begun, Relaxed);
            self.to = after;
        }
        (self.begun, self.count) = (0, 0);
    }
}

/// Copies bytes out of words; there are enough.
#[inline]
pub(crate) fn copy_out<M: Memory>(from: &[Word], to: &mut [u8]) {
    let (whole, rest) = to.as_chunks_mut::<8>();
    let (words, after) = from.split_at(whole.len().min(from.len()));
    let whole = &mut whole[..words.len()];
    if words.len() < MANY {
        load(words, whole)
    } else {
        M::load(words, whole)
    }
    if !rest.is_empty()
        && let Some(word) = after.first()
    {
        let bytes = word.load(Relaxed).to_le_bytes();
        let len = rest.len();
        rest.copy_from_slice(&bytes[..len]);
    }
}

/// Copies bytes into words; there are enough.
#[inline]
pub(crate) fn fill<M: Memory>(to: &[Word], from: &[u8]) {
    let (whole, rest) = from.as_chunks::<8>();
    if whole.len() < MANY {
        store(to, whole);
    } else {
        M::store(to, whole);
    }
    if !rest.is_empty()
        && let Some(word) = to.get(whole.len())
    {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_le_bytes(last), Relaxed);
    }
}

#[inline]
pub(crate) fn store(words: &[Word], bytes: &[[u8; 8]]) {
    for (eight, word) in bytes.iter().zip(words) {
        word.store(u64::from_le_bytes(*eight), Relaxed);
    }
}

#[inline]
pub(crate) fn load(words: &[Word], bytes: &mut [[u8; 8]]) {
    for (eight, word) in bytes.iter_mut().zip(words) {
        *eight = word.load(Relaxed).to_le_bytes();
    }
}
