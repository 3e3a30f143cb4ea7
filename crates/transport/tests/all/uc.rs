//! The unreliable connection: what leaves, what is taken, what is dropped in silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use proptest::prelude::*;
use transport::op::{AtomicOp, Completed, Data, QpEvent, RecvWr, SendOp, SendWr, Side, Status};
use transport::uc::{RtrAttr, Uc, UnreliableState};
use transport::{Sge, TxBatch};
use wire::roce::{Packet, SendTail, Service};
use wire::{Mtu, Pkey, Psn, Qpn, Rkey};

/// One end: an engine, its context, and the time it believes in.
struct End {
    uc: Uc,
    cx: TestContext,
    now: Instant,
}

impl End {
    /// In RTS with one region of `len` bytes that counts, and one of zeroes.
    fn new(len: usize) -> Self {
        let mut uc = Uc::new(Qpn::new(0x11), Pkey::default(), Arc::default());
        let (dest_qpn, rq_psn) = (Qpn::new(0x11), Psn::new(PSN));
        uc.ready_to_receive(RtrAttr { dest_qpn, path_mtu: Mtu::M256, rq_psn });
        uc.ready_to_send(Psn::new(PSN));
        let mut cx = TestContext::default();
        for bytes in [(0..len).map(pattern).collect(), vec![0; len]] {
            cx.memory.regions.push(Region { bytes: bytes.into(), remote: true });
        }
        Self { uc, cx, now: some_instant() }
    }
    fn post(&mut self, wr: SendWr) {
        self.uc.post(wr, &mut self.cx);
    }
    fn post_receive(&mut self, wr_id: u64, sge: Sge) {
        self.cx.receives.push_back(RecvWr { wr_id, sges: [sge].into_iter().collect() });
    }
    /// All that wants to leave, however long the pace makes it wait.
    fn fill(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut batch = TxBatch::new();
        loop {
            batch.clear();
            self.uc.fill(self.now, &mut batch, &mut self.cx);
            sent.extend(batch.iter().map(|p| p[..p.len() - 4].to_vec()));
            match self.uc.deadline() {
                Some(at) => self.now = at,
                None if batch.is_empty() => return sent,
                None => {}
            }
        }
    }
    fn hear(&mut self, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("the engine sends legal packets");
        self.uc.receive(&packet, &mut self.cx);
    }
    /// Completions since the last call: mark, status and length.
    fn completed(&mut self) -> Vec<(u64, Status, u32)> {
        self.cx.completions.drain(..).map(|(_, c)| (c.wr_id, c.status, c.byte_len)).collect()
    }
}

/// Two ends; what `from` posts is taken packet by packet to the other.
fn pair(len: usize) -> (End, End) {
    (End::new(len), End::new(len))
}

#[test]
fn a_message_is_cut_at_the_path_mtu_and_completes_when_its_last_packet_has_left() {
    let (mut a, mut b) = pair(4096);
    b.post_receive(7, sge(1, 0, 4096));
    a.post(send(1, sge(0, 0, 600)));
    let packets = a.fill();
    assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [12 + 256, 12 + 256, 12 + 88]);
    assert_eq!(a.completed(), [(1, Status::Success, 0)]);
    for bytes in &packets {
        let packet = Packet::parse(bytes).expect("legal");
        assert_eq!(packet.header.service, Service::Uc);
        assert!(!packet.header.bth.ack_request, "nobody acknowledges");
        assert_eq!(b.completed(), []);
        b.hear(bytes);
    }
    assert_eq!(b.completed(), [(7, Status::Success, 600)]);
    assert_eq!(b.cx.memory.bytes(1)[..600], a.cx.memory.bytes(0)[..600]);
}

#[test]
fn a_write_with_immediate_consumes_a_receive_and_a_plain_one_does_not() {
    let (mut a, mut b) = pair(4096);
    b.post_receive(7, sge(1, 0, 0));
    a.post(write(1, sge(0, 0, 1000), sge(1, 8, 1000), None));
    a.post(SendWr { solicited: true, ..write(2, sge(0, 0, 300), sge(1, 2000, 300), Some(*b"imm!")) });
    a.fill().iter().for_each(|p| b.hear(p));
    let [(Side::Receive, c)] = b.cx.completions[..] else { panic!("one receive completes") };
    assert_eq!(
        (c.opcode, c.byte_len, c.tail),
        (Completed::ReceiveWriteImmediate, 300, SendTail::Immediate(*b"imm!"))
    );
    assert!(c.solicited);
    assert_eq!(b.cx.memory.bytes(1)[8..1008], a.cx.memory.bytes(0)[..1000]);
    assert_eq!(b.cx.memory.bytes(1)[2000..2300], a.cx.memory.bytes(0)[..300]);
}

