//! Whatever is legal of iWARP survives emit and parse; whatever bytes arrive, in whatever pieces,
//! parse answers.

use proptest::prelude::*;
use wire::Rkey;
use wire::iwarp::Parsed;
use wire::iwarp::crc::Crc32c;
use wire::iwarp::ddp::{Header, Segment, TaggedOp, UntaggedOp};
use wire::iwarp::fpdu::{BadFpdu, Fpdu, MAX_TRAILER_LEN, fpdu_len, peek_fpdu_len, trailer};
use wire::iwarp::mpa::{self, Enhanced, Frame, Kind};
use wire::iwarp::rdmap::{Cause, Code, CopiedHeader, ReadRequest, Refused, Terminate};

fn rkey() -> impl Strategy<Value = Rkey> {
    any::<u32>().prop_map(Rkey)
}

fn segment() -> impl Strategy<Value = Segment> {
    let tagged_op = prop_oneof![Just(TaggedOp::Write), Just(TaggedOp::ReadResponse)];
    let send = (any::<bool>(), proptest::option::of(rkey()))
        .prop_map(|(solicited, invalidate)| UntaggedOp::Send { solicited, invalidate });
    let untagged_op = prop_oneof![send, Just(UntaggedOp::ReadRequest), Just(UntaggedOp::Terminate)];
    prop_oneof![
        (tagged_op, rkey(), any::<u64>()).prop_map(|(op, stag, to)| Segment::Tagged { op, stag, to }),
        (untagged_op, any::<[u32; 2]>()).prop_map(|(op, [msn, mo])| Segment::Untagged { op, msn, mo }),
    ]
}

prop_compose! {
    fn header()(segment in segment(), last: bool, payload_len in 0u16..=u16::MAX - 18) -> Header {
        Header { payload_len, last, segment }
    }
}

/// A header, and the payload behind it.
fn fpdu() -> impl Strategy<Value = (Header, Vec<u8>)> {
    let payload = proptest::collection::vec(any::<u8>(), 0..200);
    (header(), payload)
        .prop_map(|(header, payload)| (Header { payload_len: payload.len() as u16, ..header }, payload))
}

prop_compose! {
    fn enhanced()(flags: [bool; 4], ird in 0u16..1 << 14, ord in 0u16..1 << 14) -> Enhanced {
        let [peer_to_peer, send_rtr, write_rtr, read_rtr] = flags;
        Enhanced { peer_to_peer, send_rtr, write_rtr, read_rtr, ird, ord }
    }
}

/// All of a frame but its private data, and that.
fn frame() -> impl Strategy<Value = (Frame<'static>, Vec<u8>)> {
    let kind = prop_oneof![Just(Kind::Request), Just(Kind::Reply)];
    let revision = prop_oneof![
        enhanced().prop_map(|enhanced| (mpa::ENHANCED_REVISION, Some(enhanced))),
        any::<u8>().prop_map(|revision| (revision, None)),
    ];
    let data = proptest::collection::vec(any::<u8>(), 0..=mpa::MAX_ENHANCED_PRIVATE_DATA);
    (kind, any::<[bool; 3]>(), revision, data).prop_map(|(kind, flags, (revision, enhanced), data)| {
        let [markers, crc, rejected] = flags;
        (Frame { kind, markers, crc, rejected, revision, enhanced, private_data: &[] }, data)
    })
}

prop_compose! {
    fn read_request()(stags: [u32; 2], offsets: [u64; 2], size: u32) -> ReadRequest {
        let ([sink_stag, source_stag], [sink_to, source_to]) = (stags.map(Rkey), offsets);
        ReadRequest { sink_stag, sink_to, size, source_stag, source_to }
    }
}

prop_compose! {
    fn refused()(segment_len: Option<u16>, segment: [u8; CopiedHeader::MAX_LEN]) -> Refused {
        Refused { segment_len, header: CopiedHeader::copy(&segment).unwrap() }
    }
}

fn terminate() -> impl Strategy<Value = Terminate> {
    let code = (0u8..16, 0u8..16, any::<u8>()).prop_map(|(layer, etype, code)| Code { layer, etype, code });
    let code = prop_oneof![code, proptest::sample::select(Cause::ALL).prop_map(Cause::code)];
    let (refused, request) = (proptest::option::of(refused()), proptest::option::of(read_request()));
    (code, refused, request).prop_map(|(code, refused, read_request)| Terminate {
        code,
        refused,
        read_request,
    })
}

/// The FPDUs of a stream that arrives in pieces, up to what is malformed.
fn collect(stream: &[u8], cuts: &[usize], crc: bool) -> (Vec<(Header, Vec<u8>)>, Option<BadFpdu>) {
    let (mut found, mut begin) = (Vec::new(), 0);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    ends.sort_unstable();
    for end in ends.into_iter().chain([stream.len()]) {
        loop {
            match Fpdu::parse(&stream[begin..end], crc) {
                Err(bad) => return (found, Some(bad)),
                Ok(Parsed::Needs(more)) => {
                    assert!(more > 0);
                    break;
                }
                Ok(Parsed::Whole(fpdu)) => {
                    begin += fpdu.len();
                    found.push((fpdu.header, fpdu.payload.to_vec()));
                }
            }
        }
    }
    (found, None)
}

