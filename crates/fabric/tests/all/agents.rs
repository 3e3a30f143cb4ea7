//! What programs register, send and receive at umad ports.

use std::time::Duration;

use fabric::agents::{MAX_AGENTS, Refusal, Registration};
use fabric::umad::UmadHeader;
use fabric::{ClientId, MAX_QUEUED};
use wire::mad::{class, method};

use crate::support::{Message, World, registration, vendor_mad};

/// A configured fabric, with an agent of a vendor's class on two hosts: the second takes Gets.
fn pair() -> (World, (ClientId, u32), (ClientId, u32), u16) {
    let mut world = World::new();
    let who = world.configure("a");
    let lid = world.port_info(who, &[1, 3, 1], 1).lid;
    let (one, two) = (world.open("a"), world.open("c"));
    let asks = world.fabric.register(one, &registration(0x32, &[])).unwrap();
    let takes = world.fabric.register(two, &registration(0x32, &[method::GET])).unwrap();
    (world, (one, asks), (two, takes), lid)
}

fn to(agent: u32, lid: u16, timeout_ms: u32, retries: u32) -> UmadHeader {
    UmadHeader { agent, lid, qpn: 1, timeout_ms, retries, ..UmadHeader::default() }
}

fn answer(world: &mut World, (client, agent): (ClientId, u32), request: &Message) {
    let tid = request.header().transaction_id;
    let umad = to(agent, request.umad.lid, 0, 0);
    world.send(client, umad, &vendor_mad(method::GET_RESP, tid));
}

#[test]
fn a_registration_is_refused_as_the_kernel_refuses_it() {
    let mut world = World::new();
    let client = world.open("a");
    let vendor = registration(0x32, &[method::GET]);
    for (wrong, why) in [
        (Registration { qpn: 2, ..vendor }, "the queue pair"),
        (Registration { qpn: 0, ..vendor }, "the queue pair of this class"),
        (Registration { rmpp_version: 2, ..vendor }, "the RMPP version"),
        (Registration { version: 0x83, ..vendor }, "the class version"),
        (Registration { class: 80, ..vendor }, "the class"),
        (Registration { class: 0x82, ..vendor }, "the class"),
        (Registration { oui: 0, ..vendor }, "the OUI"),
        (Registration { oui: 1 << 24, ..vendor }, "the OUI"),
        (Registration { class: class::PERF_MGMT, rmpp_version: 1, ..vendor }, "RMPP in this class"),
        (Registration { class: 0, user_rmpp: true, ..vendor }, "RMPP without a class"),
    ] {
        let refusal = world.fabric.register(client, &wrong).unwrap_err();
        assert_eq!((refusal, refusal.errno()), (Refusal::Field(why), 22));
    }
    assert_eq!(world.fabric.register(ClientId(99), &vendor), Err(Refusal::Unknown));
}

#[test]
fn two_agents_of_a_port_do_not_take_the_same_method_of_a_class() {
    let mut world = World::new();
    let (one, two, elsewhere) = (world.open("a"), world.open("a"), world.open("b"));
    let vendor = registration(0x32, &[method::GET]);
    assert_eq!(world.fabric.register(one, &vendor), Ok(0));
    assert_eq!(world.fabric.register(two, &vendor), Err(Refusal::InUse));
    assert_eq!(world.fabric.register(one, &vendor), Err(Refusal::InUse));
    for other in [
        Registration { oui: 2, ..vendor },
        Registration { version: 2, ..vendor },
        registration(0x32, &[method::SET]),
        registration(0x32, &[]),
    ] {
        assert!(world.fabric.register(two, &other).is_ok());
    }
    assert_eq!(world.fabric.register(elsewhere, &vendor), Ok(0));
    world.fabric.close(one);
    assert!(world.fabric.register(two, &vendor).is_ok(), "what ends frees what it had");
}

#[test]
fn a_port_has_thirty_two_agents_and_no_more() {
    let mut world = World::new();
    let client = world.open("a");
    for id in 0..MAX_AGENTS as u32 {
        assert_eq!(world.fabric.register(client, &registration(0x32, &[])), Ok(id));
    }
    let refusal = world.fabric.register(client, &registration(0x32, &[])).unwrap_err();
    assert_eq!((refusal, refusal.errno()), (Refusal::TooMany, 12));
    let not_a_class = registration(0x70, &[]);
    assert_eq!(world.fabric.register(client, &not_a_class), Err(Refusal::TooMany), "room comes first");
    assert_eq!(world.fabric.unregister(client, 7), Ok(()));
    assert_eq!(world.fabric.unregister(client, 7), Err(Refusal::Unknown));
    assert_eq!(world.fabric.unregister(client, 32), Err(Refusal::Unknown));
    assert_eq!(world.fabric.register(client, &registration(0x32, &[])), Ok(7));
}

#[test]
fn a_request_reaches_the_agent_and_its_answer_the_requester() {
    let (mut world, one, two, lid) = pair();
    world.send(one.0, to(one.1, lid, 500, 0), &vendor_mad(method::GET, 0xdead_0000_0001));
    let request = world.read(two.0).unwrap();
    assert_eq!((request.umad.agent, request.umad.qpn, request.umad.status), (two.1, 1, 0));
    let tid = request.header().transaction_id;
    assert_eq!(tid as u32, 1);
    assert_ne!(tid >> 32, 0xdead, "the upper half is the agent's");
    answer(&mut world, two, &request);
    let got = world.read(one.0).unwrap();
    assert_eq!((got.umad.agent, got.umad.lid, got.header().transaction_id), (one.1, lid, tid));
    // A second answer is none that the agent waits for.
    answer(&mut world, two, &request);
    assert_eq!((world.read(one.0), world.fabric.counters().unexpected), (None, 1));
    world.pass(Duration::from_secs(10));
    assert_eq!((world.read(one.0), world.fabric.deadline()), (None, None));
}

