//! Socket addresses between Rust and C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET, AF_INET6, in_addr, in6_addr, sockaddr_in, sockaddr_in6};
use rdma_core_abi::cma::rdma_sockaddr;

/// The address as C has it.
pub(crate) fn to_c(addr: SocketAddr) -> rdma_sockaddr {
    // SAFETY: all zeros are an address of no family.
    let mut to: rdma_sockaddr = unsafe { std::mem::zeroed() };
    match addr {
        SocketAddr::V4(addr) => {
            to.sin = sockaddr_in {
                sin_family: AF_INET as _,
                sin_port: addr.port().to_be(),
                sin_addr: in_addr { s_addr: u32::from(*addr.ip()).to_be() },
                sin_zero: [0; 8],
            };
        }
        SocketAddr::V6(addr) => {
            to.sin6 = sockaddr_in6 {
                sin6_family: AF_INET6 as _,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: in6_addr { s6_addr: addr.ip().octets() },
                sin6_scope_id: addr.scope_id(),
            };
        }
    }
    to
}

/// The address as Rust has it; `None` for other families, and for none.
pub(crate) fn of_c(addr: &rdma_sockaddr) -> Option<SocketAddr> {
    // SAFETY: each family begins with its number, and all bytes of the union are there.
    match i32::from(unsafe { addr.addr.sa_family }) {
        AF_INET => {
            // SAFETY: the family says so.
            let sin = unsafe { addr.sin };
            Some((Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr)), u16::from_be(sin.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: the family says so.
            let sin6 = unsafe { addr.sin6 };
            let (ip, port) = (Ipv6Addr::from(sin6.sin6_addr.s6_addr), u16::from_be(sin6.sin6_port));
            Some(SocketAddrV6::new(ip, port, sin6.sin6_flowinfo, sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["10.0.0.2:7471", "[fe80::1%2]:18515", "[::1]:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(of_c(&to_c(addr)), Some(addr));
        }
        // SAFETY: all zeros are an address of no family.
        assert_eq!(of_c(&unsafe { std::mem::zeroed() }), None);
    }
}