fn emitted(fpdus: &[(Header, Vec<u8>)], crc: bool) -> Vec<u8> {
    let mut stream = Vec::new();
    for (header, payload) in fpdus {
        Fpdu { header: *header, payload }.emit(crc, &mut stream);
    }
    stream
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 2000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_mpa_frame_survives_emit_and_parse((frame, data) in frame(), behind in any::<[u8; 3]>()) {
        let frame = Frame { private_data: &data, ..frame };
        let mut bytes = [0xa5; mpa::MAX_LEN];
        let len = frame.emit(&mut bytes);
        prop_assert_eq!(len, frame.len());
        let stream = [&bytes[..len], &behind].concat();
        prop_assert_eq!(Frame::parse(frame.kind, &stream), Ok(Parsed::Whole(frame)));
        for cut in 0..len {
            let Ok(Parsed::Needs(more)) = Frame::parse(frame.kind, &stream[..cut]) else {
                return Err(TestCaseError::fail(format!("{cut} bytes")));
            };
            prop_assert!((1..=len - cut).contains(&more));
        }
    }

    #[test]
    fn what_parses_from_any_bytes_as_a_frame_reemits_to_one_that_parses_alike(
        request: bool,
        rest in proptest::collection::vec(any::<u8>(), 0..600),
        revision in 0u8..4,
        len in 0u16..530,
    ) {
        let kind = if request { Kind::Request } else { Kind::Reply };
        let key = if request { b"MPA ID Req Frame" } else { b"MPA ID Rep Frame" };
        let mut stream = [&key[..], &rest].concat();
        if let Some([_, of_frame, high, low]) = stream.get_mut(16..20) {
            (*of_frame, [*high, *low]) = (revision, len.to_be_bytes());
        }
        if let Ok(Parsed::Whole(frame)) = Frame::parse(kind, &stream) {
            let mut bytes = [0; mpa::MAX_LEN];
            let len = frame.emit(&mut bytes);
            prop_assert_eq!(Frame::parse(kind, &bytes[..len]), Ok(Parsed::Whole(frame)));
        }
    }

    #[test]
    fn every_ddp_header_survives_emit_and_parse(header in header()) {
        let mut bytes = [0xa5; Header::MAX_LEN];
        let len = header.emit(&mut bytes);
        prop_assert_eq!(len, header.len());
        prop_assert_eq!(Header::parse(&bytes), Ok(Parsed::Whole(header)));
        prop_assert_eq!(peek_fpdu_len(&bytes), Some(fpdu_len(header.ulpdu_len())));
        for cut in 0..len {
            let Ok(Parsed::Needs(more)) = Header::parse(&bytes[..cut]) else {
                return Err(TestCaseError::fail(format!("{cut} bytes")));
            };
            prop_assert!((1..=len - cut).contains(&more));
        }
    }

    #[test]
    fn an_fpdu_by_its_parts_is_the_whole_one((header, payload) in fpdu(), crc: bool) {
        let (mut head, mut end) = ([0; Header::MAX_LEN], [0; MAX_TRAILER_LEN]);
        let len = header.emit(&mut head);
        let covered = crc.then(|| Crc32c::new().update(&head[..len]).update(&payload));
        let end_len = trailer(header.ulpdu_len(), covered, &mut end);
        let parts = [&head[..len], &payload, &end[..end_len]].concat();
        prop_assert_eq!(parts, emitted(&[(header, payload)], crc));
    }

    #[test]
    fn a_stream_gives_its_fpdus_however_it_is_cut(
        fpdus in proptest::collection::vec(fpdu(), 0..6),
        cuts: [usize; 12],
        crc: bool,
    ) {
        let stream = emitted(&fpdus, crc);
        prop_assert_eq!(collect(&stream, &cuts, crc), (fpdus, None));
    }

    #[test]
    fn any_stream_gives_the_same_however_it_is_cut(
        fpdus in proptest::collection::vec(fpdu(), 1..4),
        noise in any::<[(usize, u8); 2]>(),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
        cuts: [usize; 12],
        crc: bool,
    ) {
        let mut stream = [emitted(&fpdus, crc), tail].concat();
        for (at, value) in noise {
            let at = at % stream.len();
            stream[at] ^= value;
        }
        prop_assert_eq!(collect(&stream, &cuts, crc), collect(&stream, &[], crc));
    }

    #[test]
    fn every_read_request_survives_emit_and_parse(request in read_request()) {
        prop_assert_eq!(ReadRequest::parse(&request.emit()), Ok(request));
    }

    #[test]
    fn every_terminate_survives_emit_and_parse(terminate in terminate()) {
        let mut bytes = [0xa5; Terminate::MAX_LEN];
        let len = terminate.emit(&mut bytes);
        prop_assert_eq!(Terminate::parse(&bytes[..len]), Ok(terminate));
    }

    #[test]
    fn a_terminate_of_any_fpdu_names_its_cause(
        cause in proptest::sample::select(Cause::ALL),
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let terminate = Terminate::of(cause, &bytes);
        let mut out = [0; Terminate::MAX_LEN];
        let len = terminate.emit(&mut out);
        prop_assert_eq!(Terminate::parse(&out[..len]), Ok(terminate));
        prop_assert_eq!(terminate.cause(), Some(cause));
    }

    #[test]
    fn arbitrary_bytes_never_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for crc in [false, true] {
            let _ = Fpdu::parse(&bytes, crc).map_err(|bad| Terminate::of(bad.cause(), &bytes));
        }
        let _ = Header::parse(&bytes);
        let _ = Frame::parse(Kind::Request, &bytes);
        let _ = Frame::parse(Kind::Reply, &bytes);
        let _ = ReadRequest::parse(&bytes);
        let _ = Terminate::parse(&bytes);
    }
}
