//! Long SENDs of which the receiver copies the middle itself.

mod support;

use support::*;
use transport::op::{Pull, SendOp, SendWr, Status};
use wire::bth::{Bth, NakCode};
use wire::roce::{Header, Op, Packet, SendAt, SendTail, Service};
use wire::{Mtu, Psn, Qpn};

const OK: Status = Status::Success;
const FIRST: Op = Op::Send(SendAt::First);
const LAST_IMM: Op = Op::Send(SendAt::Last(SendTail::Immediate(*b"imm!")));
const MIDDLE: Op = Op::Send(SendAt::Middle);
const LAST: Op = Op::Send(SendAt::Last(SendTail::None));

fn offering() -> End {
    let mut a = requester_with(|attr| attr.retry_cnt = 0);
    a.cx.offers = true;
    a
}

/// With receives of 64 KiB, and sight of what the other one offers.
fn pulling(receives: u64) -> End {
    let mut b = End::new(Mtu::M256, 1 << 20, rts());
    b.cx.offered = Some(bytes(0, 1 << 20));
    (0..receives).for_each(|n| b.post_receive(n, sge(1, n << 16, 1 << 16)));
    b
}

fn packets(count: usize) -> u32 {
    (count * MTU) as u32
}

/// All that both want to send goes to the other one, until nothing does.
fn exchange(a: &mut End, b: &mut End) {
    loop {
        let (there, back) = (a.fill(), b.fill());
        if there.is_empty() && back.is_empty() {
            return;
        }
        there.iter().for_each(|packet| b.hear_any(packet));
        back.iter().for_each(|packet| a.hear_any(packet));
    }
}

fn received(b: &End, n: usize, len: usize) -> Vec<u8> {
    b.cx.memory.regions[1].bytes.borrow()[n << 16..(n << 16) + len].to_vec()
}

fn send_with_imm(wr_id: u64, data: transport::Sge) -> SendWr {
    SendWr { op: SendOp::Send(SendTail::Immediate(*b"imm!")), ..send(wr_id, data) }
}

fn pull_of(sent: &Sent) -> (u64, u32) {
    let pull = Pull::from_bytes(&sent.payload).unwrap();
    (pull.addr - sge(0, 0, 0).addr, pull.len)
}

