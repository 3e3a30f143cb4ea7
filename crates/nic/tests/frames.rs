//! Raw packet queue pairs on a device whose link is a list of frames. Tested is what is sent, and
//! to which queue pairs rules give what comes.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nic::device::async_events::AsyncEventQueue;
use nic::steering::flow::{Flow, FlowKind, Masked, Spec};
use nic::steering::rss::{self, KEY_LEN, Spread, Wq, WqState};
use nic::{Access, Buffer, Cq, Device, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, mask};
use support::{Kept, MAC, Nobody};
use transport::Sge;
use transport::op::{Completion, Data, NetworkHeader, RecvWr, SendOp, SendWr, Status};
use wire::roce::SendTail;

/// A device, and memory of which each receive gets 256 bytes.
struct Bench {
    env: Arc<Kept>,
    device: Arc<Device>,
    pd: Arc<Pd>,
    events: Arc<AsyncEventQueue>,
    memory: Buffer,
    now: Instant,
}

const SLOT: usize = 256;

#[expect(clippy::disallowed_methods, reason = "any instant will do as the start of the tests' clock")]
fn bench() -> Bench {
    let env = Arc::new(Kept::default());
    let device = support::device(env.clone());
    let pd = Arc::new(device.alloc_pd().unwrap());
    let memory = Buffer::new(&pd, 64 * SLOT, 0x1000, Access::LOCAL_WRITE).unwrap();
    let events = AsyncEventQueue::new(Box::new(Nobody));
    Bench { env, device, pd, events, memory, now: Instant::now() }
}

impl Bench {
    fn cq(&self) -> Arc<Cq> {
        Cq::new(16, None, self.events.clone()).unwrap()
    }
    /// A queue pair in state RTS with a receive for each of `receives`.
    fn qp(&self, receives: std::ops::Range<usize>) -> Arc<Qp> {
        let cq = self.cq();
        let init = QpInit {
            kind: QpType::RawPacket,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: QpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
            events: self.events.clone(),
        };
        let qp = Qp::create(&self.device, &self.pd, init).unwrap();
        for (state, bits) in [(QpState::Init, mask::PORT), (QpState::Rtr, 0), (QpState::Rts, 0)] {
            let attr = QpAttr { state, port: 1, ..QpAttr::default() };
            qp.modify(self.now, &attr, mask::STATE | bits).unwrap();
        }
        receives.for_each(|slot| qp.post_receive(self.receive(slot, SLOT)).unwrap());
        qp
    }
    fn sge(&self, slot: usize, len: usize) -> Sge {
        self.memory.sge(slot * SLOT, len)
    }
    fn receive(&self, slot: usize, len: usize) -> RecvWr {
        RecvWr { wr_id: slot as u64, sges: [self.sge(slot, len)].into_iter().collect() }
    }
    fn send(&mut self, qp: &Qp, slot: usize, frame: &[u8]) {
        self.memory.write(slot * SLOT, frame);
        let wr = SendWr {
            wr_id: slot as u64,
            op: SendOp::Send(SendTail::None),
            data: Data::Sges([self.sge(slot, frame.len())].into_iter().collect()),
            signaled: true,
            solicited: false,
            fence: false,
        };
        qp.post_send(self.now, wr).unwrap();
    }
    fn comes(&self, frame: &[u8]) {
        self.device.input_frame(self.now, false, frame);
    }
}

fn completions(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    cq.poll(16, |c| all.push(c)).unwrap();
    all
}

/// How many frames it got.
fn got(qp: &Arc<Qp>) -> usize {
    let all = completions(&qp.init().recv_cq);
    assert!(all.iter().all(|c| c.status == Status::Success && c.qpn == qp.qpn()));
    all.len()
}

fn any<const N: usize>() -> Masked<N> {
    Masked { value: [0; N], mask: [0; N] }
}

fn to(dest: [u8; 6]) -> Flow {
    let dest = Masked { value: dest, mask: [0xff; 6] };
    let spec = Spec::Eth { dest, source: any(), ether_type: any(), vlan_tag: any() };
    Flow { kind: FlowKind::Normal, priority: 0, specs: vec![spec], drop: false, dont_trap: false }
}

fn of_kind(kind: FlowKind) -> Flow {
    Flow { kind, priority: 0, specs: Vec::new(), drop: false, dont_trap: false }
}

