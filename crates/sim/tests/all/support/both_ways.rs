//! Two processes whose queue pairs are connected by hand: with a network between them, or on one
//! host.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nic::{Access, Buffer, Link, QpAttr, QpState, mask};
use sim::{Faults, ProcessId, Sim, SimEnv};
use transport::Sge;
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::roce::SendTail;
use wire::{Mtu, Psn, Rkey};

use super::{Endpoint, RIGHTS, SimNode, Way, Wiring, wire_up};

pub(crate) const WAYS: [Way; 4] = [Way::Wire, Way::Channel, Way::Shared, Way::Mapped];
/// Bytes of each end's memory.
pub(crate) const LEN: usize = 400_000;
/// A message that goes in pieces, not packets, between processes of one host.
pub(crate) const LONG: usize = 100_000;
pub(crate) const WIRING: Wiring =
    Wiring { mtu: Mtu::M1024, timeout: 10, rnr_retry: 7, min_rnr_timer: 12, max_rd_atomic: 4 };

/// One end: a process with a queue pair and some memory, which peers reach from 0x10_0000 on.
pub(crate) struct End {
    pub process: ProcessId,
    pub node: SimNode,
    pub address: IpAddr,
    pub endpoint: Endpoint,
    pub memory: Buffer,
}

impl End {
    pub(crate) fn new(sim: &Sim, process: ProcessId, address: IpAddr) -> Self {
        let node = sim.node(process).unwrap();
        let endpoint = Endpoint::new(&node);
        let memory = Buffer::new(&endpoint.pd, LEN, 0x10_0000, RIGHTS | Access::MW_BIND).unwrap();
        Self { process, node, address, endpoint, memory }
    }
    pub(crate) fn now(&self) -> std::time::Instant {
        stack::Env::now(&**self.node.env())
    }
    pub(crate) fn post(&self, wr: SendWr) {
        self.endpoint.qp.post_send(self.now(), wr).unwrap();
    }
    /// Posts a signaled request with memory of its own.
    pub(crate) fn request(&self, wr_id: u64, op: SendOp, at: usize, len: usize) {
        self.post(signaled(wr_id, op, self.memory.sge(at, len)));
    }
    pub(crate) fn receive(&self, wr_id: u64, at: usize, len: usize) {
        let sges = [self.memory.sge(at, len)].into_iter().collect();
        self.endpoint.qp.post_receive(RecvWr { wr_id, sges }).unwrap();
    }
    pub(crate) fn modify(&self, attr: QpAttr, bits: u32) {
        self.endpoint.qp.modify(self.now(), &attr, bits).unwrap();
    }
    pub(crate) fn go_to(&self, state: QpState) {
        self.modify(QpAttr::default().with_state(state), mask::STATE);
    }
    pub(crate) fn state(&self) -> QpState {
        self.endpoint.qp.state()
    }
    pub(crate) fn all_sent(&self) -> Vec<Completion> {
        Endpoint::poll(&self.endpoint.sends)
    }
    pub(crate) fn sent(&self) -> Vec<(u64, Status)> {
        self.all_sent().iter().map(|c| (c.wr_id, c.status)).collect()
    }
    pub(crate) fn all_received(&self) -> Vec<Completion> {
        Endpoint::poll(&self.endpoint.receives)
    }
    pub(crate) fn received(&self) -> Vec<(u64, Status)> {
        self.all_received().iter().map(|c| (c.wr_id, c.status)).collect()
    }
    /// Requests that name this end's memory.
    pub(crate) fn write(&self, at: usize) -> SendOp {
        SendOp::Write { addr: self.memory.addr() + at as u64, rkey: self.memory.key(), immediate: None }
    }
    pub(crate) fn read(&self, at: usize) -> SendOp {
        SendOp::Read { addr: self.memory.addr() + at as u64, rkey: self.memory.key() }
    }
}

pub(crate) const SEND: SendOp = SendOp::Send(SendTail::None);

pub(crate) fn signaled(wr_id: u64, op: SendOp, sge: Sge) -> SendWr {
    let data = Data::Sges([sge].into_iter().collect());
    SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false }
}

/// The request `op` by another key or of another place.
pub(crate) fn elsewhere(op: SendOp, key: Rkey, by: i64) -> SendOp {
    match op {
        SendOp::Write { addr, immediate, .. } => {
            SendOp::Write { addr: addr.wrapping_add_signed(by), rkey: key, immediate }
        }
        SendOp::Read { addr, .. } => SendOp::Read { addr: addr.wrapping_add_signed(by), rkey: key },
        other => other,
    }
}

/// Both ends, and the way between them.
pub(crate) struct Pair {
    pub sim: Sim,
    pub a: End,
    pub b: End,
    pub way: Way,
}

