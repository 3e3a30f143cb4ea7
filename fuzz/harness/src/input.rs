//! What a fuzzer's bytes say: numbers read from the front. Where the bytes end everything is 0, so
//! any bytes are a whole input.

use arbitrary::{Arbitrary, Unstructured};

/// Bytes that decide.
#[derive(Debug)]
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// All of the fuzzer's bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input(Unstructured::new(bytes))
    }
    /// Whether bytes are left.
    pub fn more(&self) -> bool {
        !self.0.is_empty()
    }
    /// Any value of a type.
    pub fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }
    /// Any byte.
    pub fn u8(&mut self) -> u8 {
        self.any()
    }
    /// Any number of 32 bits.
    pub fn u32(&mut self) -> u32 {
        self.any()
    }
    /// Any number of 64 bits.
    pub fn u64(&mut self) -> u64 {
        self.any()
    }
    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0.int_in_range(0..=end - 1).unwrap_or_default()
    }
    /// A number below a length, as an index.
    pub fn index(&mut self, len: usize) -> usize {
        self.0.choose_index(len).unwrap_or_default()
    }
    /// True about once in `n`; not where the bytes have ended.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }
    /// One of several.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
    /// One of what there may be.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.choose(from))
    }
    /// Up to `max` bytes.
    pub fn bytes(&mut self, max: usize) -> &'a [u8] {
        let len = self.below(max as u32 + 1) as usize;
        let len = len.min(self.0.len());
        self.0.bytes(len).unwrap_or_default()
    }
    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.0.bytes(self.0.len()).unwrap_or_default()
    }
    /// A size, mostly a small one, sometimes one that lies at the end of something.
    pub fn odd(&mut self) -> u32 {
        const ENDS: [u32; 20] = [
            0,
            1,
            2,
            3,
            7,
            16,
            31,
            32,
            33,
            255,
            256,
            1024,
            4096,
            32_768,
            32_769,
            65_536,
            0x7fff_ffff,
            1 << 31,
            (1 << 31) + 1,
            u32::MAX,
        ];
        if self.one_in(4) { self.choose(&ENDS) } else { self.below(64) }
    }
}
