//! Long messages to a process of the same host, of which both ends copy.

use crate::support::*;
use transport::op::{Status, ZeroCopy};
use transport::rc::AckDelay;
use transport::{Remote, Sge};
use wire::bth::{Aeth, Bth, NakCode, Syndrome};
use wire::roce::{Header, Op, Packet, SendAt, SendTail, Service, WriteAt};
use wire::{Mtu, Psn, Qpn, Rkey};

const OK: Status = Status::Success;

#[test]
fn a_stream_of_long_messages_goes_so_and_arrives_whole() {
    for message in [long_send as Message, long_write] {
        let (mut a, mut b) = ends();
        until_both_copy(&mut a, &mut b, message);
        b.cx.memory.regions[1].bytes.borrow_mut().fill(0);
        b.post_receive(7, sge(1, 0, LONG));
        a.post(message(7));
        exchange(&mut a, &mut b);
        assert_eq!(a.completed(), [(7, OK)]);
        assert_eq!(b.cx.memory.bytes(1)[..LONG as usize], bytes(0, LONG as usize));
    }
}

#[test]
fn a_long_send_goes_so_alone_too_and_a_write_is_executed_directly_then() {
    let (mut a, mut b) = ends();
    a.cx.stream = false;
    b.post_receive(1, sge(1, 0, LONG));
    a.post(long_send(1));
    assert_eq!(exchange(&mut a, &mut b).len(), 4);
    a.cx.reach = Some(TestPeerMemory::default());
    a.post(long_write(2));
    assert_eq!((exchange(&mut a, &mut b).len(), &a.cx.reach.as_ref().unwrap().done[..]), (0, &[2][..]));
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
}

#[test]
fn after_a_refusal_thirty_two_messages_go_through_the_ring_and_after_the_next_twice_as_many() {
    let (mut a, mut b) = ends();
    let mut after = |messages: u64| {
        (0..messages)
            .filter(|&n| {
                b.post_receive(n, sge(1, 0, LONG));
                a.post(long_send(n));
                let left = a.fill();
                let mut is_away = false;
                for bytes in &left {
                    match Away::parse(bytes) {
                        // The receiver does not reach what is exported.
                        Some(fragment) => {
                            is_away = true;
                            b.hear_away(&fragment, false);
                        }
                        None => b.hear_any(bytes),
                    }
                }
                b.fill().iter().for_each(|bytes| a.hear_any(bytes));
                exchange(&mut a, &mut b);
                forget(&mut a, &mut b);
                is_away
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(after(100), [0, 33, 98]);
}

#[test]
fn each_end_copies_half() {
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_write);
    a.post(long_write(1));
    let fragment = PIECE as usize;
    assert_eq!(
        lens(&exchange(&mut a, &mut b)),
        [(false, fragment), (true, fragment), (false, fragment), (true, fragment)]
    );
    // Two of some length, and one of less.
    for (len, expected) in [
        (40 * PAGE, vec![(false, 20 * 4096), (true, 20 * 4096)]),
        (16 * PAGE, vec![(true, 16 * 4096)]),
        (15 * PAGE, vec![]),
    ] {
        a.post(write(2, sge(0, 0, len), sge(1, 0, len), None));
        assert_eq!(lens(&exchange(&mut a, &mut b)), expected, "{len}");
    }
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_send);
    b.post_receive(1, sge(1, 0, LONG));
    a.post(long_send(1));
    assert_eq!(
        lens(&exchange(&mut a, &mut b)),
        [(true, fragment), (false, fragment), (true, fragment), (false, fragment)]
    );
    // Where the receiver does not tell the place, as it has several, it copies all.
    b.cx.advertises = false;
    b.post_receive(2, sge(1, 0, LONG));
    a.post(long_send(2));
    assert_eq!(lens(&exchange(&mut a, &mut b)), [(true, fragment); 4]);
    assert_eq!(a.completed(), [(1, OK), (2, OK)]);
}

#[test]
fn a_fragment_is_as_long_whatever_packets_hold() {
    for mtu in [Mtu::M256, Mtu::M1024] {
        for message in [long_send as Message, long_write, long_read] {
            let (mut a, mut b) = ends_of(mtu);
            until_both_copy(&mut a, &mut b, message);
            b.post_receive(1, sge(1, 0, LONG));
            a.post(message(1));
            assert_eq!(exchange(&mut a, &mut b).len(), (LONG / PIECE) as usize, "{mtu:?}");
        }
    }
    // A fragment longer than any is not taken.
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_send);
    b.post_receive(1, sge(1, 0, LONG));
    a.post(long_send(1));
    let mut fragment = sent(&mut a).remove(0);
    let ZeroCopy::Exported(place) = fragment.place else { panic!("the first one is exported") };
    fragment.place = ZeroCopy::Exported(Remote { length: u64::from(PIECE + PAGE), ..place });
    b.hear_away(&fragment, true);
    assert!(b.fill().is_empty() && b.completed().is_empty());
}

