//! iWARP: two engines on a stream, and one beside a scripted peer.

use transport::iwarp::{Attr, Carried, Rtr, State, StreamBatch, Way};
use transport::op::{Completed, Data, QpEvent, SendOp, SendWr, Side, Status};
use wire::Rkey;
use wire::iwarp::Parsed;
use wire::iwarp::ddp::{Header, Segment, TaggedOp, UntaggedOp};
use wire::iwarp::fpdu::Fpdu;
use wire::iwarp::rdmap::{Cause, ReadRequest, Terminate};
use wire::roce::SendTail;

use crate::support::*;

const LEN: usize = 1 << 20;
use Status::{LocalLength, LocalProtection, LocalQpOperation, Success, WrFlush};

fn pair(attr: Attr) -> (StreamEnd, StreamEnd) {
    (StreamEnd::new(attr, LEN), StreamEnd::new(attr, LEN))
}

fn header(fpdu: &[u8]) -> Header {
    Fpdu::parse(fpdu, false).unwrap().whole().expect("a whole FPDU").header
}

/// An FPDU of a scripted peer.
fn scripted(segment: Segment, last: bool, payload: &[u8], crc: bool) -> Vec<u8> {
    let header = Header { payload_len: payload.len() as u16, last, segment };
    let mut out = Vec::new();
    Fpdu { header, payload }.emit(crc, &mut out);
    out
}

fn untagged(op: UntaggedOp, msn: u32, mo: u32) -> Segment {
    Segment::Untagged { op, msn, mo }
}

const SEND: UntaggedOp = UntaggedOp::Send { solicited: false, invalidate: None };

/// What an engine says of an error, after which its stream is to end.
fn terminate(end: &mut StreamEnd) -> Option<Cause> {
    let said = end.send_all();
    assert_eq!(end.iwarp.state(), State::Error);
    assert!(end.iwarp.ends_stream());
    let last = *fpdus(&said).last()?;
    let Parsed::Whole(fpdu) = Fpdu::parse(last, false).unwrap() else { panic!("a whole FPDU") };
    assert_eq!(fpdu.header.segment, untagged(UntaggedOp::Terminate, 1, 0));
    Terminate::parse(fpdu.payload).unwrap().cause()
}

#[test]
fn messages_of_all_lengths_arrive_whole() {
    for crc in [false, true] {
        for len in [0, 1, 3, 4, 999, 1000, 1001, 4000, 70_001] {
            let (mut a, mut b) = pair(Attr { crc, ..attr() });
            b.post_receive(7, sge(1, 0, 80_000));
            a.post(send(1, sge(0, 5, len)));
            a.post(write(2, sge(0, 5, len), sge(1, 100_000, 0), None));
            a.post(read(3, sge(0, 9, 0), sge(1, 200_000, len)));
            talk(&mut a, &mut b);
            assert_eq!(a.completed(), [(1, Success), (2, Success), (3, Success)], "{len} bytes");
            let (_, received) = b.cx.completions.pop().unwrap();
            assert_eq!((received.wr_id, received.byte_len), (7, len));
            let len = len as usize;
            let expected = |from: usize| (from..from + len).map(pattern).collect::<Vec<_>>();
            assert_eq!(b.cx.memory.bytes(1)[..len], expected(5));
            assert_eq!(b.cx.memory.bytes(1)[100_000..100_000 + len], expected(5));
            assert_eq!(a.cx.memory.bytes(1)[200_000..200_000 + len], expected(9));
            assert_eq!((a.cx.events, b.cx.events), (vec![], vec![]));
        }
    }
}

