//! What programs send by the plane is counted as packets that the fabric carries itself, and is
//! lost where those would be.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fabric::plane::{Arrival, GroupPassage, Layout, PacketInfo, Passage, Plane, Verdict};
use wire::Pkey;
use wire::mad::smp::attribute;

use crate::support::World;

/// The number of the only program.
pub(crate) const PROGRAM: u32 = 7;

const PACKET: PacketInfo = PacketInfo { words: 10, payload: 8, pkey: Pkey(0xffff) };

/// A fabric with its plane, and what a program sees of it.
pub(crate) struct Mapped {
    pub(crate) world: World,
    words: Arc<Vec<AtomicU64>>,
    pub(crate) layout: Layout,
}

impl Mapped {
    pub(crate) fn new() -> Self {
        let mut world = World::new();
        world.configure("a");
        let layout = world.fabric.plane_layout();
        let mut mapped = Self { world, words: Arc::default(), layout };
        mapped.map(layout);
        mapped
    }

    /// Maps words with this layout.
    pub(crate) fn map(&mut self, layout: Layout) {
        let words: Arc<Vec<AtomicU64>> =
            Arc::new((0..layout.bytes().unwrap() / 8).map(|_| AtomicU64::new(0)).collect());
        self.world.fabric.map_plane_of(layout, words.clone());
        assert_eq!(Layout::of(&words), Some(layout));
        (self.words, self.layout) = (words, layout);
    }

    /// Has LID 0xc001 lead from leaf0 to b and to leaf1, from leaf1 to c, d and back.
    pub(crate) fn join_all_but_a(&mut self) {
        let prober = self.world.prober("a");
        for (path, ports) in [(&[1][..], 0b1100_u16), (&[1, 3], 0b1110)] {
            let mut data = [0; 64];
            data[2..4].copy_from_slice(&ports.to_be_bytes());
            self.world.set(prober, path, (attribute::MULTICAST_FORWARDING, 0), data).unwrap();
        }
    }

    pub(crate) fn plane(&self) -> Plane<'_> {
        Plane::new(&self.words, self.layout)
    }

    pub(crate) fn passage(&self, from: &str, to: &str) -> Passage {
        let port = |host: &str| self.world.fabric.describe(host).unwrap()[0].ports[0].clone();
        Passage::new(self.plane(), PROGRAM, port(from).plane_port, port(to).lid)
    }

    /// Packets sent, words sent, packets received, discards and relay errors of a port.
    pub(crate) fn counted(&mut self, node: &str, port: u8) -> [u64; 5] {
        let counters = self.world.fabric.counters_of(node, port).unwrap();
        [
            counters.transmit_packets,
            counters.transmit_words,
            counters.receive_packets,
            counters.transmit_discards.into(),
            counters.switch_relay_errors.into(),
        ]
    }
}

#[test]
fn what_a_program_sends_is_counted_at_every_port_of_its_way() {
    let mut mapped = Mapped::new();
    let before = [("a", 1), ("leaf0", 1), ("c", 1)].map(|(node, port)| mapped.counted(node, port));
    let mut passage = mapped.passage("a", "c");
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Arrive);
    passage.count(mapped.plane(), 5, 50);
    passage.count(mapped.plane(), 1, 7);
    let after = [("a", 1), ("leaf0", 1), ("c", 1)].map(|(node, port)| mapped.counted(node, port));
    let more = |n: usize, which: usize| after[n][which] - before[n][which];
    assert_eq!([more(0, 0), more(0, 1), more(0, 2)], [6, 57, 0], "the sender's port");
    assert_eq!([more(1, 0), more(1, 2)], [0, 6], "the switch's port to it");
    assert_eq!([more(2, 0), more(2, 2)], [0, 6], "the receiver's port");
    let end = mapped.world.fabric.describe("c").unwrap()[0].ports[0].plane_port;
    assert_eq!(passage.end(), Some(end));
}

