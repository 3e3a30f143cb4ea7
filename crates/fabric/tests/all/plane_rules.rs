//! What a link of a way takes of some packets: by its MTU, by partitions, and by dice on the way to
//! a group.

use fabric::plane::{Arrival, GroupPassage, PacketInfo, Passage, Verdict};
use wire::Pkey;
use wire::mad::PortInfo;
use wire::mad::smp::{Smp, attribute};

use crate::plane::{Mapped, PROGRAM};
use crate::traps::{managed_by, repress};

const PACKET: PacketInfo = PacketInfo { words: 10, payload: 8, pkey: Pkey(0xffff) };
/// Of PortInfo's enforcement: in and out.
const IN: u8 = 8;
const OUT: u8 = 4;

/// Changes PortInfo of a port of the first switch, as a subnet manager does.
fn set_port(mapped: &mut Mapped, port: u8, change: impl FnOnce(&mut PortInfo)) {
    let who = mapped.world.prober("a");
    assert_eq!(mapped.world.change(who, (&[1], port.into()), change), 0);
    mapped.world.fabric.settle(mapped.world.now);
}

/// Writes the P_Keys of a port of the first switch.
fn set_pkeys(mapped: &mut Mapped, port: u8, keys: &[u16]) {
    let who = mapped.world.prober("a");
    let mut data = [0; 64];
    data.as_chunks_mut::<2>().0.iter_mut().zip(keys).for_each(|(to, key)| *to = key.to_be_bytes());
    mapped.world.set(who, &[1], (attribute::PKEY_TABLE, u32::from(port) << 16), data).unwrap();
    mapped.world.fabric.settle(mapped.world.now);
}

/// Constraint errors of a port: of what it sends, and of what it receives.
fn constraint_errors(mapped: &mut Mapped, node: &str, port: u8) -> (u8, u8) {
    let counters = mapped.world.fabric.counters_of(node, port).unwrap();
    (counters.transmit_constraint_errors, counters.receive_constraint_errors)
}

fn of(pkey: u16) -> PacketInfo {
    PacketInfo { pkey: Pkey(pkey), ..PACKET }
}

#[test]
fn a_packet_larger_than_the_mtu_of_a_link_on_its_way_is_discarded_there() {
    let mut mapped = Mapped::new();
    set_port(&mut mapped, 2, |info| info.neighbour_mtu = 3);
    let mut passage = mapped.passage("a", "b");
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Dice, "each packet is looked at");
    let before = mapped.counted("leaf0", 2);
    let large = PacketInfo { payload: 1025, ..PACKET };
    let fits = PacketInfo { payload: 1024, ..PACKET };
    assert_eq!([large, fits].map(|packet| passage.pass(mapped.plane(), &packet)), [false, true]);
    let after = mapped.counted("leaf0", 2);
    assert_eq!((after[0] - before[0], after[3] - before[3]), (1, 1), "one sent, one discarded");
    assert_eq!(mapped.passage("a", "c").verdict(mapped.plane()), Verdict::Arrive, "another link");
}

#[test]
fn a_switch_that_enforces_partitions_lets_members_pass_and_counts_the_others() {
    let mut mapped = Mapped::new();
    set_pkeys(&mut mapped, 1, &[0xffff, 0x8005]);
    set_port(&mut mapped, 1, |info| info.enforcement = IN);
    set_pkeys(&mut mapped, 2, &[0xffff, 0x0006]);
    set_port(&mut mapped, 2, |info| info.enforcement = OUT);
    let mut passage = mapped.passage("a", "b");
    let plane = mapped.plane();
    assert_eq!(passage.verdict(plane), Verdict::Arrive, "the default partition passes unseen");
    assert!(passage.looks_at_partitions());
    let passes = |passage: &mut Passage, pkey| passage.pass(plane, &of(pkey));
    // 5 is none of port 2's, 6 none of port 1's, 0 is no partition.
    let passed = [0xffff, 0x7fff, 0x8005, 0x8006, 0x8000].map(|pkey| passes(&mut passage, pkey));
    assert_eq!(passed, [true, true, false, false, false]);
    let mut other_way = mapped.passage("b", "a");
    assert!(passes(&mut other_way, 0x8006), "each direction has rules of its own");
    assert_eq!(constraint_errors(&mut mapped, "leaf0", 1), (0, 2), "6 and 0 came in");
    assert_eq!(constraint_errors(&mut mapped, "leaf0", 2), (1, 0), "5 did not go out");
    // Without the default partition in a table all is looked at.
    set_pkeys(&mut mapped, 2, &[0x8005]);
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Dice);
    assert_eq!([0xffff, 0x8005].map(|pkey| passage.pass(mapped.plane(), &of(pkey))), [false, true]);
}

