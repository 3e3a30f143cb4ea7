//! State that belongs to one process. A child that was forked while another thread of its parent held a lock would find
//! the lock taken for ever and what it guards half changed; so what is here begins anew in a child, locks included. Nothing
//! else that is static in these crates holds a lock or waits for another thread (`crates/lib/tests/statics.rs` looks).

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value of this process, made when it is first asked for. A forked child makes its own; its parent's is never dropped
/// there, because the threads that may be changing it do not exist.
pub(crate) struct PerProcess<T> {
    current: AtomicPtr<Made<T>>,
}

struct Made<T> {
    /// The process that made it.
    pid: u32,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(null_mut()) }
    }

    /// The value of this process.
    pub fn get(&self) -> &T {
        let pid = std::process::id();
        let mut seen = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: NULL or from `Box::into_raw` below, and never freed once it has been stored.
            if let Some(made) = unsafe { seen.as_ref() }
                && made.pid == pid
            {
                return &made.value;
            }
            let made = Box::into_raw(Box::new(Made { pid, value: T::default() }));
            match self.current.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as above.
                Ok(_) => return unsafe { &(*made).value },
                Err(now) => {
                    // SAFETY: just made, and nobody else knows it.
                    drop(unsafe { Box::from_raw(made) });
                    seen = now;
                }
            }
        }
    }
}

/// A value that is made once and then kept, by forked children too. Whoever comes while another makes it makes it as well, and
/// one of the two is kept: nobody waits, so that no child waits for a thread that it has not.
pub(crate) struct Kept<T> {
    value: AtomicPtr<T>,
}

impl<T: Send + Sync> Kept<T> {
    pub const fn new() -> Kept<T> {
        Kept { value: AtomicPtr::new(null_mut()) }
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
                // SAFETY: just made, and nobody else knows it; the other one as above.
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
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_child_begins_with_a_value_of_its_own_whoever_held_its_parents() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut held = VALUE.get().lock().unwrap();
        *held = 7;
        // SAFETY: the child touches nothing but the value, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let fresh = VALUE.get().try_lock().is_ok_and(|v| *v == 0);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fresh)) };
        }
        let mut status = -1;
        // SAFETY: the child just made, and a variable of ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        drop(held);
        assert_eq!(*VALUE.get().lock().unwrap(), 7);
    }
}
