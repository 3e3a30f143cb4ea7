//! The requester against a scripted peer: what it sends, and what it makes of every kind of answer.

use std::time::Duration;

use crate::support::*;
use transport::op::{AtomicOp, Data, SendOp, Side, Status};
use transport::rc::State;
use wire::Rkey;
use wire::bth::NakCode;
use wire::roce::{Op, ReadAt, SendAt, SendTail, WriteAt};

/// What the tests' timeout code of 14 means.
const TIMEOUT: Duration = Duration::from_nanos(67_108_864);

const OK: Status = Status::Success;

#[test]
fn a_send_goes_out_in_packets_and_completes_with_its_ack() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 600)));
    let sent = a.sent();
    assert_eq!(ops(&sent), [SendAt::First, SendAt::Middle, SendAt::Last(SendTail::None)].map(Op::Send));
    assert_eq!(psns(&sent), [0, 1, 2]);
    assert_eq!(sent.iter().map(|s| s.bth.ack_request).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(sent.iter().flat_map(|s| s.payload.clone()).collect::<Vec<_>>(), bytes(0, 600));
    a.hear(1, ack(0), &[]);
    assert_eq!(a.completed(), []);
    a.hear(2, ack(1), &[]);
    assert_eq!(a.completed(), [(1, OK)]);
    assert_eq!(a.rc.deadline(), None);
}

#[test]
fn a_message_without_bytes_takes_one_packet() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 0)));
    a.post(write(2, sge(0, 0, 0), sge(9, 0, 0), None));
    a.post(read(3, sge(9, 0, 0), sge(0, 0, 0)));
    assert_eq!(psns(&a.sent()), [0, 1, 2]);
    a.hear(2, Op::ReadResponse(ReadAt::Only(aeth(3))), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn the_solicited_bit_is_in_the_last_packet_of_sends_and_of_writes_with_immediate_only() {
    let mut a = requester();
    for mut wr in [
        send(1, sge(0, 0, 300)),
        write(2, sge(0, 0, 10), sge(1, 0, 10), None),
        write(3, sge(0, 0, 10), sge(1, 0, 10), Some(*b"imm!")),
    ] {
        wr.solicited = true;
        a.post(wr);
    }
    assert_eq!(a.sent().iter().map(|s| s.bth.solicited).collect::<Vec<_>>(), [false, true, false, true]);
}

#[test]
fn unsignaled_requests_complete_in_silence_but_their_errors_do_not() {
    let mut a = requester();
    for i in 0..3 {
        a.post(transport::op::SendWr { signaled: i == 1, ..send(i, sge(0, 0, 8)) });
    }
    a.sent();
    a.hear(1, ack(2), &[]);
    assert_eq!(a.completed(), [(1, OK)]);
    a.hear(2, nak(NakCode::RemoteOperational, 2), &[]);
    assert_eq!(a.completed(), [(2, Status::RemoteOperation)]);
}

/// Historic bug 10: a fence that waited for the wrong operations, and was resumed too early.
#[test]
fn a_fence_waits_for_reads_and_atomics_before_it_and_for_nothing_else() {
    let mut a = requester();
    let fenced = |wr| transport::op::SendWr { fence: true, ..wr };
    a.post(send(1, sge(0, 0, 8)));
    a.post(fenced(send(2, sge(0, 0, 8))));
    assert_eq!(psns(&a.sent()), [0, 1], "a send is nothing to wait for");
    a.post(read(3, sge(0, 0, 2 * MTU as u32), sge(1, 0, 2 * MTU as u32)));
    a.post(atomic(4, AtomicOp::FetchAdd(1), sge(0, 0, 8), sge(1, 0, 8)));
    a.post(fenced(send(5, sge(0, 0, 8))));
    a.post(read(6, sge(0, 0, 8), sge(1, 0, 8)));
    assert_eq!(psns(&a.sent()), [2, 4]);
    a.hear(1, ack(2), &[]);
    assert_eq!(psns(&a.sent()), [], "both are still out");
    a.hear(2, Op::ReadResponse(ReadAt::First(aeth(3))), &[0; MTU]);
    a.hear(3, Op::ReadResponse(ReadAt::Last(aeth(3))), &[0; MTU]);
    assert_eq!(psns(&a.sent()), [], "the atomic is still out");
    a.hear(4, Op::AtomicAcknowledge(aeth(4), 0), &[]);
    assert_eq!(psns(&a.sent()), [5, 6]);
    // The READ after it is no reason to hold it back when it goes out again.
    a.wait(TIMEOUT);
    assert_eq!(psns(&a.sent()), [5, 6]);
}

#[test]
fn ghost_acks_are_ignored() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    a.post(send(2, sge(0, 0, 8)));
    a.sent();
    a.hear(0, ack(1), &[]);
    assert_eq!(a.completed(), [(1, OK)]);
    for psn in [-5, -1, 0, 2, 100, 1 << 23] {
        a.hear(psn, ack(9), &[]);
        a.hear(psn, nak(NakCode::RemoteAccess, 9), &[]);
        a.hear(psn, rnr(1, 9), &[]);
        a.hear(psn, Op::ReadResponse(ReadAt::Middle), &[0; MTU]);
        a.hear(psn, Op::AtomicAcknowledge(aeth(3), 0), &[]);
    }
    assert_eq!((a.completed(), a.rc.state(), a.sent()), (vec![], State::Rts, vec![]));
    a.hear(1, ack(2), &[]);
    assert_eq!(a.completed(), [(2, OK)]);
}

