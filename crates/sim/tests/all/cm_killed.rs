//! A process killed in every state of a connection: its peer hears of it within two seconds, its
//! work is flushed, nothing is left.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::support;
use crate::support::connections::{PORT, Party, Side, param};
use crate::support::{Endpoint, SimNode, Way};
use nic::rdma_cm::{ConnParam, EventKind};
use sim::{Dice, Faults, Sim};
use stack::{Env, Event, Input, InputHandler, Watch};
use transport::op::Status;
use wire::mad::PortSpace;

const SEEDS: u64 = 1000;

/// How far the connection has come when one end is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server has not answered.
    Requested,
    /// The server has accepted, the client has not said that it is ready.
    Answered,
    Established,
    /// Messages are under way.
    Busy,
    /// The one that lives has begun to disconnect.
    Ending,
}

/// What is killed, and where.
#[derive(Clone, Copy, Debug)]
struct Case {
    stage: Stage,
    server_dies: bool,
    together: bool,
    /// Another process shares the address of the one that is killed.
    heir: bool,
}

struct Pair {
    way: Way,
    sim: Sim,
    client: Party,
    server: Party,
    ours: Side,
    theirs: Option<Side>,
}

fn is_end(event: &Event) -> bool {
    use EventKind::{ConnectError, Disconnected, Rejected, Unreachable};
    matches!(event.kind, ConnectError | Disconnected | Rejected | Unreachable)
}

impl Pair {
    fn new(seed: u64, way: Way, faults: Faults, case: &Case) -> Self {
        let mut sim = Sim::new(seed, faults);
        if sim::seeds::single().is_some() {
            sim.log();
        }
        let address = |n| IpAddr::from([10, 0, 0, n]);
        let here = sim.add_host(&[address(1)], 1500);
        let (there, n) = if case.together { (here, 1) } else { (sim.add_host(&[address(2)], 1500), 2) };
        let client = Party::with(&mut sim, here, address(1), &way.config());
        let server = Party::with(&mut sim, there, address(n), &way.config());
        if case.heir {
            let heir = sim.start(if case.server_dies { there } else { here }, &way.config());
            let node = sim.node(heir).unwrap();
            node.attach(&node.devices()[0]).unwrap();
        }
        let _listener = server.listen();
        let id = client.node.create_id(&client.channel, PortSpace::Tcp);
        let dest = SocketAddr::new(server.address, PORT);
        client.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
        Self { way, sim, client, server, ours: Side::new(id), theirs: None }
    }

    fn wait(&mut self, of_server: bool) -> Event {
        let until = self.sim.elapsed() + Duration::from_secs(60);
        loop {
            let party = if of_server { &self.server } else { &self.client };
            if let Some(event) = party.next() {
                return event;
            }
            assert!(self.sim.step(until), "no event");
        }
    }

    /// Brings the connection to a stage.
    fn advance(&mut self, stage: Stage) {
        assert_eq!(self.wait(false).kind, EventKind::AddrResolved);
        let id = self.ours.id.clone().unwrap();
        self.client.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(self.wait(false).kind, EventKind::RouteResolved);
        // A client without a queue pair says itself when it is ready.
        let param = match stage {
            Stage::Answered => ConnParam { qp_num: 0x123, ..param() },
            _ => {
                self.ours.equip(&self.client.node);
                param()
            }
        };
        self.client.node.connect(&id, &param, &[]).unwrap();
        let request = self.wait(true);
        assert_eq!(request.kind, EventKind::ConnectRequest);
        let mut theirs = Side::new(request.id.clone());
        if stage != Stage::Requested {
            theirs.equip(&self.server.node);
            self.server.node.accept(&request.id, None, &[]).unwrap();
        }
        self.theirs = Some(theirs);
        match stage {
            Stage::Requested => {}
            Stage::Answered => assert_eq!(self.wait(false).kind, EventKind::ConnectResponse),
            _ => {
                assert_eq!(self.wait(false).kind, EventKind::Established);
                assert_eq!(self.wait(true).kind, EventKind::Established);
            }
        }
    }

