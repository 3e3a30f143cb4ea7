//! Registered memory that no peer and no other handle sees, like `bytes`' `BytesMut` and `Bytes`:
//! [`RegBuf`], and frozen [`RegBytes`].

use std::ops::{Deref, DerefMut, Range};

use super::access::Plain;
use super::io_buf::{IoBuf, IoBufMut, SgeList};
use super::pool::Piece;
use super::region::Region;
use crate::error::{Error, Result, UnsplitError};
use crate::provider::Pd;

/// A piece of registered memory that no peer and no other handle sees: like `BytesMut`. Splits into
/// disjoint pieces for concurrent operations; the buffer goes back to its pool with the last piece,
/// whichever that is.
///
/// # Examples
///
/// ```
/// # let device = verbena::Provider::software()?.devices()?.remove(0);
/// # let pd = device.pd()?;
/// # let pool = verbena::Pool::new(&pd, 4096, 1)?;
/// let mut tail = pool.copy(b"headerpayload")?;
/// let header = tail.split_to(6)?;
/// assert_eq!((&header[..], &tail[..]), (&b"header"[..], &b"payload"[..]));
/// let whole = header.unsplit(tail).expect("neighbours");
/// assert_eq!(whole.len(), 13);
/// # Ok::<(), verbena::Error>(())
/// ```
pub struct RegBuf {
    /// `start..start + cap` of the buffer is this handle's alone.
    piece: Piece,
    len: u32,
    cap: u32,
}

impl RegBuf {
    /// All of a buffer, empty; `piece` is its only one.
    pub(super) fn whole(piece: Piece, cap: u32) -> Self {
        Self { piece, len: 0, cap }
    }

    /// Bytes it can have without another buffer.
    pub fn capacity(&self) -> usize {
        self.cap as usize
    }

    /// The buffer's protection domain.
    pub fn pd(&self) -> &Pd {
        self.piece.slab().region.pd()
    }

    /// Sets the length; bytes that come into view hold what was there (zeros at first).
    ///
    /// # Errors
    ///
    /// `OutOfRange` beyond the capacity.
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        self.len = self.within("RegBuf::set_len", "len", len)?;
        Ok(())
    }

    /// Like [`RegBuf::set_len`], by value, for chains: `pool.get()?.sized(4096)?`.
    ///
    /// # Errors
    ///
    /// `OutOfRange` beyond the capacity.
    pub fn sized(mut self, len: usize) -> Result<Self> {
        self.set_len(len)?;
        Ok(self)
    }

    /// Appends.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where there is no room for all of it; nothing is appended then.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.len as usize;
        self.set_len(at.saturating_add(bytes.len()))?;
        self[at..].copy_from_slice(bytes);
        Ok(())
    }

    /// Takes the first `at` bytes of the capacity off, as a buffer of their own.
    ///
    /// # Errors
    ///
    /// `OutOfRange` beyond the capacity.
    pub fn split_to(&mut self, at: usize) -> Result<Self> {
        let at = self.within("RegBuf::split_to", "at", at)?;
        let start = self.piece.start();
        let first = Self { piece: self.piece.another(start), len: self.len.min(at), cap: at };
        self.piece.move_to(start + at);
        self.cap -= at;
        self.len -= first.len;
        Ok(first)
    }

    /// Pieces of `size` bytes each, the last may be shorter; all of them have their full length.
    /// None for a size of 0.
    pub fn chunks(mut self, size: usize) -> impl Iterator<Item = Self> + Send {
        std::iter::from_fn(move || {
            let n = size.min(self.len as usize);
            (n > 0).then(|| self.split_to(n).ok()).flatten()
        })
    }

    /// Puts two that were split back together, `next` after this one.
    ///
    /// # Errors
    ///
    /// [`UnsplitError`], with both: they are no neighbours, or this one is not full and `next` has
    /// bytes.
    pub fn unsplit(mut self, next: Self) -> Result<Self, UnsplitError> {
        let neighbours =
            self.piece.same_buffer(&next.piece) && self.piece.start() + self.cap == next.piece.start();
        if !neighbours || (self.len < self.cap && next.len > 0) {
            return Err(UnsplitError(self, next));
        }
        self.cap += next.cap;
        self.len += next.len;
        Ok(self)
    }

    /// No more changes: clones may be sent at the same time.
    pub fn freeze(self) -> RegBytes {
        RegBytes { piece: self.piece, len: self.len }
    }

    /// A value out of the bytes.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where it is not inside of the length.
    pub fn read<T: Plain>(&self, at: usize) -> Result<T> {
        let bytes = self.get(at..).unwrap_or_default();
        let short = || Error::range("RegBuf::read", at as u64, size_of::<T>() as u64, self.len.into());
        T::read_from_prefix(bytes).map(|(t, _)| t).map_err(|_| short())
    }

    /// The registration, where in it the bytes begin, and how many there are; without a reference
    /// to them.
    pub(super) fn place(&self) -> (&Region, usize, usize) {
        (&self.piece.slab().region, self.piece.offset(), self.len as usize)
    }

    fn within(&self, call: &'static str, name: &'static str, n: usize) -> Result<u32> {
        let fits = u32::try_from(n).ok().filter(|n| *n <= self.cap);
        fits.ok_or_else(|| Error::number(call, name, n as u64, 0..=self.cap.into()))
    }
}

