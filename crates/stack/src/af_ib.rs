//! `AF_IB` addresses (`struct sockaddr_ib`): a GID and a service id. An InfiniBand port bears its
//! GIDs, and the administration of its subnet finds the way to others. RoCE has none, so there no
//! device resolves or bears one, as with the kernel. What remains is the GID of all zeros, under
//! which an identifier listens for a service on all devices.
//!
//! Inside the node such an address is an IPv6 address that has the bytes of the GID. Requests bear
//! no header of IP addresses ([`Inner::ib_dest`](crate::id::Inner::ib_dest)).
//!
//! | service id | port space |
//! |---|---|
//! | `0x0000_0000_0106_0000` and a port | RDMA_PS_TCP |
//! | `0x0000_0000_0111_0000` and a port | RDMA_PS_UDP |
//! | `0x0000_0000_013f_0000` and a port | RDMA_PS_IB |
//!
//! The mask says which bits of the service id count: a port space may be left open.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use cm::PortSpace;
use nic::{Device, Transport};
use wire::{Gid, Pkey};

use crate::env::{Env, Route};
use crate::id::{Claimed, Id, Progress};
use crate::ports::Place;
use crate::{Errno, Error, Node};

/// The bits of a service id that name a port space (RDMA_IB_IP_PS_MASK).
const SPACE_MASK: u64 = 0xffff_ffff_ffff_0000;

/// What an `AF_IB` address says beside its GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbService {
    /// Partition.
    pub pkey: u16,
    /// Flow information.
    pub flow_info: u32,
    /// Service id, `sib_sid`.
    pub sid: u64,
    /// Which of its bits count, `sib_sid_mask`.
    pub sid_mask: u64,
    /// Scope.
    pub scope_id: u64,
}

impl IbService {
    /// The port space that the service id names, if an identifier of `space` may have it: one of
    /// RDMA_PS_IB may have each.
    pub(crate) fn space_for(&self, space: PortSpace) -> Option<PortSpace> {
        let mask = self.sid_mask & SPACE_MASK;
        let fits = |named: PortSpace| {
            (space == PortSpace::Ib || space == named)
                && self.sid & mask == u64::from(named.code()) << 16 & mask
        };
        [PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp].into_iter().find(|&named| fits(named))
    }

    /// The port, 0 for any.
    pub fn port(&self) -> u16 {
        (self.sid & self.sid_mask) as u16
    }

    /// The service with its whole service id.
    fn bound_to(self, space: PortSpace, port: u16) -> Self {
        Self { sid: u64::from(space.code()) << 16 | u64::from(port), sid_mask: u64::MAX, ..self }
    }
}

impl<W: Env> Node<W> {
    /// `rdma_bind_addr` to an `AF_IB` address. EPROTONOSUPPORT where the service id is of a port
    /// space that the identifier's does not include, ENODEV for a GID that no InfiniBand port
    /// bears, EADDRNOTAVAIL or EADDRINUSE where the port is taken.
    pub fn bind_service(&self, id: &Arc<Id>, gid: Gid, service: IbService) -> Result<(), Error> {
        let options = id.lock().bindable()?;
        let device = match gid {
            _ if gid == Gid::default() => None,
            _ => Some(self.device_with_gid(gid).ok_or(Error::System(Errno::ENODEV))?),
        };
        let space = service.space_for(id.space).ok_or(Error::System(Errno::EPROTONOSUPPORT))?;
        let place = Place { space, addr: device.is_some().then(|| gid.ip()), reuse: options.reuse };
        let (port, claim) = self.claim_port(place, service.port())?;
        let mut inner = id.lock();
        if inner.bindable() != Ok(options) {
            return Err(inner.progress.refuses());
        }
        inner.claim = Some(Claimed(claim));
        inner.place = Some(place);
        inner.source = Some(SocketAddr::from((Ipv6Addr::from(gid.0), port)));
        inner.device = device;
        inner.v6_only = false;
        inner.ib = Some(service.bound_to(space, port));
        inner.progress = Progress::Bound;
        Ok(())
    }

