//! rdma_cm identifiers: what each holds, and the calls that need no message: create, bind, resolve, migrate, query.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nic::{Device, Error, Qp};
use wire::mad::PortSpace;
use wire::{Gid, Psn};

use crate::Node;
use crate::event::{ConnParam, EventChannel, EventKind};
use crate::manager::{ConnKey, ListenKey};
use crate::multicast::Membership;
use crate::world::{Claim, ClaimError, Name, Route, RouteQuery, World};

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
    /// The listener of a request that the program has not begun to serve.
    pub(crate) listener: Option<ListenKey>,
    pub(crate) name: Option<Name>,
    pub(crate) claim: Option<Claimed>,
    pub(crate) conn: Option<ConnKey>,
    /// What the request offered, for an accept without parameters.
    pub(crate) offered: ConnParam,
    /// What connect or accept asked for.
    pub(crate) param: ConnParam,
    /// The first PSN that an acceptance will ask for, where a program has been told it before.
    pub(crate) starting_psn: Option<Psn>,
    /// Multicast groups it belongs to.
    pub(crate) groups: Vec<Membership>,
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
        Arc::new(Id {
            space,
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
                listener: None,
                name: None,
                claim: None,
                conn: None,
                offered: ConnParam::default(),
                param: ConnParam::default(),
                starting_psn: None,
                groups: Vec::new(),
            }),
        })
    }

    /// What it holds. Keep the guard short, and call nothing of the node while it lives.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The call does not fit the identifier's state.
pub(crate) const WRONG_STATE: Error = Error::Invalid("the identifier's state does not allow the call");

/// Ephemeral ports: the range of RFC 6335 §6.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;
/// Tries to find a free ephemeral port.
const PORT_TRIES: usize = 128;

impl<W: World> Node<W> {
    /// A new identifier whose events go to `channel`.
    pub fn create_id(&self, channel: &Arc<EventChannel>, space: PortSpace) -> Arc<Id> {
        let id = Id::new(space, channel.clone());
        self.manager.everyone.add(&id);
        id
    }

    /// `rdma_bind_addr`: takes an address and a port (0: any free one). EADDRNOTAVAIL where no device bears the address,
    /// EADDRINUSE where the port is taken.
    pub fn bind(&self, id: &Arc<Id>, address: SocketAddr) -> Result<(), Error> {
        let mut inner = id.lock();
        if inner.progress != Progress::Idle {
            return Err(WRONG_STATE);
        }
        let ip = normal(address.ip());
        let device = match ip.is_unspecified() {
            true => None,
            false => {
                let scope = scope_of(&address);
                Some(self.device_bearing(ip, scope).ok_or(Error::System(libc_errno::EADDRNOTAVAIL))?)
            }
        };
        let host = (!ip.is_unspecified()).then_some(ip);
        let (port, claim) = self.claim_port(id.space, host, address.port())?;
        let mut bound = address;
        bound.set_ip(ip);
        bound.set_port(port);
        inner.name = Some(Name::Port { space: id.space, addr: host, port });
        inner.claim = Some(Claimed(claim));
        inner.source = Some(bound);
        inner.device = device;
        inner.progress = Progress::Bound;
        Ok(())
    }

    fn claim_port(
        &self,
        space: PortSpace,
        addr: Option<IpAddr>,
        port: u16,
    ) -> Result<(u16, Box<dyn Claim>), Error> {
        if port != 0 {
            return Ok((port, self.claim_one(space, addr, port)?));
        }
        for _ in 0..PORT_TRIES {
            let port = self.ephemeral();
            match self.claim_one(space, addr, port) {
                Err(Error::System(libc_errno::EADDRINUSE)) => {}
                other => return Ok((port, other?)),
            }
        }
        Err(Error::System(libc_errno::EADDRNOTAVAIL))
    }

    /// Wildcard and specific names do not exclude each other by themselves: claim, then look for the other kind, then
    /// back off.
    fn claim_one(&self, space: PortSpace, addr: Option<IpAddr>, port: u16) -> Result<Box<dyn Claim>, Error> {
        let mine = Name::Port { space, addr, port };
        let claim = self.world.claim(mine).map_err(|e| match e {
            ClaimError::InUse => Error::System(libc_errno::EADDRINUSE),
            ClaimError::System(errno) => Error::System(errno),
        })?;
        let conflict = self.world.port_names(space, port).into_iter().any(|n| match n {
            Name::Port { addr: other, .. } => n != mine && (addr.is_none() || other.is_none()),
            Name::Block(_) => false,
        });
        if conflict { Err(Error::System(libc_errno::EADDRINUSE)) } else { Ok(claim) }
    }

    fn ephemeral(&self) -> u16 {
        let mut bytes = [0; 2];
        self.world.fill_random(&mut bytes);
        let span = u32::from(*EPHEMERAL.end() - *EPHEMERAL.start()) + 1;
        EPHEMERAL.start() + (u32::from(u16::from_ne_bytes(bytes)) % span) as u16
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
        let start = id.lock().progress;
        if !matches!(start, Progress::Idle | Progress::Bound) {
            return Err(WRONG_STATE);
        }
        let group = normal(dest.ip()).is_multicast();
        if dest.ip().is_unspecified() || (group && !id.is_datagram()) {
            return Err(Error::Invalid("the destination is no unicast address"));
        }
        if let (Progress::Idle, Some(source)) = (start, source)
            && (!source.ip().is_unspecified() || source.port() != 0)
        {
            self.bind(id, source)?;
        }
        let bound = id.lock().source.map(|s| s.ip()).filter(|ip| !ip.is_unspecified());
        let mut dest = dest;
        dest.set_ip(normal(dest.ip()));
        let query = RouteQuery { dest: dest.ip(), scope: scope_of(&dest), source: bound };
        let route = match bound.filter(|_| group) {
            Some(source) => self.group_route(source, &dest)?,
            None => self.world.route(query).map_err(Error::System)?,
        };
        let device = self.device_on(route.interface);
        {
            let mut inner = id.lock();
            if !matches!(inner.progress, Progress::Idle | Progress::Bound) {
                return Err(WRONG_STATE);
            }
            let port = inner.source.map_or_else(|| self.ephemeral(), |s| s.port());
            inner.source = Some(with_scope(route.source, port, route.interface));
            inner.dest = Some(with_scope(route.dest, dest.port(), route.interface));
            inner.route = Some(route);
            inner.device = device.clone();
            inner.progress = Progress::AddressQuery;
        }
        match device {
            None => self.finish_resolve(id, Err(libc_errno::ENODEV)),
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
                let ticket = self.manager.start_resolving(id, self.world.now() + timeout);
                self.world.wake_at(self.world.now() + timeout);
                self.world.reach(ticket, &route);
            }
        }
        Ok(())
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
        {
            let mut inner = id.lock();
            if inner.progress != Progress::AddressResolved {
                return Err(WRONG_STATE);
            }
            inner.progress = Progress::RouteResolved;
        }
        self.tell(id, EventKind::RouteResolved, 0);
        Ok(())
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
    pub const EOPNOTSUPP: i32 = 95;
    pub const EADDRINUSE: i32 = 98;
    pub const EADDRNOTAVAIL: i32 = 99;
    pub const ETIMEDOUT: i32 = 110;
    pub const ECONNREFUSED: i32 = 111;
    pub const EHOSTUNREACH: i32 = 113;
}
