//! Frames and flow rules: any rules, mostly made out of the frames that come, and any frames.
//!
//! A queue pair without rules gets nothing; one with rules gets a frame once and whole; who watches
//! all frames gets every one; what counters count is what came.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::steering::flow::{Flow, FlowCounter, FlowKind, Masked, Spec};
use nic::steering::rss::{Spread, Wq, WqState};
use nic::{Access, Buffer, Cq, FlowId, Qp, QpType};
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::roce::SendTail;

use crate::Input;
use crate::adapter::{Adapter, MAC, completions};

const STEPS: u32 = 200;
const RECEIVES: u32 = 4;
/// Bytes of a receive; a longer frame finds no room.
const ROOM: usize = 256;
const IOVA: u64 = 0x10_0000;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Scene::new(&mut Input::new(bytes)).run();
}

/// Who gets frames.
struct Taker {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    rules: Vec<(FlowId, Flow)>,
    /// Receives posted.
    room: u32,
}

struct Scene<'a, 'b> {
    input: &'a mut Input<'b>,
    adapter: Adapter,
    takers: Vec<Taker>,
    /// The work queues of an indirection table.
    spread: Taker,
    queues: Vec<Arc<Wq>>,
    buffer: Buffer,
    counter: Arc<FlowCounter>,
    frames: u64,
    bytes: u64,
}

impl<'a, 'b> Scene<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let adapter = Adapter::default();
        let taker = || {
            let cq = adapter.cq(256);
            let qp = adapter.qp(adapter.init(QpType::RawPacket, &cq, RECEIVES));
            Taker { qp, cq, rules: Vec::new(), room: 0 }
        };
        let takers = (0..3).map(|_| taker()).collect();
        let spread = taker();
        let queue = |_| {
            let queue = Wq::create(&adapter.pd, spread.cq.clone(), 64, 1).expect("a small work queue");
            queue.modify(None, WqState::Ready).expect("a new queue becomes ready");
            queue
        };
        let queues: Vec<Arc<Wq>> = (0..4).map(queue).collect();
        let fields = input.u64() & nic::steering::rss::fields::ALL;
        let table = Spread::new(queues.clone().into(), std::array::from_fn(|i| i as u8), fields);
        if let Ok(table) = table {
            spread.qp.spread_over(table).expect("a raw packet queue pair without a table");
        }
        let buffer = Buffer::new(&adapter.pd, ROOM * 2, IOVA, Access::LOCAL_WRITE).expect("memory");
        let counter = Arc::default();
        Scene { input, adapter, takers, spread, queues, buffer, counter, frames: 0, bytes: 0 }
    }

    fn run(mut self) {
        let mut last = frame(self.input);
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            match self.input.below(8) {
                0 | 1 => self.steer(&last),
                2 => self.forget(),
                3 => self.send(&last),
                4 => {
                    last = frame(self.input);
                    self.comes(&last);
                }
                5 => {
                    let at = self.input.index(last.len().max(1));
                    if let Some(byte) = last.get_mut(at) {
                        *byte = self.input.u8();
                    }
                    self.comes(&last);
                }
                _ => self.comes(&last),
            }
        }
        for taker in self.takers.iter().chain([&self.spread]) {
            taker.qp.destroy();
        }
        let rules = self.counter.packets.load(Ordering::Relaxed);
        assert!(rules <= self.frames * nic::limits::MAX_FLOWS as u64);
        assert!(self.counter.bytes.load(Ordering::Relaxed) <= self.bytes * nic::limits::MAX_FLOWS as u64);
    }

    /// A rule for one of the queue pairs.
    fn steer(&mut self, like: &[u8]) {
        let kind = self.input.choose(&[
            FlowKind::Normal,
            FlowKind::Normal,
            FlowKind::AllDefault,
            FlowKind::MulticastDefault,
            FlowKind::Sniffer,
        ]);
        let count = if kind == FlowKind::Normal { self.input.below(4) } else { 0 };
        let specs = (0..count).map(|_| spec(self.input.below(SPECS), self.input, like)).collect();
        let priority = self.input.choose(&[0, 0, 1, u16::MAX]);
        let drop = self.input.one_in(8);
        let dont_trap = kind == FlowKind::Normal && self.input.one_in(8);
        let flow = Flow { kind, priority, specs, drop, dont_trap };
        let counter = self.input.any::<bool>().then(|| self.counter.clone());
        let which = self.input.index(4);
        let taker = self.takers.get_mut(which).unwrap_or(&mut self.spread);
        let id = taker.qp.steer_counted(flow.clone(), counter).expect("a legal rule");
        taker.rules.push((id, flow));
    }

    fn forget(&mut self) {
        let which = self.input.index(4);
        let taker = self.takers.get_mut(which).unwrap_or(&mut self.spread);
        if let Some((id, _)) = taker.rules.pop() {
            self.adapter.device.remove_flow(id);
        }
        assert_eq!(taker.qp.is_steered_to(), !taker.rules.is_empty());
    }

    /// A queue pair sends a frame; its destination is not here.
    fn send(&mut self, bytes: &[u8]) {
        let taker = &self.takers[self.input.index(3)];
        let len = bytes.len().min(ROOM);
        self.buffer.write(ROOM, &bytes[..len]);
        let data = Data::Sges([self.buffer.sge(ROOM, len)].into_iter().collect());
        let op = SendOp::Send(SendTail::None);
        let wr = SendWr { wr_id: 99, op, data, signaled: true, solicited: false, fence: false };
        let posted = taker.qp.post_send(self.adapter.now, wr).is_ok();
        let done = completions(&taker.cq);
        assert_eq!(done.len(), usize::from(posted), "a frame that is sent is complete");
    }

    fn comes(&mut self, bytes: &[u8]) {
        for taker in &mut self.takers {
            for wr_id in u64::from(taker.room)..u64::from(RECEIVES) {
                let sges = [self.buffer.sge(0, ROOM)].into_iter().collect();
                if taker.qp.post_receive(RecvWr { wr_id, sges }).is_ok() {
                    taker.room += 1;
                }
            }
        }
        if let Some(queue) = self.queues.get(self.input.index(8)) {
            let sges = [self.buffer.sge(0, ROOM)].into_iter().collect();
            let _ = queue.post(RecvWr { wr_id: 7, sges });
        }
        let outgoing = self.input.one_in(4);
        self.adapter.device.input_frame(self.adapter.now, outgoing, bytes);
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        let is_good = |c: &Completion| c.status == Status::Success && c.byte_len as usize == bytes.len();
        for taker in &mut self.takers {
            let got = completions(&taker.cq);
            assert!(got.iter().all(is_good), "whole frames: {got:?}");
            assert!(got.len() <= 1, "one copy of a frame");
            assert!(got.is_empty() || self.buffer.holds(0, bytes), "the frame that came");
            assert!(got.is_empty() || !taker.rules.is_empty(), "a frame without a rule");
            taker.room -= got.len() as u32;
            let alive = taker.qp.state() == nic::QpState::Rts;
            let watches = |(_, flow): &(FlowId, Flow)| flow.kind == FlowKind::Sniffer && !flow.drop;
            if alive && taker.rules.iter().any(watches) && bytes.len() <= ROOM {
                assert_eq!(got.len(), 1, "who watches gets every frame");
            }
        }
        let got = completions(&self.spread.cq);
        assert!(got.len() <= 1 && got.iter().all(is_good), "one queue of a table gets a frame: {got:?}");
        assert!(got.is_empty() || !self.spread.rules.is_empty(), "a frame without a rule");
    }
}