    fn run(mut self, dice: &mut Dice, case: &Case, timeout: Duration) {
        self.advance(case.stage);
        let waits: [u32; 5] = [0, 1, 300, 2_000, 30_000];
        // Over a stream a reply has ten seconds.
        let waits = if self.way == Way::Stream { &waits[..4] } else { &waits };
        self.sim.run_for(dice.pick(waits) * Duration::from_millis(1));
        self.sim.run_for(Duration::from_micros(dice.below(1_000_000)));
        let Self { mut sim, client, server, ours, theirs, .. } = self;
        let theirs = theirs.unwrap();
        let (dead, alive, dead_side, mut side) =
            if case.server_dies { (server, client, theirs, ours) } else { (client, server, ours, theirs) };
        if case.stage == Stage::Busy {
            side.send_all(&alive.node);
            dead_side.send_all(&dead.node);
            sim.run_for(Duration::from_micros(dice.below(100)));
        }
        assert!(alive.next().is_none(), "{case:?}: an event before anything happened");
        sim.kill(dead.process);
        while dead.next().is_some() {}
        drop(dead_side);
        let killed_at = sim.elapsed();
        let id = side.id.take().unwrap();
        if case.stage == Stage::Ending {
            alive.node.disconnect(&id).unwrap();
        }
        let event = loop {
            if let Some(event) = alive.next() {
                break event;
            }
            assert!(sim.step(killed_at + timeout), "{case:?}: nobody told after {timeout:?}");
        };
        assert!(is_end(&event), "{case:?}: {event:?}");
        flushed(&alive.node, &mut side, &id, event.kind);
        if side.endpoint.take().is_some() {
            alive.node.take_qp(&id).unwrap().destroy();
        }
        alive.node.destroy(&id);
        drop((event, id, side));
        sim.run_for(Duration::from_secs(60));
        assert!(alive.next().is_none(), "{case:?}: an event after the end");
        assert_eq!(alive.node.connections(), 0, "{case:?}");
        assert_eq!(InputHandler::deadline(&*alive.node), None, "{case:?}");
    }
}

/// Once the program has disconnected, as it does upon the event, every receive has completed.
fn flushed(node: &SimNode, side: &mut Side, id: &std::sync::Arc<stack::Id>, kind: EventKind) {
    let Some(endpoint) = &side.endpoint else { return };
    if kind == EventKind::Disconnected {
        node.disconnect(id).unwrap();
    }
    let all = Endpoint::poll(&endpoint.receives);
    assert_eq!(all.len() as u64, support::connections::MESSAGES);
    assert!(all.iter().all(|c| matches!(c.status, Status::Success | Status::WrFlush)));
}

/// Stages that iWARP has not: a client without a queue pair.
fn is_of_packets(stage: Stage) -> bool {
    stage == Stage::Answered
}

fn killed(name: &str, way: Way, faults: impl Fn(&mut Dice) -> Faults, timeout: Duration, salt: u64) {
    sim::each_seed("cm_killed", name, SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(salt);
        let mut stages =
            vec![Stage::Requested, Stage::Answered, Stage::Established, Stage::Busy, Stage::Ending];
        stages.retain(|stage| way != Way::Stream || !is_of_packets(*stage));
        let case = Case {
            stage: stages[seed as usize % stages.len()],
            server_dies: dice.chance(0.5),
            together: dice.chance(0.3),
            heir: dice.chance(0.5),
        };
        // A request cannot be disconnected.
        Pair::new(seed + salt * 1_000_000, way, faults(&mut dice), &case).run(&mut dice, &case, timeout);
    });
}

#[test]
fn a_process_killed_in_any_state_is_known_to_its_peer_within_two_seconds() {
    let faults = |dice: &mut Dice| {
        Faults::none()
            .delay(Duration::from_micros(dice.between(1, 5_000)))
            .jitter(Duration::from_micros(dice.below(500)))
    };
    killed("a_process_killed_in_any_state", Way::Wire, faults, Duration::from_secs(2), 21);
}

#[test]
fn on_a_lossy_network_it_is_known_after_some_more_probes() {
    let faults = |_: &mut Dice| Faults::lossy().loss(0.05);
    killed("on_a_lossy_network", Way::Wire, faults, Duration::from_secs(6), 22);
}

#[test]
fn by_a_stream_it_is_known_when_its_system_has_said_so() {
    let faults = |dice: &mut Dice| {
        Faults::none()
            .delay(Duration::from_micros(dice.between(1, 5_000)))
            .jitter(Duration::from_micros(dice.below(500)))
            .loss(dice.pick(&[0.0, 0.1]))
    };
    killed("by_a_stream_it_is_known", Way::Stream, faults, Duration::from_secs(2), 24);
}

