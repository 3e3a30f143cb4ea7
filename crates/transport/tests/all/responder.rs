//! The responder against a scripted peer: what it executes, what it answers, what it refuses and
//! how.

use crate::support::*;
use transport::op::{QpEvent, Side, Status, Tail};
use transport::rc::{AckDelay, OutOfOrder, State};
use wire::bth::{AtomicEth, Feth, NakCode, Reth};
use wire::roce::{Op, ReadAt, SendAt, SendTail, WriteAt};
use wire::{Mtu, Rkey};

const FIRST: Op = Op::Send(SendAt::First);
const MIDDLE: Op = Op::Send(SendAt::Middle);
const LAST: Op = Op::Send(SendAt::Last(SendTail::None));

/// The end of a queue pair by a request: NAK, event, error state, silence afterwards.
fn refused(b: &mut End, psn: i32, msn: u32, code: NakCode, event: &[QpEvent], name: &str) {
    assert_eq!(answers(b), [(psn, nak(code, msn))], "{name}");
    assert_eq!((b.events(), b.rc.state()), (event.to_vec(), State::Error), "{name}");
    b.hear(i64::from(psn), ONLY, &[1]);
    assert_eq!(answers(b), [], "{name}");
}
fn invalid(b: &mut End, psn: i32, msn: u32, name: &str) {
    refused(b, psn, msn, NakCode::InvalidRequest, &[QpEvent::RequestError], name);
}

#[test]
fn a_send_of_three_packets_fills_one_receive() {
    let mut b = responder_with(1);
    b.hear_with(0, FIRST, &[1; MTU], false);
    b.hear_with(1, MIDDLE, &[2; MTU], false);
    assert_eq!(answers(&mut b), []);
    b.hear(2, Op::Send(SendAt::Last(SendTail::Immediate(*b"imm!"))), &[3; 5]);
    assert_eq!(answers(&mut b), [(2, ack(1))]);
    let (side, c) = b.cx.completions[0];
    assert_eq!((side, c.wr_id, c.status, c.byte_len), (Side::Receive, 0, Status::Success, 517));
    assert_eq!((c.opcode as u8, c.tail), (128, SendTail::Immediate(*b"imm!")));
    let memory = b.cx.memory.bytes(1);
    assert_eq!(
        (&memory[..256], &memory[256..512], &memory[512..518]),
        (&[1; MTU][..], &[2; MTU][..], &[3, 3, 3, 3, 3, 0][..])
    );
    assert_eq!(*b.cx.memory.tails.borrow(), [Tail::More, Tail::More, Tail::End]);
}

#[test]
fn the_first_packet_in_rtr_establishes_the_connection_once() {
    let mut b = End::in_rtr(Mtu::M256, 4096);
    b.post_receive(0, sge(1, 0, 8));
    b.post_receive(1, sge(1, 0, 8));
    b.hear(0, ONLY, &[1]);
    b.hear(1, ONLY, &[1]);
    assert_eq!(b.events(), [QpEvent::CommunicationEstablished]);
    assert_eq!(answers(&mut b), [(1, ack(2))]);
}

#[test]
fn the_solicited_bit_reaches_the_completion() {
    let mut b = responder_with(1);
    let bth = wire::bth::Bth { solicited: true, psn: b.rc.rq_psn(), ..Default::default() };
    let header = wire::roce::Header { bth, service: wire::roce::Service::Rc, op: ONLY };
    b.rc.receive(b.now, &wire::roce::Packet { header, payload: &[1] }, AckDelay::No, &mut b.cx);
    assert!(b.cx.completions[0].1.solicited);
}

