//! [`ThreadSafe`], at which the proof that a type is `Send` and `Sync` ends.
//!
//! rustc proves both for a task's future and for the fields of each type in it, one inside the
//! other. It goes as deep as the `recursion_limit` of the crate that asks, the program's: 128. A
//! connection knows its queue pair, that its domain, device and host, and these all that they
//! have, which is more. The handles of this crate are proved here, once, as they are made.

use std::ops::Deref;

/// A value that any thread may have and use.
#[derive(Clone)]
pub(crate) struct ThreadSafe<T>(T);

impl<T: Send + Sync + 'static> ThreadSafe<T> {
    /// Wraps this value.
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }
}

// SAFETY: there is a value only where `new` made it, or a clone of one. `T` is Send there.
unsafe impl<T> Send for ThreadSafe<T> {}
// SAFETY: as above; `T` is Sync there.
unsafe impl<T> Sync for ThreadSafe<T> {}

impl<T> Deref for ThreadSafe<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
