//! close(2), and of many descriptors at once.

use std::ffi::{c_int, c_uint};

use crate::{failed, rdma, real, table};

/// close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if table::is_channel(fd) {
        return 0;
    }
    if table::take_set(fd)
        && let Some(calls) = rdma::calls_if_found()
        // SAFETY: no pointers. A forked child's librdmacm does not know sets of its parent.
        && unsafe { (calls.rclose)(fd) } == 0
    {
        return 0;
    }
    let entry = table::take(fd);
    // SAFETY: no pointers.
    let closed = unsafe { real::close(fd) };
    if entry.is_some() {
        let errno = crate::errno();
        drop(entry);
        if closed < 0 {
            return failed(errno);
        }
    }
    closed
}

/// close_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0 || first > last {
        // SAFETY: no pointers.
        return unsafe { real::close_range(first, last, flags) };
    }
    let mut from = first;
    for fd in table::marked_in(first, last) {
        // SAFETY: no pointers.
        unsafe { close(fd) };
        if table::is_channel(fd) {
            let fd = fd.cast_unsigned();
            // SAFETY: as above.
            if from < fd && unsafe { real::close_range(from, fd - 1, flags) } < 0 {
                return -1;
            }
            from = fd + 1;
        }
    }
    // SAFETY: as above.
    if from > last { 0 } else { unsafe { real::close_range(from, last, flags) } }
}

/// closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0).cast_unsigned();
    // SAFETY: no pointers.
    unsafe { close_range(first, c_uint::MAX, 0) };
}