#[test]
fn a_gap_abandons_the_message_and_its_receive_serves_the_next() {
    let (mut a, mut b) = pair(4096);
    b.post_receive(7, sge(1, 0, 4096));
    a.post(send(1, sge(0, 0, 1000)));
    a.post(send(2, sge(0, 100, 500)));
    let packets = a.fill();
    // The second of four packets is lost: the other two of that message say nothing any more.
    for at in [0, 2, 3, 4, 5] {
        b.hear(&packets[at]);
    }
    assert_eq!(b.completed(), [(7, Status::Success, 500)]);
    assert_eq!(b.cx.memory.bytes(1)[..500], a.cx.memory.bytes(0)[100..600]);
    assert_eq!(b.uc.state(), UnreliableState::Rts);
}

#[test]
fn a_message_that_begins_before_the_last_ended_takes_its_place() {
    let (mut a, mut b) = pair(4096);
    b.post_receive(7, sge(1, 0, 4096));
    a.post(write(1, sge(0, 0, 600), sge(1, 1000, 600), None));
    a.post(send(2, sge(0, 0, 10)));
    let packets = a.fill();
    b.hear(&packets[0]);
    b.hear(&packets[3]);
    assert_eq!(b.completed(), [(7, Status::Success, 10)]);
    // The rest of the first is of no message.
    b.hear(&packets[1]);
    b.hear(&packets[2]);
    assert_eq!(b.completed(), []);
    assert_eq!(b.cx.memory.bytes(1)[1256..1600], [0; 344]);
}

#[test]
fn a_refused_write_is_dropped_in_silence() {
    let (mut a, mut b) = pair(4096);
    b.cx.memory.regions[0].remote = false;
    b.post_receive(7, sge(1, 0, 64));
    let nowhere = Sge { lkey: Rkey(KEY + 9), ..sge(1, 0, 300) };
    a.post(write(1, sge(0, 0, 300), nowhere, None));
    a.post(write(2, sge(0, 0, 300), sge(0, 0, 300), Some([1; 4])));
    a.post(write(3, sge(0, 0, 300), sge(1, 4000, 300), None));
    a.fill().iter().for_each(|p| b.hear(p));
    assert_eq!(b.completed(), []);
    assert_eq!(b.cx.events, []);
    assert_eq!(b.uc.state(), UnreliableState::Rts);
    assert_eq!(b.cx.receives.len(), 1, "the receive is still there");
    assert_eq!(b.cx.memory.bytes(1), vec![0; 4096]);
}

#[test]
fn a_send_that_finds_no_receive_or_one_too_short_is_dropped() {
    let (mut a, mut b) = pair(4096);
    a.post(send(1, sge(0, 0, 300)));
    a.post(send(2, sge(0, 0, 300)));
    a.post(send(3, sge(0, 0, 200)));
    let packets = a.fill();
    b.hear(&packets[0]);
    b.post_receive(7, sge(1, 0, 280));
    packets[1..].iter().for_each(|p| b.hear(p));
    assert_eq!(b.completed(), [(7, Status::Success, 200)]);
    assert_eq!(a.completed().len(), 3, "the sender is not told");
}

#[test]
fn a_receive_in_memory_that_is_not_ours_fails_the_queue_pair() {
    let (mut a, mut b) = pair(4096);
    b.post_receive(7, Sge { lkey: Rkey(KEY + 9), ..sge(1, 0, 100) });
    a.post(send(1, sge(0, 0, 10)));
    a.fill().iter().for_each(|p| b.hear(p));
    assert_eq!(b.completed(), [(7, Status::LocalProtection, 0)]);
    assert_eq!((b.uc.state(), &b.cx.events[..]), (UnreliableState::Error, &[QpEvent::Fatal][..]));
}

#[test]
fn a_send_from_memory_that_is_not_ours_stops_the_send_queue_only() {
    let (mut a, mut b) = pair(4096);
    a.post(send(1, Sge { lkey: Rkey(KEY + 9), ..sge(0, 0, 100) }));
    a.post(send(2, sge(0, 0, 100)));
    assert!(a.fill().is_empty());
    a.post(send(3, sge(0, 0, 100)));
    let statuses: Vec<_> = a.completed().into_iter().map(|(id, status, _)| (id, status)).collect();
    assert_eq!(statuses, [(1, Status::LocalProtection), (2, Status::WrFlush), (3, Status::WrFlush)]);
    assert_eq!(a.uc.state(), UnreliableState::Sqe);
    a.post_receive(7, sge(1, 0, 100));
    b.post(send(4, sge(0, 0, 100)));
    b.fill().iter().for_each(|p| a.hear(p));
    assert_eq!(a.completed(), [(7, Status::Success, 100)], "it still receives");
    a.uc.resume();
    a.post(send(5, sge(0, 0, 100)));
    assert_eq!(a.fill().len(), 1);
}

#[test]
fn what_the_service_does_not_carry_is_refused_by_the_sender() {
    for op in [
        SendOp::Send(SendTail::Invalidate(Rkey(1))),
        SendOp::Read { addr: 0, rkey: Rkey(1) },
        SendOp::Atomic { addr: 0, rkey: Rkey(1), op: AtomicOp::FetchAdd(1) },
    ] {
        let (mut a, _) = pair(64);
        a.post(SendWr { op, ..send(1, sge(0, 0, 8)) });
        assert!(a.fill().is_empty());
        assert_eq!(a.completed(), [(1, Status::LocalQpOperation, 0)]);
    }
}

