//! The descriptors that programs poll: an eventfd (eventfd(2)) that counts events. Reading it takes one.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use nic::Signal;

/// An event counter. The program sees its number, may poll it and may set O_NONBLOCK on it.
#[derive(Clone, Debug)]
pub struct Counter(Arc<OwnedFd>);

impl Counter {
    /// A counter at 0.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE or ENOMEM where the system has no descriptor.
    pub fn new() -> io::Result<Counter> {
        // SAFETY: no pointer; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        Ok(Counter(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Its number.
    pub fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    /// The program has set O_NONBLOCK on it.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: no pointer.
        unsafe { libc::fcntl(self.fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }
}

impl Signal for Counter {
    fn signal(&self) {
        let one = 1_u64;
        // A failed write means 2^64 - 2 unread events, or a program that closed the descriptor: nobody listens.
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }
    fn take_back(&self) {
        let mut count = 0_u64;
        let to = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        // Without waiting whatever the program made of the descriptor: a thread of it may have read the count by now.
        // SAFETY: eight writable bytes, described by one iovec.
        unsafe { libc::preadv2(self.fd(), &raw const to, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Takes one event from a counter: blocks unless the program made the descriptor non-blocking. False with errno set where
/// the read failed (EINTR, EAGAIN).
///
/// # Safety
///
/// Threads may be cancelled in here, which unwinds the caller's frames: they are `extern "C-unwind"` or plain Rust frames
/// without destructors, and hold no lock.
pub unsafe fn wait(fd: c_int) -> bool {
    unsafe extern "C-unwind" {
        fn read(fd: c_int, buf: *mut std::ffi::c_void, count: usize) -> isize;
    }
    let mut count = 0_u64;
    // SAFETY: eight writable bytes. `read` is libc's, declared as what it is: a cancellation point that may unwind.
    unsafe { read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// Waits for a signal or for the thread's cancellation, as one does that reads a counter which nobody counts up any more.
///
/// # Safety
///
/// As [`wait`].
pub unsafe fn wait_for_nothing() {
    unsafe extern "C-unwind" {
        fn pause() -> c_int;
    }
    // SAFETY: no argument. `pause` is libc's, declared as what it is: a cancellation point that may unwind. errno is EINTR.
    unsafe { pause() };
}
