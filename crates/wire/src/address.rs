//! Addresses of peers: where packets come from and go to, whatever network carries them.
//!
//! An engine, an adapter and a node compare and keep an [`Address`] and never look inside. The
//! world does, which gives packets to the network. IP itself (interfaces, routes, sockets, the
//! RDMA IP CM header) speaks [`IpAddr`].
//!
//! | type | what it adds |
//! |---|---|
//! | [`Address`] | an end of a path: an IP address, or a LID of an InfiniBand subnet |
//! | [`LidAddress`] | a LID, with service level and path bits (IBA 1.4 §4.1.3, §7.7) |
//! | [`Endpoint`] | an end of one packet: over UDP with the port |

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where a peer's packets come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address: RoCEv2.
    Ip(IpAddr),
    /// A local identifier of an InfiniBand subnet.
    Lid(LidAddress),
}

impl Address {
    /// The IP address, where it is one.
    #[inline]
    pub const fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Ip(ip) => Some(ip),
            Self::Lid(_) => None,
        }
    }

    /// Whether both are the same LID, whatever else is said of a packet.
    #[inline]
    pub const fn is_same_lid(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lid(own), Self::Lid(other)) => own.lid() == other.lid(),
            _ => false,
        }
    }

    /// The LID with what a packet says of it, where it is one.
    #[inline]
    pub const fn lid(self) -> Option<LidAddress> {
        match self {
            Self::Ip(_) => None,
            Self::Lid(lid) => Some(lid),
        }
    }

    /// A peer as a user writes it: an IP address, or the number of a LID, also with 0x.
    pub fn parse_peer(text: &str) -> Option<Self> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(ip.to_canonical().into());
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16),
            None => text.parse(),
        };
        LidAddress::new(number.ok()?, 0, 0).ok().map(Self::Lid)
    }

    /// A LID alone, without what a packet says of its path; an IP address as it is.
    #[must_use]
    pub const fn bare(self) -> Self {
        match self {
            Self::Ip(_) => self,
            Self::Lid(lid) => Self::Lid(LidAddress { service_level: 0, path_bits: 0, ..lid }),
        }
    }

    /// Whether packets to it go to a multicast group.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        match self {
            Self::Ip(ip) => ip.is_multicast(),
            Self::Lid(lid) => lid.is_multicast(),
        }
    }

    /// A number that tells addresses apart: the bits of an IPv6 address, for IPv4 those of the
    /// mapped one. A LID has the number of an IPv6 address that no interface bears: in `100::/64`,
    /// which is discarded (RFC 6666).
    #[inline]
    pub const fn to_bits(self) -> u128 {
        match self {
            Self::Ip(IpAddr::V4(v4)) => v4.to_ipv6_mapped().to_bits(),
            Self::Ip(IpAddr::V6(v6)) => v6.to_bits(),
            Self::Lid(lid) => 0x100 << 112 | lid.to_bits() as u128,
        }
    }

    /// The part of the address that its host cannot choose: all of an IPv4 address, the network of
    /// an IPv6 one, the LID.
    #[inline]
    pub const fn network(self) -> u64 {
        match self {
            Self::Ip(IpAddr::V4(v4)) => v4.to_bits() as u64,
            Self::Ip(IpAddr::V6(v6)) => (v6.to_bits() >> 64) as u64,
            Self::Lid(lid) => lid.lid() as u64,
        }
    }
}

/// IPv4 addresses come before those of IPv6, and these before LIDs.
impl Ord for Address {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        // Tables are ordered by addresses: two numbers are compared faster than byte by byte.
        let order = |address: &Self| match address {
            Self::Ip(IpAddr::V4(v4)) => (0, u128::from(v4.to_bits())),
            Self::Ip(IpAddr::V6(v6)) => (1, v6.to_bits()),
            Self::Lid(lid) => (2, u128::from(lid.to_bits())),
        };
        order(self).cmp(&order(other))
    }
}

impl PartialOrd for Address {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<IpAddr> for Address {
    #[inline]
    fn from(ip: IpAddr) -> Self {
        Self::Ip(ip)
    }
}

impl From<Ipv4Addr> for Address {
    #[inline]
    fn from(ip: Ipv4Addr) -> Self {
        Self::Ip(ip.into())
    }
}

impl From<Ipv6Addr> for Address {
    #[inline]
    fn from(ip: Ipv6Addr) -> Self {
        Self::Ip(ip.into())
    }
}

impl From<[u8; 4]> for Address {
    #[inline]
    fn from(ip: [u8; 4]) -> Self {
        Self::Ip(ip.into())
    }
}

impl From<LidAddress> for Address {
    #[inline]
    fn from(lid: LidAddress) -> Self {
        Self::Lid(lid)
    }
}

/// IP addresses compare with addresses of peers.
impl PartialEq<IpAddr> for Address {
    #[inline]
    fn eq(&self, ip: &IpAddr) -> bool {
        matches!(self, Self::Ip(own) if own == ip)
    }
}

/// `10.0.0.1`, `fe80::1`, or `LID 5 SL 0`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Lid(lid) => lid.fmt(f),
        }
    }
}

