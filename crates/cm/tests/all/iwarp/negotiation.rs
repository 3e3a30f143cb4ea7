//! Depths of READs, RTR, and revisions.

use super::support::*;
use cm::iw::Config;
use cm::{Accept, Agreed, Close, Connect, Event, Parameters, Rtr, RtrMessage};
use wire::iwarp::Parsed;
use wire::iwarp::ddp::{Segment, UntaggedOp};
use wire::iwarp::fpdu::Fpdu;
use wire::iwarp::mpa::{Enhanced, Frame, Kind};
use wire::iwarp::rdmap::{Cause, Terminate};

const NOT: u16 = Enhanced::NOT_NEGOTIATED;

fn depths(ird: u16, ord: u16) -> Option<Enhanced> {
    Some(Enhanced { ird, ord, ..Enhanced::default() })
}

/// The server's end of a request that is accepted with IRD and ORD: what it offered the program,
/// what the reply says, what was agreed on.
fn served(asks: &Frame<'_>, ird: u8, ord: u8) -> ([u8; 2], Option<Enhanced>, Agreed) {
    let mut end = End::new(Config::default());
    let stream = end.asked_by(&bytes(asks), 5);
    let (id, request) = end.request();
    let offered = [request.parameters.responder_resources, request.parameters.initiator_depth];
    let parameters = Parameters { responder_resources: ird, initiator_depth: ord, ..accept().parameters };
    end.cm.accept(end.now, id, &Accept { parameters, ..accept() }).unwrap();
    let said = end.says(stream);
    let reply = parsed(Kind::Reply, &said);
    assert_eq!((reply.revision, reply.rejected), (asks.revision, false));
    (offered, reply.enhanced, end.given[&stream].agreed)
}

#[test]
fn the_responder_grants_the_initiators_reads_and_starts_no_more_than_it_accepts() {
    // The request's IRD and ORD; those of the server's program; what it is offered; the reply's.
    for (asks, ours, offered, grants) in [
        ((8, 9), (9, 8), [9, 8], (9, 8)),
        ((8, 9), (1, 1), [9, 8], (9, 1)),
        ((8, 9), (20, 20), [9, 8], (20, 8)),
        ((0, 0), (4, 4), [0, 0], (4, 0)),
        ((0, 1), (0, 0), [1, 0], (1, 0)),
        ((1000, 1000), (1, 128), [128, 128], (128, 128)),
        ((NOT, NOT), (4, 3), [128, 128], (NOT, NOT)),
        ((NOT, 9), (4, 3), [9, 128], (9, NOT)),
        ((8, NOT), (4, 30), [128, 8], (NOT, 8)),
    ] {
        let frame = Frame { enhanced: depths(asks.0, asks.1), ..REQUEST };
        let (program, reply, agreed) = served(&frame, ours.0, ours.1);
        assert_eq!((program, reply), (offered, depths(grants.0, grants.1)), "{asks:?} {ours:?}");
        let own = |says: u16, own: u8| if says == NOT { own } else { says as u8 };
        assert_eq!((agreed.ird, agreed.ord), (own(grants.0, ours.0), own(grants.1, ours.1)));
    }
}

#[test]
fn the_initiator_starts_no_more_reads_than_are_accepted_and_accepts_those_that_it_can() {
    // The client asks for an IRD of 4 and an ORD of 3.
    for (grants, agreed) in [
        ((3, 4), (4, 3)),
        ((1, 4), (4, 1)),
        ((0, 0), (4, 0)),
        ((300, 1), (4, 3)),
        ((3, 128), (128, 3)),
        ((NOT, NOT), (4, 3)),
    ] {
        let mut end = End::new(Config::default());
        let (id, stream, _) = end.asking(&connect());
        end.hear(stream, &bytes(&Frame { enhanced: depths(grants.0, grants.1), ..REPLY }), 5);
        let Event::Reply(reply) = end.last(id) else { panic!("{grants:?}: {:?}", end.events) };
        let told = (reply.parameters.responder_resources, reply.parameters.initiator_depth);
        assert_eq!(told, agreed, "{grants:?}");
        let attributes = end.cm.qp_attr(id).unwrap();
        assert_eq!((attributes.max_dest_rd_atomic, attributes.max_rd_atomic), agreed);
    }
}