/// A frame: headers that stand in the right order, with any fields, or any bytes.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    if input.one_in(8) {
        return input.bytes(64).to_vec();
    }
    let mut bytes = input.choose(&[MAC, [4; 6], [3, 0, 0, 0, 0, 5], [0xff; 6]]).to_vec();
    bytes.extend([2, 0, 0, 0, 0, 1]);
    for _ in 0..input.below(4) {
        bytes.extend(input.choose(&[[0x81, 0x00], [0x88, 0xa8]]));
        bytes.extend([0, input.u8()]);
    }
    let proto = input.choose(&[6, 17, 44, 0, 43, 60, 1]);
    if input.any() {
        let fragment = if input.one_in(4) { input.u8() } else { 0 };
        let words = if input.one_in(4) { input.u8() & 15 } else { 5 };
        bytes.extend([0x08, 0x00, 0x40 | words, input.u8(), 0, 28, 0, 0, 0x40, fragment, 64, proto, 0, 0]);
        bytes.extend([10, 0, 0, input.u8(), 10, 0, 0, input.u8()]);
    } else {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 64, proto, input.u8()]);
        bytes.extend([input.u8(); 32]);
        for _ in 0..input.below(12) {
            bytes.extend([input.choose(&[6, 17, 44, 0, 43, 60]), input.u8() & 1, 0, 0, 0, 0, 0, 0]);
        }
    }
    bytes.extend([0, input.u8(), 0, input.u8()]);
    bytes.extend(input.bytes(300));
    bytes
}

/// Bytes of the frame itself from some place on, and which bits of them count: mostly all or none.
fn masked<const N: usize>(input: &mut Input<'_>, like: &[u8]) -> Masked<N> {
    let at = input.below(64) as usize;
    let value = std::array::from_fn(|i| like.get(at + i).copied().unwrap_or_default());
    let mask = match input.below(3) {
        0 => [0; N],
        1 => [0xff; N],
        _ => std::array::from_fn(|_| input.u8()),
    };
    Masked { value, mask }
}

/// Number of arms of [`spec`].
const SPECS: u32 = 5;

/// A specification: the arm says which.
fn spec(arm: u32, input: &mut Input<'_>, like: &[u8]) -> Spec {
    match arm {
        0 => Spec::Eth {
            dest: masked(input, like),
            source: masked(input, like),
            ether_type: masked(input, like),
            vlan_tag: masked(input, like),
        },
        1 => Spec::Ipv4 {
            source: masked(input, like),
            dest: masked(input, like),
            proto: masked(input, like),
            tos: masked(input, like),
            ttl: masked(input, like),
            flags: masked(input, like),
        },
        2 => Spec::Ipv6 {
            source: masked(input, like),
            dest: masked(input, like),
            flow_label: masked(input, like),
            next_header: masked(input, like),
            traffic_class: masked(input, like),
            hop_limit: masked(input, like),
        },
        3 => Spec::Tcp { source: masked(input, like), dest: masked(input, like) },
        _ => Spec::Udp { source: masked(input, like), dest: masked(input, like) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_specification_has_an_arm_of_its_own() {
        // Does not compile where there is a new one.
        let name = |spec: &Spec| match spec {
            Spec::Eth { .. } => "eth",
            Spec::Ipv4 { .. } => "ipv4",
            Spec::Ipv6 { .. } => "ipv6",
            Spec::Tcp { .. } => "tcp",
            Spec::Udp { .. } => "udp",
        };
        let names: std::collections::BTreeSet<_> =
            (0..SPECS).map(|arm| name(&spec(arm, &mut Input::new(&[]), &[]))).collect();
        assert_eq!(names.len(), SPECS as usize);
    }
}
