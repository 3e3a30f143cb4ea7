//! Datagrams (SOCK_DGRAM), as librdmacm sends them: by a UD queue pair on each device. A UDP
//! socket with the program's address tells peers which queue pair that is.
//!
//! A datagram to a peer whose queue pair is not known goes by the UDP sockets, behind a header that
//! tells of the sender's. The peer answers there with its own. Once a second a datagram goes that
//! way again, so that a peer which began anew is found.
//!
//! Addresses of IPoIB on a simulated fabric carry no UDP. There the connection manager finds peers,
//! and a datagram waits for its answer.
//!
//! | file | what |
//! |---|---|
//! | `header` | what stands before a datagram, and before a message between UDP sockets |
//! | `destinations` | the way to each peer |
//! | `questions` | peers where addresses carry no UDP |
//! | `queue_pair` | the queue pair on one device |
//! | `inbox` | datagrams that have come |

mod destinations;
pub mod header;
mod inbox;
mod questions;
mod queue_pair;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Ah, Device, Errno};
use stack::{Env, Event, EventChannel, Id, Node};
use wire::mad::PortSpace;
use wire::{Mtu, Qpn};

use self::destinations::{Destination, Destinations, MAX_RESOLVING};
use self::header::{HEADER_MAX, Op, Service, normal};
use self::inbox::Inbox;
pub use self::inbox::Received;
use self::queue_pair::{Filled, QueuePair};
use crate::queue_pair::Owner;
use crate::settings::{DATAGRAM, Settings};
use crate::stream::{How, Readiness};

/// For how long a way to a peer is looked for, and how long not again if there is none.
const RESOLVE: Duration = Duration::from_secs(2);

/// The UDP socket of a datagram socket.
pub trait Udp: Send {
    /// Sends the pieces as one message.
    ///
    /// # Errors
    ///
    /// Those of sendmsg(2).
    fn send(&self, to: &SocketAddr, pieces: &[&[u8]]) -> Result<(), Errno>;
}

/// A datagram socket of a host.
pub struct Datagrams<W: Env> {
    node: Arc<Node<W>>,
    owner: Arc<dyn Owner>,
    channel: Arc<EventChannel>,
    udp: Option<Box<dyn Udp>>,
    /// Where there is no UDP: the identifier by which peers ask for the queue pair.
    service: Option<Arc<Id>>,
    /// Sizes, for the next queue pair.
    pub settings: Settings,
    /// IP_TOS, for the ways found from now on.
    pub tos: Option<u8>,
    local: Option<SocketAddr>,
    queue_pairs: Vec<QueuePair>,
    destinations: Destinations,
    peer: Option<SocketAddr>,
    inbox: Inbox,
    shut: [bool; 2],
    error: Option<Errno>,
    refused: u64,
}

impl<W: Env> std::fmt::Debug for Datagrams<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Datagrams({:?}, {} peers)", self.local, self.destinations.len())
    }
}

impl<W: Env> Datagrams<W> {
    /// A socket that has no address yet. Without UDP the connection manager finds peers.
    pub fn new(
        node: &Arc<Node<W>>,
        owner: Arc<dyn Owner>,
        udp: Option<Box<dyn Udp>>,
        settings: Settings,
    ) -> Self {
        let channel = EventChannel::new(owner.signal());
        Self {
            node: node.clone(),
            owner,
            channel,
            udp,
            service: None,
            settings,
            tos: None,
            local: None,
            queue_pairs: Vec::new(),
            destinations: Destinations::default(),
            peer: None,
            inbox: Inbox::default(),
            shut: [false; 2],
            error: None,
            refused: 0,
        }
    }

    /// The UDP socket's address, which has a port. To be said before anything is sent.
    pub fn set_local(&mut self, addr: SocketAddr) {
        self.local = Some(normal(addr));
    }

    /// The address of this end, where it has one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Whether there is a queue pair, whose sizes are settled.
    pub fn has_queue_pair(&self) -> bool {
        !self.queue_pairs.is_empty()
    }

