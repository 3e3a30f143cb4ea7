//! Two queue pairs with random work in both directions. Every message must have the effect that it
//! has on a perfect network, once and in order, or the queue pair must end in the error state with
//! the completions that the standard gives it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::connections::{PORT, Party, param};
use super::jobs::{AREAS, Job, Kind, apply, jobs, of_iwarp, pieces};
use super::{DEPTH, Endpoint, RIGHTS, SimNode, Way, Wiring, wire_up};
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Buffer, Link, PostError, QpAttr, QpState, mask};
use sim::{Dice, Faults, Sim, SimEnv};
use stack::Id;
use transport::op::{AtomicOp, Completed, Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::mad::PortSpace;
use wire::roce::SendTail;
use wire::{Mtu, Psn};

/// Places for READ results and received messages; more than a queue holds.
const PLACES: usize = DEPTH as usize + 1;
/// Virtual time after which a run is stuck.
const LIMIT: Duration = Duration::from_secs(600);

/// One end.
pub(crate) struct End {
    node: SimNode,
    endpoint: Endpoint,
    /// Random bytes that SENDs and WRITEs carry; never changed.
    source: Buffer,
    bytes: Vec<u8>,
    /// Results of READs and atomics.
    landing: Buffer,
    /// Received messages.
    inbox: Buffer,
    /// What the peer's WRITEs and READs work on; after it eight bytes for its atomics.
    areas: Buffer,
    jobs: Vec<Job>,
    posted: usize,
    /// Jobs whose completion is known, and the error the queue pair ended with.
    done: usize,
    failed: Option<Status>,
    receives_posted: u64,
    receives_wanted: u64,
    received: u64,
    flushed: u64,
    /// The peer's jobs that have had their effect here, and what they leave in the areas.
    peer_jobs: usize,
    model: Vec<Vec<u8>>,
    /// Where the connection manager has connected them.
    id: Option<Arc<Id>>,
}

pub(crate) struct Run {
    pub sim: Sim,
    dice: Dice,
    max: usize,
    ends: [End; 2],
    parties: [Party; 2],
    wiring: Wiring,
    way: Way,
}

impl End {
    fn new(node: SimNode, dice: &mut Dice, max: usize, way: Way) -> Self {
        let endpoint = Endpoint::new(&node);
        let buffer = |len, iova, access| Buffer::new(&endpoint.pd, len, iova, access).unwrap();
        let source = buffer(2 * max, 0x10_0000, 0);
        let mut bytes = vec![0; 2 * max];
        dice.fill(&mut bytes);
        source.write(0, &bytes);
        let jobs = jobs(dice, max, &bytes);
        let jobs = if way == Way::Stream { of_iwarp(jobs) } else { jobs };
        Self {
            landing: buffer(PLACES * max.max(8), 0x1000_0000, nic::Access::LOCAL_WRITE),
            inbox: buffer(PLACES * max, 0x2000_0000, nic::Access::LOCAL_WRITE),
            areas: buffer(AREAS * max + 8, 0x3000_0000, RIGHTS),
            source,
            bytes,
            node,
            endpoint,
            jobs,
            posted: 0,
            done: 0,
            failed: None,
            receives_posted: 0,
            receives_wanted: 0,
            received: 0,
            flushed: 0,
            peer_jobs: 0,
            model: vec![vec![0; max]; AREAS],
            id: None,
        }
    }

    fn has_ended(&self) -> bool {
        self.endpoint.qp.state() == QpState::Error
    }

    fn place(&self, n: usize, max: usize) -> usize {
        n % PLACES * max.max(8)
    }
}

impl Run {
    pub(crate) fn new(seed: u64, way: Way, faults: impl Fn(&mut Dice) -> Faults) -> Self {
        Self::on(seed, way, faults, |_, env| env)
    }

    /// Like [`Run::new`], on the links that `decorate` puts over those of the hosts.
    pub(crate) fn on(
        seed: u64,
        way: Way,
        faults: impl Fn(&mut Dice) -> Faults,
        mut decorate: impl FnMut(u64, Arc<SimEnv>) -> Arc<dyn Link>,
    ) -> Self {
        let mut dice = Dice::new(seed).fork(1000);
        let mut sim = Sim::new(seed, faults(&mut dice));
        if sim::seeds::single().is_some() {
            sim.log();
        }
        if dice.chance(0.5) {
            sim.set_faults(sim.faults().together(0.0));
        }
        let v6 = dice.chance(0.5);
        let address = |n: u16| -> IpAddr {
            if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, n].into() } else { [10, 0, 0, n as u8].into() }
        };
        if !v6 {
            // See `Faults::corrupt`.
            sim.set_faults(sim.faults().corrupt(0.0));
        }
        let link_mtu = dice.pick(&[1500, 4200, 9000]);
        let here = sim.add_host(&[address(1)], link_mtu);
        let together = dice.chance(0.1) || way == Way::Channel;
        sim.set_same_host(here, way == Way::Channel);
        let there = if together { here } else { sim.add_host(&[address(2)], link_mtu) };
        let max = dice.pick(&[64, 1024, 1024, 4096, 4096, 16_384, 16_384, 65_536]);
        let addresses = [address(1), address(if together { 1 } else { 2 })];
        let parties = [(here, addresses[0], 1), (there, addresses[1], 2)].map(|(host, address, n)| {
            Party::on(&mut sim, host, address, &way.config(), |env| decorate(n, env))
        });
        let nodes = [0, 1].map(|n: usize| parties[n].node.clone());
        let most = Mtu::for_link(link_mtu).unwrap().code();
        let least = if max > 16_384 { 3 } else { 1 };
        let wiring = Wiring {
            mtu: Mtu::from_code(dice.between(least, most.into()) as u8).unwrap(),
            timeout: dice.between(8, 12) as u8,
            rnr_retry: 7,
            min_rnr_timer: dice.between(1, 12) as u8,
            max_rd_atomic: dice.between(1, 16) as u8,
        };
        let mut ends = nodes.map(|node| End::new(node, &mut dice, max, way));
        let psns = [0, 1].map(|_| match dice.below(3) {
            0 => Psn::new(0xff_ffff - dice.below(40) as u32),
            _ => Psn::new(dice.bits() as u32),
        });
        for (me, peer) in [(0, 1), (1, 0)] {
            let (node, ours, theirs) = (&ends[me].node, &ends[me].endpoint, &ends[peer].endpoint);
            if way != Way::Stream {
                wire_up(node, ours, theirs, addresses[peer], &wiring, (psns[peer], psns[me]));
            }
            let wanted = ends[peer].jobs.iter().filter(|j| j.takes_receive()).count();
            ends[me].receives_wanted = wanted as u64 + dice.below(4);
        }
        let mut run = Self { sim, dice, max, ends, parties, wiring, way };
        if way == Way::Stream {
            run.connect();
        }
        run
    }

    /// Connects both ends by the connection manager, while no stream is reset
    /// or cut off.
    fn connect(&mut self) {
        let faults = self.sim.faults();
        self.sim.set_faults(faults.stream_reset(0.0).partition(0.0));
        let depth = self.wiring.max_rd_atomic;
        let param = ConnParam { responder_resources: depth, initiator_depth: depth, ..param() };
        let listener = self.parties[1].listen();
        let client = &self.parties[0];
        let id = client.node.create_id(&client.channel, PortSpace::Tcp);
        let dest = SocketAddr::new(self.parties[1].address, PORT);
        client.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
        assert_eq!(client.wait(&mut self.sim).kind, EventKind::AddrResolved);
        client.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(client.wait(&mut self.sim).kind, EventKind::RouteResolved);
        self.equip(0, &id);
        self.parties[0].node.connect(&id, &param, &[]).unwrap();
        let request = self.parties[1].wait(&mut self.sim);
        assert_eq!(request.kind, EventKind::ConnectRequest);
        self.equip(1, &request.id);
        self.parties[1].node.accept(&request.id, None, &[]).unwrap();
        for party in &self.parties {
            assert_eq!(party.wait(&mut self.sim).kind, EventKind::Established);
        }
        self.parties[1].node.destroy(&listener);
        self.sim.set_faults(faults);
    }

    /// Gives a queue pair to its identifier. iWARP has no RNR, so all receives are posted ahead.
    fn equip(&mut self, me: usize, id: &Arc<Id>) {
        let end = &mut self.ends[me];
        end.node.set_qp(id, &end.endpoint.qp).unwrap();
        end.id = Some(id.clone());
        while self.ends[me].receives_posted < self.ends[me].receives_wanted {
            self.post_receives(me);
        }
    }

    /// Ends the connections. Each identifier is told once that it has ended, where it was by a
    /// failure.
    fn disconnect(&mut self, failed: bool) {
        for (end, party) in self.ends.iter_mut().zip(&self.parties) {
            let Some(id) = end.id.take() else { continue };
            let told: Vec<_> = std::iter::from_fn(|| party.next()).map(|event| event.kind).collect();
            assert_eq!(told, if failed { vec![EventKind::Disconnected] } else { vec![] });
            end.node.take_qp(&id).unwrap();
            end.node.destroy(&id);
        }
    }

    /// Both programs work until everything posted has completed.
    pub(crate) fn go(&mut self) {
        while !self.is_over() {
            assert!(
                self.sim.elapsed() < LIMIT,
                "stuck: {:?}",
                self.ends.each_ref().map(|e| (e.done, e.posted))
            );
            for me in [0, 1] {
                if self.way == Way::Channel && self.dice.chance(0.1) {
                    self.drain_or_resume(me);
                }
                if self.dice.chance(0.6) {
                    self.post_receives(me);
                }
                if self.dice.chance(0.6) {
                    self.post_sends(me);
                }
                self.poll(me);
            }
            let pause = self.dice.between(1, 300);
            let until = self.sim.elapsed() + Duration::from_micros(pause);
            while self.sim.step(until) {
                self.poll(0);
                self.poll(1);
            }
        }
        // Late copies of packets change nothing; those a dead requester left on a clogged link have
        // their effect, one by one.
        let end = self.sim.elapsed() + Duration::from_secs(1);
        while self.sim.step(end) {
            self.poll(0);
            self.poll(1);
        }
    }

    fn is_over(&self) -> bool {
        let done = |e: &End| e.done == e.jobs.len();
        self.ends.iter().all(done)
    }

    /// In SQD nothing more leaves, and the peer reaches no memory until it is over.
    fn drain_or_resume(&mut self, me: usize) {
        let End { node, endpoint, .. } = &self.ends[me];
        let to = match endpoint.qp.state() {
            QpState::Rts => QpState::Sqd,
            QpState::Sqd => QpState::Rts,
            _ => return,
        };
        let now = stack::Env::now(&**node.env());
        endpoint.qp.modify(now, &QpAttr::default().with_state(to), mask::STATE).unwrap();
    }

    fn post_receives(&mut self, me: usize) {
        let Self { dice, max, ends, .. } = self;
        let end = &mut ends[me];
        for _ in 0..dice.between(1, 6) {
            if end.receives_posted == end.receives_wanted {
                return;
            }
            let n = end.receives_posted;
            let at = n as usize % PLACES * *max;
            let sges = pieces(dice, &end.inbox, at, *max).into_iter().collect();
            match end.endpoint.qp.post_receive(RecvWr { wr_id: 1_000_000 + n, sges }) {
                Ok(()) => end.receives_posted += 1,
                Err(PostError::Full) => return,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn post_sends(&mut self, me: usize) {
        let Self { dice, max, ends, sim, .. } = self;
        let peer_areas = (ends[1 - me].areas.addr(), ends[1 - me].areas.key());
        let end = &mut ends[me];
        let now = stack::Env::now(&**end.node.env());
        let mut sender = end.endpoint.qp.sender(now);
        // One at a time there is often nothing else under way.
        let most = if self.way == Way::Channel && max.is_multiple_of(4096) { 1 } else { 8 };
        for left in (0..dice.between(1, most)).rev() {
            let Some(job) = end.jobs.get(end.posted) else { break };
            let (addr, rkey) = peer_areas;
            let landing = end.place(end.posted, *max);
            let (op, data) = match job.kind {
                Kind::Send => (SendOp::Send(job.immediate.map_or(SendTail::None, SendTail::Immediate)), None),
                Kind::Write(area) => {
                    let addr = addr + (area * *max) as u64;
                    (SendOp::Write { addr, rkey, immediate: job.immediate }, None)
                }
                Kind::Read(area) => {
                    let addr = addr + (area * *max + job.from) as u64;
                    (SendOp::Read { addr, rkey }, Some(pieces(dice, &end.landing, landing, job.len)))
                }
                Kind::FetchAdd(n) => {
                    let addr = addr + (AREAS * *max) as u64;
                    let op = SendOp::Atomic { addr, rkey, op: AtomicOp::FetchAdd(n) };
                    (op, Some(vec![end.landing.sge(landing, 8)]))
                }
            };
            let data = match data {
                Some(sges) => Data::Sges(sges.into_iter().collect()),
                None if job.inline => Data::inline(&end.bytes[job.from..job.from + job.len]),
                None => Data::Sges(pieces(dice, &end.source, job.from, job.len).into_iter().collect()),
            };
            let Job { signaled, solicited, fence, .. } = *job;
            let mut wr = SendWr { wr_id: end.posted as u64, op, data, signaled, solicited, fence };
            let flags = nic::PostFlags { last: left == 0, ..Default::default() };
            match sender.post(&mut wr, flags) {
                Ok(()) => end.posted += 1,
                Err(PostError::Full) => break,
                Err(e) => panic!("{e} at {:?}", sim.elapsed()),
            }
        }
        sender.finish();
    }

    fn poll(&mut self, me: usize) {
        for c in Endpoint::poll(&self.ends[me].endpoint.sends) {
            self.sent(me, &c);
        }
        for c in Endpoint::poll(&self.ends[me].endpoint.receives) {
            self.received(me, &c);
        }
    }

    /// A completion of the send queue.
    fn sent(&mut self, me: usize, c: &Completion) {
        let max = self.max;
        let end = &mut self.ends[me];
        let n = c.wr_id as usize;
        assert!(n < end.posted && n >= end.done, "{c:?} after {} of {}", end.done, end.posted);
        assert_eq!(c.qpn, end.endpoint.qp.qpn());
        let skipped = &end.jobs[end.done..n];
        let job = &end.jobs[n];
        end.done = n + 1;
        match (c.status, end.failed) {
            (Status::Success, None) => {
                assert!(job.signaled, "{c:?} of {job:?}");
                assert!(skipped.iter().all(|j| !j.signaled), "completions are missing before {c:?}");
                let (opcode, byte_len) = match job.kind {
                    Kind::Send => (Completed::Send, 0),
                    Kind::Write(_) => (Completed::Write, 0),
                    Kind::Read(_) => (Completed::Read, job.len),
                    Kind::FetchAdd(_) => (Completed::FetchAdd, 8),
                };
                assert_eq!((c.opcode, c.byte_len as usize), (opcode, byte_len), "{c:?} of {job:?}");
                if !job.returns.is_empty() {
                    let at = end.place(n, max);
                    assert!(end.landing.holds(at, &job.returns), "wrong bytes of {:?} {n}", job.kind);
                }
            }
            (Status::RetryExceeded, None) => {
                assert!(skipped.iter().all(|j| !j.signaled), "completions are missing before {c:?}");
                end.failed = Some(c.status);
                assert_eq!(end.endpoint.qp.state(), QpState::Error);
            }
            // Nothing says which message an end of the stream has hit.
            (Status::WrFlush, None) if self.way == Way::Stream => {
                assert!(skipped.iter().all(|j| !j.signaled), "flushes are missing before {c:?}");
                end.failed = Some(c.status);
                assert_eq!(end.endpoint.qp.state(), QpState::Error);
            }
            // A queue pair in the error state completes everything, signaled or not.
            (Status::WrFlush, Some(_)) => assert!(skipped.is_empty(), "flushes are missing before {c:?}"),
            _ => panic!("illegal {c:?} after {:?}", end.failed),
        }
    }

    /// A completion of the receive queue: the peer's jobs up to it have had their effect, and none
    /// after it where packets are received one by one.
    fn received(&mut self, me: usize, c: &Completion) {
        let one_by_one = self.sim.faults().together == 0.0 && self.way == Way::Wire;
        let Self { ends, max, dice, .. } = self;
        let [a, b] = ends;
        let (end, peer) = if me == 0 { (a, b) } else { (b, a) };
        assert_eq!(c.wr_id, 1_000_000 + end.received + end.flushed, "out of order: {c:?}");
        assert_eq!(c.qpn, end.endpoint.qp.qpn());
        if c.status == Status::WrFlush {
            assert_eq!(end.endpoint.qp.state(), QpState::Error);
            end.flushed += 1;
            return;
        }
        assert_eq!((c.status, end.flushed), (Status::Success, 0), "{c:?}");
        let Some(n) = (end.peer_jobs..peer.posted).find(|n| peer.jobs[*n].takes_receive()) else {
            panic!("no end sent {c:?}")
        };
        let job = &peer.jobs[n];
        for n in end.peer_jobs..=n {
            apply(&mut end.model, &peer.jobs[n], &peer.bytes);
        }
        end.peer_jobs = n + 1;
        let opcode = match job.kind {
            Kind::Send => Completed::Receive,
            _ => Completed::ReceiveWriteImmediate,
        };
        let tail = job.immediate.map_or(SendTail::None, SendTail::Immediate);
        assert_eq!((c.opcode, c.byte_len as usize, c.tail), (opcode, job.len, tail), "{c:?} of {job:?}");
        assert_eq!(c.solicited, job.solicited);
        let at = end.received as usize % PLACES * *max;
        if job.kind == Kind::Send {
            assert!(end.inbox.holds(at, &peer.bytes[job.from..job.from + job.len]), "wrong bytes in {c:?}");
        }
        end.received += 1;
        let area = dice.below(AREAS as u64) as usize;
        let from = dice.below(*max as u64) as usize;
        let to = (from + 512).min(*max);
        let holds = end.areas.holds(area * *max + from, &end.model[area][from..to]);
        assert!(holds || !one_by_one, "area {area} at {c:?}");
    }

    /// Everything had its effect, or a queue pair failed; the receives that are left are flushed.
    pub(crate) fn finish(mut self) -> bool {
        if self.way == Way::Stream {
            // What the stream has taken arrives, or an end that has nothing to do hears that it is
            // lost.
            self.sim.run_for(Duration::from_secs(20));
            (0..2).for_each(|me| self.poll(me));
        }
        let is_over = |e: &End| e.failed.is_some() || self.way == Way::Stream && e.has_ended();
        let failed = self.ends.iter().any(is_over);
        if failed && self.way == Way::Stream {
            assert!(self.ends.iter().all(End::has_ended));
        }
        self.disconnect(failed);
        for me in [0, 1] {
            let now = stack::Env::now(&**self.ends[me].node.env());
            let qp = self.ends[me].endpoint.qp.clone();
            match self.ends[me].failed {
                Some(_) => assert_eq!(qp.state(), QpState::Error),
                None if failed && self.way == Way::Stream => {}
                None => assert!(matches!(qp.state(), QpState::Rts | QpState::Sqd)),
            }
            let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
            qp.modify(now, &attr, mask::STATE).unwrap();
            self.poll(me);
            let [a, b] = &mut self.ends;
            let (end, peer) = if me == 0 { (a, b) } else { (b, a) };
            assert_eq!(end.received + end.flushed, end.receives_posted);
            if !failed {
                let rest = peer.jobs[end.peer_jobs..].iter();
                assert_eq!(rest.clone().filter(|j| j.takes_receive()).count(), 0, "messages are missing");
                rest.for_each(|j| apply(&mut end.model, j, &peer.bytes));
                for (n, area) in end.model.iter().enumerate() {
                    assert!(end.areas.holds(n * self.max, area), "area {n}");
                }
                let sum = peer.jobs.iter().fold(0u64, |sum, j| match j.kind {
                    Kind::FetchAdd(n) => sum.wrapping_add(n),
                    _ => sum,
                });
                assert_eq!(end.areas.read(AREAS * self.max, 8), sum.to_ne_bytes());
            }
            qp.destroy();
        }
        self.sim.run_for(Duration::from_secs(100));
        assert!(self.sim.is_idle(), "a host waits for something after the end ({:?})", self.wiring);
        !failed
    }
}
