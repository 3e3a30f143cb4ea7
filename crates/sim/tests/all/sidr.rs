//! Datagram services by rdma_cm between simulated nodes: a question is answered once, as the server
//! decided, whatever the network does to it, and nothing is left of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::{Endpoint, RIGHTS, SimNode};
use nic::rdma_cm::{ConnParam, EventKind, UDP_QKEY};
use nic::{Ah, Buffer, Datagram, QpState, QpType};
use sim::{Dice, Faults, Mark, ProcessId, Sim};
use stack::datagram::{ANSWER_DATA, ASK_DATA};
use stack::{Config, Event, EventChannel, Id};
use transport::op::{RecvWr, Status};
use wire::Qpn;
use wire::grh::GRH_LEN;
use wire::mad::PortSpace;

const SEEDS: u64 = 1000;
const PORT: u16 = 7174;

/// A node with its channel.
struct Party {
    process: ProcessId,
    address: IpAddr,
    node: SimNode,
    channel: Arc<EventChannel>,
}

impl Party {
    fn new(sim: &mut Sim, host: sim::HostId, address: IpAddr) -> Self {
        let process = sim.start(host, &Config::default());
        let channel = EventChannel::new(Box::new(Mark::default()));
        Self { process, address, node: sim.node(process).unwrap(), channel }
    }
    fn next(&self) -> Option<Event> {
        self.node.next_event(&self.channel)
    }
    fn id(&self, space: PortSpace) -> Arc<Id> {
        self.node.create_id(&self.channel, space)
    }
    fn listen(&self, space: PortSpace, backlog: u32) -> Arc<Id> {
        let id = self.id(space);
        self.node.bind(&id, SocketAddr::new(self.address, PORT)).unwrap();
        self.node.listen(&id, backlog).unwrap();
        id
    }
    /// The side's datagram queue pair with one receive of 256 bytes.
    fn equip(&self, id: &Arc<Id>) -> (Endpoint, Buffer) {
        let endpoint = Endpoint::of(&self.node, QpType::Ud);
        self.node.set_qp(id, &endpoint.qp).unwrap();
        let inbox = Buffer::new(&endpoint.pd, 256, 0x1000, RIGHTS).unwrap();
        let sges = [inbox.sge(0, 256)].into_iter().collect();
        endpoint.qp.post_receive(RecvWr { wr_id: 1, sges }).unwrap();
        (endpoint, inbox)
    }
    /// An identifier with a route to a service.
    fn routed(&self, sim: &mut Sim, space: PortSpace, dest: IpAddr) -> Arc<Id> {
        let id = self.id(space);
        let dest = SocketAddr::new(dest, PORT);
        self.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
        sim.run_for(Duration::from_millis(10));
        assert_eq!(self.next().unwrap().kind, EventKind::AddrResolved);
        self.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(self.next().unwrap().kind, EventKind::RouteResolved);
        id
    }
}

/// Two processes, on one host or on two.
fn pair(seed: u64, faults: Faults, together: bool) -> (Sim, Party, Party) {
    let mut sim = Sim::new(seed, faults);
    if sim::seeds::single().is_some() {
        sim.log();
    }
    let address = |n| IpAddr::from([10, 0, 0, n]);
    let here = sim.add_host(&[address(1)], 1500);
    let (there, n) = if together { (here, 1) } else { (sim.add_host(&[address(2)], 1500), 2) };
    let client = Party::new(&mut sim, here, address(1));
    let server = Party::new(&mut sim, there, address(n));
    (sim, client, server)
}

fn param() -> ConnParam {
    ConnParam::default()
}

/// Sends `text` to the queue pair that an event named.
fn say(node: &SimNode, from: &Endpoint, event: &Event, text: &[u8]) {
    let ud = event.ud.expect("an address");
    let to = Datagram { ah: Ah::new(&from.pd, ud.av).unwrap(), qpn: ud.qpn, qkey: ud.qkey };
    let wr = support::send(2, text);
    from.qp.post_datagram(stack::Env::now(&**node.env()), wr, &to).unwrap();
}

