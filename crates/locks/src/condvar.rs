//! Waiting, with a mutex given back meanwhile, until another thread says that what it guards has
//! changed.

use crate::{MutexGuard, lock};

/// Threads that wait until what a mutex guards has changed. It is for a [`Mutex`](crate::Mutex) of
/// ours. One condition variable goes with one mutex.
///
/// ```
/// use locks::{Condvar, Mutex, Rank};
///
/// let (unacked, zero) = (Mutex::new(Rank::Unacked, 1), Condvar::default());
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         *unacked.lock() -= 1;
///         zero.notify_all();
///     });
///     let mut count = unacked.lock();
///     while *count > 0 {
///         count = zero.wait(count);
///     }
/// });
/// ```
#[derive(Debug, Default)]
pub struct Condvar(lock::Condvar);

impl Condvar {
    /// Gives the mutex back, waits until it is notified, and takes the mutex again. It may return
    /// without being notified: the caller looks at what the mutex guards, and waits again.
    ///
    /// # Panics
    ///
    /// With debug assertions, where the calling thread holds any other lock: that one would be held
    /// for as long as it waits.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard.wait_on(&self.0)
    }

    /// Wakes all that wait.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
