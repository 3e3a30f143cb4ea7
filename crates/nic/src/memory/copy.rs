//! Copies between registered memory and buffers of our own.

use std::sync::atomic::{Ordering, fence};

use transport::op::{Fault, SharedBytes, Tail};
use wire::icrc::{PAGE, Remainder};

use super::guard::{self, Change};
use super::late;

/// The memory of a range.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// At this address.
    At(u64),
    /// At this address, in a region that is watched ([`late`]).
    Late(u64),
    /// Nowhere: reads as zero, what is written is lost.
    Null,
}

impl Place {
    /// The place so many bytes behind this one.
    fn behind(self, bytes: u64) -> Self {
        match self {
            Self::At(real) => Self::At(real + bytes),
            Self::Late(real) => Self::Late(real + bytes),
            Self::Null => Self::Null,
        }
    }
}

/// Copies out of registered memory.
#[inline(always)]
pub(super) fn copy_out(place: Place, dst: &mut [u8]) -> Result<(), Fault> {
    let real = match place {
        Place::At(real) => real,
        // SAFETY: a buffer of our own, and a range that the caller checked.
        Place::Late(real) => return unsafe { late::copy_out(dst.as_mut_ptr(), real, dst.len()) },
        Place::Null => {
            dst.fill(0);
            return Ok(());
        }
    };
    // SAFETY: the caller checked the range against a region that is counted in; the two can not
    // overlap, `dst` is a buffer of our own. The program may change the source meanwhile: then the
    // copy holds some mixture, as with any DMA.
    unsafe { guard::copy(dst.as_mut_ptr(), real as *const u8, dst.len()) }
}

/// Like [`copy_out`]; and what the bytes add to an ICRC, where that is known after the copy.
pub(super) fn copy_out_for_icrc(place: Place, dst: &mut [u8]) -> Result<Option<Remainder>, Fault> {
    match place {
        // SAFETY: as for `copy_out`; as long as a page.
        Place::At(real) if dst.len() == PAGE => unsafe {
            guard::copy_page(dst.as_mut_ptr(), real as *const u8)
        },
        _ => copy_out(place, dst).map(|()| None),
    }
}

/// Copies out of registered memory to parts of payloads, one behind the other. What a whole payload
/// adds to an ICRC is noted for packets that bear one, where it is known after the copy.
pub(super) fn copy_run_out<'a>(
    place: Place,
    mut parts: impl Iterator<Item = (&'a mut [u8], Option<&'a mut Option<Remainder>>)>,
    seals: bool,
) -> Result<(), Fault> {
    let mut place = place;
    parts.try_for_each(|(dst, remainder)| {
        match remainder.filter(|_| seals) {
            Some(remainder) => *remainder = copy_out_for_icrc(place, dst)?,
            None => copy_out(place, dst)?,
        }
        place = place.behind(dst.len() as u64);
        Ok(())
    })
}

/// Copies into registered memory. Programs poll on the last byte of a message, so its last word is
/// stored after everything before it; aligned eight bytes are one store.
#[inline(always)]
pub(super) fn copy_in(place: Place, src: &[u8], tail: Tail) -> Result<(), Fault> {
    let real = match place {
        Place::At(real) => real,
        // SAFETY: as below. The kernel copies in order.
        Place::Late(real) => return unsafe { late::copy_in(real, src.as_ptr(), src.len()) },
        Place::Null => return Ok(()),
    };
    let to = real as *mut u8;
    let split = match tail {
        Tail::More => src.len(),
        Tail::End => last_word(real, src.len()),
    };
    // SAFETY: the caller checked the range; `src` is a buffer of our own, so the two do not
    // overlap. `last_word` leaves eight bytes only where they are aligned, and else fewer, which
    // are stored one after the other.
    unsafe {
        match src.len() - split {
            0 => return guard::copy(to, src.as_ptr(), split),
            8 => return guard::copy_and_store(to, src.as_ptr(), split),
            _ => guard::copy(to, src.as_ptr(), split)?,
        }
        fence(Ordering::Release);
        guard::copy(to.add(split), src[split..].as_ptr(), src.len() - split)
    }
}

