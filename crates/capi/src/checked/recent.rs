//! Places of calls that a thread makes again and again. To unwind a stack takes longer than such a
//! call; to see that the return addresses lie where they lay takes a load for each.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{null_mut, with_exposed_provenance};

use super::site::Place;

/// Places that a thread remembers.
const MOST: usize = 32;

/// A return address: the word of the stack that has it, and what it is.
pub(super) type Return = (usize, usize);

/// A place, and the return addresses of all calls that lead there, the innermost first.
struct Known {
    /// An address in the frame that asks.
    frame: usize,
    returns: Vec<Return>,
    place: Place,
}

/// The places that a thread was at.
struct Recent {
    /// The thread's stack. What lies between a frame on it and its end stays mapped.
    stack: Range<usize>,
    known: Vec<Known>,
    /// The next one to be forgotten.
    next: usize,
}

thread_local! {
    static RECENT: RefCell<Recent> = RefCell::new(Recent { stack: own_stack(), known: Vec::new(), next: 0 });
}

/// The place of the thread, by an address in the frame that asks; `None` where it is not known. A
/// frame that has another size each time may hide a caller, if an old return address lies there.
pub(super) fn find(frame: usize) -> Option<Place> {
    let look = |recent: &RefCell<Recent>| {
        let recent = recent.try_borrow().ok()?;
        let is_it = |known: &&Known| known.frame == frame && known.returns.iter().all(is_there);
        recent.known.iter().find(is_it).map(|known| known.place.clone())
    };
    RECENT.try_with(look).ok().flatten()
}

/// Remembers the place of the thread, unless its return addresses lie elsewhere than on its stack.
pub(super) fn remember(frame: usize, returns: Vec<Return>, place: &Place) {
    let keep = |recent: &RefCell<Recent>| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return };
        let stack = &recent.stack;
        let is_own = |at: usize| stack.start <= at && at <= stack.end.saturating_sub(size_of::<usize>());
        let is_found = |found: &Return| is_own(found.0) && found.0 > frame && is_there(found);
        if !is_own(frame) || !returns.iter().all(is_found) {
            return;
        }
        let known = Known { frame, returns, place: place.clone() };
        if recent.known.len() < MOST {
            recent.known.push(known);
        } else {
            let at = recent.next % MOST;
            recent.known[at] = known;
            recent.next = at + 1;
        }
    };
    // A thread that ends remembers nothing.
    _ = RECENT.try_with(keep);
}

/// Whether a word of the thread's stack has a return address.
fn is_there(&(word, address): &Return) -> bool {
    let word = with_exposed_provenance::<usize>(word);
    // SAFETY: between the frame that asks, which is on the thread's stack, and the end of that, as
    // `remember` has seen to; any bytes are a number.
    word.is_aligned() && unsafe { word.read_volatile() } == address
}

/// The calling thread's stack, empty where the system does not say.
fn own_stack() -> Range<usize> {
    let mut attr = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut len) = (null_mut(), 0);
    // SAFETY: variables of ours; what the first call has made is read and then destroyed.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr()) != 0 {
            return 0..0;
        }
        let failed = libc::pthread_attr_getstack(attr.as_ptr(), &raw mut start, &raw mut len);
        libc::pthread_attr_destroy(attr.as_mut_ptr());
        if failed != 0 { 0..0 } else { start.addr()..start.addr() + len }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_place_is_known_while_its_return_addresses_lie_where_they_lay() {
        let words: [Cell<usize>; 8] = std::array::from_fn(Cell::new);
        let [frame, other, word, second] = [0, 1, 4, 6].map(|n| words[n].as_ptr().expose_provenance());
        let place = Place::here();
        remember(frame, vec![(word, 4), (second, 6)], &place);
        assert_eq!(find(frame), Some(place.clone()));
        assert_eq!(find(other), None);
        words[6].set(7);
        assert_eq!(find(frame), None);
        remember(other, vec![(word, 5)], &place);
        assert_eq!(find(other), None, "there is another one");
        remember(other, vec![(frame, 0)], &place);
        assert_eq!(find(other), None, "below the frame");
        let elsewhere = Box::new(4_usize);
        remember(other, vec![((&raw const *elsewhere).expose_provenance(), 4)], &place);
        assert_eq!(find(other), None, "on no stack");
    }

    #[test]
    fn the_oldest_places_are_forgotten() {
        let words: [Cell<usize>; MOST + 2] = std::array::from_fn(Cell::new);
        let at = |n: usize| words[n].as_ptr().expose_provenance();
        let place = Place::here();
        (0..=MOST).for_each(|n| remember(at(n), vec![(at(n + 1), n + 1)], &place));
        assert_eq!((find(at(0)), find(at(1)).is_some(), find(at(MOST)).is_some()), (None, true, true));
    }
}
