//! `sigaction` and `signal` as programs call them: registered memory is guarded by a handler for
//! SIGSEGV and SIGBUS (`nic::memory`), and one that a program sets later must not displace it. The
//! shared object stands in front of the C library where a program is linked with it; all other
//! signals, and all of them before the first registration, go straight through.

use std::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};

use crate::ffi_guard::{self, Errno};

unsafe extern "C" {
    // Other names of the C library's `signal` and `__sysv_signal`, which the shared object does not
    // stand in front of.
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
}

/// sigaction(2).
///
/// # Safety
///
/// NULL, or structures as the man page describes them.
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        nic::memory::program_sets(signal, new, old)
            .unwrap_or_else(|| nic::memory::system_sets(signal, new, old))
    }
}

/// signal(2), with the flags that it stands for; `None` where the C library does it.
fn set(signal: c_int, handler: sighandler_t, flags: c_int) -> Option<sighandler_t> {
    // SAFETY: integers, a nullable function and a signal set of plain bytes.
    let (mut new, mut old): (Action, Action) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    (new.sa_sigaction, new.sa_flags) = (handler, flags);
    // SAFETY: structures of ours.
    unsafe { nic::memory::program_sets(signal, &raw const new, &raw mut old)? };
    Some(old.sa_sigaction)
}

/// signal(2) as BSD has it: the handler stays, system calls go on.
///
/// # Safety
///
/// A function that may be called as a handler, SIG_DFL or SIG_IGN.
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_ERR {
        ffi_guard::set_errno(Errno(libc::EINVAL));
        return libc::SIG_ERR;
    }
    // SAFETY: as the caller says.
    set(signal, handler, libc::SA_RESTART).unwrap_or_else(|| unsafe { ssignal(signal, handler) })
}

/// signal(2) as System V has it: the handler is called once, and may be interrupted by its own
/// signal.
///
/// # Safety
///
/// As for [`signal`].
pub unsafe extern "C" fn signal_once(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_ERR {
        ffi_guard::set_errno(Errno(libc::EINVAL));
        return libc::SIG_ERR;
    }
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    // SAFETY: as the caller says.
    set(signal, handler, flags).unwrap_or_else(|| unsafe { sysv_signal(signal, handler) })
}
