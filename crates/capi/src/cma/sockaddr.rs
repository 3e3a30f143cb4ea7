//! Socket addresses between C and Rust.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use rdma_core_abi::cma::{AF_IB, rdma_sockaddr, sockaddr_ib};
use rdma_core_abi::verbs::ibv_gid;
use stack::IbService;
use wire::Gid;

use crate::ffi_guard::Errno;

/// An address that rdma_cm takes.
pub(crate) enum Address {
    Ip(SocketAddr),
    /// Of the family `AF_IB`.
    Ib(Gid, IbService),
}

/// Reads an address. EINVAL for NULL and for other families than IPv4, IPv6 and IB.
///
/// # Safety
///
/// NULL, or an address as long as its family says.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Result<Address, Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    match i32::from(unsafe { (*addr).sa_family }) {
        AF_INET => {
            // SAFETY: the family says so; C gives no promise of alignment for the longer type.
            let a = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Ok(Address::Ip((ip, u16::from_be(a.sin_port)).into()))
        }
        AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(a.sin6_addr.s6_addr), u16::from_be(a.sin6_port));
            Ok(Address::Ip(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id).into()))
        }
        AF_IB => {
            // SAFETY: as above.
            let a = unsafe { addr.cast::<sockaddr_ib>().read_unaligned() };
            let service = IbService {
                pkey: u16::from_be(a.sib_pkey),
                flow_info: u32::from_be(a.sib_flowinfo),
                sid: u64::from_be(a.sib_sid),
                sid_mask: u64::from_be(a.sib_sid_mask),
                scope_id: a.sib_scope_id,
            };
            // SAFETY: any sixteen bytes are a GID.
            Ok(Address::Ib(Gid(unsafe { a.sib_addr.raw }), service))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Like [`read`], where only IPv4 and IPv6 will do.
///
/// # Safety
///
/// As for [`read`].
pub(crate) unsafe fn read_ip(addr: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller says.
    match unsafe { read(addr)? } {
        Address::Ip(addr) => Ok(addr),
        Address::Ib(..) => Err(Errno(libc::EINVAL)),
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

/// Writes an address of the family `AF_IB`.
pub(crate) fn write_ib(gid: Gid, service: &IbService, to: &mut rdma_sockaddr) {
    // SAFETY: as in `write`.
    *to = unsafe { std::mem::zeroed() };
    to.sib = ib(gid, service);
}

/// An address of the family `AF_IB`.
pub(crate) fn ib(gid: Gid, service: &IbService) -> sockaddr_ib {
    sockaddr_ib {
        sib_family: AF_IB as _,
        sib_pkey: service.pkey.to_be(),
        sib_flowinfo: service.flow_info.to_be(),
        sib_addr: ibv_gid { raw: gid.0 },
        sib_sid: service.sid.to_be(),
        sib_sid_mask: service.sid_mask.to_be(),
        sib_scope_id: service.scope_id,
    }
}