#[test]
fn draining_ends_the_message_begun_and_begins_no_other() {
    let (mut a, _) = pair(1 << 20);
    a.post(send(1, sge(0, 0, 200_000)));
    a.post(send(2, sge(0, 0, 100)));
    let mut batch = TxBatch::new();
    a.uc.fill(a.now, &mut batch, &mut a.cx);
    a.uc.drain();
    assert!(!a.uc.drained());
    a.fill();
    assert!(a.uc.drained());
    assert_eq!(a.completed(), [(1, Status::Success, 0)]);
    a.uc.resume();
    a.fill();
    assert_eq!(a.completed(), [(2, Status::Success, 0)]);
}

#[test]
fn a_large_message_leaves_at_a_pace() {
    let (mut a, _) = pair(1 << 20);
    let start = a.now;
    a.post(send(1, sge(0, 0, 1 << 20)));
    let packets = a.fill();
    assert_eq!(packets.len(), 4096);
    // Each of the packets of a SEND counts for 2 * 768 ns at least, and the first 160 us go at
    // once.
    let least = Duration::from_nanos(2 * 4096 * 768 - 2 * 160_000);
    assert!(a.now - start > least, "{:?}", a.now - start);
}

#[test]
fn a_send_takes_twice_as_long_as_a_write_of_the_same_length() {
    let took = |wr: SendWr| {
        let (mut a, _) = pair(1 << 20);
        let start = a.now;
        a.post(wr);
        assert_eq!(a.fill().len(), 4096);
        (a.now - start).as_micros()
    };
    let [write, send] = [write(1, sge(0, 0, 1 << 20), sge(1, 0, 1 << 20), None), send(1, sge(0, 0, 1 << 20))];
    // The first 160 us of the pace go at once; a quantum is 80 us.
    let [write, send] = [write, send].map(|wr| took(wr) + 160);
    assert!(send.abs_diff(2 * write) <= 160, "{send} us and {write} us");
}

#[test]
fn failing_flushes_requests_and_the_receive_half_filled_in_order() {
    let (mut a, mut b) = pair(4096);
    b.post_receive(7, sge(1, 0, 4096));
    a.post(send(1, sge(0, 0, 600)));
    b.hear(&a.fill()[0]);
    b.post(send(2, sge(0, 0, 8)));
    b.post(send(3, sge(0, 0, 8)));
    b.uc.fail(&mut b.cx);
    b.post(send(4, sge(0, 0, 8)));
    let flushed: Vec<_> = b.completed().into_iter().map(|(id, status, _)| (id, status)).collect();
    assert_eq!(flushed, [2, 3, 7, 4].map(|id| (id, Status::WrFlush)));
}

proptest! {
    /// Whatever the network does, what arrives is a message that was sent, whole.
    #[test]
    fn only_whole_messages_arrive(lens in prop::collection::vec(0_u32..2000, 1..20), seed: u64) {
        const LEN: usize = 8192;
        let (mut a, mut b) = pair(LEN);
        let mut rng = Rng(seed);
        for (i, &len) in lens.iter().enumerate() {
            let tail = SendTail::Immediate((i as u32).to_be_bytes());
            a.post(SendWr { op: SendOp::Send(tail), ..send(i as u64, sge(0, i as u64 * 10, len)) });
        }
        let mut packets: Vec<Vec<u8>> = Vec::new();
        for packet in a.fill() {
            if rng.chance(10) {
                continue;
            }
            let at = packets.len() - if rng.chance(10) { rng.below(4).min(packets.len() as u64) as usize } else { 0 };
            if rng.chance(5) {
                packets.push(packet.clone());
            }
            packets.insert(at, packet);
        }
        for packet in packets {
            if b.cx.receives.is_empty() {
                b.post_receive(0, sge(1, 0, 2000));
            }
            b.hear(&packet);
            for (_, c) in b.cx.completions.drain(..) {
                let SendTail::Immediate(id) = c.tail else { panic!("all have immediate data") };
                let id = u32::from_be_bytes(id) as usize;
                prop_assert_eq!((c.status, c.byte_len), (Status::Success, lens[id]));
                let got = &b.cx.memory.bytes(1)[..lens[id] as usize];
                prop_assert_eq!(got, &a.cx.memory.bytes(0)[id * 10..id * 10 + lens[id] as usize]);
            }
        }
        prop_assert_eq!(b.uc.state(), UnreliableState::Rts);
    }
}

#[test]
fn inline_bytes_travel_as_registered_ones_do() {
    let (mut a, mut b) = pair(4096);
    let bytes: Vec<u8> = (0..700).map(|i| pattern(i + 5)).collect();
    b.post_receive(7, sge(1, 0, 4096));
    a.post(SendWr { data: Data::inline(&bytes), ..send(1, sge(0, 0, 0)) });
    a.fill().iter().for_each(|p| b.hear(p));
    assert_eq!(b.cx.memory.bytes(1)[..700], bytes);
}
