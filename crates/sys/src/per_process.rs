//! Statics and `fork`: what is static and shared between threads belongs to one process.
//!
//! A child of fork(2) has one thread, a copy of the one that forked. A lock that another thread of
//! its parent held at that moment stays taken in the child for ever, and what it guards is half
//! changed. So for every crate that is linked into the shared object this is the rule:
//!
//! 1. A static that has a lock, or waits for another thread, is a [`PerProcess`]: a child begins
//!    with a value of its own, locks included. `Mutex`, `RwLock`, `Condvar`, `Barrier` and channels
//!    stand in no static otherwise.
//! 2. A static that is made once and then kept, by children too, is a [`Kept`]: a thread that comes
//!    while it is made does not wait. `Once`, `OnceLock` and `LazyLock` are not used: clippy.toml
//!    of each crate disallows them.
//! 3. Atomics and thread-locals may be static; a spin lock only where fork itself takes it (`fork`:
//!    `CHANGING`).
//! 4. A lock in an object is of the `Instance` (`linux::process`) that the object belongs to. A
//!    child asks `is_ours` before it takes one: its own instance has its own.
//!
//! `crates/cdylib/tests/statics.rs` reads the statics of all these crates. What other people's
//! crates keep is beyond the rule: arc-swap, getrandom, crc32c and crc32fast wait for no thread.
//! The standard library has two locks that a child may find taken. One is that of standard error;
//! the other, for programs that change it through Rust, that of the environment. Both are taken
//! where an instance starts, never at exit.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork;

/// A value of this process, made when it is first asked for. A forked child makes its own; its
/// parent's is never dropped there, because the threads that may be changing it do not exist.
///
/// ```
/// use sys::per_process::PerProcess;
/// use locks::{Mutex, Rank};
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new(|| Mutex::new(Rank::DeviceList, Vec::new()));
/// NAMES.get().lock().push("rxe_lo".to_owned());
/// ```
#[derive(Debug)]
pub struct PerProcess<T> {
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

#[derive(Debug)]
struct Made<T> {
    /// [`fork::generation`] of the process that made it.
    generation: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Nothing is made yet. `make` makes the value of a process; where several threads ask first,
    /// each may call it, and one value is kept.
    pub const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(null_mut()), make }
    }

    /// The value of this process. Costs two loads where it is made: calls of a program ask for it
    /// often.
    #[inline]
    pub fn get(&self) -> &T {
        // SAFETY: NULL or from `Box::into_raw` below, and never freed once it has been stored.
        match unsafe { self.current.load(Ordering::Acquire).as_ref() } {
            Some(made) if made.generation == fork::generation() => &made.value,
            _ => self.made(),
        }
    }

    #[cold]
    fn made(&self) -> &T {
        let mut generation = fork::generation();
        let mut seen = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: as above.
            if let Some(made) = unsafe { seen.as_ref() }
                && made.generation == generation
            {
                return &made.value;
            }
            // Without the handlers a child would not be told from its parent.
            fork::watch();
            generation = fork::generation();
            let made = Box::into_raw(Box::new(Made { generation, value: (self.make)() }));
            match self.current.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as above.
                Ok(_) => return unsafe { &(*made).value },
                Err(now) => {
                    // SAFETY: just made, and nothing else knows it.
                    drop(unsafe { Box::from_raw(made) });
                    seen = now;
                }
            }
        }
    }
}

/// A value that is made once and then kept, by forked children too. A thread that comes while
/// another makes it makes it as well, and one of the two is kept. No thread waits, so that no child
/// waits for a thread that it has not.
#[derive(Debug)]
pub struct Kept<T> {
    value: AtomicPtr<T>,
}

impl<T: Send + Sync> Default for Kept<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync> Kept<T> {
    /// Nothing is made yet.
    pub const fn new() -> Self {
        Self { value: AtomicPtr::new(null_mut()) }
    }

    /// The value, if it has been made.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: NULL or from `Box::into_raw` below, and never freed once it has been stored.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// The value, made by `make` if it has not been.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let made = Box::into_raw(Box::new(make()));
        match self.value.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as above.
            Ok(_) => unsafe { &*made },
            Err(kept) => {
                // SAFETY: just made, and nothing else knows it; the other one as above.
                unsafe {
                    drop(Box::from_raw(made));
                    &*kept
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use locks::{Mutex, Rank};

    use super::*;

    #[test]
    fn a_child_begins_with_a_value_of_its_own_while_another_thread_holds_its_parents() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(|| Mutex::new(Rank::DeviceList, 0));
        let mut held = VALUE.get().lock();
        *held = 7;
        // SAFETY: the child touches nothing but the value, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let fresh = VALUE.get().try_lock().is_some_and(|v| *v == 0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fresh)) };
        }
        let mut status = -1;
        // SAFETY: the child just made, and a variable of ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        drop(held);
        assert_eq!(*VALUE.get().lock(), 7);
    }
}