impl Pair {
    /// Connected, on a perfect network; on one host the memory of each is reached.
    pub(crate) fn new(way: Way) -> Self {
        Self::with(way, WIRING)
    }

    pub(crate) fn with(way: Way, wiring: Wiring) -> Self {
        let pair = Self::apart(way);
        connect(&pair.a, &pair.b, &wiring);
        Self::settled(pair)
    }

    /// Not connected yet.
    pub(crate) fn apart(way: Way) -> Self {
        let mapped = if way == Way::Mapped { 1.0 } else { 0.0 };
        let shared = if way == Way::Shared { 1.0 } else { 0.0 };
        let mut sim = Sim::new(1, Faults::none().mapped(mapped).shared(shared));
        if sim::seeds::single().is_some() {
            sim.log();
        }
        let [here, there] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let first = sim.add_host(&[here], 1500);
        let (second, there) = match way {
            Way::Wire | Way::Stream => (sim.add_host(&[there], 1500), there),
            Way::Channel | Way::Shared | Way::Mapped => (first, here),
        };
        let config = stack::Config::default();
        let [a, b] = [(first, here), (second, there)].map(|(host, address)| {
            let process = sim.start(host, &config);
            End::new(&sim, process, address)
        });
        Self { sim, a, b, way }
    }

    pub(crate) fn settled(mut self) -> Self {
        self.pass();
        self.prove();
        self
    }

    /// Each end asks for something, so that none of what follows is the first request of its
    /// connection, and has no effect by that.
    pub(crate) fn prove(&mut self) {
        for [from, to] in [[&self.a, &self.b], [&self.b, &self.a]] {
            from.request(0, to.write(0), 0, 0);
        }
        self.pass();
        assert_eq!((self.a.sent(), self.b.sent()), (vec![(0, Status::Success)], vec![(0, Status::Success)]));
    }

    /// Two hosts, each of whose processes is on the link that `decorate` puts over the host's own.
    pub(crate) fn on_links(sim: Sim, decorate: impl FnMut(u8, Arc<SimEnv>) -> Arc<dyn Link>) -> Self {
        Self::on_links_by(Way::Wire, sim, decorate)
    }

    /// Like [`Pair::on_links`], on one host where the way is a channel.
    pub(crate) fn on_links_by(
        way: Way,
        mut sim: Sim,
        mut decorate: impl FnMut(u8, Arc<SimEnv>) -> Arc<dyn Link>,
    ) -> Self {
        let mut hosts = [1, 2].map(|n| {
            let address = IpAddr::from([10, 0, 0, n]);
            (sim.add_host(&[address], 1500), address, n)
        });
        if way == Way::Channel {
            (hosts[1].0, hosts[1].1) = (hosts[0].0, hosts[0].1);
        }
        let [a, b] = hosts.map(|(host, address, n)| {
            let process = sim.start_on(host, &stack::Config::default(), |link| decorate(n, link));
            End::new(&sim, process, address)
        });
        connect(&a, &b, &WIRING);
        Self { sim, a, b, way }
    }

    /// Sends so many messages of `len` bytes, one after the other: all arrive whole.
    pub(crate) fn send_each(&mut self, count: u64, len: usize) {
        for n in 0..count {
            let bytes = vec![n as u8; len];
            self.a.memory.write(0, &bytes);
            self.b.receive(n, 0, len);
            self.a.request(n, SEND, 0, len);
            self.pass();
            assert_eq!(self.a.sent(), [(n, Status::Success)]);
            assert_eq!(self.b.received(), [(n, Status::Success)]);
            assert!(self.b.memory.holds(0, &bytes), "message {n}");
        }
    }

    /// Time for all that is under way.
    pub(crate) fn pass(&mut self) {
        self.sim.run_for(Duration::from_millis(500));
    }

    /// On one host so many copies came about so far, and on the wire none.
    pub(crate) fn copied(&self, copies: u64) {
        let counters = self.sim.counters();
        let expected = if self.way.is_one_host() { copies } else { 0 };
        assert_eq!(counters.copied, expected, "{:?} {counters:?}", self.way);
        assert_eq!(counters.by_channel > 0, self.way.is_one_host() && counters.sent > 0, "{counters:?}");
    }
}

pub(crate) fn connect(a: &End, b: &End, wiring: &Wiring) {
    let psn = Psn::new(0xff_fff0);
    wire_up(&a.node, &a.endpoint, &b.endpoint, b.address, wiring, (psn, psn));
    wire_up(&b.node, &b.endpoint, &a.endpoint, a.address, wiring, (psn, psn));
}

pub(crate) fn bytes(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(7).wrapping_add((n >> 8) as u8) ^ salt).collect()
}