/// Copies pieces one behind the other into registered memory, the last word of the last one as
/// [`copy_in`] does.
pub(super) fn copy_pieces_in<'a>(
    place: Place,
    pieces: impl Iterator<Item = &'a [u8]>,
    tail: Tail,
) -> Result<(), Fault> {
    let (mut place, mut pieces) = (place, pieces.peekable());
    while let Some(piece) = pieces.next() {
        copy_in(place, piece, if pieces.peek().is_none() { tail } else { Tail::More })?;
        place = place.behind(piece.len() as u64);
    }
    Ok(())
}

/// Copies `len` bytes out of registered memory to memory that two processes share, from its byte
/// `at` on; as many as there are places.
pub(super) fn copy_to_shared(place: Place, dst: SharedBytes<'_>, at: usize, len: usize) -> Result<(), Fault> {
    let Some((to, len)) = part(dst, at, len) else { return Ok(()) };
    let real = match place {
        Place::At(real) => real,
        // SAFETY: as below.
        Place::Late(real) => return unsafe { late::copy_out(to, real, len) },
        Place::Null => return fill(to, len),
    };
    // SAFETY: as for `copy_out`; words of shared memory may be stored to behind a shared borrow, by
    // an instruction while others load and store there.
    unsafe { guard::copy_shared(to, real as *const u8, len) }
}

/// Copies `len` bytes of memory that two processes share, from its byte `at` on, into registered
/// memory, the last word last as [`copy_in`] does. Each byte is looked at once.
pub(super) fn copy_from_shared(
    place: Place,
    src: SharedBytes<'_>,
    at: usize,
    len: usize,
    tail: Tail,
) -> Result<(), Fault> {
    let Some((from, len)) = part(src, at, len) else { return Ok(()) };
    let real = match place {
        Place::At(real) => real,
        // SAFETY: as below.
        Place::Late(real) => return unsafe { late::copy_in(real, from, len) },
        Place::Null => return Ok(()),
    };
    let split = match tail {
        Tail::More => len,
        Tail::End => last_word(real, len),
    };
    let (mut word, rest) = ([0; 8], len - split);
    // SAFETY: as for `copy_in`; what an instruction loads while another process stores there is
    // some mixture of both. At most eight bytes are left.
    unsafe {
        guard::copy(real as *mut u8, from, split)?;
        guard::copy(word.as_mut_ptr(), from.add(split), rest.min(word.len()))?;
    }
    if rest == 0 { Ok(()) } else { copy_in(Place::At(real + split as u64), &word[..rest], tail) }
}

/// Where so many bytes of shared memory are; fewer where it ends.
fn part(shared: SharedBytes<'_>, at: usize, len: usize) -> Option<(*mut u8, usize)> {
    let left = shared.len().checked_sub(at)?;
    Some((shared.words().as_ptr().cast::<u8>().cast_mut().wrapping_add(at), len.min(left)))
}

/// Fills shared memory with zeroes.
fn fill(to: *mut u8, len: usize) -> Result<(), Fault> {
    const ZEROES: [u8; 256] = [0; 256];
    (0..len).step_by(ZEROES.len()).try_for_each(|at| {
        // SAFETY: as many bytes of shared memory as `part` found.
        unsafe { guard::copy(to.wrapping_add(at), ZEROES.as_ptr(), ZEROES.len().min(len - at)) }
    })
}

/// Where the last word of `len` bytes at `real` begins: at the last multiple of eight below the
/// end.
#[inline]
pub(super) fn last_word(real: u64, len: usize) -> usize {
    let end = real + len as u64;
    let start = (end - 1) & !7;
    start.saturating_sub(real).min(len as u64) as usize
}

/// Changes eight bytes atomically; what was there before. They must be aligned (`Range`) and be
/// memory (`Rights`).
pub(super) fn change(place: Place, change: Change) -> Result<u64, Fault> {
    let real = match place {
        Place::At(real) => real,
        // A program that takes it away just after this look holds the engine up: no system call
        // changes it atomically and fails.
        Place::Late(real) => late::look(real, 8).map(|()| real)?,
        Place::Null => return Err(Fault::Rights),
    };
    if real % 8 != 0 {
        return Err(Fault::Range);
    }
    // SAFETY: eight bytes inside a registered region, aligned; programs share them with peers
    // through atomics.
    unsafe { guard::change(real as *mut u64, change) }
}