#[test]
fn a_gap_is_nakked_once_until_the_missing_packet_comes() {
    let mut b = responder_with(5);
    b.hear(1, ONLY, &[1]);
    b.hear(2, ONLY, &[1]);
    b.hear(3, ONLY, &[1]);
    assert_eq!(answers(&mut b), [(0, nak(NakCode::PsnSequence, 0))]);
    b.hear(0, ONLY, &[1]);
    b.hear(2, ONLY, &[1]);
    assert_eq!(answers(&mut b), [(0, ack(1)), (1, nak(NakCode::PsnSequence, 1))]);
    assert_eq!(b.completed().len(), 1);
    b.hear(0, ONLY, &[1]);
    assert_eq!(b.rc.out_of_order(), OutOfOrder { duplicates: 1, early: 4 });
}

#[test]
fn duplicate_sends_and_writes_are_acknowledged_again_and_not_executed() {
    let mut b = responder_with(3);
    b.hear(0, ONLY, &[1]);
    b.hear(1, Op::Write(WriteAt::Only(reth(1, 3000, 4), None)), &[1; 4]);
    answers(&mut b);
    b.hear(0, ONLY, &[2]);
    assert_eq!(answers(&mut b), [(1, ack(2))]);
    b.hear(1, Op::Write(WriteAt::Only(reth(1, 3000, 4), None)), &[9; 4]);
    assert_eq!(answers(&mut b), [(1, ack(2))]);
    assert_eq!(b.cx.memory.bytes(1)[3000..3004], [1; 4]);
    assert_eq!(b.completed().len(), 1);
}

#[test]
fn each_round_of_duplicates_makes_the_path_suspect_once() {
    let mut b = responder_with(4);
    b.hear(0, ONLY, &[1]);
    b.hear(1, ONLY, &[1]);
    assert!(!b.rc.take_path_suspect());
    for _ in 0..3 {
        b.hear(0, ONLY, &[1]);
        assert!(b.rc.take_path_suspect(), "the peer lacks our answers");
        b.hear(1, ONLY, &[1]);
        assert!(!b.rc.take_path_suspect(), "the same round");
    }
    b.hear(2, ONLY, &[1]);
    assert!(!b.rc.take_path_suspect());
}

#[test]
fn a_write_lands_and_one_with_immediate_takes_a_receive_at_its_end() {
    let mut b = responder_with(1);
    b.hear(0, Op::Write(WriteAt::First(reth(1, 5, 300))), &[1; MTU]);
    assert_eq!(b.cx.receives.len(), 1);
    b.hear(1, Op::Write(WriteAt::Last(Some(*b"imm!"))), &[2; 44]);
    assert_eq!(answers(&mut b), [(1, ack(1))]);
    let c = b.cx.completions[0].1;
    assert_eq!((c.opcode as u8, c.byte_len, c.tail), (129, 300, SendTail::Immediate(*b"imm!")));
    assert_eq!(b.cx.memory.bytes(1)[4..7], [0, 1, 1]);
    assert_eq!(b.cx.memory.bytes(1)[304..306], [2, 0]);
    assert_eq!(*b.cx.memory.tails.borrow(), [Tail::More, Tail::End]);
}

#[test]
fn writes_and_reads_of_nothing_need_no_key() {
    let mut b = responder();
    let nowhere = Reth { addr: 7, rkey: Rkey(0), length: 0 };
    b.hear(0, Op::Write(WriteAt::Only(nowhere, None)), &[]);
    b.hear(1, Op::ReadRequest(nowhere), &[]);
    assert_eq!(answers(&mut b), [(0, ack(1)), (1, Op::ReadResponse(ReadAt::Only(aeth(2))))]);
}

#[test]
fn without_a_receive_a_send_meets_rnr_naks_and_silence_until_it_comes_again() {
    let mut b = responder();
    b.hear(0, ONLY, &[1]);
    b.hear(1, ONLY, &[2]);
    assert_eq!(answers(&mut b), [(0, rnr(12, 0))]);
    b.hear(0, ONLY, &[1]);
    assert_eq!(answers(&mut b), [(0, rnr(12, 0))], "each try is told");
    b.post_receive(7, sge(1, 0, 8));
    b.hear(0, ONLY, &[1]);
    assert_eq!(answers(&mut b), [(0, ack(1))]);
    assert_eq!(b.completed(), [(7, Status::Success)]);
}