#[test]
fn at_any_moment_of_the_handshake_it_is_known_within_two_seconds() {
    sim::each_seed("cm_killed", "at_any_moment", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(23);
        let delay = Duration::from_micros(dice.between(1, 2_000));
        let case = Case {
            stage: Stage::Established,
            server_dies: dice.chance(0.5),
            together: dice.chance(0.2),
            heir: dice.chance(0.5),
        };
        let mut pair = Pair::new(seed + 23_000_000, Way::Wire, Faults::none().delay(delay), &case);
        assert_eq!(pair.wait(false).kind, EventKind::AddrResolved);
        let id = pair.ours.id.clone().unwrap();
        pair.client.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(pair.wait(false).kind, EventKind::RouteResolved);
        pair.ours.equip(&pair.client.node);
        pair.client.node.connect(&id, &param(), &[]).unwrap();
        // Three messages, and a while after them.
        let kill_at = pair.sim.elapsed() + Duration::from_nanos(dice.below(5 * delay.as_nanos() as u64));
        while pair.sim.step(kill_at) {
            assert_eq!(pair.serve(&case), None, "nobody is dead yet");
        }
        let dead = if case.server_dies { &pair.server } else { &pair.client };
        pair.sim.kill(dead.process);
        while dead.next().is_some() {}
        let until = pair.sim.elapsed() + Duration::from_secs(2);
        let mut end = None;
        while end.is_none() && pair.sim.step(until) {
            end = pair.serve(&case);
        }
        // Its queue pairs go with it.
        let alive = if case.server_dies { pair.client.process } else { pair.server.process };
        pair.sim.kill(alive);
        // A server may never have heard of the client.
        assert!(end.is_some() || (!case.server_dies && pair.theirs.is_none()), "{case:?}: nobody told");
    });
}

#[test]
fn a_request_that_lay_with_a_stopped_process_is_dropped_where_its_sender_has_ended_meanwhile() {
    for killed in [false, true] {
        let case = Case { stage: Stage::Requested, server_dies: false, together: true, heir: false };
        let mut pair = Pair::new(1, Way::Wire, Faults::none(), &case);
        assert_eq!(pair.wait(false).kind, EventKind::AddrResolved);
        let id = pair.ours.id.clone().unwrap();
        pair.client.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(pair.wait(false).kind, EventKind::RouteResolved);
        pair.ours.equip(&pair.client.node);
        // The server reads nothing for a second.
        let host = pair.server.host;
        pair.sim.clog(host, host, Duration::from_secs(1));
        pair.client.node.connect(&id, &param(), &[]).unwrap();
        pair.sim.run_for(Duration::from_millis(500));
        if killed {
            pair.sim.kill(pair.client.process);
        }
        pair.sim.run_for(Duration::from_secs(1));
        let told: Vec<EventKind> =
            std::iter::from_fn(|| pair.server.next()).map(|event| event.kind).collect();
        let expected = if killed { vec![] } else { vec![EventKind::ConnectRequest] };
        assert_eq!(told, expected);
        if killed {
            // A refusal is remembered for a while.
            pair.sim.run_for(Duration::from_secs(60));
            assert_eq!(pair.server.node.connections(), 0);
        }
    }
}

#[test]
fn the_end_of_an_earlier_owner_of_a_name_ends_no_connection_to_the_one_of_now() {
    let case = Case { stage: Stage::Established, server_dies: true, together: true, heir: false };
    let mut pair = Pair::new(1, Way::Wire, Faults::none(), &case);
    pair.advance(Stage::Established);
    let Pair { mut sim, client, server, .. } = pair;
    let names = sim.names(client.host);
    let tell = |name, watch| {
        client.node.input(client.node.env().now(), Input::Gone(name, watch));
    };
    let watches: Vec<_> = names.iter().map(|&name| (name, client.node.env().watch(name).unwrap())).collect();
    for &(name, Watch(watch)) in &watches {
        // Told late, of a process that had the same random number and ended.
        tell(name, Watch(watch + 1_000));
    }
    sim.run_for(Duration::from_secs(1));
    assert!(client.next().is_none() && server.next().is_none(), "both live");
    watches.iter().for_each(|&(name, watch)| tell(name, watch));
    sim.run_for(Duration::from_secs(1));
    assert_eq!(client.next().map(|event| event.kind), Some(EventKind::Disconnected));
}

impl Pair {
    /// What the programs do upon what happened: the server accepts. The end of the connection,
    /// where the one that will live hears of it.
    fn serve(&mut self, case: &Case) -> Option<EventKind> {
        let mut end = None;
        while let Some(event) = self.server.next() {
            if event.kind == EventKind::ConnectRequest && self.sim.node(self.server.process).is_some() {
                let mut theirs = Side::new(event.id.clone());
                theirs.equip(&self.server.node);
                self.server.node.accept(&event.id, None, &[]).unwrap();
                self.theirs = Some(theirs);
            }
            end = end.or((is_end(&event) && !case.server_dies).then_some(event.kind));
        }
        while let Some(event) = self.client.next() {
            end = end.or((is_end(&event) && case.server_dies).then_some(event.kind));
        }
        end
    }
}
