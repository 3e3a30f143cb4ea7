//! The descriptors that programs poll: an eventfd (eventfd(2)) that counts events. Reading it takes one.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use nic::Signal;

use crate::rings::linger::Linger;
use crate::rings::seat::Seat;

/// For how long one looks for the next step of a connection ([`Counter::of`]): a peer makes a queue pair meanwhile.
pub const A_STEP: Duration = Duration::from_micros(100);
/// For how long one looks for a completion: about what waking a thread takes of a processor, so that it is never much more than twice what sleeping takes.
pub const A_WAKE: Duration = Duration::from_micros(20);

/// An event counter. The program sees its number, may poll it and may set O_NONBLOCK on it.
#[derive(Clone)]
pub struct Counter(Arc<Inner>);

struct Inner {
    fd: OwnedFd,
    /// Where a thread sits that waits for an event of this counter, and has to be woken there.
    waits_in: ArcSwapOption<Seat>,
    /// Whether it looks for a moment before it sleeps.
    linger: Linger,
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Counter").field(&self.0.fd).finish()
    }
}

impl Counter {
    /// A counter at 0.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE or ENOMEM where the system has no descriptor.
    pub fn new() -> io::Result<Counter> {
        Counter::of(Duration::ZERO)
    }

    /// The same for events of which a thread that waits for one shall look for `moment` before it sleeps, where that is of use ([`crate::Host::sit_down`]).
    ///
    /// # Errors
    ///
    /// As [`Counter::new`].
    pub fn of(moment: Duration) -> io::Result<Counter> {
        // SAFETY: no pointer; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Counter(Arc::new(Inner { fd, waits_in: ArcSwapOption::empty(), linger: Linger::new(moment) })))
    }

    /// Its number.
    pub fn fd(&self) -> c_int {
        self.0.fd.as_raw_fd()
    }

    /// The program has set O_NONBLOCK on it.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: no pointer.
        unsafe { libc::fcntl(self.fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    /// Whether whoever waits for an event looks for a moment before it sleeps.
    pub(crate) fn linger(&self) -> &Linger {
        &self.0.linger
    }

    /// There are events to take.
    pub(crate) fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that lives across the call, which does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
    }

    /// A thread that waits for an event sits there; or nowhere any more. An event that came before is not told of there.
    pub(crate) fn waits_in(&self, seat: Option<Arc<Seat>>) {
        self.0.waits_in.store(seat);
        // Whoever waits looks for events next; whoever signals counts, then looks who waits.
        fence(Ordering::SeqCst);
    }
}

impl Signal for Counter {
    fn signal(&self) {
        let one = 1_u64;
        // A failed write means 2^64 - 2 unread events, or a program that closed the descriptor: nobody listens.
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        fence(Ordering::SeqCst);
        if let Some(seat) = &*self.0.waits_in.load() {
            seat.ring();
        }
    }
    fn take_back(&self) {
        let mut count = 0_u64;
        let to = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        // Without waiting whatever the program made of the descriptor: a thread of it may have read the count by now.
        // SAFETY: eight writable bytes, described by one iovec.
        unsafe { libc::preadv2(self.fd(), &raw const to, 1, -1, libc::RWF_NOWAIT) };
    }
}

unsafe extern "C-unwind" {
    /// libc's, declared as what it is: a cancellation point that may unwind.
    fn read(fd: c_int, buf: *mut std::ffi::c_void, count: usize) -> isize;
}

/// Takes one event from a counter: blocks unless the program made the descriptor non-blocking. False with errno set where
/// the read failed (EINTR, EAGAIN).
///
/// # Safety
///
/// Threads may be cancelled in here, which unwinds the caller's frames: they are `extern "C-unwind"` or plain Rust frames
/// without destructors, and hold no lock.
pub unsafe fn wait(fd: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: eight writable bytes.
    unsafe { read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// How a wait in a seat ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Something is to be looked at.
    Rung,
    /// By a signal, with errno set.
    BySignal,
    /// Nothing can be waited for there.
    Closed,
}

/// Waits in the seat of a host ([`crate::Host::sit_down`]).
///
/// # Safety
///
/// As [`wait`].
pub unsafe fn wait_in_seat(fd: c_int) -> Woken {
    let mut bytes = [0_u8; 256];
    // SAFETY: so many writable bytes.
    match unsafe { read(fd, (&raw mut bytes).cast(), bytes.len()) } {
        1.. => Woken::Rung,
        // SAFETY: the thread's own errno.
        -1 if unsafe { *libc::__errno_location() } == libc::EINTR => Woken::BySignal,
        _ => Woken::Closed,
    }
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
