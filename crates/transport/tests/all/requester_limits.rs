//! What holds a requester back: the congestion window, and the initiator depth.

use crate::support::*;
use transport::op::{AtomicOp, SendWr, Status};
use transport::short::What;
use wire::Mtu;
use wire::bth::NakCode;
use wire::roce::{Op, ReadAt};

const OK: Status = Status::Success;

#[test]
fn a_read_of_8_kib_on_a_fresh_window_is_one_request_and_may_have_many_responses() {
    let mut a = End::new(Mtu::M1024, 1 << 20, rts());
    a.post(read(1, sge(0, 0, 8192), sge(1, 0, 8192)));
    a.post(send(2, sge(0, 0, 1)));
    let sent = a.sent();
    assert_eq!(psns(&sent), [0, 8]);
    let Op::ReadRequest(reth) = sent[0].op else { panic!("{sent:?}") };
    assert_eq!((reth.length, sent[0].bth.ack_request), (8192, true));
    for i in 0..8 {
        let at = match i {
            0 => ReadAt::First(aeth(1)),
            7 => ReadAt::Last(aeth(1)),
            _ => ReadAt::Middle,
        };
        a.hear(i, Op::ReadResponse(at), &bytes(i as usize * 1024, 1024));
    }
    assert_eq!(a.completed(), [(1, OK)]);
    assert_eq!(a.cx.memory.bytes(1)[..8192], bytes(0, 8192));
}

/// The responses from one packet to another of a READ that was asked for in parts of `part`.
fn responses(a: &mut End, from: i64, to: i64, part: i64) {
    for i in from..to {
        let at = match i % part {
            0 => ReadAt::First(aeth(1)),
            n if n + 1 == part => ReadAt::Last(aeth(1)),
            _ => ReadAt::Middle,
        };
        a.hear(i, Op::ReadResponse(at), &bytes(i as usize * MTU, MTU));
    }
}

/// First PSNs and lengths in packets of the READs that leave now.
fn asked(a: &mut End) -> Vec<(i32, u32)> {
    let one = |sent: Sent| match sent.op {
        Op::ReadRequest(reth) => (sent.psn, reth.length / MTU as u32),
        _ => panic!("{sent:?}"),
    };
    a.sent().into_iter().map(one).collect()
}

#[test]
fn of_a_read_longer_than_the_window_one_part_is_asked_for_while_another_comes() {
    let mut a = requester();
    a.post(read(1, sge(0, 0, 100 * MTU as u32), sge(1, 0, 100 * MTU as u32)));
    assert_eq!(asked(&mut a), [(0, 32), (32, 32)]);
    responses(&mut a, 0, 31, 32);
    assert_eq!(asked(&mut a), []);
    responses(&mut a, 31, 32, 32);
    assert_eq!(asked(&mut a), [(64, 32)]);
}

#[test]
fn where_one_read_is_allowed_its_parts_are_as_long_as_the_window() {
    let mut a = requester_with(|r| r.max_rd_atomic = 1);
    a.post(read(1, sge(0, 0, 100 * MTU as u32), sge(1, 0, 100 * MTU as u32)));
    assert_eq!(asked(&mut a), [(0, 64)]);
    responses(&mut a, 0, 64, 64);
    assert_eq!((a.completed(), asked(&mut a)), (vec![], vec![(64, 36)]));
}

#[test]
fn no_more_is_under_way_than_there_is_room_for() {
    let mut a = requester();
    a.cx.room = Some(10);
    a.post(send(1, sge(0, 0, 100 * MTU as u32)));
    assert_eq!(a.sent().len(), 10);
    a.hear(3, ack(0), &[]);
    assert_eq!(psns(&a.sent()), [10, 11, 12, 13]);
}

#[test]
fn initiator_depth_counts_reads_and_atomics_of_all_requests() {
    let mut a = requester_with(|r| r.max_rd_atomic = 2);
    a.post(read(1, sge(0, 0, 8), sge(1, 0, 8)));
    a.post(atomic(2, AtomicOp::FetchAdd(1), sge(0, 0, 8), sge(1, 8, 8)));
    a.post(read(3, sge(0, 0, 8), sge(1, 16, 8)));
    a.post(send(4, sge(0, 0, 8)));
    assert_eq!(psns(&a.sent()), [0, 1]);
    a.hear(0, Op::ReadResponse(ReadAt::Only(aeth(1))), &[7; 8]);
    assert_eq!(psns(&a.sent()), [2, 3]);
    a.hear(1, Op::AtomicAcknowledge(aeth(2), 0x0102_0304), &[]);
    a.hear(2, Op::ReadResponse(ReadAt::Only(aeth(3))), &[9; 8]);
    a.hear(3, ack(4), &[]);
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    let memory = a.cx.memory.bytes(1);
    assert_eq!(memory[..8], [7; 8]);
    assert_eq!(memory[8..16], 0x0102_0304_u64.to_ne_bytes());
    assert_eq!(memory[16..24], [9; 8]);
}

