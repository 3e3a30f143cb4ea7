//! How the UDP sockets are set up: those that send and those that receive.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, SOL_UDP, c_int};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, SockRef, Socket, Type};
use sys::fork::Fd;
use sys::{DEFAULT_HOP_LIMIT, set_option};

use crate::Config;
use crate::interfaces::is_link_local;

/// The UDP port of RoCEv2 (IANA).
pub(crate) const ROCE_PORT: u16 = 4791;

/// Take datagrams whose UDP checksum is 0 over IPv6 (linux/udp.h; the libc crate lacks it).
const UDP_NO_CHECK6_RX: c_int = 102;

/// `address` with `port`; `interface` is the scope where the address needs one.
pub(crate) fn endpoint(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V4(v4) => (v4, port).into(),
        IpAddr::V6(v6) => {
            SocketAddrV6::new(v6, port, 0, if is_link_local(address) { interface } else { 0 }).into()
        }
    }
}

/// What a socket that sends is set up for.
#[derive(Clone, Copy)]
pub(crate) struct Sending {
    pub(crate) source: IpAddr,
    pub(crate) dest: IpAddr,
    pub(crate) interface: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Whether this host gets nothing of what it sends to groups.
    pub(crate) no_multicast_loop: bool,
}

/// An unconnected socket on a port of its own, and its address.
///
/// Unconnected and with PMTU discovery that never fragments: only then does the kernel send IPv4
/// identification 0 (and 1, 2, ... for further segments of one send), which the ICRC covers. On a
/// connected socket it counts on.
pub(crate) fn sender(to: &Sending, config: &Config) -> io::Result<(Fd, SocketAddr)> {
    let source = endpoint(to.source, 0, to.interface);
    let fd = Fd::open(|| Socket::new(Domain::for_address(source), Type::DGRAM, Some(Protocol::UDP)))?;
    let socket = SockRef::from(&fd);
    let hop_limit = if to.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { to.hop_limit };
    if source.is_ipv4() {
        set_option(&fd, IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        set_option(&fd, IPPROTO_IP, libc::IP_RECVERR, 1)?;
        set_option(&fd, IPPROTO_IP, libc::IP_TOS, c_int::from(to.traffic_class))?;
        set_option(&fd, IPPROTO_IP, libc::IP_TTL, c_int::from(hop_limit))?;
        if to.dest.is_multicast() {
            set_option(&fd, IPPROTO_IP, libc::IP_MULTICAST_TTL, c_int::from(hop_limit))?;
            socket.set_multicast_loop_v4(!to.no_multicast_loop)?;
            if let IpAddr::V4(v4) = to.source {
                socket.set_multicast_if_v4(&v4)?;
            }
        }
    } else {
        set_option(&fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        set_option(&fd, IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        set_option(&fd, IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        set_option(&fd, IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(to.traffic_class))?;
        set_option(&fd, IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, c_int::from(hop_limit))?;
        if to.dest.is_multicast() {
            set_option(&fd, IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, c_int::from(hop_limit))?;
            socket.set_multicast_loop_v6(!to.no_multicast_loop)?;
            socket.set_multicast_if_v6(to.interface)?;
        }
    }
    buffer(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.send_buffer_bytes);
    sys::receive_nothing(&fd)?;
    socket.bind(&SockAddr::from(source))?;
    let source = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((fd, source))
}

/// A socket on the RoCEv2 port of `dest`, which other processes of this user may share; connected
/// to `peer` where that is given, so that all packets of that flow come to it.
///
/// # Errors
///
/// EADDRINUSE: the kernel's rdma_rxe or another user owns the port. EADDRNOTAVAIL: the address is
/// gone, or duplicate address detection is not through with it.
pub(crate) fn receiver(dest: SocketAddr, peer: Option<SocketAddr>, config: &Config) -> io::Result<Fd> {
    let fd = Fd::open(|| Socket::new(Domain::for_address(dest), Type::DGRAM, Some(Protocol::UDP)))?;
    let socket = SockRef::from(&fd);
    if dest.is_ipv6() {
        set_option(&fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        // The kernel's rxe leaves the UDP checksum out, which IPv6 sockets take for an error unless
        // told (RFC 6935): the ICRC covers the packet.
        set_option(&fd, SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    socket.set_reuse_port(true)?;
    set_option(&fd, SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    // Older kernels deliver datagram by datagram: slower, not worse.
    let _ = set_option(&fd, SOL_UDP, libc::UDP_GRO, 1);
    buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.receive_buffer_bytes);
    socket.bind(&SockAddr::from(dest))?;
    if let Some(peer) = peer {
        socket.connect(&SockAddr::from(peer))?;
    }
    Ok(fd)
}

/// A socket on the RoCEv2 port of a multicast group that takes what comes in through one interface,
/// and its address.
///
/// # Errors
///
/// ENODEV: there is no such interface. Those of [`receiver`].
pub(crate) fn group_receiver(group: IpAddr, interface: u32, config: &Config) -> io::Result<(Fd, SocketAddr)> {
    let dest = endpoint(group, ROCE_PORT, interface);
    let fd = receiver(dest, None, config)?;
    let socket = SockRef::from(&fd);
    match group {
        IpAddr::V4(v4) => {
            // Not what other sockets of this host joined on other interfaces.
            set_option(&fd, IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
            socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(interface))?;
        }
        IpAddr::V6(v6) => {
            set_option(&fd, IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
            socket.join_multicast_v6(&v6, interface)?;
        }
    }
    Ok((fd, dest))
}

/// Asks for a buffer: as much as the administrator allows, and more where we are the administrator.
pub(crate) fn buffer(fd: &Fd, force: c_int, plain: c_int, bytes: u32) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    if set_option(fd, SOL_SOCKET, force, bytes).is_err() {
        // The kernel caps it silently (net.core.rmem_max); what it gives has to do.
        let _ = set_option(fd, SOL_SOCKET, plain, bytes);
    }
}
