//! What a user does to a fabric.

use std::time::Duration;

use fabric::faults::FaultError;
use fabric::net::Net;
use fabric::umad::UmadHeader;
use wire::mad::smp::attribute;
use wire::mad::{PortState, method};

use crate::performance::counters;
use crate::support::{TWO, World, registration, vendor_mad};

#[test]
fn a_rule_loses_the_share_that_it_says_and_the_same_packets_each_time() {
    let lost = |ppm: u32| {
        let mut world = World::new();
        let who = world.configure("a");
        let lid = world.port_info(who, &[1, 3, 1], 1).lid;
        world.fabric.set_drop("leaf0", 3, ppm).unwrap();
        let client = world.open("a");
        let agent = world.fabric.register(client, &registration(0x32, &[])).unwrap();
        for tid in 0..10_000 {
            let umad = UmadHeader { agent, lid, qpn: 1, ..UmadHeader::default() };
            world.send(client, umad, &vendor_mad(method::GET_RESP, tid));
        }
        let lost = world.fabric.counters().lost;
        let leaf = world.port_info(who, &[1], 0).lid;
        let discards = counters(&mut world, "b", &[leaf])[0].transmit_discards;
        assert_eq!(u64::from(discards), lost);
        lost
    };
    assert_eq!((lost(0), lost(1_000_000)), (0, 10_000));
    let one_percent = lost(10_000);
    assert!((70..=130).contains(&one_percent), "{one_percent}");
    assert_eq!(lost(10_000), one_percent);
}

#[test]
fn a_frozen_node_is_silent_and_packets_pass_it() {
    let mut world = World::new();
    let who = world.configure("a");
    world.fabric.set_frozen("leaf0", true).unwrap();
    assert!(world.get(who, &[1], attribute::NODE_INFO, 0).is_none());
    assert!(world.get(who, &[1, 2], attribute::NODE_INFO, 0).is_none(), "its directed routes are management");
    assert_eq!(world.fabric.trace("a", "d").unwrap().1, None);
    world.fabric.set_frozen("leaf0", false).unwrap();
    assert!(world.get(who, &[1, 2], attribute::NODE_INFO, 0).is_some());
}

#[test]
fn a_name_that_is_no_node_or_several_is_refused() {
    let net = Net::parse("Ca 1 \"x\" # \"node one\"\nCa 1 \"y\" # \"node two\"\nSwitch 2 \"z\"").unwrap();
    let mut world = World::of(&net);
    assert_eq!(world.fabric.set_frozen("w", true), Err(FaultError::NoNode("w".into())));
    assert_eq!(world.fabric.set_frozen("node", true), Err(FaultError::SeveralNodes("node".into())));
    for name in ["node one", "x", "0x100000", "z"] {
        assert_eq!(world.fabric.set_frozen(name, true), Ok(()), "{name}");
    }
    assert_eq!(world.fabric.set_cut("z", 1, true), Err(FaultError::NoCable { node: "z".into(), port: 1 }));
    assert_eq!(world.fabric.set_cut("z", 3, true), Err(FaultError::NoPort { node: "z".into(), port: 3 }));
    assert_eq!(world.fabric.set_counter("z", 1, "Nothing", 1), Err(FaultError::NoCounter("Nothing".into())));
    assert_eq!(world.fabric.trace("x", "z"), Err(FaultError::NoCable { node: "x".into(), port: 1 }));
    assert_eq!(World::new().fabric.trace("a", "c"), Err(FaultError::NoLid("c".into())));
}

#[test]
fn a_fabric_is_written_as_it_was_read() {
    let net = Net::parse(TWO).unwrap();
    let mut world = World::new();
    assert_eq!(Net::parse(&world.fabric.write_net()).unwrap(), Net::parse(&net.write()).unwrap());
    world.configure("a");
    world.fabric.set_cut("leaf0", 3, true).unwrap();
    let text = world.fabric.write_net();
    let again = Net::parse(&text).unwrap();
    assert_eq!(again.links(), net.links(), "a cut cable is a cable");
    assert_eq!(text.matches("#verbena down\n").count(), 2, "{text}");
    assert!(text.contains("lid 1 lmc 0"), "{text}");
}

#[test]
fn a_node_is_shown_with_its_ports() {
    let mut world = World::new();
    world.configure("a");
    world.fabric.set_cut("leaf0", 4, true).unwrap();
    world.fabric.set_drop("leaf0", 1, 5_000).unwrap();
    let shown = world.fabric.show(Some("leaf0")).unwrap();
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..2], ["leaf0", "(switch"]);
    assert_eq!(lines[2], ["1", "active", "->", "a", "1", "drop", "0.5%"]);
    assert_eq!(lines[5], ["4", "cut", "->", "leaf1", "4"]);
    assert!(world.fabric.show(None).unwrap().lines().count() > lines.len());
}

