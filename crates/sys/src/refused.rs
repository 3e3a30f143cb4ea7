//! Calls that are not to be had.
//!
//! A kernel that does not know a call says ENOSYS. A filter of system calls says what its author
//! chose, and most choose EPERM: container runtimes and service managers list the calls they know,
//! and refuse by EPERM what is newer (seccomp(2), systemd.exec(5)). A security module says EACCES.
//! A caller that has another way takes it for all of them.

use std::io;

/// Whether a call failed because it is not to be had here, whatever its arguments.
pub fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_filters_and_security_modules_refuse_and_full_tables_do_not() {
        let refused = |errno| is_refused(&io::Error::from_raw_os_error(errno));
        assert!([libc::ENOSYS, libc::EPERM, libc::EACCES].into_iter().all(refused));
        assert!(![libc::EINTR, libc::EMFILE, libc::ENOMEM, libc::EBADF].into_iter().any(refused));
    }
}