#[test]
fn a_write_with_immediate_waits_for_its_receive_at_the_last_packet() {
    let mut b = responder();
    b.hear(0, Op::Write(WriteAt::First(reth(1, 0, 300))), &[1; MTU]);
    b.hear(1, Op::Write(WriteAt::Last(Some([1; 4]))), &[2; 44]);
    assert_eq!(answers(&mut b), [(0, ack(0)), (1, rnr(12, 0))]);
    b.post_receive(7, sge(1, 0, 0));
    b.hear(1, Op::Write(WriteAt::Last(Some([1; 4]))), &[2; 44]);
    assert_eq!(answers(&mut b), [(1, ack(1))]);
    assert_eq!(b.completed(), [(7, Status::Success)]);
}

#[test]
fn reads_are_answered_in_the_order_of_their_psns_with_everything_else() {
    let mut b = responder_with(2);
    b.hear(0, ONLY, &[1]);
    b.hear(1, Op::ReadRequest(reth(0, 10, 600)), &[]);
    b.hear(4, ONLY, &[1]);
    let sent = b.sent();
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4]);
    let response = [ReadAt::First(aeth(2)), ReadAt::Middle, ReadAt::Last(aeth(2))].map(Op::ReadResponse);
    assert_eq!(ops(&sent)[1..4], response);
    let data: Vec<u8> = sent[1..4].iter().flat_map(|s| s.payload.clone()).collect();
    assert_eq!(data, b.cx.memory.bytes(0)[10..610]);
    assert!(sent.iter().all(|s| !s.bth.ack_request));
}

#[test]
fn a_repeated_read_is_answered_from_where_it_asks() {
    let mut b = responder();
    b.hear(0, Op::ReadRequest(reth(0, 0, 600)), &[]);
    assert_eq!(psns(&b.sent()), [0, 1, 2]);
    b.hear(1, Op::ReadRequest(reth(0, 256, 344)), &[]);
    let sent = b.sent();
    assert_eq!(psns(&sent), [1, 2]);
    assert_eq!(sent[0].payload, b.cx.memory.bytes(0)[256..512]);
    // What reaches beyond the PSN expected is no repetition.
    b.hear(1, Op::ReadRequest(reth(0, 0, 600)), &[]);
    assert_eq!(psns(&b.sent()), []);
    assert_eq!(b.rc.state(), State::Rts);
}

#[test]
fn a_read_repeated_while_it_is_answered_takes_no_second_place() {
    let mut b = responder();
    for _ in 0..1000 {
        b.hear(0, Op::ReadRequest(reth(0, 0, 600)), &[]);
    }
    assert_eq!(psns(&b.sent()), [0, 1, 2]);
}

#[test]
fn a_read_asked_for_again_while_it_is_answered_goes_on_from_where_it_asks() {
    let mut b = responder();
    b.hear(0, Op::ReadRequest(reth(0, 0, 100 * MTU as u32)), &[]);
    let mut batch = transport::TxBatch::new();
    b.rc.fill(b.now, &mut batch, &mut b.cx);
    assert_eq!(batch.len(), 64);
    b.hear(10, Op::ReadRequest(reth(0, 10 * MTU as u64, 90 * MTU as u32)), &[]);
    let sent = b.sent();
    assert_eq!(psns(&sent), (10..100).collect::<Vec<_>>());
    assert_eq!(sent[0].op, Op::ReadResponse(ReadAt::First(aeth(1))));
    assert_eq!(sent[0].payload, b.cx.memory.bytes(0)[10 * MTU..11 * MTU]);
}