#[test]
fn what_a_program_has_sent_before_it_ends_is_counted_and_its_rows_are_free() {
    let mut mapped = Mapped::new();
    let before = mapped.counted("a", 1);
    for _ in 0..3 {
        let mut passage = mapped.passage("a", "d");
        assert_eq!(passage.verdict(mapped.plane()), Verdict::Arrive);
        passage.count(mapped.plane(), 2, 20);
    }
    mapped.world.fabric.end_program(PROGRAM);
    assert_eq!(mapped.counted("a", 1)[0] - before[0], 6);
    let mut passage = mapped.passage("a", "d");
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Arrive);
    passage.count(mapped.plane(), 1, 1);
    assert_eq!(mapped.counted("a", 1)[0] - before[0], 7, "a row that was freed begins with nothing");
    passage.give_back(mapped.plane());
    assert_eq!(mapped.counted("a", 1)[0] - before[0], 7, "and is not counted twice");
}

#[test]
fn a_cut_cable_loses_packets_until_it_is_mended_and_active_and_each_is_counted() {
    let mut mapped = Mapped::new();
    let mut passage = mapped.passage("a", "b");
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Arrive);
    passage.count(mapped.plane(), 3, 30);
    let before = [mapped.counted("leaf0", 2), mapped.counted("b", 1)];
    mapped.world.fabric.set_cut("b", 1, true).unwrap();
    mapped.world.fabric.settle(mapped.world.now);
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Lost);
    passage.count(mapped.plane(), 4, 40);
    let after = [mapped.counted("leaf0", 2), mapped.counted("b", 1)];
    assert_eq!(after[0][3] - before[0][3], 4, "discards where the cable is cut");
    assert_eq!(after[1], before[1], "nothing has arrived");
    mapped.world.fabric.set_cut("b", 1, false).unwrap();
    mapped.world.fabric.settle(mapped.world.now);
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Lost, "no subnet manager has made it active");
}

#[test]
fn a_lid_without_a_way_is_a_relay_error_and_ones_own_lid_stays_in_the_adapter() {
    let mut mapped = Mapped::new();
    let from = mapped.world.fabric.describe("a").unwrap()[0].ports[0].clone();
    let before = [mapped.counted("leaf0", 1), mapped.counted("a", 1)];
    let mut nowhere = Passage::new(mapped.plane(), PROGRAM, from.plane_port, 0x1234);
    assert_eq!(nowhere.verdict(mapped.plane()), Verdict::Lost);
    nowhere.count(mapped.plane(), 2, 20);
    let mut own = Passage::new(mapped.plane(), PROGRAM, from.plane_port, from.lid);
    assert_eq!(own.verdict(mapped.plane()), Verdict::Arrive);
    own.count(mapped.plane(), 9, 90);
    let after = [mapped.counted("leaf0", 1), mapped.counted("a", 1)];
    assert_eq!((after[0][4] - before[0][4], after[1][0] - before[1][0]), (2, 2));
}

#[test]
fn a_drop_rule_takes_the_share_that_it_says_and_the_same_packets_each_time() {
    let throws = || {
        let mut mapped = Mapped::new();
        mapped.world.fabric.set_drop("leaf0", 2, 250_000).unwrap();
        mapped.world.fabric.settle(mapped.world.now);
        let mut passage = mapped.passage("a", "b");
        assert_eq!(passage.verdict(mapped.plane()), Verdict::Dice);
        let before = [mapped.counted("leaf0", 2), mapped.counted("leaf0", 1)];
        let thrown: Vec<bool> = (0..4000).map(|_| passage.throw(mapped.plane(), &PACKET)).collect();
        let after = [mapped.counted("leaf0", 2), mapped.counted("leaf0", 1)];
        let lost = thrown.iter().filter(|arrives| !**arrives).count() as u64;
        assert_eq!(after[0][3] - before[0][3], lost, "discards");
        assert_eq!(after[0][0] - before[0][0], 4000 - lost, "sent on");
        assert_eq!(after[1][2] - before[1][2], 4000, "received before the rule");
        assert!((850..1150).contains(&lost), "{lost} of 4000");
        thrown
    };
    assert_eq!(throws(), throws());
}

