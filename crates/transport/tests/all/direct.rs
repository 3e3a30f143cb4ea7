//! Requests that need no packet, because the peer's memory is reached from here.

use crate::support::*;
use transport::op::{AtomicOp, Data, Flush, SendOp, SendWr, Status};
use transport::rc::{AckDelay, RtsAttr};
use wire::Mtu;
use wire::roce::{Op, ReadAt};

const OK: Status = Status::Success;

fn reaching() -> End {
    let mut a = End::proven(Mtu::M256, 1 << 20, rts(), false);
    a.cx.reach = Some(TestPeerMemory::default());
    a.cx.reaches = true;
    a
}

fn write_of(wr_id: u64) -> SendWr {
    write(wr_id, sge(0, 0, 300), sge(1, 0, 300), None)
}

fn read_of(wr_id: u64) -> SendWr {
    read(wr_id, sge(1, 0, 300), sge(0, 0, 300))
}

fn done(a: &End) -> &[u64] {
    &a.cx.reach.as_ref().unwrap().done
}

#[test]
fn writes_and_reads_are_done_without_a_packet_in_their_order() {
    let mut a = reaching();
    for n in 0..6 {
        a.post(if n % 2 == 0 { write_of(n) } else { SendWr { signaled: n == 1, ..read_of(n) } });
    }
    assert_eq!(a.sent(), []);
    assert_eq!(done(&a), [0, 1, 2, 3, 4, 5]);
    assert_eq!(a.completed(), [(0, OK), (1, OK), (2, OK), (4, OK)]);
    assert_eq!((a.rc.outstanding(), a.rc.deadline(), a.rc.drained()), (0, None, true));
}

#[test]
fn one_that_is_alone_is_done_as_it_is_posted_and_tried_once_where_it_can_not_be() {
    let mut a = reaching();
    assert!(a.rc.execute_alone(&read_of(0), &mut a.cx));
    assert!(a.rc.execute_alone(&SendWr { signaled: false, ..write_of(1) }, &mut a.cx));
    assert_eq!((a.completed(), done(&a)), (vec![(0, OK)], &[0, 1][..]));
    a.cx.reach.as_mut().unwrap().refuses = true;
    assert!(!a.rc.execute_alone(&write_of(2), &mut a.cx));
    a.post(write_of(2));
    assert_eq!((psns(&a.sent()), a.cx.reach.as_ref().unwrap().refused), (vec![0, 1], 1));
    a.cx.reach.as_mut().unwrap().refuses = false;
    assert!(!a.rc.execute_alone(&write_of(3), &mut a.cx), "it is not alone");
    a.post(write_of(3));
    a.hear(1, ack(2), &[]);
    assert_eq!((a.sent(), a.completed()), (vec![], vec![(2, OK), (3, OK)]));
    assert!(!a.rc.execute_alone(&send(4, sge(0, 0, 8)), &mut a.cx), "a SEND takes a receive");
}

fn flush_of(wr_id: u64) -> SendWr {
    flush(wr_id, sge(1, 0, 300), Flush { global: true, persistent: true, whole: false })
}