#[test]
fn a_long_payload_without_a_crc_may_be_put_in_its_place_but_for_its_end() {
    use transport::iwarp::Sink;
    const LEN: u32 = 40_000;
    for (crc, places) in [(false, true), (true, false)] {
        let attr = Attr { crc, max_payload: 50_000, ..attr() };
        let ends = || (StreamEnd::new(attr, 1 << 17), StreamEnd { places, ..StreamEnd::new(attr, 1 << 17) });
        let (mut a, mut b) = ends();
        b.post_receive(7, sge(1, 16, LEN));
        a.post(send(1, sge(0, 5, LEN)));
        a.post(write(2, sge(0, 5, LEN), sge(1, 50_000, 0), None));
        let mut all = a.send_all();
        // The header alone, then some of the payload.
        let rest = all.split_off(100);
        b.hear(&all);
        let (sges, came) = ([sge(1, 16, LEN)], 100 - 20);
        let expected = places.then_some(Sink::Receive(&sges, came, (LEN as u64 - came) as usize - 64));
        assert_eq!(b.iwarp.sink(), expected);
        rest.chunks(7000).for_each(|chunk| b.hear(chunk));
        talk(&mut a, &mut b);
        assert_eq!((a.completed(), b.completed()), (vec![(1, Success), (2, Success)], vec![(7, Success)]));
        let expected: Vec<_> = (5..5 + LEN as usize).map(pattern).collect();
        assert_eq!(b.cx.memory.bytes(1)[16..][..LEN as usize], expected);
        assert_eq!(b.cx.memory.bytes(1)[50_000..][..LEN as usize], expected);
        b.post(read(3, sge(0, 5, 0), sge(1, 3, LEN)));
        talk(&mut a, &mut b);
        assert_eq!(b.cx.memory.bytes(1)[3..][..LEN as usize], expected);
    }
}

#[test]
fn a_long_payload_leaves_as_ranges_of_memory_and_a_short_one_as_bytes() {
    use transport::iwarp::Piece;
    let mut a = StreamEnd::new(Attr { max_payload: 8192, ..attr() }, LEN);
    a.post(write(1, sge(0, 0, 10_000), sge(1, 0, 0), None));
    let mut batch = StreamBatch::new();
    a.iwarp.fill(&mut batch, &mut a.cx);
    let pieces: Vec<_> = batch.pieces().copied().collect();
    // 16 bytes of header; the CRC of the first FPDU and all of the second one.
    let second = 4 + 16 + (10_000 - 8192) + 4;
    assert_eq!(pieces, [Piece::Own(16), Piece::Local(sge(0, 0, 8192)), Piece::Own(second)]);
    batch.advance(20);
    assert_eq!(batch.pieces().next(), Some(&Piece::Local(sge(0, 4, 8188))));
    assert_eq!(batch.len(), 8188 + second as u64);
    a.iwarp.sent(20, &mut a.cx);
    assert_eq!(a.completed(), []);
    a.iwarp.sent(batch.len(), &mut a.cx);
    assert_eq!(a.completed(), [(1, Success)]);
}

#[test]
fn elements_of_a_request_follow_one_another() {
    let (mut a, mut b) = pair(attr());
    let data = Data::Sges([sge(0, 10, 700), sge(0, 5000, 0), sge(0, 2000, 900)].into_iter().collect());
    a.post(SendWr { data: data.clone(), ..write(1, sge(0, 0, 0), sge(1, 0, 0), None) });
    let into = Data::Sges([sge(1, 0, 700), sge(1, 9000, 900)].into_iter().collect());
    a.post(SendWr { data: into, ..read(2, sge(0, 50, 0), sge(0, 0, 0)) });
    talk(&mut a, &mut b);
    assert_eq!(a.completed(), [(1, Success), (2, Success)]);
    let written = b.cx.memory.bytes(1);
    assert_eq!(written[..700], (10..710).map(pattern).collect::<Vec<_>>());
    assert_eq!(written[700..1600], (2000..2900).map(pattern).collect::<Vec<_>>());
    let got = a.cx.memory.bytes(1);
    assert_eq!(got[9000..9900], (750..1650).map(pattern).collect::<Vec<_>>());
}

#[test]
fn a_request_completes_when_the_stream_has_taken_its_last_byte() {
    let (mut a, mut b) = pair(attr());
    a.post(send(1, sge(0, 0, 100)));
    b.post_receive(7, sge(1, 0, 100));
    let first = a.send(123);
    assert_eq!((first.len(), a.completed()), (123, vec![]));
    let rest = a.send(1);
    assert_eq!(a.completed(), [(1, Success)]);
    b.hear(&first);
    assert_eq!(b.completed(), [], "nothing completes before the CRC has come");
    b.hear(&rest);
    assert_eq!(b.completed(), [(7, Success)]);
}

