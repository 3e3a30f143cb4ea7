//! Ways: directed routes, LIDs, circles.

use fabric::net::{FatTree, Net};
use fabric::route::Lost;
use fabric::umad::UmadHeader;
use wire::mad::smp::{Smp, attribute};
use wire::mad::{class, method};

use crate::support::{World, registration, vendor_mad};

#[test]
fn a_directed_route_that_leads_nowhere_is_answered_by_silence() {
    let mut world = World::new();
    let who = world.prober("a");
    for path in [&[2][..], &[0], &[1, 9], &[1, 255], &[1, 2, 1], &[1, 0]] {
        assert!(world.get(who, path, attribute::NODE_INFO, 0).is_none(), "{path:?}");
    }
    assert_eq!(world.fabric.counters().lost, 6);
    world.fabric.set_cut("leaf0", 3, true).unwrap();
    assert!(world.get(who, &[1, 3], attribute::NODE_INFO, 0).is_none());
    assert!(world.get(who, &[1, 4], attribute::NODE_INFO, 0).is_some());
}

#[test]
fn sixty_three_hops_are_made_and_a_packet_that_has_made_some_is_lost() {
    let mut world = World::new();
    let who = world.prober("a");
    let mut path = vec![1];
    path.extend([3, 4].into_iter().cycle().take(62));
    assert!(world.get(who, &path, attribute::NODE_INFO, 0).is_some());
    let mut smp = world.smp(&[1, 3], method::GET, attribute::NODE_INFO, 0);
    smp.set_hop_pointer(1);
    assert!(world.ask(who, &smp).is_none());
    let before = world.fabric.counters().malformed;
    let mut mad = world.smp(&[1], method::GET, attribute::NODE_INFO, 0).emit();
    mad[7] = 64;
    world.send(who.0, UmadHeader { agent: who.1, ..UmadHeader::default() }, &mad);
    assert_eq!(world.fabric.counters().malformed, before + 1);
}

#[test]
fn a_route_by_lid_and_then_by_hops_is_gone_both_ways() {
    let mut world = World::new();
    let (client, agent) = world.configure("a");
    let leaf1 = lid(&mut world, (client, agent), &[1, 3], 0);
    let own = lid(&mut world, (client, agent), &[], 1);
    let smp = Smp { dr_slid: own, ..world.smp(&[2], method::GET, attribute::NODE_DESCRIPTION, 0) };
    let umad = UmadHeader { agent, timeout_ms: 500, lid: leaf1, ..UmadHeader::default() };
    world.send(client, umad, &smp.emit());
    let answer = Smp::parse(&world.read(client).unwrap().mad).unwrap();
    assert_eq!((&answer.data[..2], answer.header.status), (&b"d\0"[..], 0x8000));
}

fn lid(world: &mut World, who: (fabric::ClientId, u32), path: &[u8], port: u32) -> u16 {
    world.port_info(who, path, port).lid
}

#[test]
fn a_circle_in_the_tables_ends_a_packet_and_is_counted() {
    let mut world = World::new();
    let who = world.configure("a");
    let lost = 40;
    for (path, out) in [(&[1][..], 3), (&[1, 3], 4)] {
        let mut block = world.get(who, path, attribute::LINEAR_FORWARDING, 0).unwrap().data;
        block[lost] = out;
        world.set(who, path, (attribute::LINEAR_FORWARDING, 0), block).unwrap();
    }
    let lost_before = world.fabric.counters().lost;
    let client = world.open("a");
    let agent = world.fabric.register(client, &registration(0x32, &[])).unwrap();
    world.send(
        client,
        UmadHeader { agent, lid: lost as u16, qpn: 1, ..UmadHeader::default() },
        &vendor_mad(1, 1),
    );
    assert_eq!(world.fabric.counters().lost, lost_before + 1);
    // 64 hops: the first from the host, the others between the switches, where the last one counts.
    let leaves = [lid(&mut world, who, &[1], 0), lid(&mut world, who, &[1, 3], 0)];
    let shown = crate::performance::counters(&mut world, "a", &leaves);
    assert_eq!(shown.iter().map(|counters| counters.switch_relay_errors).sum::<u16>(), 1);
}

#[test]
fn the_way_is_told_as_far_as_it_goes() {
    let mut world = World::new();
    let who = world.configure("a");
    let names = |world: &mut World, to: &str| {
        let (hops, lost) = world.fabric.trace("a", to).unwrap();
        (hops.into_iter().map(|hop| (hop.from.0, hop.from.1)).collect::<Vec<_>>(), lost)
    };
    let ports =
        |list: &[(&str, u8)]| list.iter().map(|(name, port)| (name.to_string(), *port)).collect::<Vec<_>>();
    assert_eq!(names(&mut world, "c"), (ports(&[("a", 1), ("leaf0", 3), ("leaf1", 1)]), None));
    world.fabric.set_cut("leaf0", 3, true).unwrap();
    assert_eq!(names(&mut world, "c"), (ports(&[("a", 1)]), Some(Lost::LinkDown)));
    world.fabric.set_cut("leaf0", 3, false).unwrap();
    assert_eq!(names(&mut world, "c").1, Some(Lost::NotActive));
    world.set(who, &[1], (attribute::LINEAR_FORWARDING, 0), [255; 64]).unwrap();
    assert_eq!(names(&mut world, "c").1, Some(Lost::Unrouted));
    let before = world.fabric.counters();
    names(&mut world, "c");
    assert_eq!(world.fabric.counters(), before, "a question is no packet");
}

#[test]
fn every_host_of_a_fat_tree_reaches_every_other() {
    let net: Net = FatTree::new(2, 4).unwrap().net();
    let mut world = World::of(&net);
    world.configure("host0");
    assert_eq!(world.fabric.census().active_ports, world.fabric.census().linked_ports);
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
        let (_, lost) = world.fabric.trace(&format!("host{from}"), &format!("host{to}")).unwrap();
        assert_eq!(lost, None, "{from} to {to}");
    }
}

#[test]
fn a_class_that_no_agent_takes_is_refused_by_its_port() {
    let mut world = World::new();
    let who = world.configure("a");
    let there = lid(&mut world, who, &[1, 3, 1], 1);
    let client = world.open("a");
    let agent = world.fabric.register(client, &registration(0x32, &[])).unwrap();
    let umad = UmadHeader { agent, lid: there, qpn: 1, timeout_ms: 100, ..UmadHeader::default() };
    world.send(client, umad, &vendor_mad(method::GET, 5));
    let answer = world.read(client).unwrap().header();
    assert_eq!((answer.method, answer.status, answer.class), (method::GET_RESP, 0x0c, 0x32));
    assert_ne!(answer.class, class::PERF_MGMT);
}
