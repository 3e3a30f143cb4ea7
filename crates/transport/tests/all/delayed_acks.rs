//! When a responder's ACKs leave: one for all that came, held back for the program's reply, never
//! lost.

use crate::support::*;
use transport::rc::AckDelay;
use wire::roce::{Op, WriteAt};

#[test]
fn acks_between_two_fills_become_one() {
    let mut b = responder_with(3);
    for i in 0..3 {
        b.hear(i, ONLY, &[1]);
    }
    assert_eq!(answers(&mut b), [(2, ack(3))]);
}

#[test]
fn an_ack_that_was_held_leaves_last_and_with_the_reply() {
    let mut b = responder_with(2);
    b.ack_delay = AckDelay::ForProgram;
    b.hear(0, ONLY, &[1]);
    assert_eq!(b.sent(), [], "the program is being told");
    b.post(send(7, sge(0, 0, 8)));
    let sent = b.sent();
    assert_eq!(sent.iter().map(|s| s.op).collect::<Vec<_>>(), [ONLY, ack(1)]);
    assert_eq!(b.rc.held(), AckDelay::No);
}

#[test]
fn an_ack_that_was_held_is_not_lost_with_the_queue_pair() {
    let mut b = responder_with(2);
    b.ack_delay = AckDelay::ForProgram;
    b.hear(0, ONLY, &[1]);
    let mut batch = transport::TxBatch::new();
    b.rc.on_exit(&mut batch, &mut b.cx);
    assert_eq!(batch.len(), 1);
    b.hear(1, ONLY, &[1]);
    b.rc.fail(&mut b.cx);
    assert_eq!(answers(&mut b), [(1, ack(2))]);
}

#[test]
fn an_ack_that_was_held_leaves_when_it_is_released() {
    let mut b = responder_with(2);
    b.ack_delay = AckDelay::ForProgram;
    b.hear(0, ONLY, &[1]);
    b.hear(1, ONLY, &[1]);
    assert_eq!(answers(&mut b), []);
    b.rc.release();
    assert_eq!(answers(&mut b), [(1, ack(2))]);
}

#[test]
fn an_ack_waits_for_the_program_only_where_the_program_is_told_of_something() {
    let mut b = responder_with(1);
    b.ack_delay = AckDelay::ForProgram;
    b.hear(0, Op::Write(WriteAt::Only(reth(1, 0, 4), None)), &[1; 4]);
    assert_eq!(b.rc.held(), AckDelay::Briefly);
    b.hear(1, ONLY, &[1]);
    assert_eq!(b.rc.held(), AckDelay::ForProgram);
    assert_eq!(answers(&mut b), []);
    b.hear(2, ONLY, &[1]);
    assert_eq!(answers(&mut b), [(1, ack(2)), (2, rnr(12, 2))], "nothing but a lone ACK waits");
}

#[test]
fn an_ack_for_many_messages_does_not_wait_for_the_program() {
    let mut b = responder_with(20);
    b.ack_delay = AckDelay::ForProgram;
    for psn in 0..20 {
        b.hear(psn, ONLY, &[1]);
        assert_eq!(b.rc.held(), if psn < 15 { AckDelay::ForProgram } else { AckDelay::Briefly });
        assert_eq!(answers(&mut b), []);
    }
    b.rc.release();
    assert_eq!(answers(&mut b), [(19, ack(20))]);
}

#[test]
fn one_ack_answers_for_all_that_was_read_at_once() {
    let mut b = responder_with(0);
    b.ack_delay = AckDelay::Briefly;
    for psn in 0..3 {
        b.hear(psn, Op::Write(WriteAt::Only(reth(1, 0, 4), None)), &[1; 4]);
        assert_eq!(answers(&mut b), []);
    }
    b.rc.release();
    assert_eq!(answers(&mut b), [(2, ack(3))]);
}
