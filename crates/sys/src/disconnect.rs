//! Ending a connection at once, while descriptors of its socket stay; what it has still to deliver.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::AsRawFd;

use libc::{sockaddr, socklen_t};

use crate::fork::Fd;

/// Dissolves the association of a socket: connect(2) to an address of family AF_UNSPEC. A TCP
/// connection ends with an RST.
///
/// # Errors
///
/// What connect(2) says.
pub fn disconnect(fd: &Fd) -> io::Result<()> {
    // SAFETY: all of its fields are numbers, for which zero is a value.
    let mut nowhere: sockaddr = unsafe { MaybeUninit::zeroed().assume_init() };
    nowhere.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: the address is there for the call, and is this long.
    let done = unsafe { libc::connect(fd.as_raw_fd(), &nowhere, size_of::<sockaddr>() as socklen_t) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of a TCP connection, its end among them, that were sent and not acknowledged (SIOCOUTQ,
/// tcp(7)).
///
/// # Errors
///
/// What ioctl(2) says.
pub fn unacknowledged(fd: &Fd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes an int, which is there for the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}