/// Historic bug 7: a NAK in the middle of a READ response restarted it for ever.
#[test]
fn a_nak_during_a_read_response_does_not_restart_it() {
    let mut b = responder();
    b.hear(0, Op::ReadRequest(reth(0, 0, 60_000)), &[]);
    let packets = 60_000_u32.div_ceil(256) as i32;
    let mut batch = transport::TxBatch::new();
    b.rc.fill(b.now, &mut batch, &mut b.cx);
    assert_eq!(batch.len(), 64);
    b.hear(i64::from(packets) + 5, ONLY, &[1]);
    let rest = b.sent();
    assert_eq!(psns(&rest), (64..=packets).collect::<Vec<_>>());
    assert_eq!(rest.last().map(|s| s.op), Some(nak(NakCode::PsnSequence, 1)));
    assert_eq!(answers(&mut b), []);
}

/// Historic bug 7, its second half: no acknowledgement at all when an error consumed no receive.
#[test]
fn an_error_that_consumes_no_receive_is_nakked_all_the_same() {
    let mut b = responder_with(1);
    b.hear_with(0, Op::Write(WriteAt::Only(reth(9, 0, 4), None)), &[1; 4], false);
    refused(&mut b, 0, 0, NakCode::RemoteAccess, &[QpEvent::AccessError], "write");
    assert_eq!(b.cx.receives.len(), 1);
}

#[test]
fn rkey_violations_are_remote_access_errors() {
    let read = |r| Op::ReadRequest(r);
    let only = |r| Op::Write(WriteAt::Only(r, None));
    let cases: [(&str, Op, &[u8]); 7] = [
        ("write, no such key", only(reth(9, 0, 4)), &[1; 4]),
        ("write beyond the end", only(reth(1, (1 << 16) - 3, 4)), &[1; 4]),
        ("write before the start", only(Reth { addr: 0, ..reth(1, 0, 4) }), &[1; 4]),
        ("write around the end of addresses", only(Reth { addr: u64::MAX - 1, ..reth(1, 0, 4) }), &[1; 4]),
        ("first of a write whose end is beyond", Op::Write(WriteAt::First(reth(1, 0, 1 << 20))), &[1; MTU]),
        ("read", read(reth(1, 0, (1 << 16) + 1)), &[]),
        ("atomic", Op::FetchAdd(AtomicEth { rkey: Rkey(3), ..eth(0, 1, 1) }), &[]),
    ];
    for (name, op, payload) in cases {
        let mut b = responder();
        b.hear(0, op, payload);
        refused(&mut b, 0, 0, NakCode::RemoteAccess, &[QpEvent::AccessError], name);
    }
}

#[test]
fn an_atomic_write_whose_length_is_not_eight_is_an_invalid_request() {
    for (length, payload) in [(0, 0), (4, 4), (8, 4), (4, 8), (8, 16), (16, 16), (u32::MAX, 8)] {
        let mut b = responder();
        b.hear(0, Op::AtomicWrite(reth(1, 8, length)), &vec![7; payload]);
        invalid(&mut b, 0, 0, &format!("length {length}, {payload} bytes"));
        assert_eq!(b.cx.memory.bytes(1)[..32], [0; 32]);
    }
}

#[test]
fn a_send_with_invalidate_takes_the_key_back_before_it_completes() {
    let mut b = responder_with(1);
    b.hear(0, Op::Send(SendAt::Only(SendTail::Invalidate(Rkey(7)))), &[1; 4]);
    assert_eq!(answers(&mut b), [(0, ack(1))]);
    assert_eq!(*b.cx.memory.invalidated.borrow(), [Rkey(7)]);
    let (_, c) = b.cx.completions[0];
    assert_eq!((c.status, c.tail), (Status::Success, SendTail::Invalidate(Rkey(7))));
}

#[test]
fn a_key_that_can_not_be_invalidated_is_a_remote_access_error() {
    let mut b = responder_with(1);
    b.hear(0, Op::Send(SendAt::Only(SendTail::Invalidate(Rkey(KEY)))), &[1; 4]);
    refused(&mut b, 0, 0, NakCode::RemoteAccess, &[QpEvent::AccessError], "a region's key");
    let (_, c) = b.cx.completions[0];
    assert_eq!(c.status, Status::RemoteInvalidRequest);
}

