//! The UDP socket of a datagram rsocket. The engine thread tells its owner of what comes there.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use nic::Work;
use socket2::{Domain, MsgHdr, Protocol, SockAddr, SockRef, Socket, Type};
use sys::ControlBuffer;
use sys::fork::Fd;

use crate::LinuxEnv;
use crate::reactor::{IN, Source};

/// A UDP socket that does not wait.
pub struct ServiceSocket {
    fd: Fd,
    v6: bool,
    env: Arc<LinuxEnv>,
    token: u64,
}

impl ServiceSocket {
    /// A socket of IPv4 or IPv6. `work` is done by the engine thread whenever something is there.
    ///
    /// # Errors
    ///
    /// Those of socket(2) and epoll_ctl(2).
    pub fn open(env: &Arc<LinuxEnv>, v6: bool, work: Weak<dyn Work>) -> io::Result<Self> {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let fd = Fd::open(|| Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP)))?;
        SockRef::from(&fd).set_nonblocking(true)?;
        let token = env.reactor.token();
        env.reactor.add(token, &fd, IN, Source::Service(work))?;
        Ok(Self { fd, v6, env: env.clone(), token })
    }

    /// Whether messages go to other hosts: addresses of a simulated fabric carry no IP.
    pub fn leads_anywhere(&self) -> bool {
        self.env.fabric.is_none()
    }

    /// The address as one of this socket's family.
    fn own(&self, addr: &SocketAddr) -> SockAddr {
        match addr {
            SocketAddr::V4(v4) if self.v6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            _ => (*addr).into(),
        }
    }

    /// bind(2).
    ///
    /// # Errors
    ///
    /// Those of bind(2).
    pub fn bind(&self, addr: &SocketAddr) -> io::Result<()> {
        SockRef::from(&self.fd).bind(&self.own(addr))
    }

    /// bind(2) to any address, and a port that is free.
    ///
    /// # Errors
    ///
    /// Those of bind(2).
    pub fn bind_anywhere(&self) -> io::Result<()> {
        match self.v6 {
            true => self.bind(&(Ipv6Addr::UNSPECIFIED, 0).into()),
            false => self.bind(&([0, 0, 0, 0], 0).into()),
        }
    }

    /// connect(2).
    ///
    /// # Errors
    ///
    /// Those of connect(2).
    pub fn connect(&self, addr: &SocketAddr) -> io::Result<()> {
        SockRef::from(&self.fd).connect(&self.own(addr))
    }

    /// getsockname(2).
    ///
    /// # Errors
    ///
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        SockRef::from(&self.fd).local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable.into())
    }

    /// getpeername(2).
    ///
    /// # Errors
    ///
    /// Those of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        SockRef::from(&self.fd).peer_addr()?.as_socket().ok_or(io::ErrorKind::NotConnected.into())
    }

    /// Sends the pieces as one message. A message for which the system has no room now is lost.
    ///
    /// # Errors
    ///
    /// Those of sendmsg(2).
    pub fn send(&self, to: &SocketAddr, pieces: &[&[u8]]) -> io::Result<()> {
        let pieces: Vec<_> = pieces.iter().map(|piece| io::IoSlice::new(piece)).collect();
        let to = self.own(to);
        let message = MsgHdr::new().with_addr(&to).with_buffers(&pieces);
        match SockRef::from(&self.fd).sendmsg(&message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// The next message, cut to the room there is, and its sender; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Those of recvmsg(2), such as ECONNREFUSED (udp(7)).
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        match sys::receive(&self.fd, bytes, &mut ControlBuffer::new(), 0) {
            Ok(received) => Ok(received.address.map(|from| (received.len, from))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for ServiceSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for ServiceSocket {
    fn drop(&mut self) {
        if self.env.is_ours() {
            self.env.reactor.remove(self.token, &self.fd);
        }
    }
}