    /// connect(2): datagrams go there, and come from there only.
    ///
    /// # Errors
    ///
    /// As of [`Datagrams::send`].
    pub fn connect(&mut self, peer: SocketAddr) -> Result<(), Errno> {
        let peer = normal(peer);
        self.destination(&peer, false)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// Where datagrams go, where connect(2) has said that.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Sends the pieces as one datagram, to `to` or to the peer of connect(2); `None` where there
    /// is no room just now.
    ///
    /// # Errors
    ///
    /// EDESTADDRREQ without a peer; EPIPE after shutdown(2); EMSGSIZE for more than fits; EINVAL
    /// for an address that no datagram goes to. ENETUNREACH, ENODEV where no device leads there;
    /// ENOMEM. ECONNREFUSED where a datagram before found no socket (udp(7)).
    pub fn send(&mut self, to: Option<SocketAddr>, pieces: &[&[u8]]) -> Result<Option<usize>, Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.shut[1] {
            return Err(Errno::EPIPE);
        }
        let to = to.map(normal).or(self.peer).ok_or(Errno::EDESTADDRREQ)?;
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let now = self.owner.now();
        self.destination(&to, false)?;
        let Some(peer) = self.destinations.get(&to) else { return Err(Errno::ENOMEM) };
        if len > peer.most {
            return Err(Errno::EMSGSIZE);
        }
        let (header, queue_pair) = (peer.header, peer.queue_pair);
        if !self.queue_pairs[queue_pair].has_room() {
            return Ok(None);
        }
        match peer.way(now) {
            Some((ah, qpn)) => {
                let whole: Vec<&[u8]> =
                    [header.as_slice()].into_iter().chain(pieces.iter().copied()).collect();
                self.queue_pairs[queue_pair].send(&ah, qpn, &whole);
            }
            None if self.udp.is_none() => return Ok(self.send_asking(&to, pieces)),
            None => {
                let source = peer.source.ip();
                let is_idle = peer.ah.is_none() && peer.resolving.is_none();
                if is_idle && peer.retry_at.is_none_or(|at| at <= now) {
                    self.resolve_again(&to);
                }
                self.tell(Op::Data, &to, source, queue_pair, pieces)?;
            }
        }
        Ok(Some(len))
    }

    /// A message to a peer's UDP socket.
    fn tell(
        &self,
        op: Op,
        to: &SocketAddr,
        address: IpAddr,
        queue_pair: usize,
        pieces: &[&[u8]],
    ) -> Result<(), Errno> {
        let header = Service { op, qpn: self.queue_pairs[queue_pair].qpn(), address }.encode();
        let whole: Vec<&[u8]> = [header.as_slice()].into_iter().chain(pieces.iter().copied()).collect();
        self.udp.as_ref().map_or(Ok(()), |udp| udp.send(to, &whole))
    }

    /// Makes sure that a peer is known. `asked`: a peer wants it.
    fn destination(&mut self, addr: &SocketAddr, asked: bool) -> Result<(), Errno> {
        if self.destinations.get(addr).is_some() {
            return Ok(());
        }
        if addr.port() == 0 || addr.ip().is_unspecified() || addr.ip().is_multicast() {
            return Err(Errno::EINVAL);
        }
        if asked && self.destinations.resolving().count() >= MAX_RESOLVING {
            return Err(Errno::ENOMEM);
        }
        let local = self.local.ok_or(Errno::EINVAL)?;
        let (id, device, source) = self.resolve(addr)?;
        let made = self.queue_pair_on(&id, &device);
        let queue_pair = made.inspect_err(|_| self.node.destroy(&id))?;
        let mut source = source;
        source.set_port(local.port());
        let header = header::encode(&source);
        let mtu = {
            let route = id.lock().route;
            let of_route = route.and_then(|route| Mtu::for_link(route.mtu)).unwrap_or(Mtu::M256);
            of_route.min(device.port().mtu).bytes()
        };
        // What a peer takes by UDP as well, where the header is longer.
        let most = usize::min(
            mtu.min(DATAGRAM as usize) - header.as_slice().len(),
            DATAGRAM as usize - Service::len_of(&source.ip()),
        );
        let made = Destination::new(source, header, queue_pair, most, id);
        if let Some(Destination { resolving: Some(id), .. }) = self.destinations.add(*addr, made) {
            self.node.destroy(&id);
        }
        Ok(())
    }

