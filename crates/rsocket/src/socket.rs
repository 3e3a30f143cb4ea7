//! A socket: from an address to a stream, by the connection manager, and to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nic::Errno;
use nic::rdma_cm::{ConnParam, EventKind};
use stack::{Env, Event, EventChannel, Id, Node};
use wire::mad::PortSpace;

use crate::conn_data::ConnData;
use crate::queue_pair::{Owner, QueuePair, variant_of};
use crate::settings::Settings;
use crate::stream::{How, Readiness, Stream};
use crate::verbs::Variant;

/// For how long an address, and then the path to it, is looked for.
const RESOLVE: Duration = Duration::from_secs(8);

/// How far a socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was done.
    Idle,
    /// The socket has an address.
    Bound,
    /// Peers may connect.
    Listening,
    /// The socket is being connected.
    Connecting,
    /// A request was accepted, and the peer has not said that it is ready.
    Accepting,
    /// There is a stream, whatever has become of it.
    Connected,
    /// The socket could not be connected.
    Failed,
}

/// Options that are set before there is an identifier to set them on, and survive it.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    reuse: bool,
    v6_only: bool,
    no_delay: bool,
    tos: Option<u8>,
}

/// A peer's wish to connect.
#[derive(Debug)]
pub struct Request(Event);

/// A queue pair, and the stream over it once the peer is known.
#[derive(Debug)]
struct Connected {
    qp: QueuePair,
    stream: Option<Stream>,
}

/// A socket of a host.
pub struct Socket<W: Env> {
    node: Arc<Node<W>>,
    owner: Arc<dyn Owner>,
    channel: Arc<EventChannel>,
    id: Arc<Id>,
    /// Sizes, for the next queue pair.
    pub settings: Settings,
    options: Options,
    phase: Phase,
    connected: Option<Connected>,
    error: Option<Errno>,
    /// How long the peer has to answer; `None` for the connection manager's time.
    pub patience: Option<Duration>,
    dest: Option<SocketAddr>,
}

impl<W: Env> std::fmt::Debug for Socket<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Socket({:?})", self.phase)
    }
}

fn of_io(error: stack::Error) -> Errno {
    error.errno()
}

impl<W: Env> Socket<W> {
    /// A socket of nothing yet.
    pub fn new(node: &Arc<Node<W>>, owner: Arc<dyn Owner>, settings: Settings) -> Self {
        let channel = EventChannel::new(owner.signal());
        let id = node.create_id(&channel, PortSpace::Tcp);
        Self::with(node, owner, settings, channel, id)
    }

    fn with(
        node: &Arc<Node<W>>,
        owner: Arc<dyn Owner>,
        settings: Settings,
        channel: Arc<EventChannel>,
        id: Arc<Id>,
    ) -> Self {
        Self {
            node: node.clone(),
            owner,
            channel,
            id,
            settings,
            options: Options::default(),
            phase: Phase::Idle,
            connected: None,
            error: None,
            patience: None,
            dest: None,
        }
    }

    /// A socket for a request, which is accepted; in phase `Accepting`.
    ///
    /// # Errors
    ///
    /// The peer's connection data is not an rsocket's, or something is used up: the peer is
    /// refused.
    pub fn accept(
        node: &Arc<Node<W>>,
        owner: Arc<dyn Owner>,
        settings: Settings,
        request: Request,
    ) -> Result<Self, Errno> {
        let Event { id, private_data, param, .. } = request.0;
        let channel = EventChannel::new(owner.signal());
        node.migrate(&id, &channel);
        let mut socket = Self::with(node, owner, settings, channel, id);
        socket.answer(&private_data, param).inspect_err(|_| {
            // An error says that the peer has gone.
            _ = node.reject(&socket.id, &[]);
        })?;
        socket.phase = Phase::Accepting;
        Ok(socket)
    }

