//! FLUSH (IBA annex A19): each once, answered when it is done, passed by nothing.

use crate::support::*;
use transport::op::{Fault, Flush, QpEvent, SendOp, Status};
use transport::rc::{RtsAttr, State};
use wire::bth::{Feth, NakCode, Reth};
use wire::roce::{Op, ReadAt, SendAt, SendTail, WriteAt};
use wire::{Mtu, Rkey};

const GLOBAL: Flush = Flush { global: true, persistent: false, whole: false };
const PERSISTENT: Flush = Flush { global: false, persistent: true, whole: false };
const OK: Status = Status::Success;

fn end() -> End {
    End::new(Mtu::M256, 4096, rts())
}

fn reth(offset: u64, length: u32) -> Reth {
    let s = sge(1, offset, length);
    Reth { addr: s.addr, rkey: s.lkey, length }
}

fn request(placement: u8, offset: u64) -> Op {
    Op::Flush(Feth { placement, selectivity: 0 }, reth(offset, 8))
}

/// A READ response of no bytes.
fn word(msn: u32) -> Op {
    Op::ReadResponse(ReadAt::Only(aeth(msn)))
}

fn answers(b: &mut End) -> Vec<(i32, Op)> {
    b.sent().into_iter().map(|s| (s.psn, s.op)).collect()
}

fn write_of_one(offset: u64) -> Op {
    Op::Write(WriteAt::Only(reth(offset, 1), None))
}

#[test]
fn a_flush_takes_one_packet_and_completes_with_an_answer_of_no_bytes() {
    let mut a = end();
    a.post(write(1, sge(0, 0, 300), sge(1, 0, 300), None));
    a.post(flush(2, sge(1, 0, 300), GLOBAL));
    a.post(flush(3, sge(1, 0, 0), Flush { whole: true, persistent: true, ..GLOBAL }));
    let sent = a.sent();
    assert_eq!(sent[2].op, Op::Flush(Feth { placement: 1, selectivity: 0 }, reth(0, 300)));
    assert_eq!(sent[3].op, Op::Flush(Feth { placement: 3, selectivity: 1 }, reth(0, 0)));
    assert!(sent[2..].iter().all(|s| s.bth.ack_request && s.payload.is_empty()));
    a.hear(2, word(2), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK)], "what was written before arrived before");
    a.hear(3, word(3), &[]);
    assert_eq!(a.completed(), [(3, OK)]);
}

#[test]
fn an_ack_in_place_of_the_answer_is_an_implied_nak() {
    let mut a = end();
    a.post(flush(1, sge(1, 0, 8), GLOBAL));
    a.post(send(2, sge(0, 0, 8)));
    assert_eq!(psns(&a.sent()), [0, 1]);
    a.hear(1, ack(2), &[]);
    assert_eq!(a.completed(), []);
    assert_eq!(psns(&a.sent()), [0, 1]);
}

#[test]
fn an_answer_with_bytes_is_bad() {
    let mut a = end();
    a.post(flush(1, sge(1, 0, 8), GLOBAL));
    a.sent();
    a.hear(0, word(1), &[1; 8]);
    assert_eq!(a.completed(), [(1, Status::BadResponse)]);
}

#[test]
fn a_flush_without_initiator_depth_fails_instead_of_waiting_for_ever() {
    let mut a = End::new(Mtu::M256, 64, RtsAttr { max_rd_atomic: 0, ..rts() });
    a.post(flush(1, sge(1, 0, 8), GLOBAL));
    assert_eq!(psns(&a.sent()), []);
    assert_eq!(a.completed(), [(1, Status::LocalQpOperation)]);
}

#[test]
fn what_is_done_at_once_is_answered_at_once_and_done_once() {
    let mut b = end();
    b.hear(0, request(1, 8), &[]);
    assert_eq!(answers(&mut b), [(0, word(1))]);
    b.hear(1, write_of_one(0), &[1]);
    b.hear(0, request(1, 8), &[]);
    assert_eq!(answers(&mut b), [(1, ack(2)), (0, word(2))], "asked for again");
    assert_eq!(b.cx.memory.flushed.borrow().len(), 1);
}

#[test]
fn flushes_take_no_place_among_the_reads() {
    let mut b = end();
    for psn in 0..20 {
        b.hear(psn, request(1, 8), &[]);
    }
    b.hear(20, Op::ReadRequest(reth(0, 8)), &[]);
    assert_eq!(answers(&mut b).len(), 21);
    assert_eq!(b.rc.state(), State::Rts);
}

