//! The responder resources: how many READs and atomics a responder takes at once, and which results
//! it remembers.

use crate::support::*;
use transport::op::QpEvent;
use wire::bth::NakCode;
use wire::roce::{Op, ReadAt, WriteAt};

#[test]
fn atomics_execute_once_and_their_results_are_replayed() {
    let mut b = responder();
    b.hear(0, Op::FetchAdd(eth(8, 5, 0)), &[]);
    b.hear(1, Op::CompareSwap(eth(8, 77, 5)), &[]);
    b.hear(2, Op::CompareSwap(eth(8, 99, 5)), &[]);
    let expected = [(0, 0), (1, 5), (2, 77)].map(|(p, v)| (p, Op::AtomicAcknowledge(aeth(p as u32 + 1), v)));
    assert_eq!(answers(&mut b), expected);
    b.hear(0, Op::FetchAdd(eth(8, 5, 0)), &[]);
    b.hear(1, Op::CompareSwap(eth(8, 77, 5)), &[]);
    b.hear(1, Op::CompareSwap(eth(8, 77, 5)), &[]);
    let again = [(0, 0), (1, 5)].map(|(p, v)| (p, Op::AtomicAcknowledge(aeth(3), v)));
    assert_eq!(answers(&mut b), again);
    assert_eq!(b.cx.memory.bytes(1)[8..16], 77_u64.to_ne_bytes());
}

#[test]
fn results_of_atomics_are_kept_as_many_as_responder_resources() {
    let mut b = responder();
    for i in 0..5 {
        b.hear(i, Op::FetchAdd(eth(0, 1, 0)), &[]);
        answers(&mut b);
    }
    b.hear(0, Op::FetchAdd(eth(0, 1, 0)), &[]);
    assert_eq!(answers(&mut b), [], "forgotten: dropped, never executed again");
    b.hear(1, Op::FetchAdd(eth(0, 1, 0)), &[]);
    assert_eq!(answers(&mut b), [(1, Op::AtomicAcknowledge(aeth(5), 1))]);
}

#[test]
fn fewer_responder_resources_under_a_running_responder_lose_nothing_of_what_it_has_begun() {
    let mut b = responder();
    b.hear(0, Op::FetchAdd(eth(0, 1, 0)), &[]);
    b.hear(1, Op::FetchAdd(eth(0, 1, 0)), &[]);
    assert_eq!(answers(&mut b).len(), 2);
    b.hear(2, Op::ReadRequest(reth(0, 0, 600)), &[]);
    b.hear(5, Op::ReadRequest(reth(0, 0, 8)), &[]);
    b.rc.set_depths(4, 1);
    let sent = answers(&mut b);
    assert_eq!(sent.iter().map(|s| s.0).collect::<Vec<_>>(), [2, 3, 4, 5], "both READs are answered");
    b.hear(0, Op::FetchAdd(eth(0, 1, 0)), &[]);
    b.hear(1, Op::FetchAdd(eth(0, 1, 0)), &[]);
    let again: Vec<_> = answers(&mut b).into_iter().map(|s| s.1).collect();
    assert_eq!(again, [Op::AtomicAcknowledge(aeth(4), 0), Op::AtomicAcknowledge(aeth(4), 1)]);
    b.hear(6, Op::ReadRequest(reth(0, 0, 8)), &[]);
    assert_eq!(answers(&mut b).len(), 1, "one at a time from now on");
    b.hear(7, Op::ReadRequest(reth(0, 0, 8)), &[]);
    b.hear(8, Op::ReadRequest(reth(0, 0, 8)), &[]);
    assert_eq!(answers(&mut b)[1], (8, nak(NakCode::InvalidRequest, 6)));
}

#[test]
fn more_reads_and_atomics_than_responder_resources_are_an_invalid_request() {
    let mut b = responder();
    for i in 0..4 {
        b.hear(i, Op::ReadRequest(reth(0, 0, 8)), &[]);
    }
    b.hear(4, Op::FetchAdd(eth(0, 1, 0)), &[]);
    let sent = answers(&mut b);
    assert_eq!(sent.len(), 5);
    assert_eq!(sent[4], (4, nak(NakCode::InvalidRequest, 4)));
    assert_eq!(b.events(), [QpEvent::RequestError]);
}

#[test]
fn an_atomic_write_is_executed_once_and_answered_by_a_read_response_of_nothing() {
    let mut b = responder();
    b.hear(0, Op::AtomicWrite(reth(1, 8, 8)), &[7; 8]);
    let answer = |msn| {
        Op::ReadResponse(ReadAt::Only(wire::bth::Aeth {
            syndrome: wire::bth::Syndrome::Ack { credits: 31 },
            msn,
        }))
    };
    assert_eq!(answers(&mut b), [(0, answer(1))]);
    b.hear(1, Op::Write(WriteAt::Only(reth(1, 8, 8), None)), &[9; 8]);
    assert_eq!(answers(&mut b), [(1, ack(2))]);
    b.hear(0, Op::AtomicWrite(reth(1, 8, 8)), &[7; 8]);
    assert_eq!(answers(&mut b), [(0, answer(2))], "asked for again");
    assert_eq!(b.cx.memory.bytes(1)[..16], [[0; 8], [9; 8]].concat());
}
