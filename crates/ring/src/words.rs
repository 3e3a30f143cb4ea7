//! Bytes as words: eight bytes a word, the first of them in the lowest bits.

use crate::Word;
use crate::atomic::Ordering::Relaxed;

/// Writes pieces of bytes one behind the other.
pub(crate) struct Filler<'a> {
    to: std::slice::Iter<'a, Word>,
    /// Bytes that do not fill a word yet.
    begun: u64,
    count: u32,
}

impl<'a> Filler<'a> {
    pub(crate) fn new(to: &'a [Word]) -> Filler<'a> {
        Filler { to: to.iter(), begun: 0, count: 0 }
    }

    /// Writes a piece. What goes beyond the words is left out.
    #[inline]
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        while self.count > 0 && !bytes.is_empty() {
            self.add_byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let mut chunks = bytes.chunks_exact(8);
        for (chunk, word) in chunks.by_ref().zip(self.to.by_ref()) {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            word.store(u64::from_le_bytes(eight), Relaxed);
        }
        chunks.remainder().iter().for_each(|byte| self.add_byte(*byte));
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
        if let Some(word) = self.to.next() {
            word.store(self.begun, Relaxed);
        }
        (self.begun, self.count) = (0, 0);
    }
}

/// Copies bytes out of words; there are enough.
#[inline]
pub(crate) fn copy_out(from: &[Word], to: &mut [u8]) {
    let mut chunks = to.chunks_exact_mut(8);
    let mut words = from.iter();
    // The chunks come first: a word is not taken where there is no whole chunk left.
    for (chunk, word) in chunks.by_ref().zip(words.by_ref()) {
        chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    let rest = chunks.into_remainder();
    if let Some(word) = words.next() {
        let bytes = word.load(Relaxed).to_le_bytes();
        let len = rest.len();
        rest.copy_from_slice(&bytes[..len]);
    }
}
