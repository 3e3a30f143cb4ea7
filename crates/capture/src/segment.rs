//! The headers of a segment that no socket shows: IP and TCP (RFC 9293 §3.1).

use std::net::{IpAddr, SocketAddr};

use wire::Gid;
use wire::grh::{GRH_LEN, Grh, internet_checksum};

use crate::message::flags::SYN;
use crate::message::{Packet, Segment};

/// IP protocol number of TCP.
const TCP: u8 = 6;
/// Bytes of the header without options.
const TCP_LEN: usize = 20;
/// Options of the segments that open: the largest segment, as the loopback interface has it, and
/// windows in units of 16 KiB (RFC 7323 §2). A socket shows neither, nor the window.
const OPTIONS: [u8; 8] = [2, 4, 0xff, 0xd7, 1, 3, 3, 14];
const WINDOW: u16 = u16::MAX;
/// Bytes before the IPv4 header in a GRH of that form, and its protocol and checksum in it.
const BEFORE_V4: usize = 20;
const PROTOCOL_V4: usize = 29;
const CHECKSUM_V4: usize = 30;
/// The next header in an IPv6 header.
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: u8 = 64;

/// The segment from its IP header on.
pub(crate) fn with_headers(packet: &Packet<'_>, segment: Segment) -> Vec<u8> {
    let Packet { source, dest, bytes, .. } = *packet;
    let options: &[u8] = if segment.flags & SYN != 0 { &OPTIONS } else { &[] };
    let mut tcp = header(source, dest, segment, options);
    let ip = ip_header(source.ip(), dest.ip(), (tcp.len() + bytes.len()) as u16);
    let checksum = checksum(source.ip(), dest.ip(), &tcp, bytes);
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    [&ip[..], &tcp, bytes].concat()
}

fn header(source: SocketAddr, dest: SocketAddr, segment: Segment, options: &[u8]) -> Vec<u8> {
    let Segment { seq, ack, flags } = segment;
    let words = ((TCP_LEN + options.len()) / 4) as u8;
    let mut header = Vec::with_capacity(TCP_LEN + options.len());
    header.extend(source.port().to_be_bytes());
    header.extend(dest.port().to_be_bytes());
    header.extend(seq.to_be_bytes());
    header.extend(ack.to_be_bytes());
    header.extend([words << 4, flags]);
    header.extend(WINDOW.to_be_bytes());
    // Checksum, urgent pointer.
    header.extend([0; 4]);
    header.extend(options);
    header
}

fn ip_header(source: IpAddr, dest: IpAddr, payload_len: u16) -> Vec<u8> {
    match (source.to_canonical(), dest.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let (tos, identification, ttl) = (0, 0, HOP_LIMIT);
            let mut header = Grh::V4 { tos, payload_len, identification, ttl, source, dest }.emit();
            header[PROTOCOL_V4] = TCP;
            header[CHECKSUM_V4..CHECKSUM_V4 + 2].fill(0);
            let sum = internet_checksum(&header[BEFORE_V4..]);
            header[CHECKSUM_V4..CHECKSUM_V4 + 2].copy_from_slice(&sum.to_be_bytes());
            header[BEFORE_V4..].to_vec()
        }
        (source, dest) => {
            let (source, dest) = (Gid::from(source).0.into(), Gid::from(dest).0.into());
            let (traffic_class, flow_label, hop_limit) = (0, 0, HOP_LIMIT);
            let mut header: [u8; GRH_LEN] =
                Grh::V6 { traffic_class, flow_label, payload_len, hop_limit, source, dest }.emit();
            header[NEXT_HEADER] = TCP;
            header.to_vec()
        }
    }
}

/// Over the addresses, the protocol, the length and the segment.
fn checksum(source: IpAddr, dest: IpAddr, header: &[u8], bytes: &[u8]) -> u16 {
    let mut all = Vec::with_capacity(40 + header.len() + bytes.len() + 1);
    match (source.to_canonical(), dest.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => all.extend([source.octets(), dest.octets()].concat()),
        (source, dest) => all.extend([Gid::from(source).0, Gid::from(dest).0].concat()),
    }
    all.extend(((header.len() + bytes.len()) as u32).to_be_bytes());
    all.extend([0, 0, 0, TCP]);
    all.extend(header);
    all.extend(bytes);
    all.extend(&[0][..bytes.len() % 2]);
    internet_checksum(&all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::flags::ACK;
    use crate::message::{Direction, Outcome, Protocol};

    fn frame(source: &str, dest: &str, flags: u8, bytes: &[u8]) -> Vec<u8> {
        let segment = Segment { seq: 0x0102_0304, ack: 5, flags };
        let packet = Packet {
            time: 0,
            direction: Direction::Out,
            interface: 1,
            source: source.parse().unwrap(),
            dest: dest.parse().unwrap(),
            traffic_class: 0,
            hop_limit: 0,
            outcome: Outcome::Good,
            protocol: Protocol::Tcp(segment),
            bytes,
        };
        with_headers(&packet, segment)
    }

    #[test]
    fn a_segment_over_ipv4_has_its_length_and_both_checksums() {
        for bytes in [&b"odd"[..], b"even"] {
            let frame = frame("10.0.0.1:50000", "10.0.0.2:7174", ACK, bytes);
            assert_eq!((frame[0], frame[9], frame.len()), (0x45, TCP, 40 + bytes.len()));
            assert_eq!(u16::from_be_bytes([frame[2], frame[3]]) as usize, frame.len());
            assert_eq!(internet_checksum(&frame[..20]), 0);
            assert_eq!(frame[20..34], [0xc3, 0x50, 0x1c, 0x06, 1, 2, 3, 4, 0, 0, 0, 5, 0x50, ACK]);
            let len = (frame.len() - 20) as u8;
            let pseudo = [&frame[12..20], &[0, TCP, 0, len], &frame[20..], &[0][..bytes.len() % 2]].concat();
            assert_eq!((internet_checksum(&pseudo), &frame[40..]), (0, bytes));
        }
    }

    #[test]
    fn a_segment_over_ipv6_that_opens_has_its_options() {
        let frame = frame("[fd00::1]:50000", "[fd00::2]:7174", SYN, &[]);
        assert_eq!(frame[..8], [0x60, 0, 0, 0, 0, 28, TCP, 64]);
        assert_eq!((frame[52], frame[53], &frame[60..]), (0x70, SYN, &OPTIONS[..]));
        let pseudo = [&frame[8..40], &[0, 0, 0, 28, 0, 0, 0, TCP], &frame[40..]].concat();
        assert_eq!(internet_checksum(&pseudo), 0);
    }
}