    /// `rdma_resolve_addr` to an `AF_IB` address, from another one where the program says so:
    /// AddrResolved follows. ENODEV where no InfiniBand port of the GID's subnet and of the
    /// partition is active, EPROTONOSUPPORT for a service id of another port space; of the source
    /// those of [`Node::bind_service`].
    pub fn resolve_service(
        &self,
        id: &Arc<Id>,
        source: Option<(Gid, IbService)>,
        (gid, service): (Gid, IbService),
    ) -> Result<(), Error> {
        let (start, ib) = {
            let inner = id.lock();
            (inner.progress, inner.ib)
        };
        if !matches!((start, ib), (Progress::Idle, _) | (Progress::Bound, Some(_))) {
            return Err(start.refuses());
        }
        if let (Progress::Idle, Some((source, service))) = (start, source) {
            self.bind_service(id, source, service)?;
        }
        let bound = id.lock().device.clone();
        let device = self.device_toward(bound, gid, Pkey(service.pkey));
        let device = device.ok_or(Error::System(Errno::ENODEV))?;
        let space = service.space_for(id.space).ok_or(Error::System(Errno::EPROTONOSUPPORT))?;
        let own = device.gid(0).ok_or(Error::System(Errno::ENODEV))?.gid;
        self.attach(&device)?;
        let ephemeral = self.ephemeral();
        {
            let mut inner = id.lock();
            if !matches!(inner.progress, Progress::Idle | Progress::Bound) {
                return Err(inner.progress.refuses());
            }
            let port = inner.source.map_or(ephemeral, |source| source.port());
            let ends = [own, gid].map(|gid| Ipv6Addr::from(gid.0));
            let [source, dest] = ends.map(IpAddr::V6);
            inner.source = Some(SocketAddr::new(source, port));
            inner.dest = Some(SocketAddr::new(dest, service.port()));
            let (interface, mtu) = (device.config.interface, u32::MAX);
            inner.route = Some(Route { source, dest, interface, next_hop: dest, local: true, mtu });
            inner.ib = inner.ib.or(Some(service.bound_to(space, port)));
            inner.ib_dest = Some(service);
            inner.gids = Some((own, gid));
            inner.device = Some(device);
            inner.progress = Progress::AddressQuery;
        }
        self.finish_resolve(id, Ok(()));
        Ok(())
    }

    /// The InfiniBand device whose port bears a GID.
    fn device_with_gid(&self, gid: Gid) -> Option<Arc<Device>> {
        let bears = |device: &&Arc<Device>| {
            device.config.transport == Transport::Ib && device.port().gids.index_of_gid(gid).is_some()
        };
        self.devices.iter().find(bears).cloned()
    }

    /// The InfiniBand device that leads to a GID in a partition: the one that an identifier is
    /// bound to, else the one that bears the GID, else one of its subnet.
    fn device_toward(&self, bound: Option<Arc<Device>>, gid: Gid, pkey: Pkey) -> Option<Arc<Device>> {
        let leads = |device: &Arc<Device>| {
            let port = device.port();
            let own = device.gid(0).map(|own| own.gid);
            device.config.transport == Transport::Ib
                && port.up
                && own.is_some_and(|own| own.0[..8] == gid.0[..8])
                && port.pkeys().iter().any(|own| own.0 << 1 == pkey.0 << 1)
        };
        let all = || self.devices.iter().filter(|device| leads(device)).cloned();
        match bound {
            Some(bound) => leads(&bound).then_some(bound),
            None => self.device_with_gid(gid).filter(leads).or_else(|| all().next()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_id_says_the_port_space_as_far_as_the_mask_lets_it() {
        let service = |sid, sid_mask| IbService { sid, sid_mask, ..IbService::default() };
        let (tcp, udp, ib) = (0x0106_0000, 0x0111_0000, 0x013f_0000);
        for (space, service, expected) in [
            (PortSpace::Ib, service(tcp, SPACE_MASK), Some(PortSpace::Tcp)),
            (PortSpace::Ib, service(udp | 7, u64::MAX), Some(PortSpace::Udp)),
            (PortSpace::Ib, service(ib, SPACE_MASK), Some(PortSpace::Ib)),
            (PortSpace::Ib, service(0, 0), Some(PortSpace::Ib)),
            (PortSpace::Tcp, service(0, 0), Some(PortSpace::Tcp)),
            (PortSpace::Tcp, service(udp, SPACE_MASK), None),
            (PortSpace::Udp, service(tcp, SPACE_MASK), None),
            (PortSpace::Ib, service(0x0002_0000, SPACE_MASK), None),
            (PortSpace::Ipoib, service(0, 0), None),
        ] {
            assert_eq!(service.space_for(space), expected, "{space:?} {service:x?}");
        }
        assert_eq!(service(tcp | 7174, SPACE_MASK).port(), 0, "the mask leaves the port open");
        assert_eq!(service(tcp | 7174, u64::MAX).port(), 7174);
    }
}
