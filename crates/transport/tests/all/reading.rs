//! Long READs of memory of a process of the same host, of which both ends copy.

use std::time::Duration;

use crate::support::*;
use transport::Remote;
use transport::op::{AtomicOp, Data, Payload, SendWr, Status, ZeroCopy};
use wire::bth::{Aeth, Bth, NakCode, Syndrome};
use wire::roce::{Header, Op, Packet, Service};
use wire::{Qpn, Rkey};

const OK: Status = Status::Success;
const FRAGMENT_LEN: usize = PIECE as usize;
/// Bytes of a part that is asked for at once: two fragments.
const PART: u32 = 2 * PIECE;

/// Two ends of which the first one reads so.
fn readers() -> (End, End) {
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_read);
    a.cx.memory.regions[1].bytes.borrow_mut().fill(0);
    (a, b)
}

/// A READ of so many bytes, to this place.
fn read_to(wr_id: u64, at: u64, len: u32) -> SendWr {
    read(wr_id, sge(0, 0, len), sge(1, at, len))
}

/// The first bytes of what the READs brought.
fn came(a: &End, len: u32) -> Vec<u8> {
    a.cx.memory.bytes(1)[..len as usize].to_vec()
}

/// What there is to read changes; to what.
fn change(b: &End, len: u32) -> Vec<u8> {
    let mut bytes = b.cx.memory.regions[0].bytes.borrow_mut();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    bytes[..len as usize].to_vec()
}

/// Answers come, and what the responder copies was there before all of them.
fn hear_late(a: &mut End, answers: &[Vec<u8>]) {
    let placed = |bytes: &Vec<u8>| Away::parse(bytes).filter(|away| !away.is_exported());
    answers.iter().filter_map(placed).for_each(|away| a.have(&away));
    for answer in answers {
        match placed(answer) {
            Some(Away { header, place, .. }) => {
                a.rc.receive_fragment(
                    a.now,
                    &header,
                    a.mtu,
                    Payload::ZeroCopy(place),
                    a.ack_delay,
                    &mut a.cx,
                );
            }
            None => a.hear_any(answer),
        }
    }
}

#[test]
fn each_end_copies_half_of_a_read_and_all_arrives_whole() {
    let (mut a, mut b) = readers();
    a.post(long_read(1));
    b.cx.heard = false;
    let expected = [(false, FRAGMENT_LEN), (true, FRAGMENT_LEN), (false, FRAGMENT_LEN), (true, FRAGMENT_LEN)];
    assert_eq!(lens(&exchange(&mut a, &mut b)), expected);
    assert!(b.cx.heard, "a program that only READs completes nothing at the responder");
    assert_eq!(a.completed(), [(1, OK)]);
    assert_eq!(came(&a, LONG), bytes(0, LONG as usize));
    // Two of some length, and one of less.
    for (len, expected) in [
        (40 * PAGE, vec![(false, 20 * 4096), (true, 20 * 4096)]),
        (16 * PAGE, vec![(true, 16 * 4096)]),
        (15 * PAGE, vec![]),
    ] {
        a.post(read_to(2, 0, len));
        assert_eq!(lens(&exchange(&mut a, &mut b)), expected, "{len}");
    }
    assert_eq!(a.completed(), [(2, OK); 3]);
}

