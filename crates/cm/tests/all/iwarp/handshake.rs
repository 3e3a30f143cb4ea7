//! Connections made: events in order, private data, refusals, the hand-over.

use super::support::*;
use crate::support::service;
use cm::iw::{Cm, Config};
use cm::{
    Accept, Agreed, Close, Connect, Error, Event, NO_PROCESS, Parameters, Refusal, Rtr, TransportService,
};
use wire::iwarp::mpa::{Frame, Kind};
use wire::{LidAddress, Qpn};

#[test]
fn a_connection_is_made_whatever_pieces_its_frames_come_in() {
    for cut in 1..40 {
        let mut pair = Pair::new(cut);
        let [active, passive] = pair.connected();
        let [Event::Reply(reply)] = &pair.ends[0].events_of(active)[..] else { panic!("a reply") };
        assert_eq!((&reply.private_data[..], reply.process), (&b"grants"[..], NO_PROCESS));
        let [Event::Request(request), Event::Established] = &pair.ends[1].events_of(passive)[..] else {
            panic!("{:?}", pair.ends[1].events)
        };
        assert_eq!((&request.private_data[..], request.process), (&b"asks"[..], NO_PROCESS));
        let asked = connect();
        assert_eq!((request.service, request.peer_port), (service(), 0xc983));
        assert_eq!(request.path.source(), asked.path.dest());
        assert_eq!(request.path.dest(), asked.path.source());
        let [near, far] = pair.link();
        let agreed = Agreed { crc: false, ird: 4, ord: 3, rtr: Rtr::None };
        for (end, stream, id) in [(0, near, active), (1, far, passive)] {
            let given = &pair.ends[end].given[&stream];
            assert_eq!((given.conn, given.agreed, &given.behind[..]), (id, agreed, &[][..]));
            let attributes = pair.ends[end].cm.qp_attr(id).unwrap();
            assert_eq!((attributes.max_rd_atomic, attributes.max_dest_rd_atomic), (3, 4));
            assert_eq!((attributes.dest_qpn, attributes.path_mtu), (Qpn::default(), asked.path.mtu));
        }
        assert!(pair.ends.iter().all(|end| end.cm.deadline().is_none() && end.closed.is_empty()));
    }
}

#[test]
fn a_frame_in_two_pieces_is_one_wherever_it_is_cut() {
    let (request, reply) = (bytes(&REQUEST), bytes(&Frame { private_data: b"grants", ..REPLY }));
    for at in 0..=request.len() {
        let mut end = End::new(Config::default());
        let stream = end.accept_stream();
        for piece in [&request[..at], &request[at..]] {
            end.cm.received(end.now, stream, piece);
        }
        end.take();
        assert_eq!(end.request().1.private_data, b"", "{at}");
    }
    for at in 0..=reply.len() {
        let mut end = End::new(Config::default());
        let (id, stream, _) = end.asking(&connect());
        for piece in [&reply[..at], &reply[at..], b"behind"] {
            end.cm.received(end.now, stream, piece);
        }
        end.cm.established(end.now, id).unwrap();
        end.take();
        assert_eq!(end.given[&stream].behind, b"behind", "{at}");
    }
}

#[test]
fn a_stream_is_opened_from_our_port_to_that_of_the_service() {
    let mut end = End::new(Config::default());
    let asked = connect();
    let (_, stream) = end.connect(&asked);
    let open = end.opens[0].1;
    assert_eq!((open.path, open.source_port, open.service), (asked.path, 0xc983, service()));
    assert!(end.says(stream).is_empty(), "nothing is said before the stream stands");
}

#[test]
fn the_queue_pair_gets_the_stream_when_the_consumer_is_ready_and_what_came_behind_the_reply() {
    let mut end = End::new(Config::default());
    let (id, stream, _) = end.asking(&connect());
    end.hear(stream, &[bytes(&REPLY), b"first".to_vec()].concat(), 1000);
    assert!(matches!(end.last(id), Event::Reply(_)));
    end.hear(stream, b" FPDU", 2);
    assert!(end.given.is_empty());
    end.cm.established(end.now, id).unwrap();
    end.take();
    assert_eq!(end.given[&stream].behind, b"first FPDU");
    end.cm.established(end.now, id).unwrap();
    assert!(!end.take(), "the second time changes nothing");
    end.cm.received(end.now, stream, b"the queue pair's");
    assert!(!end.take());
}

