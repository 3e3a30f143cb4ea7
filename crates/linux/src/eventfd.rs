//! The descriptors that programs poll: an eventfd (eventfd(2)) that counts events. Reading it takes
//! one.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use local::rings::adaptive_spin::AdaptiveSpin;
use local::rings::driver_slot::DriverSlot;
use nic::Signal;
use sys::refused::is_refused;
use sys::thread::own_thread;

/// For how long one looks for the next step of a connection ([`Counter::of`]): a peer makes a queue
/// pair meanwhile.
pub const A_STEP: Duration = Duration::from_micros(100);
/// For how long one looks for a completion: about what waking a thread takes of a processor, so
/// that it is never much more than twice what sleeping takes.
pub const A_WAKE: Duration = Duration::from_micros(20);

/// An event counter. The program sees its number, may poll it and may set O_NONBLOCK on it.
#[derive(Clone)]
pub struct Counter(Arc<Inner>);

struct Inner {
    fd: OwnedFd,
    /// No two have the same.
    id: u64,
    /// How many events the counter has, or more: a program that reads it by itself does not say so.
    events: AtomicI64,
    /// Where a thread drives that waits for an event of this counter, and whether one does, and has
    /// to be woken there.
    driver_slot: ArcSwapOption<DriverSlot>,
    waits: AtomicBool,
    /// The number of the thread that takes the next event and reads what comes meanwhile; 0 for
    /// none. What it brings itself it has in hand, and the descriptor is not told of it.
    taker: AtomicU32,
    taken_inline: AtomicBool,
    /// Whether it looks for a moment before it sleeps.
    spin: AdaptiveSpin,
    /// The program had not set O_NONBLOCK when that was asked last.
    blocked: AtomicBool,
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
    pub fn new() -> io::Result<Self> {
        Self::of(Duration::ZERO)
    }

    /// Like [`Counter::new`], for events that a waiting thread shall look for during `moment`
    /// before it sleeps, where that is of use ([`crate::Host::wait_as_driver`]).
    ///
    /// # Errors
    ///
    /// As [`Counter::new`].
    pub fn of(moment: Duration) -> io::Result<Self> {
        // SAFETY: no pointer; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, which has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Self(Arc::new(Inner {
            fd,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            events: AtomicI64::new(0),
            driver_slot: ArcSwapOption::empty(),
            waits: AtomicBool::new(false),
            taker: AtomicU32::new(0),
            taken_inline: AtomicBool::new(false),
            spin: AdaptiveSpin::new(moment),
            blocked: AtomicBool::new(false),
        })))
    }

    /// What tells it from all others there are and were.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// There is an event, as far as one can tell without a system call.
    pub fn has_events(&self) -> bool {
        self.0.events.load(Ordering::SeqCst) > 0
    }

    /// An event was taken ([`wait`]).
    pub fn taken(&self) {
        self.0.events.fetch_sub(1, Ordering::SeqCst);
    }

    /// The calling thread takes the next event, and looks for it itself as long as this lives.
    pub(crate) fn taker(&self) -> Taker<'_> {
        self.0.taker.store(own_thread(), Ordering::Relaxed);
        Taker(self)
    }

    /// Keeps an event in hand that the thread brings which is about to take one.
    fn hand_over(&self) -> bool {
        let taker = self.0.taker.load(Ordering::Relaxed);
        taker != 0 && taker == own_thread() && !self.0.taken_inline.swap(true, Ordering::SeqCst)
    }

    /// Takes the event that is in hand, as [`wait`] takes one from the descriptor; false where
    /// there is none.
    pub(crate) fn take_inline(&self) -> bool {
        let is_there =
            self.0.taken_inline.load(Ordering::Relaxed) && self.0.taken_inline.swap(false, Ordering::SeqCst);
        if is_there {
            self.taken();
        }
        is_there
    }

    /// The number of the counter's descriptor.
    pub fn fd(&self) -> c_int {
        self.0.fd.as_raw_fd()
    }

    /// The program has set O_NONBLOCK on it.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: no pointer.
        let is_nonblocking = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 };
        self.0.blocked.store(!is_nonblocking, Ordering::Relaxed);
        is_nonblocking
    }

    /// Like [`Counter::is_nonblocking`], as far as one can tell without a system call. A thread
    /// that then is about to sleep asks again there. An answer that a thread looks for is there in
    /// a moment, as a rule, so that no thread sleeps.
    pub(crate) fn seems_nonblocking(&self) -> bool {
        !self.0.blocked.load(Ordering::Relaxed) && self.is_nonblocking()
    }

    /// Whether a thread that waits for an event looks for a moment before it sleeps.
    pub(crate) fn spin(&self) -> &AdaptiveSpin {
        &self.0.spin
    }

    /// A thread that waits for an event drives there; or nowhere any more. An event that came
    /// before is not told of there.
    pub(crate) fn waits_in(&self, driver_slot: Option<Arc<DriverSlot>>) {
        let waits = driver_slot.is_some();
        if let Some(driver_slot) = driver_slot
            && !self.0.driver_slot.load().as_ref().is_some_and(|known| Arc::ptr_eq(known, &driver_slot))
        {
            self.0.driver_slot.store(Some(driver_slot));
        }
        self.0.waits.store(waits, Ordering::SeqCst);
        // A thread that waits looks for events next; one that signals counts, then looks for
        // waiters.
        fence(Ordering::SeqCst);
    }
}

