//! Ports and listeners of rdma_cm between processes of simulated hosts: which process may have a
//! port, and which one is asked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::SimNode;
use nic::rdma_cm::{ConnParam, EventKind};
use sim::{Faults, HostId, Mark, ProcessId, Sim};
use stack::{Config, Event, EventChannel, Id};
use wire::mad::PortSpace;

const PORT: u16 = 7174;
const EADDRINUSE: stack::Error = stack::Error::System(stack::Errno::EADDRINUSE);

/// A node with its channel.
struct Party {
    process: ProcessId,
    node: SimNode,
    channel: Arc<EventChannel>,
}

impl Party {
    fn new(sim: &mut Sim, host: HostId) -> Self {
        let process = sim.start(host, &Config::default());
        let channel = EventChannel::new(Box::new(Mark::default()));
        Self { process, node: sim.node(process).unwrap(), channel }
    }
    fn next(&self) -> Option<Event> {
        self.node.next_event(&self.channel)
    }
    fn id(&self) -> Arc<Id> {
        self.node.create_id(&self.channel, PortSpace::Tcp)
    }
    /// An identifier bound there.
    fn bound(&self, ip: IpAddr, reuse: bool) -> Result<Arc<Id>, stack::Error> {
        let id = self.id();
        self.node.set_reuse(&id, reuse)?;
        self.node.set_v6_only(&id, true)?;
        self.node.bind(&id, SocketAddr::new(ip, PORT))?;
        Ok(id)
    }
    fn listening(&self, ip: IpAddr, backlog: u32) -> Arc<Id> {
        let id = self.bound(ip, false).unwrap();
        self.node.listen(&id, backlog).unwrap();
        id
    }
    /// An identifier that has asked for a connection of a queue pair.
    fn asking(&self, sim: &mut Sim, dest: IpAddr, qp_num: u32) -> Arc<Id> {
        let id = self.id();
        self.node.resolve_addr(&id, None, SocketAddr::new(dest, PORT), Duration::from_secs(2)).unwrap();
        sim.run_for(Duration::from_millis(10));
        assert_eq!(self.next().unwrap().kind, EventKind::AddrResolved);
        self.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(self.next().unwrap().kind, EventKind::RouteResolved);
        let param = ConnParam { qp_num, ..ConnParam::default() };
        self.node.connect(&id, &param, &[]).unwrap();
        sim.run_for(Duration::from_millis(10));
        id
    }
}

fn v4(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn v6(n: u16) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n])
}

/// Two hosts, the first with three processes; the parties of both.
fn hosts() -> (Sim, Vec<Party>, Party) {
    let mut sim = Sim::new(1, Faults::none());
    let here = sim.add_host(&[v4(1), v6(1)], 1500);
    let there = sim.add_host(&[v4(2), v6(2)], 1500);
    let ours = (0..3).map(|_| Party::new(&mut sim, here)).collect();
    let theirs = Party::new(&mut sim, there);
    (sim, ours, theirs)
}

#[test]
fn a_request_finds_the_process_that_listens_for_its_family() {
    let (mut sim, ours, client) = hosts();
    let (any4, any6) = (IpAddr::from([0; 4]), IpAddr::from([0; 16]));
    // The first process answers for a port that none has; the others listen on a wildcard each.
    let _others = [ours[1].listening(any4, 1), ours[2].listening(any6, 1)];
    let _first = ours[0].id();
    for (dest, listener) in [(v4(1), 1), (v6(1), 2)] {
        let id = client.asking(&mut sim, dest, 0x77);
        for (n, party) in ours.iter().enumerate() {
            let event = party.next();
            assert_eq!(event.is_some(), n == listener, "process {n} is asked for {dest}");
            if let Some(event) = event {
                party.node.reject(&event.id, b"no").unwrap();
            }
        }
        sim.run_for(Duration::from_millis(10));
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::Rejected, 28));
        client.node.destroy(&id);
    }
}

#[test]
fn a_shared_port_belongs_to_the_listener_until_its_process_is_killed() {
    let (mut sim, ours, client) = hosts();
    let shared: Vec<_> = ours.iter().map(|p| p.bound(v4(1), true).unwrap()).collect();
    assert_eq!(client.bound(v4(2), false).map(|_| ()), Ok(()), "another host");
    assert_eq!(ours[0].bound(v4(1), false).map(|_| ()), Err(EADDRINUSE));
    ours[0].node.listen(&shared[0], 1).unwrap();
    assert_eq!(ours[1].node.listen(&shared[1], 1), Err(EADDRINUSE));
    assert_eq!(ours[1].bound(v4(1), true).map(|_| ()), Err(EADDRINUSE), "there is a listener now");
    sim.kill(ours[0].process);
    ours[1].node.listen(&shared[1], 1).unwrap();
    assert_eq!(ours[2].node.listen(&shared[2], 1), Err(EADDRINUSE));
    let _id = client.asking(&mut sim, v4(1), 0x77);
    assert_eq!(ours[1].next().unwrap().kind, EventKind::ConnectRequest);
    assert!(ours[2].next().is_none());
}

#[test]
fn a_full_backlog_is_counted_and_tells_who_finds_no_place() {
    let (mut sim, ours, client) = hosts();
    let _listener = ours[0].listening(v4(1), 2);
    let ids: Vec<_> = (1..6).map(|n| client.asking(&mut sim, v4(1), n)).collect();
    sim.run_for(Duration::from_secs(3));
    for _ in 0..3 {
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::Rejected, 3));
    }
    assert!(client.next().is_none());
    assert_eq!(ours[0].node.counters.no_resources.load(Ordering::Relaxed), 3);
    for _ in 0..2 {
        let request = ours[0].next().unwrap();
        ours[0].node.reject(&request.id, &[]).unwrap();
        ours[0].node.destroy(&request.id);
    }
    sim.run_for(Duration::from_millis(10));
    for _ in 0..2 {
        assert_eq!(client.next().unwrap().status, 28);
    }
    ids.iter().for_each(|id| client.node.destroy(id));
}