impl Deref for RegBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes of a living chunk are initialised, and this handle's alone; no
        // operation has them, or it would have the handle.
        unsafe { std::slice::from_raw_parts(self.piece.ptr(), self.len as usize) }
    }
}

impl DerefMut for RegBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.piece.ptr(), self.len as usize) }
    }
}

impl std::fmt::Debug for RegBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegBuf({} of {} bytes)", self.len, self.cap)
    }
}

// SAFETY: the bytes lie in the slab, which the handle keeps, and no other handle has them.
unsafe impl IoBuf for RegBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        list.add(&self.piece.slab().region, self.piece.offset(), self.len as usize);
    }
}

// SAFETY: as above; there is no reference to what only this handle names.
unsafe impl IoBufMut for RegBuf {
    fn gather_mut(&self, list: &mut SgeList) {
        list.add(&self.piece.slab().region, self.piece.offset(), self.cap as usize);
    }
    fn capacity_bytes(&self) -> usize {
        self.cap as usize
    }
    fn set_filled(&mut self, len: usize) {
        self.len = u32::try_from(len).map_or(self.cap, |len| len.min(self.cap));
    }
}

/// A frozen [`RegBuf`]: like `Bytes`. Nothing can be received or read into it. A clone costs two
/// counts and copies nothing.
///
/// # Examples
///
/// ```
/// # let device = verbena::Provider::software()?.devices()?.remove(0);
/// # let pd = device.pd()?;
/// # let pool = verbena::Pool::new(&pd, 4096, 1)?;
/// let bytes = pool.copy(b"sent to many peers")?.freeze();
/// let (first, second) = (bytes.clone(), bytes.slice(8..12)?);
/// assert_eq!((&first[..4], &second[..]), (&b"sent"[..], &b"many"[..]));
/// # Ok::<(), verbena::Error>(())
/// ```
pub struct RegBytes {
    /// `start..start + len` of the buffer is not written to while such a handle names it.
    piece: Piece,
    len: u32,
}

impl RegBytes {
    /// A part.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where it is not inside.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let inside = range.start <= range.end && range.end <= self.len as usize;
        if !inside {
            let len = range.end.saturating_sub(range.start);
            return Err(Error::range("RegBytes::slice", range.start as u64, len as u64, self.len.into()));
        }
        // 32 bits, as the length is.
        let piece = self.piece.another(self.piece.start() + range.start as u32);
        Ok(Self { piece, len: (range.end - range.start) as u32 })
    }

    /// Back to a buffer, where this is the last handle to any piece of it; the capacity reaches to
    /// the buffer's end.
    pub fn try_into_mut(self) -> Result<RegBuf, Self> {
        if !self.piece.is_only() {
            return Err(self);
        }
        let cap = self.piece.slab().size() - self.piece.start();
        Ok(RegBuf { piece: self.piece, len: self.len, cap })
    }

    /// The bytes' protection domain.
    pub fn pd(&self) -> &Pd {
        self.piece.slab().region.pd()
    }
}

impl Clone for RegBytes {
    fn clone(&self) -> Self {
        Self { piece: self.piece.another(self.piece.start()), len: self.len }
    }
}

impl Deref for RegBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes of a living chunk are initialised, and no code writes to them while
        // such a handle lives.
        unsafe { std::slice::from_raw_parts(self.piece.ptr(), self.len as usize) }
    }
}

impl std::fmt::Debug for RegBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegBytes({} bytes)", self.len)
    }
}

// SAFETY: the bytes lie in the slab, which the handle keeps; others that name them are frozen too.
unsafe impl IoBuf for RegBytes {
    fn gather(&self, list: &mut SgeList) {
        list.add(&self.piece.slab().region, self.piece.offset(), self.len as usize);
    }
}
