//! Datagram rsockets in one process: calls, addresses, errors.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use capi::rsocket::{
    raccept, rbind, rclose, rconnect, repoll_create, repoll_ctl, repoll_wait, rgetpeername, rgetsockname,
    rgetsockopt, rlisten, rpoll, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rsetsockopt,
    rshutdown, rsocket,
};
use libc::{
    EPOLL_CTL_ADD, EPOLLIN, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, POLLIN, POLLOUT, SOL_SOCKET, epoll_event,
    pollfd, sockaddr_in, sockaddr_in6,
};

const LEN: u32 = size_of::<sockaddr_in>() as u32;
/// The longest datagram over IPv4.
const MOST: usize = 2032;

fn errno() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

fn address(port: u16) -> sockaddr_in {
    // SAFETY: integers.
    let mut address: sockaddr_in = unsafe { zeroed() };
    address.sin_family = libc::AF_INET as _;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    address
}

fn socket() -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { rsocket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP) };
    assert!(fd >= 0, "errno {}", errno());
    fd
}

/// A socket on a port, and that.
fn bound() -> (c_int, u16) {
    let (fd, mut addr, mut len) = (socket(), address(0), LEN);
    // SAFETY: addresses that live across the calls.
    unsafe {
        assert_eq!(rbind(fd, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        assert_eq!(rgetsockname(fd, (&raw mut addr).cast(), &raw mut len), 0);
    }
    (fd, u16::from_be(addr.sin_port))
}

fn connect(fd: c_int, port: u16) {
    let addr = address(port);
    // SAFETY: an address that lives across the call.
    assert_eq!(unsafe { rconnect(fd, (&raw const addr).cast(), LEN) }, 0, "errno {}", errno());
}

fn send(fd: c_int, bytes: &[u8]) -> isize {
    // SAFETY: as many bytes.
    unsafe { rsend(fd, bytes.as_ptr().cast(), bytes.len(), 0) }
}

fn send_to(fd: c_int, bytes: &[u8], port: u16) -> isize {
    let addr = address(port);
    // SAFETY: as many bytes, and an address.
    unsafe { rsendto(fd, bytes.as_ptr().cast(), bytes.len(), 0, (&raw const addr).cast(), LEN) }
}

/// A datagram, and its sender's port.
fn receive(fd: c_int, flags: c_int) -> Result<(Vec<u8>, u16), c_int> {
    let (mut bytes, mut from, mut len) = (vec![0; MOST + 1], address(0), LEN);
    let room = bytes.len();
    // SAFETY: as many bytes, and an address.
    let n = unsafe {
        rrecvfrom(fd, bytes.as_mut_ptr().cast(), room, flags, (&raw mut from).cast(), &raw mut len)
    };
    bytes.truncate(usize::try_from(n).map_err(|_| errno())?);
    Ok((bytes, u16::from_be(from.sin_port)))
}

fn events(fd: c_int, events: i16, timeout: c_int) -> i16 {
    let mut poll = pollfd { fd, events, revents: 0 };
    // SAFETY: one entry.
    assert!(unsafe { rpoll(&raw mut poll, 1, timeout) } >= 0);
    poll.revents
}

fn close<const N: usize>(all: [c_int; N]) {
    for fd in all {
        // SAFETY: no pointers.
        assert_eq!(unsafe { rclose(fd) }, 0);
    }
}

#[test]
fn datagrams_of_all_lengths_go_to_and_fro_whole_with_their_senders() {
    let (server, port) = bound();
    let (client, other) = (socket(), socket());
    connect(client, port);
    // By UDP at first, then by the queue pairs; several senders at one socket.
    for (n, len) in [0, 1, 64, 1000, MOST, MOST, 7].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + n) as u8).collect();
        assert_eq!(send(client, &bytes), len as isize, "errno {}", errno());
        let (found, sender) = receive(server, 0).unwrap();
        assert_eq!(found, bytes);
        assert_eq!(send_to(server, &found, sender), len as isize, "errno {}", errno());
        assert_eq!(receive(client, 0), Ok((bytes, port)));
        assert_eq!(send_to(other, b"from another", port), 12);
        let (found, another) = receive(server, 0).unwrap();
        assert_eq!(found, b"from another");
        assert_ne!(another, sender);
    }
    close([server, client, other]);
}