    /// Begins to look for the way to a peer; the device that it leads over, and our address.
    fn resolve(&self, addr: &SocketAddr) -> Result<(Arc<Id>, Arc<Device>, SocketAddr), Errno> {
        let id = self.node.create_id(&self.channel, PortSpace::Udp);
        id.lock().tos = self.tos;
        let bound = self.local.map(|local| SocketAddr::new(local.ip(), 0));
        let source = bound.filter(|bound| !bound.ip().is_unspecified() && !bound.ip().is_loopback());
        let begun = self.node.resolve_addr(&id, source, *addr, RESOLVE).map_err(|error| error.errno());
        let found = begun.and_then(|()| {
            let inner = id.lock();
            inner.device.clone().zip(inner.source).ok_or(Errno::ENODEV)
        });
        match found {
            Ok((device, source)) => Ok((id, device, source)),
            Err(error) => {
                self.node.destroy(&id);
                Err(error)
            }
        }
    }

    fn resolve_again(&mut self, addr: &SocketAddr) {
        // Where there is no way at all now, datagrams go on by UDP.
        let Ok((id, _, _)) = self.resolve(addr) else { return };
        match self.destinations.get(addr) {
            Some(peer) if peer.resolving.is_none() => peer.resolving = Some(id),
            _ => self.node.destroy(&id),
        }
    }

    /// The queue pair on a device.
    fn queue_pair_on(&mut self, id: &Arc<Id>, device: &Arc<Device>) -> Result<usize, Errno> {
        let is_there = |qp: &QueuePair| Arc::ptr_eq(qp.device(), device);
        if let Some(at) = self.queue_pairs.iter().position(is_there) {
            return Ok(at);
        }
        let made = QueuePair::new(&self.owner, &self.node, id, device, &self.settings.in_range());
        self.queue_pairs.push(made.map_err(|error| error.errno())?);
        Ok(self.queue_pairs.len() - 1)
    }

    /// A message has come to the UDP socket.
    pub fn input(&mut self, from: SocketAddr, bytes: &[u8]) {
        let from = normal(from);
        let Ok((service, bytes)) = Service::decode(&from, bytes) else {
            self.refused += 1;
            return;
        };
        let is_wanted = self.peer.is_none_or(|peer| peer == from);
        let is_known = match service.op {
            Op::Data => is_wanted && self.destination(&from, true).is_ok(),
            Op::Control => is_wanted && self.destinations.get(&from).is_some(),
        };
        if !is_known {
            self.refused += 1;
            return;
        }
        self.learn(&from, service.qpn);
        if service.op == Op::Data {
            self.answer(&from);
            self.take_in(from, bytes);
        }
    }

    fn learn(&mut self, from: &SocketAddr, qpn: Qpn) {
        let now = self.owner.now();
        let Some(peer) = self.destinations.get(from) else { return };
        // Its address may lead elsewhere by now.
        if peer.told(qpn, now) && peer.resolving.is_none() {
            self.resolve_again(from);
        }
    }

    fn answer(&mut self, to: &SocketAddr) {
        let Some(peer) = self.destinations.get(to) else { return };
        let (source, queue_pair) = (peer.source.ip(), peer.queue_pair);
        // An answer may be lost like any message: the peer asks again.
        if self.tell(Op::Control, to, source, queue_pair, &[]).is_err() {
            self.refused += 1;
        }
    }

    /// A datagram that came by UDP, where there is room.
    fn take_in(&mut self, from: SocketAddr, bytes: &[u8]) {
        let (_, most) = self.settings.in_range().datagrams();
        let fits = bytes.len() <= DATAGRAM as usize && !self.shut[0];
        if !fits || !self.inbox.add_told(bytes, from, most as usize) {
            self.refused += 1;
        }
    }

    /// The UDP socket has an error, such as ECONNREFUSED (udp(7)).
    pub fn fail(&mut self, error: Errno) {
        self.error = Some(error);
    }