/// Nothing of any exchange is left once answers are forgotten.
fn nothing_is_left(sim: &mut Sim, parties: [&Party; 2]) {
    sim.run_for(Duration::from_secs(30));
    for party in parties {
        assert_eq!(party.node.connections(), 0);
        assert!(party.next().is_none());
    }
}

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Accept,
    Reject,
    Destroy,
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn a_question_over_a_lossy_network_is_answered_once_and_as_the_server_decided() {
    let test = "a_question_over_a_lossy_network_is_answered_once_and_as_the_server_decided";
    sim::seeds::each_seed("sidr", test, SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(4000);
        let loss = dice.pick(&[0.01, 0.05, 0.2]);
        let faults = Faults::lossy().loss(loss).duplicate(loss).replay(loss).reorder(loss);
        let (mut sim, client, server) = pair(seed, Faults::none(), dice.chance(0.2));
        let listener = server.listen(PortSpace::Udp, 0);
        let plans: Vec<(Decision, Duration)> = (0..6)
            .map(|_| {
                let what = dice.pick(&[Decision::Accept, Decision::Reject, Decision::Destroy]);
                (what, dice.duration(Duration::from_secs(2)))
            })
            .collect();
        let mut asked: Vec<(Arc<Id>, (Endpoint, Buffer))> = plans
            .iter()
            .map(|_| {
                let id = client.routed(&mut sim, PortSpace::Udp, server.address);
                let equipment = client.equip(&id);
                (id, equipment)
            })
            .collect();
        sim.set_faults(faults);
        for (n, (id, _)) in asked.iter().enumerate() {
            client.node.connect(id, &param(), &[n as u8, 7]).unwrap();
        }
        let mut decide: Vec<(Duration, usize, Arc<Id>)> = Vec::new();
        // A question whose answers were lost for longer than they are remembered is a new one.
        let mut served: Vec<(Arc<Id>, Endpoint, Buffer)> = Vec::new();
        let mut seen = vec![0_usize; plans.len()];
        let mut outcome: Vec<Option<Event>> = plans.iter().map(|_| None).collect();
        while outcome.iter().any(Option::is_none) {
            assert!(sim.elapsed() < Duration::from_secs(100), "stuck: {outcome:?}");
            let next = decide.iter().map(|(at, ..)| *at).min();
            sim.step(next.unwrap_or(Duration::from_secs(100)));
            while let Some(event) = server.next() {
                assert_eq!(event.kind, EventKind::ConnectRequest);
                assert_eq!((event.private_data.len(), event.private_data[1]), (ASK_DATA, 7));
                let n = usize::from(event.private_data[0]);
                seen[n] += 1;
                decide.push((sim.elapsed() + plans[n].1, n, event.id));
            }
            let now = sim.elapsed();
            while let Some(at) = decide.iter().position(|(at, ..)| *at <= now) {
                let (_, n, id) = decide.swap_remove(at);
                match plans[n].0 {
                    Decision::Accept => {
                        let (endpoint, inbox) = server.equip(&id);
                        server.node.accept(&id, None, &[n as u8, 1]).unwrap();
                        served.push((id, endpoint, inbox));
                    }
                    Decision::Reject => {
                        server.node.reject(&id, &[n as u8, 2]).unwrap();
                        server.node.destroy(&id);
                    }
                    Decision::Destroy => server.node.destroy(&id),
                }
            }
            while let Some(event) = client.next() {
                let n = asked.iter().position(|(id, _)| Arc::ptr_eq(id, &event.id)).unwrap();
                assert!(outcome[n].replace(event).is_none(), "one answer only");
            }
        }
        assert!(seen.iter().all(|n| *n > 0) && seen.iter().sum::<usize>() <= plans.len() + 1, "{seen:?}");
        sim.run_for(Duration::from_secs(1));
        sim.set_faults(Faults::none());
        for (n, event) in outcome.iter().flatten().enumerate() {
            let data = &event.private_data;
            match plans[n].0 {
                Decision::Accept => {
                    assert_eq!((event.kind, event.status), (EventKind::Established, 0));
                    assert_eq!((data.len(), &data[..2]), (ANSWER_DATA, &[n as u8, 1][..]));
                    let ud = event.ud.unwrap();
                    let found = served.iter().find(|(_, theirs, _)| theirs.qp.qpn() == ud.qpn);
                    let (_, theirs, inbox) = found.expect("a queue pair of the server");
                    assert_eq!(ud.qkey, UDP_QKEY);
                    say(&client.node, &asked[n].1.0, event, b"hello");
                    sim.run_for(Duration::from_millis(10));
                    let got = Endpoint::poll(&theirs.receives);
                    assert!(matches!(&got[..], [c] if c.status == Status::Success));
                    assert!(inbox.holds(GRH_LEN, b"hello"));
                }
                Decision::Reject => {
                    assert_eq!((event.kind, event.status), (EventKind::Unreachable, 2));
                    assert_eq!(data[..2], [n as u8, 2]);
                }
                Decision::Destroy => assert_eq!((event.kind, event.status), (EventKind::Unreachable, 2)),
            }
        }
        asked.drain(..).for_each(|(id, _)| client.node.destroy(&id));
        served.iter().for_each(|(id, ..)| server.node.destroy(id));
        server.node.destroy(&listener);
        nothing_is_left(&mut sim, [&client, &server]);
    });
}

#[test]
fn a_queue_pair_of_a_datagram_service_is_ready_to_send_at_once() {
    let (mut sim, client, server) = pair(1, Faults::none(), false);
    let id = client.routed(&mut sim, PortSpace::Udp, server.address);
    let (endpoint, _inbox) = client.equip(&id);
    let attr = endpoint.qp.query();
    assert_eq!((attr.state, attr.qkey), (QpState::Rts, UDP_QKEY));
    let other = Endpoint::new(&client.node);
    let id = client.routed(&mut sim, PortSpace::Udp, server.address);
    let refused = client.node.set_qp(&id, &other.qp).expect_err("not a datagram one");
    assert_eq!(refused.errno(), stack::Errno::EINVAL);
}

