//! Memory that a stream sends from, or reads into, in one call: registered memory, which can not go
//! away meanwhile, and buffers.

use std::marker::PhantomData;

use arrayvec::ArrayVec;

use super::guard;
use super::piece::Piece;
use super::slot::InFlight;
use crate::errno::Errno;

/// Most pieces of one call.
pub const MAX_PIECES: usize = 64;

/// Pieces of memory, and what keeps them.
#[derive(Debug, Default)]
pub(super) struct Pieces<'a> {
    pub(super) pieces: ArrayVec<Piece, MAX_PIECES>,
    pub(super) counted: ArrayVec<InFlight<'a>, MAX_PIECES>,
}

/// Memory that is sent from, in order. It may be read, but other threads may change it meanwhile.
#[derive(Debug)]
pub struct Gather<'a> {
    pub(super) all: Pieces<'a>,
    pub(super) bytes: PhantomData<&'a [u8]>,
}

/// Memory that is read into, in order. It may be written, but other threads may use it meanwhile.
#[derive(Debug)]
pub struct Scatter<'a> {
    pub(super) all: Pieces<'a>,
    /// Bytes of registered memory, before those of the buffer.
    pub(super) placed: usize,
    pub(super) bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> Gather<'a> {
    /// Of a buffer.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { all: Pieces::of(bytes.as_ptr() as u64, bytes.len()), bytes: PhantomData }
    }

    /// The pieces, in order. They may be read; they need not be mapped.
    pub fn pieces(&self) -> &[Piece] {
        &self.all.pieces
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first bytes, `most` at most: for streams that are no system's.
    ///
    /// # Errors
    ///
    /// EFAULT where memory is not there.
    pub fn copy_out(&self, most: usize) -> Result<Vec<u8>, Errno> {
        self.all.copy_out(most)
    }
}

impl<'a> Scatter<'a> {
    /// Of a buffer.
    pub fn of(buffer: &'a mut [u8]) -> Self {
        let all = Pieces::of(buffer.as_mut_ptr() as u64, buffer.len());
        Self { all, placed: 0, bytes: PhantomData }
    }

    /// The pieces, in order. They may be written; they need not be mapped.
    pub fn pieces(&self) -> &[Piece] {
        &self.all.pieces
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts bytes into the pieces, as far as there is room; how many. For streams that are no
    /// system's.
    ///
    /// # Errors
    ///
    /// EFAULT where memory is not there.
    pub fn copy_in(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut rest = bytes;
        for piece in self.pieces() {
            let (part, behind) = rest.split_at(rest.len().min(piece.len as usize));
            // SAFETY: the piece may be written as long as `self` is there, and is this long. It is
            // a range that is registered, or a buffer that `self` borrows alone, so it does not
            // overlap `part`, which is borrowed too.
            unsafe { guard::copy(piece.addr as *mut u8, part.as_ptr(), part.len()) }
                .map_err(|_| Errno::EFAULT)?;
            rest = behind;
        }
        Ok(bytes.len() - rest.len())
    }

    /// The first bytes of the pieces as they are now, `most` at most: for what shows the bytes that
    /// came.
    ///
    /// # Errors
    ///
    /// EFAULT where memory is not there.
    pub fn copy_out(&self, most: usize) -> Result<Vec<u8>, Errno> {
        self.all.copy_out(most)
    }

    /// Of so many bytes that were read: those that are in registered memory, and those in the
    /// buffer.
    pub(crate) fn split(&self, read: usize) -> (usize, usize) {
        let placed = read.min(self.placed);
        (placed, read - placed)
    }
}

impl<'a> Pieces<'a> {
    fn of(addr: u64, len: usize) -> Self {
        let pieces = [Piece { addr, len: len as u64 }].into_iter().collect();
        Self { pieces, counted: ArrayVec::new() }
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len as usize).sum()
    }

    /// The first bytes, `most` at most.
    fn copy_out(&self, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; most.min(self.len())];
        let mut rest = &mut bytes[..];
        for piece in &self.pieces {
            let (part, behind) = rest.split_at_mut(rest.len().min(piece.len as usize));
            rest = behind;
            // SAFETY: the piece may be read as long as `self` is there, and is this long. It is a
            // range that is registered, or a buffer; `part` is new memory of our own, so the two
            // do not overlap.
            unsafe { guard::copy(part.as_mut_ptr(), piece.addr as *const u8, part.len()) }
                .map_err(|_| Errno::EFAULT)?;
        }
        Ok(bytes)
    }

    /// Adds a buffer; false where there is no room.
    pub(super) fn buffer(&mut self, addr: u64, len: usize) -> bool {
        self.pieces.try_push(Piece { addr, len: len as u64 }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_from_the_first_pieces_on_as_far_as_is_asked() {
        let from = Gather::of(b"stream of bytes");
        assert_eq!((from.len(), from.copy_out(6).unwrap()), (15, b"stream".to_vec()));
        assert_eq!(from.copy_out(100).unwrap(), b"stream of bytes");
        assert_eq!(Gather::of(&[]).copy_out(1), Ok(Vec::new()));
    }
}
