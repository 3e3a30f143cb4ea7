//! The options of rsocket(7), each for what it says and what it does.

use std::ffi::c_int;
use std::mem::zeroed;
use std::time::{Duration, Instant};

use capi::rsocket::{
    raccept, rbind, rclose, rconnect, rgetpeername, rgetsockname, rgetsockopt, rlisten, rrecv, rsend,
    rsetsockopt, rsocket,
};
use libc::{IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, linger, sockaddr_in, sockaddr_in6};

const SOL_RDMA: c_int = 0x1_0000;

fn errno() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

fn socket(domain: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { rsocket(domain, libc::SOCK_STREAM, 0) };
    assert!(fd >= 0, "errno {}", errno());
    fd
}

fn get<T: Copy>(fd: c_int, level: c_int, name: c_int) -> T {
    // SAFETY: integers.
    let (mut value, mut len): (T, _) = (unsafe { zeroed() }, size_of::<T>() as u32);
    // SAFETY: a value and its length.
    let done = unsafe { rgetsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    assert_eq!((done, len as usize), (0, size_of::<T>()), "option {level}, {name}: errno {}", errno());
    value
}

fn set<T>(fd: c_int, level: c_int, name: c_int, value: T) -> Result<(), c_int> {
    // SAFETY: a value and its length.
    match unsafe { rsetsockopt(fd, level, name, (&raw const value).cast(), size_of::<T>() as u32) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

fn close<const N: usize>(all: [c_int; N]) {
    for fd in all {
        // SAFETY: no pointers.
        assert_eq!(unsafe { rclose(fd) }, 0);
    }
}

fn v4(port: u16) -> sockaddr_in {
    // SAFETY: integers.
    let mut address: sockaddr_in = unsafe { zeroed() };
    address.sin_family = libc::AF_INET as _;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    address
}

fn bind<T>(fd: c_int, addr: &T) -> Result<(), c_int> {
    // SAFETY: an address that lives across the call.
    match unsafe { rbind(fd, std::ptr::from_ref(addr).cast(), size_of::<T>() as u32) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

fn connect(fd: c_int, port: u16) -> Result<(), c_int> {
    let addr = v4(port);
    // SAFETY: an address that lives across the call.
    match unsafe { rconnect(fd, (&raw const addr).cast(), size_of::<sockaddr_in>() as u32) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// The port of a listener.
fn listen(fd: c_int) -> u16 {
    // SAFETY: integers.
    let (mut addr, mut len): (sockaddr_in6, _) = (unsafe { zeroed() }, size_of::<sockaddr_in6>() as u32);
    // SAFETY: an address that lives across the call.
    unsafe {
        assert_eq!(rlisten(fd, 4), 0, "errno {}", errno());
        assert_eq!(rgetsockname(fd, (&raw mut addr).cast(), &raw mut len), 0);
    }
    u16::from_be(addr.sin6_port)
}

/// Two ends of a connection.
fn pair() -> (c_int, c_int) {
    let (listener, client) = (socket(libc::AF_INET), socket(libc::AF_INET));
    bind(listener, &v4(0)).unwrap();
    connect(client, listen(listener)).unwrap();
    // SAFETY: no address is asked for.
    let server = unsafe { raccept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
    assert!(server >= 0);
    close([listener]);
    (client, server)
}

#[test]
fn options_of_rsocket_7_say_what_was_set() {
    let fd = socket(libc::AF_INET6);
    let flags = [
        (SOL_SOCKET, libc::SO_KEEPALIVE),
        (SOL_SOCKET, libc::SO_OOBINLINE),
        (SOL_SOCKET, libc::SO_REUSEADDR),
        (IPPROTO_TCP, libc::TCP_NODELAY),
        (IPPROTO_TCP, libc::TCP_CORK),
        (IPPROTO_IPV6, libc::IPV6_V6ONLY),
    ];
    for (level, name) in flags {
        assert_eq!(get::<c_int>(fd, level, name), 0);
        set(fd, level, name, 1).unwrap();
        assert_eq!(get::<c_int>(fd, level, name), 1, "{level}, {name}");
    }
    for (name, asked, found) in [(libc::SO_RCVBUF, 300_000, 600_000), (libc::SO_SNDBUF, 100_000, 200_000)] {
        set(fd, SOL_SOCKET, name, asked).unwrap();
        assert_eq!(get::<c_int>(fd, SOL_SOCKET, name), found);
    }
    for (name, value) in [(0, 100), (1, 200), (2, 32), (3, 5)] {
        set(fd, SOL_RDMA, name, value).unwrap();
        assert_eq!(get::<c_int>(fd, SOL_RDMA, name), value, "RDMA option {name}");
    }
    assert_eq!(get::<c_int>(fd, SOL_SOCKET, libc::SO_ERROR), 0);
    assert_eq!(get::<c_int>(fd, IPPROTO_TCP, libc::TCP_MAXSEG), 2048);
    assert_eq!(set(fd, SOL_SOCKET, libc::SO_BUSY_POLL, 1), Err(libc::ENOPROTOOPT));
    assert_eq!(set(fd, SOL_SOCKET, libc::SO_KEEPALIVE, 1_u8), Err(libc::EINVAL));
    close([fd]);
}

#[test]
fn two_sockets_share_a_port_where_both_have_so_reuseaddr() {
    let [first, second, third] = [(); 3].map(|()| socket(libc::AF_INET));
    for fd in [first, second] {
        set(fd, SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
    }
    bind(first, &v4(0)).unwrap();
    // SAFETY: integers.
    let (mut addr, mut len): (sockaddr_in, _) = (unsafe { zeroed() }, size_of::<sockaddr_in>() as u32);
    // SAFETY: an address that lives across the call.
    assert_eq!(unsafe { rgetsockname(first, (&raw mut addr).cast(), &raw mut len) }, 0);
    assert!(bind(third, &addr).is_err());
    bind(second, &addr).unwrap();
    close([first, second, third]);
}

#[test]
fn a_listener_of_ipv6_takes_ipv4_unless_ipv6_v6only_is_set() {
    for only in [0, 1] {
        let (listener, client) = (socket(libc::AF_INET6), socket(libc::AF_INET));
        set(listener, IPPROTO_IPV6, libc::IPV6_V6ONLY, only).unwrap();
        // SAFETY: integers.
        let mut any: sockaddr_in6 = unsafe { zeroed() };
        any.sin6_family = libc::AF_INET6 as _;
        bind(listener, &any).unwrap();
        let expected = if only == 0 { Ok(()) } else { Err(libc::ECONNREFUSED) };
        assert_eq!(connect(client, listen(listener)), expected, "IPV6_V6ONLY {only}");
        close([client, listener]);
    }
}

/// The address and the port of an end of an IPv6 socket's connection.
fn name(fd: c_int, of_peer: bool) -> ([u8; 16], u16) {
    // SAFETY: integers.
    let (mut addr, mut len): (sockaddr_in6, _) = (unsafe { zeroed() }, size_of::<sockaddr_in6>() as u32);
    let call = if of_peer { rgetpeername } else { rgetsockname };
    // SAFETY: an address that lives across the call.
    assert_eq!(unsafe { call(fd, (&raw mut addr).cast(), &raw mut len) }, 0, "errno {}", errno());
    assert_eq!((addr.sin6_family, len), (libc::AF_INET6 as _, size_of::<sockaddr_in6>() as u32));
    (addr.sin6_addr.s6_addr, addr.sin6_port)
}

#[test]
fn ipv6_sockets_connect_to_ipv6_and_to_mapped_ipv4_addresses_and_name_them_so() {
    for host in ["::1", "::ffff:127.0.0.1"] {
        let host = host.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let (listener, client) = (socket(libc::AF_INET6), socket(libc::AF_INET6));
        // SAFETY: integers.
        let mut addr: sockaddr_in6 = unsafe { zeroed() };
        addr.sin6_family = libc::AF_INET6 as _;
        bind(listener, &addr).unwrap();
        (addr.sin6_port, addr.sin6_addr.s6_addr) = (listen(listener).to_be(), host);
        // SAFETY: integers.
        let (mut peer, mut len): (sockaddr_in6, _) = (unsafe { zeroed() }, size_of::<sockaddr_in6>() as u32);
        // SAFETY: addresses that live across the calls.
        let server = unsafe {
            assert_eq!(rconnect(client, (&raw const addr).cast(), len), 0, "errno {}", errno());
            raccept(listener, (&raw mut peer).cast(), &raw mut len)
        };
        assert!(server >= 0, "errno {}", errno());
        assert_eq!(name(client, true), (host, addr.sin6_port));
        assert_eq!(name(server, false), (host, addr.sin6_port));
        assert_eq!((name(server, true), name(client, false).0), (name(client, false), host));
        assert_eq!((peer.sin6_addr.s6_addr, peer.sin6_port), name(client, false));
        close([listener, client, server]);
    }
}

#[test]
fn tcp_maxseg_of_a_connection_is_the_route_s_and_sizes_can_not_be_set_any_more() {
    let (client, server) = pair();
    assert!([1024, 2048, 4096].contains(&get::<c_int>(client, IPPROTO_TCP, libc::TCP_MAXSEG)));
    set(client, IPPROTO_TCP, libc::TCP_MAXSEG, 500).unwrap();
    assert_eq!(set(client, SOL_RDMA, 0, 32), Err(libc::EINVAL));
    close([client, server]);
}

#[test]
fn so_linger_of_zero_resets_the_peer_and_of_a_second_lets_all_arrive() {
    for (seconds, expected) in [(0, Err(libc::ECONNRESET)), (1, Ok(0))] {
        let (client, server) = pair();
        let asked = linger { l_onoff: 1, l_linger: seconds };
        set(client, SOL_SOCKET, libc::SO_LINGER, asked).unwrap();
        let found = get::<linger>(client, SOL_SOCKET, libc::SO_LINGER);
        assert_eq!((found.l_onoff, found.l_linger), (1, seconds));
        let mut byte = [0_u8; 8];
        // SAFETY: bytes that live across the calls.
        unsafe {
            assert_eq!(rsend(client, b"x".as_ptr().cast(), 1, 0), 1);
            assert_eq!(rrecv(server, byte.as_mut_ptr().cast(), 8, 0), 1);
            close([client]);
            let end = rrecv(server, byte.as_mut_ptr().cast(), 8, 0);
            let end = if end < 0 { Err(errno()) } else { Ok(end) };
            assert_eq!(end, expected, "SO_LINGER {seconds}");
        }
        close([server]);
    }
}

fn send(fd: c_int, bytes: &[u8], flags: c_int) {
    // SAFETY: as many bytes.
    assert_eq!(unsafe { rsend(fd, bytes.as_ptr().cast(), bytes.len(), flags) }, bytes.len() as isize);
}

fn receive(fd: c_int, flags: c_int) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0_u8; 100];
    // SAFETY: as many bytes.
    let n = unsafe { rrecv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    bytes.truncate(usize::try_from(n).map_err(|_| errno())?);
    Ok(bytes)
}

/// As of TCP (tcp(7)).
const CORK: Duration = Duration::from_millis(200);

/// What has come; nothing before 200 ms after `began`.
fn early(fd: c_int, began: Instant) -> Vec<u8> {
    let came = receive(fd, libc::MSG_DONTWAIT);
    assert!(came == Err(libc::EAGAIN) || began.elapsed() >= CORK, "{came:?} has come early");
    came.unwrap_or_default()
}

/// What comes behind `came`, until there are as many bytes as `expected` has.
fn comes(fd: c_int, mut came: Vec<u8>, expected: &[u8]) {
    while came.len() < expected.len() {
        came.extend(receive(fd, 0).expect("no error"));
    }
    assert_eq!(came, expected);
}

#[test]
fn bytes_with_more_to_come_wait_for_it_and_leave_by_themselves_after_200_ms() {
    let (client, server) = pair();
    let began = Instant::now();
    send(client, b"a head", libc::MSG_MORE);
    let came = early(server, began);
    send(client, b" and a body", 0);
    comes(server, came, b"a head and a body");

    // The timer of the first bytes is still under way.
    set(client, IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
    send(client, b"corked", 0);
    let came = early(server, began);
    set(client, IPPROTO_TCP, libc::TCP_CORK, 0).unwrap();
    comes(server, came, b"corked");

    set(client, IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
    send(client, b"not uncorked", 0);
    comes(server, Vec::new(), b"not uncorked");
    close([client, server]);
}
