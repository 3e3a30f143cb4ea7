//! What is asked of the system about the calling thread, or its process.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;

use crate::fork;

thread_local! {
    /// The number of this thread, and the generation of the process that it has it in.
    static NUMBER: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The number of the calling thread.
pub fn own_thread() -> u32 {
    let (number, generation) = NUMBER.get();
    if number != 0 && generation == fork::generation() {
        return number;
    }
    // SAFETY: it takes nothing and can not fail. By its number: the C library has a function for it
    // since glibc 2.30 only.
    let number = unsafe { libc::syscall(libc::SYS_gettid) as u32 };
    NUMBER.set((number, fork::generation()));
    number
}

/// Whether a thread of this process has this number.
pub fn is_there(number: u32) -> bool {
    // SAFETY: integers only; signal 0 is none.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) == 0 }
}

/// Runs `f` while the calling thread is not cancelled: what the C library calls a cancellation
/// point is none in there. Cancelled meanwhile, it ends at the next one after that.
pub fn not_cancelled<T>(f: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
    }
    /// The state before; set again when it is dropped, by a panic, too.
    struct Before(libc::c_int);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: a state that the thread had.
            unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
        }
    }
    const DISABLED: libc::c_int = 1;
    let mut before = Before(0);
    // SAFETY: one int that lives across the call.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before.0) };
    f()
}

/// Lets the calling thread run on every processor that the process may have (sched_setaffinity(2)),
/// and not only on those of the thread that started it.
pub fn run_anywhere() {
    // SAFETY: all zero is the empty set; the numbers are below the set's size; the kernel reads the
    // set, and leaves out what is not allowed. Where it refuses, the thread stays where it is.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut all));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all);
    }
}

/// Lets every process of the user trace this one, and so reach its memory, where Yama would let its
/// parents only; elsewhere it does nothing (PR_SET_PTRACER of prctl(2)).
pub fn allow_any_tracer() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

/// Runs `start` with every signal blocked but those that tell of a fault of the running thread
/// itself, so that a thread it starts leaves the program's signals to the program's threads.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initializes `blocked`, pthread_sigmask `before`; all signal numbers are
    // valid.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for fault in faults {
            libc::sigdelset(blocked.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: initialized above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Makes another user the effective user of the calling thread, and of no other (setresuid(2)).
/// What the thread connects to takes it for that user. For a thread that ends soon.
///
/// # Errors
///
/// EPERM without CAP_SETUID.
pub fn act_as(uid: u32) -> io::Result<()> {
    const UNCHANGED: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: integers only. Not by the C library's function, which changes all threads.
    match unsafe { libc::syscall(libc::SYS_setresuid, UNCHANGED, uid, UNCHANGED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets timers of the calling thread run out to the microsecond; the default lets them be 50 us
/// late (prctl(2)).
pub fn tighten_timers() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000usize) };
}

/// Processors that the system has, 1 at least: also where the calling thread may run on some of
/// them only.
pub fn processors() -> u64 {
    // SAFETY: no pointers.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u64::try_from(online).unwrap_or(1).max(1)
}
