//! Addresses of IPoIB on a host of a fabric: routes between them, which ports bear them, and names
//! of ports that processes of one host share, and no other host's.
//!
//! All hosts of a fabric have one machine's table of names. A name of an address is as good there
//! as elsewhere, because no two ports have the same address. One of all addresses would be every
//! host's: in the table it bears an address that is made of the host's first one, in the prefix
//! that is discarded (RFC 6666), so that no interface bears it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::fabric::ipoib::Neighbour;
use ::fabric::protocol::{Reply, Request};
use locks::{Mutex, Rank};
use nic::Errno;
use stack::env::{Route, RouteQuery};
use stack::{Interface, Name};

use super::{FabricPlace, call};

/// 100:0:0:1::, of which the last 32 bits are a host and those before say which addresses of it.
const ALL_OF: u128 = 0x100 << 112 | 1 << 64;
/// Neighbours that are kept; then all are asked for again.
const MAX_KNOWN: usize = 4096;

/// Addresses of a fabric, as a process of a host knows them.
pub(super) struct Ipoib {
    place: FabricPlace,
    /// The first address of the host; none where it has no channel adapter.
    host: Option<Ipv4Addr>,
    known: Mutex<BTreeMap<IpAddr, Neighbour>>,
}

impl Ipoib {
    pub(super) fn new(place: &FabricPlace, ports: &[Interface]) -> Self {
        let first = ports.iter().flat_map(|port| &port.addresses).find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        // The interfaces are in the order of the net file, so this is the first of all.
        Self { place: place.clone(), host: first, known: Mutex::new(Rank::Neighbours, BTreeMap::new()) }
    }

    /// What bears an address, or a GID as an IPv6 address. The fabric is asked once for each.
    pub(super) fn neighbour(&self, address: IpAddr) -> Option<Neighbour> {
        if let Some(known) = self.known.lock().get(&address) {
            return Some(*known);
        }
        let asked = call::ask(&self.place.socket, &Request::Neighbour(address)).ok()?;
        let (Reply::Neighbour(Some(found)), ..) = asked else { return None };
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(address, found);
        Some(found)
    }

    /// A name as all hosts know it, of a port of the host that bears an address, or of our own.
    pub(super) fn name(&self, name: Name, at: Option<IpAddr>) -> Name {
        let host = match at {
            Some(at) => self.neighbour(at).map(|neighbour| neighbour.host),
            None => self.host,
        };
        let Some(host) = host else { return name };
        let of_host = |addr: Option<IpAddr>| match addr {
            None => Some(all_of(0, host)),
            Some(IpAddr::V4(v4)) if v4.is_unspecified() => Some(all_of(4, host)),
            Some(IpAddr::V6(v6)) if v6.is_unspecified() => Some(all_of(6, host)),
            addr => addr,
        };
        match name {
            Name::Block(_) => name,
            Name::Port { space, addr, port } => Name::Port { space, addr: of_host(addr), port },
            Name::Shared { space, addr, port, holder } => {
                Name::Shared { space, addr: of_host(addr), port, holder }
            }
        }
    }

    /// A name of a port as this host knows it; `None` for another host's. `own`: the addresses of
    /// this host.
    pub(super) fn own_name(&self, name: Name, own: &[IpAddr]) -> Option<Name> {
        let plain = |addr: Option<IpAddr>| -> Option<Option<IpAddr>> {
            let is = |family| self.host.is_some_and(|host| addr == Some(all_of(family, host)));
            match addr {
                _ if is(0) => Some(None),
                _ if is(4) => Some(Some(Ipv4Addr::UNSPECIFIED.into())),
                _ if is(6) => Some(Some(Ipv6Addr::UNSPECIFIED.into())),
                Some(addr) if own.contains(&addr) => Some(Some(addr)),
                _ => None,
            }
        };
        Some(match name {
            Name::Block(_) => name,
            Name::Port { space, addr, port } => Name::Port { space, addr: plain(addr)?, port },
            Name::Shared { space, addr, port, holder } => {
                Name::Shared { space, addr: plain(addr)?, port, holder }
            }
        })
    }
}

