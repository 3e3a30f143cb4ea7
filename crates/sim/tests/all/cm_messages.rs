//! Each message of a connection lost, late or crossed, over seeds: what the programs at both ends
//! see of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support::Endpoint;
use crate::support::connections::{MESSAGES, Party, Side, param, resolved};
use nic::rdma_cm::EventKind;
use sim::{Dice, Faults, HostId, Sim};
use stack::{Event, Id};
use transport::op::Status;
use wire::mad::PortSpace;

const SEEDS: u64 = 300;
const MS: Duration = Duration::from_millis(1);

/// A client and a server that the test steps.
struct Pair {
    sim: Sim,
    hosts: [HostId; 2],
    client: Party,
    server: Party,
    listener: Arc<Id>,
    dice: Dice,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed).fork(6000);
        let delay = Duration::from_micros(dice.between(10, 3_000));
        let mut sim = Sim::new(seed, Faults::none().delay(delay));
        if sim::seeds::single().is_some() {
            sim.log();
        }
        let address = |n| IpAddr::from([10, 0, 0, n]);
        let hosts = [1, 2].map(|n| sim.add_host(&[address(n)], 1500));
        let client = Party::new(&mut sim, hosts[0], address(1));
        let server = Party::new(&mut sim, hosts[1], address(2));
        let listener = server.listen();
        Self { sim, hosts, client, server, listener, dice }
    }

    fn wait(&mut self, of_server: bool, most: Duration) -> Event {
        let until = self.sim.elapsed() + most;
        loop {
            let party = if of_server { &self.server } else { &self.client };
            if let Some(event) = party.next() {
                return event;
            }
            assert!(self.sim.step(until), "no event within {most:?}");
        }
    }

    fn asked(&mut self) -> Side {
        let id = resolved(&mut self.sim, &self.client, self.server.address);
        let mut ours = Side::new(id.clone());
        ours.equip(&self.client.node);
        self.client.node.connect(&id, &param(), &[7]).unwrap();
        ours
    }

    fn request(&mut self) -> Side {
        let request = self.wait(true, 2_000 * MS);
        assert_eq!(request.kind, EventKind::ConnectRequest);
        let mut theirs = Side::new(request.id.clone());
        theirs.equip(&self.server.node);
        theirs
    }

    fn accept(&mut self, theirs: &Side) {
        self.server.node.accept(theirs.id.as_ref().unwrap(), None, &[]).unwrap();
    }

    fn connected(&mut self) -> (Side, Side) {
        let ours = self.asked();
        let theirs = self.request();
        self.accept(&theirs);
        assert_eq!(self.wait(false, 2_000 * MS).kind, EventKind::Established);
        assert_eq!(self.wait(true, 2_000 * MS).kind, EventKind::Established);
        (ours, theirs)
    }

    /// Loses what one host sends to the other for a while.
    fn cut(&mut self, from_server: bool, time: Duration) {
        let [a, b] = self.hosts;
        let (from, to) = if from_server { (b, a) } else { (a, b) };
        self.sim.partition(from, to, time);
    }

    /// A duration of some milliseconds.
    fn some_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.dice.between(least, most))
    }

    fn round_trip(&self) -> Duration {
        2 * self.sim.faults().delay
    }

    /// Ends all, then looks for what is left.
    fn end(mut self, sides: [Side; 2]) {
        for (mut side, node) in sides.into_iter().zip([self.client.node.clone(), self.server.node.clone()]) {
            let id = side.id.take().unwrap();
            side.endpoint.take();
            node.take_qp(&id).unwrap().destroy();
            node.destroy(&id);
        }
        self.server.node.destroy(&self.listener);
        self.sim.run_for(Duration::from_secs(120));
        for party in [&self.client, &self.server] {
            assert!(party.next().is_none());
            assert_eq!(party.node.connections(), 0);
            assert_eq!(stack::env::InputHandler::deadline(&*party.node), None);
        }
    }
}

fn each(name: &str, mut run: impl FnMut(Pair)) {
    sim::each_seed("cm_messages", name, SEEDS, |seed| run(Pair::new(seed)));
}