#[test]
fn bad_responses_fail_the_queue_pair() {
    let read_first = |a: &mut End| a.post(read(1, sge(0, 0, 600), sge(1, 0, 600)));
    let send_first = |a: &mut End| a.post(send(1, sge(0, 0, 8)));
    let atomic_first = |a: &mut End| a.post(atomic(1, AtomicOp::FetchAdd(1), sge(0, 0, 8), sge(1, 0, 8)));
    type Post<'a> = &'a dyn Fn(&mut End);
    let response = |at| Op::ReadResponse(at);
    let cases: [(&str, Post<'_>, Op, &[u8]); 9] = [
        ("short", &read_first, response(ReadAt::First(aeth(1))), &[0; MTU - 1]),
        ("long", &read_first, response(ReadAt::First(aeth(1))), &[0; MTU + 1]),
        ("ends too early", &read_first, response(ReadAt::Only(aeth(1))), &[0; MTU]),
        ("begins with the middle", &read_first, response(ReadAt::Middle), &[0; MTU]),
        ("begins with the end", &read_first, response(ReadAt::Last(aeth(1))), &[0; 88]),
        ("atomic answer to a read", &read_first, Op::AtomicAcknowledge(aeth(1), 0), &[]),
        ("atomic answer to a send", &send_first, Op::AtomicAcknowledge(aeth(1), 0), &[]),
        ("data for a send", &send_first, response(ReadAt::Only(aeth(1))), &[0; 8]),
        ("data for an atomic", &atomic_first, response(ReadAt::Only(aeth(1))), &[0; 8]),
    ];
    for (name, post, op, payload) in cases {
        let mut a = requester();
        post(&mut a);
        a.post(send(2, sge(0, 0, 8)));
        a.sent();
        a.hear(0, op, payload);
        assert_eq!(a.completed(), [(1, Status::BadResponse), (2, Status::WrFlush)], "{name}");
        assert_eq!(a.rc.state(), State::Error, "{name}");
    }
}

/// Historic bug 6, as it would look here: more data than the READ asked for.
#[test]
fn a_read_response_that_does_not_end_where_the_read_ends_is_bad() {
    let mut a = requester();
    a.post(read(1, sge(0, 0, 2 * MTU as u32), sge(1, 0, 2 * MTU as u32)));
    a.sent();
    a.hear(0, Op::ReadResponse(ReadAt::First(aeth(1))), &[1; MTU]);
    a.hear(1, Op::ReadResponse(ReadAt::Middle), &[1; MTU]);
    assert_eq!(a.completed(), [(1, Status::BadResponse)]);
}

#[test]
fn a_read_response_longer_than_the_read_is_bad_and_writes_nothing_beyond() {
    let (whole, more) = (&[9; MTU][..], &[9; 9][..]);
    type Responses<'a> = &'a [(ReadAt, &'a [u8])];
    let cases: [(&str, u32, Responses<'_>); 4] = [
        ("only", 8, &[(ReadAt::Only(aeth(1)), more)]),
        ("first without an end", 8, &[(ReadAt::First(aeth(1)), whole)]),
        ("last", MTU as u32 + 8, &[(ReadAt::First(aeth(1)), whole), (ReadAt::Last(aeth(1)), more)]),
        ("middle", MTU as u32 + 8, &[(ReadAt::First(aeth(1)), whole), (ReadAt::Middle, whole)]),
    ];
    for (name, len, responses) in cases {
        let mut a = requester();
        a.post(read(1, sge(1, 0, len), sge(0, 0, len)));
        a.sent();
        for (psn, (at, payload)) in (0..).zip(responses) {
            a.hear(psn, Op::ReadResponse(*at), payload);
        }
        assert_eq!(a.completed(), [(1, Status::BadResponse)], "{name}");
        assert!(a.cx.memory.bytes(1)[len as usize..].iter().all(|b| *b == 0), "{name}");
    }
}

#[test]
fn an_ack_after_an_unanswered_read_is_an_implied_nak_once() {
    let mut a = requester();
    a.post(read(1, sge(0, 0, 8), sge(1, 0, 8)));
    a.post(send(2, sge(0, 0, 8)));
    a.post(send(3, sge(0, 0, 8)));
    assert_eq!(psns(&a.sent()), [0, 1, 2]);
    a.hear(1, ack(2), &[]);
    assert_eq!(psns(&a.sent()), [0, 1, 2], "the response was lost: from the read on, again");
    a.hear(2, ack(3), &[]);
    assert_eq!(psns(&a.sent()), [], "what else follows the lost response says nothing new");
    assert!(!a.rc.take_path_suspect());
    a.hear(0, Op::ReadResponse(ReadAt::Only(aeth(1))), &[5; 8]);
    a.hear(2, ack(3), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_read_is_resumed_from_the_first_response_that_is_missing() {
    let mut a = requester();
    a.post(read(1, sge(0, 0, 5 * MTU as u32), sge(1, 0, 5 * MTU as u32)));
    a.sent();
    a.hear(0, Op::ReadResponse(ReadAt::First(aeth(1))), &bytes(0, MTU));
    a.hear(1, Op::ReadResponse(ReadAt::Middle), &bytes(MTU, MTU));
    a.hear(3, Op::ReadResponse(ReadAt::Middle), &bytes(3 * MTU, MTU));
    let sent = a.sent();
    let Op::ReadRequest(reth) = sent[0].op else { panic!("{sent:?}") };
    assert_eq!((psns(&sent), reth.addr - BASE, reth.length as usize), (vec![2], 512, 3 * MTU));
    // A late response to the first request, then those to the second.
    a.hear(2, Op::ReadResponse(ReadAt::Middle), &bytes(2 * MTU, MTU));
    a.hear(3, Op::ReadResponse(ReadAt::Middle), &bytes(3 * MTU, MTU));
    a.hear(4, Op::ReadResponse(ReadAt::Last(aeth(1))), &bytes(4 * MTU, MTU));
    assert_eq!(a.completed(), [(1, OK)]);
    assert_eq!(a.cx.memory.bytes(1)[..5 * MTU], bytes(0, 5 * MTU));
}

#[test]
fn a_write_is_resumed_in_the_middle_at_the_psn_of_the_nak() {
    let mut a = requester();
    a.post(write(1, sge(0, 0, 5 * MTU as u32), sge(1, 0, 5 * MTU as u32), None));
    a.sent();
    a.hear(2, nak(NakCode::PsnSequence, 0), &[]);
    let sent = a.sent();
    assert_eq!(psns(&sent), [2, 3, 4]);
    assert_eq!(ops(&sent), [WriteAt::Middle, WriteAt::Middle, WriteAt::Last(None)].map(Op::Write));
    assert_eq!(sent[0].payload, bytes(2 * MTU, MTU));
    assert!(!a.rc.take_path_suspect());
    a.hear(4, ack(1), &[]);
    assert_eq!(a.completed(), [(1, OK)]);
}

#[test]
fn the_psn_retry_limit_is_reached() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    a.post(send(2, sge(0, 0, 8)));
    for _ in 0..3 {
        assert_eq!(psns(&a.sent()), [0, 1]);
        a.hear(0, nak(NakCode::PsnSequence, 0), &[]);
        a.hear(0, nak(NakCode::PsnSequence, 0), &[]);
        assert_eq!(a.completed(), []);
    }
    a.sent().clear();
    a.hear(0, nak(NakCode::PsnSequence, 0), &[]);
    assert_eq!(a.completed(), [(1, Status::RetryExceeded), (2, Status::WrFlush)]);
}

#[test]
fn the_psn_retry_limit_is_not_reached_while_there_is_progress() {
    let mut a = requester();
    for i in 0..4 {
        a.post(send(i, sge(0, 0, 8)));
        for _ in 0..3 {
            assert_eq!(psns(&a.sent()), [i as i32]);
            a.hear(i as i64, nak(NakCode::PsnSequence, 0), &[]);
        }
        a.sent();
        a.hear(i as i64, ack(i as u32 + 1), &[]);
        assert_eq!(a.completed(), [(i, OK)]);
    }
}

#[test]
fn the_local_ack_timeout_limit_is_reached() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    a.post(send(2, sge(0, 0, 8)));
    for _ in 0..4 {
        assert_eq!(psns(&a.sent()), [0, 1]);
        assert_eq!(a.completed(), []);
        a.wait(TIMEOUT - Duration::from_nanos(1));
        assert_eq!(psns(&a.sent()), [], "not before its time");
        assert_eq!(a.wait_for_deadline(), Duration::from_nanos(1));
    }
    assert_eq!(a.completed(), [(1, Status::RetryExceeded), (2, Status::WrFlush)]);
    assert_eq!((a.sent(), a.rc.deadline()), (vec![], None));
}

#[test]
fn the_local_ack_timeout_limit_is_not_reached_while_there_is_progress() {
    let mut a = requester();
    for i in 0..4 {
        a.post(send(i, sge(0, 0, 8)));
        for _ in 0..3 {
            a.sent();
            a.wait_for_deadline();
            assert!(a.rc.take_path_suspect());
            assert!(!a.rc.take_path_suspect());
        }
        assert_eq!(psns(&a.sent()), [i as i32]);
        a.hear(i as i64, ack(i as u32 + 1), &[]);
        assert_eq!(a.completed(), [(i, OK)]);
    }
}

#[test]
fn what_lies_unread_is_not_sent_again_and_its_time_does_not_count() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    assert_eq!(psns(&a.sent()), [0]);
    a.cx.has_unread = true;
    for _ in 0..20 {
        a.wait_for_deadline();
        assert_eq!(a.sent(), []);
    }
    // The peer's process took it, and says nothing.
    a.cx.has_unread = false;
    for _ in 0..3 {
        a.wait_for_deadline();
        assert_eq!(psns(&a.sent()), [0]);
    }
    a.wait_for_deadline();
    assert_eq!(a.completed(), [(1, Status::RetryExceeded)]);
}

#[test]
fn a_timeout_code_of_0_waits_for_ever() {
    let mut a = requester_with(|r| r.timeout = 0);
    a.post(send(1, sge(0, 0, 8)));
    a.sent();
    assert_eq!(a.rc.deadline(), None);
}

#[test]
fn the_rnr_retry_limit_is_reached() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    a.post(send(2, sge(0, 0, 8)));
    for _ in 0..2 {
        assert_eq!(psns(&a.sent()), [0, 1]);
        a.hear(0, rnr(12, 0), &[]);
        a.hear(0, rnr(12, 0), &[]);
        assert_eq!(psns(&a.sent()), []);
        assert_eq!(a.wait_for_deadline(), Duration::from_micros(640));
        assert_eq!(a.completed(), []);
    }
    a.sent();
    a.hear(0, rnr(12, 0), &[]);
    assert_eq!(a.completed(), [(1, Status::RnrRetryExceeded), (2, Status::WrFlush)]);
}

#[test]
fn the_rnr_retry_limit_is_not_reached_while_there_is_progress_nor_ever_with_7() {
    let mut a = requester();
    for i in 0..4 {
        a.post(send(i, sge(0, 0, 8)));
        for _ in 0..2 {
            a.sent();
            a.hear(i as i64, rnr(1, 0), &[]);
            assert_eq!(a.wait_for_deadline(), Duration::from_micros(10));
        }
        a.sent();
        a.hear(i as i64, ack(0), &[]);
        assert_eq!(a.completed(), [(i, OK)]);
    }
    let mut a = requester_with(|r| r.rnr_retry = 7);
    a.post(send(1, sge(0, 0, 8)));
    for _ in 0..100 {
        assert_eq!(psns(&a.sent()), [0]);
        a.hear(0, rnr(0, 0), &[]);
        assert_eq!(a.wait_for_deadline(), Duration::from_micros(655_360));
    }
    assert_eq!(a.completed(), []);
}

/// Historic bug 8.
#[test]
fn the_retransmit_timer_does_not_defeat_the_rnr_wait() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    a.sent();
    // 655 ms, during which the timeout of 67 ms would have fired nine times and spent all tries.
    a.hear(0, rnr(0, 0), &[]);
    for _ in 0..9 {
        a.wait(TIMEOUT);
        assert_eq!(a.sent(), []);
    }
    a.wait_for_deadline();
    assert_eq!(psns(&a.sent()), [0]);
    assert!(!a.rc.take_path_suspect());
    a.hear(0, ack(1), &[]);
    assert_eq!(a.completed(), [(1, OK)]);
}

#[test]
fn naks_that_end_it_complete_what_came_before_then_fail_then_flush() {
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperation),
    ] {
        let mut a = requester();
        for i in 0..4 {
            a.post(send(i, sge(0, 0, 8)));
        }
        a.sent();
        a.hear(2, nak(code, 2), &[]);
        let flushed = (3, Status::WrFlush);
        assert_eq!(a.completed(), [(0, OK), (1, OK), (2, status), flushed]);
        a.post(send(9, sge(0, 0, 8)));
        assert_eq!(a.completed(), [(9, Status::WrFlush)]);
        assert_eq!(a.cx.window.share_of(u32::MAX), 64, "it has left the window");
    }
}

