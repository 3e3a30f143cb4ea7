//! The numbers of the InfiniBand architecture that must not be mixed up, each a type.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A queue pair number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, where connection management lives (IBA 1.4 §3.9.1).
    pub const GSI: Self = Self(1);
    /// The destination of multicast datagrams.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Keeps the low 24 bits.
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// The number as a user writes it, decimal or hexadecimal: `17`, `0x11`. `None` for what is
    /// none, or has more than 24 bits.
    pub fn parse(text: &str) -> Option<Self> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.ok().filter(|number| *number <= Self::MULTICAST.0).map(Self)
    }
}

/// A packet sequence number: 24 bits in serial arithmetic (IBA 1.4 §9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits.
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// The number `n` packets later.
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// The number `n` packets earlier.
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }
    /// How far `self` lies after `base`: negative where it lies before; −2^23 .. 2^23.
    pub const fn since(self, base: Self) -> i32 {
        ((self.0.wrapping_sub(base.0) << 8) as i32) >> 8
    }
    /// Whether `self` lies before `other`.
    pub const fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

/// A key that grants access to memory; local and remote keys are one number space here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rkey(pub u32);

/// A queue key of datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Qkey(pub u32);

/// A partition key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The bit of a full member of the partition.
    const FULL: u16 = 1 << 15;

    /// Whether a queue pair with this key hears one that sends with the other (IBA 1.4 §10.9.3):
    /// members of the same partition, not both of them limited; 0 is none.
    pub const fn matches(self, other: Self) -> bool {
        let base = self.0 & !Self::FULL;
        base != 0 && base == other.0 & !Self::FULL && (self.0 | other.0) & Self::FULL != 0
    }
}

impl Default for Pkey {
    /// The default partition, full member: all that RoCE has.
    fn default() -> Self {
        Self(0xffff)
    }
}

/// A communication identifier of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommId(pub u32);

/// A 64-bit service id (IBA annex A3, and A11 for the RDMA IP CM range).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

/// An EUI-64 of a node, port or channel adapter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub u64);

/// A global identifier: on RoCEv2 an IPv6 address or an IPv4-mapped one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address that bears this GID on the wire (annex A17 §A17.4.1).
    #[inline]
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(a) => a.into(),
            IpAddr::V6(a) => Self(a.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(a: Ipv4Addr) -> Self {
        Self(a.to_ipv6_mapped().octets())
    }
}

/// A path MTU: the payload bytes of a full packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes: what an Ethernet MTU of 1500 allows.
    #[default]
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// From the code that CM messages and `enum ibv_mtu` use, 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::M256,
            2 => Self::M512,
            3 => Self::M1024,
            4 => Self::M2048,
            5 => Self::M4096,
            _ => return None,
        })
    }
    /// The code of CM messages and `enum ibv_mtu`.
    pub const fn code(self) -> u8 {
        self as u8
    }
    /// Payload bytes of a full packet, 256 to 4096.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }
    /// The largest MTU whose packets fit a link of `link_mtu` bytes, as the kernel computes it
    /// (headers up to 80 bytes are kept free, IP and UDP included); `None` below a link MTU of 336.
    pub fn for_link(link_mtu: u32) -> Option<Self> {
        let room = link_mtu.checked_sub(80)? as usize;
        [Self::M4096, Self::M2048, Self::M1024, Self::M512, Self::M256]
            .into_iter()
            .find(|m| m.bytes() <= room)
    }
}

macro_rules! debug_hex {
    ($($t:ident: $w:literal),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({:#0", $w, "x})"), self.0)
            }
        }
    )*};
}
debug_hex!(Qpn: 8, Psn: 8, Rkey: 10, Qkey: 10, Pkey: 6, CommId: 10, ServiceId: 18, Guid: 18);

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", self.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_partition_hear_each_other_unless_both_are_limited() {
        let hears = |a, b| Pkey(a).matches(Pkey(b));
        assert!(hears(0xffff, 0xffff) && hears(0xffff, 0x7fff) && hears(0x7fff, 0xffff));
        assert!(!hears(0x7fff, 0x7fff));
        assert!(!hears(0xffff, 0xfffe) && !hears(0xffff, 0x8001) && !hears(0xffff, 1));
        assert!(!hears(0x8000, 0x8000) && !hears(0, 0) && !hears(0x8000, 0));
    }

    #[test]
    fn psn_distance_wraps_at_24_bits() {
        assert_eq!(Psn::new(2).since(Psn::new(0xff_ffff)), 3);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(2)), -3);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
        assert!(Psn::new(0xff_fff0).before(Psn::new(5)));
        assert_eq!(Psn::new(0xff_ffff).add(1), Psn::new(0));
    }

    #[test]
    fn link_mtu_1500_allows_1024_as_the_kernel_says() {
        assert_eq!(Mtu::for_link(1500), Some(Mtu::M1024));
        assert_eq!(Mtu::for_link(65536), Some(Mtu::M4096));
        assert_eq!(Mtu::for_link(4200), Some(Mtu::M4096));
        assert_eq!(Mtu::for_link(100), None);
    }
}
