//! Copies between registered memory and buffers of our own.

use std::sync::atomic::{Ordering, fence};

use transport::op::{Fault, Tail};
use wire::icrc::{PAGE, Remainder};

use super::guard::{self, Change};

/// The memory of a range.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// At this address.
    At(u64),
    /// Nowhere: reads as zero, what is written is lost.
    Null,
}

/// Copies out of registered memory.
pub(super) fn copy_out(place: Place, dst: &mut [u8]) -> Result<(), Fault> {
    let Place::At(real) = place else {
        dst.fill(0);
        return Ok(());
    };
    // SAFETY: the caller checked the range against a region that is counted in; the two can not overlap, `dst` is a
    // buffer of our own. The program may change the source meanwhile: then the copy holds some mixture, as with any DMA.
    unsafe { guard::copy(dst.as_mut_ptr(), real as *const u8, dst.len()) }
}

/// The same; and what the bytes add to an ICRC, where that is known behind the copy.
pub(super) fn copy_out_for_icrc(place: Place, dst: &mut [u8]) -> Result<Option<Remainder>, Fault> {
    match place {
        // SAFETY: as for `copy_out`; as long as a page.
        Place::At(real) if dst.len() == PAGE => unsafe {
            guard::copy_page(dst.as_mut_ptr(), real as *const u8)
        },
        _ => copy_out(place, dst).map(|()| None),
    }
}

/// Copies into registered memory. Programs poll on the last byte of a message, so its last word is stored after
/// everything before it; aligned eight bytes are one store.
pub(super) fn copy_in(place: Place, src: &[u8], tail: Tail) -> Result<(), Fault> {
    let Place::At(real) = place else { return Ok(()) };
    let to = real as *mut u8;
    let split = match tail {
        Tail::More => src.len(),
        Tail::End => last_word(real, src.len()),
    };
    // SAFETY: the caller checked the range; `src` is a buffer of our own, so the two do not overlap.
    unsafe { guard::copy(to, src.as_ptr(), split)? };
    let rest = &src[split..];
    if rest.is_empty() {
        return Ok(());
    }
    fence(Ordering::Release);
    if let Ok(word) = <[u8; 8]>::try_from(rest) {
        // SAFETY: `last_word` leaves eight bytes only where they are aligned.
        return unsafe { guard::store(to.add(split).cast(), u64::from_ne_bytes(word)) };
    }
    // SAFETY: inside the checked range; fewer than eight bytes are stored one after the other.
    unsafe { guard::copy(to.add(split), rest.as_ptr(), rest.len()) }
}

/// Where the last word of `len` bytes at `real` begins: at the last multiple of eight below the end.
pub(super) fn last_word(real: u64, len: usize) -> usize {
    let end = real + len as u64;
    let start = (end - 1) & !7;
    start.saturating_sub(real).min(len as u64) as usize
}

/// Changes eight bytes atomically; what was there before. They must be aligned (`Range`) and be memory (`Rights`).
pub(super) fn change(place: Place, change: Change) -> Result<u64, Fault> {
    let Place::At(real) = place else { return Err(Fault::Rights) };
    if real % 8 != 0 {
        return Err(Fault::Range);
    }
    // SAFETY: eight bytes inside a registered region, aligned; programs share them with peers through atomics.
    unsafe { guard::change(real as *mut u64, change) }
}
