//! The thread that waits for descriptors of the libraries: completion channels, and the event
//! channel. It says so to the object that waits for the descriptor, and does what was asked for
//! then ([`DeferredWork`]). One a [`System`](crate::System).

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libc::{EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, c_int, epoll_event};
use locks::{Mutex, Rank};
use nic::{DeferredWork, Errno, Error, Signal};

/// Descriptors told of at once.
const BATCH: usize = 64;

/// The object to tell.
type Told = Arc<dyn Signal + Send + Sync>;

/// The thread that waits for descriptors of the libraries; see the module.
pub struct Reactor(Arc<Shared>);

struct Shared {
    epoll: OwnedFd,
    told: Mutex<HashMap<u64, Told>>,
    numbers: AtomicU64,
}

/// A descriptor that is watched.
#[derive(Debug)]
pub struct Watch {
    number: u64,
    fd: RawFd,
}

fn check(result: c_int) -> Result<c_int, Error> {
    if result < 0 { Err(Error::System(Errno::last())) } else { Ok(result) }
}

/// A call that finds nothing returns at once (EAGAIN).
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

impl Reactor {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// EMFILE, EAGAIN, ENOMEM.
    pub fn start(later: &Arc<DeferredWork>) -> Result<Self, Error> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(EPOLL_CLOEXEC) })?;
        let shared = Arc::new(Shared {
            // SAFETY: just made, and no other thread has it.
            epoll: unsafe { OwnedFd::from_raw_fd(fd) },
            told: Mutex::new(Rank::SystemReactor, HashMap::new()),
            numbers: AtomicU64::new(0),
        });
        let (theirs, later) = (shared.clone(), later.clone());
        let thread = std::thread::Builder::new().name("verbena-rdma-core".to_owned());
        let started = with_signals_blocked(|| thread.spawn(move || theirs.run(&later)));
        started.map_err(|e| Error::System(Errno(e.raw_os_error().unwrap_or(libc::EAGAIN))))?;
        Ok(Self(shared))
    }

    /// Tells `told` whenever there is something to read, again and again until it was read.
    ///
    /// # Errors
    ///
    /// ENOSPC, ENOMEM.
    pub fn watch(&self, fd: RawFd, told: Told) -> Result<Watch, Error> {
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
        self.0.told.lock().insert(number, told);
        let mut event = epoll_event { events: EPOLLIN as u32, u64: number };
        // SAFETY: the event is read.
        let added =
            check(unsafe { libc::epoll_ctl(self.0.epoll.as_raw_fd(), EPOLL_CTL_ADD, fd, &raw mut event) });
        if added.is_err() {
            let gone = self.0.told.lock().remove(&number);
            drop(gone);
        }
        added.map(|_| Watch { number, fd })
    }

    /// Tells no more. The descriptor is open still.
    pub fn forget(&self, watch: Watch) {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: the event is not looked at, but for kernels before 2.6.9.
        unsafe { libc::epoll_ctl(self.0.epoll.as_raw_fd(), EPOLL_CTL_DEL, watch.fd, &raw mut event) };
        let gone = self.0.told.lock().remove(&watch.number);
        drop(gone);
    }
}

/// A time whose end a descriptor tells of (timerfd_create(2)).
pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE, ENOMEM.
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: no pointers.
        let fd = check(unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        })?;
        // SAFETY: just made, and no other thread has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor, to be watched.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The descriptor is readable after this time, which is less than a second.
    pub(crate) fn set(&self, time: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = libc::timespec { tv_nsec: time.subsec_nanos().into(), ..zero };
        let value = libc::itimerspec { it_interval: zero, it_value };
        // SAFETY: the value is read, and the old one is not asked for.
        unsafe { libc::timerfd_settime(self.fd(), 0, &raw const value, std::ptr::null_mut()) };
    }

    /// The descriptor is not readable any more, where the time was over.
    pub(crate) fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes; it does not wait.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl Shared {
    fn run(&self, later: &DeferredWork) {
        let mut events = [const { MaybeUninit::<epoll_event>::uninit() }; BATCH];
        loop {
            // SAFETY: there is room for so many events.
            let count = unsafe {
                libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr().cast(), BATCH as c_int, -1)
            };
            for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
                // SAFETY: written, as the count says.
                let number = unsafe { event.assume_init_ref() }.u64;
                let told = self.told.lock().get(&number).cloned();
                told.iter().for_each(|told| told.signal());
            }
            // Of the program's code no panic comes; one of ours has told of itself, and all of the
            // work is done.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| later.run())) {
                nic::program::call(|| drop(panic));
            }
        }
    }
}

/// Runs `start` with all signals blocked but those that faults of the thread itself raise: signals
/// are for the program's own threads.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are written before they are read; all numbers are signals.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        faults.iter().for_each(|fault| _ = libc::sigdelset(blocked.as_mut_ptr(), *fault));
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}
