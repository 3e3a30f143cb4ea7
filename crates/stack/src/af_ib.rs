//! `AF_IB` addresses (`struct sockaddr_ib`): a GID and a service id. RoCE has no subnet
//! administrator that could find the way to a GID, so no device here resolves or bears one, as with
//! the kernel; what remains is the GID of all zeros, under which an identifier listens for a
//! service on all devices.
//!
//! | service id | port space |
//! |---|---|
//! | `0x0000_0000_0106_0000` and a port | RDMA_PS_TCP |
//! | `0x0000_0000_0111_0000` and a port | RDMA_PS_UDP |
//! | `0x0000_0000_013f_0000` and a port | RDMA_PS_IB |
//!
//! The mask says which bits of the service id count: a port space may be left open.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use cm::PortSpace;
use wire::Gid;

use crate::env::Env;
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
    fn space_for(&self, space: PortSpace) -> Option<PortSpace> {
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
    /// space that the identifier's does not include, ENODEV for a GID, EADDRNOTAVAIL where the
    /// port is taken.
    pub fn bind_service(&self, id: &Arc<Id>, gid: Gid, service: IbService) -> Result<(), Error> {
        let options = id.lock().bindable()?;
        if gid != Gid::default() {
            return Err(Error::System(Errno::ENODEV));
        }
        let space = service.space_for(id.space).ok_or(Error::System(Errno::EPROTONOSUPPORT))?;
        let place = Place { space, addr: None, reuse: options.reuse };
        let (port, claim) = self.claim_port(place, service.port())?;
        let mut inner = id.lock();
        if inner.bindable() != Ok(options) {
            return Err(inner.progress.refuses());
        }
        inner.claim = Some(Claimed(claim));
        inner.place = Some(place);
        inner.source = Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        inner.v6_only = false;
        inner.ib = Some(service.bound_to(space, port));
        inner.progress = Progress::Bound;
        Ok(())
    }

    /// `rdma_resolve_addr` to an `AF_IB` address: ENODEV, because no device resolves those.
    pub fn resolve_service(&self, id: &Id) -> Result<(), Error> {
        match id.lock().progress {
            Progress::Idle | Progress::Bound => Err(Error::System(Errno::ENODEV)),
            progress => Err(progress.refuses()),
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