#[test]
fn what_is_copied_is_acknowledged_at_once() {
    for message in [long_send as Message, long_write] {
        let (mut a, mut b) = ends();
        until_both_copy(&mut a, &mut b, message);
        b.ack_delay = AckDelay::ForProgram;
        b.post_receive(1, sge(1, 0, LONG));
        a.post(message(1));
        let (mut fragments, mut waiting) = (0, sent(&mut a));
        while !waiting.is_empty() {
            for fragment in &waiting {
                b.hear_away(fragment, true);
                let answers = b.fill();
                answers.iter().for_each(|bytes| a.hear_any(bytes));
                let acks = answers.iter().filter(|bytes| place_of(bytes).is_none()).count();
                assert_eq!(acks, 1, "fragment {fragments}");
                fragments += 1;
            }
            waiting = sent(&mut a);
        }
        assert_eq!((fragments, a.completed()), (LONG / PIECE, vec![(1, OK)]));
    }
}

#[test]
fn nothing_is_placed_while_something_is_under_way_that_comes_before_it_there() {
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_write);
    /// Bytes of a fragment.
    const SHORT: u32 = 16 * PAGE;
    let to = |wr_id, at, len| write(wr_id, sge(0, 0, len), sge(1, at, len), None);
    // What is exported of the first one lies in its second half, where the second one's first half
    // is to go.
    a.post(to(1, 0, 2 * SHORT));
    a.post(to(2, SHORT.into(), 2 * SHORT));
    assert_eq!(exported(&sent(&mut a)), [false, true, true, true]);
    // Elsewhere it may.
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_write);
    a.post(to(1, 0, 2 * SHORT));
    a.post(to(2, (2 * SHORT).into(), 2 * SHORT));
    assert_eq!(exported(&sent(&mut a)), [false, true, false, true]);
    // After a message it is not known where that goes.
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_write);
    a.post(send(1, sge(0, 0, 8)));
    a.post(to(2, 0, 2 * SHORT));
    assert_eq!(exported(&sent(&mut a)), [true, true]);
}

#[test]
fn a_sender_waits_for_the_place_until_the_first_fragment_is_acknowledged_and_uses_no_other() {
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_send);
    let (first, packets) = (101 * LONG / PAGE, PIECE / PAGE);
    a.post(long_send(1));
    assert_eq!(exported(&sent(&mut a)), [true]);
    let place = |begins, length| {
        let psn = Psn::new(PSN).add(begins);
        let bth = Bth { psn, dest_qp: Qpn::new(0x11), ..Bth::default() };
        let place = ZeroCopy::Exported(Remote { addr: 2 * BASE, length, rkey: Rkey(KEY + 1) });
        (Header { bth, service: Service::Rc, op: ack(0) }, place.to_bytes())
    };
    // Of another message, and no place at all.
    let (header, bytes) = place(first - LONG / PAGE, LONG.into());
    a.hear_fragment(&header, &bytes);
    a.hear_fragment(&place(first, LONG.into()).0, &bytes[..15]);
    a.hear_fragment(&place(first, LONG.into()).0, &ZeroCopy::Placed(7).to_bytes());
    assert_eq!(exported(&sent(&mut a)), []);
    // It ends in the second fragment, where the message is too long for it.
    let (header, bytes) = place(first, u64::from(PIECE) + 1);
    a.hear_fragment(&header, &bytes);
    assert_eq!(exported(&sent(&mut a)), [true], "and the window is full");
    // No place was told.
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_send);
    a.post(long_send(1));
    assert_eq!(exported(&sent(&mut a)), [true]);
    a.hear((first + packets - 1).into(), ack(0), &[]);
    assert_eq!(exported(&sent(&mut a)), [true, true]);
}

