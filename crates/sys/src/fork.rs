//! File descriptors that do not survive `fork`, and the count of forks.
//!
//! A child that went on living with its parent's descriptors would hold the parent's names and its
//! share of the UDP port. Packets would then end in a process that serves none. So every descriptor
//! of Verbena is an [`Fd`], noted in a process-wide bitmap. A handler that `fork` runs in the
//! child closes what is noted. Objects that the child inherited are inert from then on: they carry
//! the [`generation`] they were made in.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How many forks lie between this process and the first one that used the crate, at least; a
/// child's is never its parent's. Counted from the first [`watch`] on. A child made without the
/// handlers of pthread_atfork(3), by `_Fork` or a bare clone(2), is not told from its parent.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has forks counted, and descriptors closed in children, from now on.
pub fn watch() {
    // Not a `Once`: a child would wait for ever where it was forked in the middle. Registered twice
    // they do no harm.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the three handlers are functions that live as long as the process (the object is
        // linked with -z nodelete) and touch statics only.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
        REGISTERED.store(true, Ordering::Release);
    }
}

/// A descriptor that closes on drop, and in a forked child at once.
#[derive(Debug)]
pub struct Fd {
    /// `None` only while it is being dropped.
    fd: Option<OwnedFd>,
    raw: RawFd,
    generation: u32,
}

impl Fd {
    /// Opens a descriptor with `open` and takes it over.
    ///
    /// # Errors
    ///
    /// Those of `open`; EMFILE for a number above 2^20, the most that Linux gives by default
    /// (fs.nr_open).
    pub fn open<T: Into<OwnedFd>>(open: impl FnOnce() -> io::Result<T>) -> io::Result<Self> {
        watch();
        let _changing = Changing::begin();
        let fd: OwnedFd = open()?.into();
        let raw = fd.as_raw_fd();
        let Some(word) = OPEN.get(raw as usize / 64) else {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        word.fetch_or(1 << (raw % 64), Ordering::Relaxed);
        WORDS.fetch_max(raw as usize / 64 + 1, Ordering::Relaxed);
        Ok(Self { fd: Some(fd), raw, generation: generation() })
    }

    /// As [`Fd::open`], for calls that return a descriptor or -1.
    pub fn open_raw(open: impl FnOnce() -> RawFd) -> io::Result<Self> {
        Self::open(|| match open() {
            raw if raw < 0 => Err(io::Error::last_os_error()),
            // SAFETY: a system call has just returned it as new, nothing else knows it.
            raw => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        })
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open while `self` lives; in a forked child it may be closed, and a call on
        // it then fails with EBADF at worst (objects of another generation make none).
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.raw
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.generation != generation() {
            // The child's handler closed it; the number may be another's by now.
            let _ = fd.into_raw_fd();
            return;
        }
        let _changing = Changing::begin();
        if let Some(word) = OPEN.get(self.raw as usize / 64) {
            word.fetch_and(!(1 << (self.raw % 64)), Ordering::Relaxed);
        }
        drop(fd);
    }
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// One bit a descriptor. Untouched pages of it cost nothing.
static OPEN: [AtomicU64; (1 << 20) / 64] = [const { AtomicU64::new(0) }; (1 << 20) / 64];
/// Words of [`OPEN`] that were ever used.
static WORDS: AtomicUsize = AtomicUsize::new(0);

/// Held while a descriptor is opened and noted, or forgotten and closed, so that no fork falls in
/// between. A spin lock, because the child must be able to open it without knowing which thread
/// held it.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// [`CHANGING`] held.
struct Changing;

impl Changing {
    fn begin() -> Self {
        while CHANGING.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Self
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(false, Ordering::Release);
    }
}

/// The thread that forks and holds [`CHANGING`], or 0.
static FORKING: AtomicI32 = AtomicI32::new(0);

fn this_thread() -> i32 {
    // SAFETY: a query without arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

extern "C" fn before() {
    let me = this_thread();
    if FORKING.load(Ordering::Relaxed) == me {
        // Registered twice: it is held already.
        return;
    }
    // Not for ever: a signal handler that forks may have interrupted the very thread that holds it.
    // The worst that follows is one descriptor too many in the child.
    for _ in 0..10_000 {
        if !CHANGING.swap(true, Ordering::Acquire) {
            FORKING.store(me, Ordering::Relaxed);
            return;
        }
        std::thread::yield_now();
    }
}

extern "C" fn after_in_parent() {
    if FORKING.compare_exchange(this_thread(), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        CHANGING.store(false, Ordering::Release);
    }
}

/// Runs in the only thread of a new child; async-signal-safe: atomics and `close`.
extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for (index, word) in OPEN[..WORDS.load(Ordering::Relaxed)].iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            // SAFETY: the bit says that an `Fd` of the parent owns it; in the child no `Fd` will
            // close it again.
            unsafe { libc::close(fd as RawFd) };
            bits &= bits - 1;
        }
    }
    FORKING.store(0, Ordering::Relaxed);
    CHANGING.store(false, Ordering::Release);
}
