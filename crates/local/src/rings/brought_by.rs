//! By which ring came what a thread dispatches just now.

use std::cell::Cell;

thread_local! {
    /// The ring whose records this thread dispatches; 0 where it dispatches none.
    static RING: Cell<u64> = const { Cell::new(0) };
}

/// What this thread dispatches came by a ring, as long as this is there.
pub(crate) struct BroughtBy(u64);

/// See [`BroughtBy`].
#[inline]
pub(crate) fn brought_by(ring: u64) -> BroughtBy {
    BroughtBy(RING.replace(ring))
}

impl Drop for BroughtBy {
    fn drop(&mut self) {
        RING.set(self.0);
    }
}

/// The ring whose records this thread dispatches.
#[inline]
pub(crate) fn ring() -> Option<u64> {
    Some(RING.get()).filter(|ring| *ring != 0)
}