/// A thread that looks for an event itself ([`Counter::taker`]).
pub(crate) struct Taker<'a>(&'a Counter);

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.0.0.taker.store(0, Ordering::Relaxed);
    }
}

impl Signal for Counter {
    fn signal(&self) {
        let one = 1_u64;
        self.0.events.fetch_add(1, Ordering::SeqCst);
        if self.hand_over() {
            return;
        }
        // A failed write means 2^64 - 2 unread events, or a program that closed the descriptor: no
        // thread listens. SAFETY: eight readable bytes.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        fence(Ordering::SeqCst);
        if self.0.waits.load(Ordering::SeqCst)
            && let Some(driver_slot) = &*self.0.driver_slot.load()
        {
            driver_slot.ring();
        }
    }
    fn take_back(&self) {
        if take_now(self.fd()) {
            self.taken();
        } else {
            self.take_inline();
        }
    }
}

/// Takes one event from a counter without waiting, whatever the program made of the descriptor: a
/// thread of it may have read the count by now. False where there is none.
fn take_now(fd: c_int) -> bool {
    let mut count = 0_u64;
    let to = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: eight writable bytes, described by one iovec.
    if unsafe { libc::preadv2(fd, &raw const to, 1, -1, libc::RWF_NOWAIT) } == 8 {
        return true;
    }
    // EOPNOTSUPP: an eventfd of a kernel before 5.8, and what the C library makes of ENOSYS.
    let error = io::Error::last_os_error();
    if !is_refused(&error) && error.raw_os_error() != Some(libc::EOPNOTSUPP) {
        return false;
    }
    // For the time of one read the descriptor is non-blocking for all threads. One that waits there
    // by then waits on, one that comes just now is told EAGAIN.
    // SAFETY: no pointer, then eight writable bytes.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 {
            return false;
        }
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let taken = libc::read(fd, to.iov_base, 8) == 8;
        libc::fcntl(fd, libc::F_SETFL, flags);
        taken
    }
}

unsafe extern "C-unwind" {
    // libc's, declared as what it is: a cancellation point that may unwind. readv(2), as rustc
    // refuses another ABI than its own for `read` (`invalid_runtime_symbol_definitions`).
    fn readv(fd: c_int, to: *const libc::iovec, count: c_int) -> isize;
}

/// Reads once into these bytes: the number of bytes read, or -1 with errno set.
///
/// # Safety
///
/// As [`wait`].
unsafe fn read(fd: c_int, bytes: &mut [u8]) -> isize {
    let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: one iovec, of so many writable bytes. It may unwind, as the caller knows.
    unsafe { readv(fd, &raw const to, 1) }
}

/// Takes one event from a counter: blocks unless the program made the descriptor non-blocking.
/// False with errno set where the read failed (EINTR, EAGAIN).
///
/// # Safety
///
/// Threads may be cancelled in here, which unwinds the caller's frames: they are `extern
/// "C-unwind"` or plain Rust frames without destructors, and hold no lock.
pub unsafe fn wait(fd: c_int) -> bool {
    // SAFETY: as the caller says; this frame has nothing to drop.
    unsafe { read(fd, &mut [0; 8]) == 8 }
}