#[test]
fn a_read_whose_memory_vanishes_ends_in_a_nak() {
    let mut b = responder();
    b.hear(0, Op::ReadRequest(reth(0, 0, 60_000)), &[]);
    let mut batch = transport::TxBatch::new();
    b.rc.fill(b.now, &mut batch, &mut b.cx);
    b.cx.memory.regions[0].remote = false;
    b.post(send(1, sge(0, 0, 8)));
    refused(&mut b, 64, 1, NakCode::RemoteAccess, &[QpEvent::AccessError], "read");
    assert_eq!(b.completed(), [(1, Status::WrFlush)]);
}

#[test]
fn unexpected_opcodes_are_invalid_requests() {
    let wfirst = Op::Write(WriteAt::First(reth(1, 0, 600)));
    let wmiddle = Op::Write(WriteAt::Middle);
    let wlast = Op::Write(WriteAt::Last(None));
    let wonly = Op::Write(WriteAt::Only(reth(1, 0, 8), None));
    let read = Op::ReadRequest(reth(1, 0, 8));
    let full = &[1; MTU][..];
    let some = &[1; 8][..];
    let flush = |placement, selectivity| Op::Flush(Feth { placement, selectivity }, reth(1, 0, 8));
    let cases: [(&str, Option<Op>, Op, &[u8]); 22] = [
        ("middle of no send", None, MIDDLE, full),
        ("last of no send", None, LAST, some),
        ("middle of no write", None, wmiddle, full),
        ("last of no write", None, wlast, some),
        ("first in a send", Some(FIRST), FIRST, full),
        ("only in a send", Some(FIRST), ONLY, some),
        ("write in a send", Some(FIRST), wmiddle, full),
        ("new write in a send", Some(FIRST), wonly, some),
        ("read in a send", Some(FIRST), read, &[]),
        ("atomic in a send", Some(FIRST), Op::FetchAdd(eth(0, 1, 1)), &[]),
        ("send in a write", Some(wfirst), LAST, some),
        ("new send in a write", Some(wfirst), ONLY, some),
        ("read in a write", Some(wfirst), read, &[]),
        ("flush to nowhere", None, flush(0, 0), &[]),
        ("flush to an unknown place", None, flush(5, 0), &[]),
        ("flush of an unknown selectivity", None, flush(1, 2), &[]),
        ("flush with a payload", None, flush(1, 0), some),
        ("flush in a send", Some(FIRST), flush(1, 0), &[]),
        ("atomic write of other than 8 bytes", None, Op::AtomicWrite(reth(1, 0, 8)), &[1; 7]),
        ("atomic write whose RETH says other than 8", None, Op::AtomicWrite(reth(1, 0, 9)), &[1; 8]),
        ("misaligned atomic write", None, Op::AtomicWrite(reth(1, 4, 8)), &[1; 8]),
        ("atomic write in a write", Some(wfirst), Op::AtomicWrite(reth(1, 0, 8)), &[1; 8]),
    ];
    for (name, before, op, payload) in cases {
        let mut b = responder_with(3);
        let mut psn = 0;
        if let Some(before) = before {
            b.hear_with(0, before, full, false);
            psn = 1;
        }
        b.hear(psn.into(), op, payload);
        invalid(&mut b, psn, 0, name);
        let flushed = if before == Some(FIRST) { vec![(0, Status::WrFlush)] } else { vec![] };
        assert_eq!(b.completed(), flushed, "{name}");
    }
}

