//! The 40 bytes before every datagram that a UD queue pair receives, where the completion says
//! `GRH`. They are a global route header, or on RoCEv2 the IP header that stands in for it (IBA 1.4
//! §8.3, annex A17 §A17.4.5.1).
//!
//! From an IPv6 datagram:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | version 6 (4 bits), traffic class (8), flow label (20) |
//! | 4..6 | payload length, from the UDP header to the ICRC |
//! | 6 | next header |
//! | 7 | hop limit |
//! | 8..24 | source address |
//! | 24..40 | destination address |
//!
//! A datagram of InfiniBand has one only where its sender gives one: as that of IPv6, with next
//! header 0x1b and GIDs in place of addresses.
//!
//! From an IPv4 datagram, the form of the kernel's `union rdma_network_hdr`:
//!
//! | bytes | field |
//! |---|---|
//! | 0..20 | zero |
//! | 20 | version 4 (4 bits), header length 5 (4 bits) |
//! | 21 | type of service |
//! | 22..24 | total length |
//! | 24..26 | identification |
//! | 26..28 | flags (3 bits), fragment offset (13) |
//! | 28 | time to live |
//! | 29 | protocol |
//! | 30..32 | header checksum |
//! | 32..36 | source address |
//! | 36..40 | destination address |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, Writer};
use crate::{Address, Gid, LidAddress, Malformed};

/// Bytes on the wire of each form.
pub const GRH_LEN: usize = 40;

/// IP protocol number of UDP.
const UDP: u8 = 17;
/// Next header of a GRH before a BTH (IBA 1.4 §8.3.5).
const BTH: u8 = 0x1b;
/// Don't fragment, fragment offset 0 (RFC 791 §3.1).
const DF: u16 = 0x4000;

/// A packet from its BTH on: what goes to `dest` begins with a GRH where the address says so. Empty
/// where the packet ends before that.
pub fn skip(dest: Address, packet: &[u8]) -> &[u8] {
    match dest.lid().is_some_and(LidAddress::has_grh) {
        true => packet.get(GRH_LEN..).unwrap_or_default(),
        false => packet,
    }
}

/// The header before a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grh {
    /// The datagram came over IPv4.
    V4 {
        /// Type of service.
        tos: u8,
        /// Bytes after the IPv4 header, at most 65,515.
        payload_len: u16,
        /// Identification; 0 where the receiver could not see it.
        identification: u16,
        /// Time to live.
        ttl: u8,
        /// Sender.
        source: Ipv4Addr,
        /// Receiver.
        dest: Ipv4Addr,
    },
    /// The datagram came over IPv6.
    V6 {
        /// Traffic class.
        traffic_class: u8,
        /// Flow label, 20 bits.
        flow_label: u32,
        /// Bytes after the IPv6 header.
        payload_len: u16,
        /// Hop limit.
        hop_limit: u8,
        /// Sender.
        source: Ipv6Addr,
        /// Receiver.
        dest: Ipv6Addr,
    },
    /// The global routing header of an InfiniBand packet (IBA 1.4 §8.3).
    Ib {
        /// Traffic class.
        traffic_class: u8,
        /// Flow label, 20 bits.
        flow_label: u32,
        /// Bytes from the BTH to the ICRC.
        payload_len: u16,
        /// Hop limit.
        hop_limit: u8,
        /// Sender.
        sgid: Gid,
        /// Receiver.
        dgid: Gid,
    },
}

impl Grh {
    /// The header of a datagram of which no more is known than its addresses and its length: the
    /// rest is 0. `hop_limit` is the time to live for IPv4. `None` for two address families, and
    /// for LIDs, whose datagrams have a header only where the sender wants one.
    #[inline]
    pub fn between(source: Address, dest: Address, payload_len: u16, hop_limit: u8) -> Option<Self> {
        match (source.ip()?, dest.ip()?) {
            (IpAddr::V4(source), IpAddr::V4(dest)) => {
                Some(Self::V4 { tos: 0, payload_len, identification: 0, ttl: hop_limit, source, dest })
            }
            (IpAddr::V6(source), IpAddr::V6(dest)) => {
                Some(Self::V6 { traffic_class: 0, flow_label: 0, payload_len, hop_limit, source, dest })
            }
            _ => None,
        }
    }

