//! A server that stops listening as soon as it has accepted: its connection is made all the same,
//! whatever is lost.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::support::connections::{Party, Side, param, resolved};
use nic::rdma_cm::EventKind;
use sim::{Faults, HostId, Sim};
use wire::mad::PortSpace;

const SEEDS: u64 = 30;

/// A client whose request the server has accepted, with a reply that is lost; nothing listens any
/// more. Other processes share the server's address.
struct Answered {
    sim: Sim,
    client: Party,
    server: Party,
    others: Vec<Party>,
    _sides: [Side; 2],
}

impl Answered {
    /// Nothing comes back from the server's host for so long.
    fn new(seed: u64, silent: Duration) -> Self {
        let mut sim = Sim::new(seed, Faults::none());
        let address = |n| IpAddr::from([10, 0, 0, n]);
        let (here, there): (HostId, HostId) =
            (sim.add_host(&[address(1)], 1500), sim.add_host(&[address(2)], 1500));
        let client = Party::new(&mut sim, here, address(1));
        let server = Party::new(&mut sim, there, address(2));
        let others: Vec<Party> = (0..3).map(|_| Party::new(&mut sim, there, address(2))).collect();
        others.iter().for_each(|other| other.node.attach(&other.node.devices()[0]).unwrap());
        let listener = server.listen();
        let mut ours = Side::new(resolved(&mut sim, &client, address(2)));
        ours.equip(&client.node);
        client.node.connect(ours.id.as_ref().unwrap(), &param(), &[]).unwrap();
        sim.run_for(Duration::from_millis(1));
        let request = server.next().unwrap();
        let mut theirs = Side::new(request.id.clone());
        theirs.equip(&server.node);
        sim.partition(there, here, silent);
        server.node.accept(&request.id, None, &[]).unwrap();
        server.node.destroy(&listener);
        Self { sim, client, server, others, _sides: [ours, theirs] }
    }
}

fn port() -> SocketAddr {
    "0.0.0.0:7471".parse().unwrap()
}

/// Whether a process may listen on the port now.
fn can_listen(party: &Party) -> bool {
    let id = party.node.create_id(&party.channel, PortSpace::Tcp);
    let bound = party.node.bind(&id, port()).is_ok();
    party.node.destroy(&id);
    bound
}

#[test]
fn a_repeated_request_finds_its_connection_though_the_listener_is_gone() {
    for seed in 0..SEEDS {
        let mut all = Answered::new(seed, Duration::from_millis(100));
        all.sim.run_for(Duration::from_secs(1));
        assert_eq!(all.client.next().map(|event| event.kind), Some(EventKind::Established), "seed {seed}");
        assert_eq!(all.server.next().map(|event| event.kind), Some(EventKind::Established), "seed {seed}");
        assert!(can_listen(&all.others[0]), "seed {seed}");
    }
}

#[test]
fn a_port_without_listener_is_free_for_its_process_at_once_and_for_others_after_two_seconds() {
    let all = Answered::new(1, Duration::from_secs(60));
    assert!(!can_listen(&all.others[0]), "its name leads to the connection");
    assert!(can_listen(&all.server));
    let mut all = Answered::new(2, Duration::from_secs(60));
    all.sim.run_for(Duration::from_millis(1_900));
    assert!(!can_listen(&all.others[0]));
    all.sim.run_for(Duration::from_millis(200));
    assert!(can_listen(&all.others[0]));
}

#[test]
fn a_listener_at_another_address_is_found_beside_a_port_without_listener() {
    for seed in 0..SEEDS {
        let mut sim = Sim::new(seed, Faults::none());
        let address = |n| IpAddr::from([10, 0, 0, n]);
        let here = sim.add_host(&[address(1)], 1500);
        let there = sim.add_host(&[address(2), address(3)], 1500);
        let client = Party::new(&mut sim, here, address(1));
        let [server, other] = [2, 3].map(|n| Party::new(&mut sim, there, address(n)));
        let [listener, _listening] = [&server, &other].map(|party| {
            let id = party.node.create_id(&party.channel, PortSpace::Tcp);
            party.node.bind(&id, SocketAddr::new(party.address, port().port())).unwrap();
            party.node.listen(&id, 0).unwrap();
            id
        });
        let connect = |sim: &mut Sim, to: IpAddr| {
            let mut side = Side::new(resolved(sim, &client, to));
            side.equip(&client.node);
            client.node.connect(side.id.as_ref().unwrap(), &param(), &[]).unwrap();
            sim.run_for(Duration::from_millis(1));
            side
        };
        let _ours = connect(&mut sim, server.address);
        let request = server.next().unwrap();
        server.node.destroy(&listener);
        let _beside = connect(&mut sim, other.address);
        assert_eq!(other.next().map(|event| event.kind), Some(EventKind::ConnectRequest), "seed {seed}");
        drop(request);
    }
}
