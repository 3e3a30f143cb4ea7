//! Packets that were fatal to other implementations, and the ICRC against a hostile or careless
//! sender.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::Malformed;
use wire::icrc::{self, Flow, ICRC_LEN, MAX_PACKET};
use wire::iwarp::Parsed;
use wire::iwarp::crc::Crc32c;
use wire::iwarp::fpdu::Fpdu;
use wire::iwarp::mpa::{Frame, Kind};
use wire::iwarp::rdmap::{Cause, Code, Terminate};
use wire::mad::{MAD_LEN, Mad};
use wire::roce::{Op, Packet, Service};

/// A BTH of `opcode` and `flags` (event, migration, pad count, version), and `rest` after it.
fn packet(opcode: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![opcode, flags, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0, 0, 7];
    bytes.extend_from_slice(rest);
    bytes
}

fn ipv4() -> Flow {
    let end = |last, port| SocketAddr::new(Ipv4Addr::new(10, 77, 0, last).into(), port);
    Flow { source: end(2, 49476), dest: end(3, 4791) }
}

const LEGAL: [std::ops::RangeInclusive<u8>; 9] = [
    0x00..=0x14, // RC
    0x16..=0x17,
    0x1c..=0x1d,
    0x20..=0x2b, // UC
    0x64..=0x65, // UD
    0x81..=0x81, // CNP
    0xa0..=0xb4, // XRC
    0xb6..=0xb7,
    0xbc..=0xbd,
];

// Field bug 1: lengths were computed before the opcode was known to be legal; 48 bytes killed the
// kernel.
#[test]
fn unknown_opcode_is_refused_as_such_at_every_length() {
    let mut refused = 0;
    for opcode in (0..=0xff).filter(|opcode| !LEGAL.iter().any(|legal| legal.contains(opcode))) {
        refused += 1;
        for len in 0..=64 {
            for flags in [0x00, 0x30, 0xff] {
                assert_eq!(
                    Packet::parse(&packet(opcode, flags, &vec![0xa5; len])),
                    Err(Malformed::Opcode(opcode)),
                    "{len} bytes behind the BTH"
                );
            }
        }
    }
    assert_eq!(refused, 256 - 65);
}

// Field bug 2: pad count or ICRC longer than what was left of a short packet; runts.
#[test]
fn pad_count_longer_than_the_payload_is_refused() {
    for opcode in LEGAL.into_iter().flatten() {
        for pad in 1..=3 {
            for len in (0..=44).step_by(4) {
                if let Ok(packet) = Packet::parse(&packet(opcode, pad << 4, &vec![0; len])) {
                    assert!(packet.header.len() + packet.payload.len() + usize::from(pad) == 12 + len);
                }
            }
        }
    }
    // SEND ONLY: the BTH ends the packet, or one word follows it.
    assert_eq!(Packet::parse(&packet(0x04, 0x30, &[])), Err(Malformed::Pad(3)));
    assert_eq!(Packet::parse(&packet(0x04, 0x30, b"x\0\0\0")).unwrap().payload, b"x");
    // WRITE ONLY: the RETH is not payload, so nothing there may be padding.
    assert_eq!(Packet::parse(&packet(0x0a, 0x10, &[0; 16])), Err(Malformed::Pad(1)));
}

// Field bug 2, second half.
#[test]
fn runts_are_truncated_before_anything_else_is_read() {
    for len in 0..12 {
        assert_eq!(Packet::parse(&packet(0x04, 0, &[])[..len]), Err(Malformed::Truncated));
    }
    for len in 0..16 {
        assert_eq!(icrc::open(&ipv4(), &[0xff; 16][..len]), Err(Malformed::Truncated));
    }
    for len in 0..MAD_LEN {
        assert_eq!(Mad::parse(&[1; MAD_LEN][..len]), Err(Malformed::Truncated));
    }
}

// Field bug 3: an opcode was compared under too wide a mask, so a check of datagrams never fired.
#[test]
fn every_legal_opcode_belongs_to_exactly_the_service_of_its_upper_bits() {
    for opcode in LEGAL.into_iter().flatten() {
        let bytes = packet(opcode, 0, &[0; 44]);
        // ACKs and the like have no payload: find the length that fits.
        let parsed = (12..=bytes.len()).find_map(|len| Packet::parse(&bytes[..len]).ok());
        let packet = parsed.unwrap_or_else(|| panic!("{opcode:#04x} at no length"));
        let expected = match packet.header.service {
            Service::Rc if packet.header.op == Op::CongestionNotification => 4,
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Ud(_) => 3,
            Service::Xrc(_) => 5,
        };
        assert_eq!(opcode >> 5, expected, "{opcode:#04x}");
        assert_eq!(packet.header.opcode(), opcode);
    }
}

