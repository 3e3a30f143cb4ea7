//! What the calling thread holds: a bit for each rank.

use std::cell::Cell;
use std::panic::Location;

use crate::Rank;

// A bit for each.
const _: () = assert!(Rank::ALL.len() <= u128::BITS as usize);

thread_local! {
    /// Without a destructor, so that locks can be taken while the thread ends, too.
    static HELD: Cell<u128> = const { Cell::new(0) };
}

/// A rank that this thread holds until this is dropped.
pub(crate) struct Held {
    /// 0 where the thread held another lock of the rank before.
    bit: u128,
}

/// Asserts that a lock of `rank` may be waited for.
#[inline]
#[track_caller]
pub(crate) fn check(rank: Rank) {
    let held = HELD.get();
    let later = held >> rank as u32;
    // While a panic unwinds, a second one would end the process.
    if later != 0 && !std::thread::panicking() {
        wrong(rank, rank as u32 + later.trailing_zeros(), Location::caller());
    }
}

#[cold]
fn wrong(rank: Rank, held: u32, at: &Location<'_>) -> ! {
    let held = of_bit(held);
    panic!("{at} takes the lock {rank:?} while its thread holds {held:?}: see locks::Rank for the order");
}

#[cold]
fn not_alone(held: u32, at: &Location<'_>) -> ! {
    let held = of_bit(held);
    panic!("{at} waits to be notified while its thread holds {held:?}, which nobody else can take meanwhile");
}

fn of_bit(bit: u32) -> Option<&'static Rank> {
    Rank::ALL.iter().find(|rank| **rank as u32 == bit)
}

impl Held {
    /// Notes a lock that has been taken.
    #[inline]
    pub(crate) fn new(rank: Rank) -> Self {
        let held = HELD.get();
        let bit = (1_u128 << rank as u32) & !held;
        HELD.set(held | bit);
        Self { bit }
    }

    /// Asserts that the thread holds no other lock.
    #[inline]
    #[track_caller]
    pub(crate) fn check_alone(&self) {
        let others = HELD.get() & !self.bit;
        if others != 0 && !std::thread::panicking() {
            not_alone(others.trailing_zeros(), Location::caller());
        }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        HELD.set(HELD.get() & !self.bit);
    }
}
