//! Tag matching between two hosts: eager and rendezvous messages, unexpected ones, and keeping in
//! step with them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::{Endpoint, RIGHTS, SimNode, Wiring, wire_up};
use nic::{Buffer, Errno, Error, PostError, Qp, QpCap, QpInit, QpType, Srq, SrqAttr, TagOp, TagWr, limits};
use sim::{Faults, Sim};
use transport::op::{Completed, Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::bth::Reth;
use wire::roce::SendTail;
use wire::tm::{RENDEZVOUS_LEN, TMH_LEN, TmMessage, Tmh};
use wire::{Mtu, Psn};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const LEN: usize = 200_000;
/// Where the receives of the receiver's ordinary queue begin, each of `ROOM` bytes; tagged buffers
/// lie before.
const UNEXPECTED: usize = 150_000;
const ROOM: usize = 8_000;
/// Seeds of the lossy network.
const SEEDS: u64 = 40;

/// A sender here, and a queue pair with a tag-matching queue there.
struct Scene {
    sim: Sim,
    sender: Endpoint,
    source: Buffer,
    fins: Buffer,
    node: SimNode,
    there: SimNode,
    receiver: Endpoint,
    srq: Arc<Srq>,
    sink: Buffer,
}

fn scene(seed: u64, faults: Faults) -> Scene {
    let mut sim = Sim::new(seed, faults);
    let [here, there] = [HERE, THERE].map(|address| {
        let host = sim.add_host(&[address], 1500);
        let process = sim.start(host, &stack::Config::default());
        sim.node(process).unwrap()
    });
    let sender = Endpoint::new(&here);
    let source = Buffer::new(&sender.pd, LEN, 0x10_0000, RIGHTS).unwrap();
    source.write(0, &(0..LEN).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>());
    let fins = Buffer::new(&sender.pd, 4096, 0x90_0000, RIGHTS).unwrap();
    // For its completion queue and protection domain.
    let plain = Endpoint::new(&there);
    let sink = Buffer::new(&plain.pd, LEN, 0x50_0000, RIGHTS).unwrap();
    let attr = SrqAttr { max_wr: 64, max_sge: 2, limit: 0 };
    let srq = Srq::create_tm(&plain.pd, attr, plain.events.clone(), 64, plain.receives.clone()).unwrap();
    let qp = Qp::create(plain.qp.device(), &plain.pd, init(&plain, QpType::Rc, &srq)).unwrap();
    let receiver = Endpoint { qp, ..plain };
    let psn = Psn::new(0xff_fff0);
    let wiring = Wiring { mtu: Mtu::M1024, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
    wire_up(&here, &sender, &receiver, THERE, &wiring, (psn, psn));
    wire_up(&there, &receiver, &sender, HERE, &wiring, (psn, psn));
    Scene { sim, sender, source, fins, node: here, there, receiver, srq, sink }
}

fn init(of: &Endpoint, kind: QpType, srq: &Arc<Srq>) -> QpInit {
    let (send_cq, recv_cq) = (of.sends.clone(), of.sends.clone());
    let (srq, cap, events) = (Some(srq.clone()), QpCap::default(), of.events.clone());
    QpInit { kind, send_cq, recv_cq, srq, cap, sq_sig_all: false, events }
}

impl Scene {
    /// Sends headers and, after them, `len` bytes of the source from `at` on.
    fn send(&self, headers: &[u8], at: usize, len: usize) {
        let space = LEN - 4096;
        self.source.write(space, headers);
        let data = if len == 0 {
            Data::inline(headers)
        } else {
            // The headers lie apart, and are read before they change: one message is sent at a
            // time.
            Data::Sges(
                [self.source.sge(space, headers.len()), self.source.sge(at, len)].into_iter().collect(),
            )
        };
        let op = SendOp::Send(SendTail::None);
        let wr = SendWr { wr_id: 0, op, data, signaled: false, solicited: false, fence: false };
        self.sender.qp.post_send(stack::Env::now(&**self.node.env()), wr).unwrap();
    }
    fn eager(&self, tag: u64, at: usize, len: usize) {
        self.send(&TmMessage::Eager(Tmh { app_ctx: 77, tag }).emit()[..TMH_LEN], at, len);
    }
    fn rendezvous(&self, tag: u64, at: usize, len: usize) -> TmMessage {
        let sge = self.source.sge(at, len);
        let rvh = Reth { addr: sge.addr, rkey: sge.lkey, length: sge.length };
        let request = TmMessage::Rendezvous(Tmh { app_ctx: 78, tag }, rvh);
        self.send(&request.emit(), 0, 0);
        request
    }
    fn op(&self, wr_id: u64, op: TagOp, handled: Option<u32>) -> Option<u32> {
        self.srq.post_tag_op(TagWr { wr_id, op, handled, signaled: true }).unwrap()
    }
    fn add(&self, wr_id: u64, tag: u64, mask: u64, at: usize, len: usize) -> u32 {
        let receive = RecvWr { wr_id, sges: [self.sink.sge(at, len)].into_iter().collect() };
        let wr = TagWr { wr_id, op: TagOp::Add { receive, tag, mask }, handled: None, signaled: false };
        self.srq.post_tag_op(wr).unwrap().expect("a handle")
    }
    fn receive(&self, wr_id: u64) {
        let at = UNEXPECTED + ROOM * (wr_id % 4) as usize;
        self.srq.post(RecvWr { wr_id, sges: [self.sink.sge(at, ROOM)].into_iter().collect() }).unwrap();
    }
    /// A receive for a FIN.
    fn await_fin(&self) {
        let sges = [self.fins.sge(0, 64)].into_iter().collect();
        self.sender.qp.post_receive(RecvWr { wr_id: 5, sges }).unwrap();
    }
    fn run(&mut self) {
        self.sim.run_for(Duration::from_secs(2));
    }
    fn completions(&self) -> Vec<Completion> {
        Endpoint::poll(&self.receiver.receives)
    }
    /// Mark, opcode, bytes, and whether it tells of a match and of its data.
    fn told(&self) -> Vec<(u64, Completed, u32, bool, bool)> {
        let all = self.completions();
        assert!(all.iter().all(|c| c.status == Status::Success), "{all:?}");
        all.iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.tm.matched, c.tm.data_valid)).collect()
    }
    fn arrived(&self, to: usize, from: usize, len: usize) -> bool {
        self.sink.read(to, len) == self.source.read(from, len)
    }
}

