//! One value in registered memory: [`RegBox`].

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::access::Plain;
use super::buf::RegBuf;
use super::io_buf::{IoBuf, IoBufMut, SgeList};
use super::pool::Pool;
use crate::error::{Error, Result};

/// One value in registered memory, as in a `Box`. Only plain data:
/// ```compile_fail,E0277
/// fn f(pool: &verbena::Pool) {
///     let _ = verbena::RegBox::new(pool, String::new());
/// }
/// ```
///
/// # Examples
///
/// ```
/// # let device = verbena::Provider::software()?.devices()?.remove(0);
/// # let pd = device.pd()?;
/// # let pool = verbena::Pool::new(&pd, 64, 1)?;
/// let mut counters = verbena::RegBox::new(&pool, [0_u64; 4])?;
/// counters[2] += 1;
/// assert_eq!(counters.get(), [0, 0, 1, 0]);
/// # Ok::<(), verbena::Error>(())
/// ```
pub struct RegBox<T: Plain> {
    /// As long as a `T`, and aligned as one.
    buf: RegBuf,
    _t: PhantomData<T>,
}

impl<T: Plain> RegBox<T> {
    /// Moves a value there.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::get`]; `OutOfRange` where a buffer of the pool is too small, or less
    /// aligned than the value (they are aligned to 64 bytes).
    pub fn new(pool: &Pool, value: T) -> Result<Self> {
        let buf = pool.copy(value.as_bytes())?;
        if !buf.as_ptr().cast::<T>().is_aligned() {
            return Err(Error::number("RegBox::new", "alignment", align_of::<T>() as u64, 1..=64));
        }
        Ok(Self { buf, _t: PhantomData })
    }
    /// A copy of the value.
    pub fn get(&self) -> T {
        // SAFETY: so many bytes are there, and any bytes are a T.
        unsafe { self.buf.as_ptr().cast::<T>().read_unaligned() }
    }
    /// Replaces it.
    pub fn set(&mut self, value: T) {
        **self = value;
    }
}

impl<T: Plain> Deref for RegBox<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: so many bytes are there, aligned (`new`), any bytes are a T, and no other code
        // writes to what this handle names.
        unsafe { &*self.buf.as_ptr().cast::<T>() }
    }
}

impl<T: Plain> DerefMut for RegBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed exclusively. Any T is good bytes (`IntoBytes`).
        unsafe { &mut *self.buf.as_mut_ptr().cast::<T>() }
    }
}

impl<T: Plain + std::fmt::Debug> std::fmt::Debug for RegBox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: as for the buffer.
unsafe impl<T: Plain> IoBuf for RegBox<T> {
    fn gather(&self, list: &mut SgeList) {
        self.buf.gather(list);
    }
}

// SAFETY: as for the buffer, of which it names no more than its length.
unsafe impl<T: Plain> IoBufMut for RegBox<T> {
    fn gather_mut(&self, list: &mut SgeList) {
        self.buf.gather(list);
    }
    fn capacity_bytes(&self) -> usize {
        size_of::<T>()
    }
    /// A message that is shorter than the value replaces its first bytes.
    fn set_filled(&mut self, _len: usize) {}
}