#[test]
fn what_does_not_fit_is_refused_and_what_is_cut_says_so() {
    let (server, port) = bound();
    let client = socket();
    assert_eq!((send(client, b"where to"), errno()), (-1, libc::EDESTADDRREQ));
    assert_eq!((send_to(client, b"nowhere", 0), errno()), (-1, libc::EINVAL));
    connect(client, port);
    assert_eq!((send(client, &[0; MOST + 1]), errno()), (-1, libc::EMSGSIZE));
    assert_eq!(receive(server, MSG_DONTWAIT), Err(libc::EAGAIN));
    let (mut few, mut name) = ([0_u8; 4], address(0));
    for expected in [MSG_TRUNC, 0] {
        let text: &[u8] = if expected == 0 { b"four" } else { b"more than four" };
        assert_eq!(send(client, text), text.len() as isize);
        assert_eq!(receive(server, MSG_PEEK).unwrap().0, text);
        let to = few.as_mut_ptr().cast::<c_void>();
        // SAFETY: four bytes, of which more are counted and none is taken.
        assert_eq!(unsafe { rrecv(server, to, 4, MSG_PEEK | MSG_TRUNC) }, text.len() as isize);
        let mut piece = libc::iovec { iov_base: to, iov_len: 4 };
        // SAFETY: all zero is a valid msghdr; a piece and a name that live across the call.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            (message.msg_name, message.msg_namelen) = ((&raw mut name).cast(), LEN);
            assert_eq!(rrecvmsg(server, &raw mut message, 0), 4);
            assert_eq!((&few[..], message.msg_flags), (&text[..4], expected));
            // By its name the answer finds its way.
            message.msg_flags = 0;
            assert_eq!(rsendmsg(server, &raw const message, 0), 4, "errno {}", errno());
        }
        assert_eq!(receive(client, 0).unwrap().0, &text[..4]);
    }
    // SAFETY: no pointers that are looked at.
    unsafe {
        assert_eq!((rlisten(server, 1), errno()), (-1, libc::EOPNOTSUPP));
        assert_eq!((raccept(server, null_mut(), null_mut()), errno()), (-1, libc::EOPNOTSUPP));
        assert_eq!((rshutdown(server, libc::SHUT_WR), errno()), (-1, libc::ENOTCONN));
        assert_eq!(rshutdown(client, libc::SHUT_WR), 0);
    }
    assert_eq!((send(client, b"x"), errno()), (-1, libc::EPIPE));
    close([server, client]);
}

#[test]
fn a_connected_socket_hears_its_peer_only_and_of_a_port_without_a_socket() {
    let ((server, port), (another, its_port)) = (bound(), bound());
    let client = socket();
    connect(client, port);
    assert_eq!(send(client, b"a"), 1);
    let (_, own) = receive(server, 0).unwrap();
    assert_eq!(send_to(another, b"not for you", own), 11);
    assert_eq!(send_to(server, b"b", own), 1);
    assert_eq!(receive(client, 0), Ok((b"b".to_vec(), port)));
    let (mut name, mut len) = (address(0), LEN);
    // SAFETY: an address that lives across the call.
    unsafe { assert_eq!(rgetpeername(client, (&raw mut name).cast(), &raw mut len), 0) };
    assert_eq!(u16::from_be(name.sin_port), port);
    close([another]);
    let late = socket();
    connect(late, its_port);
    assert_eq!(send(late, b"?"), 1);
    // The engine thread hears of it, or this thread does.
    assert_eq!(events(late, POLLIN, 5000) & libc::POLLERR, libc::POLLERR);
    assert_eq!(receive(late, 0), Err(libc::ECONNREFUSED));
    close([server, client, late]);
}

#[test]
fn a_socket_of_ipv6_shows_a_peer_of_ipv4_as_mapped_and_answers_it() {
    // SAFETY: no pointers; integers; addresses that live across the calls.
    let (server, port) = unsafe {
        let server = rsocket(libc::AF_INET6, libc::SOCK_DGRAM, 0);
        let (mut any, mut len): (sockaddr_in6, _) = (zeroed(), size_of::<sockaddr_in6>() as u32);
        any.sin6_family = libc::AF_INET6 as _;
        assert_eq!(rbind(server, (&raw const any).cast(), len), 0, "errno {}", errno());
        assert_eq!(rgetsockname(server, (&raw mut any).cast(), &raw mut len), 0);
        (server, u16::from_be(any.sin6_port))
    };
    let client = socket();
    connect(client, port);
    // By UDP, then by the queue pair.
    for n in 0..5_u8 {
        assert_eq!(send(client, &[n]), 1, "errno {}", errno());
        let mut byte = [0_u8; 2];
        // SAFETY: bytes, integers, and addresses that live across the calls.
        unsafe {
            let (mut from, mut len): (sockaddr_in6, _) = (zeroed(), size_of::<sockaddr_in6>() as u32);
            let to = (&raw mut from).cast();
            assert_eq!(rrecvfrom(server, byte.as_mut_ptr().cast(), 2, 0, to, &raw mut len), 1);
            let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
            assert_eq!((c_int::from(from.sin6_family), from.sin6_addr.s6_addr), (libc::AF_INET6, mapped));
            assert_eq!(rsendto(server, byte.as_ptr().cast(), 1, 0, (&raw const from).cast(), len), 1);
        }
        assert_eq!(receive(client, 0), Ok((vec![n], port)));
    }
    close([server, client]);
}

