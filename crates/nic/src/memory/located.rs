//! Where bytes of a stream lie: of a batch that leaves, and of a message that arrives.

use std::marker::PhantomData;

use transport::iwarp::{Piece as BatchPiece, Sink, StreamBatch};
use transport::op::{Fault, Remote, Sge};

use super::copy::Place;
use super::rights::Access;
use super::vectored::{Gather, Pieces, Scatter};
use super::view::{View, Who};

/// Why a piece is not among the others.
enum Left {
    /// There is no room for it.
    NoRoom,
    /// No system call may reach the memory.
    Elsewhere,
}

impl<'a> Gather<'a> {
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
                    buffer(&mut all, front.as_ptr() as u64, len)
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
}

impl<'a> Scatter<'a> {
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
        let is_all = is_all && all.buffer(buffer.as_mut_ptr() as u64, buffer.len());
        is_all.then_some(Self { all, placed: len, bytes: PhantomData })
    }
}

/// A buffer among the pieces.
fn buffer(all: &mut Pieces<'_>, addr: u64, len: usize) -> Result<(), Left> {
    if all.buffer(addr, len) { Ok(()) } else { Err(Left::NoRoom) }
}

impl<'a> Pieces<'a> {
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
        Ok(buffer(self, addr, range.length as usize))
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
