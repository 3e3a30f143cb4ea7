//! Files that would grow beyond what the process may have (RLIMIT_FSIZE, getrlimit(2)).
//!
//! The kernel answers with EFBIG, and with SIGXFSZ, which ends a program that has not asked for it.
//! No program asks a library to grow a file, so what this library grows is answered with EFBIG
//! alone.

use std::mem::MaybeUninit;

/// Runs `work` without that signal: the calling thread blocks it, and what came meanwhile is taken
/// back. What the program itself did, or sent, is left to it.
pub fn without_signal<T>(work: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::begin();
    work()
}

/// The signal blocked in this thread until it is dropped, by a panic, too.
struct Blocked {
    before: libc::sigset_t,
    /// The signal waited for the thread, or the process, already.
    pending: bool,
}

impl Blocked {
    fn begin() -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let only = only_this();
        let pending = is_pending();
        // SAFETY: two sets that live across the call, which initializes the second one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, before.as_mut_ptr());
            Self { before: before.assume_init(), pending }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let (only, at_once) = (only_this(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // The kernel sends it to the thread that made the call, before the call returns.
        if !self.pending && is_pending() {
            // SAFETY: a set and a time that live across the call; nothing is asked about the
            // signal.
            unsafe { libc::sigtimedwait(&raw const only, std::ptr::null_mut(), &raw const at_once) };
        }
        // SAFETY: the set that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

fn only_this() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call initializes the set; the number is valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}

fn is_pending() -> bool {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: one set that lives across the call, and is valid also where that fails.
    unsafe {
        libc::sigpending(set.as_mut_ptr());
        libc::sigismember(set.as_ptr(), libc::SIGXFSZ) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `child` returns, run in a forked child with a limit of no bytes: its exit code, or the
    /// number of the signal that ended it, negative.
    fn ends_with(child: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes a few system calls and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: one structure that lives across the call; then no destructors run.
            unsafe {
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none);
                libc::_exit(child());
            }
        }
        let mut status = 0;
        // SAFETY: a variable of ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }

    /// Grows a file in memory; the errno of that, or 0.
    fn grow() -> i32 {
        // SAFETY: a string, then integers; the descriptor ends with the process.
        unsafe {
            let fd = libc::memfd_create(c"grows".as_ptr(), libc::MFD_CLOEXEC);
            if libc::ftruncate(fd, 4096) == 0 { 0 } else { *libc::__errno_location() }
        }
    }

    #[test]
    fn what_may_not_grow_is_refused_and_ends_no_process_and_the_signal_is_the_programs_again() {
        assert_eq!(ends_with(grow), -libc::SIGXFSZ, "the kernel's way");
        assert_eq!(ends_with(|| without_signal(grow)), libc::EFBIG);
        let both = || {
            without_signal(grow);
            grow()
        };
        assert_eq!(ends_with(both), -libc::SIGXFSZ, "what the program grows itself");
    }

    #[test]
    fn a_signal_that_waited_for_the_program_before_waits_still() {
        let waits = || {
            let only = only_this();
            // SAFETY: a set that lives across the call, and a valid number.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, std::ptr::null_mut());
                libc::raise(libc::SIGXFSZ);
            }
            without_signal(grow);
            i32::from(is_pending())
        };
        assert_eq!(ends_with(waits), 1);
    }
}