#[test]
fn a_flush_behind_writes_is_done_with_them_and_so_are_writes_behind_it() {
    let mut a = reaching();
    for n in 0..4 {
        a.post(if n % 2 == 0 { write_of(n) } else { flush_of(n) });
    }
    assert_eq!((a.sent(), done(&a)), (vec![], &[0, 1, 2, 3][..]));
    assert_eq!(a.completed(), [(0, OK), (1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_flush_that_takes_the_peer_time_goes_by_a_packet_and_no_write_behind_it_waits_for_that() {
    let mut a = reaching();
    a.cx.reach.as_mut().unwrap().flushes_take_time = true;
    a.post(write_of(0));
    a.post(flush_of(1));
    a.post(write_of(2));
    assert_eq!((psns(&a.sent()), done(&a)), (vec![0, 1, 2], &[0][..]));
    assert_eq!(a.completed(), [(0, OK)]);
    // Nothing was refused.
    a.hear(0, Op::ReadResponse(ReadAt::Only(aeth(2))), &[]);
    a.hear(2, ack(3), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
    a.post(write_of(3));
    assert_eq!((a.sent(), done(&a)), (vec![], &[0, 3][..]));
}

#[test]
fn what_comes_behind_a_message_goes_by_packets_until_that_is_acknowledged() {
    let mut a = reaching();
    a.post(write_of(1));
    a.post(send(2, sge(0, 0, 8)));
    a.post(write_of(3));
    a.post(write(4, sge(0, 0, 8), sge(1, 0, 8), Some(*b"imm!")));
    // The first needs no packet; one of the SEND, two of the WRITE, one of the WRITE with immediate
    // data.
    assert_eq!(psns(&a.sent()), [0, 1, 2, 3]);
    a.hear(3, ack(3), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    a.post(write_of(5));
    assert_eq!(a.sent(), []);
    assert_eq!(done(&a), [1, 5]);
    assert_eq!(a.completed(), [(5, OK)]);
}

#[test]
fn writes_behind_writes_in_packets_wait_for_those_and_are_done_then() {
    let mut a = reaching();
    a.cx.reach = None;
    a.post(write_of(1));
    assert_eq!(psns(&a.sent()), [0, 1]);
    a.cx.reach = Some(TestPeerMemory::default());
    for n in 2..5 {
        a.post(write_of(n));
    }
    assert_eq!((a.sent(), done(&a)), (vec![], &[][..]));
    a.hear(1, ack(1), &[]);
    assert_eq!((a.sent(), done(&a)), (vec![], &[2, 3, 4][..]));
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK), (4, OK)]);
}

/// Whether the peer expects our numbers, and is connected to us, only its answer tells.
#[test]
fn nothing_is_done_without_a_packet_before_the_peer_has_acknowledged_one() {
    for first in [write_of(1), read_of(1), send(1, sge(0, 0, 8))] {
        let mut a = requester();
        a.cx.reach = Some(TestPeerMemory::default());
        assert!(!a.rc.begins_alone(false) && !a.rc.execute_alone(&first, &mut a.cx));
        let is_read = matches!(first.op, SendOp::Read { .. });
        a.post(first);
        let sent = a.sent();
        a.post(write_of(2));
        assert_eq!((a.sent().len(), done(&a)), (2, &[][..]));
        let last = i64::from(sent.last().unwrap().psn);
        match is_read {
            false => a.hear(last, ack(1), &[]),
            true => {
                a.hear(0, Op::ReadResponse(ReadAt::First(aeth(1))), &bytes(0, MTU));
                a.hear(1, Op::ReadResponse(ReadAt::Last(aeth(1))), &bytes(MTU, 300 - MTU));
            }
        }
        let last = if is_read { 3 } else { last + 2 };
        a.hear(last, ack(2), &[]);
        assert_eq!(a.completed(), [(1, OK), (2, OK)]);
        assert!(a.rc.begins_alone(true) && a.rc.execute_alone(&write_of(3), &mut a.cx));
        assert_eq!((a.completed(), done(&a)), (vec![(3, OK)], &[3][..]));
    }
}

/// IBA annex A19: an ATOMIC WRITE takes a place among the READs.
#[test]
fn where_no_reads_may_be_asked_for_neither_they_nor_atomics_are_done_at_once() {
    let attr = RtsAttr { max_rd_atomic: 0, ..rts() };
    let mut a = End::proven(Mtu::M256, 1 << 20, attr, false);
    a.cx.reach = Some(TestPeerMemory::default());
    for op in [AtomicOp::Write(1), AtomicOp::FetchAdd(1), AtomicOp::CompareSwap { compare: 0, swap: 1 }] {
        let place = sge(1, 0, 8);
        let op = SendOp::Atomic { addr: place.addr, rkey: place.lkey, op };
        let wr = SendWr { op, data: Data::Sges([sge(0, 0, 8)].into_iter().collect()), ..write_of(1) };
        assert!(!a.rc.execute_alone(&wr, &mut a.cx), "{wr:?}");
    }
    assert!(!a.rc.begins_alone(true) && a.rc.begins_alone(false));
}

#[test]
fn what_is_refused_goes_by_packets_and_so_does_what_comes_behind_it() {
    let mut a = reaching();
    a.cx.reach.as_mut().unwrap().refuses = true;
    for n in 0..3 {
        a.post(read_of(n));
    }
    assert_eq!(psns(&a.sent()), [0, 2, 4]);
    a.cx.reach.as_mut().unwrap().refuses = false;
    a.post(read_of(3));
    assert_eq!(psns(&a.sent()), [6], "nobody waits for what may be refused again");
    for psn in [0, 2, 4, 6] {
        let msn = psn as u32 / 2 + 1;
        a.hear(psn, Op::ReadResponse(ReadAt::First(aeth(msn))), &bytes(0, MTU));
        a.hear(psn + 1, Op::ReadResponse(ReadAt::Last(aeth(msn))), &bytes(MTU, 300 - MTU));
    }
    assert_eq!(a.completed().len(), 4);
    a.post(read_of(4));
    a.post(read_of(5));
    assert_eq!((a.sent(), done(&a)), (vec![], &[4, 5][..]));
}

#[test]
fn a_fence_and_a_drained_queue_hold_for_them_too() {
    let mut a = requester();
    a.post(read_of(1));
    assert_eq!(psns(&a.sent()), [0]);
    a.cx.reach = Some(TestPeerMemory::default());
    a.post(SendWr { fence: true, ..write_of(2) });
    a.post(SendWr { fence: true, ..send(3, sge(0, 0, 8)) });
    assert_eq!(a.sent(), []);
    a.hear(0, Op::ReadResponse(ReadAt::First(aeth(1))), &bytes(0, MTU));
    a.hear(1, Op::ReadResponse(ReadAt::Last(aeth(1))), &bytes(MTU, 300 - MTU));
    assert_eq!(psns(&a.sent()), [2]);
    a.hear(2, ack(2), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK)]);
    a.rc.drain();
    a.post(write_of(4));
    assert_eq!((a.sent(), done(&a)), (vec![], &[2][..]));
    a.rc.resume();
    assert_eq!((a.sent(), done(&a)), (vec![], &[2, 4][..]));
}

#[test]
fn an_ack_held_back_leaves_with_the_first_of_them() {
    let mut a = reaching();
    a.ack_delay = AckDelay::ForProgram;
    a.post_receive(9, sge(1, 0, 600));
    a.hear(0, ONLY, &[1, 2, 3]);
    assert_eq!(a.sent(), []);
    a.post(write_of(1));
    assert_eq!(ops(&a.sent()), [ack(1)]);
    assert_eq!(a.completed(), [(9, OK), (1, OK)]);
}

#[test]
fn without_bytes_or_rights_there_is_nothing_to_do_at_once() {
    let mut a = requester_with(|rts| rts.max_rd_atomic = 0);
    a.cx.reach = Some(TestPeerMemory::default());
    a.post(read_of(1));
    assert_eq!((a.sent(), done(&a)), (vec![], &[][..]));
    assert_eq!(a.completed(), [(1, Status::LocalQpOperation)]);
}

#[test]
fn after_some_in_packets_others_wait_again() {
    let mut a = reaching();
    a.cx.reach.as_mut().unwrap().refuses = true;
    for n in 0..40 {
        a.post(write(n, sge(0, 0, 8), sge(1, 0, 8), None));
    }
    assert_eq!(psns(&a.sent()), (0..40).collect::<Vec<_>>());
    a.cx.reach.as_mut().unwrap().refuses = false;
    a.hear(35, ack(36), &[]);
    for n in 40..50 {
        a.post(write(n, sge(0, 0, 8), sge(1, 0, 8), None));
    }
    assert_eq!((a.sent(), done(&a)), (vec![], &[][..]));
    a.hear(39, ack(40), &[]);
    assert_eq!(a.sent(), []);
    assert_eq!(done(&a), (40..50).collect::<Vec<_>>());
    assert_eq!(a.completed().len(), 50);
}

#[test]
fn requests_of_a_stream_are_executed_only_where_no_fragments_leave() {
    let mut a = reaching();
    a.cx.stream = true;
    for (max_fragment, is_executed) in [(1 << 16, false), (0, true)] {
        a.cx.max_fragment = max_fragment;
        assert_eq!(a.rc.execute_alone(&write_of(1), &mut a.cx), is_executed, "{max_fragment}");
        assert_eq!(a.rc.execute_alone(&read_of(1), &mut a.cx), is_executed, "{max_fragment}");
    }
    // Nor is one that is longer than any.
    a.cx.stream = false;
    let longer = write(1, sge(0, 0, (16 << 20) + 1), sge(1, 0, (16 << 20) + 1), None);
    assert!(!a.rc.execute_alone(&longer, &mut a.cx));
}