/// A frame of the local experimental type.
fn frame(dest: [u8; 6]) -> Vec<u8> {
    let mut bytes = dest.to_vec();
    bytes.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    bytes.extend(b"whatever it says");
    bytes
}

const GROUP: [u8; 6] = [3, 0, 0, 0, 0, 5];

#[test]
fn a_queue_pair_without_rules_gets_nothing_and_one_with_gets_the_whole_frame() {
    let bench = bench();
    let (with, without) = (bench.qp(0..1), bench.qp(1..2));
    let flow = with.steer(to(MAC)).unwrap();
    assert!(with.is_steered_to() && !without.is_steered_to());
    bench.comes(&frame(MAC));
    let all = completions(&with.init().recv_cq);
    assert_eq!((all.len(), all[0].byte_len, all[0].header), (1, 30, NetworkHeader::None));
    assert!(bench.memory.holds(0, &frame(MAC)));
    assert_eq!(got(&without), 0);
    assert_eq!(bench.env.watched.load(Ordering::Relaxed), 1);
    bench.device.remove_flow(flow);
    assert_eq!(bench.env.watched.load(Ordering::Relaxed), 0, "nobody listens without a rule");
}

#[test]
fn the_first_rule_takes_the_frame_with_its_equals() {
    let bench = bench();
    let qps: Vec<_> = (0..6).map(|i| bench.qp(i * 4..i * 4 + 4)).collect();
    let second = Flow { priority: 1, ..to(MAC) };
    let copy = Flow { dont_trap: true, priority: 1, ..to(MAC) };
    let flows = [second, to(MAC), to(MAC), of_kind(FlowKind::AllDefault), of_kind(FlowKind::Sniffer), copy];
    qps.iter().zip(flows).for_each(|(qp, flow)| _ = qp.steer(flow).unwrap());
    bench.comes(&frame(MAC));
    assert_eq!(qps.iter().map(got).collect::<Vec<_>>(), [0, 1, 1, 0, 1, 0]);
    bench.comes(&frame([4; 6]));
    assert_eq!(qps.iter().map(got).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 0]);
}

#[test]
fn a_rule_that_does_not_trap_leaves_the_frame_to_those_behind_it() {
    let bench = bench();
    let (first, second) = (bench.qp(0..1), bench.qp(1..2));
    first.steer(Flow { dont_trap: true, ..to(MAC) }).unwrap();
    second.steer(Flow { priority: 1, ..to(MAC) }).unwrap();
    bench.comes(&frame(MAC));
    assert_eq!((got(&first), got(&second)), (1, 1));
    assert!(first.steer(Flow { dont_trap: true, ..of_kind(FlowKind::Sniffer) }).is_err());
}

#[test]
fn what_a_rule_drops_reaches_no_rule_behind_it() {
    let bench = bench();
    let qp = bench.qp(0..4);
    qp.steer(Flow { priority: 1, ..to(MAC) }).unwrap();
    let drop = qp.steer(Flow { drop: true, ..to(MAC) }).unwrap();
    bench.comes(&frame(MAC));
    assert_eq!(got(&qp), 0);
    bench.device.remove_flow(drop);
    bench.comes(&frame(MAC));
    assert_eq!(got(&qp), 1);
}

#[test]
fn the_default_for_groups_takes_no_other_frames() {
    let bench = bench();
    let qp = bench.qp(0..4);
    qp.steer(of_kind(FlowKind::MulticastDefault)).unwrap();
    bench.comes(&frame(MAC));
    assert_eq!(got(&qp), 0);
    bench.comes(&frame(GROUP));
    assert_eq!(got(&qp), 1);
}

#[test]
fn of_what_this_host_sends_rules_get_what_an_adapter_returns_and_sniffers_all() {
    let bench = bench();
    let (qp, sniffer) = (bench.qp(0..4), bench.qp(4..8));
    qp.steer(of_kind(FlowKind::AllDefault)).unwrap();
    sniffer.steer(of_kind(FlowKind::Sniffer)).unwrap();
    for dest in [GROUP, MAC, [4; 6]] {
        bench.device.input_frame(bench.now, true, &frame(dest));
    }
    assert_eq!((got(&qp), got(&sniffer)), (2, 3));
}

#[test]
fn a_frame_too_long_for_its_receive_is_dropped_and_the_receive_stays() {
    let bench = bench();
    let qp = bench.qp(0..0);
    qp.post_receive(bench.receive(0, 29)).unwrap();
    qp.steer(to(MAC)).unwrap();
    bench.comes(&frame(MAC));
    assert_eq!(got(&qp), 0);
    bench.comes(&frame(MAC)[..29]);
    assert_eq!(got(&qp), 1);
    bench.comes(&frame(MAC));
    assert_eq!(bench.device.counters.no_receive.get(), 2);
}