#[test]
fn a_request_is_refused_with_private_data() {
    for cut in [1, 7, 1000] {
        let mut pair = Pair::new(cut);
        let (active, _) = pair.ends[0].connect(&connect());
        pair.settle();
        let (passive, _) = pair.ends[1].request();
        assert!(pair.ends[1].cm.is_unanswered(passive) && pair.ends[1].cm.is_half_open(passive));
        assert_eq!(pair.ends[1].cm.half_open(service()), [passive]);
        pair.ends[1].cm.reject(passive, Refusal::ConsumerDefined, b"no").unwrap();
        pair.settle();
        let refusal = Event::Rejected { reason: -ECONNRESET, private_data: b"no".to_vec() };
        assert_eq!(pair.ends[0].events_of(active), [&refusal]);
        assert_eq!(pair.ends[0].released, [(active, connect().parameters.qpn)]);
        assert!(pair.ends[1].cm.is_empty() && pair.ends[1].released.is_empty());
        assert_eq!(pair.ends[1].closed[&pair.link()[1]], Close::Gracefully);
        pair.ends[0].cm.destroy(active);
        assert!(pair.ends[0].cm.is_empty());
    }
}

#[test]
fn private_data_is_as_long_as_it_was_given_up_to_the_room_of_the_frame() {
    let old = Config { enhanced: false, ..Config::default() };
    for (config, room) in [(Config::default(), 508), (old, 512)] {
        for len in [0, 1, 255, room] {
            let mut pair = Pair::with(100, config, Config::default());
            let data = vec![0x5a; len];
            let (active, _) = pair.ends[0].connect(&Connect { private_data: data.clone(), ..connect() });
            pair.settle();
            let (passive, request) = pair.ends[1].request();
            assert_eq!(request.private_data, data);
            let now = pair.ends[1].now;
            let mut answer = Accept { private_data: vec![0; room + 1], ..accept() };
            let cm = &mut pair.ends[1].cm;
            assert_eq!(cm.accept(now, passive, &answer), Err(Error::PrivateData(room + 1, room)));
            let refused = cm.reject(passive, Refusal::ConsumerDefined, &answer.private_data);
            assert_eq!(refused, Err(Error::PrivateData(room + 1, room)));
            answer.private_data = data.clone();
            cm.accept(now, passive, &answer).unwrap();
            pair.settle();
            let Event::Reply(reply) = pair.ends[0].last(active) else { panic!("a reply") };
            assert_eq!(reply.private_data, data);
        }
        let mut end = End::new(config);
        let long = Connect { private_data: vec![0; room + 1], ..connect() };
        assert_eq!(end.cm.connect(end.now, &long), Err(Error::PrivateData(room + 1, room)));
    }
}

#[test]
fn what_no_frame_or_stream_can_say_is_refused() {
    let mut end = End::new(Config::default());
    let asked = connect();
    let deep = Parameters { responder_resources: 129, ..asked.parameters };
    let parameters = Connect { parameters: deep, ..asked.clone() };
    let out_of_range = Error::OutOfRange { what: "responder_resources", value: 129, most: 128 };
    assert_eq!(end.cm.connect(end.now, &parameters), Err(out_of_range));
    let deep = Parameters { initiator_depth: 129, ..asked.parameters };
    let parameters = Connect { parameters: deep, ..asked.clone() };
    assert!(matches!(end.cm.connect(end.now, &parameters), Err(Error::OutOfRange { .. })));
    let uc = Connect { transport_service: TransportService::Uc, ..asked.clone() };
    assert!(matches!(end.cm.connect(end.now, &uc), Err(Error::OutOfRange { .. })));
    let mut lids = asked.clone();
    lids.path.lids = Some([5, 6].map(|lid| LidAddress::new(lid, 0, 0).unwrap()));
    assert!(matches!(end.cm.connect(end.now, &lids), Err(Error::Gid { .. })));
    let mut nowhere = asked.clone();
    nowhere.path.remote_gid = wire::Gid::default();
    assert!(matches!(end.cm.connect(end.now, &nowhere), Err(Error::Gid { .. })));
    assert!(!end.take() && end.cm.is_empty());

    end.asked_by(&bytes(&REQUEST), 1000);
    let (id, _) = end.request();
    let deep = Accept { parameters: Parameters { initiator_depth: 129, ..accept().parameters }, ..accept() };
    assert!(matches!(end.cm.accept(end.now, id, &deep), Err(Error::OutOfRange { .. })));
    assert!(end.cm.is_unanswered(id));
}

