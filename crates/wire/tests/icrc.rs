//! The ICRC beside a plain CRC-32 over what annex A17 says it covers, written down byte by byte.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use wire::Gid;
use wire::icrc::{Flow, Icrc, PAGE, Remainder};

/// All that is covered of a packet that is sent over `flow`.
fn covered_bytes(flow: &Flow, ip_id: u16, packet: &[u8]) -> Vec<u8> {
    let mut all = vec![0xff; 8];
    let udp_len = 8 + packet.len() as u16 + 4;
    match (flow.source.ip().to_canonical(), flow.dest.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            all.extend([0x45, 0xff]);
            all.extend((20 + udp_len).to_be_bytes());
            all.extend(ip_id.to_be_bytes());
            all.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            all.extend(source.octets());
            all.extend(dest.octets());
        }
        (source, dest) => {
            all.extend([0x6f, 0xff, 0xff, 0xff]);
            all.extend(udp_len.to_be_bytes());
            all.extend([17, 0xff]);
            all.extend(Gid::from(source).0);
            all.extend(Gid::from(dest).0);
        }
    }
    all.extend(flow.source.port().to_be_bytes());
    all.extend(flow.dest.port().to_be_bytes());
    all.extend(udp_len.to_be_bytes());
    all.extend([0xff, 0xff]);
    let bth = all.len();
    all.extend(packet);
    all[bth + 4] = 0xff;
    all
}

fn flow() -> impl Strategy<Value = Flow> {
    let ends = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|ends| ends.map(IpAddr::from)),
        any::<[[u8; 16]; 2]>().prop_map(|ends| ends.map(IpAddr::from)),
    ];
    (ends, any::<u16>()).prop_map(|([source, dest], port)| Flow {
        source: SocketAddr::new(source, port),
        dest: SocketAddr::new(dest, wire::ROCE_PORT),
    })
}

proptest! {
    #[test]
    fn packets_of_all_lengths_and_identifications_are_sealed_and_opened_one_after_the_other(
        flow in flow(),
        packets in proptest::collection::vec((prop_oneof![0u16..80, any::<u16>()], 4usize..80, any::<[u8; 3]>()), 1..12),
    ) {
        let (mut sealing, mut opening) = (Icrc::of(flow), Icrc::of(flow));
        for (ip_id, words, [seed, reserved, routers]) in packets {
            let mut packet: Vec<u8> = (0..words * 4).map(|at| (at as u8).wrapping_mul(seed)).collect();
            packet[4] = reserved.saturating_sub(128);
            sealing.seal(ip_id, &mut packet);
            let (covered, icrc) = packet.split_last_chunk().unwrap();
            prop_assert_eq!(u32::from_le_bytes(*icrc), crc32fast::hash(&covered_bytes(&flow, ip_id, covered)));
            prop_assert_eq!(opening.open(&packet), Ok(covered));
            packet[4] ^= routers;
            prop_assert!(opening.open(&packet).is_ok(), "routers may change that byte");
            packet[5] ^= 1;
            prop_assert!(opening.open(&packet).is_err());
        }
    }
}

proptest! {
    #[test]
    fn a_payload_whose_remainder_is_known_is_sealed_as_one_that_is_read(
        flow in flow(),
        ip_id in prop_oneof![0u16..80, any::<u16>()],
        headers in 3usize..12,
        longer in 0usize..2,
        seed in any::<u8>(),
        reserved in any::<u8>(),
    ) {
        let mut packet: Vec<u8> = (0..4 * headers + PAGE + 4).map(|at| (at / 7) as u8 ^ (at as u8).wrapping_mul(seed)).collect();
        packet[4] = reserved;
        let payload = Remainder::of(&packet[4 * headers..4 * headers + PAGE]);
        let mut read = packet.clone();
        Icrc::of(flow).seal(ip_id, &mut read);
        Icrc::of(flow).seal_with(ip_id, &mut packet, payload);
        prop_assert_eq!(&packet, &read);
        // One that has no such payload is read all the same.
        let short = 16 * (1 + longer);
        Icrc::of(flow).seal(ip_id, &mut read[..short]);
        Icrc::of(flow).seal_with(ip_id, &mut packet[..short], payload);
        prop_assert_eq!(&packet[..short], &read[..short]);
    }
}