#[test]
fn a_send_is_one_frame_as_it_is_and_a_bad_one_stops_the_queue() {
    let mut bench = bench();
    let qp = bench.qp(0..0);
    bench.send(&qp, 1, &frame(GROUP));
    assert_eq!(*bench.env.sent.lock().unwrap(), [frame(GROUP)]);
    bench.send(&qp, 2, &frame(GROUP)[..13]);
    bench.send(&qp, 3, &frame(GROUP));
    let all: Vec<_> = completions(&qp.init().send_cq).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(all, [(1, Status::Success), (2, Status::LocalLength), (3, Status::WrFlush)]);
    assert_eq!(qp.state(), QpState::Sqe);
    let back = QpAttr { state: QpState::Rts, ..QpAttr::default() };
    qp.modify(bench.now, &back, mask::STATE).unwrap();
    bench.send(&qp, 4, &frame(GROUP));
    assert_eq!(bench.env.sent.lock().unwrap().len(), 2);
}

#[test]
fn destroying_gives_back_rules_and_sockets() {
    let bench = bench();
    let qp = bench.qp(0..0);
    qp.steer(to(MAC)).unwrap();
    qp.destroy();
    assert_eq!(bench.env.open.load(Ordering::Relaxed), 0);
    assert_eq!(bench.env.watched.load(Ordering::Relaxed), 0);
}

/// An IPv4 frame from 10.0.0.`from`.
fn from_host(from: u8) -> Vec<u8> {
    let mut bytes = frame(MAC)[..12].to_vec();
    bytes.extend([8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 99]);
    bytes
}

#[test]
fn frames_are_spread_over_work_queues_by_their_hash() {
    let bench = bench();
    let cq = bench.cq();
    let queues: Arc<[_]> = (0..4).map(|_| Wq::create(&bench.pd, cq.clone(), 8, 1).unwrap()).collect();
    for wq in &queues[..] {
        assert!(wq.post(bench.receive(0, SLOT)).is_err(), "in state RESET");
        wq.modify(Some(WqState::Reset), WqState::Ready).unwrap();
        (0..8).for_each(|slot| wq.post(bench.receive(slot, SLOT)).unwrap());
        assert!(wq.post(bench.receive(0, SLOT)).is_err(), "full");
    }
    let key: [u8; KEY_LEN] = std::array::from_fn(|i| (i * 37 + 11) as u8);
    let qp = bench.qp(0..0);
    qp.spread_over(Spread::new(queues.clone(), key, rss::fields::SRC_IPV4).unwrap()).unwrap();
    assert!(qp.post_receive(bench.receive(0, SLOT)).is_err());
    qp.steer(to(MAC)).unwrap();
    let mut seen = BTreeSet::new();
    for from in 0..8 {
        bench.comes(&from_host(from));
        let all = completions(&cq);
        let index = rss::toeplitz(&key, &[10, 0, 0, from]) as usize % 4;
        assert_eq!((all.len(), all[0].qpn, all[0].status), (1, queues[index].number(), Status::Success));
        seen.insert(index);
    }
    assert!(seen.len() > 1);
    bench.comes(&frame(MAC));
    assert_eq!(completions(&cq)[0].qpn, queues[0].number(), "what has nothing to be hashed");
}

#[test]
fn a_work_queue_in_error_flushes_and_must_be_reset() {
    let bench = bench();
    let cq = bench.cq();
    let wq = Wq::create(&bench.pd, cq.clone(), 8, 1).unwrap();
    wq.modify(None, WqState::Ready).unwrap();
    wq.post(bench.receive(1, SLOT)).unwrap();
    assert!(wq.modify(Some(WqState::Reset), WqState::Error).is_err());
    wq.modify(Some(WqState::Ready), WqState::Error).unwrap();
    wq.post(bench.receive(2, SLOT)).unwrap();
    let all: Vec<_> = completions(&cq).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(all, [(1, Status::WrFlush), (2, Status::WrFlush)]);
    assert!(wq.modify(None, WqState::Ready).is_err());
    wq.modify(None, WqState::Reset).unwrap();
    wq.modify(None, WqState::Ready).unwrap();
}
