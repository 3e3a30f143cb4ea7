//! Traps: to the subnet manager, again and again, until it represses them.

use std::time::Duration;

use fabric::ClientId;
use fabric::umad::UmadHeader;
use wire::mad::smp::{Smp, attribute};
use wire::mad::{class, method};

use crate::support::{World, registration};

/// A configured fabric with an agent at the subnet manager's port that takes traps.
fn managed() -> (World, ClientId, u32) {
    let mut world = World::new();
    world.configure("a");
    let (client, agent) = managed_by(&mut world);
    (world, client, agent)
}

/// An agent that takes traps, at the port that has configured a fabric.
pub(crate) fn managed_by(world: &mut World) -> (ClientId, u32) {
    let client = world.open("a");
    let agent =
        world.fabric.register(client, &registration(class::SUBN_LID_ROUTED, &[method::TRAP])).unwrap();
    while world.fabric.deadline().is_some() {
        // Those of the configuration itself, which no agent has taken.
        world.pass(Duration::from_secs(1));
        let traps: Vec<_> = std::iter::from_fn(|| world.read(client)).collect();
        traps.iter().for_each(|trap| repress(world, client, agent, trap));
    }
    (client, agent)
}

pub(crate) fn repress(world: &mut World, client: ClientId, agent: u32, trap: &crate::support::Message) {
    let mut smp = Smp::parse(&trap.mad).unwrap();
    smp.header.method = method::TRAP_REPRESS;
    world.send(client, UmadHeader { agent, lid: trap.umad.lid, ..UmadHeader::default() }, &smp.emit());
}

#[test]
fn a_cut_cable_raises_trap_128_at_both_switches_until_it_is_repressed() {
    let (mut world, client, agent) = managed();
    world.fabric.set_cut("leaf0", 4, true).unwrap();
    world.fabric.settle(world.now);
    let first: Vec<_> = std::iter::from_fn(|| world.read(client)).collect();
    assert_eq!(first.len(), 2, "one from each end");
    for trap in &first {
        let smp = Smp::parse(&trap.mad).unwrap();
        assert_eq!((smp.header.method, smp.header.attribute), (method::TRAP, attribute::NOTICE));
        assert_eq!((smp.data[0], smp.data[5]), (0x81, 128));
        assert_eq!(u16::from_be_bytes([smp.data[6], smp.data[7]]), trap.umad.lid);
    }
    repress(&mut world, client, agent, &first[0]);
    world.pass(Duration::from_millis(2500));
    let again: Vec<_> = std::iter::from_fn(|| world.read(client)).collect();
    assert_eq!(again, [first[1].clone(), first[1].clone()], "the other one, twice, with its transaction id");
    repress(&mut world, client, agent, &first[1]);
    assert_eq!(world.fabric.deadline(), None);
}

#[test]
fn a_port_that_no_manager_has_configured_raises_none() {
    let mut world = World::new();
    world.fabric.set_cut("leaf0", 4, true).unwrap();
    world.fabric.settle(world.now);
    assert_eq!((world.fabric.counters().traps, world.fabric.deadline()), (0, None));
}

#[test]
fn a_second_subnet_manager_shows_itself_by_trap_144() {
    let (mut world, client, agent) = managed();
    let at = world.fabric.port_of_host("c", "", 1).unwrap();
    world.fabric.set_is_sm(at, true);
    world.fabric.settle(world.now);
    let message = world.read(client).unwrap();
    let trap = Smp::parse(&message.mad).unwrap();
    assert_eq!((trap.data[0], trap.data[5], trap.data[19] & 2), (0x84, 144, 2));
    repress(&mut world, client, agent, &message);
    world.fabric.set_is_sm(at, true);
    world.fabric.settle(world.now);
    assert_eq!((world.read(client), world.fabric.deadline()), (None, None), "nothing has changed");
}

#[test]
fn a_wrong_m_key_raises_trap_256() {
    let (mut world, client, _) = managed();
    let who = world.prober("a");
    world.change(who, (&[1, 2], 1), |new| (new.m_key, new.m_key_protection) = (5, 2));
    assert!(world.get(who, &[1, 2], attribute::NODE_INFO, 3).is_none());
    let trap = Smp::parse(&world.read(client).unwrap().mad).unwrap();
    assert_eq!((trap.data[4..6].to_vec(), trap.data[0]), (vec![1, 0], 0x82));
    assert_eq!((trap.data[16], &trap.data[18..24]), (method::GET, &[0, 0x11, 0, 0, 0, 3][..]));
}