// Field bug 3, the wire's half: a datagram of bad length is no packet, so no queue pair hears of
// it.
#[test]
fn datagram_of_bad_length_is_dropped_before_it_reaches_a_queue_pair() {
    for opcode in [0x64, 0x65] {
        let headers = if opcode == 0x64 { 8 } else { 12 };
        for len in 0..headers {
            assert_eq!(Packet::parse(&packet(opcode, 0, &vec![0; len])), Err(Malformed::Truncated));
        }
        for len in headers + 1..headers + 4 {
            assert_eq!(Packet::parse(&packet(opcode, 0, &vec![0; len])), Err(Malformed::Length));
        }
        assert_eq!(Packet::parse(&packet(opcode, 0x10, &vec![0; headers])), Err(Malformed::Pad(1)));
    }
}

#[test]
fn payload_behind_an_operation_that_has_none_is_refused() {
    for (opcode, headers) in [(0x0c, 16), (0x11, 4), (0x12, 12), (0x13, 28), (0x14, 28), (0x1c, 20)] {
        assert!(Packet::parse(&packet(opcode, 0, &vec![0; headers])).is_ok(), "{opcode:#04x}");
        assert_eq!(Packet::parse(&packet(opcode, 0, &vec![0; headers + 4])), Err(Malformed::Length));
    }
}

// Field bug 4 is the responder's to answer: the packet must reach it.
#[test]
fn atomic_write_of_any_length_reaches_the_responder() {
    let mut rest = [0; 20];
    rest[15] = 4; // RETH length
    let bytes = packet(0x1d, 0, &rest);
    let Packet { header, payload } = Packet::parse(&bytes).unwrap();
    assert!(matches!(header.op, Op::AtomicWrite(reth) if reth.length == 4));
    assert_eq!(payload.len(), 4);
}

#[test]
fn reserved_syndromes_are_refused() {
    for syndrome in [0x40, 0x5f, 0x65, 0x7f] {
        let refused = Packet::parse(&[&packet(0x11, 0, &[])[..], &[syndrome, 0, 0, 0]].concat()).is_err();
        assert!(refused, "{syndrome:#04x}");
    }
}

#[test]
fn every_identification_opens_at_the_shortest_and_the_longest_packet() {
    for len in [16, MAX_PACKET] {
        let mut packet = vec![0x5a; len];
        // In steps for the long one; 251 is coprime to 2^16, so all bits vary.
        for ip_id in (0..=0xffff).step_by(if len == 16 { 1 } else { 251 }) {
            icrc::seal(&ipv4(), ip_id, &mut packet);
            assert!(icrc::open(&ipv4(), &packet).is_ok(), "identification {ip_id}, {len} bytes");
        }
    }
}

#[test]
fn a_header_without_df_opens_and_one_of_a_fragment_does_not() {
    let mut packet = [0x5a; 80];
    for (flags, opens) in
        [(0x4000u16, true), (0x0000, true), (0x2000, false), (0x4001, false), (0x8000, false)]
    {
        // The CRC from scratch, with flags that `seal` does not write.
        let mut head = [0xff; 48];
        let udp_len = 8 + packet.len() as u16;
        head[8..10].copy_from_slice(&[0x45, 0xff]);
        head[10..12].copy_from_slice(&(udp_len + 20).to_be_bytes());
        head[12..14].copy_from_slice(&0xbeefu16.to_be_bytes());
        head[14..16].copy_from_slice(&flags.to_be_bytes());
        head[17] = 17;
        head[20..28].copy_from_slice(&[10, 77, 0, 2, 10, 77, 0, 3]);
        head[28..30].copy_from_slice(&49476u16.to_be_bytes());
        head[30..32].copy_from_slice(&4791u16.to_be_bytes());
        head[32..34].copy_from_slice(&udp_len.to_be_bytes());
        head[36..48].copy_from_slice(&packet[..12]);
        head[40] = 0xff;
        let crc = crc32fast::hash(&[&head[..], &packet[12..76]].concat());
        packet[76..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(icrc::open(&ipv4(), &packet).is_ok(), opens, "flags and offset {flags:#06x}");
    }
}

#[test]
fn one_in_two_to_the_fifteenth_corrupted_ipv4_packets_opens() {
    let mut packet = [0x5a; 64];
    let tries = 1u32 << 19;
    let opened = (0..tries)
        .filter(|n| {
            // A multiplicative hash stands for noise in the ICRC.
            packet[60..].copy_from_slice(&n.wrapping_mul(0x9e37_79b1).to_le_bytes());
            icrc::open(&ipv4(), &packet).is_ok()
        })
        .count();
    // One in 2^15: the right identification with DF set, or with DF clear.
    assert!((8..=24).contains(&opened), "{opened} of {tries}, 16 expected");
}

#[test]
fn lengths_that_no_packet_has_are_refused_before_the_crc_is_computed() {
    for len in [17, 18, 19, MAX_PACKET + 1, MAX_PACKET + 4, 65_507] {
        let mut packet = vec![0; len];
        icrc::seal(&ipv4(), 0, &mut packet);
        assert_eq!(icrc::open(&ipv4(), &packet), Err(Malformed::Length), "{len}");
    }
}

#[test]
fn an_ipv4_mapped_address_counts_as_ipv4() {
    let mapped = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), end.port()),
        IpAddr::V6(_) => end,
    };
    let mut packet = [7; 32];
    icrc::seal(&ipv4(), 9, &mut packet);
    let flow = Flow { source: mapped(ipv4().source), dest: mapped(ipv4().dest) };
    assert_eq!(icrc::open(&flow, &packet), Ok(&packet[..32 - ICRC_LEN]));
}