#[test]
fn a_read_holds_back_the_completions_behind_it_and_a_fence_what_it_is_before() {
    let (mut a, mut b) = pair(attr());
    a.post(read(1, sge(0, 0, 0), sge(1, 0, 3000)));
    a.post(write(2, sge(0, 0, 8), sge(1, 0, 0), None));
    a.post(SendWr { fence: true, ..write(3, sge(0, 0, 8), sge(1, 8, 0), None) });
    let asked = a.send_all();
    assert_eq!(fpdus(&asked).len(), 2, "the third one waits");
    assert_eq!(a.completed(), []);
    b.hear(&asked);
    a.hear(&b.send_all());
    assert_eq!(a.completed(), [(1, Success), (2, Success)]);
    assert_eq!(fpdus(&a.send_all()).len(), 1);
    assert_eq!(a.completed(), [(3, Success)]);
}

#[test]
fn no_more_reads_are_outstanding_than_agreed_on() {
    let (mut a, mut b) = pair(attr());
    (0..5).for_each(|n| a.post(read(n, sge(0, 0, 0), sge(1, n * 100, 100))));
    assert_eq!(fpdus(&a.send_all()).len(), 2);
    let (mut a, _) = pair(attr());
    (0..5).for_each(|n| a.post(read(n, sge(0, 0, 0), sge(1, n * 100, 100))));
    talk(&mut a, &mut b);
    assert_eq!(a.completed().len(), 5);
    // A peer that has more is refused.
    let mut a = StreamEnd::new(Attr { ord: 3, ..attr() }, LEN);
    (0..3).for_each(|n| a.post(read(n, sge(0, 0, 0), sge(1, n * 100, 100))));
    let mut b = StreamEnd::new(attr(), LEN);
    b.hear(&a.send_all());
    assert_eq!(terminate(&mut b), Some(Cause::StreamCatastrophic));
    // Without a depth there are none.
    let mut a = StreamEnd::new(Attr { ord: 0, ..attr() }, LEN);
    a.post(read(1, sge(0, 0, 0), sge(1, 0, 100)));
    assert_eq!(a.send_all(), []);
    assert_eq!(a.completed(), [(1, LocalQpOperation)]);
}

#[test]
fn headers_are_those_of_the_kernel() {
    let mut a = StreamEnd::new(Attr { max_payload: 4000, ..attr() }, LEN);
    let invalidate = SendOp::Send(SendTail::Invalidate(Rkey(0x77)));
    a.post(send(1, sge(0, 0, 5000)));
    a.post(SendWr { op: invalidate, solicited: true, ..send(2, sge(0, 0, 4)) });
    a.post(read(3, sge(0, 0, 0), sge(1, 16, 32)));
    let sent = a.send_all();
    let segments: Vec<_> =
        fpdus(&sent).iter().map(|fpdu| (header(fpdu).segment, header(fpdu).last)).collect();
    let with_key = UntaggedOp::Send { solicited: true, invalidate: Some(Rkey(0x77)) };
    assert_eq!(
        segments,
        [
            (untagged(SEND, 1, 0), false),
            (untagged(SEND, 1, 4000), true),
            (untagged(with_key, 2, 0), true),
            (untagged(UntaggedOp::ReadRequest, 1, 0), true),
        ]
    );
    let asked = fpdus(&sent)[3];
    let request = ReadRequest::parse(&asked[Header::UNTAGGED_LEN..][..ReadRequest::LEN]).unwrap();
    let sink = sge(1, 16, 32);
    assert_eq!((request.sink_stag, request.sink_to, request.size), (sink.lkey, sink.addr, 32));
}

#[test]
fn a_send_may_invalidate_a_key_and_ask_for_an_event() {
    let (mut a, mut b) = pair(attr());
    b.post_receive(7, sge(1, 0, 100));
    let invalidate = SendOp::Send(SendTail::Invalidate(Rkey(0x77)));
    a.post(SendWr { op: invalidate, solicited: true, ..send(1, sge(0, 0, 4)) });
    talk(&mut a, &mut b);
    let (side, completion) = b.cx.completions[0];
    assert_eq!((side, completion.opcode, completion.solicited), (Side::Receive, Completed::Receive, true));
    assert_eq!(completion.tail, SendTail::Invalidate(Rkey(0x77)));
    assert_eq!(b.cx.memory.invalidated.borrow()[..], [Rkey(0x77)]);
    // A key that is none of the peer's to take back.
    b.post_receive(8, sge(1, 0, 100));
    a.post(SendWr { op: SendOp::Send(SendTail::Invalidate(Rkey(KEY))), ..send(2, sge(0, 0, 4)) });
    b.completed();
    b.hear(&a.send_all());
    assert_eq!(terminate(&mut b), Some(Cause::CannotInvalidate));
    assert_eq!(b.completed(), [(8, Status::RemoteInvalidRequest)]);
}

