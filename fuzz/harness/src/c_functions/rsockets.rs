//! The calls of rsocket(7): streams and datagrams on 127.0.0.1, none of which waits, with any
//! numbers in any state.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use capi::rsocket::{
    raccept, rbind, rclose, rconnect, repoll_create, repoll_ctl, repoll_wait, rfcntl, rgetpeername,
    rgetsockname, rgetsockopt, riomap, riounmap, riowrite, rlisten, rpoll, rread, rreadv, rrecv, rrecvfrom,
    rrecvmsg, rselect, rsend, rsendmsg, rsendto, rsetsockopt, rshutdown, rsocket, rwrite, rwritev,
};
use libc::{MSG_DONTWAIT, O_NONBLOCK, SOL_SOCKET, sockaddr, sockaddr_in, socklen_t};

use super::arena;
use crate::Input;

/// Most rsockets at once.
const MAX: usize = 8;
/// Bytes of the arena that calls name.
const SPAN: u32 = 1 << 14;
const SOL_RDMA: c_int = 0x1_0000;
const LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;

/// rsockets, and the ports that some of them have.
#[derive(Default)]
pub(super) struct Rsockets {
    fds: Vec<c_int>,
    sets: Vec<c_int>,
    ports: Vec<u16>,
}

/// Any bytes of the arena.
fn piece(input: &mut Input<'_>) -> (*mut c_void, usize) {
    // SAFETY: inside of the arena, of which the other half is left.
    let at = unsafe { arena().add(input.below(SPAN) as usize) };
    (at.cast(), input.below(SPAN) as usize)
}

impl Rsockets {
    fn address(&self, input: &mut Input<'_>) -> sockaddr_in {
        // SAFETY: integers.
        let mut address: sockaddr_in = unsafe { zeroed() };
        address.sin_family = if input.one_in(16) { input.any() } else { libc::AF_INET as _ };
        // No port of another program.
        address.sin_port = input.pick(&self.ports).unwrap_or(0).to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        address
    }

