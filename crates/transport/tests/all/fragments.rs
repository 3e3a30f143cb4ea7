//! Long messages that leave in fragments of several packets, to a process of the same host.

use crate::support::*;
use transport::op::{FragmentOutcome, SendOp, SendWr, Status};
use transport::rc::AckDelay;
use wire::bth::{Bth, NakCode};
use wire::roce::{Header, Op, ReadAt, SendAt, SendTail, Service, WriteAt};
use wire::{Mtu, Psn, Qpn};

const OK: Status = Status::Success;
const FIRST: Op = Op::Send(SendAt::First);
const LAST_IMM: Op = Op::Send(SendAt::Last(SendTail::Immediate(*b"imm!")));
const MIDDLE: Op = Op::Send(SendAt::Middle);
const LAST: Op = Op::Send(SendAt::Last(SendTail::None));
/// Bytes of the longest fragment here.
const MAX: usize = 32 * MTU;

/// Sends fragments, and has nothing lost.
fn sender() -> End {
    let mut a = requester_with(|attr| attr.retry_cnt = 0);
    a.cx.max_fragment = MAX;
    a
}

/// With receives of 64 KiB, which sends fragments, too.
fn receiver(receives: u64) -> End {
    let mut b = End::new(Mtu::M256, 1 << 20, rts());
    b.cx.max_fragment = MAX;
    (0..receives).for_each(|n| b.post_receive(n, sge(1, n << 16, 1 << 16)));
    b
}

fn packets(count: usize) -> u32 {
    (count * MTU) as u32
}

/// All that both want to send goes to the other one, until nothing does; how many bytes the longest
/// payload had.
fn exchange(a: &mut End, b: &mut End) -> usize {
    let mut longest = 0;
    loop {
        let (there, back) = (a.fill(), b.fill());
        if there.is_empty() && back.is_empty() {
            return longest;
        }
        longest = there.iter().chain(&back).map(Vec::len).fold(longest, usize::max);
        there.iter().for_each(|packet| b.hear_any(packet));
        back.iter().for_each(|packet| a.hear_any(packet));
    }
}

fn received(end: &End, at: usize, len: usize) -> Vec<u8> {
    end.cx.memory.regions[1].bytes.borrow()[at..at + len].to_vec()
}

fn send_with_imm(wr_id: u64, data: transport::Sge) -> SendWr {
    SendWr { op: SendOp::Send(SendTail::Immediate(*b"imm!")), ..send(wr_id, data) }
}

fn lens(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|packet| packet.payload.len() as u32).collect()
}