#[test]
fn an_identification_excuses_nothing_over_ipv6() {
    let end = |last, port| SocketAddr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last).into(), port);
    let flow = Flow { source: end(2, 49476), dest: end(3, 4791) };
    let mut packet = [7; 32];
    icrc::seal(&flow, 0, &mut packet);
    let sealed = u32::from_le_bytes(packet[28..].try_into().unwrap());
    for other in 1..=0xffff {
        packet[28..].copy_from_slice(&(sealed ^ other).to_le_bytes());
        assert!(icrc::open(&flow, &packet).is_err());
    }
}

/// A SEND of four bytes, from its ULPDU length to its CRC.
fn send_fpdu() -> Vec<u8> {
    let mut bytes = b"\0\x16\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0data".to_vec();
    bytes.extend(Crc32c::new().update(&bytes).finish());
    bytes
}

#[test]
fn a_malformed_fpdu_is_answered_by_the_code_of_the_layer_that_refuses_it() {
    for (at, value, cause, code) in [
        (1, 0x02, Cause::MpaFpduStart, (2, 0, 3)),
        (1, 0x11, Cause::MpaFpduStart, (2, 0, 3)),
        (2, 0x42, Cause::UntaggedVersion, (1, 2, 6)),
        (2, 0xc3, Cause::TaggedVersion, (1, 1, 4)),
        (3, 0x03, Cause::RdmapVersion, (0, 2, 5)),
        (3, 0x40, Cause::UnexpectedOpcode, (0, 2, 6)),
        (3, 0x4a, Cause::UnexpectedOpcode, (0, 2, 6)),
        (11, 3, Cause::InvalidQn, (1, 2, 1)),
    ] {
        let mut bytes = send_fpdu();
        bytes[at] = value;
        let bad = Fpdu::parse(&bytes, false).unwrap_err();
        assert_eq!(bad.cause(), cause, "byte {at}");
        let (layer, etype, code) = code;
        let terminate = Terminate::of(bad.cause(), &bytes);
        assert_eq!(terminate.code, Code { layer, etype, code });
        assert_eq!(terminate.refused.is_some(), cause == Cause::InvalidQn);
    }
}

#[test]
fn with_the_crc_in_use_a_corrupt_length_alone_can_hide_that_the_fpdu_is_corrupt() {
    let whole = send_fpdu();
    assert!(matches!(Fpdu::parse(&whole, true), Ok(Parsed::Whole(_))));
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match Fpdu::parse(&bytes, true) {
            Err(bad) => assert_eq!(bad.cause(), Cause::MpaCrc),
            Ok(parsed) => assert!(bit < 16 && matches!(parsed, Parsed::Needs(_)), "bit {bit}"),
        }
    }
}

#[test]
fn a_peer_that_speaks_another_protocol_is_known_by_its_first_bytes() {
    for bytes in [&b"GET / HTTP/1.1"[..], b"\x16\x03\x01", b"MPA ID Rex", b"\0"] {
        for kind in [Kind::Request, Kind::Reply] {
            assert!(Frame::parse(kind, bytes).is_err(), "{bytes:?}");
        }
    }
}
