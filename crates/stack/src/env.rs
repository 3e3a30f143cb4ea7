//! What a node asks of the environment it lives in, and what the environment tells it.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Instant;

use cm::PortSpace;
use nic::device::IbPort;
pub use nic::qp::streams::StreamRead;
use nic::{Errno, Frames, Link, Path, Platform, Qp, Stream};
use transport::TxBatch;
use transport::op::SharedBytes;
pub use transport::rc::AckDelay;
use wire::mad::MAD_LEN;
use wire::{Address, Endpoint, Gid, LidAddress, Qpn};

/// A network interface with its addresses, as the system reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Index, the scope of link-local addresses.
    pub index: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// Hardware address; all zero for loopback.
    pub mac: [u8; 6],
    /// Link MTU in bytes.
    pub mtu: u32,
    /// Administratively up and with carrier.
    pub up: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Link speed in Mb/s, where the system knows one.
    pub speed_mbps: Option<u32>,
    /// Addresses in the order the system lists them.
    pub addresses: Vec<IpAddr>,
    /// The InfiniBand port that the interface is of, with IPoIB's addresses; `None` for every other
    /// link layer.
    pub infiniband: Option<IbLink>,
}

/// The InfiniBand port of an interface, and the name of the device that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbLink {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// The port as it is now.
    pub port: IbPort,
}

/// A name that one process of this host claims; it vanishes with the process. Names are scoped like
/// the addresses (to the network namespace).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// The upper 12 bits of the queue pair numbers and communication ids a process hands out, 1 to
    /// 0xffe.
    Block(u16),
    /// A bound port of a port space, on one address or on all.
    Port {
        /// Port space.
        space: PortSpace,
        /// The address, an unspecified one for all of its family; `None` is all of both.
        addr: Option<IpAddr>,
        /// Port, not 0.
        port: u16,
    },
    /// Like `Port`, of one of several identifiers that share the port and do not listen (yet).
    Shared {
        /// Port space.
        space: PortSpace,
        /// The address, as in `Port`.
        addr: Option<IpAddr>,
        /// Port, not 0.
        port: u16,
        /// A random number that tells the holders apart.
        holder: u32,
    },
}

impl Name {
    /// Whether the name is of an identifier bound to a port, wherever.
    pub fn is_of_port(&self, wanted: PortSpace, number: u16) -> bool {
        match *self {
            Self::Port { space, port, .. } | Self::Shared { space, port, .. } => {
                (space, port) == (wanted, number)
            }
            Self::Block(_) => false,
        }
    }
}

/// A name held; dropping it gives the name back.
pub trait Claim: Send + Sync {}

/// Why a name could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another process, or this one, holds the name.
    #[error("the name is in use")]
    InUse,
    /// The system refused for want of something; its errno.
    #[error("the system refused the name: {0}")]
    System(Errno),
}

/// A question to the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// Where to.
    pub dest: IpAddr,
    /// Scope of a link-local destination, or 0.
    pub scope: u32,
    /// From which address, where the caller has bound one.
    pub source: Option<IpAddr>,
}

/// The routing table's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address to send from.
    pub source: IpAddr,
    /// Address to send to.
    pub dest: IpAddr,
    /// Interface that bears `source` and sends: for one of this host's own addresses the interface
    /// bearing it.
    pub interface: u32,
    /// The neighbour packets go to first: the gateway, or `dest` itself.
    pub next_hop: IpAddr,
    /// `dest` is this host.
    pub local: bool,
    /// Path MTU in bytes where the route sets one, else the interface's.
    pub mtu: u32,
}