#[test]
fn a_message_goes_without_its_header_to_the_oldest_buffer_it_matches() {
    let mut s = scene(1, Faults::none());
    s.add(1, 0x10, 0xff, 0, 100);
    s.add(2, 0x20, 0xf0, 1000, 100);
    s.add(3, 0x21, 0xff, 2000, 100);
    for (tag, at) in [(0x21, 10), (0x21, 20), (0xab10, 30)] {
        s.eager(tag, at, 50);
        s.run();
    }
    let all = s.completions();
    let told: Vec<_> = all.iter().map(|c| (c.wr_id, c.tm.tag, c.tm.app_ctx, c.byte_len)).collect();
    assert_eq!(told, [(2, 0x21, 77, 50), (3, 0x21, 77, 50), (1, 0xab10, 77, 50)]);
    assert!(all.iter().all(|c| c.opcode == Completed::TmReceive && c.tm.matched && c.tm.data_valid));
    assert!(s.arrived(1000, 10, 50) && s.arrived(2000, 20, 50) && s.arrived(0, 30, 50));
}

#[test]
fn a_long_message_is_told_of_when_it_matches_and_when_it_has_come() {
    let mut s = scene(1, Faults::none());
    s.add(1, 9, u64::MAX, 0, 20_000);
    s.eager(9, 0, 20_000);
    s.run();
    let recv = Completed::TmReceive;
    assert_eq!(s.told(), [(1, recv, 0, true, false), (1, recv, 20_000, false, true)]);
    assert!(s.arrived(0, 0, 20_000));
}

#[test]
fn every_kind_of_message_arrives_once_over_a_bad_network() {
    for seed in 0..SEEDS {
        let mut s = scene(seed, Faults::lossy());
        let (recv, mut handled) = (Completed::TmReceive, 0);
        for round in 0..6_usize {
            let (tag, from) = (round as u64, 1000 * round);
            s.add(10, tag, u64::MAX, 0, 3_000);
            s.add(20, 100 + tag, u64::MAX, 10_000, 120_000);
            s.receive(30);
            s.receive(40);
            s.await_fin();
            s.eager(tag, from, 3_000);
            s.sim.run_for(Duration::from_secs(3));
            let request = s.rendezvous(100 + tag, from, 100_000);
            s.sim.run_for(Duration::from_secs(3));
            s.eager(tag, from, 5_000);
            s.sim.run_for(Duration::from_secs(3));
            s.send(&[], from, 2_000);
            s.sim.run_for(Duration::from_secs(3));
            let expected = [
                (10, recv, 0, true, false),
                (10, recv, 3_000, false, true),
                (20, recv, 0, true, false),
                (20, recv, 100_000, false, true),
                (30, recv, 5_016, false, false),
                (40, Completed::TmNoTag, 2_000, false, false),
            ];
            assert_eq!(s.told(), expected, "seed {seed}");
            assert!(s.arrived(0, from, 3_000) && s.arrived(10_000, from, 100_000), "seed {seed}");
            assert!(s.arrived(UNEXPECTED + 2 * ROOM + TMH_LEN, from, 5_000), "seed {seed}");
            let fins = Endpoint::poll(&s.sender.receives);
            assert_eq!(fins.iter().map(|c| c.byte_len).collect::<Vec<_>>(), [32], "seed {seed}");
            let TmMessage::Rendezvous(tmh, rvh) = request else { panic!("a request") };
            assert_eq!(TmMessage::parse(&s.fins.read(0, 32)), TmMessage::Fin(tmh, rvh));
            handled += 1;
            s.op(1, TagOp::Sync, Some(handled));
            let [done] = s.completions()[..] else { panic!("one completion") };
            assert_eq!((done.opcode, done.tm.sync_required), (Completed::TmSync, false), "seed {seed}");
        }
        assert!(Endpoint::poll(&s.receiver.sends).is_empty(), "nothing of the program's was sent");
    }
}