#[test]
fn a_read_without_initiator_depth_fails_instead_of_waiting_for_ever() {
    let mut a = requester_with(|r| r.max_rd_atomic = 0);
    a.post(read(1, sge(0, 0, 8), sge(1, 0, 8)));
    assert_eq!(a.sent(), []);
    assert_eq!(a.completed(), [(1, Status::LocalQpOperation)]);
}

#[test]
fn packets_under_way_stay_within_the_window_and_ask_for_acks_twice_in_it() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 1000 * MTU as u32)));
    let sent = a.sent();
    assert_eq!(sent.len(), 64);
    let asks: Vec<_> = sent.iter().filter(|s| s.bth.ack_request).map(|s| s.psn).collect();
    assert_eq!(asks, [31, 63]);
    a.hear(31, ack(0), &[]);
    let more = a.sent().len();
    assert!((32..=33).contains(&more), "{more}");
}

#[test]
fn a_window_that_shrinks_below_what_is_under_way_asks_for_an_ack_with_one_packet_more() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 1000 * MTU as u32)));
    a.sent();
    a.hear(40, ack(0), &[]);
    let sent = a.sent();
    assert_eq!(sent.iter().rfind(|s| s.bth.ack_request).map(|s| s.psn), Some(95));
    let last = sent.last().map_or(0, |s| s.psn);
    assert!(last > 100, "the last ones do not ask");
    for _ in 0..6 {
        a.cx.window.lost();
    }
    a.hear(95, ack(0), &[]);
    let sent = a.sent();
    assert_eq!((psns(&sent), sent[0].bth.ack_request), (vec![last + 1], true));
}

#[test]
fn a_window_that_shrinks_lets_what_is_under_way_drain_first() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 1000 * MTU as u32)));
    assert_eq!(a.sent().len(), 64);
    for _ in 0..6 {
        a.cx.window.lost();
    }
    a.hear(31, ack(0), &[]);
    assert_eq!(psns(&a.sent()), [], "the 32nd packet under way has asked");
    a.hear(63, ack(0), &[]);
    assert!((2..=4).contains(&a.sent().len()));
}

#[test]
fn losses_halve_the_window_once_an_event() {
    let mut a = requester();
    a.post(send(1, sge(0, 0, 64 * MTU as u32)));
    a.sent();
    a.hear(10, nak(NakCode::PsnSequence, 0), &[]);
    assert_eq!(a.cx.window.share_of(u32::MAX), 32);
    a.sent();
    a.hear(20, nak(NakCode::PsnSequence, 0), &[]);
    assert_eq!(a.cx.window.share_of(u32::MAX), 32);
}

#[test]
fn a_message_that_leaves_alone_as_it_is_posted_takes_no_share_of_the_window_and_the_next_one_does() {
    let mut a = requester();
    let share = |a: &End| a.cx.window.share_of(u32::MAX);
    // Another queue pair's.
    a.cx.window.enter();
    for (n, left) in [(0, 64), (1, 32), (2, 32)] {
        assert!(a.rc.next_short(8, false, What::Send, false, &mut a.cx).is_some());
        a.rc.sent_short(|| a.now, || send(n, sge(0, 0, 8)), 8, &mut a.cx);
        assert_eq!(share(&a), left);
    }
    a.hear(2, ack(3), &[]);
    assert_eq!((a.completed(), share(&a)), (vec![(0, OK), (1, OK), (2, OK)], 64));
    assert!(a.rc.next_short(8, false, What::Send, false, &mut a.cx).is_some());
    a.rc.sent_short(|| a.now, || send(3, sge(0, 0, 8)), 8, &mut a.cx);
    a.hear(3, ack(4), &[]);
    assert_eq!((a.completed(), share(&a)), (vec![(3, OK)], 64), "it is not taken out twice");
    // Where the ACK of the one before is noted after the next one, that is alone, too.
    let quiet = |n| SendWr { signaled: false, ..send(n, sge(0, 0, 8)) };
    a.rc.sent_short(|| a.now, || quiet(4), 8, &mut a.cx);
    assert!(a.rc.next_short(8, false, What::Send, true, &mut a.cx).is_some());
    a.rc.acknowledge_oldest(a.now, &mut a.cx);
    a.rc.sent_short(|| a.now, || quiet(5), 8, &mut a.cx);
    assert_eq!((a.completed(), share(&a), a.rc.outstanding()), (vec![], 64, 1));
}
