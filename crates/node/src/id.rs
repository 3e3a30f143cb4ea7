//! rdma_cm identifiers: what each holds, and the calls that need no message: create, bind, resolve, migrate, query.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nic::{Device, Error, Qp, QpType};
use wire::mad::{Ece, PortSpace};
use wire::{Gid, Mtu, Psn};

use crate::Node;
use crate::af_ib::IbService;
use crate::cm_agent::{ConnKey, ListenKey, plain};
use crate::event::{ConnParam, Event, EventChannel, EventKind};
use crate::multicast::Membership;
use crate::ports::Place;
use crate::world::{Claim, Route, RouteQuery, World};

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
    /// Has a path.
    RouteResolved,
    /// Takes requests.
    Listening,
    /// Request sent.
    Connecting,
    /// A request of a peer, to be accepted or rejected.
    Requested,
    /// Accepted, the peer is not heard yet; or on the active side the reply came and the program has not established.
    Answered,
    /// Data may flow.
    Connected,
    /// Ended.
    Disconnected,
    /// Gone.
    Destroyed,
}

/// An rdma_cm identifier.
#[derive(Debug)]
pub struct Id {
    /// Port space.
    pub space: PortSpace,
    /// The type of its queue pair.
    pub kind: QpType,
    /// The owner's mark, such as the address of its C structure; 0 for a new one that came with a request.
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
    /// The queue pair that connects, where the program gave one.
    pub qp: Option<Arc<Qp>>,
    /// A type of service set by rdma_set_option.
    pub tos: Option<u8>,
    /// A local ACK timeout code set by rdma_set_option.
    pub ack_timeout: Option<u8>,
    /// Wildcard listeners of IPv6 take IPv6 only.
    pub v6_only: bool,
    /// Others may be bound to its port.
    pub reuse: bool,
    /// The service it is bound to, where that was said by an `AF_IB` address.
    pub ib: Option<IbService>,
    /// What its queue pair, which it does not own, offers to the peer's.
    pub local_ece: Ece,
    /// What the peer's offers.
    pub remote_ece: Ece,
    /// What the program wants of the path.
    pub path: Option<PathChoice>,
    /// The listener of a request that the program has not begun to serve.
    pub(crate) listener: Option<ListenKey>,
    /// What it is bound to. The port space is its own, or in RDMA_PS_IB that of its service id.
    pub(crate) place: Option<Place>,
    pub(crate) claim: Option<Claimed>,
    /// The port itself, of a listener whose port others may be bound to.
    pub(crate) listen_claim: Option<Claimed>,
    pub(crate) conn: Option<ConnKey>,
    /// What the request offered, for an accept without parameters.
    pub(crate) offered: ConnParam,
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
}

/// A claimed name (a wrapper, because a claim shows nothing).
pub(crate) struct Claimed(#[allow(dead_code, reason = "held for its drop")] pub Box<dyn Claim>);

impl std::fmt::Debug for Claimed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claimed")
    }
}

impl Id {
    pub(crate) fn new(space: PortSpace, channel: Arc<EventChannel>) -> Arc<Id> {
        let datagrams = matches!(space, PortSpace::Udp | PortSpace::Ipoib);
        Id::of_kind(space, if datagrams { QpType::Ud } else { QpType::Rc }, channel)
    }

    /// A new one for queue pairs of a type, whatever its port space.
    pub(crate) fn of_kind(space: PortSpace, kind: QpType, channel: Arc<EventChannel>) -> Arc<Id> {
        Arc::new(Id {
            space,
            kind,
            cookie: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                progress: Progress::Idle,
                channel,
                source: None,
                dest: None,
                device: None,
                route: None,
                qp: None,
                tos: None,
                ack_timeout: None,
                v6_only: false,
                reuse: false,
                ib: None,
                local_ece: Ece::default(),
                remote_ece: Ece::default(),
                path: None,
                listener: None,
                place: None,
                claim: None,
                listen_claim: None,
                conn: None,
                offered: ConnParam::default(),
                accepted: false,
                param: ConnParam::default(),
                starting_psn: None,
                groups: Vec::new(),
            }),
        })
    }

    /// What a request asks for, or is answered for.
    pub(crate) fn transport_service(&self) -> cm::TransportService {
        match self.kind {
            QpType::XrcSend | QpType::XrcRecv => cm::TransportService::Xrc,
            _ => cm::TransportService::Rc,
        }
    }

    /// What it holds. Keep the guard short, and call nothing of the node while it lives.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RDMA_PS_IPOIB is for devices with an IPoIB interface, of which there is none; the kernel says the same of RoCE.
const NO_IPOIB: Error = Error::Invalid("no device here has an IPoIB interface");

