//! rdma_cm identifiers: what each holds, and the calls that change nothing else: create, migrate,
//! write an event.
//!
//! How far an identifier comes ([`Progress`]). To the left one that connects, to the right one that
//! listens, and one that a request makes:
//!
//! ```text
//!      create_id
//!          v      bind, listen                listen
//!        Idle ---------------------> Bound ------------> Listening
//!         | ^                         | ^
//!         | |      resolve_addr       | |
//!         v |                         v |
//!        AddressQuery: AddrError leads back to where it began
//!          | AddrResolved
//!          v
//!     AddressResolved                               a request: ConnectRequest
//!          | resolve_route (RouteQuery), choose_path           v
//!          v                                               Requested
//!     RouteResolved                                            |
//!          | connect                                           | accept
//!          v                                                   v
//!     Connecting --- REP, without a queue pair ------------> Answered
//!          | REP, with a queue pair of its own; SIDR_REP       | RTU, or data came;
//!          v                                                   | establish, finish_connect
//!      Connected <---------------------------------------------+
//!
//!  Connecting, Requested, Answered, Connected
//!          --- Rejected, Unreachable, Disconnected, ConnectError; reject ---> Disconnected
//!
//!  any --- destroy ---> Destroyed
//! ```
//!
//! `accept` leads a datagram service's request to Connected at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cm::{Ece, PortSpace, Service};
use locks::{Mutex, MutexGuard, Rank};
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Device, Error, Qp, QpType};
use wire::{Gid, Mtu, Pkey, Psn};

use crate::Node;
use crate::address::everywhere;
use crate::af_ib::IbService;
use crate::cm_agent::{ConnKey, ListenKey, plain};
use crate::devices;
use crate::env::{Claim, Env, Route, Watch};
use crate::event::{Event, EventChannel};
use crate::multicast::Membership;
use crate::ports::Place;

/// How far an identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// New.
    Idle,
    /// Has a local address.
    Bound,
    /// Address resolution is under way.
    AddressQuery,
    /// Has a device and a peer address.
    AddressResolved,
    /// The administration of the subnet is asked for a path.
    RouteQuery,
    /// Has a path.
    RouteResolved,
    /// Takes requests.
    Listening,
    /// Request sent.
    Connecting,
    /// A request of a peer, to be accepted or rejected.
    Requested,
    /// Accepted, the peer is not heard yet; or on the active side the reply came and the program
    /// has not established.
    Answered,
    /// Data may flow.
    Connected,
    /// Ended.
    Disconnected,
    /// Gone.
    Destroyed,
}

impl Progress {
    /// Whether an identifier that has come so far has had a route.
    pub fn has_route(self) -> bool {
        !matches!(
            self,
            Self::Idle
                | Self::Bound
                | Self::AddressQuery
                | Self::AddressResolved
                | Self::RouteQuery
                | Self::Listening
        )
    }

    /// The words by which an error message says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Bound => "bound",
            Self::AddressQuery => "resolving an address",
            Self::AddressResolved => "address resolved",
            Self::RouteQuery => "resolving a route",
            Self::RouteResolved => "route resolved",
            Self::Listening => "listening",
            Self::Connecting => "connecting",
            Self::Requested => "requested",
            Self::Answered => "answered",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Destroyed => "destroyed",
        }
    }

    /// What a call says that is not possible so far.
    pub(crate) fn refuses(self) -> Error {
        Error::name("the identifier's state does not allow the call", self.name())
    }
}

/// An rdma_cm identifier.
#[derive(Debug)]
pub struct Id {
    /// Port space.
    pub space: PortSpace,
    /// The type of its queue pair.
    pub kind: QpType,
    /// The owner's mark, such as the address of its C structure; 0 for a new one that came with a
    /// request.
    pub cookie: AtomicU64,
    inner: Mutex<Inner>,
}