#[test]
fn a_long_send_is_offered_in_a_packet_or_few() {
    let mut a = offering();
    a.post(send(1, sge(0, 512, packets(19) + 9)));
    a.post(send_with_imm(2, sge(0, 0, packets(40))));
    let sent = a.sent();
    assert_eq!((psns(&sent), ops(&sent)), (vec![0, 20, 52], vec![ONLY, FIRST, LAST_IMM]));
    let pulls: Vec<_> = sent.iter().map(pull_of).collect();
    assert_eq!(pulls, [(512, packets(19) + 9), (0, packets(32)), (u64::from(packets(32)), packets(8))]);
    assert!(sent.iter().all(|packet| packet.bth.ack_request));
    a.hear(18, ack(0), &[]);
    assert_eq!(a.completed(), []);
    a.hear(51, ack(1), &[]);
    a.hear(59, ack(2), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
}

#[test]
fn short_messages_and_other_operations_are_not_offered() {
    let mut a = offering();
    a.post(send(1, sge(0, 0, packets(1))));
    a.post(write(2, sge(0, 0, packets(9)), sge(1, 0, packets(9)), None));
    let sent = a.sent();
    assert_eq!(sent.len(), 10);
    assert!(sent.iter().all(|packet| packet.payload.len() == MTU));
}

#[test]
fn what_is_offered_arrives_whole_and_in_order() {
    let (mut a, mut b) = (offering(), pulling(8));
    for n in 0..8 {
        a.post(send(n, sge(0, n * 100, packets(10 * n as usize) + 77)));
    }
    exchange(&mut a, &mut b);
    assert_eq!(a.completed(), (0..8).map(|n| (n, OK)).collect::<Vec<_>>());
    assert_eq!(b.completed(), (0..8).map(|n| (n, OK)).collect::<Vec<_>>());
    for n in 0..8 {
        let len = 10 * n * MTU + 77;
        assert_eq!(received(&b, n, len), bytes(n * 100, len), "message {n}");
    }
}

#[test]
fn a_window_that_is_full_is_waited_for_and_nothing_is_copied_meanwhile() {
    let (mut a, mut b) = (offering(), pulling(1));
    a.post(send(1, sge(0, 0, packets(250))));
    let there = a.fill();
    let share = a.cx.window.share();
    let sent: Vec<_> = there.iter().filter_map(|p| Pull::from_bytes(&p[12..])).collect();
    assert!(there.len() < 6 && sent.iter().all(|pull| pull.len <= packets(share as usize / 2)), "{sent:?}");
    there.iter().for_each(|packet| b.hear_any(packet));
    exchange(&mut a, &mut b);
    assert_eq!((a.completed(), b.completed()), (vec![(1, OK)], vec![(0, OK)]));
    assert_eq!(received(&b, 0, 250 * MTU), bytes(0, 250 * MTU));
}

#[test]
fn who_can_not_pull_gets_the_bytes_and_no_try_is_lost() {
    let (mut a, mut b) = (offering(), pulling(40));
    b.cx.offered = None;
    a.post(send(0, sge(0, 0, packets(30))));
    let there = a.fill();
    there.iter().for_each(|packet| b.hear_any(packet));
    let answers = b.sent();
    assert_eq!((psns(&answers), ops(&answers)), (vec![0], vec![nak(NakCode::PsnSequence, 0)]));
    a.hear(0, nak(NakCode::PsnSequence, 0), &[]);
    exchange(&mut a, &mut b);
    assert_eq!((a.completed(), b.completed()), (vec![(0, OK)], vec![(0, OK)]));
    assert_eq!(received(&b, 0, 30 * MTU), bytes(0, 30 * MTU));
    // Nothing is offered for a while, then once more.
    for n in 1..34 {
        a.post(send(n, sge(0, 0, packets(30))));
        let there = a.sent();
        let offers = there.iter().filter(|packet| packet.payload.len() == Pull::LEN).count();
        assert_eq!(offers, usize::from(n > 31), "message {n}");
        a.hear(30 * (n as i64 + 1) - 1, ack(n as u32 + 1), &[]);
        assert_eq!(a.completed(), [(n, OK)]);
    }
}

#[test]
fn what_is_lost_is_sent_again_with_its_bytes() {
    let mut a = requester();
    a.cx.offers = true;
    a.post(send(1, sge(0, 0, packets(20))));
    assert_eq!(a.sent().len(), 1);
    a.wait_for_deadline();
    let again = a.sent();
    assert_eq!(psns(&again), (0..20).collect::<Vec<_>>());
    assert!(again.iter().all(|packet| packet.payload.len() == MTU));
}

#[test]
fn where_there_is_no_receive_the_bytes_come_later_and_the_next_message_is_offered() {
    let (mut a, mut b) = (offering(), pulling(0));
    a.post(send(1, sge(0, 0, packets(20))));
    a.fill().iter().for_each(|packet| b.hear_any(packet));
    assert_eq!(ops(&b.sent()), [rnr(12, 0)]);
    a.hear(0, rnr(12, 0), &[]);
    assert_eq!(a.sent(), []);
    (0..2).for_each(|n| b.post_receive(n, sge(1, n << 16, 1 << 16)));
    a.wait_for_deadline();
    exchange(&mut a, &mut b);
    assert_eq!((a.completed(), b.completed()), (vec![(1, OK)], vec![(0, OK)]));
    assert_eq!(received(&b, 0, 20 * MTU), bytes(0, 20 * MTU));
    a.post(send(2, sge(0, 0, packets(20))));
    assert_eq!(a.sent().len(), 1);
}

/// What a responder answers to an offer.
fn offer(b: &mut End, psn: u32, op: Op, pull: Pull) -> Vec<(i32, Op)> {
    let psn = Psn::new(PSN).add(psn);
    let bth = Bth { psn, ack_request: true, dest_qp: Qpn::new(0x11), ..Bth::default() };
    let header = Header { bth, service: Service::Rc, op };
    b.rc.pull(&Packet { header, payload: &pull.to_bytes() }, b.hold, &mut b.cx);
    b.sent().iter().map(|packet| (packet.psn, packet.op)).collect()
}

#[test]
fn an_offer_that_is_out_of_place_changes_nothing() {
    let mut b = pulling(1);
    let good = Pull { addr: sge(0, MTU as u64, 0).addr, len: packets(4) };
    b.hear_with(0, FIRST, &bytes(0, MTU), false);
    let missing = [(1, nak(NakCode::PsnSequence, 0))];
    assert_eq!(offer(&mut b, 2, MIDDLE, good), missing, "one before it");
    assert_eq!(offer(&mut b, 1, MIDDLE, Pull { len: packets(4) - 1, ..good }), [], "a NAK is under way");
    assert_eq!(offer(&mut b, 1, MIDDLE, Pull { len: 0, ..good }), []);
    assert_eq!(offer(&mut b, 1, LAST, Pull { len: packets(64) + 1, ..good }), [], "more than one stands for");
    b.cx.offered = None;
    assert_eq!(offer(&mut b, 1, MIDDLE, good), []);
    b.cx.offered = Some(bytes(0, 1 << 20));
    assert_eq!(offer(&mut b, 1, MIDDLE, good), [(4, ack(0))]);
    assert_eq!(offer(&mut b, 1, MIDDLE, good), [(4, ack(0))], "it has come already");
    assert_eq!(b.completed(), []);
    let end = Pull { addr: sge(0, 5 * MTU as u64, 0).addr, len: 3 };
    assert_eq!(offer(&mut b, 5, LAST, end), [(5, ack(1))]);
    assert_eq!(b.completed(), [(0, OK)]);
    assert_eq!(received(&b, 0, 5 * MTU + 3), bytes(0, 5 * MTU + 3));
}

#[test]
fn an_offer_that_breaks_the_protocol_fails_as_a_packet_does() {
    let good = Pull { addr: sge(0, 0, 0).addr, len: packets(4) };
    let invalid = [(0, nak(NakCode::InvalidRequest, 0))];
    assert_eq!(offer(&mut pulling(1), 0, MIDDLE, good), invalid, "no message has begun");
    let mut b = pulling(0);
    assert_eq!(offer(&mut b, 0, ONLY, good), [(0, rnr(12, 0))]);
    assert_eq!(offer(&mut b, 0, Op::Write(wire::roce::WriteAt::Middle), good), []);
}

#[test]
fn a_message_that_is_too_long_fails_as_in_packets() {
    let (mut a, mut b) = (offering(), pulling(0));
    b.post_receive(9, sge(1, 0, packets(10)));
    a.post(send(1, sge(0, 0, packets(20))));
    exchange(&mut a, &mut b);
    assert_eq!(a.completed(), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(b.completed(), [(9, Status::LocalLength)]);
}