#[test]
fn what_the_receiver_does_not_reach_comes_again_in_packets_and_no_try_is_used_up() {
    for message in [long_send as Message, long_write] {
        let (mut a, mut b) = ends();
        until_both_copy(&mut a, &mut b, message);
        b.post_receive(7, sge(1, 0, LONG));
        b.cx.memory.regions[1].bytes.borrow_mut().fill(0);
        a.post(message(7));
        for fragment in sent(&mut a) {
            b.hear_away(&fragment, false);
        }
        let answers = b.fill();
        let packets = answers.iter().filter(|bytes| place_of(bytes).is_none());
        let is_nak = |op: &Op| {
            matches!(op, Op::Acknowledge(Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), .. }))
        };
        let naks = packets.filter(|bytes| is_nak(&Packet::parse(bytes).unwrap().header.op));
        assert_eq!(naks.count(), 1, "for the first one that is not reached");
        answers.iter().for_each(|bytes| a.hear_any(bytes));
        assert_eq!(lens(&exchange(&mut a, &mut b)), [], "all goes through the ring");
        assert_eq!(a.completed(), [(7, OK)]);
        assert_eq!(b.cx.memory.bytes(1)[..LONG as usize], bytes(0, LONG as usize));
        let received = b.completed();
        assert!(received.iter().all(|(_, status)| *status == OK) && received.len() < 2, "{received:?}");
    }
}

#[test]
fn where_memory_is_not_reached_all_goes_through_the_ring_and_memory_that_is_gone_fails_the_request() {
    let (mut a, mut b) = ends();
    until_both_copy(&mut a, &mut b, long_write);
    a.cx.reaches = false;
    a.post(long_write(1));
    assert_eq!(lens(&exchange(&mut a, &mut b)), []);
    // Memory that is gone fails the request.
    a.cx.reaches = true;
    forget(&mut a, &mut b);
    a.post(write(2, sge(0, ALL as u64 - 8, LONG), sge(1, 0, LONG), None));
    assert_eq!(lens(&exchange(&mut a, &mut b)), []);
    assert_eq!(a.completed(), [(2, Status::LocalProtection)]);
    assert!(a.cx.is_revoked);
}

#[test]
fn fragments_that_no_sender_sends_are_errors() {
    let from_sender = |op, len: u32| {
        let (mut a, mut b) = ends();
        until_both_copy(&mut a, &mut b, long_send);
        b.post_receive(7, sge(1, 0, LONG));
        a.post(long_send(7));
        let mut fragment = sent(&mut a).remove(0);
        fragment.header.op = op;
        fragment.bytes = vec![1; len as usize];
        (b, fragment, len)
    };
    let first = Op::Send(SendAt::First);
    // A SEND whose bytes the sender claims to have put where only the receiver knows.
    let (mut b, mut fragment, len) = from_sender(first, PIECE);
    fragment.place = ZeroCopy::Placed(len);
    fragment.to = Remote { addr: BASE, length: len.into(), rkey: Rkey(KEY) };
    b.hear_away(&fragment, true);
    assert_eq!(ops(&b.sent()), [nak(NakCode::InvalidRequest, 101)]);
    // One that ends in the midst of a packet, a WRITE that is not as long as it says, and more than
    // a fragment has.
    let write = Op::Write(WriteAt::Only(reth(0, 0, PIECE), None));
    for (op, len, code) in [
        (first, PIECE - 1, Some(NakCode::InvalidRequest)),
        (write, PIECE - PAGE, Some(NakCode::InvalidRequest)),
        (first, PIECE + PAGE, None),
    ] {
        let (mut b, mut fragment, len) = from_sender(op, len);
        fragment.place = ZeroCopy::Exported(Remote { addr: 1, length: len.into(), rkey: Rkey(1) });
        b.hear_away(&fragment, true);
        assert_eq!(ops(&b.sent()), code.map(|code| nak(code, 101)).into_iter().collect::<Vec<_>>(), "{op:?}");
    }
    // A receive that is too short.
    let (mut b, fragment, _) = from_sender(Op::Send(SendAt::Only(SendTail::None)), PIECE);
    b.cx.receives.clear();
    b.post_receive(8, Sge { length: PIECE - 1, ..sge(1, 0, 0) });
    b.hear_away(&fragment, true);
    assert_eq!(b.completed(), [(8, Status::LocalLength)]);
}

#[test]
fn where_bytes_are_is_read_as_it_was_written() {
    let exported = ZeroCopy::Exported(Remote { addr: 0x1234_5678_9abc, length: 77, rkey: Rkey(0x4100) });
    for place in [exported, ZeroCopy::Placed(u32::MAX), ZeroCopy::Placed(0)] {
        assert_eq!(ZeroCopy::from_bytes(&place.to_bytes()), Some(place));
        assert_eq!(place.is_empty(), place == ZeroCopy::Placed(0));
    }
    assert_eq!(ZeroCopy::from_bytes(&[0; 15]), None);
    assert_eq!(ZeroCopy::from_bytes(&[0; 17]), None);
}
