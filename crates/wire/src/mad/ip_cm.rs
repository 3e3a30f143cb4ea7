//! The RDMA IP CM service (IBA annex A11): its service ids, and its header before the consumer's
//! private data. The header says which IP addresses and source port want to talk.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | CM private data version: major (4 bits), minor (4 bits): 0 |
//! | 1 | IP version (4 bits), reserved |
//! | 2..4 | source port |
//! | 4..20 | source address (IPv4 in the last four bytes) |
//! | 20..36 | destination address, likewise |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, Writer};
use crate::{Malformed, ServiceId};

/// The RDMA IP CM service's header, the first 36 bytes of the private data of a REQ or SIDR_REQ to
/// one of its service ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCm {
    /// Source address; of the same family as `dest`.
    pub source: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination address.
    pub dest: IpAddr,
}

/// The port spaces of rdma_cm that map to RDMA IP CM service ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// RDMA_PS_TCP, protocol 6.
    Tcp,
    /// RDMA_PS_UDP, protocol 17.
    Udp,
    /// RDMA_PS_IPOIB.
    Ipoib,
    /// RDMA_PS_IB.
    Ib,
}

impl IpCm {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Parses the header at the front of `bytes`; what follows it is the consumer's.
    ///
    /// # Errors
    ///
    /// `Truncated`: shorter than [`IpCm::LEN`]. `Field`: a version other than 0, or an IP version
    /// other than 4 or 6.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let [version, ip_version] = from.array()?;
        if version != 0 {
            return Err(Malformed::Field("IP CM private data version"));
        }
        let source_port = from.u16()?;
        let (source, dest): ([u8; 16], [u8; 16]) = (from.array()?, from.array()?);
        let address: fn([u8; 16]) -> IpAddr = match ip_version >> 4 {
            4 => |[.., a, b, c, d]| Ipv4Addr::new(a, b, c, d).into(),
            6 => |bytes| Ipv6Addr::from(bytes).into(),
            _ => return Err(Malformed::Field("IP CM IP version")),
        };
        Ok(Self { source: address(source), source_port, dest: address(dest) })
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut out = Writer::new(&mut bytes);
        out.u8(0);
        out.u8(if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 });
        out.u16(self.source_port);
        out.array(field(self.source));
        out.array(field(self.dest));
        bytes
    }
}

/// Twelve zero bytes stand before an IPv4 address.
fn field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()).to_be_bytes(),
        IpAddr::V6(a) => a.octets(),
    }
}

impl PortSpace {
    /// The `enum rdma_port_space` number of <rdma/rdma_cma.h>; that of TCP and UDP ends in the IP
    /// protocol.
    pub const fn code(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }

    /// The port space of an `enum rdma_port_space` number.
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0x0002 => Self::Ipoib,
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }
}

impl ServiceId {
    /// The service id of a port: the port space's number, then the port (annex A11 §A11.2; for
    /// IPoIB and IB as the kernel's rdma_cm forms it).
    pub const fn from_port(space: PortSpace, port: u16) -> Self {
        Self((space.code() as u64) << 16 | port as u64)
    }

    /// The port space and port of a service id of the RDMA IP CM service; `None` for any other.
    pub const fn ip_port(self) -> Option<(PortSpace, u16)> {
        if self.0 >> 32 != 0 {
            return None;
        }
        match PortSpace::from_code((self.0 >> 16) as u16) {
            Some(space) => Some((space, self.0 as u16)),
            None => None,
        }
    }
}