#[test]
fn a_switch_tells_of_packets_of_other_partitions_until_it_is_repressed() {
    let mut mapped = Mapped::new();
    set_pkeys(&mut mapped, 2, &[0xffff]);
    set_port(&mut mapped, 2, |info| info.enforcement = OUT);
    let mut passage = mapped.passage("a", "b");
    let mut refuse = |mapped: &mut Mapped, times: usize| {
        (0..times).for_each(|_| assert!(!passage.pass(mapped.plane(), &of(0x8005))));
        constraint_errors(mapped, "leaf0", 2);
        mapped.world.fabric.settle(mapped.world.now);
    };
    let (client, agent) = managed_by(&mut mapped.world);
    refuse(&mut mapped, 3);
    let trap = mapped.world.read(client).expect("a trap");
    let smp = Smp::parse(&trap.mad).unwrap();
    assert_eq!((&smp.data[..6], smp.data[60]), (&[0x82, 0, 0, 2, 1, 3][..], 2), "259, of port 2");
    // Those that follow tell nothing new, until the manager has heard.
    refuse(&mut mapped, 3);
    assert_eq!(mapped.world.read(client), None);
    repress(&mut mapped.world, client, agent, &trap);
    assert_eq!(mapped.world.fabric.deadline(), None);
    refuse(&mut mapped, 1);
    assert!(mapped.world.read(client).is_some_and(|again| again.mad != trap.mad));
}

#[test]
fn a_rule_on_the_way_to_a_group_takes_packets_from_the_hosts_behind_it_alone() {
    let mut mapped = Mapped::new();
    mapped.join_all_but_a();
    mapped.world.fabric.set_drop("leaf0", 3, 500_000).unwrap();
    mapped.world.fabric.settle(mapped.world.now);
    let port = |host: &str| mapped.world.fabric.describe(host).unwrap()[0].ports[0].plane_port;
    let [a, b, c, d] = ["a", "b", "c", "d"].map(port);
    let before =
        [("leaf0", 3), ("leaf1", 3), ("b", 1), ("c", 1)].map(|(node, port)| mapped.counted(node, port));
    let mut group = GroupPassage::new(PROGRAM, a, 0xc001);
    let arrivals = group.pass(mapped.plane(), &[PACKET; 1000]);
    let behind = arrivals.iter().find(|arrival| arrival.port == c).unwrap().packets.clone().unwrap();
    let many = behind.iter().filter(|arrives| **arrives).count() as u64;
    assert!((400..600).contains(&many), "{many} of 1000");
    let with = |port, packets| Arrival { port, packets };
    assert_eq!(arrivals, [with(b, None), with(c, Some(behind.clone())), with(d, Some(behind))]);
    let after =
        [("leaf0", 3), ("leaf1", 3), ("b", 1), ("c", 1)].map(|(node, port)| mapped.counted(node, port));
    let more = |n: usize, which: usize| after[n][which] - before[n][which];
    assert_eq!([more(0, 0), more(0, 3)], [many, 1000 - many], "sent on, and discarded");
    assert_eq!([more(1, 2), more(2, 2), more(3, 2)], [many, 1000, many], "received");
}

#[test]
fn what_rules_ask_of_a_packet_is_read_from_its_headers() {
    assert_eq!(PacketInfo::of(&[], true), PacketInfo { words: 2, payload: 0, pkey: Pkey::default() });
    // BTH of a SEND only of partition 5, four bytes, room for an ICRC.
    let mut packet = [4, 0, 0x80, 5, 0, 0, 0, 9, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0].to_vec();
    assert_eq!(PacketInfo::of(&packet, false), PacketInfo { words: 7, payload: 4, pkey: Pkey(0x8005) });
    packet.splice(0..0, [0; 40]);
    assert_eq!(PacketInfo::of(&packet, true), PacketInfo { words: 17, payload: 4, pkey: Pkey(0x8005) });
}

#[test]
fn a_path_without_a_row_loses_its_packets_and_the_fabric_tells_of_it() {
    let mut mapped = Mapped::new();
    let layout = mapped.layout.with_rows(1);
    mapped.map(layout);
    assert!(!mapped.world.fabric.show(None).unwrap().contains("without a row"));
    let mut first = mapped.passage("a", "b");
    assert!(first.pass(mapped.plane(), &PACKET));
    let mut second = mapped.passage("a", "c");
    assert!(!second.pass(mapped.plane(), &PACKET));
    let shown = mapped.world.fabric.show(None).unwrap();
    assert!(shown.ends_with("paths without a row, whose packets are lost: 1\n"), "{shown}");
}