#[test]
fn an_rkey_violation_in_the_middle_of_a_read_fails_the_read() {
    let mut a = requester();
    a.post(read(1, sge(0, 0, 600), sge(1, 0, 600)));
    a.sent();
    a.hear(0, Op::ReadResponse(ReadAt::First(aeth(1))), &[0; MTU]);
    a.hear(2, nak(NakCode::RemoteAccess, 1), &[]);
    assert_eq!(a.completed(), [(1, Status::RemoteAccess)]);
}

#[test]
fn a_local_protection_fault_waits_its_turn() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 8)));
    a.post(send(2, sge(7, 0, 8)));
    a.post(send(3, sge(0, 0, 8)));
    assert_eq!(psns(&a.sent()), [0]);
    assert_eq!(a.completed(), []);
    a.hear(0, ack(1), &[]);
    assert_eq!(a.sent(), []);
    assert_eq!(a.completed(), [(1, OK), (2, Status::LocalProtection), (3, Status::WrFlush)]);
}

#[test]
fn a_local_protection_fault_of_a_read_shows_with_its_response() {
    let mut a = requester();
    a.post(read(1, sge(0, 0, 8), sge(7, 0, 8)));
    a.sent();
    a.hear(0, Op::ReadResponse(ReadAt::Only(aeth(1))), &[0; 8]);
    assert_eq!(a.completed(), [(1, Status::LocalProtection)]);
}

