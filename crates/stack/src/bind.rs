//! Binding: which of our addresses an identifier has, and which port. A port is a name that a
//! process of this host claims, so the system is asked before the identifier is locked: what it
//! said counts if the identifier is still as it was.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cm::PortSpace;
use nic::Device;

use crate::address::{everywhere, is_link_local, normal, scope_of};
use crate::datagram::has_ipoib;
use crate::env::Env;
use crate::id::{Claimed, Id, NO_IPOIB, Progress};
use crate::ports::Place;
use crate::{Errno, Error, Node};

impl<W: Env> Node<W> {
    /// `rdma_bind_addr`: takes an address and a port (0: any free one). A loopback address is shown
    /// as it is, and otherwise stands for all of its family (the kernel's cma_any_addr).
    /// EADDRNOTAVAIL where no device bears the address, or where the port is taken and
    /// either is for all addresses; EADDRINUSE where the same address has the port; EINVAL for a
    /// link-local address that does not say on which link, and in RDMA_PS_IPOIB for one of a device
    /// without an IPoIB interface.
    pub fn bind(&self, id: &Arc<Id>, address: SocketAddr) -> Result<(), Error> {
        let options = id.lock().bindable()?;
        let (ip, device) = match normal(address.ip()) {
            ip if everywhere(ip).is_unspecified() => (ip, None),
            _ => match self.own_address(&address) {
                Ok((_, device)) if id.space == PortSpace::Ipoib && !has_ipoib(&device) => {
                    return Err(NO_IPOIB);
                }
                found => found.map(|(ip, device)| (ip, Some(device)))?,
            },
        };
        let listens = everywhere(ip);
        let both_families = listens.is_unspecified() && ip.is_ipv6() && !options.v6_only;
        let addr = (!both_families).then_some(listens);
        let place = Place { space: id.space, addr, reuse: options.reuse };
        let (port, claim) = self.claim_port(place, address.port())?;
        let mut bound = address;
        bound.set_ip(ip);
        bound.set_port(port);
        let mut inner = id.lock();
        if inner.bindable() != Ok(options) {
            // Another thread was faster; the claim is given back when the lock is free.
            return Err(inner.progress.refuses());
        }
        inner.place = Some(place);
        inner.claim = Some(Claimed(claim));
        inner.source = Some(bound);
        inner.device = device;
        inner.progress = Progress::Bound;
        Ok(())
    }

    /// An address of ours, and the device that bears it. EADDRNOTAVAIL, or EINVAL for a link-local
    /// address without its interface.
    pub(crate) fn own_address(&self, address: &SocketAddr) -> Result<(IpAddr, Arc<Device>), Error> {
        let (ip, scope) = (normal(address.ip()), scope_of(address));
        if is_link_local(ip) && scope == 0 {
            return Err(Error::address("a link-local address needs its interface (sin6_scope_id)", ip));
        }
        let device = self.device_bearing(ip, scope).ok_or(Error::System(Errno::EADDRNOTAVAIL))?;
        Ok((ip, device))
    }

    /// The device whose interface bears an address; any other loopback address belongs to the
    /// loopback interface.
    pub(crate) fn device_bearing(&self, ip: IpAddr, scope: u32) -> Option<Arc<Device>> {
        let fits = |d: &Arc<Device>| {
            (scope == 0 || d.config.interface == scope) && d.port().gids.index_of(ip).is_some()
        };
        self.devices.iter().find(|d| fits(d)).cloned()
    }

    /// `rdma_set_option`, RDMA_OPTION_ID_REUSEADDR. EINVAL once it listens, EADDRNOTAVAIL (or
    /// EADDRINUSE) where it shares its port already and shall not.
    pub fn set_reuse(&self, id: &Id, reuse: bool) -> Result<(), Error> {
        let (before, port, own_name) = {
            let mut inner = id.lock();
            if inner.progress == Progress::Listening {
                return Err(inner.progress.refuses());
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
            return Err(inner.progress.refuses());
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
            progress => return Err(progress.refuses()),
        }
        Ok(())
    }
}
