//! Packet sockets (packet(7)): the system calls for whole Ethernet frames, as safe functions.

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;

use libc::{c_int, c_void, socklen_t};
use sys::fork::Fd;
use sys::set_option;

/// Room for what comes with a frame: `tpacket_auxdata` and a count of drops, with their headers.
type Control = [u64; 16];

/// A frame that was received.
pub(crate) struct Received {
    /// Bytes of the frame, without a VLAN tag.
    pub len: usize,
    /// Whether this host sends the frame.
    pub outgoing: bool,
    /// The interface brings back what it sends.
    pub loopback: bool,
    /// The tag that the system took out: protocol identifier and control information, as on the
    /// wire.
    pub vlan: Option<[u8; 4]>,
    /// Frames dropped so far because the socket was full.
    pub dropped: Option<u32>,
    /// Longer than the buffer.
    pub truncated: bool,
}

/// A socket that sends through an interface, and receives nothing. EPERM without CAP_NET_RAW.
pub(crate) fn sender(interface: u32) -> io::Result<Fd> {
    // SAFETY: no pointers.
    let fd = Fd::open_raw(|| unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    })?;
    bind(&fd, interface, 0)?;
    Ok(fd)
}

/// A socket that receives every frame of an interface, whatever its destination.
pub(crate) fn receiver(interface: u32) -> io::Result<Fd> {
    let fd = sender(interface)?;
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    let all = libc::packet_mreq {
        mr_ifindex: interface.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as _,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the kernel reads one packet_mreq, which lives across the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const all).cast(),
            size_of::<libc::packet_mreq>() as socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    bind(&fd, interface, libc::ETH_P_ALL as u16)?;
    Ok(fd)
}

fn bind(fd: &Fd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: integers only.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = protocol.to_be();
    to.sll_ifindex = interface.cast_signed();
    // SAFETY: the kernel reads one sockaddr_ll, which lives across the call.
    let result = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const to).cast(), size_of::<libc::sockaddr_ll>() as socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a frame, or says at once why not.
pub(crate) fn send(fd: &Fd, frame: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads the frame's bytes, which live across the call.
    let sent = unsafe {
        libc::send(
            fd.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a frame, or says at once why not.
pub(crate) fn receive(fd: &Fd, bytes: &mut [u8]) -> io::Result<Received> {
    let mut control: Control = [0; 16];
    // SAFETY: integers only.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as socklen_t;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: address, bytes and control live across the call and are as long as the message says.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    let mut received = Received {
        len,
        outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
        loopback: from.sll_hatype == libc::ARPHRD_LOOPBACK,
        vlan: None,
        dropped: None,
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
    };
    // SAFETY: the kernel has filled the control buffer, aligned for its headers, and said how far.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: a header inside the control buffer, with the data that its type says; read
        // unaligned.
        unsafe {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    received.vlan = tag(&data.cast::<libc::tpacket_auxdata>().read_unaligned());
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    received.dropped = Some(data.cast::<c_int>().read_unaligned().cast_unsigned());
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(received)
}

/// The VLAN tag that the system took out of a frame.
fn tag(about: &libc::tpacket_auxdata) -> Option<[u8; 4]> {
    if about.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = about.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if known { about.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), about.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}