    /// The next datagram, or a copy of it (`peek`), in the pieces; `None` where there is none.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED where a datagram that was sent found no socket.
    pub fn receive(&mut self, pieces: &mut [&mut [u8]], peek: bool) -> Result<Option<Received>, Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(received) = self.inbox.copy(&self.queue_pairs, pieces) else {
            return Ok(self.shut[0].then_some(Received { copied: 0, len: 0, from: None }));
        };
        if !peek {
            self.inbox.pop(&mut self.queue_pairs);
        }
        Ok(Some(received))
    }

    /// Takes in all that has happened. Call it when the owner was signalled.
    pub fn step(&mut self) {
        while let Some(event) = self.node.next_event(&self.channel) {
            self.on_event(&event);
        }
        self.take_all(QueuePair::drive);
    }

    /// Takes in what has come, where anything has; for a call that looks at it.
    pub fn take_completions(&mut self) {
        self.take_all(QueuePair::take);
    }

    fn take_all(&mut self, take: fn(&mut QueuePair, &mut Vec<Filled>)) {
        let mut come = Vec::new();
        for number in 0..self.queue_pairs.len() {
            take(&mut self.queue_pairs[number], &mut come);
            come.drain(..).for_each(|filled| self.file(number, filled));
        }
    }

    /// A datagram has come to a queue pair.
    fn file(&mut self, queue_pair: usize, filled: Filled) {
        let qp = &mut self.queue_pairs[queue_pair];
        let mut bytes = [0; HEADER_MAX];
        let bytes = &mut bytes[..filled.len.min(HEADER_MAX)];
        qp.read(filled.slot, 0, bytes);
        let found = header::decode(bytes).ok().filter(|_| !self.shut[0]);
        let found = found.map(|(from, header)| (on_link(from, qp.device()), header));
        match found.filter(|(from, _)| self.peer.is_none_or(|peer| peer == normal(*from))) {
            Some((from, header)) => self.inbox.add_placed(queue_pair, filled, header, from),
            None => {
                self.refused += 1;
                qp.post_receive(filled.slot);
            }
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::ConnectRequest => return self.answer_question(&event.id),
            EventKind::Established | EventKind::Unreachable => self.on_answer(event),
            _ => {}
        }
        let now = self.owner.now();
        let Some((_, peer)) = self.destinations.resolved_by(&event.id) else { return };
        let is_over = match event.kind {
            EventKind::AddrResolved => self.node.resolve_route(&event.id, RESOLVE).is_err(),
            EventKind::RouteResolved => {
                let pd = self.queue_pairs[peer.queue_pair].pd();
                let ah = self.node.datagram_path(&event.id).and_then(|av| Ah::new(pd, av).ok());
                peer.ah = ah.or(peer.ah.take());
                let asks = self.udp.is_none();
                !asks || self.node.connect(&event.id, &ConnParam::default(), &[]).is_err()
            }
            _ => true,
        };
        if is_over {
            peer.resolving = None;
            peer.retry_at = Some(now + RESOLVE);
            self.node.destroy(&event.id);
        }
    }

    /// shutdown(2).
    ///
    /// # Errors
    ///
    /// ENOTCONN without connect(2).
    pub fn shutdown(&mut self, how: How) -> Result<(), Errno> {
        if self.peer.is_none() {
            return Err(Errno::ENOTCONN);
        }
        self.shut[0] |= how != How::Write;
        self.shut[1] |= how != How::Read;
        Ok(())
    }

    /// Whether all that was sent has left.
    pub fn is_flushed(&self) -> bool {
        self.queue_pairs.iter().all(QueuePair::is_flushed)
    }

    /// What poll(2) says.
    pub fn readiness(&self) -> Readiness {
        Readiness {
            readable: !self.inbox.is_empty() || self.shut[0] || self.error.is_some(),
            writable: self.queue_pairs.iter().all(QueuePair::has_room) && !self.waits_for_answer(),
            read_hup: self.shut[0],
            hup: self.shut == [true; 2],
            error: self.error.is_some(),
        }
    }

    /// Datagrams that have come so far.
    pub fn arrivals(&self) -> u64 {
        self.inbox.ever
    }

    /// SO_ERROR: the error that the program was not told of.
    pub fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Messages since the last call that were no datagram of a peer, or found no room.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

/// A sender's link-local address, of the link that it came by: the header does not say that.
fn on_link(from: SocketAddr, device: &Device) -> SocketAddr {
    match from {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), device.config.interface).into()
        }
        _ => from,
    }
}

impl<W: Env> Drop for Datagrams<W> {
    fn drop(&mut self) {
        self.destinations.resolving().for_each(|id| self.node.destroy(id));
        self.leave_service();
    }
}