/// What an identifier holds; readable by its owner.
#[derive(Debug)]
pub struct Inner {
    /// How far it has come.
    pub progress: Progress,
    /// Where its events go.
    pub channel: Arc<EventChannel>,
    /// Local address and port.
    pub source: Option<SocketAddr>,
    /// The peer's.
    pub dest: Option<SocketAddr>,
    /// Device.
    pub device: Option<Arc<Device>>,
    /// Route to the peer.
    pub route: Option<Route>,
    /// The GIDs of both ends, ours first, where these are not the addresses: on InfiniBand.
    pub gids: Option<(Gid, Gid)>,
    /// The path that the administration of the subnet gave, or that a request came by: on
    /// InfiniBand.
    pub record: Option<cm::PathRecord>,
    /// The queue pair that connects, where the program gave one.
    pub qp: Option<Arc<Qp>>,
    /// A type of service set by rdma_set_option.
    pub tos: Option<u8>,
    /// A local ACK timeout code set by rdma_set_option.
    pub ack_timeout: Option<u8>,
    /// What peers may do beside what the kernel grants (bits of `enum ibv_access_flags`).
    pub more_access: u32,
    /// Code of the timer in RNR NAKs sent, 0 to 31, in place of the connection manager's 0 (655.36
    /// ms).
    pub min_rnr_timer: Option<u8>,
    /// Wildcard listeners of IPv6 take IPv6 only.
    pub v6_only: bool,
    /// Others may be bound to its port.
    pub reuse: bool,
    /// The service it is bound to, where that was said by an `AF_IB` address.
    pub ib: Option<IbService>,
    /// The service of its peer, where the destination is an `AF_IB` address.
    pub ib_dest: Option<IbService>,
    /// What the identifier's queue pair, which it does not own, offers to the peer's.
    pub local_ece: Ece,
    /// What the peer's offers.
    pub remote_ece: Ece,
    /// What the program wants of the path.
    pub path: Option<PathChoice>,
    /// The listener of a request that the program has not begun to serve.
    pub(crate) listener: Option<ListenKey>,
    /// What the identifier is bound to. The port space is its own, or in RDMA_PS_IB that of its
    /// service id.
    pub(crate) place: Option<Place>,
    pub(crate) claim: Option<Claimed>,
    /// The port itself, of a listener whose port others may be bound to.
    pub(crate) listen_claim: Option<Claimed>,
    /// A listener's TCP port, where an iWARP device gets its requests.
    pub(crate) stream_claim: Option<Claimed>,
    pub(crate) conn: Option<ConnKey>,
    /// The process at its other end; none before that is known.
    pub(crate) watch: Option<Watch>,
    /// What the request offered, for an accept without parameters.
    pub offered: ConnParam,
    /// The program has accepted it.
    pub(crate) accepted: bool,
    /// What connect or accept asked for.
    pub(crate) param: ConnParam,
    /// The first PSN that an acceptance will ask for, where a program has been told it before.
    pub(crate) starting_psn: Option<Psn>,
    /// Multicast groups it belongs to.
    pub(crate) groups: Vec<Membership>,
}

/// What a program wants of a path (rdma_set_option(3), RDMA_OPTION_IB_PATH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// Largest payload, where it is below the link's.
    pub mtu: Mtu,
    /// Traffic class: the IP header's.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit; 0: the usual one.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Code of the packet life time, 4.096 us * 2^code.
    pub packet_life_time: u8,
    /// LIDs of both ends, ours first; those of RoCE mean nothing.
    pub lids: [u16; 2],
    /// Static rate, 6 bits; 0 is the port's own. RoCE has none.
    pub packet_rate: u8,
    /// Partition; RoCE has one.
    pub pkey: Pkey,
}

/// A claimed name (a wrapper, because a claim shows nothing).
pub(crate) struct Claimed(#[allow(dead_code, reason = "held for its drop")] pub Box<dyn Claim>);

impl std::fmt::Debug for Claimed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claimed")
    }
}

impl Id {
    pub(crate) fn new(space: PortSpace, channel: Arc<EventChannel>) -> Arc<Self> {
        let datagrams = matches!(space, PortSpace::Udp | PortSpace::Ipoib);
        Self::of_kind(space, if datagrams { QpType::Ud } else { QpType::Rc }, channel)
    }

    /// A new one for queue pairs of a type, whatever its port space.
    pub(crate) fn of_kind(space: PortSpace, kind: QpType, channel: Arc<EventChannel>) -> Arc<Self> {
        Arc::new(Self {
            space,
            kind,
            cookie: AtomicU64::new(0),
            inner: Mutex::new(
                Rank::Identifier,
                Inner {
                    progress: Progress::Idle,
                    channel,
                    source: None,
                    dest: None,
                    device: None,
                    route: None,
                    gids: None,
                    record: None,
                    qp: None,
                    tos: None,
                    ack_timeout: None,
                    more_access: 0,
                    min_rnr_timer: None,
                    v6_only: false,
                    reuse: false,
                    ib: None,
                    ib_dest: None,
                    local_ece: Ece::default(),
                    remote_ece: Ece::default(),
                    path: None,
                    listener: None,
                    place: None,
                    claim: None,
                    listen_claim: None,
                    stream_claim: None,
                    conn: None,
                    watch: None,
                    offered: ConnParam::default(),
                    accepted: false,
                    param: ConnParam::default(),
                    starting_psn: None,
                    groups: Vec::new(),
                },
            ),
        })
    }