#[test]
fn a_packet_that_is_damaged_has_left_and_is_an_error_where_it_arrives() {
    let mut mapped = Mapped::new();
    mapped.world.fabric.set_damage("leaf0", 2, 1_000_000).unwrap();
    mapped.world.fabric.settle(mapped.world.now);
    let mut passage = mapped.passage("a", "b");
    assert_eq!(passage.verdict(mapped.plane()), Verdict::Dice);
    let before = [mapped.counted("leaf0", 2), mapped.counted("b", 1)];
    assert!((0..3).all(|_| !passage.throw(mapped.plane(), &PACKET)));
    let after = [mapped.counted("leaf0", 2), mapped.counted("b", 1)];
    assert_eq!((after[0][0] - before[0][0], after[0][3] - before[0][3]), (3, 0), "sent, not discarded");
    assert_eq!(after[1], before[1], "not received");
    let counters = mapped.world.fabric.counters_of("b", 1).unwrap();
    assert_eq!((counters.symbol_errors, counters.receive_errors), (3, 3));
}

#[test]
fn numbers_in_the_plane_that_mean_nothing_end_no_process() {
    let mut mapped = Mapped::new();
    let mut passage = mapped.passage("a", "c");
    passage.verdict(mapped.plane());
    passage.count(mapped.plane(), 1, 1);
    let mut state = 1u64;
    for round in 0..200 {
        for word in mapped.words.iter().skip(1).take(2000).chain(mapped.words.iter().rev().take(40)) {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(round | 1);
            word.store(state, std::sync::atomic::Ordering::Relaxed);
        }
        passage.verdict(mapped.plane());
        passage.count(mapped.plane(), 1, 1);
        if round % 50 == 0 {
            mapped.world.fabric.fold_plane();
        }
        let _ = Layout::of(&mapped.words);
    }
    for len in 0..64 {
        assert_eq!(Layout::of(&mapped.words[..len]), None);
    }
}

#[test]
fn a_packet_to_a_group_comes_to_the_ports_of_its_tables_and_counts_on_each_link_once() {
    let mut mapped = Mapped::new();
    mapped.join_all_but_a();
    mapped.world.fabric.settle(mapped.world.now);
    let before = [("a", 1), ("leaf0", 3), ("b", 1), ("c", 1)].map(|(node, port)| mapped.counted(node, port));
    let port =
        |mapped: &Mapped, host: &str| mapped.world.fabric.describe(host).unwrap()[0].ports[0].plane_port;
    let mut group = GroupPassage::new(PROGRAM, port(&mapped, "a"), 0xc001);
    let all = |port| Arrival { port, packets: None };
    let ends = group.pass(mapped.plane(), &[PACKET; 3]);
    assert_eq!(ends, ["b", "c", "d"].map(|host| all(port(&mapped, host))));
    let after = [("a", 1), ("leaf0", 3), ("b", 1), ("c", 1)].map(|(node, port)| mapped.counted(node, port));
    let more = |n: usize, which: usize| after[n][which] - before[n][which];
    assert_eq!([more(0, 0), more(1, 0), more(2, 2), more(3, 2)], [3; 4]);
    let plane = Plane::new(&mapped.words, mapped.layout);
    let member = plane.add_member(PROGRAM, port(&mapped, "c"), 0x123).unwrap();
    assert_eq!(plane.members(port(&mapped, "c")).collect::<Vec<_>>(), [0x123]);
    assert_eq!(plane.members(port(&mapped, "d")).count(), 0);
    plane.remove_member(&member);
    assert_eq!(plane.members(port(&mapped, "c")).count(), 0);
    plane.add_member(PROGRAM, port(&mapped, "c"), 0x124).unwrap();
    mapped.world.fabric.end_program(PROGRAM);
    assert_eq!(mapped.plane().members(port(&mapped, "c")).count(), 0, "gone with its program");
}