#[test]
fn a_message_longer_than_2_to_the_31_is_a_local_length_error() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, (1 << 31) + 1)));
    a.sent();
    assert_eq!(a.completed(), [(1, Status::LocalLength)]);
    let mut a = requester();
    a.post(write(1, sge(0, 0, 1 << 31), sge(1, 0, 0), None));
    assert_eq!(a.sent().len(), 64);
}

#[test]
fn inline_data_short_and_long_is_sent_from_the_copy() {
    let mut a = requester();
    for len in [5, 700] {
        let data = Data::inline(&bytes(3, len));
        a.post(transport::op::SendWr { data, ..send(1, sge(0, 0, 0)) });
        let got: Vec<u8> = a.sent().into_iter().flat_map(|s| s.payload).collect();
        assert_eq!(got, bytes(3, len));
    }
}

#[test]
fn a_draining_queue_finishes_what_has_begun() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 100 * MTU as u32)));
    a.post(send(2, sge(0, 0, 8)));
    a.sent();
    a.rc.drain();
    assert_eq!(a.rc.state(), State::Sqd);
    a.hear(63, ack(0), &[]);
    assert_eq!(a.sent().last().map(|s| s.psn), Some(99));
    assert!(!a.rc.drained());
    a.hear(99, ack(1), &[]);
    assert!(a.rc.drained());
    assert_eq!((a.completed(), a.sent()), (vec![(1, OK)], vec![]));
    a.rc.resume();
    assert_eq!(psns(&a.sent()), [100]);
}

#[test]
fn an_idle_queue_pair_is_small() {
    assert!(size_of::<transport::Rc>() < 1024, "{}", size_of::<transport::Rc>());
}

#[test]
fn completions_tell_what_they_are_for() {
    let mut a = requester();
    a.post(read(7, sge(0, 0, 8), sge(1, 0, 8)));
    a.post(transport::op::SendWr {
        op: SendOp::Write { addr: 0, rkey: Rkey(0), immediate: Some([1; 4]) },
        ..send(8, sge(0, 0, 8))
    });
    a.sent();
    a.hear(0, Op::ReadResponse(ReadAt::Only(aeth(1))), &[0; 8]);
    a.hear(1, ack(2), &[]);
    let (side, c) = a.cx.completions[0];
    assert_eq!((side, c.opcode as u8, c.byte_len, c.qpn.get()), (Side::Send, 2, 8, 0x11));
    assert_eq!(a.cx.completions[1].1.opcode as u8, 1);
}