#[test]
fn nothing_is_executed_while_a_flush_takes_long_and_what_came_is_asked_for() {
    let mut b = end();
    b.hear(0, write_of_one(0), &[1]);
    b.hear(1, request(2, 8), &[]);
    b.hear(2, Op::AtomicWrite(reth(16, 8)), &[7; 8]);
    b.hear(1, request(2, 8), &[]);
    assert_eq!(answers(&mut b), [(0, ack(1))]);
    assert_eq!(b.cx.memory.bytes(1)[16..24], [0; 8], "it did not pass");
    let task = b.rc.take_flush().expect("begun");
    assert_eq!((task.range.addr, task.how, task.srq), (reth(8, 8).addr, PERSISTENT, None));
    assert_eq!(b.rc.take_flush(), None, "told once");
    b.rc.flushed(Ok(()), &mut b.cx);
    assert_eq!(answers(&mut b), [(1, word(2)), (2, nak(NakCode::PsnSequence, 2))]);
    b.hear(2, Op::AtomicWrite(reth(16, 8)), &[7; 8]);
    assert_eq!(answers(&mut b), [(2, word(3))]);
    assert_eq!(b.cx.memory.flushed.borrow().len(), 1);
}

#[test]
fn a_flush_that_fails_late_is_a_remote_access_error() {
    let mut b = end();
    b.hear(0, request(2, 8), &[]);
    b.rc.take_flush().expect("begun");
    b.rc.flushed(Err(Fault::Unmapped), &mut b.cx);
    assert_eq!(answers(&mut b), [(0, nak(NakCode::RemoteAccess, 0))]);
    assert_eq!((b.events(), b.rc.state()), (vec![QpEvent::AccessError], State::Error));
}

#[test]
fn a_storage_that_fails_is_a_remote_operational_error() {
    let mut b = end();
    b.hear(0, request(2, 8), &[]);
    b.rc.take_flush().expect("begun");
    b.rc.flushed(Err(Fault::Storage), &mut b.cx);
    assert_eq!(answers(&mut b), [(0, nak(NakCode::RemoteOperational, 0))]);
    assert_eq!((b.events(), b.rc.state()), (vec![], State::Error));
    let mut a = end();
    a.post(flush(1, sge(1, 0, 8), PERSISTENT));
    a.sent();
    a.hear(0, nak(NakCode::RemoteOperational, 0), &[]);
    assert_eq!(a.completed(), [(1, Status::RemoteOperation)]);
}

/// A requester that asks seven times, a tenth of a second apart, would be gone before a storage
/// that takes a second is done.
#[test]
fn who_asks_again_and_again_for_a_flush_that_takes_long_is_told_to_wait() {
    let mut b = end();
    b.hear(0, request(2, 8), &[]);
    b.hear(0, request(2, 8), &[]);
    b.hear(0, request(2, 8), &[]);
    assert_eq!(answers(&mut b), []);
    for _ in 0..20 {
        b.hear(0, request(2, 8), &[]);
        assert_eq!(answers(&mut b), [(0, rnr(26, 0))]);
    }
    b.hear(1, write_of_one(0), &[1]);
    b.rc.take_flush().expect("begun once");
    b.rc.flushed(Ok(()), &mut b.cx);
    assert_eq!(answers(&mut b), [(0, word(1)), (1, nak(NakCode::PsnSequence, 1))]);
    assert_eq!(b.cx.memory.flushed.borrow().len(), 1, "begun once");
}

#[test]
fn a_flush_that_ends_after_its_queue_pair_failed_is_forgotten() {
    let mut b = end();
    b.hear(0, request(2, 8), &[]);
    b.rc.take_flush().expect("begun");
    b.rc.fail(&mut b.cx);
    b.rc.flushed(Ok(()), &mut b.cx);
    assert_eq!(answers(&mut b), []);
}

#[test]
fn a_flush_of_a_wrong_key_is_a_remote_access_error() {
    for whole in [0, 1] {
        let mut b = end();
        let wrong = Reth { rkey: Rkey(3), ..reth(0, 8) };
        b.hear(0, Op::Flush(Feth { placement: 1, selectivity: whole }, wrong), &[]);
        assert_eq!(answers(&mut b), [(0, nak(NakCode::RemoteAccess, 0))]);
    }
}

#[test]
fn a_nak_of_a_flush_fails_it() {
    let mut a = end();
    a.post(flush(1, sge(1, 0, 8), PERSISTENT));
    a.sent();
    a.hear(0, nak(NakCode::InvalidRequest, 0), &[]);
    assert_eq!(a.completed(), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn a_fence_waits_for_a_flush() {
    let mut a = end();
    a.post(flush(1, sge(1, 0, 8), GLOBAL));
    let op = SendOp::Send(SendTail::None);
    a.post(transport::op::SendWr { op, fence: true, ..send(2, sge(0, 0, 8)) });
    assert_eq!(psns(&a.sent()), [0]);
    a.hear(0, word(1), &[]);
    assert_eq!(ops(&a.sent()), [Op::Send(SendAt::Only(SendTail::None))]);
}
