//! The thread that the process began with.

/// Whether this is it: it ends with the process.
pub(crate) fn is_this() -> bool {
    // SAFETY: calls without arguments, which return numbers.
    unsafe { libc::getpid() == libc::gettid() }
}
