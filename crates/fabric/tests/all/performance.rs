//! The counters of ports, as perfquery asks for them.

use fabric::umad::UmadHeader;
use wire::mad::perf::{DATA, PortCounters, attribute};
use wire::mad::{Header, class, method, status};

use crate::support::{World, registration, vendor_mad};

/// A question of performance management.
fn pma(world: &mut World, host: &str, lid: u16, kind: u8, attribute: u16, data: &[u8]) -> Vec<u8> {
    let client = world.open(host);
    let agent = world.fabric.register(client, &registration(class::PERF_MGMT, &[])).unwrap();
    let header = Header {
        base_version: 1,
        class: class::PERF_MGMT,
        class_version: 1,
        method: kind,
        attribute,
        transaction_id: 9,
        ..Header::default()
    };
    let mut mad = vec![0; 256];
    mad[..Header::LEN].copy_from_slice(&header.emit());
    mad[DATA..DATA + data.len()].copy_from_slice(data);
    world.send(client, UmadHeader { agent, lid, qpn: 1, timeout_ms: 100, ..UmadHeader::default() }, &mad);
    let answer = world.read(client).expect("an answer").mad;
    world.fabric.close(client);
    answer
}

/// Some counters of all ports of each of these LIDs, asked from a host.
pub(crate) fn counters(world: &mut World, host: &str, lids: &[u16]) -> Vec<PortCounters> {
    let of = |lid: &u16| {
        let answer = pma(world, host, *lid, method::GET, attribute::PORT_COUNTERS, &[0, 255]);
        let half = |at: usize| u16::from_be_bytes([answer[DATA + at], answer[DATA + at + 1]]);
        let word = |at: usize| u64::from(half(at)) << 16 | u64::from(half(at + 2));
        PortCounters {
            symbol_errors: half(4),
            switch_relay_errors: half(12),
            transmit_discards: half(14),
            transmit_words: word(24),
            receive_words: word(28),
            transmit_packets: word(32),
            receive_packets: word(36),
            ..PortCounters::default()
        }
    };
    lids.iter().map(of).collect()
}

#[test]
fn a_packet_is_counted_at_every_port_of_its_way_and_subnet_management_at_none() {
    let mut world = World::new();
    let who = world.configure("a");
    let far = world.port_info(who, &[1, 3, 1], 1).lid;
    let client = world.open("a");
    let agent = world.fabric.register(client, &registration(0x32, &[])).unwrap();
    for tid in 0..10 {
        world.send(
            client,
            UmadHeader { agent, lid: far, qpn: 1, ..UmadHeader::default() },
            &vendor_mad(1, tid),
        );
    }
    // The ten, their ten refusals, and the question and answer of this one.
    let [counted] = counters(&mut world, "a", &[far])[..] else { panic!() };
    assert_eq!((counted.receive_packets, counted.transmit_packets), (11, 10));
    assert_eq!((counted.receive_words, counted.transmit_words), (11 * 72, 10 * 72));
    // Each at two ports of the switch on the way: in and out.
    let leaf = world.port_info(who, &[1], 0).lid;
    let [counted] = counters(&mut world, "a", &[leaf])[..] else { panic!() };
    assert_eq!((counted.receive_packets, counted.transmit_packets), (11 + 11 + 1, 11 + 11));
}

#[test]
fn counters_are_set_and_reset_as_they_are_selected() {
    let mut world = World::new();
    let who = world.configure("a");
    let leaf = world.port_info(who, &[1], 0).lid;
    world.fabric.set_counter("leaf0", 3, "SymbolErrorCounter", 20).unwrap();
    world.fabric.set_counter("leaf0", 3, "portxmitdiscards", 70_000).unwrap();
    let read = |world: &mut World| {
        let answer = pma(world, "a", leaf, method::GET, attribute::PORT_COUNTERS, &[0, 3]);
        (answer[DATA + 5], answer[DATA + 14..DATA + 16].to_vec())
    };
    assert_eq!(read(&mut world), (20, vec![0xff, 0xff]));
    // Bit 0 is symbol errors.
    pma(&mut world, "a", leaf, method::SET, attribute::PORT_COUNTERS, &[0, 3, 0, 1, 0, 7]);
    assert_eq!(read(&mut world), (7, vec![0xff, 0xff]));
    pma(&mut world, "a", leaf, method::SET, attribute::PORT_COUNTERS, &[0, 255, 0xff, 0xff]);
    assert_eq!(read(&mut world), (0, vec![0, 0]));
    let words = [0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    pma(&mut world, "a", leaf, method::SET, attribute::PORT_COUNTERS_EXTENDED, &words);
    let extended = pma(&mut world, "a", leaf, method::GET, attribute::PORT_COUNTERS_EXTENDED, &[0, 3]);
    assert_eq!(extended[DATA + 8..DATA + 16], [0, 0, 0, 1, 0, 0, 0, 0]);
    let no_port = pma(&mut world, "a", leaf, method::GET, attribute::PORT_COUNTERS, &[0, 99]);
    assert_eq!(Header::parse(&no_port).unwrap().status, status::BAD_FIELD);
    let other = pma(&mut world, "a", leaf, method::GET, 0x77, &[]);
    assert_eq!(Header::parse(&other).unwrap().status, status::BAD_ATTRIBUTE);
    let class_port_info = pma(&mut world, "a", leaf, method::GET, attribute::CLASS_PORT_INFO, &[]);
    assert_eq!(class_port_info[DATA..DATA + 4], [1, 1, 0x13, 0]);
}