#[test]
fn poll_and_a_set_of_epoll_tell_of_datagrams_that_came_by_udp_and_by_the_queue_pair() {
    let (server, port) = bound();
    let client = socket();
    connect(client, port);
    assert_eq!(events(server, POLLIN | POLLOUT, 0), POLLOUT);
    // SAFETY: events that live across the calls.
    unsafe {
        let set = repoll_create(0);
        let mut event = epoll_event { events: EPOLLIN as u32, u64: 7 };
        assert_eq!(repoll_ctl(set, EPOLL_CTL_ADD, server, &raw mut event), 0);
        for n in 0..5_u8 {
            assert_eq!(repoll_wait(set, &raw mut event, 1, 0), 0, "round {n}");
            assert_eq!(send(client, &[n]), 1);
            assert_eq!(repoll_wait(set, &raw mut event, 1, 5000), 1, "round {n}");
            assert_eq!(events(server, POLLIN, 5000), POLLIN);
            assert_eq!(receive(server, 0).unwrap().0, [n]);
        }
        assert_eq!(rclose(set), 0);
    }
    close([server, client]);
}

#[test]
fn a_full_queue_says_so_and_a_peer_that_began_anew_is_found() {
    let (server, port) = bound();
    let client = socket();
    connect(client, port);
    assert_eq!(send(client, b"first"), 5);
    assert_eq!(receive(server, 0).unwrap().0, b"first");
    // The server takes none: what does not fit is lost, as of UDP, and the client goes on.
    for n in 0..1000_u32 {
        assert_eq!(send(client, &n.to_be_bytes()), 4, "errno {}", errno());
    }
    let mut came = 0_u32;
    // On a busy machine the engine thread comes late to what has come by UDP.
    while events(server, POLLIN, if came == 0 { 5000 } else { 200 }) == POLLIN {
        assert_eq!(receive(server, MSG_DONTWAIT).unwrap().0.len(), 4);
        came += 1;
    }
    assert!((1..=1000).contains(&came), "{came}");
    close([server]);
    let (anew, addr) = (socket(), address(port));
    // SAFETY: an address that lives across the call.
    assert_eq!(unsafe { rbind(anew, (&raw const addr).cast(), LEN) }, 0);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while events(anew, POLLIN, 20) == 0 {
        assert!(std::time::Instant::now() < until, "the new socket hears nothing");
        // ECONNREFUSED of what was sent between the two sockets is told once.
        _ = send(client, b"anew");
    }
    assert_eq!(receive(anew, 0).unwrap().0, b"anew");
    close([anew, client]);
}

fn option(fd: c_int, level: c_int, name: c_int) -> Result<c_int, c_int> {
    let (mut value, mut len) = (0, 4);
    // SAFETY: an int and its length.
    match unsafe { rgetsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) } {
        0 => Ok(value),
        _ => Err(errno()),
    }
}

fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<(), c_int> {
    // SAFETY: an int.
    match unsafe { rsetsockopt(fd, level, name, (&raw const value).cast(), 4) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

#[test]
fn options_of_datagrams_are_those_of_udp_and_sizes_of_queues() {
    const SOL_RDMA: c_int = 0x1_0000;
    let fd = socket();
    assert_eq!(option(fd, SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_DGRAM));
    assert_eq!(option(fd, SOL_SOCKET, libc::SO_PROTOCOL), Ok(libc::IPPROTO_UDP));
    set_option(fd, SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
    assert_eq!(option(fd, SOL_SOCKET, libc::SO_REUSEADDR), Ok(1));
    set_option(fd, SOL_SOCKET, libc::SO_RCVBUF, 1 << 20).unwrap();
    assert_eq!(option(fd, SOL_SOCKET, libc::SO_RCVBUF), Ok(2 << 20));
    set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, 0x20).unwrap();
    assert_eq!(option(fd, libc::IPPROTO_IP, libc::IP_TOS), Ok(0x20));
    assert_eq!(set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1), Err(libc::ENOPROTOOPT));
    // A socket that joined a group would wait for datagrams that do not come.
    for (level, name) in [
        (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
        (libc::IPPROTO_IP, libc::MCAST_JOIN_GROUP),
        (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
    ] {
        assert_eq!(set_option(fd, level, name, 1), Err(libc::EOPNOTSUPP));
    }
    set_option(fd, SOL_RDMA, 0, 32).unwrap();
    assert_eq!(option(fd, SOL_RDMA, 0), Ok(32));
    let (server, port) = bound();
    connect(fd, port);
    assert_eq!(set_option(fd, SOL_RDMA, 0, 64), Err(libc::EINVAL));
    close([fd, server]);
}
