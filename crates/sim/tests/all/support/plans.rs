//! A client and a server with plans, and the connections between them, stepped to their end:
//! nothing is left then.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nic::rdma_cm::EventKind;
use sim::{Dice, Faults, Sim};
use stack::{Event, Id, Name};
use wire::mad::PortSpace;

use super::connections::{MESSAGES, PORT, Party, Side, end_connection, message_bytes, param};
use super::{SimNode, Way};

/// How long a program waits for its peer: one that was cut off while it ended the connection does
/// not say so later.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// Virtual time in which all must have ended.
pub(crate) const LIMIT: Duration = Duration::from_secs(400);

/// What a program at one end does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The server refuses.
    pub reject: bool,
    /// The server decides so late.
    pub decide_after: Duration,
    /// Which side ends the connection, when all messages are there: bit 0 the client, bit 1 the
    /// server.
    pub who_ends: u8,
    /// From the end of the connection to the end of the identifier.
    pub destroy_after: Duration,
}

/// A client, a server, and the connections between them.
pub(crate) struct Run {
    pub way: Way,
    pub sim: Sim,
    pub client: Party,
    pub server: Party,
    pub plans: Vec<Plan>,
    /// By number; a server's come with requests, of which late copies may make more than one.
    pub clients: Vec<Side>,
    pub servers: BTreeMap<usize, Vec<Side>>,
    pub listener: Option<Arc<Id>>,
    /// The first server is no more.
    pub killed: bool,
    /// Every identifier there ever was.
    pub all: Vec<Weak<Id>>,
}

impl Run {
    pub(crate) fn new(seed: u64, faults: Faults, plans: Vec<Plan>) -> Self {
        Self::by(Way::Wire, seed, faults, plans)
    }