impl Inner {
    /// The key of its listener, where it is one.
    pub(crate) fn listens_at(&self) -> Option<ListenKey> {
        let (place, source) = self.place.zip(self.source)?;
        Some((place.space, everywhere(source.ip()), source.port()))
    }

    /// What a name for its port depends on: `v6_only` and `reuse`, where it is not bound yet.
    pub(crate) fn bindable(&self) -> Result<(bool, bool), Error> {
        match self.progress {
            Progress::Idle => Ok((self.v6_only, self.reuse)),
            _ => Err(WRONG_STATE),
        }
    }
}

/// The call does not fit the identifier's state.
pub(crate) const WRONG_STATE: Error = Error::Invalid("the identifier's state does not allow the call");

impl<W: World> Node<W> {
    /// A new identifier whose events go to `channel`.
    pub fn create_id(&self, channel: &Arc<EventChannel>, space: PortSpace) -> Arc<Id> {
        let id = Id::new(space, channel.clone());
        self.cm_agent.everyone.add(&id);
        id
    }

    /// The same for RDMA_PS_IB, which has queue pairs of any type.
    pub fn create_id_for(&self, channel: &Arc<EventChannel>, space: PortSpace, kind: QpType) -> Arc<Id> {
        let id = match space {
            PortSpace::Ib => Id::of_kind(space, kind, channel.clone()),
            _ => Id::new(space, channel.clone()),
        };
        self.cm_agent.everyone.add(&id);
        id
    }

    /// `rdma_bind_addr`: takes an address and a port (0: any free one). A loopback address is shown as it is, and otherwise stands for
    /// all of its family (the kernel's cma_any_addr). EADDRNOTAVAIL where no device bears the address, or where the port is taken and
    /// either is for all addresses; EADDRINUSE where the same address has the port; EINVAL for a link-local address that does not
    /// say on which link, and for any in RDMA_PS_IPOIB but the wildcards.
    pub fn bind(&self, id: &Arc<Id>, address: SocketAddr) -> Result<(), Error> {
        let (v6_only, reuse) = id.lock().bindable()?;
        let (ip, device) = match normal(address.ip()) {
            ip if everywhere(ip).is_unspecified() => (ip, None),
            _ if id.space == PortSpace::Ipoib => return Err(NO_IPOIB),
            _ => self.own_address(&address).map(|(ip, device)| (ip, Some(device)))?,
        };
        let listens = everywhere(ip);
        let both_families = listens.is_unspecified() && ip.is_ipv6() && !v6_only;
        let addr = (!both_families).then_some(listens);
        let place = Place { space: id.space, addr, reuse };
        let (port, claim) = self.claim_port(place, address.port())?;
        let mut bound = address;
        bound.set_ip(ip);
        bound.set_port(port);
        let mut inner = id.lock();
        if inner.bindable() != Ok((v6_only, reuse)) {
            // Another thread was faster; the claim is given back when the lock is free.
            return Err(WRONG_STATE);
        }
        inner.place = Some(place);
        inner.claim = Some(Claimed(claim));
        inner.source = Some(bound);
        inner.device = device;
        inner.progress = Progress::Bound;
        Ok(())
    }

    /// An address of ours, and the device that bears it. EADDRNOTAVAIL, or EINVAL for a link-local address without its interface.
    fn own_address(&self, address: &SocketAddr) -> Result<(IpAddr, Arc<Device>), Error> {
        let (ip, scope) = (normal(address.ip()), scope_of(address));
        if is_link_local(ip) && scope == 0 {
            return Err(Error::Invalid("a link-local address needs its interface (sin6_scope_id)"));
        }
        let device = self.device_bearing(ip, scope).ok_or(Error::System(libc_errno::EADDRNOTAVAIL))?;
        Ok((ip, device))
    }

    /// The device whose interface bears an address; any other loopback address belongs to the loopback interface.
    fn device_bearing(&self, ip: IpAddr, scope: u32) -> Option<Arc<Device>> {
        let fits = |d: &Arc<Device>| {
            (scope == 0 || d.config.interface == scope) && d.port().gids.index_of(ip).is_some()
        };
        self.devices().into_iter().find(fits)
    }