#[test]
fn a_host_sees_its_devices_as_they_are_now() {
    let mut world = World::new();
    world.configure("a");
    world.fabric.take_changed_hosts();
    let described = world.fabric.describe("c").unwrap();
    let [device] = &described[..] else { panic!("{described:?}") };
    let [port] = &device.ports[..] else { panic!("{device:?}") };
    assert_eq!(
        (&*device.name, port.number, port.sm_lid, port.state, &*port.speed),
        ("mlx5_0", 1, 1, 4, "EDR")
    );
    let at = world.fabric.port_of_host("c", "mlx5_0", 1).unwrap();
    world.fabric.set_is_sm(at, true);
    assert_eq!(world.fabric.take_changed_hosts(), ["c"]);
    assert_eq!(world.fabric.describe("c").unwrap()[0].ports[0].capabilities & 2, 2);
    assert_eq!((world.fabric.describe("e"), world.fabric.port_of_host("c", "mlx5_0", 2)), (None, None));
}

#[test]
fn adapters_whose_descriptions_begin_alike_are_one_hosts() {
    let text = "Ca 1 \"1\" # \"h mlx5_1\"\nCa 2 \"2\" # \"h mlx5_0\"\nCa 1 \"3\" # \"h ../x\"\nCa 1 \"4\" # \"h mlx5_0\"";
    let world = World::of(&Net::parse(text).unwrap());
    let described = world.fabric.describe("h").unwrap();
    let names: Vec<_> = described.iter().map(|device| &*device.name).collect();
    assert_eq!(names, ["mlx5_1", "mlx5_0", "mlx5_2", "mlx5_3"]);
    let umads: Vec<_> =
        described.iter().flat_map(|device| device.ports.iter().map(|port| port.umad)).collect();
    assert_eq!(umads, [0, 1, 2, 3, 4]);
}

#[test]
fn damaged_packets_are_lost_and_counted_where_they_arrive() {
    let mut world = World::new();
    let who = world.configure("a");
    let lids = [vec![1], vec![1, 3]].map(|path| world.port_info(who, &path, 0).lid);
    world.fabric.set_damage("leaf0", 3, 1_000_000).unwrap();
    assert!(world.get(who, &[1, 3], attribute::NODE_INFO, 0).is_none());
    let near = counters(&mut world, "a", &lids[..1])[0];
    let far = counters(&mut world, "c", &lids[1..])[0];
    assert_eq!((near.symbol_errors, near.transmit_discards, far.symbol_errors), (0, 0, 1));
}

#[test]
fn a_link_is_trained_anew_with_what_both_ends_can_do() {
    let mut world = World::new();
    let who = world.configure("a");
    world.fabric.set_rate("leaf0", 3, "1xSDR").unwrap();
    let info = world.port_info(who, &[1], 3);
    assert_eq!((info.width_active, info.speed_active, info.extended_speed_active), (1, 1, 0));
    assert_eq!(info.state, PortState::Init, "the manager has to configure it");
    for bad in ["4xNDR", "12xEDR", "4x", "fast", ""] {
        assert_eq!(world.fabric.set_rate("leaf0", 3, bad), Err(FaultError::NoRate(bad.into())));
    }
    world.fabric.set_rate("leaf0", 3, "4xEDR").unwrap();
    assert_eq!(world.port_info(who, &[1], 3).extended_speed_active, 2);
}

#[test]
fn a_cable_flaps_and_a_counter_grows_as_time_passes() {
    let mut world = World::new();
    let who = world.configure("a");
    let leaf = world.port_info(who, &[1], 0).lid;
    world.fabric.set_flap(world.now, "leaf0", 3, Duration::from_secs(2)).unwrap();
    world.fabric.set_growth(world.now, ("leaf0", 4), "SymbolError", 5).unwrap();
    let is_cut = |world: &World| world.fabric.show(Some("leaf0")).unwrap().contains(" cut ");
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(is_cut(&world));
        world.pass(Duration::from_secs(2));
    }
    assert_eq!(seen, [true, false, true, false, true, false]);
    assert_eq!(counters(&mut world, "a", &[leaf])[0].symbol_errors, 60);
    world.fabric.set_flap(world.now, "leaf0", 3, Duration::ZERO).unwrap();
    world.fabric.set_growth(world.now, ("leaf0", 4), "SymbolError", 0).unwrap();
    assert!(!is_cut(&world));
    world.pass(Duration::from_secs(10));
    assert_eq!((is_cut(&world), counters(&mut world, "a", &[leaf])[0].symbol_errors), (false, 60));
}
