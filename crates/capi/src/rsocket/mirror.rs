//! The descriptor of an rsocket: one end of a pair of sockets, whose other end we keep. What
//! poll(2) and epoll(7) say of the descriptor mirrors what the rsocket is ready for, as long as a
//! program watches it there.
//!
//! All is done by system calls and not by the C library's functions: a preloaded object may stand
//! in their place, and take the descriptor for the rsocket.

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null;

use libc::{SO_SNDBUF, SOL_SOCKET};
use nic::Errno;
use rsocket::Readiness;
use sys::fork::Fd;

/// The descriptor and our end.
pub(super) struct Mirror {
    theirs: Descriptor,
    ours: Fd,
    shown: Readiness,
}

/// A descriptor that the program sees; a forked child keeps its copy.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: no pointers; the descriptor's owner.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// fcntl(2) of a descriptor that the program sees.
pub(super) fn control(fd: c_int, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointers.
    let answer = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
    match answer {
        ..0 => Err(Errno::last()),
        _ => Ok(answer as c_int),
    }
}

/// The smallest send buffer: few bytes fill it.
const SMALLEST: c_int = 1;

impl Mirror {
    /// A descriptor that is ready to write, and not to read.
    pub(super) fn new(flags: c_int) -> io::Result<Self> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let ours = Fd::open_raw(|| {
            // SAFETY: two numbers that live across the call.
            match unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } {
                0 => pair[1],
                _ => -1,
            }
        })?;
        let theirs = Descriptor(pair[0]);
        let fd = theirs.0;
        let (size, len) = (SMALLEST, size_of::<c_int>());
        // SAFETY: an int that lives across the call.
        unsafe { libc::syscall(libc::SYS_setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &raw const size, len) };
        if flags & libc::SOCK_CLOEXEC == 0 {
            control(fd, libc::F_SETFD, 0)?;
        }
        if flags & libc::SOCK_NONBLOCK != 0 {
            control(fd, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK)?;
        }
        let shown = Readiness { writable: true, ..Readiness::default() };
        Ok(Self { theirs, ours, shown })
    }

    /// The descriptor's number.
    pub(super) fn fd(&self) -> c_int {
        self.theirs.0
    }

    /// What it shows.
    pub(super) fn shown(&self) -> Readiness {
        self.shown
    }

    fn send(fd: c_int) -> bool {
        let (byte, flags) = ([0_u8], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: one readable byte, no address.
        unsafe { libc::syscall(libc::SYS_sendto, fd, byte.as_ptr(), 1, flags, null::<u8>(), 0) == 1 }
    }

    fn take(fd: c_int) -> bool {
        let (mut bytes, flags) = ([0_u8; 64], libc::MSG_DONTWAIT);
        let (to, len, none) = (bytes.as_mut_ptr(), bytes.len(), null::<u8>());
        // SAFETY: so many writable bytes, no address.
        unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, none, none) > 0 }
    }

    /// Shows it. `again`: what is readable is told anew, for edge-triggered watchers.
    pub(super) fn show(&mut self, now: Readiness, again: bool) {
        let (theirs, ours) = (self.fd(), self.ours.as_raw_fd());
        if now.readable && again && self.shown.readable {
            Self::take(theirs);
            Self::send(ours);
        }
        if now == self.shown {
            return;
        }
        if now.readable != self.shown.readable {
            match now.readable {
                true => _ = Self::send(ours),
                // There is one byte.
                false => _ = Self::take(theirs),
            }
        }
        if now.writable != self.shown.writable {
            match now.writable {
                true => while Self::take(ours) {},
                false => while Self::send(theirs) {},
            }
        }
        if now.hup && !self.shown.hup {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_shutdown, ours, libc::SHUT_RDWR) };
        } else if now.read_hup && !self.shown.read_hup {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_shutdown, ours, libc::SHUT_WR) };
        }
        self.shown = now;
    }
}
