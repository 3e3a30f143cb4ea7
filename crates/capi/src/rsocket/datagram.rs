//! Datagrams (SOCK_DGRAM): the UDP socket beside the protocol's engine, and what the calls of an
//! rsocket do there.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use libc::SOL_SOCKET;
use linux::{LinuxEnv, ServiceSocket};
use nic::{Errno, Work};
use rsocket::datagram::Received;
use rsocket::{Datagrams, Settings, Udp};

use crate::instance::Instance;
use crate::rsocket::object::{Rsocket, State};
use crate::rsocket::options::{self, Options, SOL_RDMA};

/// Messages of the UDP socket that are read at a time.
const FEW: usize = 64;
/// A message that is longer than the longest datagram is told from it.
const MESSAGE: usize = rsocket::settings::DATAGRAM as usize + 64;

/// Options by which a UDP socket joins a group (ip(7), ipv6(7), RFC 3678).
const MEMBERSHIPS: [(c_int, c_int); 7] = [
    (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
    (libc::IPPROTO_IP, libc::IP_ADD_SOURCE_MEMBERSHIP),
    (libc::IPPROTO_IP, libc::MCAST_JOIN_GROUP),
    (libc::IPPROTO_IP, libc::MCAST_JOIN_SOURCE_GROUP),
    (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
    (libc::IPPROTO_IPV6, libc::MCAST_JOIN_GROUP),
    (libc::IPPROTO_IPV6, libc::MCAST_JOIN_SOURCE_GROUP),
];

/// A datagram rsocket.
pub(super) struct Datagram {
    pub(super) engine: Datagrams<LinuxEnv>,
    udp: Arc<ServiceSocket>,
    by_udp: bool,
    instance: Arc<Instance>,
    /// The engine thread finds it as long as this lives.
    _heard: Arc<Heard>,
}

/// The engine thread's task: messages wait at the UDP socket.
struct Heard(Weak<Rsocket>);

impl Work for Heard {
    fn run(self: Arc<Self>) {
        if let Some(rsocket) = self.0.upgrade() {
            let mut state = rsocket.lock();
            let Some(datagram) = &mut state.datagram else { return };
            datagram.hear();
            state.settle(true);
        }
    }
}

struct Messages(Arc<ServiceSocket>);

impl Udp for Messages {
    fn send(&self, to: &SocketAddr, pieces: &[&[u8]]) -> Result<(), Errno> {
        Ok(self.0.send(to, pieces)?)
    }
}

impl Datagram {
    /// Datagrams of a family of addresses.
    pub(super) fn new(
        rsocket: &Arc<Rsocket>,
        instance: &Arc<Instance>,
        domain: c_int,
        settings: Settings,
    ) -> Result<Self, Errno> {
        let heard = Arc::new(Heard(Arc::downgrade(rsocket)));
        let weak: Weak<dyn Work> = Arc::downgrade(&(heard.clone() as Arc<dyn Work>));
        let udp = Arc::new(ServiceSocket::open(instance.host.env(), domain == libc::AF_INET6, weak)?);
        // Addresses of a fabric carry no UDP: the socket is there for its options.
        let by_udp = udp.leads_anywhere();
        let messages = by_udp.then(|| Box::new(Messages(udp.clone())) as Box<dyn Udp>);
        let engine = Datagrams::new(instance.node(), rsocket.hook(), messages, settings);
        Ok(Self { engine, udp, by_udp, instance: instance.clone(), _heard: heard })
    }

    fn hear(&mut self) {
        let mut bytes = [0; MESSAGE];
        for _ in 0..FEW {
            match self.udp.receive(&mut bytes) {
                Ok(Some((len, from))) => self.engine.input(from, &bytes[..len]),
                Ok(None) => return,
                Err(error) => self.engine.fail(error.into()),
            }
        }
    }

    /// bind(2).
    pub(super) fn bind(&mut self, addr: &SocketAddr) -> Result<(), Errno> {
        if !self.by_udp {
            return self.engine.bind(*addr);
        }
        self.udp.bind(addr)?;
        self.note_local()
    }

    /// bind(2) to any address, where it has none.
    fn bind_anywhere(&mut self) -> Result<(), Errno> {
        match self.engine.local_addr() {
            Some(_) => Ok(()),
            None if self.by_udp => {
                self.udp.bind_anywhere()?;
                self.note_local()
            }
            None => self.engine.bind(([0; 4], 0).into()),
        }
    }

    /// connect(2).
    pub(super) fn connect(&mut self, addr: SocketAddr) -> Result<(), Errno> {
        match self.by_udp {
            true => {
                self.udp.connect(&addr)?;
                self.note_local()?;
            }
            false => self.bind_anywhere()?,
        }
        self.engine.connect(addr)
    }

    fn note_local(&mut self) -> Result<(), Errno> {
        self.engine.set_local(self.udp.local_addr()?);
        Ok(())
    }

    /// The address of this end, or of the peer.
    pub(super) fn address(&self, of_peer: bool) -> Result<SocketAddr, Errno> {
        if self.by_udp {
            return Ok(if of_peer { self.udp.peer_addr()? } else { self.udp.local_addr()? });
        }
        match of_peer {
            true => self.engine.peer_addr().ok_or(Errno::ENOTCONN),
            false => Ok(self.engine.local_addr().unwrap_or(([0; 4], 0).into())),
        }
    }

    fn send(&mut self, to: Option<SocketAddr>, pieces: &[&[u8]]) -> Option<Result<usize, Errno>> {
        if let Err(error) = self.bind_anywhere() {
            return Some(Err(error));
        }
        self.engine.send(to, pieces).transpose()
    }

    /// What was refused since the last look is counted.
    pub(super) fn count(&mut self) {
        match self.engine.take_refused() {
            0 => {}
            n => _ = self.instance.host.env().counters().rsocket_refused.fetch_add(n, Ordering::Relaxed),
        }
    }

    /// setsockopt(2): of the UDP socket, but for what is about queue pairs and waiting. EOPNOTSUPP
    /// for the membership of a group: no datagram comes from one.
    pub(super) fn set(
        &mut self,
        kept: &mut Options,
        level: c_int,
        name: c_int,
        value: &[u8],
    ) -> Result<(), Errno> {
        if level == SOL_RDMA {
            if self.engine.has_queue_pair() {
                return Err(Errno::EINVAL);
            }
            return options::set_size(&mut self.engine.settings, name, options::int_of(value)?);
        }
        if MEMBERSHIPS.contains(&(level, name)) {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: so many readable bytes.
        let done = unsafe {
            libc::syscall(
                libc::SYS_setsockopt,
                self.udp.as_raw_fd(),
                level,
                name,
                value.as_ptr(),
                value.len() as libc::socklen_t,
            )
        };
        if done < 0 {
            return Err(Errno::last());
        }
        let settings = &mut self.engine.settings;
        match (level, name) {
            (SOL_SOCKET, libc::SO_RCVTIMEO) => kept.receive_timeout = options::time_of(value)?,
            (SOL_SOCKET, libc::SO_SNDTIMEO) => kept.send_timeout = options::time_of(value)?,
            (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                settings.receive_buffer = options::doubled(options::int_of(value)?);
            }
            (SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                settings.send_buffer = options::doubled(options::int_of(value)?);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => self.engine.tos = Some(options::int_of(value)? as u8),
            _ => {}
        }
        Ok(())
    }

    /// getsockopt(2), likewise.
    pub(super) fn get(&mut self, level: c_int, name: c_int, most: usize) -> Result<Vec<u8>, Errno> {
        let settings = self.engine.settings.in_range();
        let own = match (level, name) {
            (SOL_RDMA, _) => options::size_of_queue(&settings, name)?,
            (SOL_SOCKET, libc::SO_RCVBUF) => c_int::try_from(settings.receive_buffer).unwrap_or(c_int::MAX),
            (SOL_SOCKET, libc::SO_SNDBUF) => c_int::try_from(settings.send_buffer).unwrap_or(c_int::MAX),
            (SOL_SOCKET, libc::SO_ERROR) => self.engine.take_error().map_or(0, |error| error.0),
            _ => return self.get_of_udp(level, name, most),
        };
        Ok(own.to_ne_bytes().to_vec())
    }

    fn get_of_udp(&self, level: c_int, name: c_int, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0_u8; most.min(MESSAGE)];
        let mut len = bytes.len() as libc::socklen_t;
        // SAFETY: so many writable bytes, and their number.
        let done = unsafe {
            libc::syscall(
                libc::SYS_getsockopt,
                self.udp.as_raw_fd(),
                level,
                name,
                bytes.as_mut_ptr(),
                &raw mut len,
            )
        };
        if done < 0 {
            return Err(Errno::last());
        }
        bytes.truncate(len as usize);
        Ok(bytes)
    }
}

fn of(state: &mut State) -> Result<&mut Datagram, Errno> {
    state.datagram.as_mut().ok_or(Errno::EBADF)
}

/// Sends the pieces as one datagram, to `to` or to the peer of connect(2).
pub(super) fn send(
    rsocket: &Rsocket,
    to: Option<SocketAddr>,
    pieces: &[&[u8]],
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let wait = !rsocket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let until = rsocket.lock().options.send_timeout.map(|timeout| Instant::now() + timeout);
    rsocket.block(wait, until, |state| match of(state) {
        Ok(datagram) => datagram.send(to, pieces),
        Err(error) => Some(Err(error)),
    })
}

/// Receives one datagram. MSG_DONTWAIT and MSG_PEEK count; there is no queue of errors.
pub(super) fn receive(rsocket: &Rsocket, pieces: &mut [&mut [u8]], flags: c_int) -> Result<Received, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::EAGAIN);
    }
    let wait = !rsocket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let until = rsocket.lock().options.receive_timeout.map(|timeout| Instant::now() + timeout);
    rsocket.block(wait, until, |state| match of(state) {
        Ok(datagram) => datagram.engine.receive(pieces, flags & libc::MSG_PEEK != 0).transpose(),
        Err(error) => Some(Err(error)),
    })
}

/// How many bytes a call returns: with MSG_TRUNC those of the whole datagram (recv(2)).
pub(super) fn counted(received: &Received, flags: c_int) -> usize {
    if flags & libc::MSG_TRUNC != 0 { received.len } else { received.copied }
}

/// A sender's address, in the family of the socket.
pub(super) fn shown(rsocket: &Rsocket, from: SocketAddr) -> SocketAddr {
    options::in_family(rsocket.lock().options.domain, from)
}
