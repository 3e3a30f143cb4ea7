//! Connections that end, and streams that end in each state.

use super::support::*;
use cm::iw::Config;
use cm::{Close, ConnId, Event, Refusal, StreamId};
use wire::iwarp::mpa::Kind;

const DISCONNECTED: Event = Event::Disconnected { status: 0 };

#[test]
fn either_end_disconnects_and_both_are_told_once_without_a_time_wait() {
    for first in [0, 1] {
        let mut pair = Pair::new(10);
        let ids = pair.connected();
        let now = pair.ends[first].now;
        pair.ends[first].cm.disconnect(now, ids[first]).unwrap();
        pair.settle();
        for (n, id) in ids.into_iter().enumerate() {
            let end = &mut pair.ends[n];
            assert_eq!(end.events_of(id).iter().filter(|event| ***event == DISCONNECTED).count(), 1);
            assert_eq!((end.last(id), end.released.len()), (&DISCONNECTED, 1));
            assert_eq!((end.cm.deadline(), end.cm.qp_attr(id)), (None, None));
            end.cm.disconnect(now, id).unwrap();
            end.cm.established(now, id).unwrap();
            end.cm.end_of_peer(id);
            assert!(!end.take(), "it has ended");
            end.cm.destroy(id);
            assert!(!end.take() && end.cm.is_empty());
        }
        assert!(pair.ends.iter().all(|end| end.closed.values().all(|close| *close == Close::Gracefully)));
    }
}

#[test]
fn both_ends_disconnect_at_once() {
    let mut pair = Pair::new(10);
    let ids = pair.connected();
    for (end, id) in pair.ends.iter_mut().zip(ids) {
        end.cm.disconnect(end.now, id).unwrap();
    }
    pair.settle();
    for (end, id) in pair.ends.iter().zip(ids) {
        assert_eq!(end.events_of(id).iter().filter(|event| ***event == DISCONNECTED).count(), 1);
        assert_eq!((end.released.len(), end.closed.len()), (1, 1));
    }
}

/// An end with a connection in a state, and its stream.
struct Case {
    name: &'static str,
    end: End,
    id: ConnId,
    stream: StreamId,
    /// What the program is told when the stream ends.
    told: Event,
    /// How the stream is closed when the program destroys the connection.
    destroyed: Close,
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for name in ["opening", "asking", "half a reply", "replied", "active, established"] {
        let mut end = End::new(Config::default());
        let (id, stream) = end.connect(&connect());
        if name != "opening" {
            end.cm.opened(end.now, stream);
            let reply = bytes(&REPLY);
            let len =
                ["asking", "half a reply"].iter().position(|n| *n == name).map_or(reply.len(), |n| n * 9);
            end.hear(stream, &reply[..len], 1000);
        }
        let established = name == "active, established";
        if established {
            end.cm.established(end.now, id).unwrap();
        }
        end.says(stream);
        let told = if end.cm.qp_attr(id).is_some() { DISCONNECTED } else { rejected(-ECONNRESET) };
        let destroyed = if established { Close::Gracefully } else { Close::Reset };
        all.push(Case { name, end, id, stream, told, destroyed });
    }
    for name in ["requested", "RTR awaited", "passive, established"] {
        let mut end = End::new(Config::default());
        let asks = if name == "RTR awaited" {
            Config { peer_to_peer: true, ..Config::default() }
        } else {
            Config::default()
        };
        let (_, _, request) = End::new(asks).asking(&connect());
        let stream = end.asked_by(&request, 1000);
        let (id, _) = end.request();
        if name != "requested" {
            end.cm.accept(end.now, id, &accept()).unwrap();
            end.says(stream);
        }
        let told = if name == "passive, established" { DISCONNECTED } else { rejected(-ECONNRESET) };
        all.push(Case { name, end, id, stream, told, destroyed: Close::Gracefully });
    }
    all
}

#[test]
fn a_stream_that_is_lost_or_ended_in_any_state_is_told_once() {
    for ends in [0, 1, 2] {
        for Case { name, mut end, id, stream, told, .. } in cases() {
            let (before, had_qp) = (end.events.len(), name != "requested");
            match ends {
                0 => end.cm.lost(stream, ECONNRESET),
                1 => end.cm.ended(stream),
                _ => end.cm.end_of_peer(id),
            }
            end.take();
            assert_eq!(end.events[before..], [(id, told)], "{name}");
            let close = [None, Some(Close::Gracefully), Some(Close::Reset)][ends];
            assert_eq!(end.closed.get(&stream).copied(), close, "{name}");
            assert_eq!((end.released.len(), end.cm.deadline()), (usize::from(had_qp), None), "{name}");
            assert!(!end.cm.is_unanswered(id) && !end.cm.is_half_open(id) && end.cm.qp_attr(id).is_none());
            end.cm.lost(stream, ECONNRESET);
            end.cm.ended(stream);
            end.cm.received(end.now, stream, b"late");
            assert!(!end.take(), "{name}: it has ended");
            end.cm.destroy(id);
            assert!(!end.take() && end.cm.is_empty(), "{name}");
        }
    }
}