#[test]
fn a_lost_rtu_is_made_up_by_the_first_data() {
    each("a_lost_rtu_is_made_up", |mut p| {
        let mut ours = p.asked();
        let theirs = p.request();
        p.accept(&theirs);
        let (half, round_trip) = (p.round_trip() / 2, p.round_trip());
        p.cut(false, half + half / 2);
        assert_eq!(p.wait(false, 100 * MS).kind, EventKind::Established);
        p.sim.run_for(round_trip);
        assert!(p.server.next().is_none(), "the RTU is lost");
        ours.send_all(&p.client.node);
        let event = p.wait(true, round_trip);
        assert_eq!(event.kind, EventKind::Established);
        p.sim.run_for(100 * MS);
        ours.poll();
        let endpoint = theirs.endpoint.as_ref().unwrap();
        assert_eq!(Endpoint::poll(&endpoint.receives).len() as u64, MESSAGES);
        // The REP is not repeated any more, and were the RTU to come it would tell nothing new.
        p.sim.run_for(2_000 * MS);
        assert!(p.server.next().is_none() && p.client.next().is_none());
        p.end([ours, theirs]);
    });
}

#[test]
fn a_lost_rtu_comes_again_upon_the_second_rep() {
    each("a_lost_rtu_comes_again", |mut p| {
        let ours = p.asked();
        let theirs = p.request();
        p.accept(&theirs);
        let time = p.some_ms(10, 200);
        p.cut(false, time);
        assert_eq!(p.wait(false, 100 * MS).kind, EventKind::Established);
        assert_eq!(p.wait(true, 1_000 * MS).kind, EventKind::Established);
        p.end([ours, theirs]);
    });
}

#[test]
fn a_lost_rep_comes_again_and_makes_one_connection() {
    each("a_lost_rep_comes_again", |mut p| {
        let ours = p.asked();
        let theirs = p.request();
        let time = p.some_ms(1, 1_500);
        p.cut(true, time);
        p.accept(&theirs);
        assert_eq!(p.wait(false, 3_500 * MS).kind, EventKind::Established);
        assert_eq!(p.wait(true, 1_000 * MS).kind, EventKind::Established);
        assert!(p.server.next().is_none(), "no second request");
        p.end([ours, theirs]);
    });
}

#[test]
fn an_answer_that_takes_minutes_is_waited_for() {
    each("an_answer_that_takes_minutes", |mut p| {
        let ours = p.asked();
        let theirs = p.request();
        // Longer than a request is repeated for that the peer has not acknowledged.
        p.sim.run_for(Duration::from_secs(p.dice.between(90, 140)));
        assert!(p.client.next().is_none());
        p.accept(&theirs);
        assert_eq!(p.wait(false, 100 * MS).kind, EventKind::Established);
        assert_eq!(p.wait(true, 100 * MS).kind, EventKind::Established);
        p.end([ours, theirs]);
    });
}

#[test]
fn a_refusal_carries_the_private_data_of_the_program_through_loss() {
    each("a_refusal_carries", |mut p| {
        let ours = p.asked();
        let theirs = p.request();
        let time = p.some_ms(1, 900);
        p.cut(true, time);
        p.server.node.reject(theirs.id.as_ref().unwrap(), b"not today").unwrap();
        let event = p.wait(false, 3_000 * MS);
        assert_eq!((event.kind, event.status), (EventKind::Rejected, 28));
        assert_eq!(&event.private_data[..9], b"not today");
        p.end([ours, theirs]);
    });
}

/// Both ends are told of the end once, then that the time wait is over.
fn both_end(p: &mut Pair, within: Duration) {
    for of_server in [false, true] {
        let event = p.wait(of_server, within);
        assert_eq!((event.kind, event.status), (EventKind::Disconnected, 0));
    }
    for of_server in [false, true] {
        assert_eq!(p.wait(of_server, 5_000 * MS).kind, EventKind::TimewaitExit);
    }
    p.sim.run_for(5_000 * MS);
    assert!(p.client.next().is_none() && p.server.next().is_none(), "one end, one time wait");
}

#[test]
fn a_lost_dreq_or_drep_costs_no_minute() {
    each("a_lost_dreq_or_drep", |mut p| {
        let (ours, theirs) = p.connected();
        let lose_dreq = p.dice.chance(0.5);
        let time = p.some_ms(1, 1_000);
        p.cut(!lose_dreq, time);
        p.client.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
        both_end(&mut p, 2_000 * MS);
        p.end([ours, theirs]);
    });
}