#[test]
fn a_long_message_leaves_in_fragments_with_the_numbers_of_its_packets() {
    let mut a = sender();
    a.post(send(1, sge(0, 512, packets(19) + 9)));
    a.post(send_with_imm(2, sge(0, 0, packets(40))));
    let sent = a.sent();
    assert_eq!((psns(&sent), ops(&sent)), (vec![0, 20, 52], vec![ONLY, FIRST, LAST_IMM]));
    assert_eq!(lens(&sent), [packets(19) + 9, packets(32), packets(8)]);
    assert_eq!(sent[0].payload, bytes(512, 19 * MTU + 9));
    assert!(sent.iter().all(|packet| packet.bth.ack_request), "each is half a window, or the end");
    a.hear(18, ack(0), &[]);
    assert_eq!(a.completed(), []);
    a.hear(59, ack(2), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
}

#[test]
fn short_messages_and_the_ends_of_long_ones_are_packets() {
    let mut a = sender();
    a.post(send(1, sge(0, 0, packets(7))));
    a.post(write(2, sge(0, 0, packets(39)), sge(1, 0, packets(39)), None));
    a.post(read(3, sge(1, 0, packets(10)), sge(0, 0, packets(10))));
    let sent = a.sent();
    let mut expected = vec![packets(1); 7];
    expected.extend([packets(32)]);
    expected.extend([packets(1); 7]);
    expected.extend([0]);
    assert_eq!(lens(&sent), expected);
}

#[test]
fn all_kinds_of_messages_arrive_whole_and_in_order() {
    let (mut a, mut b) = (sender(), receiver(9));
    for n in 0..8 {
        let at = n as usize * 70_000;
        let len = packets(10 * n as usize) + 77;
        a.post(send(4 * n, sge(0, n * 100, len)));
        a.post(write(4 * n + 1, sge(0, n, len), sge(0, 300_000 + n * 30_000, len), None));
        a.post(read(4 * n + 2, sge(0, n * 3, len), sge(1, at as u64, len)));
    }
    a.post(write(99, sge(0, 5, packets(40)), sge(0, 600_000, packets(40)), Some(*b"imm!")));
    assert!(exchange(&mut a, &mut b) >= MAX);
    let all = (0..8).flat_map(|n| (0..3).map(move |k| (4 * n + k, OK))).chain([(99, OK)]);
    assert_eq!(a.completed(), all.collect::<Vec<_>>());
    assert_eq!(b.completed(), (0..9).map(|n| (n, OK)).collect::<Vec<_>>());
    for n in 0..8 {
        let len = 10 * n * MTU + 77;
        assert_eq!(received(&b, n << 16, len), bytes(n * 100, len), "message {n}");
        assert_eq!(received(&a, n * 70_000, len), bytes(n * 3, len), "READ {n}");
        let written = b.cx.memory.regions[0].bytes.borrow();
        assert_eq!(written[300_000 + n * 30_000..][..len], bytes(n, len), "WRITE {n}");
    }
}

#[test]
fn a_window_that_is_full_is_waited_for() {
    let (mut a, mut b) = (sender(), receiver(1));
    a.post(send(1, sge(0, 0, packets(250))));
    let there = a.fill();
    let share = a.cx.window.share_of(u32::MAX) as usize;
    assert!(share < 250 && there.iter().all(|p| p.len() <= share / 2 * MTU + 12), "{share}");
    assert!(there.iter().map(|p| p.len().div_ceil(MTU + 12)).sum::<usize>() <= share);
    there.iter().for_each(|packet| b.hear_any(packet));
    exchange(&mut a, &mut b);
    assert_eq!((a.completed(), b.completed()), (vec![(1, OK)], vec![(0, OK)]));
    assert_eq!(received(&b, 0, 250 * MTU), bytes(0, 250 * MTU));
}

#[test]
fn a_full_ring_is_waited_for_where_an_ack_is_due_and_takes_packets_where_none_is() {
    let mut a = sender();
    a.post(send(1, sge(0, 0, packets(20))));
    assert_eq!(a.sent().len(), 1);
    a.cx.outcome = Some(FragmentOutcome::Full);
    a.post(send(2, sge(0, 0, packets(20))));
    assert_eq!(a.sent(), [], "an ACK makes room");
    a.hear(19, ack(1), &[]);
    assert_eq!(lens(&a.sent()), vec![packets(1); 20], "nothing else would");
    a.cx.outcome = Some(FragmentOutcome::Unavailable);
    a.post(send(3, sge(0, 0, packets(20))));
    assert_eq!(lens(&a.sent()), vec![packets(1); 20]);
}

#[test]
fn what_is_lost_is_sent_again_in_packets() {
    let mut a = requester();
    a.cx.max_fragment = MAX;
    a.post(send(1, sge(0, 0, packets(20))));
    assert_eq!(a.sent().len(), 1);
    a.wait_for_deadline();
    let again = a.sent();
    assert_eq!(psns(&again), (0..20).collect::<Vec<_>>());
    assert_eq!(lens(&again), vec![packets(1); 20]);
}

#[test]
fn where_there_is_no_receive_packets_come_later_and_the_next_message_is_a_fragment() {
    let (mut a, mut b) = (sender(), receiver(0));
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

/// What an end answers to a fragment.
fn fragment(end: &mut End, psn: u32, op: Op, payload: &[u8]) -> Vec<(i32, Op)> {
    let psn = Psn::new(PSN).add(psn);
    let bth = Bth { psn, ack_request: true, dest_qp: Qpn::new(0x11), ..Bth::default() };
    end.hear_fragment(&Header { bth, service: Service::Rc, op }, payload);
    end.sent().iter().map(|packet| (packet.psn, packet.op)).collect()
}

#[test]
fn a_fragment_out_of_place_changes_nothing_and_one_in_its_place_counts_once() {
    let mut b = receiver(1);
    b.hear_with(0, FIRST, &bytes(0, MTU), false);
    let good = bytes(MTU, 4 * MTU);
    assert_eq!(fragment(&mut b, 2, MIDDLE, &good), [(1, nak(NakCode::PsnSequence, 0))], "one before it");
    assert_eq!(fragment(&mut b, 3, MIDDLE, &good), [], "a NAK is under way");
    assert_eq!(fragment(&mut b, 1, MIDDLE, &[]), [], "of no packet");
    assert_eq!(fragment(&mut b, 1, LAST, &bytes(0, 64 * MTU + 1)), [], "of more than there may be");
    assert_eq!(fragment(&mut b, 1, Op::ReadRequest(reth(0, 0, 8)), &good), [], "that is no fragment");
    assert_eq!(fragment(&mut b, 1, MIDDLE, &good), [(4, ack(0))]);
    assert_eq!(fragment(&mut b, 1, MIDDLE, &bytes(0, 4 * MTU)), [(4, ack(0))], "it has come already");
    assert_eq!(b.completed(), []);
    assert_eq!(fragment(&mut b, 5, LAST, &bytes(5 * MTU, 3)), [(5, ack(1))]);
    assert_eq!(b.completed(), [(0, OK)]);
    assert_eq!(received(&b, 0, 5 * MTU + 3), bytes(0, 5 * MTU + 3));
}

#[test]
fn a_fragment_that_breaks_the_protocol_fails_as_a_packet_does() {
    let (good, odd) = (bytes(0, 4 * MTU), bytes(0, 4 * MTU - 1));
    let invalid = [(0, nak(NakCode::InvalidRequest, 0))];
    assert_eq!(fragment(&mut receiver(1), 0, MIDDLE, &good), invalid, "no message has begun");
    assert_eq!(fragment(&mut receiver(1), 0, FIRST, &odd), invalid, "its last packet is not full");
    assert_eq!(fragment(&mut receiver(0), 0, ONLY, &good), [(0, rnr(12, 0))]);
    let write = |length| Op::Write(WriteAt::Only(reth(0, 0, length), None));
    assert_eq!(
        fragment(&mut receiver(1), 0, write(packets(4) + 1), &good),
        invalid,
        "not as long as it says"
    );
    let beyond = [(0, nak(NakCode::RemoteAccess, 0))];
    let mut b = receiver(1);
    assert_eq!(
        fragment(&mut b, 0, Op::Write(WriteAt::First(reth(0, (1 << 20) - 8, packets(9)))), &good),
        beyond
    );
    assert_eq!(b.cx.memory.regions[1].bytes.borrow()[..], vec![0; 1 << 20]);
}

#[test]
fn a_message_that_is_too_long_fails_as_in_packets() {
    let (mut a, mut b) = (sender(), receiver(0));
    b.post_receive(9, sge(1, 0, packets(10)));
    a.post(send(1, sge(0, 0, packets(20))));
    exchange(&mut a, &mut b);
    assert_eq!(a.completed(), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(b.completed(), [(9, Status::LocalLength)]);
}

#[test]
fn memory_of_the_sender_that_is_gone_fails_the_request() {
    let mut a = sender();
    a.post(send(1, sge(0, (1 << 20) - 8, packets(20))));
    assert_eq!(a.sent(), []);
    assert_eq!(a.completed(), [(1, Status::LocalProtection)]);
}

#[test]
fn responses_of_a_read_that_no_responder_sends_are_an_error() {
    let only = |msn| Op::ReadResponse(ReadAt::Only(aeth(msn)));
    let asks = || {
        let mut a = sender();
        a.post(read(1, sge(1, 0, packets(10)), sge(0, 0, packets(10))));
        assert_eq!(a.sent().len(), 1);
        a
    };
    let bad = [
        (only(1), packets(9)),
        (only(1), packets(11)),
        (only(1), packets(10) - 1),
        (Op::ReadResponse(ReadAt::First(aeth(1))), packets(10)),
        (Op::ReadResponse(ReadAt::Middle), packets(4)),
    ];
    for (op, len) in bad {
        let mut a = asks();
        fragment(&mut a, 0, op, &vec![7; len as usize]);
        assert_eq!(a.completed(), [(1, Status::BadResponse)], "{op:?} of {len}");
    }
    let mut a = asks();
    fragment(&mut a, 0, only(1), &vec![7; 10 * MTU]);
    assert_eq!(a.completed(), [(1, OK)]);
}

#[test]
fn a_read_that_is_asked_for_again_is_answered_in_packets() {
    let mut b = receiver(0);
    let request = Op::ReadRequest(reth(0, 0, packets(20)));
    b.hear(0, request, &[]);
    assert_eq!(lens(&b.sent()), [packets(20)]);
    b.hear(0, request, &[]);
    assert_eq!(lens(&b.sent()), vec![packets(1); 20]);
}

#[test]
fn an_ack_for_many_packets_does_not_wait_for_the_program_however_few_fragments_they_were() {
    let mut b = receiver(2);
    b.ack_delay = AckDelay::ForProgram;
    fragment(&mut b, 0, ONLY, &bytes(0, 10 * MTU));
    assert_eq!(b.rc.held(), AckDelay::ForProgram, "it may leave with a reply");
    fragment(&mut b, 10, ONLY, &bytes(0, 10 * MTU));
    assert_eq!(b.rc.held(), AckDelay::Briefly);
}
