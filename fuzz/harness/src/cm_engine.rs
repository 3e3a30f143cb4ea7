//! The connection manager against any messages, calls and times.
//!
//! What it sends parses; it says nothing of connections that were destroyed; it holds no more than
//! it is allowed to, sends little for each thing that happens, waits for nothing that is over, and
//! in the end has forgotten everything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cm::ib::{Cm, Config, Origin, Output};
use cm::{
    Accept, ConnId, Connect, Event, Parameters, PathRecord, Refusal, SidrAnswer, SidrAsk, TransportService,
};
use wire::mad::Mad;
use wire::{CommId, Gid, Guid, Mtu, Psn, Qkey, Qpn};

use crate::messages::{self, Known, MESSAGES, service};
use crate::{Input, start};

/// Most steps of one input.
const STEPS: u32 = 300;
/// Most connections, requests that wait, refusals remembered: small, so that limits are met.
const MAX_CONNECTIONS: usize = 8;
const MAX_REQUESTS: usize = 3;
const MAX_REFUSALS: usize = 3;
/// Most outputs of one step: an event, a message and a release for each connection, and a probe of
/// each process.
const MAX_OUTPUTS: usize = 6 * (MAX_CONNECTIONS + MAX_REFUSALS);

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Peer::new(&mut Input::new(bytes)).run();
}

/// The GID of host `n`.
pub fn gid(n: u8) -> Gid {
    std::net::IpAddr::from([10, 0, 0, n]).into()
}

/// A manager with small limits; its communication ids are `block << 20` and a number that comes
/// round again.
pub fn manager(guid: u64, block: u32) -> Cm {
    let mut config = Config::new(Guid(guid));
    config.max_connections = MAX_CONNECTIONS;
    config.max_pending_requests = MAX_REQUESTS;
    config.max_refusals = MAX_REFUSALS;
    config.is_kin = |guid| guid.0 >= 2;
    config.process_of = |id| id.0 >> 20;
    let (mut last, mut transaction) = (0, u64::from(block) << 32);
    let comm_ids = move || {
        last = (last + 1) % 24;
        CommId(block << 20 | last)
    };
    let transaction_ids = move || {
        transaction += 1;
        transaction
    };
    Cm::new(config, comm_ids, transaction_ids)
}

/// Parameters of a connection.
pub fn connect(path: PathRecord, qpn: u32, input: &mut Input<'_>) -> Connect {
    let service = service(input.below(2));
    let parameters = Parameters { retry_count: 7, ..parameters(qpn, input) };
    let transport_service =
        input.choose(&[TransportService::Rc, TransportService::Uc, TransportService::Xrc]);
    Connect { service, source_port: 1, path, transport_service, parameters, private_data: vec![0x11; 56] }
}

/// Parameters of an answer.
pub fn accept(qpn: u32, input: &mut Input<'_>) -> Accept {
    Accept { parameters: parameters(qpn, input), private_data: vec![0x22; 196] }
}

fn parameters(qpn: u32, input: &mut Input<'_>) -> Parameters {
    Parameters {
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(1),
        responder_resources: input.u8() & 7,
        initiator_depth: input.u8() & 7,
        rnr_retry_count: 7,
        srq: input.any(),
        ..Parameters::default()
    }
}

/// A manager, and what a program and its peers know of it.
struct Peer<'a, 'b> {
    input: &'a mut Input<'b>,
    cm: Cm,
    now: Instant,
    known: Known,
    alive: Vec<ConnId>,
    destroyed: BTreeSet<ConnId>,
    /// Queue pair numbers given and not released.
    held: BTreeMap<ConnId, Qpn>,
    left: bool,
}