#[test]
fn a_connection_that_is_destroyed_in_any_state_closes_its_stream_and_says_no_more() {
    for leave in [false, true] {
        for Case { name, mut end, id, stream, destroyed, .. } in cases() {
            let before = end.events.len();
            if leave {
                end.cm.leave()
            } else {
                end.cm.destroy(id)
            }
            let said = end.says(stream);
            assert_eq!(end.closed[&stream], destroyed, "{name}");
            if name == "requested" {
                assert!(parsed(Kind::Reply, &said).rejected);
            } else {
                assert!(said.is_empty(), "{name}");
            }
            assert_eq!(end.released.len(), usize::from(name != "requested"), "{name}");
            assert!(end.cm.is_empty() && end.cm.deadline().is_none() && end.events.len() == before);
            end.cm.lost(stream, ECONNRESET);
            assert!(!end.take());
        }
    }
}

#[test]
fn a_process_that_ends_closes_streams_without_a_request_too() {
    let mut end = End::new(Config::default());
    let stream = end.asked_by(b"MPA", 1);
    end.cm.leave();
    end.take();
    assert_eq!(end.closed[&stream], Close::Reset);
    assert!(end.cm.is_empty());
}

#[test]
fn a_stream_that_ends_before_its_request_is_whole_is_forgotten() {
    let mut end = End::new(Config::default());
    let [lost, ended] = [(); 2].map(|()| end.asked_by(b"MPA ID Req", 1));
    end.cm.lost(lost, ECONNRESET);
    end.cm.ended(ended);
    end.take();
    assert_eq!(end.closed.get(&ended), Some(&Close::Gracefully));
    assert!(!end.closed.contains_key(&lost) && end.cm.is_empty() && end.cm.deadline().is_none());
    assert!(end.events.is_empty());
}

#[test]
fn an_accept_whose_queue_pair_does_not_move_is_taken_back() {
    let mut pair = Pair::new(10);
    let (active, _) = pair.ends[0].connect(&connect());
    pair.settle();
    let (passive, _) = pair.ends[1].request();
    let end = &mut pair.ends[1];
    end.cm.accept(end.now, passive, &accept()).unwrap();
    // The node finds before it fetches anything that the queue pair cannot be moved.
    end.cm.destroy(passive);
    pair.settle();
    assert_eq!(pair.ends[0].events_of(active), [&rejected(-ECONNRESET)]);
    assert_eq!(pair.ends[1].events_of(passive).len(), 1, "the request alone");
    assert!(pair.ends[1].given.is_empty());
    assert_eq!(pair.ends[1].released, [(passive, accept().parameters.qpn)]);
}

#[test]
fn a_stream_that_cannot_be_opened_is_told_as_rdma_cm_does() {
    for (errno, told) in [
        (111, rejected(cm::ECONNREFUSED)),
        (104, rejected(cm::ECONNRESET)),
        (110, Event::Unreachable { status: cm::ETIMEDOUT }),
        (113, Event::Unreachable { status: -113 }),
        (101, Event::Unreachable { status: -101 }),
        (99, Event::ConnectError { status: -99 }),
    ] {
        let mut end = End::new(Config::default());
        let (id, stream) = end.connect(&connect());
        end.cm.lost(stream, errno);
        end.take();
        assert_eq!((end.events_of(id), end.closed.len()), (vec![&told], 0));
    }
}

#[test]
fn a_connection_that_ends_before_its_consumer_is_ready_is_disconnected() {
    let mut pair = Pair::new(1000);
    let (active, _) = pair.ends[0].connect(&connect());
    pair.settle();
    let (passive, _) = pair.ends[1].request();
    let now = pair.ends[1].now;
    pair.ends[1].cm.accept(now, passive, &accept()).unwrap();
    pair.settle();
    pair.ends[0].cm.disconnect(now, active).unwrap();
    pair.settle();
    assert_eq!(pair.ends[0].closed[&pair.link()[0]], Close::Reset);
    assert_eq!(pair.ends[0].last(active), &DISCONNECTED);
    assert_eq!(pair.ends[1].last(passive), &DISCONNECTED);
    let refused = pair.ends[1].cm.reject(passive, Refusal::ConsumerDefined, &[]);
    assert!(matches!(refused, Err(cm::Error::State(..))));
}
