//! The calls that were handed events, and owe their acknowledgement.

use super::site::Place;
use super::{is_on, note};

/// A number that tells the calling thread from the others that live.
pub(super) fn thread() -> u64 {
    // SAFETY: it asks for nothing but the thread's own number.
    unsafe { libc::pthread_self() }
}

/// The call that was handed an event.
#[derive(Debug)]
pub(crate) struct Taken {
    thread: u64,
    place: Place,
}

impl Taken {
    /// The call that this thread is in; `None` where calls are not checked.
    pub(crate) fn here() -> Option<Self> {
        is_on().then(|| Self { thread: thread(), place: Place::here() })
    }

    /// A thread waits for the acknowledgement of the event. Where it is the one that was handed the
    /// event, it waits for itself.
    pub(crate) fn is_awaited(&self) {
        if self.thread == thread() {
            note(|checker, site| checker.unacknowledged(&self.place, site));
        }
    }
}

/// The program acknowledges more events of an object than it owes.
pub(crate) fn too_many(acknowledged: u32, owed: u32) {
    note(|checker, site| checker.acknowledged_too_often(acknowledged, owed, site));
}
