//! Socket addresses between C and Rust.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use abi::cma::rdma_sockaddr;
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};

use crate::border::Errno;

/// Reads an address. EINVAL for NULL and for other families than IPv4 and IPv6.
///
/// # Safety
///
/// NULL, or an address as long as its family says.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    match i32::from(unsafe { (*addr).sa_family }) {
        AF_INET => {
            // SAFETY: the family says so; C gives no promise of alignment for the longer type.
            let a = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            Ok((Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr)), u16::from_be(a.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), a.sin6_flowinfo, a.sin6_scope_id).into())
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Writes an address and returns its length.
pub(crate) fn write(addr: &SocketAddr, to: &mut rdma_sockaddr) -> usize {
    // SAFETY: all-zero bytes are an address of no family.
    *to = unsafe { std::mem::zeroed() };
    match addr {
        SocketAddr::V4(a) => {
            to.sin = sockaddr_in {
                sin_family: AF_INET as _,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                sin_zero: [0; 8],
            };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(a) => {
            to.sin6 = sockaddr_in6 {
                sin6_family: AF_INET6 as _,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            size_of::<sockaddr_in6>()
        }
    }
}