    fn answer(&mut self, private_data: &[u8], param: ConnParam) -> Result<(), Errno> {
        let peer = ConnData::decode(private_data).map_err(|_| Errno::EPROTO)?;
        let mine = self.make_queue_pair()?;
        let settings = self.settings.in_range();
        let connected = self.connected.as_mut().ok_or(Errno::ENOTCONN)?;
        connected.stream = Some(Stream::new(&settings, variant_of(connected.qp.qp().device()), &peer));
        // Each end writes, neither reads.
        let param = ConnParam { srq: false, qp_num: 0, ..param };
        self.node.accept(&self.id, Some(&param), &mine).map_err(of_io)
    }

    /// Makes the queue pair; the connection data that tells of it.
    fn make_queue_pair(&mut self) -> Result<Vec<u8>, Errno> {
        let settings = self.settings.in_range();
        let device = self.id.lock().device.clone().ok_or(Errno::ENODEV)?;
        self.node.attach(&device).map_err(of_io)?;
        let mut qp = QueuePair::new(&self.owner, &device, &settings).map_err(of_io)?;
        self.node.set_qp(&self.id, qp.qp()).map_err(of_io)?;
        qp.post_receives(&settings).map_err(|_| Errno::ENOMEM)?;
        let mine = Stream::conn_data(&settings, &qp).encode();
        self.connected = Some(Connected { qp, stream: None });
        Ok(mine.to_vec())
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The address of this end.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.lock().source
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.lock().dest
    }

    /// The stream and its queue pair, where there is one.
    pub fn stream(&mut self) -> Option<(&mut Stream, &mut QueuePair)> {
        if self.phase != Phase::Connected {
            return None;
        }
        let Connected { qp, stream } = self.connected.as_mut()?;
        Some((stream.as_mut()?, qp))
    }

    /// Tells the stream of what has completed, where anything has; for a call that looks at it.
    pub fn take_completions(&mut self) {
        if let Some((stream, qp)) = self.stream() {
            qp.take(stream);
        }
    }

    /// The device that the socket leads over, where it leads anywhere.
    pub fn device(&self) -> Option<Arc<nic::Device>> {
        self.id.lock().device.clone()
    }

    /// Largest payload of a packet, where the route is known.
    pub fn max_segment(&self) -> Option<u32> {
        let route = self.id.lock().route?;
        wire::Mtu::for_link(route.mtu).map(|mtu| mtu.bytes() as u32)
    }

    /// SO_REUSEADDR.
    ///
    /// # Errors
    ///
    /// EINVAL where the socket has an address already.
    pub fn set_reuse(&mut self, reuse: bool) -> Result<(), Errno> {
        self.options.reuse = reuse;
        self.node.set_reuse(&self.id, reuse).map_err(of_io)
    }

    /// IPV6_V6ONLY.
    ///
    /// # Errors
    ///
    /// As [`Socket::set_reuse`].
    pub fn set_v6_only(&mut self, v6_only: bool) -> Result<(), Errno> {
        self.options.v6_only = v6_only;
        self.node.set_v6_only(&self.id, v6_only).map_err(of_io)
    }