impl<'a, 'b> Peer<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let (cm, known) = (manager(1, 1), Known::default());
        let (alive, destroyed, held) = Default::default();
        Peer { input, cm, now: start(), known, alive, destroyed, held, left: false }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            self.step();
            self.take(MAX_OUTPUTS);
        }
        for conn in std::mem::take(&mut self.alive) {
            self.destroy(conn);
            self.take(MAX_OUTPUTS);
        }
        for _ in 0..5_000 {
            let Some(at) = self.cm.deadline() else { break };
            self.pass(at.saturating_duration_since(self.now));
        }
        assert!(self.cm.is_empty(), "{} connections stay for ever", self.cm.len());
        assert!(self.held.is_empty(), "queue pair numbers are never released: {:?}", self.held);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.cm.expire(self.now);
        self.take(MAX_OUTPUTS);
        assert!(self.cm.deadline().is_none_or(|at| at > self.now), "a deadline that is over after expire");
    }

    fn pick(&mut self) -> Option<ConnId> {
        self.input.pick(&self.alive)
    }

    fn path(&mut self) -> PathRecord {
        PathRecord::new(gid(1), gid(2 + self.input.u8() % 2), 1, Mtu::M1024)
    }

    fn destroy(&mut self, conn: ConnId) {
        self.cm.destroy(self.now, conn);
        self.alive.retain(|alive| *alive != conn);
        self.destroyed.insert(conn);
    }

    fn step(&mut self) {
        let now = self.now;
        match self.input.below(24) {
            0 => {
                let (path, qpn) = (self.path(), 1 + self.input.below(5));
                let connect = connect(path, qpn, self.input);
                if let Ok(conn) = self.cm.connect(now, &connect) {
                    self.alive.push(conn);
                    self.held.insert(conn, Qpn::new(qpn));
                }
            }
            1 => {
                let (service, path) = (service(0), self.path());
                let ask = SidrAsk { service, source_port: 1, path, private_data: vec![] };
                self.alive.extend(self.cm.sidr_request(now, &ask));
            }
            2 => {
                let time = self.input.below(5_000_000);
                self.pass(Duration::from_micros(time.into()));
            }
            3 => self.env(),
            4..=10 => {
                if let Some(conn) = self.pick() {
                    self.call(conn);
                }
            }
            _ => {
                let arm = self.input.below(MESSAGES);
                if let Some(mad) = messages::message(arm, self.input, &self.known) {
                    let source = gid(2 + self.input.u8() % 2).ip().into();
                    self.cm.input(now, Origin { source, dest: gid(1).ip().into(), link: 1 }, &mad);
                }
            }
        }
    }

    /// What a program does with a connection, whatever its state.
    fn call(&mut self, conn: ConnId) {
        let now = self.now;
        match self.input.below(9) {
            0 | 1 => {
                let qpn = 1 + self.input.below(5);
                if self.cm.accept(now, conn, &accept(qpn, self.input)).is_ok() {
                    self.held.insert(conn, Qpn::new(qpn));
                }
            }
            2 => drop(self.cm.reject(now, conn, Refusal::ConsumerDefined, &[])),
            3 => _ = self.cm.established(now, conn),
            4 => drop(self.cm.disconnect(now, conn)),
            5 => {
                let answer = SidrAnswer { qpn: Qpn::new(1), qkey: Qkey(0), private_data: vec![] };
                let _ = match self.input.u8() % 3 {
                    0 => self.cm.sidr_reply(now, conn, &answer),
                    1 => self.cm.reject(now, conn, Refusal::InvalidService, &[]),
                    _ => self.cm.reject(now, conn, Refusal::ConsumerDefined, &[]),
                };
            }
            6 => _ = self.cm.mra(now, conn, self.input.u8() & 31),
            7 => {
                let _ = (self.cm.qp_attr(conn), self.cm.requested_qp_attr(conn), self.cm.comm_ids(conn));
            }
            _ => self.destroy(conn),
        }
    }

    /// What the environment says of peers.
    fn env(&mut self) {
        let (now, peer) = (self.now, gid(2).ip().into());
        match self.input.below(8) {
            0 | 1 => {
                let id = self.input.any::<bool>().then(|| self.input.choose(&self.known.ids));
                self.cm.peer_unreachable(now, peer, id);
            }
            2 | 3 => self.cm.process_unreachable(now, peer, self.input.below(4)),
            4..=6 => {
                let gone = self.input.choose(&self.known.ids);
                self.cm.peer_gone(now, |id, _| id == Some(gone));
            }
            _ => {
                self.left = true;
                self.cm.leave(now);
            }
        }
    }

    /// What the manager has to say.
    fn take(&mut self, most: usize) {
        let mut outputs = 0;
        while let Some(output) = self.cm.poll() {
            outputs += 1;
            assert!(outputs <= most, "one step puts out too much");
            match output {
                Output::Transmit { mad, path, .. } => {
                    assert_eq!(Mad::parse(&mad.emit()).as_ref(), Ok(&*mad), "what is sent parses");
                    assert_eq!(path.local_gid, gid(1));
                    self.known.saw(&mad);
                }
                Output::Event { conn, event } => {
                    assert!(!self.destroyed.contains(&conn), "an event after destroy: {event:?}");
                    let new = matches!(event, Event::Request(_) | Event::SidrRequest(_));
                    assert_eq!(new, !self.alive.contains(&conn), "the first event is a request: {event:?}");
                    if new {
                        self.alive.push(conn);
                    }
                }
                Output::Released { conn, qpn } => {
                    assert_eq!(self.held.remove(&conn), Some(qpn), "released once, by who had it");
                }
                Output::Stream { .. } => unreachable!("MADs go by no stream"),
            }
        }
        assert!(self.cm.len() <= MAX_CONNECTIONS + MAX_REFUSALS, "{} connections", self.cm.len());
    }
}