#[test]
fn what_iwarp_has_not_fails_when_it_is_the_oldest() {
    let at = sge(1, 0, 8);
    let add = transport::op::AtomicOp::FetchAdd(1);
    let global = transport::op::Flush { global: true, ..Default::default() };
    for wrong in [
        write(2, sge(0, 0, 8), at, Some([1; 4])),
        SendWr { op: SendOp::Send(SendTail::Immediate([1; 4])), ..send(2, sge(0, 0, 8)) },
        atomic(2, add, at, sge(0, 0, 8)),
        flush(2, at, global),
    ] {
        let mut a = StreamEnd::new(attr(), LEN);
        a.post(write(1, sge(0, 0, 8), at, None));
        a.post(wrong);
        a.post(write(3, sge(0, 0, 8), at, None));
        assert_eq!(fpdus(&a.send_all()).len(), 1, "what is before it leaves, and nothing behind it");
        assert_eq!(a.completed(), [(1, Success), (2, LocalQpOperation), (3, WrFlush)]);
        assert_eq!(a.iwarp.state(), State::Error);
    }
}

#[test]
fn memory_of_the_program_that_is_wrong_fails_the_request() {
    let mut a = StreamEnd::new(attr(), LEN);
    a.post(send(1, sge(0, LEN as u64 - 4, 8)));
    assert_eq!(a.send_all(), []);
    assert_eq!(a.completed(), [(1, LocalProtection)]);
    // Of a long message it is found as it leaves.
    let mut a = StreamEnd::new(Attr { max_payload: 60_000, ..attr() }, LEN);
    a.post(send(1, sge(0, LEN as u64 - 4, 50_000)));
    a.iwarp.fill(&mut a.batch, &mut a.cx);
    a.iwarp.lost_memory(&mut a.cx);
    assert_eq!((a.completed(), a.iwarp.state()), (vec![(1, LocalProtection)], State::Error));
    assert!(a.iwarp.ends_stream());
    // That of a READ when the response comes.
    let (mut a, mut b) = pair(attr());
    a.post(read(1, sge(0, 0, 0), sge(1, LEN as u64 - 4, 8)));
    a.post(send(2, sge(0, 0, 8)));
    b.post_receive(7, sge(1, 0, 8));
    b.hear(&a.send_all());
    a.hear(&b.send_all());
    assert_eq!(a.completed(), [(1, LocalProtection), (2, WrFlush)]);
    assert_eq!(terminate(&mut a), Some(Cause::TaggedBaseOrBounds));
    assert_eq!(a.cx.events, [QpEvent::AccessError]);
}

/// What a receiver with one receive of 100 bytes says to an FPDU of a scripted peer.
fn answer(fpdu: &[u8], crc: bool) -> (Option<Cause>, Vec<QpEvent>, Vec<(u64, Status)>) {
    let mut b = StreamEnd::new(Attr { crc, ..attr() }, 4096);
    b.post_receive(7, sge(1, 0, 100));
    b.hear(fpdu);
    let cause = terminate(&mut b);
    assert_eq!(b.cx.memory.bytes(1)[100..], vec![0; 4096 - 100], "nothing outside is touched");
    let completed = b.completed();
    (cause, b.cx.events, completed)
}

