//! What stands in place of the instructions of `code` where Miri interprets the program, which
//! knows no assembler: the same accesses in Rust, so that it looks at each. Nothing faults there.
#![allow(clippy::missing_safety_doc, reason = "that of `code`")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) unsafe fn verbena_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> c_int {
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    0
}

#[cfg(target_arch = "x86_64")]
pub(super) use {
    verbena_guarded_copy as verbena_guarded_wide, verbena_guarded_copy as verbena_guarded_string,
};

/// Miri's processor has no such registers.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn verbena_guarded_fold(
    to: *mut u8,
    from: *const u8,
    len: usize,
    _rest: *mut u8,
    _keys: *const u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { verbena_guarded_copy(to, from, len) }
}

pub(super) unsafe fn verbena_guarded_store(to: *mut u64, value: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Release);
    0
}

pub(super) unsafe fn verbena_guarded_swap(at: *mut u64, value: u64, before: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { *before = AtomicU64::from_ptr(at).swap(value, Ordering::AcqRel) };
    0
}

pub(super) unsafe fn verbena_guarded_add(at: *mut u64, value: u64, before: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { *before = AtomicU64::from_ptr(at).fetch_add(value, Ordering::AcqRel) };
    0
}

pub(super) unsafe fn verbena_guarded_compare_swap(
    at: *mut u64,
    compare: u64,
    swap: u64,
    before: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    let cell = unsafe { AtomicU64::from_ptr(at) };
    let seen = cell.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: as the caller says.
    unsafe { *before = seen.unwrap_or_else(|other| other) };
    0
}
