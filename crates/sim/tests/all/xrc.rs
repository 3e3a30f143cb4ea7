//! XRC between two hosts: initiator and target queue pairs, domains, and shared receive queues
//! named by number.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Endpoint, RIGHTS, SimNode, Wiring, wire_up};
use nic::{Buffer, Error, Qp, QpInit, QpType, Srq, SrqAttr, Xrcd};
use sim::{Faults, Sim};
use transport::op::{Completed, Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::roce::SendTail;
use wire::{Mtu, Psn};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const LEN: usize = 20_000;
/// Seeds of the lossy network.
const SEEDS: u64 = 40;

/// An initiator here, a target and two shared receive queues there; the second queue's memory is in
/// another domain.
struct Scene {
    sim: Sim,
    initiator: Endpoint,
    source: Buffer,
    node: SimNode,
    there: SimNode,
    target: Endpoint,
    xrcd: Arc<Xrcd>,
    queues: [Arc<Srq>; 2],
    sinks: [Buffer; 2],
}

fn scene(seed: u64, faults: Faults) -> Scene {
    let mut sim = Sim::new(seed, faults);
    let [here, there] = [HERE, THERE].map(|address| {
        let host = sim.add_host(&[address], 1500);
        let process = sim.start(host, &stack::Config::default());
        sim.node(process).unwrap()
    });
    let initiator = Endpoint::of(&here, QpType::XrcSend);
    let source = Buffer::new(&initiator.pd, LEN, 0x10_0000, nic::Access::LOCAL_WRITE).unwrap();
    // For its completion queue and protection domain.
    let plain = Endpoint::new(&there);
    let device = there.devices()[0].clone();
    let xrcd = device.open_xrcd(None, true, false).unwrap();
    let other = Arc::new(device.alloc_pd().unwrap());
    let attr = SrqAttr { max_wr: 64, max_sge: 2, limit: 0 };
    let queue =
        |pd| Srq::create_xrc(pd, attr, plain.events.clone(), xrcd.clone(), plain.receives.clone()).unwrap();
    let queues = [queue(&plain.pd), queue(&other)];
    let sinks = [&plain.pd, &other].map(|pd| Buffer::new(pd, LEN, 0x20_0000, RIGHTS).unwrap());
    let target = Endpoint { qp: Qp::create_target(&device, &xrcd, plain.events.clone()).unwrap(), ..plain };
    let psn = Psn::new(0xff_fff0);
    let wiring = Wiring { mtu: Mtu::M1024, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
    wire_up(&here, &initiator, &target, THERE, &wiring, (psn, psn));
    wire_up(&there, &target, &initiator, HERE, &wiring, (psn, psn));
    Scene { sim, initiator, source, node: here, there, target, xrcd, queues, sinks }
}

impl Scene {
    fn post(&self, wr_id: u64, op: SendOp, len: usize, queue: usize) {
        let data = Data::Sges([self.source.sge(0, len)].into_iter().collect());
        let mut wr = SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false };
        let now = stack::Env::now(&**self.node.env());
        let mut sender = self.initiator.qp.sender(now);
        let flags = nic::PostFlags { srq: self.queues[queue].number(), ..Default::default() };
        sender.post(&mut wr, flags).unwrap();
        sender.finish();
    }
    fn receive(&self, wr_id: u64, queue: usize) {
        let sges = [self.sinks[queue].sge(0, LEN)].into_iter().collect();
        self.queues[queue].post(RecvWr { wr_id, sges }).unwrap();
    }
    fn sent(&self) -> Vec<(u64, Status)> {
        Endpoint::poll(&self.initiator.sends).iter().map(|c| (c.wr_id, c.status)).collect()
    }
    fn received(&self) -> Vec<Completion> {
        Endpoint::poll(&self.target.receives)
    }
    fn run(&mut self) {
        self.sim.run_for(Duration::from_secs(2));
    }
}

#[test]
fn messages_for_two_queues_arrive_once_and_in_order_over_a_bad_network() {
    for seed in 0..SEEDS {
        let mut s = scene(seed, Faults::lossy());
        for id in 0..12 {
            s.receive(id, (id % 2) as usize);
            s.post(id, SendOp::Send(SendTail::None), 1 + id as usize * 1500, (id % 2) as usize);
        }
        s.sim.run_for(Duration::from_secs(20));
        let good: Vec<_> = (0..12).map(|id| (id, Status::Success)).collect();
        assert_eq!(s.sent(), good, "seed {seed}");
        let got: Vec<_> = s.received().iter().map(|c| (c.wr_id, c.byte_len, c.qpn)).collect();
        let qpn = s.target.qp.qpn();
        assert_eq!(got, (0..12).map(|id| (id, 1 + id as u32 * 1500, qpn)).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn a_key_counts_in_the_protection_domain_of_the_queue_that_is_named() {
    let mut s = scene(1, Faults::none());
    for queue in [0, 1] {
        let sge = s.sinks[queue].sge(0, 64);
        s.post(queue as u64, SendOp::Write { addr: sge.addr, rkey: sge.lkey, immediate: None }, 64, queue);
        s.post(2, SendOp::Read { addr: sge.addr, rkey: sge.lkey }, 64, queue);
    }
    s.run();
    let done = [(0, Status::Success), (2, Status::Success), (1, Status::Success), (2, Status::Success)];
    assert_eq!(s.sent(), done);
    let sge = s.sinks[1].sge(0, 64);
    s.post(3, SendOp::Write { addr: sge.addr, rkey: sge.lkey, immediate: None }, 64, 0);
    s.run();
    assert_eq!(s.sent(), [(3, Status::RemoteAccess)]);
}

#[test]
fn an_atomic_write_reaches_the_memory_of_the_queue_that_is_named() {
    let mut s = scene(1, Faults::none());
    s.source.write(0, b"8 bytes!");
    let sge = s.sinks[1].sge(16, 8);
    let op = transport::op::AtomicOp::Write(0);
    s.post(1, SendOp::Atomic { addr: sge.addr, rkey: sge.lkey, op }, 8, 1);
    s.run();
    assert_eq!(s.sent(), [(1, Status::Success)]);
    assert_eq!(s.sinks[1].read(16, 8), b"8 bytes!");
}

#[test]
fn a_write_with_immediate_completes_in_the_queue_of_its_receive() {
    let mut s = scene(1, Faults::none());
    s.receive(7, 1);
    let sge = s.sinks[1].sge(0, 64);
    s.post(1, SendOp::Write { addr: sge.addr, rkey: sge.lkey, immediate: Some(*b"imm!") }, 64, 1);
    s.run();
    assert_eq!(s.sent(), [(1, Status::Success)]);
    let [got] = s.received()[..] else { panic!("one completion") };
    assert_eq!((got.wr_id, got.opcode, got.byte_len), (7, Completed::ReceiveWriteImmediate, 64));
    assert_eq!(got.tail, SendTail::Immediate(*b"imm!"));
}

#[test]
fn a_queue_of_another_domain_or_of_no_domain_is_not_named() {
    for plain in [false, true] {
        let mut s = scene(1, Faults::none());
        let device = s.there.devices()[0].clone();
        let (pd, attr) = (&s.target.pd, SrqAttr { max_wr: 1, max_sge: 1, limit: 0 });
        let events = s.target.events.clone();
        s.queues[0] = if plain {
            Srq::create(pd, attr, events).unwrap()
        } else {
            let xrcd = device.open_xrcd(None, true, false).unwrap();
            Srq::create_xrc(pd, attr, events, xrcd, s.target.receives.clone()).unwrap()
        };
        s.receive(1, 0);
        s.post(1, SendOp::Send(SendTail::None), 8, 0);
        s.run();
        assert_eq!(s.sent(), [(1, Status::RemoteInvalidRequest)]);
        assert!(s.received().is_empty());
    }
}

#[test]
fn a_queue_that_is_destroyed_is_named_no_more_and_its_domain_lives_on() {
    let mut s = scene(1, Faults::none());
    s.queues[0].destroy();
    s.post(1, SendOp::Send(SendTail::None), 8, 0);
    s.run();
    assert_eq!(s.sent(), [(1, Status::RemoteInvalidRequest)]);
    assert!(s.target.qp.xrcd().is_some_and(|x| Arc::ptr_eq(x, &s.xrcd)));
}

#[test]
fn an_initiator_receives_nothing_and_a_target_sends_nothing() {
    let s = scene(1, Faults::none());
    let wr = || RecvWr { wr_id: 1, sges: [].into_iter().collect() };
    assert!(s.initiator.qp.post_receive(wr()).is_err());
    assert!(s.target.qp.post_receive(wr()).is_err());
    let data = Data::inline(&[]);
    let op = SendOp::Send(SendTail::None);
    let wr = SendWr { wr_id: 1, op, data, signaled: true, solicited: false, fence: false };
    assert!(s.target.qp.post_send(stack::Env::now(&**s.there.env()), wr).is_err());
    // An ordinary queue pair takes no receives of a queue for XRC, and a target is made in a
    // domain.
    let device = s.target.qp.device();
    let of = |kind, srq| Qp::create(device, &s.target.pd, QpInit { kind, srq, ..plain_init(&s) }).err();
    assert!(matches!(of(QpType::Rc, Some(s.queues[0].clone())), Some(Error::Invalid(_))));
    assert!(matches!(of(QpType::XrcRecv, None), Some(Error::Invalid(_))));
    assert_eq!(of(QpType::Rc, None), None);
}

fn plain_init(s: &Scene) -> QpInit {
    let (send_cq, recv_cq) = (s.target.sends.clone(), s.target.receives.clone());
    let (cap, events) = (nic::QpCap::default(), s.target.events.clone());
    QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: false, events }
}

#[test]
fn a_domain_is_shared_by_its_inode_and_ends_with_its_last_user() {
    let s = scene(1, Faults::none());
    let device = s.there.devices()[0].clone();
    let open = |inode, create, exclusive| device.open_xrcd(inode, create, exclusive);
    assert!(matches!(open(None, false, false), Err(Error::Invalid(_))));
    assert!(matches!(open(Some((1, 2)), false, false), Err(Error::Missing(_))));
    let first = open(Some((1, 2)), true, true).unwrap();
    assert!(Arc::ptr_eq(&first, &open(Some((1, 2)), false, false).unwrap()));
    assert!(Arc::ptr_eq(&first, &open(Some((1, 2)), true, false).unwrap()));
    assert!(matches!(open(Some((1, 2)), true, true), Err(Error::Value { .. })));
    assert!(!Arc::ptr_eq(&first, &open(Some((1, 3)), true, false).unwrap()));
    assert!(!Arc::ptr_eq(&open(None, true, false).unwrap(), &open(None, true, false).unwrap()));
    drop(first);
    assert!(matches!(open(Some((1, 2)), false, false), Err(Error::Missing(_))));
}