#[test]
fn each_illegal_segment_has_the_terminate_that_names_it() {
    use QpEvent::{AccessError, Fatal};
    let to = |op, key, at| Segment::Tagged { op, stag: Rkey(key), to: BASE * 2 + at };
    let request = |source_stag, at, size| ReadRequest {
        sink_stag: Rkey(1),
        sink_to: 0,
        size,
        source_stag: Rkey(source_stag),
        source_to: BASE * 2 + at,
    };
    let asks = |msn, request: ReadRequest| {
        scripted(untagged(UntaggedOp::ReadRequest, msn, 0), true, &request.emit(), false)
    };
    let first = |segment, payload: &[u8]| scripted(segment, true, payload, false);
    for (name, fpdu, cause, event, completed) in [
        ("MSN", first(untagged(SEND, 2, 0), b"x"), Cause::MsnRange, Fatal, vec![]),
        ("MO", first(untagged(SEND, 1, 4), b"x"), Cause::InvalidMo, Fatal, vec![]),
        (
            "length",
            first(untagged(SEND, 1, 0), &[1; 101]),
            Cause::MessageTooLong,
            Fatal,
            vec![(7, LocalLength)],
        ),
        ("STag", first(to(TaggedOp::Write, 9, 0), b"x"), Cause::TaggedInvalidStag, AccessError, vec![]),
        (
            "bounds",
            first(to(TaggedOp::Write, KEY + 1, 4096), b"x"),
            Cause::TaggedBaseOrBounds,
            AccessError,
            vec![],
        ),
        (
            "response",
            first(to(TaggedOp::ReadResponse, KEY + 1, 0), b"x"),
            Cause::DdpCatastrophic,
            Fatal,
            vec![],
        ),
        ("READ's STag", asks(1, request(9, 0, 4)), Cause::InvalidStag, AccessError, vec![]),
        ("READ's bounds", asks(1, request(KEY + 1, 4000, 97)), Cause::BaseOrBounds, AccessError, vec![]),
        ("READ's MSN", asks(2, request(KEY + 1, 0, 4)), Cause::MsnRange, Fatal, vec![]),
        (
            "READ's length",
            first(untagged(UntaggedOp::ReadRequest, 1, 0), b"x"),
            Cause::OperationUnspecified,
            Fatal,
            vec![],
        ),
    ] {
        assert_eq!(answer(&fpdu, false), (Some(cause), vec![event], completed), "{name}");
        let cut: Vec<_> = fpdu.iter().map(std::slice::from_ref).collect();
        let mut b = StreamEnd::new(attr(), 4096);
        b.post_receive(7, sge(1, 0, 100));
        cut.iter().for_each(|byte| b.hear(byte));
        assert_eq!(terminate(&mut b), Some(cause), "{name}, a byte at a time");
    }
}

#[test]
fn a_send_without_a_receive_ends_the_connection() {
    let (mut a, mut b) = pair(attr());
    a.post(send(1, sge(0, 0, 100)));
    b.hear(&a.send_all());
    assert_eq!(a.completed(), [(1, Success)]);
    b.post(write(5, sge(0, 0, 8), sge(1, 0, 0), None));
    let said = b.send_all();
    assert_eq!((b.completed(), &b.cx.events[..]), (vec![(5, WrFlush)], &[QpEvent::Fatal][..]));
    a.post(read(2, sge(0, 0, 0), sge(1, 0, 8)));
    a.send_all();
    a.hear(&said);
    assert_eq!(a.completed(), [(2, WrFlush)]);
    assert_eq!((a.iwarp.terminated_by(), a.iwarp.state()), (Some(Cause::MsnNoBuffer), State::Error));
    assert_eq!(a.send_all(), [], "a TERMINATE is not answered");
}

#[test]
fn rights_that_end_while_a_read_is_answered_refuse_the_rest() {
    let (mut a, mut b) = pair(Attr { crc: true, ..attr() });
    a.post(read(1, sge(1, 0, 0), sge(1, 0, 500_000)));
    b.hear(&a.send_all());
    let first = b.send(usize::MAX);
    b.cx.memory.regions[1].remote = false;
    a.hear(&first);
    let rest = b.send_all();
    assert_eq!((&b.cx.events[..], b.iwarp.state()), (&[][..], State::Error));
    a.hear(&rest);
    assert_eq!((a.iwarp.terminated_by(), a.completed()), (Some(Cause::AccessRights), vec![(1, WrFlush)]));
}

#[test]
fn a_byte_that_was_changed_on_the_way_completes_nothing_where_there_is_a_crc() {
    let sent = scripted(untagged(SEND, 1, 0), true, &[7; 40], true);
    for at in (20..sent.len()).step_by(3) {
        let mut damaged = sent.clone();
        damaged[at] ^= 4;
        let (cause, events, completed) = answer(&damaged, true);
        assert_eq!(
            (cause, events, completed),
            (Some(Cause::MpaCrc), vec![QpEvent::Fatal], vec![(7, WrFlush)])
        );
    }
}