    /// TCP_NODELAY. What waits for more to be written leaves (tcp(7)).
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.options.no_delay = no_delay;
        self.begin();
    }

    /// IP_TOS.
    pub fn set_tos(&mut self, tos: u8) {
        self.options.tos = Some(tos);
        self.id.lock().tos = Some(tos);
    }

    /// bind(2).
    ///
    /// # Errors
    ///
    /// EINVAL where it is bound; EADDRINUSE, EADDRNOTAVAIL.
    pub fn bind(&mut self, addr: SocketAddr) -> Result<(), Errno> {
        if self.phase != Phase::Idle {
            return Err(Errno::EINVAL);
        }
        self.node.bind(&self.id, addr).map_err(of_io)?;
        self.phase = Phase::Bound;
        Ok(())
    }

    /// listen(2). A socket without an address gets one.
    ///
    /// # Errors
    ///
    /// EINVAL for a socket that is or was connected; EADDRINUSE.
    pub fn listen(&mut self, backlog: u32) -> Result<(), Errno> {
        match self.phase {
            Phase::Listening => return Ok(()),
            Phase::Idle => {
                let any = std::net::Ipv4Addr::UNSPECIFIED;
                self.bind(SocketAddr::from((any, 0)))?;
            }
            Phase::Bound => {}
            _ => return Err(Errno::EINVAL),
        }
        self.node.listen(&self.id, backlog).map_err(of_io)?;
        self.node.serve_out_of_turn(&self.id);
        self.phase = Phase::Listening;
        Ok(())
    }

    /// The next request of a listener.
    pub fn next_request(&mut self) -> Option<Request> {
        loop {
            let event = self.node.next_event(&self.channel)?;
            if event.kind == EventKind::ConnectRequest {
                return Some(Request(event));
            }
        }
    }

    /// Begins to connect; [`Socket::step`] goes on. A socket that failed begins anew.
    ///
    /// # Errors
    ///
    /// EISCONN, EALREADY, EINVAL for a listener; ENETUNREACH where no route leads there.
    pub fn connect(&mut self, dest: SocketAddr) -> Result<(), Errno> {
        match self.phase {
            Phase::Connected | Phase::Accepting => return Err(Errno::EISCONN),
            Phase::Connecting => return Err(Errno::EALREADY),
            Phase::Listening => return Err(Errno::EINVAL),
            Phase::Failed => self.begin_anew(),
            Phase::Idle | Phase::Bound => {}
        }
        self.dest = Some(dest);
        self.phase = Phase::Connecting;
        if let Err(error) = self.node.resolve_addr(&self.id, None, dest, RESOLVE) {
            self.phase = Phase::Failed;
            return Err(error.errno());
        }
        self.step();
        Ok(())
    }

    fn begin_anew(&mut self) {
        self.leave();
        self.id = self.node.create_id(&self.channel, PortSpace::Tcp);
        let Options { reuse, v6_only, tos, .. } = self.options;
        // Of a new identifier neither is refused.
        if reuse {
            _ = self.node.set_reuse(&self.id, true);
        }
        if v6_only {
            _ = self.node.set_v6_only(&self.id, true);
        }
        self.id.lock().tos = tos;
        (self.error, self.phase) = (None, Phase::Idle);
    }

    /// Takes in all that has happened: events, then completions. Call it when the owner was
    /// signalled, and before a call looks at the stream.
    pub fn step(&mut self) {
        if self.phase == Phase::Listening {
            return;
        }
        let mut ended = false;
        while let Some(event) = self.node.next_event(&self.channel) {
            match event.kind {
                EventKind::Disconnected | EventKind::DeviceRemoval if self.phase == Phase::Connected => {
                    ended = true;
                }
                _ => {
                    if let Err(error) = self.on_event(event) {
                        self.fail(error);
                    }
                }
            }
        }
        if let Some((stream, qp)) = self.stream() {
            qp.drive(stream);
            if ended {
                stream.on_disconnected();
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), Errno> {
        match (event.kind, self.phase) {
            (EventKind::AddrResolved, Phase::Connecting) => {
                self.node.resolve_route(&self.id, RESOLVE).map_err(of_io)
            }
            (EventKind::RouteResolved, Phase::Connecting) => self.ask(),
            (EventKind::Established, Phase::Connecting) => {
                let peer = ConnData::decode(&event.private_data).map_err(|_| Errno::EPROTO)?;
                let settings = self.settings.in_range();
                let connected = self.connected.as_mut().ok_or(Errno::ENOTCONN)?;
                let variant = variant_of(connected.qp.qp().device());
                connected.stream = Some(Stream::new(&settings, variant, &peer));
                self.phase = Phase::Connected;
                self.begin();
                Ok(())
            }
            (EventKind::Established, Phase::Accepting) => {
                self.phase = Phase::Connected;
                self.begin();
                Ok(())
            }
            (EventKind::Rejected, Phase::Connecting | Phase::Accepting) => Err(Errno::ECONNREFUSED),
            (EventKind::AddrError, Phase::Connecting) => Err(negative(event.status, Errno::EHOSTUNREACH)),
            (
                EventKind::RouteError | EventKind::ConnectError | EventKind::Unreachable,
                Phase::Connecting | Phase::Accepting,
            ) => Err(negative(event.status, Errno::ETIMEDOUT)),
            (EventKind::Disconnected | EventKind::DeviceRemoval, Phase::Connecting | Phase::Accepting) => {
                Err(Errno::ECONNRESET)
            }
            _ => Ok(()),
        }
    }

    /// Has the stream do what its options allow; first of all it offers the second half of its
    /// ring.
    fn begin(&mut self) {
        let no_delay = self.options.no_delay;
        if let Some((stream, qp)) = self.stream() {
            stream.no_delay = no_delay;
            stream.push(qp);
        }
    }

    /// Asks the peer.
    fn ask(&mut self) -> Result<(), Errno> {
        let mine = self.make_queue_pair()?;
        let variant = self.connected.as_ref().map(|c| variant_of(c.qp.qp().device()));
        let param = ConnParam {
            // iWARP connects with a READ.
            initiator_depth: u8::from(variant == Some(Variant::Sends)),
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        self.node.connect(&self.id, &param, &mine).map_err(of_io)?;
        if let Some(patience) = self.patience {
            self.node.give_up_at(&self.id, self.owner.now() + patience);
        }
        Ok(())
    }

    fn fail(&mut self, error: Errno) {
        if self.phase == Phase::Connected {
            return;
        }
        self.error = Some(error);
        self.phase = Phase::Failed;
        self.connected = None;
    }

    /// SO_ERROR: the error that the program was not told of.
    pub fn take_error(&mut self) -> Option<Errno> {
        let own = self.error.take();
        own.or_else(|| self.stream().and_then(|(stream, _)| stream.take_error()))
    }

    /// What poll(2) says; of a listener nothing.
    pub fn readiness(&mut self) -> Readiness {
        if let Some((stream, _)) = self.stream() {
            return stream.readiness();
        }
        match self.phase {
            Phase::Failed => Readiness {
                readable: true,
                writable: true,
                read_hup: true,
                hup: true,
                error: self.error.is_some(),
            },
            // As of a TCP socket.
            Phase::Idle | Phase::Bound => Readiness { writable: true, hup: true, ..Readiness::default() },
            _ => Readiness::default(),
        }
    }

    /// shutdown(2). A listener whose reading half ends listens no more, as of TCP.
    ///
    /// # Errors
    ///
    /// ENOTCONN.
    pub fn shutdown(&mut self, how: How) -> Result<(), Errno> {
        if self.phase == Phase::Listening {
            if how != How::Write {
                self.begin_anew();
            }
            return Ok(());
        }
        let (stream, qp) = self.stream().ok_or(Errno::ENOTCONN)?;
        stream.shutdown(how);
        stream.progress(qp);
        Ok(())
    }

    /// Whether nothing is lost when the socket goes.
    pub fn is_flushed(&mut self) -> bool {
        self.stream().is_none_or(|(stream, _)| stream.is_flushed())
    }

    fn leave(&mut self) {
        if self.phase == Phase::Connected {
            // An error says that the connection has ended.
            _ = self.node.disconnect(&self.id);
        }
        if let Some(qp) = self.node.take_qp(&self.id) {
            drop(qp);
        }
        self.node.destroy(&self.id);
        self.connected = None;
    }
}

impl<W: Env> Drop for Socket<W> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The errno of an event's status.
fn negative(status: i32, otherwise: Errno) -> Errno {
    match status {
        ..0 => Errno(status.saturating_neg()),
        _ => otherwise,
    }
}