    /// Like [`Run::new`], by another way.
    pub(crate) fn by(way: Way, seed: u64, faults: Faults, plans: Vec<Plan>) -> Self {
        let mut dice = Dice::new(seed).fork(2000);
        let mut sim = Sim::new(seed, faults);
        if sim::seeds::single().is_some() {
            sim.log();
        }
        let v6 = dice.chance(0.5);
        let address = |n: u16| -> IpAddr {
            if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, n].into() } else { [10, 0, 0, n as u8].into() }
        };
        let here = sim.add_host(&[address(1)], 1500);
        let together = dice.chance(0.15);
        let (there, n) = if together { (here, 1) } else { (sim.add_host(&[address(2)], 1500), 2) };
        let client = Party::with(&mut sim, here, address(1), &way.config());
        let server = Party::with(&mut sim, there, address(n), &way.config());
        let listener = Some(server.listen());
        let mut run = Self {
            way,
            sim,
            client,
            server,
            plans,
            clients: Vec::new(),
            servers: BTreeMap::new(),
            listener,
            killed: false,
            all: Vec::new(),
        };
        for _ in 0..run.plans.len() {
            let id = run.client.node.create_id(&run.client.channel, PortSpace::Tcp);
            let dest = SocketAddr::new(run.server.address, PORT);
            run.client.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
            run.all.push(Arc::downgrade(&id));
            run.clients.push(Side::new(id));
        }
        run
    }

    /// One step, and what the programs do upon it.
    pub(crate) fn step(&mut self) {
        let wishes = |s: &Side| [s.destroy_at, s.decide_at, s.give_up_at].into_iter().flatten().min();
        let next = self.sides().filter_map(wishes).min();
        self.sim.step(next.unwrap_or(LIMIT).min(LIMIT));
        self.react();
    }

    /// What the programs do upon what happened; whether anything did.
    pub(crate) fn react(&mut self) -> bool {
        let mut told = false;
        while let Some(event) = self.client.next() {
            told = true;
            self.client_event(event);
        }
        while let Some(event) = self.server.next() {
            told = true;
            self.server_event(event);
        }
        self.sides_mut().for_each(Side::poll);
        self.act();
        told
    }

    pub(crate) fn sides(&self) -> impl Iterator<Item = &Side> {
        self.clients.iter().chain(self.servers.values().flatten())
    }
    pub(crate) fn sides_mut(&mut self) -> impl Iterator<Item = &mut Side> {
        self.clients.iter_mut().chain(self.servers.values_mut().flatten())
    }

    pub(crate) fn client_event(&mut self, event: Event) {
        let n = self.clients.iter().position(|s| s.id.as_ref().is_some_and(|i| Arc::ptr_eq(i, &event.id)));
        let n = n.unwrap_or_else(|| panic!("an event for nobody: {event:?}"));
        let (side, node, plan) = (&mut self.clients[n], &self.client.node, &self.plans[n]);
        side.events.push((event.kind, event.status));
        let end = self.sim.elapsed() + plan.destroy_after;
        match event.kind {
            EventKind::AddrResolved => node.resolve_route(&event.id, Duration::from_secs(2)).unwrap(),
            EventKind::RouteResolved => {
                side.equip(node);
                node.connect(&event.id, &param(), &[n as u8]).unwrap();
            }
            EventKind::Established => {
                assert_eq!(event.private_data[..2], [n as u8, 1]);
                side.send_all(node);
                side.give_up_at = Some(self.sim.elapsed() + TIMEOUT);
            }
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                // Of a killed server nothing but the fact is known.
                if event.kind == EventKind::Rejected && event.status == 28 && !self.killed {
                    assert_eq!(event.private_data[..2], [n as u8, 2]);
                }
                side.destroy_at = Some(end);
            }
            EventKind::Disconnected => {
                node.disconnect(&event.id).unwrap();
                side.ending = true;
                side.destroy_at = Some(end);
            }
            EventKind::TimewaitExit => {}
            _ => panic!("unexpected {event:?}"),
        }
    }

    pub(crate) fn server_event(&mut self, event: Event) {
        let now = self.sim.elapsed();
        if event.kind == EventKind::ConnectRequest {
            let n = usize::from(event.private_data[0]);
            let mut side = Side::new(event.id.clone());
            self.all.push(Arc::downgrade(&event.id));
            side.events.push((event.kind, event.status));
            side.decide_at = Some(now + self.plans[n].decide_after);
            return self.servers.entry(n).or_default().push(side);
        }
        let node = &self.server.node;
        let mine = |s: &&mut Side| s.id.as_ref().is_some_and(|i| Arc::ptr_eq(i, &event.id));
        let found = self.servers.iter_mut().find_map(|(n, sides)| Some((*n, sides.iter_mut().find(mine)?)));
        let (n, side) = found.unwrap_or_else(|| panic!("an event for nobody: {event:?}"));
        side.events.push((event.kind, event.status));
        match event.kind {
            EventKind::Established => {
                side.send_all(node);
                side.give_up_at = Some(now + TIMEOUT);
            }
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                side.decide_at = None;
                side.destroy_at = Some(now + self.plans[n].destroy_after);
            }
            EventKind::Disconnected => {
                side.decide_at = None;
                side.ending = true;
                node.disconnect(&event.id).unwrap();
                side.destroy_at = Some(now + self.plans[n].destroy_after);
            }
            EventKind::TimewaitExit => {}
            _ => panic!("unexpected {event:?}"),
        }
    }

    /// What programs do by themselves.
    pub(crate) fn act(&mut self) {
        let now = self.sim.elapsed();
        for (n, sides) in &mut self.servers {
            for side in sides {
                decide(side, &self.server.node, *n, &self.plans[*n], now);
            }
        }
        for (n, plan) in self.plans.iter().enumerate() {
            let client = &mut self.clients[n];
            let mut server =
                self.servers.get_mut(&n).and_then(|s| s.iter_mut().find(|s| s.has(EventKind::Established)));
            let all_there =
                client.received == MESSAGES && server.as_ref().is_some_and(|s| s.received == MESSAGES);
            let broken = client.broken || server.as_ref().is_some_and(|s| s.broken);
            if !all_there && !broken {
                continue;
            }
            if (plan.who_ends & 1 != 0 || client.broken) && !client.ending {
                end_connection(client, &self.client.node);
            }
            if let Some(server) =
                server.as_mut().filter(|s| (plan.who_ends & 2 != 0 || s.broken) && !s.ending)
            {
                end_connection(server, &self.server.node);
            }
        }
        for (sides, node) in [
            (self.clients.iter_mut().collect::<Vec<_>>(), &self.client.node),
            (self.servers.values_mut().flatten().collect(), &self.server.node),
        ] {
            for side in sides {
                if side.give_up_at.is_some_and(|at| at <= now) {
                    side.give_up_at = None;
                    if !side.ending {
                        end_connection(side, node);
                    }
                }
                if side.destroy_at.is_some_and(|at| at <= now) {
                    destroy(side, node);
                }
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.sides().all(|s| s.id.is_none()) && self.clients.len() == self.plans.len()
    }

    /// Runs to the end, then looks for what is left.
    pub(crate) fn go(mut self) -> Vec<(bool, bool)> {
        self.run_out();
        let outcome = self.outcome();
        self.nothing_is_left();
        outcome
    }

    /// Runs until all identifiers are destroyed, those included that late copies of requests make.
    pub(crate) fn run_out(&mut self) {
        while !self.is_over() {
            assert!(self.sim.elapsed() < LIMIT, "stuck:\n{}", self.story());
            self.step();
        }
        self.sim.set_faults(Faults::none());
        for _ in 0..20 {
            self.sim.run_for(Duration::from_millis(100));
            while self.react() || !self.is_over() {
                assert!(self.sim.elapsed() < LIMIT, "stuck:\n{}", self.story());
                self.step();
            }
        }
    }

    /// Kills the server and starts another. What the dead one held is returned: it does nothing any
    /// more.
    pub(crate) fn kill_server(&mut self) -> Vec<Side> {
        let (host, address) = (self.server.host, self.server.address);
        self.sim.kill(self.server.process);
        // Events that were not fetched hold identifiers, which hold the channel.
        while self.server.next().is_some() {}
        self.killed = true;
        self.server = Party::with(&mut self.sim, host, address, &self.way.config());
        self.all.clear();
        self.all.extend(self.clients.iter().filter_map(|s| Some(Arc::downgrade(s.id.as_ref()?))));
        self.listener = Some(self.server.listen());
        std::mem::take(&mut self.servers).into_values().flatten().collect()
    }

    /// Whether each connection was established, at the client and at the server.
    pub(crate) fn outcome(&self) -> Vec<(bool, bool)> {
        let none = Vec::new();
        let server = |n| self.servers.get(&n).unwrap_or(&none);
        for side in self.sides() {
            let ends = [
                EventKind::Rejected,
                EventKind::Unreachable,
                EventKind::ConnectError,
                EventKind::Disconnected,
            ];
            let count = |kind| side.events.iter().filter(|(k, _)| *k == kind).count();
            assert!(
                count(EventKind::Established) <= 1 && count(EventKind::TimewaitExit) <= 1,
                "{}",
                self.story()
            );
            assert!(ends.into_iter().map(count).sum::<usize>() <= 1, "ended twice:\n{}", self.story());
            if side.has(EventKind::Established) {
                // An accepting side that no RTU reached gives up and says so: REJ of reason 4,
                // timeout.
                let given_up = side.events.contains(&(EventKind::Rejected, 4));
                let told = count(EventKind::Disconnected) == 1 || given_up;
                assert!(told, "not told of the end:\n{}", self.story());
            }
        }
        (0..self.plans.len())
            .map(|n| {
                let established = server(n).iter().filter(|s| s.has(EventKind::Established)).count();
                assert!(established <= 1, "established twice:\n{}", self.story());
                (self.clients[n].has(EventKind::Established), established == 1)
            })
            .collect()
    }

    pub(crate) fn nothing_is_left(mut self) {
        // Names are given back by the call, not when the last reference goes.
        let listener = self.listener.take();
        if let Some(listener) = &listener {
            self.server.node.destroy(listener);
        }
        self.sim.run_for(Duration::from_secs(60));
        for party in [&self.client, &self.server] {
            assert_eq!(party.node.connections(), 0, "connections are left:\n{}", self.story());
            assert_eq!(
                stack::env::InputHandler::deadline(&*party.node),
                None,
                "a timer runs:\n{}",
                self.story()
            );
            assert!(party.node.devices()[0].qps().is_empty(), "queue pairs are left");
            assert_eq!(self.sim.streams(party.process), 0, "streams are left:\n{}", self.story());
            assert!(party.next().is_none(), "an event after the end");
            for name in self.sim.names(party.host) {
                assert!(matches!(name, Name::Block(_)), "{name:?} is left");
            }
        }
        // An alarm set for a timer that was stopped rings all the same, once.
        self.sim.run_for(Duration::from_secs(100));
        assert!(self.sim.is_idle(), "a host waits for something after the end:\n{}", self.story());
        let alive = self.all.iter().filter(|id| id.strong_count() > 0).count();
        assert_eq!(alive, 0, "identifiers are left:\n{}", self.story());
    }

    /// What happened to every connection.
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        for (n, client) in self.clients.iter().enumerate() {
            story +=
                &format!("{n} {:?}\n  client {:?} got {}\n", self.plans[n], client.events, client.received);
            for server in self.servers.get(&n).into_iter().flatten() {
                story += &format!("  server {:?} got {}\n", server.events, server.received);
            }
        }
        story
    }
}

