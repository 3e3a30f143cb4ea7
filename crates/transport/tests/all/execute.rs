//! The execution of inbound messages by itself, as a carrier that has no packets uses it: whole
//! messages, and fragments of any size.

use std::cell::RefCell;
use std::task::Poll;

use crate::support::*;
use transport::Fault;
use transport::execute::{Datagram, Ends, Inbound, Refusal, SendPiece};
use transport::op::Payload::Own;
use transport::op::{
    AtomicOp, Completed, Completion, Flush, NetworkHeader, RecvWr, Remote, Side, Status, Tail,
};
use wire::roce::SendTail;
use wire::{Qpn, Rkey};

const ENDS: Ends = Ends { local: Qpn::new(0x11), peer: Qpn::new(0x22) };

/// A context with 4 KiB of zeroes, region 0.
fn context() -> TestContext {
    let mut cx = TestContext::default();
    cx.memory.regions.push(Region { bytes: RefCell::new(vec![0; 4096]), remote: true });
    cx
}

fn post(cx: &mut TestContext, wr_id: u64, region: usize, length: u32) {
    cx.receives.push_back(RecvWr { wr_id, sges: [sge(region, 0, length)].into_iter().collect() });
}

fn whole(bytes: &[u8], tail: SendTail) -> SendPiece<'_> {
    SendPiece {
        bytes: Own(bytes),
        first: true,
        end: Some(tail),
        solicited: true,
        header: NetworkHeader::Unseen,
        shows: None,
    }
}

fn range(offset: u64, length: u64) -> Remote {
    let sge = sge(0, offset, 0);
    Remote { addr: sge.addr, length, rkey: sge.lkey }
}

fn completed(cx: &mut TestContext) -> Vec<Completion> {
    let of_receives = |(side, completion)| {
        assert_eq!(side, Side::Receive);
        completion
    };
    cx.completions.drain(..).map(of_receives).collect()
}

#[test]
fn a_whole_send_completes_a_receive() {
    let (mut inbound, mut cx) = (Inbound::default(), context());
    post(&mut cx, 7, 0, 100);
    inbound.send(ENDS, whole(&[5; 60], SendTail::Immediate(*b"imm!")), &mut cx).unwrap();
    let expected = Completion {
        byte_len: 60,
        tail: SendTail::Immediate(*b"imm!"),
        source_qp: ENDS.peer,
        header: NetworkHeader::Unseen,
        solicited: true,
        ..Completion::new(7, Status::Success, Completed::Receive, ENDS.local)
    };
    assert_eq!(completed(&mut cx), [expected]);
    assert_eq!(cx.memory.bytes(0)[58..62], [5, 5, 0, 0]);
    assert!(!inbound.in_message() && !inbound.holds_receive());
}

#[test]
fn a_send_may_come_in_fragments_of_any_size() {
    let (mut inbound, mut cx) = (Inbound::default(), context());
    post(&mut cx, 7, 0, 100);
    let fragments: [&[u8]; 5] = [&[], &[1; 3], &[2; 50], &[], &[3; 7]];
    for (i, &bytes) in fragments.iter().enumerate() {
        assert_eq!(inbound.in_message(), i > 0);
        let end = (i == 4).then_some(SendTail::None);
        inbound
            .send(
                ENDS,
                SendPiece {
                    bytes: Own(bytes),
                    first: i == 0,
                    end,
                    solicited: false,
                    header: NetworkHeader::Unseen,
                    shows: None,
                },
                &mut cx,
            )
            .unwrap();
    }
    let done = completed(&mut cx);
    assert_eq!(done.iter().map(|c| (c.wr_id, c.byte_len)).collect::<Vec<_>>(), [(7, 60)]);
    assert_eq!(cx.memory.bytes(0)[..61], [vec![1; 3], vec![2; 50], vec![3; 7], vec![0]].concat());
    assert_eq!(*cx.memory.tails.borrow(), [Tail::More, Tail::More, Tail::End]);
}

