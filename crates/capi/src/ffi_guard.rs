//! Where C calls Rust: what every exported function passes through. A panic does not cross into the caller: it becomes
//! the function's failure, and the devices of this process become fatal, because their state is not to be trusted.
//!
//! What must **not** run inside: a blocking call. Programs cancel threads (`pthread_cancel`) that wait in
//! `ibv_get_cq_event`, `rdma_get_cm_event` and the like; cancellation unwinds the stack from inside `read`, and an unwind
//! that Rust did not start aborts the process when it meets `catch_unwind` or an `extern "C"` frame. Such a function is
//! an `extern "C-unwind" fn` that waits with a plain `read` on the descriptor, holding no lock and owning nothing that
//! has a destructor, and goes through the border before and after.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::per_process::Kept;

/// A value of errno, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

impl Errno {
    /// Writes it where C looks for it.
    pub fn set(self) {
        // SAFETY: the address is this thread's own errno, valid as long as the thread lives.
        unsafe { *libc::__errno_location() = self.0 }
    }

    /// This thread's errno, after a call that failed.
    pub fn last() -> Errno {
        // SAFETY: as in `set`.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl From<std::io::Error> for Errno {
    /// EIO where the error does not come from the system.
    fn from(e: std::io::Error) -> Self {
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What to do after a caught panic, once set.
static AFTER_PANIC: Kept<fn()> = Kept::new();

/// Sets what happens after a caught panic: whoever owns the devices makes them fatal and tells their programs by an
/// async event. Only the first call has an effect. `f` is called on the thread that panicked, with no lock of the border held;
/// should it panic too, that is caught as well.
pub fn after_panic(f: fn()) {
    AFTER_PANIC.get_or_make(|| f);
}

/// A panic was caught: does what [`after_panic`] set.
pub fn panicked() {
    if let Some(f) = AFTER_PANIC.get() {
        let _ = catch_unwind(f);
    }
}

/// Runs `f`; `Err(EIO)` if it panics.
fn caught<T>(f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // The state behind a panic is given up as a whole (`after_panic`), so none of it is seen half changed.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        panicked();
        Err(Errno(libc::EIO))
    })
}

/// Runs a function that fails with `failed` and errno.
pub fn or<T>(failed: T, f: impl FnOnce() -> Result<T, Errno>) -> T {
    caught(f).unwrap_or_else(|e| {
        e.set();
        failed
    })
}

/// Runs a function that fails with -1 and errno: all of librdmacm's, some of libibverbs'.
pub fn or_minus_one(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    or(-1, f)
}

/// Runs a function that makes an object, or fails with NULL and errno: ENOMEM where the heap is at its end.
pub fn or_null<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    or(std::ptr::null_mut(), || room(ROOM).and_then(|()| f()))
}

/// What the making of an object takes from the heap, and what programs may choose of it, is far below this: queues grow when
/// they are used, and say that they are full where they can not.
pub(crate) const ROOM: usize = 1 << 16;

/// ENOMEM where the heap has not so many bytes left. Rust ends the process where it gets no memory for something small, so
/// whoever makes an object looks first. Another thread may take what was found here: then that is the end all the same.
pub(crate) fn room(bytes: usize) -> Result<(), Errno> {
    // SAFETY: an allocation of its own, given back at once; the compiler does not see that nobody looks at it.
    unsafe {
        let found = std::hint::black_box(libc::malloc(bytes));
        if found.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        libc::free(found);
    }
    Ok(())
}

/// Runs a function that makes something for an object, or fails with -1 and errno, as [`or_null`] does.
pub fn making(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    or_minus_one(|| room(ROOM).and_then(|()| f()))
}

/// Runs a function that returns 0 or a positive errno: most of libibverbs'. Sets errno too, as rdma-core does in effect:
/// programs print `strerror(errno)` after either kind.
pub fn or_errno(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match caught(f) {
        Ok(()) => 0,
        Err(e) => {
            e.set();
            e.0
        }
    }
}

/// Runs a function that returns nothing.
pub fn nothing(f: impl FnOnce()) {
    let _ = caught(|| {
        f();
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_the_documented_failure_and_errno() {
        assert_eq!(or_minus_one(|| Err(Errno(libc::EINVAL))), -1);
        assert_eq!(Errno::last(), Errno(libc::EINVAL));
        assert_eq!(or_errno(|| Err(Errno(libc::EBUSY))), libc::EBUSY);
        assert!(or_null::<u8>(|| Err(Errno(libc::ENOMEM))).is_null());
        assert_eq!(Errno::last(), Errno(libc::ENOMEM));
        assert_eq!(or_errno(|| Ok(())), 0);
    }

    #[test]
    fn a_panic_becomes_eio_and_is_told_once() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static TOLD: AtomicU32 = AtomicU32::new(0);
        after_panic(|| {
            TOLD.fetch_add(1, Ordering::Relaxed);
            panic!("also while telling");
        });
        assert_eq!(or_minus_one(|| panic!("in a call")), -1);
        assert_eq!(Errno::last(), Errno(libc::EIO));
        assert_eq!(TOLD.load(Ordering::Relaxed), 1);
        nothing(|| panic!("in a call that returns nothing"));
        assert_eq!(TOLD.load(Ordering::Relaxed), 2);
    }
}
