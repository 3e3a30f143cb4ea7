//! IP addresses as rdma_cm reads them: mapped, loopback, link-local.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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

pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

pub(crate) fn scope_of(address: &SocketAddr) -> u32 {
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

/// Whether an address is one of the family-specific wildcards' kind that a listener on all
/// addresses takes.
pub(crate) fn family_fits(listener: IpAddr, v6_only: bool, dest: IpAddr) -> bool {
    match (listener, dest) {
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
        (IpAddr::V6(_), IpAddr::V4(_)) => !v6_only,
        _ => true,
    }
}
