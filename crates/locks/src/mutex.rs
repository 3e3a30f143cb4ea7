//! A mutex with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

#[cfg(debug_assertions)]
use crate::held::{self, Held};
use crate::{Rank, lock};

/// A mutex that has its place in the order of all locks.
///
/// ```
/// use locks::{Mutex, Rank};
///
/// let (qp, cq) = (Mutex::new(Rank::Qp, 1), Mutex::new(Rank::Cq, 2));
/// let qp = qp.lock();
/// assert_eq!(*qp + *cq.lock(), 3);
/// ```
///
/// Two of one rank are never held at once:
///
/// ```should_panic
/// # use locks::{Mutex, Rank};
/// let (one, other) = (Mutex::new(Rank::Qp, 1), Mutex::new(Rank::Qp, 2));
/// let _one = one.lock();
/// let _other = other.lock();
/// # if !cfg!(debug_assertions) { panic!("release builds do not look") }
/// ```
pub struct Mutex<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    inner: lock::Mutex<T>,
}

/// A [`Mutex`] held; dropping it gives it back.
#[must_use = "dropped at once it guards nothing"]
pub struct MutexGuard<'a, T> {
    inner: lock::MutexGuard<'a, T>,
    #[cfg(debug_assertions)]
    held: Held,
}

impl<T> Mutex<T> {
    /// A mutex at `rank` around `value`.
    #[inline]
    #[cfg(not(loom))]
    pub const fn new(rank: Rank, value: T) -> Self {
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            inner: lock::Mutex::new(value),
        }
    }

    /// A mutex at `rank` around `value`, as a model.
    #[cfg(loom)]
    pub fn new(rank: Rank, value: T) -> Self {
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            inner: lock::Mutex::new(value),
        }
    }

    /// Waits until no other thread holds it, and takes it.
    ///
    /// # Panics
    ///
    /// With debug assertions, where the calling thread holds a lock of the same rank or of a later
    /// one.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.guard(self.inner.lock())
    }

    /// Takes the mutex where no other thread holds it. It waits for no thread, and so is allowed
    /// whatever the calling thread holds.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock().map(|inner| self.guard(inner))
    }

    /// What the mutex guards, for a caller that has it to itself.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// What the mutex guarded.
    #[inline]
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    #[inline]
    fn guard<'a>(&self, inner: lock::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard {
            inner,
            #[cfg(debug_assertions)]
            held: Held::new(self.rank),
        }
    }
}

// As the standard library's, but that no other thread is told of a panic.
impl<T> RefUnwindSafe for Mutex<T> {}
impl<T> UnwindSafe for Mutex<T> {}

impl<'a, T> MutexGuard<'a, T> {
    /// Waits on `condvar`; see [`Condvar::wait`](crate::Condvar::wait).
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn wait_on(self, condvar: &lock::Condvar) -> Self {
        let MutexGuard {
            inner,
            #[cfg(debug_assertions)]
            held,
        } = self;
        // The rank stays noted meanwhile: a thread that waits takes nothing.
        #[cfg(debug_assertions)]
        held.check_alone();
        let inner = condvar.wait(inner);
        MutexGuard {
            inner,
            #[cfg(debug_assertions)]
            held,
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
