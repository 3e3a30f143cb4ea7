//! The program's code, where the stack calls it: wakers, and destructors of values that have no
//! owner any more. Such code may panic, and the thread that calls it may be the engine, or a thread
//! of the program that waits for something else.
//!
//! | called | a panic |
//! |---|---|
//! | [`Waker::wake`] and the drop of a waker that was left ([`Kept`]) | is caught and counted; all else goes on |
//! | the drop of a value whose owner has gone, a closure that is told of an end ([`call`]) | likewise |
//! | [`Waker::clone`], in the poll of a future | goes on to the caller of the poll, before anything has changed |
//!
//! The panic hook has told of each by then. Nothing unwinds through the stack or through another
//! future of the program.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

static CAUGHT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CAUGHT_HERE: Cell<u64> = const { Cell::new(0) };
}

/// Panics of the program's code that were caught in this process, a forked child's with those of
/// its parent before.
pub fn caught() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

/// How many panics this thread has caught.
pub fn caught_here() -> u64 {
    CAUGHT_HERE.get()
}

/// Calls the program's code; a panic in it is caught and counted. Call it with no lock held.
#[inline]
pub fn call(code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
        CAUGHT_HERE.set(CAUGHT_HERE.get() + 1);
        forget(payload);
    }
}

/// Drops what a panic was raised with. It is the program's, too, and so is what its drop is raised
/// with: after a few of those the next is left where it is.
#[cold]
fn forget(mut payload: Box<dyn Any + Send>) {
    for _ in 0..4 {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(again) => payload = again,
        }
    }
    std::mem::forget(payload);
}

/// A value of the program's that the stack keeps. Its drop is the program's code, called by
/// [`call`]: drop it with no lock held.
pub struct Kept<T>(Option<T>);

impl<T> Kept<T> {
    /// Keeps it.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl Kept<Waker> {
    /// A clone of the waker of the future that is polled. A panic of the clone goes on to the
    /// caller: clone before anything is changed.
    #[inline]
    pub fn of(cx: &Context<'_>) -> Self {
        Self::new(cx.waker().clone())
    }
    /// Wakes it.
    #[inline]
    pub fn wake(mut self) {
        if let Some(waker) = self.0.take() {
            call(|| waker.wake());
        }
    }
}

impl<T> Drop for Kept<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            call(|| drop(value));
        }
    }
}

impl<T> std::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

/// Wakes all, whatever one of them does.
#[inline]
pub fn wake_all(wakers: impl IntoIterator<Item = Kept<Waker>>) {
    wakers.into_iter().for_each(Kept::wake);
}

/// Wakes the future that is polled, at once.
pub fn wake_now(cx: &Context<'_>) {
    call(|| cx.waker().wake_by_ref());
}

/// A waker that does not panic when it is cloned, woken or dropped, before one of the program's:
/// for what is polled inside of a future and must survive a panic of the outer waker.
pub fn calm(cx: &Context<'_>) -> Waker {
    Waker::from(Arc::new(Calm(Kept::of(cx))))
}

struct Calm(Kept<Waker>);

impl Wake for Calm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(waker) = &self.0.0 {
            call(|| waker.wake_by_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value whose drop panics.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a destructor of the program's");
        }
    }

    #[test]
    fn a_panic_whose_payload_panics_is_caught_and_counted_once() {
        let before = caught_here();
        call(|| std::panic::panic_any(Bomb));
        assert_eq!(caught_here() - before, 1);
        assert!(caught() >= caught_here());
    }

    #[test]
    fn what_is_kept_is_dropped_without_a_panic_while_another_one_unwinds() {
        let before = caught_here();
        let unwound = catch_unwind(|| {
            let _kept = [Kept::new(Bomb), Kept::new(Bomb)];
            panic!("another one");
        });
        assert_eq!((unwound.is_err(), caught_here() - before), (true, 2));
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program's");
        }
    }

    struct Counts(AtomicU64);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_are_woken_whatever_one_of_them_does() {
        let counts = Arc::new(Counts(AtomicU64::new(0)));
        let wakers = (0..6).map(|n| match n % 2 {
            0 => Waker::from(Arc::new(Panics)),
            _ => Waker::from(counts.clone()),
        });
        wake_all(wakers.map(Kept::new).collect::<Vec<_>>());
        assert_eq!(counts.0.load(Ordering::Relaxed), 3);
        let bomb = Waker::from(Arc::new(Panics));
        calm(&Context::from_waker(&bomb)).wake();
        wake_now(&Context::from_waker(&bomb));
    }
}