#[test]
fn without_a_receive_nothing_changes_and_the_same_fragment_may_come_again() {
    let (mut inbound, mut cx) = (Inbound::default(), context());
    let send = whole(&[5; 4], SendTail::None);
    assert_eq!(inbound.send(ENDS, send, &mut cx), Err(Refusal::NoReceive));
    let first = inbound.write(Some(range(0, 8)), Own(&[1; 4]), false, &mut cx);
    assert_eq!(first, Ok(()), "of a WRITE whose last fragment needs a receive");
    for _ in 0..2 {
        let last = inbound.write_with_imm(ENDS, None, Own(&[2; 4]), [9; 4], false, &mut cx);
        assert_eq!(last, Err(Refusal::NoReceive));
        assert_eq!(cx.memory.bytes(0)[..8], [1, 1, 1, 1, 0, 0, 0, 0]);
    }
    post(&mut cx, 1, 0, 0);
    inbound.write_with_imm(ENDS, None, Own(&[2; 4]), [9; 4], false, &mut cx).unwrap();
    let done = completed(&mut cx);
    assert_eq!((done[0].opcode, done[0].byte_len), (Completed::ReceiveWriteImmediate, 8));
    assert_eq!(cx.memory.bytes(0)[..8], [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn a_refused_message_completes_its_receive_with_the_reason_where_the_queue_pair_fails() {
    type Case = (&'static str, SendTail, usize, u32, Refusal, Status);
    let cases: [Case; 3] = [
        ("too long", SendTail::None, 0, 3, Refusal::TooLong, Status::LocalLength),
        ("no memory", SendTail::None, 5, 8, Refusal::Local(Fault::Key), Status::LocalProtection),
        (
            "a key not to be invalidated",
            SendTail::Invalidate(Rkey(KEY)),
            0,
            8,
            Refusal::Remote(Fault::Key),
            Status::RemoteInvalidRequest,
        ),
    ];
    for (name, tail, region, length, refusal, status) in cases {
        let (mut inbound, mut cx) = (Inbound::default(), context());
        post(&mut cx, 7, region, length);
        assert_eq!(inbound.send(ENDS, whole(&[1; 4], tail), &mut cx), Err(refusal), "{name}");
        assert_eq!(completed(&mut cx), [], "{name}: that is the carrier's to say");
        inbound.fail(refusal, ENDS, &mut cx);
        inbound.flush_receive(ENDS, &mut cx);
        let done: Vec<_> = completed(&mut cx).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, [(7, status)], "{name}");
    }
}

#[test]
fn a_refused_message_leaves_its_receive_to_the_next_where_it_is_only_dropped() {
    let (mut inbound, mut cx) = (Inbound::default(), context());
    post(&mut cx, 7, 0, 8);
    assert_eq!(inbound.send(ENDS, whole(&[1; 9], SendTail::None), &mut cx), Err(Refusal::TooLong));
    inbound.abandon();
    inbound.send(ENDS, whole(&[2; 8], SendTail::None), &mut cx).unwrap();
    let done: Vec<_> = completed(&mut cx).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(7, Status::Success)]);
    assert_eq!(cx.memory.bytes(0)[..9], [2, 2, 2, 2, 2, 2, 2, 2, 0]);
}

#[test]
fn what_may_not_come_in_the_middle_of_a_message_is_illegal_and_touches_no_memory() {
    let (mut inbound, mut cx) = (Inbound::default(), context());
    post(&mut cx, 7, 0, 100);
    post(&mut cx, 8, 0, 100);
    let begin = SendPiece {
        bytes: Own(&[1; 4]),
        first: true,
        end: None,
        solicited: false,
        header: NetworkHeader::Unseen,
        shows: None,
    };
    inbound.send(ENDS, begin, &mut cx).unwrap();
    let asked = cx.memory.asked.get();
    let datagram = Datagram {
        at: 0,
        head: &[],
        header: NetworkHeader::None,
        bytes: &[1],
        tail: SendTail::None,
        solicited: false,
    };
    let how = Flush { global: true, ..Flush::default() };
    assert_eq!(inbound.send(ENDS, begin, &mut cx), Err(Refusal::Illegal));
    assert_eq!(inbound.datagram(ENDS, datagram, &mut cx), Err(Refusal::Illegal));
    assert_eq!(inbound.write(Some(range(0, 4)), Own(&[1; 4]), true, &mut cx), Err(Refusal::Illegal));
    assert_eq!(inbound.write(None, Own(&[1; 4]), true, &mut cx), Err(Refusal::Illegal));
    assert_eq!(inbound.check_read(range(0, 4), &cx), Err(Refusal::Illegal));
    assert_eq!(inbound.atomic(range(0, 8), AtomicOp::FetchAdd(1), &cx), Err(Refusal::Illegal));
    assert_eq!(inbound.flush(range(0, 8), how, &cx), Err(Refusal::Illegal));
    assert_eq!(cx.memory.asked.get(), asked);
    inbound.fail(Refusal::Illegal, ENDS, &mut cx);
    assert_eq!(completed(&mut cx), []);
    inbound.flush_receive(ENDS, &mut cx);
    let done: Vec<_> = completed(&mut cx).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(7, Status::WrFlush)]);
}

#[test]
fn reads_atomics_and_flushes_are_checked_before_the_carrier_answers() {
    let (inbound, cx) = (Inbound::default(), context());
    assert_eq!(inbound.check_read(range(0, 4096), &cx), Ok(()));
    assert_eq!(inbound.check_read(range(1, 4096), &cx), Err(Refusal::Remote(Fault::Range)));
    let nowhere = Remote { addr: 7, length: 0, rkey: Rkey(0) };
    assert_eq!(inbound.check_read(nowhere, &cx), Ok(()), "no bytes need no key");
    assert_eq!(inbound.check_read(range(0, (1 << 31) + 1), &cx), Err(Refusal::Illegal));
    assert_eq!(inbound.atomic(range(8, 8), AtomicOp::FetchAdd(5), &cx), Ok(0));
    assert_eq!(inbound.atomic(range(8, 8), AtomicOp::Write(9), &cx), Ok(5));
    assert_eq!(inbound.atomic(range(4, 8), AtomicOp::FetchAdd(5), &cx), Err(Refusal::Illegal));
    assert_eq!(inbound.atomic(range(8, 4), AtomicOp::FetchAdd(5), &cx), Err(Refusal::Illegal));
    let flush =
        |global, persistent| inbound.flush(range(0, 8), Flush { global, persistent, whole: false }, &cx);
    assert_eq!(flush(true, false), Ok(Poll::Ready(())));
    assert_eq!(flush(false, true), Ok(Poll::Pending));
    assert_eq!(flush(false, false), Err(Refusal::Illegal));
}
