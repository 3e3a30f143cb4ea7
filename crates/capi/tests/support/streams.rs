//! Connections of rsockets within one process.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::c_int;
use std::mem::zeroed;

use capi::rsocket::{raccept, rbind, rclose, rconnect, rgetsockname, rlisten, rpoll, rrecv, rsend, rsocket};
use libc::{pollfd, sockaddr_in};

pub(crate) fn errno() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn address(port: u16) -> sockaddr_in {
    // SAFETY: integers.
    let mut address: sockaddr_in = unsafe { zeroed() };
    address.sin_family = libc::AF_INET as _;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    address
}

pub(crate) const LEN: u32 = size_of::<sockaddr_in>() as u32;

pub(crate) fn socket(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { rsocket(libc::AF_INET, libc::SOCK_STREAM | flags, 0) };
    assert!(fd >= 0, "errno {}", errno());
    fd
}

/// A listener and its port.
pub(crate) fn listener() -> (c_int, u16) {
    let fd = socket(0);
    let (mut addr, mut len) = (address(0), LEN);
    // SAFETY: addresses that live across the calls.
    unsafe {
        assert_eq!(rbind(fd, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        assert_eq!(rlisten(fd, 8), 0, "errno {}", errno());
        assert_eq!(rgetsockname(fd, (&raw mut addr).cast(), &raw mut len), 0);
    }
    (fd, u16::from_be(addr.sin_port))
}

/// Two ends of a connection.
pub(crate) fn pair() -> (c_int, c_int) {
    let (listening, port) = listener();
    let client = socket(0);
    let addr = address(port);
    // SAFETY: an address that lives across the call.
    unsafe {
        assert_eq!(rconnect(client, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        let server = raccept(listening, std::ptr::null_mut(), std::ptr::null_mut());
        assert!(server >= 0, "errno {}", errno());
        assert_eq!(rclose(listening), 0);
        (client, server)
    }
}

pub(crate) fn close<const N: usize>(all: [c_int; N]) {
    for fd in all {
        // SAFETY: no pointers.
        assert_eq!(unsafe { rclose(fd) }, 0);
    }
}

pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int) -> isize {
    // SAFETY: as many bytes.
    unsafe { rsend(fd, bytes.as_ptr().cast(), bytes.len(), flags) }
}

pub(crate) fn receive(fd: c_int, most: usize, flags: c_int) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0; most];
    // SAFETY: as many bytes.
    let n = unsafe { rrecv(fd, bytes.as_mut_ptr().cast(), most, flags) };
    let n = usize::try_from(n).map_err(|_| errno())?;
    bytes.truncate(n);
    Ok(bytes)
}

pub(crate) fn events(fd: c_int, events: i16, timeout: c_int) -> i16 {
    let mut poll = pollfd { fd, events, revents: 0 };
    // SAFETY: one entry.
    assert!(unsafe { rpoll(&raw mut poll, 1, timeout) } >= 0);
    poll.revents
}