/// The address that stands for all of a family of a host: 4, 6, or 0 for both.
fn all_of(family: u8, host: Ipv4Addr) -> IpAddr {
    Ipv6Addr::from_bits(ALL_OF | u128::from(family) << 32 | u128::from(host.to_bits())).into()
}

/// The port that bears a GID, as an IPv6 address.
fn with_gid(ports: &[Interface], address: IpAddr) -> Option<&Interface> {
    ports.iter().find(|port| gids(port).any(|gid| gid == address))
}

/// The GIDs of a port, as IPv6 addresses.
pub(crate) fn gids(port: &Interface) -> impl Iterator<Item = IpAddr> {
    let ib = port.infiniband.as_ref().map(|link| &link.port);
    ib.into_iter().flat_map(|port| (0..port.guids.len()).filter_map(|index| Some(port.gid(index)?.ip())))
}

/// The route between two addresses of IPoIB, or from a GID of ours, as an IPv6 address. Each host's
/// processes are this machine's, so the end of one can be watched.
///
/// # Errors
///
/// EADDRNOTAVAIL for a source that the host does not bear, ENETUNREACH where no port of it has an
/// address of the family.
pub(crate) fn route(ports: &[Interface], query: RouteQuery) -> Result<Route, Errno> {
    let bears = |address: IpAddr| ports.iter().find(|port| port.addresses.contains(&address));
    if let Some((source, port)) = query.source.and_then(|source| Some((source, with_gid(ports, source)?))) {
        let (dest, interface) = (query.dest, port.index);
        return Ok(Route { source, dest, interface, next_hop: dest, local: true, mtu: port.mtu });
    }
    if query.dest.is_loopback() {
        return Err(Errno::ENETUNREACH);
    }
    let wanted = query.source.or(bears(query.dest).map(|_| query.dest));
    let (source, port) = match wanted {
        Some(source) => (source, bears(source).ok_or(Errno::EADDRNOTAVAIL)?),
        None => {
            let family = |address: &&IpAddr| address.is_ipv4() == query.dest.is_ipv4();
            let up = |port: &&Interface| port.up && (query.scope == 0 || query.scope == port.index);
            let mut all =
                ports.iter().filter(up).filter_map(|port| Some((*port.addresses.iter().find(family)?, port)));
            all.next().ok_or(Errno::ENETUNREACH)?
        }
    };
    let dest = query.dest;
    Ok(Route { source, dest, interface: port.index, next_hop: dest, local: true, mtu: port.mtu })
}

#[cfg(test)]
mod tests {
    use wire::mad::PortSpace;

    use super::*;

    fn of(host: u8) -> Ipoib {
        Ipoib {
            place: FabricPlace { socket: "/nowhere".into(), host: "host".to_owned() },
            host: Some(Ipv4Addr::new(10, 0, 0, host)),
            known: Mutex::new(Rank::Neighbours, BTreeMap::new()),
        }
    }

    #[test]
    fn a_name_of_all_addresses_is_of_one_host_and_comes_back_there_alone() {
        let here = [IpAddr::from([10, 0, 0, 1])];
        let name = |addr| Name::Port { space: PortSpace::Tcp, addr, port: 7174 };
        let all = [None, Some(IpAddr::from([0; 4])), Some(IpAddr::from([0_u16; 8]))];
        for (n, addr) in all.into_iter().enumerate() {
            let shown = of(1).name(name(addr), None);
            assert_ne!(shown, of(2).name(name(addr), None));
            assert!(
                all.iter().enumerate().all(|(m, other)| n == m || shown != of(1).name(name(*other), None))
            );
            assert_eq!(of(1).own_name(shown, &here), Some(name(addr)));
            assert_eq!(of(2).own_name(shown, &here), None);
        }
        let exact = name(Some(here[0]));
        assert_eq!((of(1).name(exact, None), of(1).own_name(exact, &here)), (exact, Some(exact)));
        assert_eq!(of(1).own_name(name(Some([10, 0, 0, 9].into())), &here), None);
        assert_eq!(of(1).name(Name::Block(7), None), Name::Block(7));
    }
}
