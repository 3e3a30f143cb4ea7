//! The simulated environment itself: faults do what they say, names go with their process.

use crate::support;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nic::{Link, Path};
use sim::{Faults, HostId, ProcessId, Sim, SimEnv};
use stack::env::{ClaimError, Env, Name, RouteQuery};
use transport::TxBatch;
use wire::Qpn;
use wire::bth::Bth;
use wire::mad::PortSpace;
use wire::roce::{Header, Op, SendAt, Service};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// Two hosts with a process each, the port open.
fn two(faults: Faults) -> (Sim, [HostId; 2], [ProcessId; 2]) {
    let mut sim = Sim::new(3, faults);
    let hosts = [HERE, THERE].map(|a| sim.add_host(&[a], 1500));
    let processes = hosts.map(|h| sim.start(h, &stack::Config::default()));
    for p in processes {
        let node = sim.node(p).unwrap();
        node.attach(&node.devices()[0]).unwrap();
    }
    (sim, hosts, processes)
}

fn env(sim: &Sim, process: ProcessId) -> Arc<SimEnv> {
    sim.node(process).unwrap().env().clone()
}

/// Sends so many packets for a queue pair that no process has.
fn send(sim: &Sim, from: ProcessId, to: IpAddr, packets: usize) {
    let path = Path {
        source: if to == HERE { THERE } else { HERE }.into(),
        dest: to.into(),
        interface: 2,
        dest_qpn: Qpn::new(0x77_7777),
        traffic_class: 0,
        hop_limit: 64,
        source_port_epoch: 0,
        no_multicast_loop: false,
    };
    let bth = Bth { dest_qp: path.dest_qpn, ..Bth::default() };
    let header = Header { bth, service: Service::Rc, op: Op::Send(SendAt::Middle) };
    let mut batch = TxBatch::new();
    for _ in 0..packets {
        batch.push(&header, 256, |_| Ok(())).unwrap();
    }
    env(sim, from).send(&path, &mut batch);
}

#[test]
fn a_partition_has_one_direction() {
    let (mut sim, [a, b], [p, q]) = two(Faults::none());
    sim.partition(a, b, Duration::from_millis(1));
    send(&sim, p, THERE, 3);
    send(&sim, q, HERE, 2);
    sim.run_for(Duration::from_millis(2));
    assert_eq!((sim.counters().lost, sim.counters().delivered), (3, 2));
    send(&sim, p, THERE, 3);
    sim.run_for(Duration::from_millis(1));
    assert_eq!((sim.counters().lost, sim.counters().delivered), (3, 5));
    sim.partition(b, a, Duration::from_secs(1));
    sim.heal();
    send(&sim, q, HERE, 1);
    sim.run_for(Duration::from_millis(1));
    assert_eq!(sim.counters().delivered, 6);
}

#[test]
fn a_clogged_link_delivers_when_it_runs_again() {
    let (mut sim, [a, b], [p, _]) = two(Faults::none());
    sim.clog(a, b, Duration::from_millis(5));
    send(&sim, p, THERE, 4);
    sim.run_for(Duration::from_micros(4_999));
    assert_eq!(sim.counters().delivered, 0);
    sim.run_for(Duration::from_micros(2));
    assert_eq!(sim.counters().delivered, 4);
}

#[test]
fn faults_happen_as_often_as_asked() {
    let faults = Faults::none().loss(0.1).duplicate(0.2).corrupt(0.05);
    let (mut sim, _, [p, q]) = two(faults);
    for _ in 0..200 {
        send(&sim, p, THERE, 50);
        sim.run_for(Duration::from_millis(1));
    }
    let c = sim.counters();
    assert_eq!(c.sent, 10_000);
    assert!((850..1150).contains(&c.lost), "{c:?}");
    assert!((350..550).contains(&c.corrupted), "{c:?}");
    // Copies of 18 in 100 that were sent, less those lost.
    assert!((10_500..11_100).contains(&c.delivered), "{c:?}");
    // What arrived changed does not get past the ICRC.
    let node = sim.node(q).unwrap();
    assert!(node.counters.icrc.get() * 100 >= c.corrupted * 99);
}

#[test]
fn the_names_of_a_killed_process_are_free_at_once() {
    let mut sim = Sim::new(1, Faults::none());
    let host = sim.add_host(&[HERE], 1500);
    let [p, q] = [0, 1].map(|_| sim.start(host, &stack::Config::default()));
    let name = Name::Port { space: PortSpace::Tcp, addr: None, port: 5 };
    let (first, second) = (env(&sim, p), env(&sim, q));
    let held = first.claim(name).unwrap();
    assert!(matches!(second.claim(name), Err(ClaimError::InUse)));
    assert!(second.watch(name).is_some());
    sim.kill(p);
    assert!(sim.node(p).is_none());
    let mine = second.claim(name).unwrap();
    // What is left of the dead process takes nothing from the living.
    drop(held);
    assert_eq!(sim.names(host), [name]);
    assert!(first.claim(Name::Block(9)).is_err());
    drop(mine);
    assert!(sim.names(host).is_empty());
}

#[test]
fn the_memory_of_a_killed_process_goes_with_it() {
    let (mut sim, _, [p, _]) = two(Faults::none());
    let node = sim.node(p).unwrap();
    // A queue pair that was not destroyed and its device hold each other.
    drop(support::Endpoint::new(&node));
    let device = Arc::downgrade(&node.devices()[0]);
    drop(node);
    assert!(device.upgrade().is_some());
    sim.kill(p);
    assert!(device.upgrade().is_none());
}

#[test]
fn a_route_needs_an_address_of_the_family() {
    let (sim, _, [p, _]) = two(Faults::none());
    let env = env(&sim, p);
    let query = |dest: &str, source| RouteQuery { dest: dest.parse().unwrap(), scope: 0, source };
    assert_eq!(env.route(query("fd00::1", None)), Err(nic::Errno::ENETUNREACH));
    assert_eq!(env.route(query("10.0.0.2", Some(THERE))), Err(nic::Errno::EADDRNOTAVAIL));
    let there = env.route(query("10.0.0.2", None)).unwrap();
    assert_eq!((there.source, there.local), (HERE, false));
    assert!(env.route(query("10.0.0.1", None)).unwrap().local);
}
