//! Bytes as words: eight bytes a word, the first of them in the lowest bits.

use crate::Word;
use crate::atomic::Ordering::Relaxed;

/// Writes pieces of bytes one behind the other.
pub(crate) struct Filler<'a> {
    to: &'a [Word],
    /// Bytes that do not fill a word yet.
    begun: u64,
    count: u32,
}

impl<'a> Filler<'a> {
    pub(crate) fn new(to: &'a [Word]) -> Filler<'a> {
        Filler { to, begun: 0, count: 0 }
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
        for (eight, word) in whole.iter().zip(words) {
            word.store(u64::from_le_bytes(*eight), Relaxed);
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
pub(crate) fn copy_out(from: &[Word], to: &mut [u8]) {
    let (whole, rest) = to.as_chunks_mut::<8>();
    let (words, after) = from.split_at(whole.len().min(from.len()));
    for (eight, word) in whole.iter_mut().zip(words) {
        *eight = word.load(Relaxed).to_le_bytes();
    }
    if let Some(word) = after.first() {
        let bytes = word.load(Relaxed).to_le_bytes();
        let len = rest.len();
        rest.copy_from_slice(&bytes[..len]);
    }
}
