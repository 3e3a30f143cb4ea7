//! A lock for many readers or one writer, with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use crate::Rank;
#[cfg(debug_assertions)]
use crate::held::{self, Held};

/// A [`std::sync::RwLock`] that has its place in the order of all locks. A thread that reads does
/// not read it again: a writer that waits in between would stop both.
pub struct RwLock<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    inner: std::sync::RwLock<T>,
}

/// A [`RwLock`] held for reading; dropping it gives it back.
#[must_use = "dropped at once it guards nothing"]
pub struct ReadGuard<'a, T> {
    inner: std::sync::RwLockReadGuard<'a, T>,
    #[cfg(debug_assertions)]
    _held: Held,
}

/// A [`RwLock`] held for writing; dropping it gives it back.
#[must_use = "dropped at once it guards nothing"]
pub struct WriteGuard<'a, T> {
    inner: std::sync::RwLockWriteGuard<'a, T>,
    #[cfg(debug_assertions)]
    _held: Held,
}

impl<T> RwLock<T> {
    /// A lock at `rank` around `value`.
    #[inline]
    pub const fn new(rank: Rank, value: T) -> Self {
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            inner: std::sync::RwLock::new(value),
        }
    }

    /// Waits until no other thread writes, and takes it for reading.
    ///
    /// # Panics
    ///
    /// With debug assertions, where the calling thread holds a lock of the same rank or of a later
    /// one.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.reading(self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock for reading where no other thread writes. It waits for no thread, and so is
    /// allowed whatever the calling thread holds.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        match self.inner.try_read() {
            Ok(inner) => Some(self.reading(inner)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.reading(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until no other thread holds it, and takes it for writing.
    ///
    /// # Panics
    ///
    /// As for [`RwLock::read`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> WriteGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        WriteGuard {
            inner: self.inner.write().unwrap_or_else(PoisonError::into_inner),
            #[cfg(debug_assertions)]
            _held: Held::new(self.rank),
        }
    }

    #[inline]
    fn reading<'a>(&self, inner: std::sync::RwLockReadGuard<'a, T>) -> ReadGuard<'a, T> {
        ReadGuard {
            inner,
            #[cfg(debug_assertions)]
            _held: Held::new(self.rank),
        }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