#[test]
fn what_is_of_several_elements_or_not_reached_comes_in_packets() {
    let (mut a, mut b) = readers();
    let halves = [sge(1, 0, LONG / 2), sge(1, (LONG / 2).into(), LONG / 2)];
    a.post(SendWr { data: Data::Sges(halves.into_iter().collect()), ..long_read(1) });
    assert_eq!(lens(&exchange(&mut a, &mut b)), []);
    for (wr_id, fetches) in [(2, [false, true]), (3, [true, false])] {
        (a.cx.reaches, b.cx.reaches) = (fetches[0], fetches[1]);
        a.post(long_read(wr_id));
        assert_eq!(lens(&exchange(&mut a, &mut b)), []);
    }
    assert_eq!(a.completed(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(came(&a, LONG), bytes(0, LONG as usize));
}

#[test]
fn a_read_waits_for_one_before_it_whose_bytes_it_shares_in_part() {
    for (at, len, asked) in [
        (PART.into(), PART, 2),
        // The very same: each end copies the same bytes of both.
        (0, PART, 2),
        (0, PIECE, 1),
        (u64::from(PART) - 1, PART, 1),
    ] {
        let (mut a, mut b) = readers();
        a.post(read_to(1, 0, PART));
        a.post(read_to(2, at, len));
        let requests = a.fill();
        assert_eq!(requests.len(), asked, "{at} {len}");
        requests.iter().for_each(|bytes| b.hear_any(bytes));
        exchange(&mut a, &mut b);
        assert_eq!(a.completed(), [(1, OK), (2, OK)]);
    }
    // Of those before it that came in packets it is not known which end copies what.
    let (mut a, _) = readers();
    a.cx.reaches = false;
    a.post(read_to(1, 0, PART));
    assert!(!a.fill().is_empty());
    a.cx.reaches = true;
    a.post(read_to(2, 0, PART));
    assert!(a.fill().is_empty());
}

#[test]
fn of_two_reads_to_the_same_place_the_second_one_is_there_at_last() {
    let (mut a, mut b) = readers();
    (1..=2).for_each(|wr_id| a.post(read_to(wr_id, 0, PART)));
    let requests = a.fill();
    b.hear_any(&requests[0]);
    let mut answers = b.fill();
    let last = change(&b, PART);
    b.hear_any(&requests[1]);
    answers.extend(b.fill());
    hear_late(&mut a, &answers);
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
    assert_eq!(came(&a, PART), last);
}

#[test]
fn where_one_does_not_go_as_it_should_nothing_counts_of_those_behind_it() {
    let (mut a, mut b) = readers();
    (1..=2).for_each(|wr_id| a.post(read_to(wr_id, 0, PART)));
    let requests = a.fill();
    b.hear_any(&requests[0]);
    b.cx.reaches = false;
    let mut answers = b.fill();
    assert!(answers.iter().all(|bytes| Away::parse(bytes).is_none()), "its bytes are in the ring");
    b.cx.reaches = true;
    let last = change(&b, PART);
    b.hear_any(&requests[1]);
    answers.extend(b.fill());
    hear_late(&mut a, &answers);
    assert_eq!(a.completed(), [(1, OK)]);
    assert_ne!(came(&a, PART), last, "the first one came after the second one's half");
    assert_eq!(lens(&exchange(&mut a, &mut b)), [], "it comes again, and in packets");
    assert_eq!(a.completed(), [(2, OK)], "no try was used up");
    assert_eq!(came(&a, PART), last);
}

#[test]
fn what_is_exported_and_not_reached_comes_again_in_packets_and_no_try_is_used_up() {
    let (mut a, mut b) = readers();
    (1..=2).for_each(|wr_id| a.post(read_to(wr_id, 0, PART)));
    a.fill().iter().for_each(|bytes| b.hear_any(bytes));
    for answer in b.fill() {
        a.hear_away(&Away::parse(&answer).expect("all of it is elsewhere"), false);
    }
    assert_eq!(a.completed(), []);
    assert_eq!(lens(&exchange(&mut a, &mut b)), []);
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
    assert_eq!(came(&a, PART), bytes(0, PART as usize));
    // That way is tried again.
    assert!((3..10_000).any(|wr_id| {
        a.post(long_read(wr_id));
        a.now += Duration::from_micros(1000);
        !exchange(&mut a, &mut b).is_empty()
    }));
}

#[test]
fn what_is_no_read_waits_for_those_of_which_both_ends_copy() {
    for behind in [
        send(2, sge(0, 0, 8)),
        long_send(2),
        long_write(2),
        atomic(2, AtomicOp::FetchAdd(1), sge(0, 0, 8), sge(0, 8, 8)),
    ] {
        let (mut a, mut b) = readers();
        b.post_receive(9, sge(1, 0, LONG));
        a.post(read_to(1, 0, PART));
        a.post(behind);
        let asked = a.fill();
        assert_eq!(asked.len(), 1);
        b.hear_any(&asked[0]);
        let answers = b.fill();
        assert_eq!(answers.len(), 2);
        a.hear_any(&answers[0]);
        assert!(a.fill().is_empty());
        a.hear_any(&answers[1]);
        exchange(&mut a, &mut b);
        assert_eq!(a.completed(), [(1, OK), (2, OK)]);
    }
}

#[test]
fn what_no_peer_says_is_an_error_or_asked_for_again() {
    let place = |length| ZeroCopy::Exported(Remote { addr: 1, length, rkey: Rkey(1) }).to_bytes();
    let ask = |bytes: &[u8]| {
        let (_, mut b) = readers();
        let bth = Bth { psn: b.rc.rq_psn(), dest_qp: Qpn::new(0x11), ..Bth::default() };
        let header = Header { bth, service: Service::Rc, op: Op::ReadRequest(reth(0, 0, PART)) };
        b.hear_fragment(&header, bytes);
        b.fill()
    };
    let op = |bytes: &[u8]| Packet::parse(bytes).unwrap().header.op;
    assert_eq!(ask(&place(PART.into())).len(), 2);
    // A place that is too short, and none.
    let naks = ask(&place(u64::from(PART) - 1));
    let Op::Acknowledge(Aeth { syndrome, .. }) = op(&naks[0]) else { panic!("{:?}", op(&naks[0])) };
    assert_eq!((naks.len(), syndrome), (1, Syndrome::Nak(NakCode::InvalidRequest)));
    assert!(ask(&place(PART.into())[..15]).is_empty() && ask(&ZeroCopy::Placed(PART).to_bytes()).is_empty());
    // Bytes that the requester did not ask to have so.
    let (mut a, mut b) = readers();
    a.post(read_to(1, 0, PART));
    a.fill().iter().for_each(|bytes| b.hear_any(bytes));
    let placed = Away::parse(&b.fill()[0]).unwrap();
    let (mut a, mut b) = readers();
    a.cx.reaches = false;
    a.post(read_to(1, 0, PART));
    a.fill();
    a.hear_away(&placed, true);
    exchange(&mut a, &mut b);
    assert_eq!(a.completed(), [(1, OK)]);
    assert_eq!(came(&a, PART), bytes(0, PART as usize));
}

#[test]
fn the_queue_pair_exports_no_more_when_a_read_fails() {
    let (mut a, _) = readers();
    a.post(read_to(1, 0, PART));
    assert_eq!(a.fill().len(), 1);
    a.wait_for_deadline();
    assert_eq!(a.completed(), [(1, Status::RetryExceeded)]);
    assert!(a.cx.is_revoked);
}
