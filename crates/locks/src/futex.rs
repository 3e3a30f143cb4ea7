//! A word that threads wait on: futex(2).

#[cfg(loom)]
use loom::sync as of_loom;
#[cfg(loom)]
use loom::sync::atomic::AtomicU32;
use std::ops::Deref;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;
#[cfg(loom)]
use std::sync::atomic::Ordering;

/// A word that threads of this process wait on.
#[derive(Debug)]
pub(crate) struct Futex {
    word: AtomicU32,
    /// What the kernel does: a mutex, held while it looks at the word, and the threads that wait.
    #[cfg(loom)]
    kernel: (of_loom::Mutex<()>, of_loom::Condvar),
}

impl Futex {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    #[cfg(loom)]
    pub(crate) fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value), kernel: (of_loom::Mutex::new(()), of_loom::Condvar::new()) }
    }

    /// Waits until it is woken, where the word is `value`. It may return without being woken.
    #[cfg(not(loom))]
    pub(crate) fn wait(&self, value: u32) {
        self.call(libc::FUTEX_WAIT, value);
    }

    #[cfg(loom)]
    pub(crate) fn wait(&self, value: u32) {
        let (looking, waiting) = &self.kernel;
        let held = looking.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == value {
            drop(waiting.wait(held));
        }
    }

    /// Wakes one thread that waits, where there is one.
    #[cfg(not(loom))]
    pub(crate) fn wake_one(&self) {
        self.call(libc::FUTEX_WAKE, 1);
    }

    #[cfg(loom)]
    pub(crate) fn wake_one(&self) {
        let _held = self.kernel.0.lock();
        self.kernel.1.notify_one();
    }

    /// Wakes all threads that wait.
    #[cfg(not(loom))]
    pub(crate) fn wake_all(&self) {
        self.call(libc::FUTEX_WAKE, i32::MAX as u32);
    }

    #[cfg(loom)]
    pub(crate) fn wake_all(&self) {
        let _held = self.kernel.0.lock();
        self.kernel.1.notify_all();
    }

    #[cfg(not(loom))]
    fn call(&self, operation: libc::c_int, value: u32) {
        let no_limit = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel reads the word of a thread that waits, which is there as long as that
        // thread borrows it. A thread that wakes gives an address only: where another has dropped
        // the word meanwhile, that wakes no thread, or one that looks again. What the call says is
        // not needed for the same reason.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                no_limit,
            )
        };
    }
}

impl Deref for Futex {
    type Target = AtomicU32;
    #[inline]
    fn deref(&self) -> &AtomicU32 {
        &self.word
    }
}
