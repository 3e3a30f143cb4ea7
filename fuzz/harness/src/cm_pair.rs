//! Two connection managers over a network that loses, repeats and reorders as the input says, with
//! programs that do what they like.
//!
//! Every connection goes through its states in order and ends once; a request is shown once while
//! it lives; both ends of an established connection agree on its numbers; once the network works
//! neither waits for ever; in the end both have forgotten everything.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use cm::ib::{Cm, Origin, Output};
use cm::{ConnId, Event, PathRecord, Refusal};
use wire::mad::Mad;
use wire::{CommId, Mtu, Qpn};

use crate::cm_engine::{accept, connect, gid, manager};
use crate::{Input, start};

/// Most steps that the input decides about.
const STEPS: u32 = 300;
/// Once the network works: longer than any request is repeated.
const SETTLE: Duration = Duration::from_secs(100);
/// Most things that happen meanwhile.
const MAX_EVENTS: u32 = 20_000;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Pair::new(&mut Input::new(bytes)).run();
}

/// How far a connection is, as its program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// REQ sent.
    Asked,
    /// REQ received, not answered.
    Requested,
    /// REP received.
    Replied,
    /// REP sent.
    Accepted,
    Established,
    /// Only the end of time wait may follow.
    Ended,
    /// Nothing follows.
    Over,
}

#[derive(Debug)]
struct Conn {
    stage: Stage,
    /// The asking side's communication id, where it was asked.
    asked_by: Option<CommId>,
}

struct End {
    cm: Cm,
    conns: BTreeMap<ConnId, Conn>,
    held: BTreeMap<ConnId, Qpn>,
    /// What it sent and has not arrived.
    wire: VecDeque<(Origin, Mad)>,
    next_qpn: u32,
}

struct Pair<'a, 'b> {
    input: &'a mut Input<'b>,
    ends: [End; 2],
    now: Instant,
}