    /// What a request asks for, or is answered for.
    pub(crate) fn transport_service(&self) -> cm::TransportService {
        match self.kind {
            QpType::XrcSend | QpType::XrcRecv => cm::TransportService::Xrc,
            QpType::Uc => cm::TransportService::Uc,
            _ => cm::TransportService::Rc,
        }
    }

    /// Room for private data in the messages of its device's protocol; of any protocol where it has
    /// no device yet.
    pub(crate) fn private_data(&self) -> cm::PrivateData {
        let transport = self.lock().device.as_ref().map(|device| device.config.transport);
        transport.map_or(cm::PrivateData::MAX, |transport| devices::protocol_of(transport).private_data())
    }

    /// What the identifier holds. Keep the guard short, and call nothing of the node while it
    /// lives.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

/// RDMA_PS_IPOIB is for devices with an IPoIB interface, which RoCE has not; the kernel says the
/// same.
pub(crate) const NO_IPOIB: Error = Error::Invalid("the device has no IPoIB interface");

/// The options of an identifier that a name for its port depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BindOptions {
    /// RDMA_OPTION_ID_AFONLY: an IPv6 wildcard does not stand for IPv4, too.
    pub v6_only: bool,
    /// RDMA_OPTION_ID_REUSEADDR: other identifiers may have the port.
    pub reuse: bool,
}

impl Inner {
    /// The key of its listener, where it is one.
    pub(crate) fn listens_at(&self) -> Option<ListenKey> {
        let (place, source) = self.place.zip(self.source)?;
        Some((place.space, everywhere(source.ip()), source.port()))
    }

    /// The service that it asks its peer for.
    pub(crate) fn wanted_service(&self, own: PortSpace, port: u16) -> Service {
        let space = self.ib_dest.and_then(|service| service.space_for(own)).unwrap_or(own);
        Service { space, port }
    }

    /// What a name for its port depends on, where it is not bound yet.
    pub(crate) fn bindable(&self) -> Result<BindOptions, Error> {
        match self.progress {
            Progress::Idle => Ok(BindOptions { v6_only: self.v6_only, reuse: self.reuse }),
            progress => Err(progress.refuses()),
        }
    }
}

/// The connection, or the device that it went by, is gone.
pub(crate) const NOT_CONNECTED: Error = Error::Invalid("the identifier's connection is gone");

impl<W: Env> Node<W> {
    /// A new identifier whose events go to `channel`.
    pub fn create_id(&self, channel: &Arc<EventChannel>, space: PortSpace) -> Arc<Id> {
        let id = Id::new(space, channel.clone());
        self.cm_agent.everyone.add(&id);
        id
    }

    /// Like [`Node::create_id`], for RDMA_PS_IB, which has queue pairs of any type.
    pub fn create_id_for(&self, channel: &Arc<EventChannel>, space: PortSpace, kind: QpType) -> Arc<Id> {
        let id = match space {
            PortSpace::Ib => Id::of_kind(space, kind, channel.clone()),
            _ => Id::new(space, channel.clone()),
        };
        self.cm_agent.everyone.add(&id);
        id
    }

    /// `rdma_write_cm_event`, and the outcome of `rdma_resolve_addrinfo`: an event that the program
    /// causes itself.
    pub fn write_event(&self, id: &Arc<Id>, kind: EventKind, status: i32, arg: u64) {
        let channel = id.lock().channel.clone();
        channel.push(Event { arg, ..plain(id, kind, status) });
    }

    /// `rdma_migrate_id`: later events go to `channel`, and those that wait move there.
    pub fn migrate(&self, id: &Arc<Id>, channel: &Arc<EventChannel>) {
        // A thread that has an event for it has looked where to put it under this lock.
        let _core = self.cm_agent.lock();
        let old = std::mem::replace(&mut id.lock().channel, channel.clone());
        for event in old.take_back(|e| Arc::ptr_eq(&e.id, id)) {
            channel.push(event);
        }
    }
}
