//! Copies to and from memory of another process that is mapped here, too ([`crate::arena`]): by
//! instructions, with no system call.

use std::sync::atomic::AtomicU64;

use nic::memory::{Ended, Grant, IN_ORDER, change_granted, copy_granted, copy_here};
use nic::peer_memory::{Copy, Piece, Prepared, Transfer};
use transport::op::AtomicOp;

use crate::arena::{How, Theirs};
use crate::ring::Word;

/// A range and its last word: from the last multiple of eight below its end.
pub(super) fn with_last_word(at: u64, len: u64) -> (Piece, Piece) {
    let end = at.saturating_add(len);
    let last = (end.saturating_sub(1) & !7).max(at);
    (Piece { addr: at, len: last - at }, Piece { addr: last, len: end - last })
}

/// What may be copied so, and while which word says what.
pub(super) struct MappedPeer<'a> {
    theirs: &'a Theirs,
    grant: Grant<'a>,
}

impl<'a> MappedPeer<'a> {
    pub(super) fn new(theirs: &'a Theirs, granted: &'a Word, says: u64) -> Self {
        // SAFETY: a word is an atomic of eight bytes, in memory that processes share; models of
        // such memory, which are more, are given to no caller.
        let word = unsafe { &*std::ptr::from_ref(granted).cast::<AtomicU64>() };
        MappedPeer { theirs, grant: Grant { word, says } }
    }

    /// Copies between pieces of ours and the bytes that the other process has at an address; the
    /// last word of a WRITE becomes visible last. `None`: they are not mapped here.
    pub(super) fn copy(&self, prepared: &Prepared<'_>, at: u64) -> Option<Result<(), Ended>> {
        let (pieces, &Transfer { remote, ref what, .. }) = (prepared.pieces(), prepared.transfer());
        let len = remote.length;
        let how = match what {
            Copy::Read | Copy::Pull | Copy::Flush(_) => How::Read,
            Copy::Write | Copy::Put | Copy::Atomic(_) => How::Write,
        };
        let place = self.theirs.at(at, len, how)?.as_ptr();
        // SAFETY: the pieces are as `Prepared` says; as many bytes are mapped at the place.
        Some(unsafe {
            match *what {
                Copy::Read | Copy::Pull => self.read(pieces, place),
                Copy::Write | Copy::Put => self.write(pieces, at, len, place),
                Copy::Atomic(op) => self.change(pieces, op, place),
                // What was written is visible.
                Copy::Flush(_) => Ok(()),
            }
        })
    }

    /// # Safety
    ///
    /// The pieces are as [`Prepared`] says; as many bytes as the pieces have are mapped at `from`.
    unsafe fn read(&self, pieces: &[Piece], from: *const u8) -> Result<(), Ended> {
        let mut done = 0;
        for piece in pieces {
            // SAFETY: as the caller says.
            unsafe { self.move_bytes(piece.addr as *mut u8, from.wrapping_add(done), piece.len)? };
            done += piece.len as usize;
        }
        Ok(())
    }

    /// What was there goes to the one piece of ours.
    ///
    /// # Safety
    ///
    /// The pieces are as [`Prepared`] says; eight bytes are mapped at `at`.
    unsafe fn change(&self, pieces: &[Piece], op: AtomicOp, at: *mut u8) -> Result<(), Ended> {
        let ([Piece { addr, len: 8 }], true) = (pieces, (at as usize).is_multiple_of(8)) else {
            return Err(Ended::Fault);
        };
        // SAFETY: as the caller says; it is aligned.
        let before = unsafe { change_granted(at.cast(), op, self.grant)? };
        let from = [Piece { addr: (&raw const before) as u64, len: 8 }];
        // SAFETY: as the caller says; what is copied is ours.
        let told = unsafe { copy_here(Copy::Write, &from, *addr, 8) };
        if told == 8 { Ok(()) } else { Err(Ended::Fault) }
    }

    /// # Safety
    ///
    /// The pieces are as [`Prepared`] says; `len` bytes, which the pieces have, are mapped at `to`,
    /// which is `at` to their owner.
    unsafe fn write(&self, pieces: &[Piece], at: u64, len: u64, to: *mut u8) -> Result<(), Ended> {
        if let [piece] = pieces
            && (at | len).is_multiple_of(8)
            && len < IN_ORDER as u64
        {
            // SAFETY: as the caller says.
            return unsafe { self.move_bytes(to, piece.addr as *const u8, len) };
        }
        let (body, tail) = with_last_word(at, len);
        let (mut done, mut word, mut gathered) = (0, [0_u8; 8], 0);
        for piece in pieces {
            let now = piece.len.min(body.len - done);
            // SAFETY: as the caller says; what is after the body is at most a word, gathered from
            // several pieces where they are so short.
            unsafe {
                self.move_bytes(to.wrapping_add(done as usize), piece.addr as *const u8, now)?;
                done += now;
                let rest = Piece { addr: piece.addr + now, len: piece.len - now };
                if rest.len == tail.len {
                    return self.move_bytes(to.wrapping_add(done as usize), rest.addr as *const u8, rest.len);
                }
                let into = word.as_mut_ptr().wrapping_add(gathered as usize) as u64;
                let most = tail.len - gathered;
                if copy_here(Copy::Write, &[rest], into, most) != rest.len.min(most) {
                    return Err(Ended::Fault);
                }
                gathered += rest.len;
            }
        }
        // SAFETY: as the caller says; the word is ours.
        unsafe { self.move_bytes(to.wrapping_add(done as usize), word.as_ptr(), tail.len) }
    }

    /// # Safety
    ///
    /// That of [`copy_granted`].
    #[inline]
    unsafe fn move_bytes(&self, to: *mut u8, from: *const u8, len: u64) -> Result<(), Ended> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: as the caller says.
        unsafe { copy_granted(to, from, len as usize, self.grant) }
    }
}