#[test]
fn payloads_of_the_wrong_length_are_invalid_requests() {
    let wfirst = |len| Op::Write(WriteAt::First(reth(1, 0, len)));
    let wonly = |len| Op::Write(WriteAt::Only(reth(1, 0, len), None));
    let wlast = Op::Write(WriteAt::Last(None));
    let wmiddle = Op::Write(WriteAt::Middle);
    let cases: [(&str, Option<Op>, Op, usize); 14] = [
        ("short first", None, FIRST, MTU - 1),
        ("long first", None, FIRST, MTU + 1),
        ("short middle", Some(FIRST), MIDDLE, 0),
        ("empty last", Some(FIRST), LAST, 0),
        ("long last", Some(FIRST), LAST, MTU + 1),
        ("long only", None, ONLY, MTU + 1),
        ("write shorter than it says", None, wonly(9), 8),
        ("write longer than it says", None, wonly(7), 8),
        ("write with no room for a last", None, wfirst(MTU as u32), MTU),
        ("write that goes on too long", Some(wfirst(600)), wlast, 100),
        ("write that ends too early", Some(wfirst(300)), wmiddle, MTU),
        ("write of more than 2^31", None, wfirst(u32::MAX), MTU),
        ("read of more than 2^31", None, Op::ReadRequest(reth(1, 0, (1 << 31) + 1)), 0),
        ("read with payload", None, Op::ReadRequest(reth(1, 0, 8)), 4),
    ];
    for (name, before, op, len) in cases {
        let mut b = responder_with(3);
        let mut psn = 0;
        if let Some(before) = before {
            b.hear_with(0, before, &[1; MTU], false);
            psn = 1;
        }
        b.hear(psn.into(), op, &vec![1; len]);
        invalid(&mut b, psn, 0, name);
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut b = responder();
    b.hear(0, Op::FetchAdd(eth(4, 1, 0)), &[]);
    invalid(&mut b, 0, 0, "atomic");
}

#[test]
fn a_receive_too_short_fails_on_both_sides() {
    let mut b = responder();
    b.post_receive(7, sge(1, 0, 300));
    b.hear_with(0, FIRST, &[1; MTU], false);
    b.hear(1, LAST, &[1; 100]);
    refused(&mut b, 1, 0, NakCode::InvalidRequest, &[], "too short");
    assert_eq!(b.completed(), [(7, Status::LocalLength)]);
}

#[test]
fn a_receive_without_memory_is_a_remote_operational_error() {
    let mut b = responder();
    b.post_receive(7, sge(5, 0, 300));
    b.hear(0, ONLY, &[1; 100]);
    refused(&mut b, 0, 0, NakCode::RemoteOperational, &[], "no memory");
    assert_eq!(b.completed(), [(7, Status::LocalProtection)]);
}

#[test]
fn a_receive_half_filled_is_flushed_with_the_queue_pair() {
    let mut b = responder_with(2);
    b.hear(0, FIRST, &[1; MTU]);
    b.rc.fail(&mut b.cx);
    assert_eq!(b.completed(), [(0, Status::WrFlush)]);
    assert_eq!(answers(&mut b), [(0, ack(0))], "what was executed is still acknowledged");
}

#[test]
fn an_address_that_floods_without_reading_answers_is_not_heard_for_ever() {
    let mut b = responder();
    // Alternate gap and progress, so that each adds an answer.
    for i in 0..5000 {
        b.hear(i, Op::Write(WriteAt::Only(reth(1, 0, 0), None)), &[]);
        b.hear(i + 2, ONLY, &[1]);
    }
    assert!(b.sent().len() <= 1024);
}

#[test]
fn any_packet_in_any_order_is_survived() {
    let mut rng = Rng(7);
    for _ in 0..300 {
        let mut b = responder_with(50);
        b.post(read(1, sge(0, 0, 3000), sge(1, 0, 3000)));
        b.post(write(2, sge(0, 0, 3000), sge(1, 0, 3000), None));
        for _ in 0..40 {
            let mut bytes = vec![0; 12 + rng.below(300) as usize];
            bytes.iter_mut().for_each(|b| *b = rng.next() as u8);
            bytes[0] = rng.below(0x20) as u8;
            bytes[1] = 0;
            let psn = (PSN + rng.below(8) as u32) & 0xff_ffff;
            bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
            b.hear_bytes(&bytes);
            if rng.chance(30) {
                b.fill();
            }
            if rng.chance(5) {
                b.wait(std::time::Duration::from_millis(100));
            }
        }
    }
}