#[test]
fn a_sender_learns_that_its_data_were_fetched_not_before_they_are_there() {
    for seed in 0..SEEDS {
        let mut s = scene(seed, Faults::lossy().loss(0.1));
        s.add(1, 4, u64::MAX, 0, 60_000);
        s.await_fin();
        s.rendezvous(4, 0, 60_000);
        let (fins, sim) = (&s.sender.receives, &mut s.sim);
        assert!(sim.run_until(Duration::from_secs(9), |_| !fins.is_empty()), "seed {seed}");
        assert!(s.arrived(0, 0, 60_000), "seed {seed}");
        let last = s.told()[1];
        assert_eq!(last, (1, Completed::TmReceive, 60_000, false, true), "seed {seed}");
    }
}

#[test]
fn a_rendezvous_that_its_buffer_can_not_hold_is_left_to_the_program() {
    let mut s = scene(1, Faults::none());
    s.add(1, 4, u64::MAX, 0, 999);
    let request = s.rendezvous(4, 0, 1000);
    s.run();
    let [got] = s.completions()[..] else { panic!("one completion") };
    assert_eq!((got.wr_id, got.opcode), (1, Completed::TmReceive));
    assert_eq!((got.status, got.byte_len), (Status::TmRendezvousIncomplete, RENDEZVOUS_LEN as u32));
    assert_eq!(TmMessage::parse(&s.sink.read(0, RENDEZVOUS_LEN)), request);
}

#[test]
fn a_rendezvous_header_beyond_the_limit_is_unexpected() {
    let mut s = scene(1, Faults::none());
    s.add(1, 4, u64::MAX, 0, 1000);
    s.receive(2);
    let sge = s.source.sge(0, 1000);
    let rvh = Reth { addr: sge.addr, rkey: sge.lkey, length: sge.length };
    let mut request = TmMessage::Rendezvous(Tmh { app_ctx: 0, tag: 4 }, rvh).emit().to_vec();
    request.resize(limits::MAX_RENDEZVOUS_HEADER + 1, 0);
    s.send(&request, 0, 0);
    s.run();
    assert_eq!(s.told(), [(2, Completed::TmReceive, 65, false, false)]);
}

#[test]
fn a_rendezvous_whose_key_is_refused_fails_its_tag_and_the_queue_pair() {
    let mut s = scene(1, Faults::none());
    s.add(1, 4, u64::MAX, 0, 1000);
    let rvh = Reth { addr: s.source.sge(0, 8).addr, rkey: wire::Rkey(0xdead_beef), length: 8 };
    s.send(&TmMessage::Rendezvous(Tmh { app_ctx: 0, tag: 4 }, rvh).emit(), 0, 0);
    s.run();
    let all = s.completions();
    let told: Vec<_> = all.iter().map(|c| (c.wr_id, c.status, c.tm.matched)).collect();
    assert_eq!(told, [(1, Status::Success, true), (1, Status::RemoteAccess, false)]);
    assert_eq!(s.receiver.qp.state(), nic::QpState::Error);
}

#[test]
fn a_message_too_long_for_its_tag_fails_as_one_too_long_for_its_receive() {
    let mut s = scene(1, Faults::none());
    s.add(1, 4, u64::MAX, 0, 10);
    s.eager(4, 0, 11);
    s.run();
    let [got] = s.completions()[..] else { panic!("one completion") };
    assert_eq!((got.wr_id, got.opcode, got.status), (1, Completed::TmReceive, Status::LocalLength));
}

