//! What is received: recvmsg(2), the control messages beside it, and room for it.

use std::ffi::c_int;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Deref;
use std::os::fd::AsRawFd;

use libc::socklen_t;

use super::{CMSG_ALIGN, CMSG_HEADER, first_int};
use crate::fork::Fd;

/// Room for what is received, as large as the largest of it. It is not made zero first: of pages
/// that nothing ever came into there is no memory.
pub struct Room {
    bytes: Box<[MaybeUninit<u8>]>,
    /// So many are initialized.
    len: usize,
}

impl Room {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: Box::new_uninit_slice(bytes), len: 0 }
    }

    /// [`receive`] into it.
    #[inline]
    pub fn receive<'a>(
        &mut self,
        fd: &Fd,
        control: &'a mut ControlBuffer,
        flags: c_int,
    ) -> io::Result<Received<'a>> {
        self.len = 0;
        let mut received = receive_in(fd, &mut self.bytes, control, flags)?;
        // With MSG_TRUNC among the flags more are told of than were written.
        received.len = received.len.min(self.bytes.len());
        self.len = received.len;
        Ok(received)
    }

    /// read(2) into it.
    pub fn read(&mut self, fd: &Fd) -> io::Result<()> {
        self.len = 0;
        // SAFETY: the kernel writes at most as many bytes as there are.
        let read = unsafe { libc::read(fd.as_raw_fd(), self.bytes.as_mut_ptr().cast(), self.bytes.len()) };
        self.len = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
        Ok(())
    }
}

/// What came last.
impl Deref for Room {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the kernel has written that many, and there are that many.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }
}

/// What `recvmsg` returned.
pub struct Received<'a> {
    /// Bytes of the message.
    pub len: usize,
    /// Sender (for the error queue: destination of the packet in question), where it is an IP
    /// address.
    pub address: Option<SocketAddr>,
    /// Control messages.
    pub control: Control<'a>,
    /// The message was longer than the buffer.
    pub truncated: bool,
}

/// recvmsg(2) with MSG_DONTWAIT and `flags`.
#[inline]
pub fn receive<'a>(
    fd: &impl AsRawFd,
    bytes: &mut [u8],
    control: &'a mut ControlBuffer,
    flags: c_int,
) -> io::Result<Received<'a>> {
    // SAFETY: of bytes that are initialized none becomes anything else: recvmsg only writes.
    let bytes = unsafe { &mut *(&raw mut *bytes as *mut [MaybeUninit<u8>]) };
    receive_in(fd, bytes, control, flags)
}

#[inline]
fn receive_in<'a>(
    fd: &impl AsRawFd,
    bytes: &mut [MaybeUninit<u8>],
    control: &'a mut ControlBuffer,
    flags: c_int,
) -> io::Result<Received<'a>> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as socklen_t;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<ControlBuffer>() as _;
    // SAFETY: name, bytes and control live across the call and are as long as the message says.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | flags) };
    let len = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: zeroed above, and any bytes make a sockaddr_storage.
    let address = socket_address(unsafe { name.assume_init_ref() });
    let control_len = (message.msg_controllen as usize).min(size_of::<ControlBuffer>());
    // SAFETY: the buffer is initialized memory of at least that many bytes.
    let control = unsafe { std::slice::from_raw_parts(control.0.as_ptr().cast::<u8>(), control_len) };
    Ok(Received {
        len,
        address,
        control: Control(control),
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
    })
}

/// The IP address and port in a socket address.
fn socket_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: sockaddr_storage is as large and as aligned as any socket address; the family
            // says which.
            let v4 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Room for control messages, aligned as they need.
pub struct ControlBuffer([u64; 32]);

impl Default for ControlBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlBuffer {
    /// Room with no message in it.
    pub fn new() -> Self {
        Self([0; 32])
    }
}

/// Control messages, one after the other (cmsg(3)).
#[derive(Clone, Copy)]
pub struct Control<'a>(&'a [u8]);

impl<'a> Iterator for Control<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_at_checked(CMSG_HEADER)?;
        let (len, rest) = header.split_first_chunk::<{ size_of::<usize>() }>()?;
        let (level, kind) = rest.split_at(rest.len() - 8).1.split_at(4);
        let len = usize::from_ne_bytes(*len);
        let data = self.0.get(CMSG_HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(CMSG_ALIGN)..).unwrap_or(&[]);
        Some((first_int(level)?, first_int(kind)?, data))
    }
}