#[test]
fn the_end_of_the_stream_flushes_what_is_under_way() {
    let (mut a, mut b) = pair(attr());
    a.post(read(1, sge(0, 0, 0), sge(1, 0, 8)));
    a.post(send(2, sge(0, 0, 100)));
    b.post_receive(7, sge(1, 0, 100));
    let sent = a.send_all();
    b.hear(&sent[..sent.len() - 1]);
    assert!(!a.iwarp.close() && !b.iwarp.close(), "neither is at rest");
    for (end, flushed) in [(&mut a, vec![(1, WrFlush), (2, WrFlush)]), (&mut b, vec![(7, WrFlush)])] {
        end.iwarp.end_of_stream(&mut end.cx);
        assert_eq!((end.completed(), end.iwarp.state()), (flushed, State::Error));
        assert!(end.iwarp.ends_stream());
        end.post(send(9, sge(0, 0, 8)));
        assert_eq!((end.completed(), end.send_all()), (vec![(9, WrFlush)], vec![]));
    }
}

#[test]
fn a_stream_at_rest_is_closed_without_an_error() {
    let (mut a, mut b) = pair(attr());
    a.post(send(1, sge(0, 0, 100)));
    b.post_receive(7, sge(1, 0, 100));
    talk(&mut a, &mut b);
    assert!(a.iwarp.close() && a.iwarp.ends_stream());
    b.iwarp.end_of_stream(&mut b.cx);
    a.iwarp.end_of_stream(&mut a.cx);
    assert_eq!((a.completed(), b.completed()), (vec![(1, Success)], vec![(7, Success)]));
    assert_eq!((a.cx.events, b.cx.events), (vec![], vec![]));
}

#[test]
fn the_side_that_connected_says_that_it_is_ready() {
    for rtr in [Rtr::Write, Rtr::Read, Rtr::Send] {
        let (mut a, mut b) = pair(attr());
        a.iwarp.send_rtr(rtr);
        b.iwarp.expect_rtr(rtr);
        b.post_receive(7, sge(1, 0, 100));
        b.post(write(9, sge(0, 0, 8), sge(1, 0, 0), None));
        assert_eq!(b.send_all(), [], "nothing leaves before the peer is ready");
        talk(&mut a, &mut b);
        assert_eq!((a.completed(), b.completed()), (vec![], vec![(9, Success)]), "{rtr:?}");
        a.post(send(1, sge(0, 0, 8)));
        a.post(read(2, sge(0, 0, 0), sge(1, 0, 8)));
        talk(&mut a, &mut b);
        assert_eq!((a.completed(), b.completed()), (vec![(1, Success), (2, Success)], vec![(7, Success)]));
    }
}

#[test]
fn local_operations_take_their_turn() {
    use transport::op::LocalOp;
    let (mut a, mut b) = pair(attr());
    a.post(read(1, sge(0, 0, 0), sge(1, 0, 8)));
    a.post(SendWr { op: SendOp::Local(LocalOp::Invalidate(Rkey(0x77))), ..send(2, sge(0, 0, 0)) });
    let asked = a.send_all();
    assert_eq!((fpdus(&asked).len(), a.completed()), (1, vec![]));
    b.hear(&asked);
    a.hear(&b.send_all());
    assert_eq!(a.completed(), [(1, Success), (2, Success)]);
    a.post(SendWr { op: SendOp::Local(LocalOp::Invalidate(Rkey(KEY))), ..send(3, sge(0, 0, 0)) });
    a.send_all();
    assert_eq!((a.completed(), a.iwarp.state()), (vec![(3, Status::MwBind)], State::Error));
}

#[test]
fn what_a_stream_has_carried_is_counted_at_both_ends() {
    let (mut a, mut b) =
        (StreamEnd::new(attr(), 8192), StreamEnd { places: true, ..StreamEnd::new(attr(), 8192) });
    b.post_receive(1, sge(1, 0, 8192));
    a.post(send(2, sge(0, 0, 2500)));
    a.post(write(3, sge(0, 0, 100), sge(1, 4096, 0), None));
    a.post(read(4, sge(0, 0, 0), sge(1, 0, 1500)));
    let asked = a.send_all();
    b.hear(&asked);
    let answer = b.send_all();
    a.hear(&answer);
    let way =
        |stream: &[u8], sends| Way { bytes: stream.len() as u64, fpdus: fpdus(stream).len() as u64, sends };
    // Three FPDUs of the SEND, one of the WRITE, the READ request; two of its response.
    assert_eq!((way(&asked, 1).fpdus, way(&answer, 0).fpdus), (5, 2));
    assert_eq!(a.iwarp.carried(), Carried { sent: way(&asked, 1), received: way(&answer, 0) });
    assert_eq!(b.iwarp.carried(), Carried { sent: way(&answer, 0), received: way(&asked, 1) });
}