#[test]
fn a_tag_added_while_a_message_was_unexpected_waits_until_both_are_in_step() {
    let mut s = scene(1, Faults::none());
    s.add(1, 1, u64::MAX, 0, 100);
    s.receive(30);
    s.eager(2, 0, 50);
    s.run();
    // The tag that the message was for comes too late; the program has not seen the message yet.
    let receive = RecvWr { wr_id: 2, sges: [s.sink.sge(1000, 100)].into_iter().collect() };
    s.op(12, TagOp::Add { receive, tag: 2, mask: u64::MAX }, None);
    s.receive(31);
    s.eager(2, 0, 50);
    s.run();
    // Tags of before match all the same.
    s.eager(1, 0, 50);
    s.run();
    let all = s.completions();
    let told: Vec<_> = all.iter().map(|c| (c.wr_id, c.opcode, c.tm.matched, c.tm.sync_required)).collect();
    let (recv, add) = (Completed::TmReceive, Completed::TmAdd);
    let expected =
        [(30, recv, false, false), (12, add, false, true), (31, recv, false, false), (1, recv, true, false)];
    assert_eq!(told, expected);
    for (handled, sync_required) in [(1, true), (2, false)] {
        s.op(9, TagOp::Sync, Some(handled));
        let [done] = s.completions()[..] else { panic!("one completion") };
        assert_eq!((done.opcode, done.tm.sync_required), (Completed::TmSync, sync_required));
    }
    s.eager(2, 0, 50);
    s.run();
    assert_eq!(s.told(), [(2, recv, 50, true, true)]);
}

#[test]
fn an_unexpected_message_waits_for_a_receive_and_may_find_a_tag_instead() {
    let mut s = scene(1, Faults::none());
    s.eager(2, 0, 50);
    s.sim.run_for(Duration::from_millis(5));
    assert!(s.completions().is_empty());
    s.add(1, 2, u64::MAX, 0, 100);
    s.run();
    assert_eq!(s.told(), [(1, Completed::TmReceive, 50, true, true)]);
}

#[test]
fn a_write_with_immediate_takes_an_ordinary_receive() {
    let mut s = scene(1, Faults::none());
    s.receive(3);
    let sge = s.sink.sge(0, 64);
    let op = SendOp::Write { addr: sge.addr, rkey: sge.lkey, immediate: Some(*b"imm!") };
    let data = Data::Sges([s.source.sge(0, 64)].into_iter().collect());
    let wr = SendWr { wr_id: 0, op, data, signaled: false, solicited: false, fence: false };
    s.sender.qp.post_send(stack::Env::now(&**s.node.env()), wr).unwrap();
    s.run();
    assert_eq!(s.told(), [(3, Completed::ReceiveWriteImmediate, 64, false, false)]);
}

#[test]
fn a_tag_is_deleted_once_and_not_when_a_message_has_taken_it() {
    let mut s = scene(1, Faults::none());
    let [one, two] = [1, 2].map(|id| s.add(id, id, u64::MAX, 0, 100));
    s.eager(1, 0, 50);
    s.run();
    assert_eq!(s.told().len(), 1);
    for (handle, status) in [(one, Status::Tm), (two, Status::Success), (two, Status::Tm)] {
        s.op(7, TagOp::Delete(handle), None);
        let [done] = s.completions()[..] else { panic!("one completion") };
        assert_eq!((done.wr_id, done.opcode, done.status), (7, Completed::TmDelete, status));
    }
}

#[test]
fn what_tag_matching_does_not_do_is_refused() {
    let s = scene(1, Faults::none());
    let invalid = |qp: Result<Arc<Qp>, Error>| qp.err().map(Error::errno) == Some(Errno::EINVAL);
    let (device, pd) = (s.receiver.qp.device(), &s.receiver.pd);
    assert!(invalid(Qp::create(device, pd, init(&s.receiver, QpType::Uc, &s.srq))));
    assert!(invalid(Qp::create(device, pd, init(&s.receiver, QpType::Ud, &s.srq))));
    let other = Arc::new(s.there.devices()[0].alloc_pd().unwrap());
    assert!(invalid(Qp::create(device, &other, init(&s.receiver, QpType::Rc, &s.srq))));
    // Its send queue is not the program's.
    let mut sender = s.receiver.qp.sender(stack::Env::now(&**s.there.env()));
    assert!(matches!(
        sender.post(&mut support::send(1, b"x"), nic::PostFlags::default()),
        Err(PostError::Invalid(_))
    ));
    sender.finish();
    let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
    for tags in [0, limits::MAX_TAGS + 1] {
        let cq = s.receiver.receives.clone();
        let made = Srq::create_tm(pd, attr, s.receiver.events.clone(), tags, cq);
        assert!(matches!(made, Err(Error::OutOfRange { .. })));
    }
    let plain = Srq::create(pd, attr, s.receiver.events.clone()).unwrap();
    let sync = || TagWr { wr_id: 0, op: TagOp::Sync, handled: None, signaled: true };
    assert!(matches!(plain.post_tag_op(sync()), Err(PostError::Invalid(_))));
    for id in 0..64 {
        s.add(id, id, u64::MAX, 0, 8);
    }
    let receive = RecvWr { wr_id: 0, sges: [].into_iter().collect() };
    let op = TagOp::Add { receive, tag: 0, mask: 0 };
    assert_eq!(s.srq.post_tag_op(TagWr { op, ..sync() }), Err(PostError::Full));
}