/// A local identifier of an InfiniBand subnet (IBA 1.4 §4.1.3) with what a packet to or from it
/// bears: the service level, the path bits, and whether a global routing header (GRH) follows the
/// local one (LRH:LNH, IBA 1.4 §7.7.4). Two are equal where all of that is, so a fabric gives a
/// received packet the numbers of the path back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LidAddress {
    /// Most significant byte first. Bytes align to nothing, so an [`Address`] is no larger than an
    /// `IpAddr`.
    lid: [u8; 2],
    service_level: u8,
    /// The uppermost bit: a GRH follows.
    path_bits: u8,
}

/// The bit of `path_bits` that stands for a GRH.
const GRH: u8 = 1 << 7;

/// A number that no [`LidAddress`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:#x} is not {least:#x} to {most:#x}")]
pub struct LidError {
    /// Which number.
    pub what: &'static str,
    /// What the caller gave.
    pub value: u16,
    /// The least that is taken.
    pub least: u16,
    /// The largest that is taken.
    pub most: u16,
}

impl LidAddress {
    /// The highest service level (IBA 1.4 §7.6.5).
    pub const MAX_SERVICE_LEVEL: u8 = 15;
    /// The most path bits: those of LMC 7 (IBA 1.4 §4.1.3).
    pub const MAX_PATH_BITS: u8 = 127;
    /// The first multicast LID (IBA 1.4 §4.1.3).
    pub const FIRST_MULTICAST: u16 = 0xc000;

    /// A LID, the service level of the path, and the path bits.
    ///
    /// # Errors
    ///
    /// [`LidError`] for LID 0, which is reserved, and 0xffff, which is permissive and names no
    /// port; for a service level above 15 and path bits above 127.
    pub const fn new(lid: u16, service_level: u8, path_bits: u8) -> Result<Self, LidError> {
        if lid == 0 || lid == u16::MAX {
            return Err(LidError { what: "LID", value: lid, least: 1, most: u16::MAX - 1 });
        }
        if service_level > Self::MAX_SERVICE_LEVEL {
            let (value, most) = (service_level as u16, Self::MAX_SERVICE_LEVEL as u16);
            return Err(LidError { what: "service level", value, least: 0, most });
        }
        if path_bits > Self::MAX_PATH_BITS {
            let (value, most) = (path_bits as u16, Self::MAX_PATH_BITS as u16);
            return Err(LidError { what: "path bits", value, least: 0, most });
        }
        Ok(Self { lid: lid.to_be_bytes(), service_level, path_bits })
    }

    /// The LID, 1 to 0xfffe.
    #[inline]
    pub const fn lid(self) -> u16 {
        u16::from_be_bytes(self.lid)
    }

    /// The service level, 0 to 15.
    #[inline]
    pub const fn service_level(self) -> u8 {
        self.service_level
    }

    /// The path bits, 0 to 127: which of its port's LIDs a packet bears. They are the low bits of
    /// [`LidAddress::lid`], as many as the port's LMC says.
    #[inline]
    pub const fn path_bits(self) -> u8 {
        self.path_bits & !GRH
    }

    /// Whether a packet bears a GRH, whose 40 bytes come before its BTH.
    #[inline]
    pub const fn has_grh(self) -> bool {
        self.path_bits & GRH != 0
    }

    /// This address, of packets with a GRH.
    #[must_use]
    pub const fn with_grh(self) -> Self {
        Self { path_bits: self.path_bits | GRH, ..self }
    }

    /// This address, of packets without a GRH.
    #[must_use]
    pub const fn without_grh(self) -> Self {
        Self { path_bits: self.path_bits & !GRH, ..self }
    }

    /// Whether it is a multicast LID.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.lid() >= Self::FIRST_MULTICAST
    }

    /// All three numbers as one.
    const fn to_bits(self) -> u32 {
        u32::from_be_bytes([self.lid[0], self.lid[1], self.service_level, self.path_bits])
    }
}

/// `LID 5 SL 0`; where there are path bits, `LID 5 SL 0 path bits 3`; with a GRH, `LID 5 SL 0 GRH`.
impl fmt::Display for LidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} SL {}", self.lid(), self.service_level)?;
        if self.path_bits() != 0 {
            write!(f, " path bits {}", self.path_bits())?;
        }
        if self.has_grh() {
            f.write_str(" GRH")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LidAddress({self})")
    }
}

/// An end of a packet, with all that its network says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An IP address and a UDP port: RoCEv2.
    Udp(SocketAddr),
    /// A local identifier of an InfiniBand subnet, which has no ports.
    Lid(LidAddress),
}

impl Endpoint {
    /// The address.
    #[inline]
    pub const fn address(&self) -> Address {
        match self {
            Self::Udp(end) => Address::Ip(end.ip()),
            Self::Lid(lid) => Address::Lid(*lid),
        }
    }

    /// The IP address and the UDP port, where it has them.
    #[inline]
    pub const fn udp(&self) -> Option<SocketAddr> {
        match self {
            Self::Udp(end) => Some(*end),
            Self::Lid(_) => None,
        }
    }
}

impl From<SocketAddr> for Endpoint {
    #[inline]
    fn from(end: SocketAddr) -> Self {
        Self::Udp(end)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Endpoint {
    #[inline]
    fn from(end: (I, u16)) -> Self {
        Self::Udp(end.into())
    }
}

impl From<LidAddress> for Endpoint {
    #[inline]
    fn from(lid: LidAddress) -> Self {
        Self::Lid(lid)
    }
}