#[test]
fn a_request_without_an_answer_is_sent_again_and_then_comes_back() {
    let (mut world, one, two, lid) = pair();
    world.send(one.0, to(one.1, lid, 100, 2), &vendor_mad(method::GET, 3));
    world.pass(Duration::from_millis(250));
    let tids: Vec<_> = std::iter::from_fn(|| world.read(two.0)).map(|m| m.header().transaction_id).collect();
    assert_eq!((tids.len(), tids[0], tids[2]), (3, tids[1], tids[1]));
    assert_eq!(world.read(one.0), None);
    world.pass(Duration::from_millis(100));
    let back = world.read(one.0).unwrap();
    assert_eq!((back.umad.status, back.umad.lid, back.umad.timeout_ms, back.mad.len()), (110, lid, 100, 24));
    assert_eq!(back.header().transaction_id, tids[0]);
    let counters = world.fabric.counters();
    assert_eq!((counters.retried, counters.timed_out), (2, 1));
}

#[test]
fn a_transaction_id_under_way_is_not_used_again() {
    let (mut world, one, two, lid) = pair();
    for _ in 0..2 {
        world.send(one.0, to(one.1, lid, 100, 0), &vendor_mad(method::GET, 3));
    }
    assert_eq!(world.fabric.counters().duplicate, 1);
    let request = world.read(two.0).unwrap();
    assert_eq!(world.read(two.0), None);
    answer(&mut world, two, &request);
    world.send(one.0, to(one.1, lid, 100, 0), &vendor_mad(method::GET, 3));
    assert!(world.read(two.0).is_some());
}

#[test]
fn what_is_no_message_of_an_agent_is_counted_and_nothing_else() {
    let (mut world, one, two, lid) = pair();
    let before = world.fabric.counters().malformed;
    let mad = vendor_mad(method::GET, 1);
    world.fabric.write(world.now, one.0, &[]);
    world.fabric.write(world.now, one.0, &[0; 64]);
    world.send(one.0, to(one.1, lid, 0, 0), &mad[..35]);
    world.send(one.0, to(31, lid, 0, 0), &mad);
    world.send(one.0, to(u32::MAX, lid, 0, 0), &mad);
    world.send(one.0, to(one.1, lid, 0, 0), &[&mad[..], &[0]].concat());
    let mut smp = mad.clone();
    smp[1] = class::SUBN_LID_ROUTED;
    world.send(one.0, to(one.1, lid, 0, 0), &smp);
    assert_eq!(world.fabric.counters().malformed, before + 7);
    world.send(one.0, to(one.1, lid, 0, 0), &mad[..40]);
    assert_eq!(world.read(two.0).unwrap().mad.len(), 256, "a short one is filled with zeros");
}

#[test]
fn a_program_that_never_reads_has_a_bounded_queue() {
    let (mut world, one, two, lid) = pair();
    for tid in 0..MAX_QUEUED as u64 + 10 {
        world.send(one.0, to(one.1, lid, 0, 0), &vendor_mad(method::GET, tid));
    }
    assert_eq!(world.fabric.counters().overflowed, 10);
    assert_eq!(std::iter::from_fn(|| world.read(two.0)).count(), MAX_QUEUED);
}

#[test]
fn a_program_that_ends_leaves_no_agent_and_no_timer() {
    let (mut world, one, two, lid) = pair();
    world.send(one.0, to(one.1, lid, 100, 5), &vendor_mad(method::GET, 3));
    let request = world.read(two.0).unwrap();
    world.fabric.close(one.0);
    assert_eq!(world.fabric.deadline(), None);
    answer(&mut world, two, &request);
    assert_eq!(world.fabric.counters().unexpected, 1);
    assert_eq!(world.fabric.front(one.0), None);
}

#[test]
fn smp_info_of_a_port_without_a_subnet_manager_is_refused() {
    use wire::mad::smp::attribute::SM_INFO;
    let mut world = World::new();
    let who = world.prober("a");
    let refused = world.get(who, &[1, 2], SM_INFO, 0).unwrap();
    assert_eq!(refused.header.status, 0x8000 | 0x0c);
    let client = world.open("b");
    let all = registration(class::SUBN_DIRECTED_ROUTE, &[method::GET, method::SET, method::TRAP]);
    let agent = world.fabric.register(client, &all).unwrap();
    let smp = world.smp(&[1, 2], method::GET, SM_INFO, 0);
    let umad = UmadHeader { agent: who.1, timeout_ms: 100, lid: 0xffff, ..UmadHeader::default() };
    world.send(who.0, umad, &smp.emit());
    let request = world.read(client).unwrap();
    let mut reply = wire::mad::smp::Smp::parse(&request.mad).unwrap();
    (reply.header.method, reply.header.status, reply.data[0]) = (method::GET_RESP, 0x8000, 9);
    world.send(client, UmadHeader { agent, lid: 0xffff, ..UmadHeader::default() }, &reply.emit());
    let got = wire::mad::smp::Smp::parse(&world.read(who.0).unwrap().mad).unwrap();
    assert_eq!((got.data[0], got.hop_pointer()), (9, 0));
}
