//! Resolving: the way to a destination, from an address of ours (rdma_resolve_addr(3),
//! rdma_resolve_route(3)).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cm::PortSpace;
use nic::Transport;
use nic::rdma_cm::EventKind;
use wire::Gid;

use crate::address::{everywhere, normal, scope_of, with_scope};
use crate::cm_agent::CmAgent;
use crate::datagram::has_ipoib;
use crate::env::{Env, Route, RouteQuery};
use crate::ib_groups::mgid;
use crate::id::{Id, NO_IPOIB, PathChoice, Progress};
use crate::multicast::Group;
use crate::{Errno, Error, Node};

impl<W: Env> Node<W> {
    /// `rdma_resolve_addr`: finds device and route to `dest`; AddrResolved or AddrError follows.
    /// ENETUNREACH at once where there is no route.
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
            return Err(start.refuses());
        }
        let group = normal(dest.ip()).is_multicast();
        if dest.ip().is_unspecified() || (group && !id.is_datagram()) {
            return Err(Error::address("the destination is no unicast address", dest.ip()));
        }
        let wanted = match (start, source) {
            (Progress::Idle, Some(source)) => self.bind_source(id, source, group)?,
            _ => None,
        };
        let route = self.route_to(id, wanted, dest)?;
        let device = self.device_of_route(&route);
        let ephemeral = self.ephemeral();
        {
            let mut inner = id.lock();
            if !matches!(inner.progress, Progress::Idle | Progress::Bound) {
                return Err(inner.progress.refuses());
            }
            let port = inner.source.map_or(ephemeral, |s| s.port());
            inner.source = Some(with_scope(route.source, port, route.interface));
            inner.dest = Some(with_scope(route.dest, dest.port(), route.interface));
            inner.route = Some(route);
            inner.device = device.clone();
            inner.progress = Progress::AddressQuery;
        }
        match device {
            None => self.finish_resolve(id, Err(Errno::ENODEV)),
            Some(device) if id.space == PortSpace::Ipoib && !has_ipoib(&device) => {
                self.finish_resolve(id, Err(NO_IPOIB.errno()));
            }
            Some(device) => {
                if let Err(e) = self.attach(&device) {
                    let mut inner = id.lock();
                    inner.progress = start;
                    inner.device = None;
                    return Err(e);
                }
                self.resolve_neighbour(id, &route, timeout);
            }
        }
        Ok(())
    }

    /// Binds an identifier to the source that its program names, where that has a port. Without one
    /// returns the address that the route is to begin at, `None` where any will do.
    fn bind_source(&self, id: &Arc<Id>, source: SocketAddr, group: bool) -> Result<Option<IpAddr>, Error> {
        if source.port() != 0 {
            self.bind(id, source)?;
            return Ok(None);
        }
        let ip = normal(source.ip());
        if ip.is_unspecified() || (!group && everywhere(source.ip()).is_unspecified()) {
            return Ok(None);
        }
        // An identifier that connects needs no name for a port: no peer asks for it.
        self.own_address(&source)?;
        Ok(Some(ip))
    }

    /// The route to a destination, from the address that the identifier is bound to, else from
    /// `wanted`, else from any.
    fn route_to(&self, id: &Id, wanted: Option<IpAddr>, mut dest: SocketAddr) -> Result<Route, Error> {
        dest.set_ip(normal(dest.ip()));
        let group = dest.ip().is_multicast();
        // A loopback address says no more than a wildcard, but to which interface's members a
        // group's packets go.
        let says = |ip: &IpAddr| !if group { *ip } else { everywhere(*ip) }.is_unspecified();
        let source = id.lock().source.map(|s| s.ip()).filter(says).or(wanted);
        match source.filter(|_| group) {
            Some(source) => self.group_route(source, &dest),
            None => {
                let query = RouteQuery { dest: dest.ip(), scope: scope_of(&dest), source };
                self.env.route(query).map_err(Error::System)
            }
        }
    }

    /// Finds the neighbour that a route leads to; `finish_resolve` follows, at the latest after
    /// `timeout`.
    fn resolve_neighbour(&self, id: &Arc<Id>, route: &Route, timeout: Duration) {
        let is_ib = id.lock().device.as_ref().is_some_and(|d| d.config.transport == Transport::Ib);
        if is_ib {
            return self.finish_resolve(id, self.find_gids(id, route));
        }
        if route.dest.is_multicast() || self.env.is_resolved(route) {
            // There is nothing to wait for: a group's hardware address follows from its own.
            return self.finish_resolve(id, Ok(()));
        }
        let ticket = self.cm_agent.start_resolving(id, self.env.now() + timeout);
        self.env.wake_at(self.env.now() + timeout);
        self.env.resolve_neighbour(ticket, route);
    }

    /// The GIDs of a route between addresses of IPoIB.
    fn find_gids(&self, id: &Id, route: &Route) -> Result<(), Errno> {
        let theirs = match Group::Ip(route.dest) {
            group if route.dest.is_multicast() => {
                let device = id.lock().device.clone().ok_or(Errno::ENODEV)?;
                let pkey = device.port().pkeys().first().copied().unwrap_or_default();
                mgid(group, pkey, id.space)
            }
            _ => self.env.gid_of(route.interface, route.dest).ok_or(Errno::EHOSTUNREACH)?,
        };
        let mut inner = id.lock();
        let ours = inner.device.as_ref().and_then(|device| device.gid(0)).ok_or(Errno::ENODEV)?;
        inner.gids = Some((ours.gid, theirs));
        Ok(())
    }

    /// Which of our addresses leads to a destination; `None` for a multicast group, without a
    /// route, and where no device bears the address.
    pub fn source_for(&self, dest: &SocketAddr) -> Option<SocketAddr> {
        let ip = normal(dest.ip());
        if ip.is_multicast() || ip.is_ipv4() != dest.is_ipv4() {
            return None;
        }
        let route = self.env.route(RouteQuery { dest: ip, scope: scope_of(dest), source: None }).ok()?;
        self.device_of_route(&route)?;
        Some(with_scope(route.source, 0, route.interface))
    }

    /// The route from an address to a multicast group: by the interface that bears it, whatever the
    /// routing table says (rdma_join_multicast(3)).
    fn group_route(&self, source: IpAddr, dest: &SocketAddr) -> Result<Route, Error> {
        if source.is_ipv4() != dest.is_ipv4() {
            return Err(Error::address("the group is of another address family than the source", dest.ip()));
        }
        let device = self.device_bearing(source, scope_of(dest));
        let interface = device.ok_or(Error::System(Errno::EADDRNOTAVAIL))?.config.interface;
        let dest = dest.ip();
        // The device's own MTU bounds it.
        Ok(Route { source, dest, interface, next_hop: dest, local: false, mtu: u32::MAX })
    }

    /// Address resolution ended: the event says how.
    pub(crate) fn finish_resolve(&self, id: &Arc<Id>, result: Result<(), Errno>) {
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
            Err(errno) => self.tell(id, EventKind::AddrError, -errno.0),
        }
    }

    /// `rdma_resolve_route`: on RoCE the route follows from the address; RouteResolved comes at
    /// once. On InfiniBand the administration of the subnet is asked for a path; RouteResolved or
    /// RouteError follows, at the latest after `timeout`. EAGAIN there as long as the port has no
    /// subnet manager.
    pub fn resolve_route(&self, id: &Arc<Id>, timeout: Duration) -> Result<(), Error> {
        let asks = id.lock().gids.is_some();
        if asks { self.ask_for_path(id, timeout) } else { self.take_route(id, None) }
    }

    fn take_route(&self, id: &Arc<Id>, path: Option<PathChoice>) -> Result<(), Error> {
        {
            let mut inner = id.lock();
            if inner.progress != Progress::AddressResolved {
                return Err(inner.progress.refuses());
            }
            inner.path = path;
            inner.progress = Progress::RouteResolved;
        }
        self.tell(id, EventKind::RouteResolved, 0);
        Ok(())
    }

    /// `rdma_set_option`, RDMA_OPTION_IB_PATH: instead of resolving the route the program gives it;
    /// RouteResolved comes at once. EINVAL unless the address is resolved and the path leads
    /// from the one to the other.
    pub fn choose_path(&self, id: &Arc<Id>, ends: (Gid, Gid), path: PathChoice) -> Result<(), Error> {
        let wrong = |gid: Gid| {
            Err(Error::address("the path ends at another address than the identifier's", gid.ip()))
        };
        match self.gids(id) {
            None => Err(Error::Invalid("a path is given before the address is resolved")),
            Some((source, _)) if source != ends.0 => wrong(ends.0),
            Some((_, dest)) if dest != ends.1 => wrong(ends.1),
            Some(_) if id.lock().gids.is_some() => self.take_record(id, ends, &path),
            Some(_) => self.take_route(id, Some(path)),
        }
    }

    /// The GIDs of both ends, where the identifier has them.
    pub fn gids(&self, id: &Id) -> Option<(Gid, Gid)> {
        let inner = id.lock();
        inner.gids.or_else(|| Some((inner.source?.ip().into(), inner.dest?.ip().into())))
    }
}

impl CmAgent {
    pub(crate) fn start_resolving(&self, id: &Arc<Id>, until: Instant) -> u64 {
        let mut core = self.lock();
        let ticket = core.next_ticket;
        core.next_ticket += 1;
        core.resolving.insert(ticket, (id.clone(), until));
        ticket
    }

    pub(crate) fn take_resolving(&self, ticket: u64) -> Option<Arc<Id>> {
        Some(self.lock().resolving.remove(&ticket)?.0)
    }

    /// Resolutions whose time is over.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<Arc<Id>> {
        let mut core = self.lock();
        let late: Vec<u64> =
            core.resolving.iter().filter(|(_, (_, until))| *until <= now).map(|(t, _)| *t).collect();
        late.into_iter().filter_map(|t| Some(core.resolving.remove(&t)?.0)).collect()
    }
}