#[test]
fn a_service_nobody_has_is_unreachable_with_status_1() {
    for together in [true, false] {
        let (mut sim, client, server) = pair(1, Faults::none(), together);
        // Port spaces are apart.
        let _other = server.listen(PortSpace::Tcp, 0);
        let id = client.routed(&mut sim, PortSpace::Udp, server.address);
        client.node.attach(&client.node.devices()[0]).unwrap();
        client.node.connect(&id, &param(), &[]).unwrap();
        sim.run_for(Duration::from_secs(1));
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::Unreachable, 1));
        client.node.destroy(&id);
        drop(event);
        nothing_is_left(&mut sim, [&client, &server]);
    }
}

#[test]
fn a_host_without_rdma_is_unreachable_at_once() {
    let mut sim = Sim::new(1, Faults::none());
    let here = sim.add_host(&[[10, 0, 0, 1].into()], 1500);
    sim.add_host(&[[10, 0, 0, 2].into()], 1500);
    let client = Party::new(&mut sim, here, [10, 0, 0, 1].into());
    let id = client.routed(&mut sim, PortSpace::Udp, [10, 0, 0, 2].into());
    let (endpoint, _inbox) = client.equip(&id);
    client.node.connect(&id, &param(), &[]).unwrap();
    sim.run_for(Duration::from_secs(1));
    let event = client.next().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, -110));
    assert_eq!(endpoint.qp.state(), QpState::Rts, "it may have other peers");
}

#[test]
fn a_request_that_found_the_backlog_full_is_told_that_there_is_no_queue_pair() {
    let (mut sim, client, server) = pair(1, Faults::none(), false);
    let _listener = server.listen(PortSpace::Udp, 1);
    let ids: Vec<_> = (0..3).map(|_| client.routed(&mut sim, PortSpace::Udp, server.address)).collect();
    ids.iter().for_each(|id| client.node.connect(id, &param(), &[]).unwrap());
    sim.run_for(Duration::from_secs(3));
    for _ in 0..2 {
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::Unreachable, 3));
    }
    assert!(client.next().is_none());
    let request = server.next().unwrap();
    server.node.accept(&request.id, Some(&ConnParam { qp_num: 77, ..param() }), &[]).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(client.next().unwrap().ud.unwrap().qpn, Qpn::new(77), "a queue pair of the program's own");
}

#[test]
fn private_data_beyond_the_limits_and_calls_out_of_turn_are_invalid() {
    let (mut sim, client, server) = pair(1, Faults::none(), false);
    let _listener = server.listen(PortSpace::Udp, 0);
    let id = client.routed(&mut sim, PortSpace::Udp, server.address);
    let invalid =
        |r: Result<(), stack::Error>| assert_eq!(r.map_err(stack::Error::errno), Err(stack::Errno::EINVAL));
    invalid(client.node.connect(&id, &param(), &[0; ASK_DATA + 1]));
    invalid(client.node.disconnect(&id));
    invalid(client.node.accept(&id, None, &[]));
    client.node.connect(&id, &param(), &[9; ASK_DATA]).unwrap();
    invalid(client.node.connect(&id, &param(), &[]));
    sim.run_for(Duration::from_millis(10));
    let request = server.next().unwrap();
    assert_eq!(request.private_data, [9; ASK_DATA]);
    invalid(server.node.accept(&request.id, None, &[0; ANSWER_DATA + 1]));
    invalid(server.node.reject(&request.id, &[0; ANSWER_DATA + 1]));
    server.node.accept(&request.id, None, &[8; ANSWER_DATA]).unwrap();
    invalid(server.node.reject(&request.id, &[]));
    sim.run_for(Duration::from_millis(10));
    let answer = client.next().unwrap();
    assert_eq!((answer.kind, &answer.private_data[..]), (EventKind::Established, &[8; ANSWER_DATA][..]));
    client.node.disconnect(&id).unwrap();
    server.node.disconnect(&request.id).unwrap();
}

#[test]
fn a_listener_that_ends_answers_no_to_those_who_wait() {
    let (mut sim, client, server) = pair(1, Faults::none(), true);
    let listener = server.listen(PortSpace::Udp, 0);
    let ids: Vec<_> = (0..3).map(|_| client.routed(&mut sim, PortSpace::Udp, server.address)).collect();
    ids.iter().for_each(|id| client.node.connect(id, &param(), &[]).unwrap());
    sim.run_for(Duration::from_millis(10));
    server.node.destroy(&listener);
    sim.run_for(Duration::from_millis(10));
    for _ in &ids {
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::Unreachable, 2));
    }
    ids.iter().for_each(|id| client.node.destroy(id));
    nothing_is_left(&mut sim, [&client, &server]);
}

#[test]
fn the_question_of_a_killed_process_finds_the_next_listener_or_none() {
    let (mut sim, client, server) = pair(1, Faults::none(), true);
    let _listener = server.listen(PortSpace::Udp, 0);
    let id = client.routed(&mut sim, PortSpace::Udp, server.address);
    client.node.connect(&id, &param(), &[]).unwrap();
    sim.run_for(Duration::from_millis(10));
    sim.kill(server.process);
    sim.run_for(Duration::from_secs(2));
    let event = client.next().expect("an answer within two seconds");
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, 1));
}