/// One received packet, BTH to ICRC, ICRC not yet checked: over UDP a payload.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender; over UDP with the port it sent from.
    pub source: Endpoint,
    /// Our address it was sent to; over UDP port 4791.
    pub dest: Endpoint,
    /// Interface (device) it belongs to.
    pub interface: u32,
    /// The datagram came by way of another process of this host (which could not use it).
    pub forwarded: bool,
    /// Whether an ACK for it may wait until [`InputHandler::release`].
    pub ack_delay: AckDelay,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// What the environment tells the node.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A packet.
    Datagram(Datagram<'a>),
    /// Packets of one sender that came together, as the system puts them together (UDP_GRO). The
    /// bytes of the datagram hold them one after the other, each of `size` bytes (1 or more) but
    /// for the last, which may be shorter.
    Datagrams {
        /// All of them.
        run: Datagram<'a>,
        /// Bytes of each but the last.
        size: usize,
    },
    /// Like `Datagrams`, from a process of this host, by no network. The last four bytes of each
    /// packet are room for an ICRC that was not filled in.
    Unsealed {
        /// All of them.
        run: Datagram<'a>,
        /// Bytes of each but the last.
        size: usize,
    },
    /// A short message from a process of this host, perhaps with an ACK, in place of their packets;
    /// the bytes are the message's.
    Short(Datagram<'a>, transport::Short),
    /// Several packets of a message from a process of this host, as one piece: the headers of one,
    /// which the datagram's bytes are, and all of their payload.
    Fragment(Datagram<'a>, SharedBytes<'a>),
    /// A whole Ethernet frame, while the node watches those of an interface
    /// ([`Frames::watch_frames`]).
    Frame {
        /// The interface.
        interface: u32,
        /// This host sent the frame, and nothing brings it back.
        outgoing: bool,
        /// From the destination's hardware address to the end of the payload, VLAN tags included.
        bytes: &'a [u8],
    },
    /// The answer to [`Env::resolve_neighbour`].
    Resolved {
        /// The caller's mark.
        ticket: u64,
        /// Whether the neighbour answers; why not, where it does not (EHOSTUNREACH; ETIMEDOUT is
        /// the node's own).
        result: Result<(), Errno>,
    },
    /// An ICMP error for a packet of ours.
    Unreachable {
        /// Where the packet went.
        dest: Address,
        /// Our address it came from.
        source: Address,
        /// The errno the system maps it to (ECONNREFUSED: no process listens on the UDP port).
        errno: Errno,
        /// The first bytes of the packet, from BTH on; may be short.
        sent: &'a [u8],
    },
    /// A management datagram of another class than the connection manager's, to QP1 of an
    /// InfiniBand port: an answer to [`Env::send_mad`].
    Mad {
        /// The port's interface.
        interface: u32,
        /// The datagram, [`MAD_LEN`] bytes.
        bytes: &'a [u8],
    },
    /// The interfaces or their addresses changed; all of them, as they are now.
    Interfaces(&'a [Interface]),
    /// A name that [`Env::watch`] watches is gone: the process ended that bore it when that call
    /// gave this number. Another process may bear it by now.
    Gone(Name, Watch),
}

/// What the environment tells of a stream.
#[derive(Debug)]
pub enum StreamInput {
    /// A listener of this node accepted it ([`Env::listen_streams`]).
    Accepted(AcceptedStream),
    /// The stream that was opened stands ([`Env::open_stream`]).
    Opened,
    /// There is room again, after the stream took less than it was given.
    Writable,
    /// The stream could not be opened; why. Nothing more is told of it.
    Lost(Errno),
}

/// A stream that a listener accepted.
#[derive(Debug)]
pub struct AcceptedStream {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
    /// The way to send on it.
    pub stream: Arc<dyn Stream>,
}

/// Which one of the processes that bear a name one after the other is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch(pub u64);

impl Watch {
    /// A process of whose end nothing is told.
    pub const NONE: Self = Self(0);
}

/// What has become of packets that were to be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOver {
    /// A process has the packets, or they are lost on their way.
    Done,
    /// Packets have to go by [`Link::send`]: no process of this host and user bears one of the
    /// names, or packets shall be seen on the wire.
    NotHere,
    /// Packets have come to a host where no process bears one of the names, and an answer would
    /// come back. The connection manager of that host is left to the sender.
    Unclaimed,
}

/// The environment around a node. No call waits (a bounded system call such as a netlink request is
/// not waiting).
pub trait Env: Link + Frames + Platform {
    /// Opens the UDP port on all addresses of an interface, now and as they change; repeated calls
    /// are harmless. EADDRINUSE where another user or the kernel's rxe owns the port.
    fn attach(&self, interface: u32) -> Result<(), Errno>;
    /// Asks the routing table. ENETUNREACH, EHOSTUNREACH and the like where no route leads there.
    fn route(&self, query: RouteQuery) -> Result<Route, Errno>;
    /// Whether the next hop of a route that was just asked for needs no finding out: it is this
    /// host, its link has no neighbours, or the system has its link-layer address.
    fn is_resolved(&self, _route: &Route) -> bool {
        false
    }
    /// Starts to find out whether the next hop of a route answers (ARP, ND). [`Input::Resolved`]
    /// follows, never from inside this call; for a neighbour already known, or a local address,
    /// at once.
    fn resolve_neighbour(&self, ticket: u64, route: &Route);
    /// The GID of the port that bears an address of IPoIB, from a port of its subnet: what a
    /// neighbour table says there in place of a hardware address (RFC 4391 §9.1.1). `None` where no
    /// port does.
    fn gid_of(&self, _interface: u32, _address: IpAddr) -> Option<Gid> {
        None
    }
    /// Sends a management datagram from QP1 of an InfiniBand port to QP1 of another. What can not
    /// be sent is lost. [`Input::Mad`] brings the answer; of its transaction id the upper half may
    /// be the environment's.
    fn send_mad(&self, _interface: u32, _to: LidAddress, _mad: &[u8; MAD_LEN]) {}
    /// Claims a name.
    fn claim(&self, name: Name) -> Result<Box<dyn Claim>, ClaimError>;
    /// The names other processes and this one hold for a port, shared ones too.
    fn port_names(&self, space: PortSpace, port: u16) -> Vec<Name>;
    /// Hands a packet to the process that bears `name`; false where no process of this user does.
    fn forward(&self, name: Name, datagram: &Datagram<'_>) -> bool;
    /// Hands packets for QP1 to the process that bears one of `names`, past any network.
    fn hand_over(&self, _names: &[Name], _path: &Path, _batch: &mut TxBatch) -> HandedOver {
        HandedOver::NotHere
    }
    /// Whether packets on this path left lately, from a port of this path. The peer's kernel may
    /// deliver packets from that port to one process directly.
    fn has_flow(&self, _path: &Path) -> bool {
        false
    }
    /// Whether [`Env::forward`] to `name` is cheap, because its owner is known from earlier.
    fn is_known(&self, name: Name) -> bool;
    /// Watches the process that bears `name`: [`Input::Gone`] follows when it ends. `None` where no
    /// process bears it.
    fn watch(&self, name: Name) -> Option<Watch>;
    /// Opens a stream from an address and port of this host, 0 for any. Its token, by which
    /// [`InputHandler::stream`] names it: [`StreamInput::Opened`] or [`StreamInput::Lost`]
    /// follows, never from inside this call.
    ///
    /// # Errors
    ///
    /// Those of connect(2), where they are known at once; EOPNOTSUPP in an environment without
    /// streams.
    fn open_stream(&self, _from: SocketAddr, _to: SocketAddr) -> Result<(u64, Arc<dyn Stream>), Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Accepts streams at an address and port, until the claim is dropped
    /// ([`StreamInput::Accepted`]). `v6_only`: an unspecified IPv6 address takes none of IPv4.
    ///
    /// # Errors
    ///
    /// EADDRINUSE where a socket has the port; those of bind(2); EOPNOTSUPP in an environment
    /// without streams.
    fn listen_streams(&self, _at: SocketAddr, _v6_only: bool) -> Result<Box<dyn Claim>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
    /// The host's random part of GUIDs: the same for all processes of this host and namespace, 40
    /// bits.
    fn host_id(&self) -> u64;
    /// The time, for calls that come from programs.
    fn now(&self) -> Instant;
}

/// Queue pairs that the last short messages by some way were for. The next ones mostly are for the
/// same, which need not be looked up then. It keeps none of them.
#[derive(Debug, Default)]
pub struct Before([Addressee; Self::MAX]);

#[derive(Debug, Default)]
struct Addressee {
    qpn: Qpn,
    interface: u32,
    qp: Weak<Qp>,
}

impl Before {
    /// Queue pairs at most, by the last bits of their numbers.
    const MAX: usize = 16;

    /// The queue pair of this number, which messages by an interface are for, if one was.
    #[inline(always)]
    pub(crate) fn qp(&self, qpn: Qpn, interface: u32) -> Option<Arc<Qp>> {
        let last = &self.0[qpn.get() as usize % Self::MAX];
        if (last.qpn, last.interface) == (qpn, interface) { last.qp.upgrade() } else { None }
    }

    /// A message by an interface was for this queue pair.
    pub(crate) fn was(&mut self, qp: &Arc<Qp>, interface: u32) {
        self.0[qp.qpn().get() as usize % Self::MAX] =
            Addressee { qpn: qp.qpn(), interface, qp: Arc::downgrade(qp) };
    }
}

/// A node, as the environment sees it.
pub trait InputHandler: Send + Sync + 'static {
    /// Takes what the environment has to tell.
    fn input(&self, now: Instant, input: Input<'_>);
    /// Takes [`Input::Short`] apart from its bytes, so that no caller puts it together for each
    /// message. `from` says where it came from and went to; `before` is of the messages that came
    /// before by the same way.
    fn short(
        &self,
        now: Instant,
        from: &Datagram<'_>,
        ack_delay: AckDelay,
        short: &transport::Short,
        bytes: &[u8],
        _before: &mut Before,
    ) {
        self.input(now, Input::Short(Datagram { ack_delay, bytes, ..*from }, *short));
    }
    /// Takes what the environment has to tell of a stream. One thread at a time tells of one
    /// stream.
    fn stream(&self, _now: Instant, _token: u64, _input: StreamInput) {}
    /// Reads a stream by which something has come, or its end. Any thread may call it.
    fn read_stream(&self, _now: Instant, _token: u64) -> StreamRead {
        StreamRead::Nothing
    }
    /// When [`InputHandler::expire`] wants to be called at the latest. It is asked after each such
    /// call; an earlier time is set by [`Platform::wake_at`].
    fn deadline(&self) -> Option<Instant>;
    /// Timers may have run out.
    fn expire(&self, now: Instant);
    /// ACKs held back leave: with `all` every one, because a thread of the program that reads
    /// packets is back for more; without those that need not wait for the program, because all
    /// was read that was there.
    fn release(&self, all: bool);
}
