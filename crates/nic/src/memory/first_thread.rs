//! The thread that the process began with.

/// Whether this is it: it ends with the process.
pub(crate) fn is_this() -> bool {
    // SAFETY: calls without arguments, which return numbers. gettid(2) has no name of its own in
    // older C libraries.
    unsafe { libc::c_long::from(libc::getpid()) == libc::syscall(libc::SYS_gettid) }
}
