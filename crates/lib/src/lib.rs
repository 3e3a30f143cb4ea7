//! The shared object that programs load as libibverbs.so.1 and librdmacm.so.1, two links to one file:
//! every symbol of the two with its version node, each a jump into `capi`; and `sigaction` and `signal`, without a version, so
//! that they stand in front of the C library's (`capi::signals`).
//!
//! What is exported stands in `symbols/`; `build.rs` makes of it the trampolines below and the version script.
//! A `.symver` must stand in the codegen unit of the symbol it names, hence one `global_asm!` for all.

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));

use std::ffi::c_int;

/// sigaction(2).
///
/// # Safety
///
/// The man page's contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { capi::signals::sigaction(signal, new, old) }
}

/// signal(2).
///
/// # Safety
///
/// The man page's contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: as the caller says.
    unsafe { capi::signals::signal(signal, handler) }
}

/// signal(2) where a program is compiled for System V's.
///
/// # Safety
///
/// The man page's contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: as the caller says.
    unsafe { capi::signals::signal_once(signal, handler) }
}
