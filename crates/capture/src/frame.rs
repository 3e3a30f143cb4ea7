//! The headers of a packet that no socket shows, so that a file holds what was on the wire: IP and
//! UDP, or between LIDs the LRH.

use std::net::IpAddr;

use wire::Gid;
use wire::grh::{GRH_LEN, Grh, internet_checksum};
use wire::icrc::{Flow, Icrc};
use wire::lrh;

use crate::message::{Lids, Packet, Protocol};
use crate::segment;

/// UDP (RFC 768).
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
/// Bytes before the IPv4 header in a GRH of that form.
const BEFORE_V4: usize = 20;
/// What systems send with where nothing else is said.
const HOP_LIMIT: u8 = 64;

/// The packet from its IP header or its LRH on, or a frame as it is. What a UDP socket does not
/// show of an arrived packet is the usual: TTL or hop limit 64, traffic class 0, DF set. The IPv4
/// identification follows from the ICRC, and is 0 where that matches none.
pub(crate) fn with_headers(packet: &Packet<'_>) -> Vec<u8> {
    match packet.protocol {
        Protocol::Tcp(header) => return segment::with_headers(packet, header),
        Protocol::Ethernet => return packet.bytes.to_vec(),
        Protocol::Infiniband(lids) => return by_lid(lids, packet.bytes),
        Protocol::Roce => {}
    }
    let Packet { source, dest, traffic_class, bytes, .. } = *packet;
    let hop_limit = if packet.hop_limit == 0 { HOP_LIMIT } else { packet.hop_limit };
    let payload_len = (UDP_LEN + bytes.len()) as u16;
    let mut udp = [0; UDP_LEN];
    udp[..2].copy_from_slice(&source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&dest.port().to_be_bytes());
    udp[4..6].copy_from_slice(&payload_len.to_be_bytes());
    let (header, begin): ([u8; GRH_LEN], usize) = match (source.ip().to_canonical(), dest.ip().to_canonical())
    {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let identification = Icrc::of(Flow { source, dest }).identification(bytes).unwrap_or_default();
            let (tos, ttl, source, dest) = (traffic_class, hop_limit, from, to);
            // RoCEv2 needs no UDP checksum there, as the ICRC covers more.
            (Grh::V4 { tos, payload_len, identification, ttl, source, dest }.emit(), BEFORE_V4)
        }
        (from, to) => {
            let (source, dest) = (Gid::from(from).0.into(), Gid::from(to).0.into());
            let header =
                Grh::V6 { traffic_class, flow_label: 0, payload_len, hop_limit, source, dest }.emit();
            let checksum = v6_checksum(&header, udp, bytes);
            udp[6..].copy_from_slice(&checksum.to_be_bytes());
            (header, 0)
        }
    };
    [&header[begin..], &udp, bytes].concat()
}

/// The packet from its LRH to its VCRC. Bytes that are no packet, as a program may have another
/// process send them, are shown as they are.
fn by_lid(lids: Lids, bytes: &[u8]) -> Vec<u8> {
    let whole = lids.ends().and_then(|[source, dest]| lrh::on_link(source, dest, bytes));
    whole.unwrap_or_else(|| bytes.to_vec())
}

/// The UDP checksum, which IPv6 has always (RFC 8200 §8.1): over the addresses, the length, the
/// protocol and the datagram.
fn v6_checksum(header: &[u8; GRH_LEN], udp: [u8; UDP_LEN], bytes: &[u8]) -> u16 {
    let (addresses, length) = (&header[8..], &udp[4..6]);
    let padding = &[0][..bytes.len() % 2];
    match internet_checksum(&[addresses, &[0, 0], length, &[0, 0, 0, UDP], &udp, bytes, padding].concat()) {
        0 => 0xffff,
        sum => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Direction, Outcome};

    fn frame(source: &str, dest: &str, id: u16) -> (Vec<u8>, Vec<u8>) {
        let (source, dest) = (source.parse().unwrap(), dest.parse().unwrap());
        let mut bytes = vec![4, 0, 0xff, 0xff, 0, 0, 0, 9, 0x80, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0, 0];
        wire::icrc::seal(&Flow { source, dest }, id, &mut bytes);
        let packet = Packet {
            time: 0,
            direction: Direction::Out,
            interface: 1,
            source,
            dest,
            traffic_class: 0x10,
            hop_limit: 0,
            outcome: Outcome::Good,
            protocol: Protocol::Roce,
            bytes: &bytes,
        };
        (with_headers(&packet), bytes)
    }

    #[test]
    fn ipv4_headers_have_the_identification_that_the_icrc_covers() {
        for id in [0, 1, 0x1234] {
            let (frame, bytes) = frame("10.0.0.1:50000", "10.0.0.2:4791", id);
            assert_eq!(frame[..6], [0x45, 0x10, 0, 48, (id >> 8) as u8, id as u8]);
            assert_eq!(frame[6..10], [0x40, 0, 64, 17]);
            assert_eq!(internet_checksum(&frame[..20]), 0);
            assert_eq!(frame[20..28], [0xc3, 0x50, 0x12, 0xb7, 0, 28, 0, 0]);
            assert_eq!(frame[28..], bytes);
        }
    }

    #[test]
    fn ipv6_headers_have_a_udp_checksum() {
        let (frame, bytes) = frame("[fd00::1]:50000", "[fd00::2]:4791", 0);
        assert_eq!(frame[..8], [0x61, 0, 0, 0, 0, 28, 17, 64]);
        let pseudo = [&frame[8..40], &[0, 0, 0, 28, 0, 0, 0, 17], &frame[40..]].concat();
        assert_eq!(internet_checksum(&pseudo), 0);
        assert_eq!(frame[48..], bytes);
    }
}
