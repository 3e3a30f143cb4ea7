//! How much there is to be had.

/// Bytes of memory that the machine has (sysinfo(2)); 0 where that can not be found out.
pub fn memory_of_machine() -> usize {
    // SAFETY: all zero is a valid one, which the kernel fills.
    let mut about: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: one structure that lives across the call.
    let known = unsafe { libc::sysinfo(&raw mut about) } == 0;
    let bytes = about.totalram.saturating_mul(about.mem_unit.into());
    if known { usize::try_from(bytes).unwrap_or(usize::MAX) } else { 0 }
}

/// Bytes that a file of this process may have (RLIMIT_FSIZE): a longer one is answered with a
/// signal.
pub fn longest_file() -> u64 {
    limit(libc::RLIMIT_FSIZE)
}

/// Descriptors that this process may have open (RLIMIT_NOFILE).
pub fn descriptors() -> usize {
    usize::try_from(limit(libc::RLIMIT_NOFILE)).unwrap_or(usize::MAX)
}

/// Whether a call failed because this process, or the system, may open no descriptor more.
pub fn no_descriptor_is_left(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A soft limit (getrlimit(2)); 0 where it can not be found out.
fn limit(of: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one structure that lives across the call.
    let known = unsafe { libc::getrlimit(of, &raw mut limit) } == 0;
    if known { limit.rlim_cur } else { 0 }
}
