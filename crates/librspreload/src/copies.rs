//! Descriptors that are duplicated, and their flags: dup(2), fcntl(2), ioctl(2).

use std::ffi::{c_int, c_ulong, c_void};

use crate::rdma::Calls;
use crate::sockets::{found, stream};
use crate::{closing, lending, real, table};

/// The copy has the rsocket of the descriptor, too, or is the same set of epoll(7).
fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 && copy != fd {
        if table::is_set(fd) {
            table::mark_set(copy);
        } else if let Some(entry) = table::find(fd) {
            table::put(copy, entry);
        } else if let Some(names) = table::lent_names(fd) {
            lending::copy(fd, copy, names);
        }
    }
    copy
}

/// An inherited stream is an ordinary socket before it is duplicated.
fn settle(fd: c_int) {
    drop(table::find(fd));
}

/// A set that a copy of `fd` takes the place of is closed before: librdmacm knows it.
fn make_room(fd: c_int, to: c_int) {
    // SAFETY: no pointers; a descriptor that the system is about to close.
    unsafe {
        if to != fd && table::is_set(to) && real::fcntl(fd, libc::F_GETFD, 0) >= 0 {
            closing::close(to);
        }
    }
}

/// dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    settle(fd);
    // SAFETY: no pointers.
    copied(fd, unsafe { real::dup(fd) })
}

/// dup2(2): what `to` was is closed.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    settle(fd);
    make_room(fd, to);
    // SAFETY: no pointers.
    let copy = unsafe { real::dup2(fd, to) };
    if copy >= 0 && copy != fd {
        drop(table::take(to));
    }
    copied(fd, copy)
}

/// dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    settle(fd);
    make_room(fd, to);
    // SAFETY: no pointers.
    let copy = unsafe { real::dup3(fd, to, flags) };
    if copy >= 0 {
        drop(table::take(to));
    }
    copied(fd, copy)
}

/// fcntl(2). Its third argument is passed as a variadic function's on all machines that this is
/// built for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        settle(fd);
    }
    // SAFETY: the man page's contract.
    let answer = unsafe { real::fcntl(fd, command, argument) };
    if answer < 0 {
        return answer;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, answer),
        libc::F_SETFL => {
            if let Some((entry, calls)) = stream(fd) {
                set_flags(calls, entry.rsocket, argument as c_int);
            }
            answer
        }
        _ => answer,
    }
}

fn set_flags(calls: &Calls, rsocket: c_int, flags: c_int) {
    // SAFETY: no pointers.
    unsafe { (calls.rfcntl)(rsocket, libc::F_SETFL, flags) };
}

/// fcntl(2), by the name of files that may be long: on these machines all are.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { fcntl(fd, command, argument) }
}

/// ioctl(2): FIONBIO and FIONREAD concern a stream by RDMA.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        if request == libc::FIONREAD
            && let Some((entry, calls)) = stream(fd)
        {
            let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
            let most = c_int::MAX as usize;
            let n = (calls.rrecv)(entry.rsocket, std::ptr::null_mut(), most, flags);
            let answer: *mut c_int = std::ptr::with_exposed_provenance_mut::<c_void>(argument).cast();
            *answer = c_int::try_from(n).unwrap_or(0).max(0);
            return 0;
        }
        let answer = real::ioctl(fd, request, argument);
        if request == libc::FIONBIO
            && answer == 0
            && let Some((entry, calls)) = found(fd)
        {
            set_flags(calls, entry.rsocket, real::fcntl(fd, libc::F_GETFL, 0));
        }
        answer
    }
}

/// sockatmark(3): there are no urgent bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    match stream(fd) {
        Some(_) => 0,
        // SAFETY: no pointers.
        None => unsafe { real::sockatmark(fd) },
    }
}
