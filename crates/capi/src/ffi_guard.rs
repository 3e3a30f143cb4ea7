//! Where C calls Rust: what every exported function passes through. A panic does not cross into the
//! caller: it becomes the function's failure, and the devices of this process become fatal, because
//! their state is not to be trusted.
//!
//! What must **not** run inside: a blocking call. Programs cancel threads (`pthread_cancel`) that
//! wait in `ibv_get_cq_event`, `rdma_get_cm_event` and the like; cancellation unwinds the stack
//! from inside `read`, and an unwind that Rust did not start aborts the process when it meets
//! `catch_unwind` or an `extern "C"` frame. Such a function is an `extern "C-unwind" fn` that waits
//! with a plain `read` on the descriptor, holding no lock and owning nothing that has a destructor,
//! and goes through the border before and after.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use linux::process;
pub use nic::Errno;

/// Writes an errno where C looks for it.
pub fn set_errno(errno: Errno) {
    // SAFETY: the address is this thread's own errno, valid as long as the thread lives.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// Runs `f`; `Err(EIO)` if it panics.
#[inline]
fn caught<T>(f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // The state after a panic is given up as a whole, so none of it is seen half changed.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        process::fail();
        Err(Errno(libc::EIO))
    })
}

/// Runs a function that fails with `failed` and errno.
#[inline]
pub fn or<T>(failed: T, f: impl FnOnce() -> Result<T, Errno>) -> T {
    caught(f).unwrap_or_else(|e| {
        set_errno(e);
        failed
    })
}

/// Runs a function that fails with -1 and errno: all of librdmacm's, some of libibverbs'.
pub fn or_minus_one(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    or(-1, f)
}

/// Runs a function that makes an object, or fails with NULL and errno: ENOMEM where the heap is at
/// its end.
pub fn or_null<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    or(std::ptr::null_mut(), || process::room(ROOM).map_err(Errno::from).and_then(|()| f()))
}

/// What the making of an object takes from the heap, and what programs may choose of it, is far
/// below this: queues grow when they are used, and say that they are full where they can not.
const ROOM: usize = 1 << 16;

/// Runs a function that makes something for an object, or fails with -1 and errno, as [`or_null`]
/// does.
pub fn making(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    or_minus_one(|| process::room(ROOM).map_err(Errno::from).and_then(|()| f()))
}

/// Runs a function that returns 0 or a positive errno: most of libibverbs'. Sets errno too, as
/// rdma-core does in effect: programs print `strerror(errno)` after either kind.
#[inline]
pub fn or_errno(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match caught(f) {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e);
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
    fn a_panic_becomes_eio() {
        assert_eq!(or_minus_one(|| panic!("in a call")), -1);
        assert_eq!(Errno::last(), Errno(libc::EIO));
        nothing(|| panic!("in a call that returns nothing"));
    }
}
