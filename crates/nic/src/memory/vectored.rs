//! Memory that a stream sends from, or reads into, in one call: registered memory, which can not go
//! away meanwhile, and buffers.

use std::marker::PhantomData;

use arrayvec::ArrayVec;
use transport::iwarp::{Piece as BatchPiece, Sink, StreamBatch};
use transport::op::{Fault, Remote, Sge};

use super::copy::Place;
use super::guard;
use super::rights::Access;
use super::slot::InFlight;
use super::transfer::Piece;
use super::view::{View, Who};
use crate::errno::Errno;

/// Most pieces of one call.
pub const MAX_PIECES: usize = 64;

/// Pieces of memory, and what keeps them.
#[derive(Debug, Default)]
struct Pieces<'a> {
    pieces: ArrayVec<Piece, MAX_PIECES>,
    counted: ArrayVec<InFlight<'a>, MAX_PIECES>,
}

/// Why a piece is not among the others.
enum Left {
    /// There is no room for it.
    NoRoom,
    /// No system call may reach the memory.
    Elsewhere,
}

/// Memory that is sent from, in order. It may be read, but other threads may change it meanwhile.
#[derive(Debug)]
pub struct Gather<'a> {
    all: Pieces<'a>,
    bytes: PhantomData<&'a [u8]>,
}

/// Memory that is read into, in order. It may be written, but other threads may use it meanwhile.
#[derive(Debug)]
pub struct Scatter<'a> {
    all: Pieces<'a>,
    /// Bytes of registered memory, before those of the buffer.
    placed: usize,
    bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> Gather<'a> {
    /// Of a buffer.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { all: Pieces::of(bytes.as_ptr() as u64, bytes.len()), bytes: PhantomData }
    }

    /// Of what leaves next, as many pieces as one call takes. `None` where some of it must be
    /// copied out first.
    ///
    /// # Errors
    ///
    /// Why memory can not be read.
    pub(crate) fn of_batch(batch: &'a StreamBatch, view: &'a View<'_>) -> Result<Option<Self>, Fault> {
        let (mut all, mut own) = (Pieces::default(), batch.own());
        for piece in batch.pieces() {
            let added = match *piece {
                BatchPiece::Own(len) => {
                    let (front, rest) = own.split_at(len.min(own.len()));
                    own = rest;
                    all.buffer(front.as_ptr() as u64, len)
                }
                BatchPiece::Local(sge) => {
                    let Sge { addr, length, lkey } = sge;
                    all.registered(view, Remote { addr, length: length.into(), rkey: lkey }, 0, Who::Us)?
                }
                BatchPiece::Remote(range) => all.registered(view, range, Access::REMOTE_READ, Who::Peer)?,
            };
            match added {
                Ok(()) => {}
                Err(Left::NoRoom) => break,
                Err(Left::Elsewhere) => return Ok(None),
            }
        }
        Ok(Some(Self { all, bytes: PhantomData }))
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
        let mut bytes = vec![0; most.min(self.len())];
        let mut rest = &mut bytes[..];
        for piece in self.pieces() {
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
}

impl<'a> Scatter<'a> {
    /// Of a buffer.
    pub fn of(buffer: &'a mut [u8]) -> Self {
        let all = Pieces::of(buffer.as_mut_ptr() as u64, buffer.len());
        Self { all, placed: 0, bytes: PhantomData }
    }

    /// Of the place where the next bytes of a stream belong, then of a buffer. `None` where the
    /// place is none that a system call may write to, or takes too many pieces.
    pub(crate) fn of_sink(
        sink: Sink<'_>,
        buffer: &'a mut [u8],
        view: &'a View<'_>,
        receives: &'a View<'_>,
    ) -> Option<Self> {
        let (mut all, len) = (Pieces::default(), sink.len());
        let mut add = |view, range, right, who| {
            // What is wrong with it is found where the bytes are delivered one by one.
            matches!(all.registered(view, range, right, who), Ok(Ok(())))
        };
        let is_all = match sink {
            Sink::Remote(range) => add(view, range, Access::REMOTE_WRITE, Who::Peer),
            Sink::Request(sges, at, len) => {
                parts(sges, at, len).all(|range| add(view, range, Access::LOCAL_WRITE, Who::Us))
            }
            Sink::Receive(sges, at, len) => {
                parts(sges, at, len).all(|range| add(receives, range, Access::LOCAL_WRITE, Who::Us))
            }
        };
        let is_all = is_all && all.buffer(buffer.as_mut_ptr() as u64, buffer.len()).is_ok();
        is_all.then_some(Self { all, placed: len, bytes: PhantomData })
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

    fn buffer(&mut self, addr: u64, len: usize) -> Result<(), Left> {
        self.pieces.try_push(Piece { addr, len: len as u64 }).map_err(|_| Left::NoRoom)
    }

    /// Adds registered memory, which stays so as long as this is there.
    fn registered(
        &mut self,
        view: &'a View<'_>,
        range: Remote,
        right: u32,
        who: Who,
    ) -> Result<Result<(), Left>, Fault> {
        if self.pieces.is_full() {
            return Ok(Err(Left::NoRoom));
        }
        if who == Who::Peer && !view.lets_peer(right) {
            return Err(Fault::Rights);
        }
        let (place, here) = view.place(range, right, who)?;
        let Place::At(addr) = place else { return Ok(Err(Left::Elsewhere)) };
        self.counted.extend(here);
        Ok(self.buffer(addr, range.length as usize))
    }
}

/// The ranges of elements that hold `len` bytes from a byte on.
fn parts(sges: &[Sge], at: u64, len: usize) -> impl Iterator<Item = Remote> {
    let (mut skip, mut left) = (at, len as u64);
    sges.iter().filter_map(move |sge| {
        let from = skip.min(sge.length.into());
        let length = (u64::from(sge.length) - from).min(left);
        skip -= from;
        left -= length;
        let range = Remote { addr: sge.addr.wrapping_add(from), length, rkey: sge.lkey };
        (length > 0).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::*;

    const RIGHTS: u32 = Access::LOCAL_WRITE | Access::REMOTE_WRITE;

    #[test]
    fn bytes_are_copied_from_the_first_pieces_on_as_far_as_is_asked() {
        let from = Gather::of(b"stream of bytes");
        assert_eq!((from.len(), from.copy_out(6).unwrap()), (15, b"stream".to_vec()));
        assert_eq!(from.copy_out(100).unwrap(), b"stream of bytes");
        assert_eq!(Gather::of(&[]).copy_out(1), Ok(Vec::new()));
    }

    #[test]
    fn bytes_go_to_registered_memory_first_and_the_rest_to_the_buffer() {
        let (table, mut memory, mut buffer) = (Table::new(), [0; 8], [0; 4]);
        let addr = memory.as_mut_ptr() as u64;
        // SAFETY: the bytes stay until the end of the test, which looks at them afterwards.
        let mr = unsafe { table.register(1, addr, 8, addr, RIGHTS, 0xabcd) }.unwrap();
        let view = table.view(1, RIGHTS);
        let at = |len| Remote { addr: addr + 5, length: len, rkey: mr.key };
        let into = Scatter::of_sink(Sink::Remote(at(3)), &mut buffer, &view, &view).unwrap();
        assert_eq!((into.len(), into.copy_in(b"placed bytes")), (7, Ok(7)));
        assert_eq!(into.split(7), (3, 4));
        drop(into);
        assert_eq!((&memory, &buffer), (b"\0\0\0\0\0pla", b"ced "));
    }
}