/// What a TERMINATE says, which is all that was written.
fn cause_of(said: &[u8], crc: bool) -> Option<Cause> {
    let Ok(Parsed::Whole(fpdu)) = Fpdu::parse(said, crc) else { panic!("no FPDU: {said:?}") };
    assert_eq!(fpdu.len(), said.len());
    let is_terminate = Segment::Untagged { op: UntaggedOp::Terminate, msn: 1, mo: 0 };
    assert_eq!(fpdu.header.segment, is_terminate);
    Terminate::parse(fpdu.payload).unwrap().cause()
}

#[test]
fn a_reply_that_wants_more_reads_than_we_accept_is_terminated() {
    for (ord, crc) in [(129, false), (256, true), (NOT - 1, false)] {
        let mut end = End::new(Config::default());
        let (id, stream, _) = end.asking(&connect());
        end.hear(stream, &bytes(&Frame { crc, enhanced: depths(3, ord), ..REPLY }), 5);
        assert_eq!(end.events_of(id), [&Event::ConnectError { status: cm::EINVAL }]);
        assert_eq!(cause_of(&end.says(stream), crc), Some(Cause::MpaInsufficientIrd));
        assert_eq!(end.closed[&stream], Close::Gracefully);
    }
}

fn with_rtr(write_rtr: bool, read_rtr: bool) -> Config {
    Config { peer_to_peer: true, write_rtr, read_rtr, ..Config::default() }
}

#[test]
fn the_rtr_is_a_write_where_it_is_offered_and_else_a_read() {
    for (config, message) in [
        (with_rtr(true, true), RtrMessage::Write),
        (with_rtr(true, false), RtrMessage::Write),
        (with_rtr(false, true), RtrMessage::Read),
    ] {
        let mut pair = Pair::with(3, config, Config::default());
        let [_, passive] = pair.connected();
        let [near, far] = pair.link();
        assert_eq!(pair.ends[0].given[&near].agreed.rtr, Rtr::Send(message));
        assert_eq!(pair.ends[1].given[&far].agreed.rtr, Rtr::Await(message));
        // Its program may not send before.
        assert_eq!(pair.ends[1].events_of(passive).len(), 1);
        assert!(pair.ends[1].cm.is_half_open(passive) && pair.ends[1].cm.qp_attr(passive).is_some());
        let now = pair.ends[1].now;
        pair.ends[1].cm.established(now, passive).unwrap();
        pair.settle();
        assert_eq!(pair.ends[1].last(passive), &Event::Established);
        assert!(!pair.ends[1].cm.is_half_open(passive) && pair.ends[1].cm.deadline().is_none());
        pair.ends[1].cm.established(now, passive).unwrap();
        assert!(!pair.ends[1].take(), "the second time changes nothing");
    }
}

#[test]
fn an_initiator_that_may_send_a_read_as_rtr_has_an_ord_of_one_at_least() {
    let mut end = End::new(with_rtr(true, true));
    let parameters = Parameters { initiator_depth: 0, ..connect().parameters };
    let (_, _, said) = end.asking(&Connect { parameters, ..connect() });
    let asks = parsed(Kind::Request, &said).enhanced.unwrap();
    let expected =
        Enhanced { peer_to_peer: true, write_rtr: true, read_rtr: true, ird: 4, ord: 1, send_rtr: false };
    assert_eq!(asks, expected);
}

#[test]
fn a_responder_proposes_a_write_to_a_peer_that_offers_neither() {
    for (send_rtr, peer_to_peer) in [(true, true), (false, true), (true, false), (false, false)] {
        let enhanced = Some(Enhanced { peer_to_peer, send_rtr, ..DEPTHS });
        let (_, reply, agreed) = served(&Frame { enhanced, ..REQUEST }, 9, 8);
        let expected =
            Enhanced { peer_to_peer, write_rtr: peer_to_peer, ird: 9, ord: 8, ..Enhanced::default() };
        assert_eq!(reply, Some(expected));
        let rtr = if peer_to_peer { Rtr::Await(RtrMessage::Write) } else { Rtr::None };
        assert_eq!(agreed.rtr, rtr);
    }
}

