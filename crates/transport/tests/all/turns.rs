//! What takes long is done turn by turn: what a peer asks for, and what is copied to or from its
//! memory.

use std::ops::Range;

use crate::support::*;
use transport::op::{QpEvent, Status};
use transport::rc::State;
use wire::bth::{NakCode, Reth};
use wire::roce::{Op, WriteAt};
use wire::{Mtu, Rkey};

const MTU: usize = 4096;
/// READ responses of a turn.
const QUANTUM_BYTES: usize = 128;
const LEN: u32 = 4 << 20;

fn responder() -> End {
    End::new(Mtu::M4096, LEN as usize, rts())
}
fn read_all() -> Op {
    let s = sge(0, 0, LEN);
    Op::ReadRequest(Reth { addr: s.addr, rkey: s.lkey, length: LEN })
}

/// Historic bug 23.
#[test]
fn a_long_read_is_answered_turn_by_turn() {
    let mut b = responder();
    b.hear(0, read_all(), &[]);
    for _ in 0..LEN as usize / MTU / QUANTUM_BYTES {
        assert_eq!(b.fill_quantum().len(), QUANTUM_BYTES);
        assert!(b.fill_quantum().is_empty(), "until the next turn");
        b.rc.begin_quantum();
    }
    assert!(b.fill_quantum().is_empty() && !b.rc.needs_reschedule());
}

#[test]
fn however_many_reads_come_a_turn_answers_no_more() {
    let mut b = responder();
    let part = |i: u64| {
        let s = sge(0, i * (LEN as u64 / 4), LEN / 4);
        Op::ReadRequest(Reth { addr: s.addr, rkey: s.lkey, length: LEN / 4 })
    };
    let mut sent = 0;
    for i in 0..4 {
        b.hear(i * 256, part(i as u64), &[]);
        sent += b.fill_quantum().len();
    }
    for _ in 0..1000 {
        b.hear(0, part(0), &[]);
        b.hear(256, part(1), &[]);
        sent += b.fill_quantum().len();
    }
    assert_eq!(sent, QUANTUM_BYTES);
    assert!(b.rc.needs_reschedule());
}

#[test]
fn our_own_requests_leave_while_a_long_read_waits_for_its_turn() {
    let mut b = responder();
    b.hear(0, read_all(), &[]);
    b.fill_quantum();
    b.post(send(1, sge(1, 0, 8)));
    assert_eq!(b.fill_quantum().len(), 1);
}

#[test]
fn what_comes_after_a_long_read_is_answered_after_it() {
    let mut b = responder();
    b.hear(0, read_all(), &[]);
    b.fill_quantum();
    let s = sge(1, 0, 4);
    b.hear(1024, Op::Write(WriteAt::Only(Reth { addr: s.addr, rkey: s.lkey, length: 4 }, None)), &[1; 4]);
    assert!(b.fill_quantum().is_empty());
    b.rc.begin_quantum();
    assert_eq!(psns(&b.sent()), (QUANTUM_BYTES as i32..=1024).collect::<Vec<_>>());
}

#[test]
fn a_request_that_ends_the_connection_does_not_cut_off_the_answers_before_it() {
    let mut b = responder();
    b.hear(0, read_all(), &[]);
    b.fill_quantum();
    let s = sge(1, 0, 4);
    let reth = Reth { addr: s.addr, rkey: Rkey(3), length: 4 };
    b.hear(1024, Op::Write(WriteAt::Only(reth, None)), &[1; 4]);
    assert_eq!((b.rc.state(), b.events()), (State::Error, vec![QpEvent::AccessError]));
    // The adapter takes note.
    b.rc.fail(&mut b.cx);
    b.rc.begin_quantum();
    let sent = b.sent();
    assert_eq!(psns(&sent), (QUANTUM_BYTES as i32..=1024).collect::<Vec<_>>());
    assert_eq!(sent.last().map(|s| s.op), Some(nak(NakCode::RemoteAccess, 1)));
}

/// An end with regions of so many bytes, which reaches the peer's memory.
fn reaching(len: u32) -> End {
    let mut end = End::proven(Mtu::M4096, len as usize, rts(), false);
    end.cx.reach = Some(TestPeerMemory::default());
    end
}

fn post_writes(end: &mut End, marks: Range<u64>, len: u32) {
    marks.for_each(|n| end.post(write(n, sge(0, 0, len), sge(1, 0, len), None)));
}

#[test]
fn a_list_of_long_writes_is_copied_turn_by_turn() {
    const LONG: u32 = 3 << 20;
    let mut a = reaching(LONG);
    post_writes(&mut a, 0..8, LONG);
    // The third one ends the 8 MiB of a turn.
    for (done, more) in [(3, true), (3, true), (2, false)] {
        assert!(a.fill_quantum().is_empty());
        assert_eq!((a.completed().len(), a.rc.needs_reschedule()), (done, more));
        assert!(a.fill_quantum().is_empty() && a.completed().is_empty(), "until the next turn");
        a.rc.begin_quantum();
    }
    assert_eq!(a.cx.reach.as_ref().unwrap().done, Vec::from_iter(0..8));
    // What is no such request does not wait for a turn.
    post_writes(&mut a, 8..11, LONG);
    a.post(send(11, sge(0, 0, 8)));
    assert_eq!((a.fill_quantum().len(), a.rc.needs_reschedule()), (1, false));
}

#[test]
fn a_request_that_waits_for_its_turn_is_flushed_when_the_connection_fails() {
    const LONG: u32 = 8 << 20;
    let mut a = reaching(LONG);
    post_writes(&mut a, 0..3, LONG);
    assert!(a.fill_quantum().is_empty() && a.rc.needs_reschedule());
    a.rc.fail(&mut a.cx);
    assert!(!a.rc.needs_reschedule());
    a.rc.begin_quantum();
    assert!(a.fill().is_empty());
    let flushed = Status::WrFlush;
    assert_eq!(a.completed(), [(0, Status::Success), (1, flushed), (2, flushed)]);
}