#[test]
fn a_peer_cut_off_for_good_costs_two_seconds() {
    each("a_peer_cut_off_for_good", |mut p| {
        let (ours, theirs) = p.connected();
        let from_server = p.dice.chance(0.5);
        p.cut(from_server, Duration::from_secs(30));
        p.client.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
        assert_eq!(p.wait(false, 2_001 * MS).kind, EventKind::Disconnected);
        assert_eq!(p.wait(false, 5_000 * MS).kind, EventKind::TimewaitExit);
        // The other side learns of it at the latest when the way is open again: by a probe, if no
        // DREQ came through.
        assert_eq!(p.wait(true, 33_000 * MS).kind, EventKind::Disconnected);
        p.sim.run_for(5_000 * MS);
        assert_eq!(p.wait(true, MS).kind, EventKind::TimewaitExit);
        p.end([ours, theirs]);
    });
}

#[test]
fn disconnects_that_cross_end_both_sides_once() {
    each("disconnects_that_cross", |mut p| {
        let (ours, theirs) = p.connected();
        p.client.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
        let between = Duration::from_nanos(p.dice.below(p.round_trip().as_nanos() as u64 / 2));
        p.sim.run_for(between);
        p.server.node.disconnect(theirs.id.as_ref().unwrap()).unwrap();
        for side in [&ours, &theirs] {
            let endpoint = side.endpoint.as_ref().unwrap();
            let flushed = Endpoint::poll(&endpoint.receives);
            assert_eq!(flushed.len() as u64, MESSAGES);
            assert!(flushed.iter().all(|c| c.status == Status::WrFlush));
        }
        both_end(&mut p, 100 * MS);
        p.end([ours, theirs]);
    });
}

#[test]
fn a_host_that_starts_anew_makes_connections_while_its_old_ones_are_found_dead() {
    each("a_host_that_starts_anew", |mut p| {
        let (ours, mut theirs) = p.connected();
        p.sim.kill(p.client.process);
        while p.client.next().is_some() {}
        drop(ours);
        p.sim.run_for(p.dice.below(500) as u32 * MS);
        p.client = Party::new(&mut p.sim, p.hosts[0], p.client.address);
        let mut old = theirs.id.take().unwrap();
        let id = resolved(&mut p.sim, &p.client, p.server.address);
        let mut ours = Side::new(id.clone());
        ours.equip(&p.client.node);
        p.client.node.connect(&id, &param(), &[]).unwrap();
        let (mut ended, mut new) = (false, None);
        while !ended || new.is_none() {
            let event = p.wait(true, 2_500 * MS);
            match event.kind {
                EventKind::ConnectRequest => new = Some(event.id.clone()),
                EventKind::Disconnected if Arc::ptr_eq(&event.id, &old) => ended = true,
                EventKind::TimewaitExit => {}
                _ => panic!("{event:?}"),
            }
        }
        p.server.node.take_qp(&old).unwrap().destroy();
        p.server.node.destroy(&old);
        old = new.unwrap();
        theirs = Side::new(old);
        theirs.equip(&p.server.node);
        p.accept(&theirs);
        assert_eq!(p.wait(false, 1_000 * MS).kind, EventKind::Established);
        p.end([ours, theirs]);
    });
}

#[test]
fn a_request_with_a_longer_mtu_than_the_port_is_refused() {
    let mut sim = Sim::new(1, Faults::none());
    let here = sim.add_host(&[[10, 0, 0, 1].into()], 9000);
    let there = sim.add_host(&[[10, 0, 0, 2].into()], 1500);
    let client = Party::new(&mut sim, here, [10, 0, 0, 1].into());
    let server = Party::new(&mut sim, there, [10, 0, 0, 2].into());
    let _listener = server.listen();
    let id = client.node.create_id(&client.channel, PortSpace::Tcp);
    let dest: SocketAddr = "10.0.0.2:7471".parse().unwrap();
    client.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
    sim.run_for(10 * MS);
    client.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
    Side::new(id.clone()).equip(&client.node);
    client.node.connect(&id, &param(), &[]).unwrap();
    sim.run_for(10 * MS);
    let events: Vec<_> = std::iter::from_fn(|| client.next()).map(|e| (e.kind, e.status)).collect();
    assert_eq!(events.last(), Some(&(EventKind::Rejected, 26)));
    assert!(server.next().is_none());
}