#[test]
fn a_reply_that_wants_an_rtr_which_was_not_offered_is_terminated() {
    for (config, wants) in [
        (with_rtr(true, false), Enhanced { read_rtr: true, ..DEPTHS }),
        (with_rtr(false, true), Enhanced { write_rtr: true, ..DEPTHS }),
        (with_rtr(true, true), Enhanced { send_rtr: true, ..DEPTHS }),
        (with_rtr(true, true), DEPTHS),
    ] {
        let mut end = End::new(config);
        let (id, stream, _) = end.asking(&connect());
        let enhanced = Some(Enhanced { peer_to_peer: true, ..wants });
        end.hear(stream, &bytes(&Frame { enhanced, ..REPLY }), 5);
        assert_eq!(end.events_of(id), [&Event::ConnectError { status: cm::EINVAL }]);
        assert_eq!(cause_of(&end.says(stream), false), Some(Cause::MpaNoMatchingRtr));
    }
}

#[test]
fn an_rtr_that_was_not_asked_for_is_not_sent() {
    let mut end = End::new(Config::default());
    let (id, stream, _) = end.asking(&connect());
    let enhanced = Some(Enhanced { peer_to_peer: true, write_rtr: true, ..DEPTHS });
    end.hear(stream, &bytes(&Frame { enhanced, ..REPLY }), 5);
    end.cm.established(end.now, id).unwrap();
    end.take();
    assert_eq!(end.given[&stream].agreed.rtr, Rtr::None);
}

#[test]
fn a_peer_of_revision_1_is_served_with_the_depths_of_the_program() {
    for (revision, len) in [(1, 512), (2, 512), (1, 0)] {
        let data = vec![3; len];
        let asks = Frame { revision, enhanced: None, private_data: &data, ..REQUEST };
        let (offered, reply, agreed) = served(&asks, 5, 6);
        assert_eq!((offered, reply), ([128, 128], None));
        assert_eq!((agreed.ird, agreed.ord, agreed.rtr), (5, 6, Rtr::None));
    }
}

#[test]
fn a_request_of_revision_1_is_made_on_demand_and_asks_for_no_rtr() {
    let config = Config { enhanced: false, ..with_rtr(true, true) };
    let mut pair = Pair::with(2, config, Config::default());
    let [active, passive] = pair.connected();
    assert_eq!(pair.ends[1].last(passive), &Event::Established);
    let attributes = pair.ends[0].cm.qp_attr(active).unwrap();
    assert_eq!((attributes.max_dest_rd_atomic, attributes.max_rd_atomic), (4, 3));
    let mut end = End::new(config);
    let (_, _, said) = end.asking(&connect());
    let request = parsed(Kind::Request, &said);
    assert_eq!((request.revision, request.enhanced, request.private_data), (1, None, &b"asks"[..]));
}

#[test]
fn a_reply_of_revision_1_to_an_enhanced_request_is_a_refusal_as_with_siw() {
    for revision in [1, 2] {
        let mut end = End::new(Config::default());
        let (id, stream, _) = end.asking(&connect());
        end.hear(stream, &bytes(&Frame { revision, enhanced: None, ..REPLY }), 5);
        assert_eq!(end.events_of(id), [&rejected(-ECONNRESET)]);
        assert_eq!(end.closed[&stream], Close::Reset);
        assert_eq!(end.opens.len(), 1, "it is not tried again");
    }
}

#[test]
fn revisions_that_are_not_known_end_the_stream() {
    for revision in [0, 3, 255] {
        let mut end = End::new(Config::default());
        let stream = end.asked_by(&bytes(&Frame { revision, enhanced: None, ..REQUEST }), 5);
        assert!(end.says(stream).is_empty() && end.events.is_empty());
        assert_eq!(end.closed[&stream], Close::Reset);
        let (id, stream, _) = end.asking(&connect());
        end.hear(stream, &bytes(&Frame { revision, enhanced: None, ..REPLY }), 5);
        assert_eq!(end.events_of(id), [&Event::ConnectError { status: cm::EINVAL }]);
        assert_eq!((end.closed[&stream], end.cm.counters().malformed), (Close::Reset, 2));
    }
}