    /// `rdma_resolve_addr`: finds device and route to `dest`; AddrResolved or AddrError follows. ENETUNREACH at once where
    /// there is no route.
    pub fn resolve_addr(
        &self,
        id: &Arc<Id>,
        source: Option<SocketAddr>,
        dest: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let (start, ib) = {
            let inner = id.lock();
            (inner.progress, inner.ib)
        };
        if !matches!(start, Progress::Idle | Progress::Bound) || ib.is_some() {
            return Err(WRONG_STATE);
        }
        let group = normal(dest.ip()).is_multicast();
        if dest.ip().is_unspecified() || (group && !id.is_datagram()) {
            return Err(Error::Invalid("the destination is no unicast address"));
        }
        let mut wanted = None;
        if let (Progress::Idle, Some(source)) = (start, source) {
            if source.port() != 0 {
                self.bind(id, source)?;
            } else if group || !everywhere(source.ip()).is_unspecified() {
                // Whoever connects needs no name for a port: nobody asks for it.
                wanted = Some(normal(source.ip())).filter(|ip| !ip.is_unspecified());
                wanted.map(|_| self.own_address(&source)).transpose()?;
            }
        }
        // A loopback address says no more than a wildcard, but to which interface's members a group's packets go.
        let says = |ip: &IpAddr| !if group { *ip } else { everywhere(*ip) }.is_unspecified();
        let bound = id.lock().source.map(|s| s.ip()).filter(says).or(wanted);
        let mut dest = dest;
        dest.set_ip(normal(dest.ip()));
        let query = RouteQuery { dest: dest.ip(), scope: scope_of(&dest), source: bound };
        let route = match bound.filter(|_| group) {
            Some(source) => self.group_route(source, &dest)?,
            None => self.world.route(query).map_err(Error::System)?,
        };
        let device = self.device_of_route(&route);
        let ephemeral = self.ephemeral();
        {
            let mut inner = id.lock();
            if !matches!(inner.progress, Progress::Idle | Progress::Bound) {
                return Err(WRONG_STATE);
            }
            let port = inner.source.map_or(ephemeral, |s| s.port());
            inner.source = Some(with_scope(route.source, port, route.interface));
            inner.dest = Some(with_scope(route.dest, dest.port(), route.interface));
            inner.route = Some(route);
            inner.device = device.clone();
            inner.progress = Progress::AddressQuery;
        }
        match device {
            None => self.finish_resolve(id, Err(libc_errno::ENODEV)),
            Some(_) if id.space == PortSpace::Ipoib => self.finish_resolve(id, Err(NO_IPOIB.errno())),
            Some(device) => {
                if let Err(e) = self.attach(&device) {
                    let mut inner = id.lock();
                    inner.progress = start;
                    inner.device = None;
                    return Err(e);
                }
                if group {
                    // There is no neighbour to wait for: a group's hardware address follows from its own.
                    self.finish_resolve(id, Ok(()));
                    return Ok(());
                }
                let ticket = self.cm_agent.start_resolving(id, self.world.now() + timeout);
                self.world.wake_at(self.world.now() + timeout);
                self.world.reach(ticket, &route);
            }
        }
        Ok(())
    }

    /// Which of our addresses leads to a destination; `None` for a multicast group, without a route, and where no device bears the
    /// address.
    pub fn source_for(&self, dest: &SocketAddr) -> Option<SocketAddr> {
        let ip = normal(dest.ip());
        if ip.is_multicast() || ip.is_ipv4() != dest.is_ipv4() {
            return None;
        }
        let route = self.world.route(RouteQuery { dest: ip, scope: scope_of(dest), source: None }).ok()?;
        self.device_of_route(&route)?;
        Some(with_scope(route.source, 0, route.interface))
    }

    /// The route from an address to a multicast group: by the interface that bears it, whatever the routing table says
    /// (rdma_join_multicast(3)).
    fn group_route(&self, source: IpAddr, dest: &SocketAddr) -> Result<Route, Error> {
        if source.is_ipv4() != dest.is_ipv4() {
            return Err(Error::Invalid("the group is of another address family than the source"));
        }
        let device = self.device_bearing(source, scope_of(dest));
        let interface = device.ok_or(Error::System(libc_errno::EADDRNOTAVAIL))?.config.interface;
        let dest = dest.ip();
        // The device's own MTU bounds it.
        Ok(Route { source, dest, interface, next_hop: dest, local: false, mtu: u32::MAX })
    }

    /// Address resolution ended: the event says how.
    pub(crate) fn finish_resolve(&self, id: &Arc<Id>, result: Result<(), i32>) {
        {
            let mut inner = id.lock();
            if inner.progress != Progress::AddressQuery {
                return;
            }
            inner.progress = match result {
                Ok(()) => Progress::AddressResolved,
                Err(_) => {
                    inner.device = None;
                    if inner.claim.is_some() { Progress::Bound } else { Progress::Idle }
                }
            };
        }
        match result {
            Ok(()) => self.tell(id, EventKind::AddrResolved, 0),
            Err(errno) => self.tell(id, EventKind::AddrError, -errno),
        }
    }

    /// `rdma_resolve_route`: on RoCE the route follows from the address; RouteResolved comes at once.
    pub fn resolve_route(&self, id: &Arc<Id>) -> Result<(), Error> {
        self.take_route(id, None)
    }

