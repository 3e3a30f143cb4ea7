//! What a thread builds packets and frames in: kept between calls, so that sending allocates
//! nothing.
//!
//! Programs use queue pairs in what runs when a thread or the process ends (destructors, `atexit`
//! handlers), when the thread's own memory is gone already: then each call has its own.
//!
//! The first thread's is not given back: that thread ends with the process, perhaps in a signal
//! handler that has interrupted free(3).

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

use transport::TxBatch;

use crate::memory::first_thread;

thread_local! {
    static BATCH: Kept<TxBatch> = const { Kept { room: Cell::new(None), of_first: &FIRST_BATCH } };
    static FRAME: Kept<Vec<u8>> = const { Kept { room: Cell::new(None), of_first: &FIRST_FRAME } };
    static FIRST_BATCH: Stays<TxBatch> = const { Cell::new(ManuallyDrop::new(None)) };
    static FIRST_FRAME: Stays<Vec<u8>> = const { Cell::new(ManuallyDrop::new(None)) };
}

/// What the first thread had in the end.
type Stays<T> = Cell<ManuallyDrop<Option<T>>>;

/// What a thread keeps between two calls: see the module.
struct Kept<T: 'static> {
    room: Cell<Option<T>>,
    of_first: &'static LocalKey<Stays<T>>,
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if first_thread::is_this() {
            self.of_first.set(ManuallyDrop::new(self.room.take()));
        }
    }
}

/// Calls `build` with a batch, of any content.
pub(crate) fn with_batch<R>(build: impl FnOnce(&mut TxBatch) -> R) -> R {
    with(&BATCH, build)
}

/// Calls `build` with room for a frame, of any content.
pub(crate) fn with_frame<R>(build: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    with(&FRAME, build)
}

#[inline]
fn with<T: Default, R>(kept: &'static LocalKey<Kept<T>>, build: impl FnOnce(&mut T) -> R) -> R {
    let mut room = kept.try_with(|kept| kept.room.take()).ok().flatten().unwrap_or_default();
    let result = build(&mut room);
    // Where the thread keeps nothing any more, it is dropped.
    let _ = kept.try_with(|kept| kept.room.set(Some(room)));
    result
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    struct AtEnd(mpsc::Sender<usize>);

    impl Drop for AtEnd {
        fn drop(&mut self) {
            // The receiver waits for it.
            let _ = self.0.send(with_frame(|frame| frame.len()) + with_batch(|batch| batch.len()));
        }
    }

    thread_local! {
        static AT_END: Cell<Option<AtEnd>> = const { Cell::new(None) };
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "only a thread that ends loses its locals")]
    fn a_thread_may_send_when_its_locals_are_gone() {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            // What was made first is dropped last.
            AT_END.set(Some(AtEnd(sender)));
            with_frame(|frame| frame.push(1));
            with_batch(|batch| batch.clear());
        });
        assert_eq!(receiver.recv(), Ok(0), "a frame of its own");
    }
}