    /// One call.
    ///
    /// # Safety
    ///
    /// No other code has the descriptors.
    pub(super) unsafe fn step(&mut self, input: &mut Input<'_>) {
        let fd = input.pick(&self.fds).unwrap_or(-1);
        // SAFETY: the functions below ask for no more than this one.
        unsafe {
            match input.below(4) {
                0 => self.make_or_end(input, fd),
                1 => self.name_or_wait(input, fd),
                2 => Self::option(input, fd),
                _ => self.transfer(input, fd),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Rsockets::step`].
    unsafe fn make_or_end(&mut self, input: &mut Input<'_>, fd: c_int) {
        let mut addr = self.address(input);
        let (to, mut len) = ((&raw mut addr).cast::<sockaddr>(), LEN);
        // SAFETY: an address that lives across the calls; no call waits.
        unsafe {
            match input.below(8) {
                0 | 1 if self.fds.len() < MAX => {
                    let kind = if input.any() { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
                    let kind = if input.one_in(16) { input.any() } else { kind };
                    let made = rsocket(libc::AF_INET, kind | libc::SOCK_NONBLOCK, 0);
                    self.fds.extend((made >= 0).then_some(made));
                }
                2 => {
                    if rbind(fd, to, LEN - input.below(2) * 4) == 0 && rgetsockname(fd, to, &raw mut len) == 0
                    {
                        self.ports.push(u16::from_be(addr.sin_port));
                    }
                }
                3 => _ = rlisten(fd, input.any()),
                4 if self.fds.len() < MAX => {
                    let made = raccept(fd, to, &raw mut len);
                    if made >= 0 {
                        rfcntl(made, libc::F_SETFL, O_NONBLOCK);
                        self.fds.push(made);
                    }
                }
                5 => _ = rconnect(fd, to, LEN),
                6 => _ = rshutdown(fd, input.below(5) as c_int - 1),
                _ => {
                    self.fds.retain(|known| *known != fd);
                    end(fd);
                }
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Rsockets::step`].
    unsafe fn name_or_wait(&mut self, input: &mut Input<'_>, fd: c_int) {
        let mut addr = self.address(input);
        let (to, mut len) = ((&raw mut addr).cast::<sockaddr>(), input.below(2 * LEN));
        len = len.min(LEN);
        let set = input.pick(&self.sets).unwrap_or(-1);
        let mut event = libc::epoll_event { events: input.u32() & 0x8000_201f, u64: input.u64() };
        // SAFETY: an address, an event, an entry and sets that live across the calls, which return
        // at once.
        unsafe {
            match input.below(8) {
                0 => _ = rgetpeername(fd, to, &raw mut len),
                1 => _ = rgetsockname(fd, to, &raw mut len),
                2 => {
                    let mut entry = libc::pollfd { fd, events: input.any(), revents: 0 };
                    rpoll(&raw mut entry, 1, 0);
                }
                3 if (0..1024).contains(&fd) => {
                    let (mut reads, mut now): (libc::fd_set, libc::timeval) = (zeroed(), zeroed());
                    libc::FD_SET(fd, &raw mut reads);
                    rselect(fd + 1, &raw mut reads, null_mut(), null_mut(), &raw mut now);
                }
                4 if self.sets.len() < 2 => {
                    let made = repoll_create(0);
                    self.sets.extend((made >= 0).then_some(made));
                }
                5 | 6 => _ = repoll_ctl(set, input.below(4) as c_int, fd, &raw mut event),
                _ => _ = repoll_wait(set, &raw mut event, 1, 0),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Rsockets::step`].
    unsafe fn option(input: &mut Input<'_>, fd: c_int) {
        let levels = [SOL_SOCKET, libc::IPPROTO_IP, libc::IPPROTO_TCP, libc::IPPROTO_IPV6, SOL_RDMA];
        let (level, name) = (input.choose(&levels), input.below(50) as c_int);
        let mut value = [input.below(1 << 17), input.below(4), input.u32(), 0];
        let mut len = input.below(17);
        let at = (&raw mut value).cast::<c_void>();
        // SAFETY: as many bytes; the descriptor goes on not to wait.
        unsafe {
            match input.below(4) {
                0 => _ = rgetsockopt(fd, level, name, at, &raw mut len),
                1 => {
                    _ = rfcntl(
                        fd,
                        input.choose(&[libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, 99]),
                        O_NONBLOCK,
                    )
                }
                _ => _ = rsetsockopt(fd, level, name, at, len),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Rsockets::step`].
    unsafe fn transfer(&mut self, input: &mut Input<'_>, fd: c_int) {
        let ((at, count), (other, more)) = (piece(input), piece(input));
        let mut pieces =
            [(at, count), (other, more)].map(|(iov_base, iov_len)| libc::iovec { iov_base, iov_len });
        let flags = MSG_DONTWAIT | input.choose(&[0, libc::MSG_PEEK, libc::MSG_TRUNC, libc::MSG_WAITALL, 1]);
        let mut addr = self.address(input);
        let (name, mut len) = ((&raw mut addr).cast::<sockaddr>(), LEN);
        let offset = i64::from(input.below(1 << 15)) - 1;
        // SAFETY: bytes of the arena, and an address, pieces and a message that live across the
        // calls; none waits.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), 2);
            if input.any() {
                (message.msg_name, message.msg_namelen) = (name.cast(), LEN);
            }
            match input.below(16) {
                0 => _ = rread(fd, at, count),
                1 => _ = rreadv(fd, pieces.as_ptr(), 2),
                2 => _ = rrecv(fd, at, count, flags),
                3 => _ = rrecvfrom(fd, at, count, flags, name, &raw mut len),
                4 => _ = rrecvmsg(fd, &raw mut message, flags),
                5 => _ = rwrite(fd, at, count),
                6 => _ = rwritev(fd, pieces.as_ptr(), 2),
                7 => _ = rsend(fd, at, count, flags),
                8..=10 => _ = rsendto(fd, at, count.min(2100), flags, name, len),
                11 => _ = rsendmsg(fd, &raw const message, flags),
                12 => _ = riomap(fd, at, count, libc::PROT_WRITE, 0, offset),
                13 => _ = riounmap(fd, at, count),
                _ => _ = riowrite(fd, at, count, offset.max(0), flags),
            }
        }
    }

    /// Ends all.
    pub(super) fn close(self) {
        // Sets first: they are descriptors of their own.
        for fd in self.sets.into_iter().chain(self.fds) {
            end(fd);
        }
    }
}

/// Closes a descriptor. What it has not sent is lost, so nothing is waited for.
fn end(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: a value that lives across the call.
    unsafe {
        rsetsockopt(
            fd,
            SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as socklen_t,
        );
        rclose(fd);
    }
}