    fn take_route(&self, id: &Arc<Id>, path: Option<PathChoice>) -> Result<(), Error> {
        {
            let mut inner = id.lock();
            if inner.progress != Progress::AddressResolved {
                return Err(WRONG_STATE);
            }
            inner.path = path;
            inner.progress = Progress::RouteResolved;
        }
        self.tell(id, EventKind::RouteResolved, 0);
        Ok(())
    }

    /// `rdma_set_option`, RDMA_OPTION_IB_PATH: instead of resolving the route the program gives it; RouteResolved comes at once. EINVAL
    /// unless the address is resolved and the path leads from the one to the other.
    pub fn choose_path(&self, id: &Arc<Id>, ends: (Gid, Gid), path: PathChoice) -> Result<(), Error> {
        if self.gids(id) != Some(ends) {
            return Err(Error::Invalid("the path is between other addresses than the identifier's"));
        }
        self.take_route(id, Some(path))
    }

    /// `rdma_set_option`, RDMA_OPTION_ID_REUSEADDR. EINVAL once it listens, EADDRNOTAVAIL (or EADDRINUSE) where it shares its port already and shall not.
    pub fn set_reuse(&self, id: &Id, reuse: bool) -> Result<(), Error> {
        let (before, port, own_name) = {
            let mut inner = id.lock();
            if inner.progress == Progress::Listening {
                return Err(WRONG_STATE);
            }
            match (inner.place, inner.source) {
                (Some(place), Some(source)) if place.reuse != reuse => {
                    (place, source.port(), inner.claim.take())
                }
                _ => {
                    inner.reuse = reuse;
                    return Ok(());
                }
            }
        };
        // It would stand in the way of the other.
        drop(own_name);
        let wanted = Place { reuse, ..before };
        let (place, claim, result) = match self.claim_port(wanted, port) {
            Ok((_, claim)) => (wanted, Some(claim), Ok(())),
            Err(e) => (before, self.claim_port(before, port).ok().map(|(_, claim)| claim), Err(e)),
        };
        let mut inner = id.lock();
        if inner.progress == Progress::Destroyed {
            return Err(WRONG_STATE);
        }
        (inner.place, inner.reuse) = (Some(place), place.reuse);
        inner.claim = claim.map(Claimed);
        result
    }

    /// `rdma_set_option`, RDMA_OPTION_ID_AFONLY. EINVAL once it is more than bound.
    pub fn set_v6_only(&self, id: &Id, v6_only: bool) -> Result<(), Error> {
        let mut inner = id.lock();
        match inner.progress {
            Progress::Idle | Progress::Bound => inner.v6_only = v6_only,
            _ => return Err(WRONG_STATE),
        }
        Ok(())
    }

    /// `rdma_write_cm_event`, and the outcome of `rdma_resolve_addrinfo`: an event that the program causes itself.
    pub fn write_event(&self, id: &Arc<Id>, kind: EventKind, status: i32, arg: u64) {
        let channel = id.lock().channel.clone();
        channel.push(Event { arg, ..plain(id, kind, status) });
    }

    /// `rdma_migrate_id`: later events go to `channel`, and those that wait move there.
    pub fn migrate(&self, id: &Arc<Id>, channel: &Arc<EventChannel>) {
        let old = std::mem::replace(&mut id.lock().channel, channel.clone());
        for event in old.take_back(|e| Arc::ptr_eq(&e.id, id)) {
            channel.push(event);
        }
    }

    /// The GIDs of both ends, where the identifier has them.
    pub fn gids(&self, id: &Id) -> Option<(Gid, Gid)> {
        let inner = id.lock();
        Some((inner.source?.ip().into(), inner.dest?.ip().into()))
    }
}

/// An IPv4-mapped IPv6 address is the IPv4 address.
pub(crate) fn normal(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// A loopback address counts as the wildcard of its family, any other as itself.
pub(crate) fn everywhere(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_loopback() => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(v6) if v6.is_loopback() => Ipv6Addr::UNSPECIFIED.into(),
        _ => ip,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn scope_of(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

/// A socket address; link-local ones carry their interface.
pub(crate) fn with_scope(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(v6, port, 0, interface).into()
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// The errno values that rdma_cm's manual pages name, as on Linux.
#[allow(missing_docs)]
pub mod libc_errno {
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const ENOMEM: i32 = 12;
    pub const EPROTONOSUPPORT: i32 = 93;
    pub const EOPNOTSUPP: i32 = 95;
    pub const EADDRINUSE: i32 = 98;
    pub const EADDRNOTAVAIL: i32 = 99;
    pub const EISCONN: i32 = 106;
    pub const ETIMEDOUT: i32 = 110;
    pub const ECONNREFUSED: i32 = 111;
    pub const EHOSTUNREACH: i32 = 113;
}