/// The server's answer to a request.
pub(crate) fn decide(side: &mut Side, node: &SimNode, n: usize, plan: &Plan, now: Duration) {
    if side.decide_at.is_none_or(|at| at > now) {
        return;
    }
    side.decide_at = None;
    let Some(id) = side.id.clone() else { return };
    if plan.reject {
        node.reject(&id, &[n as u8, 2]).unwrap();
        side.destroy_at = Some(now + plan.destroy_after);
    } else {
        side.equip(node);
        node.accept(&id, Some(&param()), &[n as u8, 1]).unwrap();
    }
}

pub(crate) fn destroy(side: &mut Side, node: &SimNode) {
    (side.destroy_at, side.give_up_at) = (None, None);
    if let (Some(inbox), true) = (&side.inbox, side.received == MESSAGES) {
        assert!(inbox.holds(0, &message_bytes(inbox.len())), "wrong bytes");
    }
    if let Some(id) = side.id.take() {
        if side.endpoint.is_some() {
            node.take_qp(&id).unwrap().destroy();
        }
        node.destroy(&id);
    }
    (side.endpoint, side.inbox, side.outbox) = (None, None, None);
}

pub(crate) fn plans(dice: &mut Dice) -> Vec<Plan> {
    (0..dice.between(1, 4))
        .map(|_| Plan {
            reject: dice.chance(0.25),
            decide_after: dice.pick(&[0, 1, 300, 2000]) * Duration::from_millis(1),
            who_ends: dice.between(1, 3) as u8,
            destroy_after: dice.pick(&[0, 0, 1, 3000]) * Duration::from_millis(1),
        })
        .collect()
}

pub(crate) fn bad(dice: &mut Dice) -> Faults {
    let mut p = |most: f64| if dice.chance(0.6) { most * dice.below(1000) as f64 / 1000.0 } else { 0.0 };
    Faults::none()
        .loss(p(0.3))
        .duplicate(p(0.3))
        .replay(p(0.3))
        .reorder(p(0.3))
        .jitter(Duration::from_micros(dice.below(1000)))
        .delay(Duration::from_micros(dice.between(1, 5_000)))
        .replay_delay(Duration::from_millis(dice.between(1, 400)))
        .reorder_delay(Duration::from_millis(dice.between(1, 50)))
}