    /// The header with the length of another packet: `payload_len` bytes follow it.
    #[must_use]
    pub fn with_payload_len(mut self, bytes: u16) -> Self {
        let (Self::V4 { payload_len, .. } | Self::V6 { payload_len, .. } | Self::Ib { payload_len, .. }) =
            &mut self;
        *payload_len = bytes;
        self
    }

    /// Parses the first [`GRH_LEN`] bytes of a receive buffer. Protocol, IPv4 flags and checksum
    /// are not looked at; next header 0x1b tells InfiniBand from IPv6.
    ///
    /// # Errors
    ///
    /// `Truncated`: shorter. `Field`: neither form. `Length`: an IPv4 total length below that of
    /// the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let word = from.u32()?;
        match word >> 28 {
            6 => {
                let (traffic_class, flow_label) = ((word >> 20) as u8, word & 0xf_ffff);
                let payload_len = from.u16()?;
                let [next_header, hop_limit] = from.array()?;
                let (source, dest) = (from.array::<16>()?, from.array::<16>()?);
                Ok(if next_header == BTH {
                    let (sgid, dgid) = (Gid(source), Gid(dest));
                    Self::Ib { traffic_class, flow_label, payload_len, hop_limit, sgid, dgid }
                } else {
                    let (source, dest) = (source.into(), dest.into());
                    Self::V6 { traffic_class, flow_label, payload_len, hop_limit, source, dest }
                })
            }
            0 => {
                from.skip::<16>()?;
                let [version, tos] = from.array()?;
                if version != 0x45 {
                    return Err(Malformed::Field("GRH IPv4 version and header length"));
                }
                let payload_len = from.u16()?.checked_sub(20).ok_or(Malformed::Length)?;
                let identification = from.u16()?;
                from.skip::<2>()?;
                let [ttl, _protocol, _, _] = from.array()?;
                let (source, dest) = (from.array::<4>()?.into(), from.array::<4>()?.into());
                Ok(Self::V4 { tos, payload_len, identification, ttl, source, dest })
            }
            _ => Err(Malformed::Field("GRH IP version")),
        }
    }

    /// The header as bytes, as of an unfragmented UDP datagram with DF set. The IPv4 checksum is
    /// right: programs tell the two forms apart by it (`ibv_init_ah_from_wc(3)`).
    pub fn emit(&self) -> [u8; GRH_LEN] {
        let mut bytes = [0; GRH_LEN];
        let mut out = Writer::new(&mut bytes);
        match *self {
            Self::V4 { tos, payload_len, identification, ttl, source, dest } => {
                out.skip::<20>();
                out.array([0x45, tos]);
                out.u16(payload_len.saturating_add(20));
                out.u16(identification);
                out.u16(DF);
                out.array([ttl, UDP, 0, 0]);
                out.array(source.octets());
                out.array(dest.octets());
                let checksum = internet_checksum(&bytes[20..]);
                bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
            }
            Self::V6 { traffic_class, flow_label, payload_len, hop_limit, source, dest } => {
                out.u32(6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xf_ffff);
                out.u16(payload_len);
                out.array([UDP, hop_limit]);
                out.array(source.octets());
                out.array(dest.octets());
            }
            Self::Ib { traffic_class, flow_label, payload_len, hop_limit, sgid, dgid } => {
                out.u32(6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xf_ffff);
                out.u16(payload_len);
                out.array([BTH, hop_limit]);
                out.array(sgid.0);
                out.array(dgid.0);
            }
        }
        bytes
    }
}

/// The checksum of the Internet protocols (RFC 1071), over an even number of bytes, as many as a
/// datagram has at most.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.as_chunks().0.iter().map(|&pair| u32::from(u16::from_be_bytes(pair))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_example_of_rfc_1071_agrees() {
        assert_eq!(internet_checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn an_ipv4_header_follows_twenty_zero_bytes_and_sums_to_zero() {
        let grh = Grh::V4 {
            tos: 2,
            payload_len: 300,
            identification: 7,
            ttl: 64,
            source: Ipv4Addr::new(10, 77, 0, 2),
            dest: Ipv4Addr::new(10, 77, 0, 3),
        };
        let bytes = grh.emit();
        assert_eq!(bytes[..20], [0; 20]);
        assert_eq!(bytes[20..24], [0x45, 2, 1, 64]);
        assert_eq!(internet_checksum(&bytes[20..]), 0);
        assert_eq!(Grh::parse(&bytes), Ok(grh));
    }
}
