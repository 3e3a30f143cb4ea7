//! Cursors that read and write big-endian fields one after the other, so that each format's code
//! has the order of its byte table.

use crate::Malformed;

/// Reads fields from the front of a slice; every read past the end is [`Malformed::Truncated`].
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }
    /// Reserved bytes: what they hold does not matter.
    pub(crate) fn skip<const N: usize>(&mut self) -> Result<(), Malformed> {
        self.array::<N>().map(|_| ())
    }
    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }
    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }
    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }
    /// A 24-bit field and the byte that completes its word.
    #[inline]
    pub(crate) fn u24_u8(&mut self) -> Result<(u32, u8), Malformed> {
        self.u32().map(|word| (word >> 8, word as u8))
    }
    /// A byte, then a 24-bit field.
    #[inline]
    pub(crate) fn u8_u24(&mut self) -> Result<(u8, u32), Malformed> {
        self.u32().map(|word| ((word >> 24) as u8, word & 0xff_ffff))
    }
    /// What has not been read.
    #[inline]
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Writes fields to the front of a slice that the caller made long enough.
pub(crate) struct Writer<'a>(&'a mut [u8]);

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Writer(out)
    }
    /// # Panics
    ///
    /// Where the slice is full: every format's length is fixed by its headers, so this is a defect
    /// of the caller.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, bytes: [u8; N]) {
        let out = std::mem::take(&mut self.0);
        let (head, rest) = out.split_first_chunk_mut::<N>().expect("room for every header of the format");
        *head = bytes;
        self.0 = rest;
    }
    /// # Panics
    ///
    /// As [`Writer::array`].
    #[inline]
    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        let out = std::mem::take(&mut self.0);
        let (head, rest) = out.split_at_mut_checked(bytes.len()).expect("room for every field of the format");
        head.copy_from_slice(bytes);
        self.0 = rest;
    }
    /// Reserved bytes, sent as zero.
    pub(crate) fn skip<const N: usize>(&mut self) {
        self.array([0; N]);
    }
    #[inline]
    pub(crate) fn u8(&mut self, n: u8) {
        self.array([n]);
    }
    #[inline]
    pub(crate) fn u16(&mut self, n: u16) {
        self.array(n.to_be_bytes());
    }
    #[inline]
    pub(crate) fn u32(&mut self, n: u32) {
        self.array(n.to_be_bytes());
    }
    #[inline]
    pub(crate) fn u64(&mut self, n: u64) {
        self.array(n.to_be_bytes());
    }
    /// The low 24 bits of `n`, then a byte.
    #[inline]
    pub(crate) fn u24_u8(&mut self, n: u32, byte: u8) {
        self.u32(n << 8 | u32::from(byte));
    }
    /// A byte, then the low 24 bits of `n`.
    #[inline]
    pub(crate) fn u8_u24(&mut self, byte: u8, n: u32) {
        self.u32(u32::from(byte) << 24 | n & 0xff_ffff);
    }
}