#[test]
fn calls_out_of_turn_are_refused_and_change_nothing() {
    let mut end = End::new(Config::default());
    let mut other = Cm::new(Config::default());
    let unknown = other.connect(end.now, &connect()).unwrap();
    assert_eq!(end.cm.accept(end.now, unknown, &accept()), Err(Error::Unknown(unknown)));
    assert_eq!(end.cm.established(end.now, unknown), Err(Error::Unknown(unknown)));
    assert_eq!(end.cm.disconnect(end.now, unknown), Err(Error::Unknown(unknown)));
    assert_eq!(end.cm.reject(unknown, Refusal::ConsumerDefined, &[]), Err(Error::Unknown(unknown)));
    end.cm.destroy(unknown);
    end.cm.give_up_at(unknown, end.now);
    end.cm.end_of_peer(unknown);

    let (id, _, _) = end.asking(&connect());
    let is_state = |result| matches!(result, Err(Error::State(..)));
    assert!(is_state(end.cm.accept(end.now, id, &accept())));
    assert!(is_state(end.cm.established(end.now, id)));
    assert!(is_state(end.cm.disconnect(end.now, id)));
    assert!(is_state(end.cm.reject(id, Refusal::ConsumerDefined, &[])));
    assert_eq!((end.cm.qp_attr(id), end.cm.requested_qp_attr(id)), (None, None));

    end.asked_by(&bytes(&REQUEST), 1000);
    let (id, _) = end.request();
    assert!(is_state(end.cm.established(end.now, id)) && is_state(end.cm.disconnect(end.now, id)));
    let attributes = end.cm.requested_qp_attr(id).unwrap();
    assert_eq!((attributes.max_rd_atomic, attributes.max_dest_rd_atomic), (8, 9));
    assert_eq!(end.cm.qp_attr(id), None);
    end.cm.accept(end.now, id, &accept()).unwrap();
    assert!(is_state(end.cm.accept(end.now, id, &accept())));
    assert!(is_state(end.cm.reject(id, Refusal::ConsumerDefined, &[])));
    assert_eq!(end.cm.requested_qp_attr(id), None);
}

#[test]
fn a_reply_that_does_not_suit_the_consumer_resets_the_stream() {
    let mut pair = Pair::new(1000);
    let (active, _) = pair.ends[0].connect(&connect());
    pair.settle();
    let (passive, _) = pair.ends[1].request();
    let now = pair.ends[1].now;
    pair.ends[1].cm.accept(now, passive, &accept()).unwrap();
    pair.settle();
    pair.ends[0].cm.reject(active, Refusal::ConsumerDefined, &[]).unwrap();
    pair.settle();
    assert_eq!(pair.ends[0].closed[&pair.link()[0]], Close::Reset);
    assert!(pair.ends[0].cm.is_empty() && pair.ends[0].given.is_empty());
    assert_eq!(pair.ends[1].last(passive), &Event::Disconnected { status: 0 });
}

#[test]
fn a_full_table_refuses_calls_and_requests() {
    let config = Config { max_connections: 3, max_pending_requests: 2, ..Config::default() };
    let mut end = End::new(config);
    for _ in 0..2 {
        end.asked_by(&bytes(&REQUEST), 1000);
    }
    let refused = end.asked_by(&bytes(&REQUEST), 1000);
    assert!(parsed(Kind::Reply, &end.says(refused)).rejected);
    assert_eq!((end.closed[&refused], end.cm.counters().refused), (Close::Gracefully, 1));
    end.connect(&connect());
    assert_eq!(end.cm.connect(end.now, &connect()), Err(Error::Full(3)));
    let (id, _) = end.request();
    end.cm.accept(end.now, id, &accept()).unwrap();
    let refused = end.asked_by(&bytes(&REQUEST), 1000);
    assert!(parsed(Kind::Reply, &end.says(refused)).rejected);
    end.cm.destroy(id);
    let taken = end.asked_by(&bytes(&REQUEST), 1000);
    assert!(!end.closed.contains_key(&taken));
}

#[test]
fn crcs_are_in_use_where_either_end_asks() {
    for (first, second) in [(false, false), (true, false), (false, true), (true, true)] {
        let [active, passive] = [first, second].map(|crc| Config { crc, ..Config::default() });
        let mut pair = Pair::with(1000, active, passive);
        pair.connected();
        let [near, far] = pair.link();
        let in_use = [(0, near), (1, far)].map(|(end, stream)| pair.ends[end].given[&stream].agreed.crc);
        assert_eq!(in_use, [first || second; 2]);
    }
}

#[test]
fn markers_are_refused_by_either_end() {
    for enhanced in [Some(DEPTHS), None] {
        let mut end = End::new(Config::default());
        let asks = Frame { markers: true, crc: true, enhanced, revision: 2, ..REQUEST };
        let stream = end.asked_by(&bytes(&asks), 3);
        let said = end.says(stream);
        let reply = parsed(Kind::Reply, &said);
        assert!(
            reply.rejected && !reply.markers && reply.crc && reply.enhanced.is_some() == enhanced.is_some()
        );
        assert_eq!((end.closed[&stream], end.cm.counters().refused), (Close::Gracefully, 1));
        assert!(end.events.is_empty() && end.cm.is_empty());
    }
    let mut end = End::new(Config::default());
    let (id, stream, _) = end.asking(&connect());
    end.hear(stream, &bytes(&Frame { markers: true, ..REPLY }), 1000);
    assert_eq!((end.last(id), end.closed[&stream]), (&rejected(cm::ECONNREFUSED), Close::Reset));
}