/// Ends the calling thread where another has cancelled it, as [`wait`] does also where there is an
/// event.
///
/// # Safety
///
/// As [`wait`].
pub unsafe fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: no argument. It is libc's, declared as what it is: it may unwind.
    unsafe { pthread_testcancel() };
}

/// How a thread waits that wants an event ([`crate::Host::wait_as_driver`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// In the driver slot of the host, here ([`wait_as_driver`]).
    InDriverSlot(RawFd),
    /// At the counter, as ever ([`wait`]): there is an event, or nothing to read, or another thread
    /// reads, or the program made the counter non-blocking.
    AtCounter,
    /// No more: it has taken one.
    Over,
}

/// How a wait in a driver slot ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Something is to be looked at.
    Rung,
    /// By a signal, with errno set.
    BySignal,
    /// Nothing can be waited for there.
    Closed,
}

/// Waits in the driver slot of a host ([`crate::Host::wait_as_driver`]).
///
/// # Safety
///
/// As [`wait`].
pub unsafe fn wait_as_driver(fd: c_int) -> Woken {
    // SAFETY: as the caller says; this frame has nothing to drop.
    match unsafe { read(fd, &mut [0; 256]) } {
        1.. => Woken::Rung,
        // SAFETY: the thread's own errno.
        -1 if unsafe { *libc::__errno_location() } == libc::EINTR => Woken::BySignal,
        _ => Woken::Closed,
    }
}

/// Waits for a signal or for the thread's cancellation, as a thread does that reads a counter which
/// is not counted up any more.
///
/// # Safety
///
/// As [`wait`].
pub unsafe fn wait_for_nothing() {
    unsafe extern "C-unwind" {
        fn pause() -> c_int;
    }
    // SAFETY: no argument. `pause` is libc's, declared as what it is: a cancellation point that may
    // unwind. errno is EINTR.
    unsafe { pause() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_of_without_a_system_call_until_they_are_taken_or_taken_back() {
        let (counter, other) = (Counter::new().unwrap(), Counter::new().unwrap());
        assert!(counter.id() != other.id() && !counter.has_events());
        (0..3).for_each(|_| counter.signal());
        for _ in 0..2 {
            // SAFETY: no thread of a test is cancelled.
            assert!(counter.has_events() && unsafe { wait(counter.fd()) });
            counter.taken();
        }
        assert!(counter.has_events() && !other.has_events());
        counter.take_back();
        assert!(!counter.has_events());
        // There is none to take back.
        counter.take_back();
        counter.signal();
        assert!(counter.has_events());
    }

    #[test]
    fn an_event_is_taken_back_where_reading_without_waiting_is_refused() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            sys::filter::with_refused(&[libc::SYS_preadv2], errno, || {
                let counter = Counter::new().unwrap();
                counter.signal();
                counter.take_back();
                assert!(!counter.has_events() && !is_readable(&counter) && !counter.is_nonblocking());
                // There is none to take back, and nothing waits for one.
                counter.take_back();
            });
        }
    }

    fn is_readable(counter: &Counter) -> bool {
        let mut poll = libc::pollfd { fd: counter.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that lives across the call, which does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    #[test]
    fn what_the_thread_brings_that_takes_it_is_in_hand_and_all_else_is_told_at_the_descriptor() {
        let counter = Counter::new().unwrap();
        let taker = counter.taker();
        counter.signal();
        assert!(counter.has_events() && !is_readable(&counter));
        // A second one is for another thread, too.
        counter.signal();
        assert!(is_readable(&counter));
        drop(taker);
        assert!(counter.take_inline() && !counter.take_inline());
        counter.take_back();
        assert!(!counter.has_events() && !is_readable(&counter));
        counter.signal();
        assert!(is_readable(&counter) && !counter.take_inline(), "nobody looks any more");
        counter.take_back();
        let _taker = counter.taker();
        std::thread::scope(|scope| scope.spawn(|| counter.signal()).join().unwrap());
        assert!(is_readable(&counter) && !counter.take_inline(), "another thread brings it");
        counter.take_back();
        counter.signal();
        counter.take_back();
        assert!(!counter.has_events() && !counter.take_inline(), "what was in hand is taken back");
    }
}