impl<'a, 'b> Pair<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let end = |at: u32| End {
            cm: manager(u64::from(at), at),
            conns: BTreeMap::new(),
            held: BTreeMap::new(),
            wire: VecDeque::new(),
            next_qpn: at << 12,
        };
        Pair { input, ends: [end(1), end(2)], now: start() }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            self.step();
            self.take();
        }
        self.settle(SETTLE, true);
        self.check_settled();
        for e in 0..2 {
            while let Some((&conn, _)) = self.ends[e].conns.first_key_value() {
                self.destroy(e, conn);
            }
        }
        self.settle(SETTLE, false);
        for end in &self.ends {
            assert!(end.cm.is_empty(), "{} connections stay for ever", end.cm.len());
            assert!(end.held.is_empty(), "queue pair numbers are never released: {:?}", end.held);
        }
    }

    fn step(&mut self) {
        let e = usize::from(self.input.any::<bool>());
        match self.input.below(24) {
            0 | 1 => self.connect(e),
            2..=7 => {
                let conns: Vec<ConnId> = self.ends[e].conns.keys().copied().collect();
                if let Some(conn) = self.input.pick(&conns) {
                    self.call(e, conn);
                }
            }
            8 | 9 => drop(self.ends[e].wire.pop_front()),
            10 => {
                let again = self.ends[e].wire.front().cloned();
                self.ends[e].wire.extend(again);
            }
            11 => {
                let wire = &mut self.ends[e].wire;
                wire.rotate_left(usize::from(wire.len() > 1));
            }
            12 | 13 => {
                let time = self.input.below(2_000_000);
                self.pass(Duration::from_micros(time.into()));
            }
            _ => self.deliver(e),
        }
    }

    fn qpn(&mut self, e: usize) -> Qpn {
        self.ends[e].next_qpn += 1;
        Qpn::new(self.ends[e].next_qpn)
    }

    fn connect(&mut self, e: usize) {
        let path = PathRecord::new(gid(1 + e as u8), gid(2 - e as u8), 1, Mtu::M1024);
        let qpn = self.qpn(e);
        let connect = connect(path, qpn.get(), self.input);
        let end = &mut self.ends[e];
        if let Ok(conn) = end.cm.connect(self.now, &connect) {
            end.conns.insert(conn, Conn { stage: Stage::Asked, asked_by: None });
            end.held.insert(conn, qpn);
        }
    }

    /// What a program does with a connection, in season or out.
    fn call(&mut self, e: usize, conn: ConnId) {
        match self.input.below(8) {
            0..=3 => self.go_on(e, conn),
            4 => {
                let done = self.ends[e].cm.reject(self.now, conn, Refusal::ConsumerDefined, &[]);
                if done.is_ok() {
                    self.set(e, conn, Stage::Over);
                }
            }
            5 | 6 => drop(self.ends[e].cm.disconnect(self.now, conn).is_ok()),
            _ => self.destroy(e, conn),
        }
    }

    /// The next step towards a connection.
    fn go_on(&mut self, e: usize, conn: ConnId) {
        let qpn = self.qpn(e);
        let end = &mut self.ends[e];
        let Some(Conn { stage, .. }) = end.conns.get(&conn) else { return };
        match stage {
            Stage::Requested => {
                let accepted = end.cm.accept(self.now, conn, &accept(qpn.get(), self.input));
                if accepted.is_ok() {
                    end.held.insert(conn, qpn);
                    self.set(e, conn, Stage::Accepted);
                }
            }
            Stage::Replied => {
                end.cm.established(self.now, conn).expect("a reply stands until something is told");
                self.set(e, conn, Stage::Established);
            }
            _ => {}
        }
    }

    fn set(&mut self, e: usize, conn: ConnId, stage: Stage) {
        if let Some(conn) = self.ends[e].conns.get_mut(&conn) {
            conn.stage = stage;
        }
    }

    fn destroy(&mut self, e: usize, conn: ConnId) {
        self.ends[e].cm.destroy(self.now, conn);
        self.ends[e].conns.remove(&conn);
    }

    fn deliver(&mut self, from: usize) {
        if let Some((origin, mad)) = self.ends[from].wire.pop_front() {
            self.ends[1 - from].cm.input(self.now, origin, &mad);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in &mut self.ends {
            end.cm.expire(self.now);
            assert!(end.cm.deadline().is_none_or(|at| at > self.now), "a deadline that is over after expire");
        }
    }

    fn take(&mut self) {
        for e in 0..2 {
            while let Some(output) = self.ends[e].cm.poll() {
                match output {
                    Output::Transmit { mad, path, .. } => {
                        let origin = Origin { source: path.source(), dest: path.dest(), link: path.link };
                        let mad = Mad::parse(&mad.emit()).expect("what is sent parses");
                        self.ends[e].wire.push_back((origin, mad));
                        assert!(self.ends[e].wire.len() < 20_000, "the wire fills up");
                    }
                    Output::Event { conn, event } => self.event(e, conn, &event),
                    Output::Released { conn, qpn } => {
                        assert_eq!(
                            self.ends[e].held.remove(&conn),
                            Some(qpn),
                            "released once, by who had it"
                        );
                    }
                    Output::Stream { .. } => unreachable!("MADs go by no stream"),
                }
            }
        }
    }

    /// An event fits what came before.
    fn event(&mut self, e: usize, conn: ConnId, event: &Event) {
        use Stage::*;
        let asked_by = self.ends[e].cm.comm_ids(conn).and_then(|(_, asker)| asker);
        let conns = &mut self.ends[e].conns;
        if let Event::Request(_) = event {
            let lives = |c: &&Conn| c.asked_by == asked_by && !matches!(c.stage, Ended | Over);
            let twice = conns.values().find(lives);
            assert!(twice.is_none(), "one request is shown twice: {twice:?}");
            let before = conns.insert(conn, Conn { stage: Requested, asked_by });
            assert!(before.is_none(), "a request is a new connection");
            return;
        }
        let stage = conns.get(&conn).map(|conn| conn.stage);
        let Some(stage) = stage else { panic!("{event:?} of a connection that was destroyed") };
        let next = match (event, stage) {
            (Event::Reply(_), Asked) => Replied,
            (Event::Established, Accepted) => Established,
            (Event::Rejected { .. }, Asked | Requested | Replied | Accepted | Established) => Ended,
            (Event::Unreachable { .. }, Asked | Replied | Accepted) => Ended,
            (Event::Disconnected { .. }, Requested | Replied | Accepted | Established) => Ended,
            (Event::TimewaitExit, Ended) => Over,
            _ => panic!("{event:?} after {stage:?}"),
        };
        self.set(e, conn, next);
    }

    /// The network works, for so long; `willing`: programs go on with what they began.
    fn settle(&mut self, time: Duration, willing: bool) {
        let end = self.now + time;
        for _ in 0..MAX_EVENTS {
            self.take();
            if let Some(e) = (0..2).find(|e| !self.ends[*e].wire.is_empty()) {
                self.deliver(e);
                continue;
            }
            if willing && self.go_on_all() {
                continue;
            }
            let next = self.ends.iter().filter_map(|end| end.cm.deadline()).min();
            match next.filter(|at| *at <= end) {
                Some(at) => self.pass(at.saturating_duration_since(self.now)),
                None => return,
            }
        }
        panic!("too much happens in {time:?}");
    }

    /// Whether any program had something to answer.
    fn go_on_all(&mut self) -> bool {
        let waits = |conn: &Conn| matches!(conn.stage, Stage::Requested | Stage::Replied);
        for e in 0..2 {
            let waiting: Vec<ConnId> =
                self.ends[e].conns.iter().filter(|(_, conn)| waits(conn)).map(|(id, _)| *id).collect();
            for conn in &waiting {
                self.go_on(e, *conn);
            }
            let left =
                self.ends[e].conns.iter().filter(|(id, conn)| waits(conn) && waiting.contains(id)).count();
            if waiting.len() > left {
                return true;
            }
        }
        false
    }

    /// The network has worked for long enough for everything to be settled.
    fn check_settled(&self) {
        for (e, end) in self.ends.iter().enumerate() {
            for (id, conn) in &end.conns {
                assert!(!matches!(conn.stage, Stage::Asked | Stage::Accepted), "{:?} for ever", conn.stage);
                if conn.stage != Stage::Established {
                    continue;
                }
                let Some((ours, Some(theirs))) = end.cm.comm_ids(*id) else {
                    panic!("established with nobody")
                };
                let other = &self.ends[1 - e];
                let peer = other.conns.iter().find(|(peer, conn)| {
                    conn.stage == Stage::Established
                        && other.cm.comm_ids(**peer) == Some((theirs, Some(ours)))
                });
                // One that ended while the network did not work may have left this one alone.
                let Some((peer, _)) = peer else { continue };
                let (a, b) = (end.cm.qp_attr(*id), other.cm.qp_attr(*peer));
                let (Some(a), Some(b)) = (a, b) else { panic!("established without attributes") };
                assert_eq!((a.sq_psn, a.rq_psn), (b.rq_psn, b.sq_psn));
                assert_eq!(Some(&a.dest_qpn), other.held.get(peer));
                assert!(a.max_rd_atomic <= b.max_dest_rd_atomic, "more READs than the peer takes");
            }
        }
    }
}
