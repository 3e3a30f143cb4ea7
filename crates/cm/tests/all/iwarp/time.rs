//! Time: what waits for how long, and what does not.

use std::time::Duration;

use super::support::*;
use crate::support::MS;
use cm::iw::Config;
use cm::{Close, Event};

const UNREACHABLE: Event = Event::Unreachable { status: cm::ETIMEDOUT };

#[test]
fn a_reply_has_ten_seconds_from_the_request_on() {
    let mut end = End::new(Config::default());
    let (id, stream) = end.connect(&connect());
    end.wait(100 * SECOND);
    end.cm.opened(end.now, stream);
    end.hear(stream, &bytes(&REPLY)[..19], 4);
    end.wait(10 * SECOND - MS);
    assert!(end.events.is_empty());
    end.wait(MS);
    assert_eq!(end.events_of(id), [&UNREACHABLE]);
    assert_eq!((end.closed[&stream], end.cm.deadline()), (Close::Reset, None));
    assert_eq!(end.released.len(), 1);
}

#[test]
fn a_stream_that_does_not_open_is_given_up() {
    let mut end = End::new(Config::default());
    let (id, stream) = end.connect(&connect());
    end.wait(130 * SECOND);
    assert_eq!((end.events_of(id), end.closed[&stream]), (vec![&UNREACHABLE], Close::Reset));
    end.cm.opened(end.now, stream);
    assert!(!end.take(), "a stream that was closed says no more");
}

#[test]
fn the_consumer_waits_as_long_as_it_said_and_no_longer() {
    for opened in [false, true] {
        let mut end = End::new(Config::default());
        let (id, stream) = end.connect(&connect());
        end.cm.give_up_at(id, end.now + 3 * SECOND);
        if opened {
            end.cm.opened(end.now, stream);
        }
        end.wait(3 * SECOND - MS);
        assert!(end.events.is_empty());
        end.wait(MS);
        assert_eq!(end.events_of(id), [&UNREACHABLE]);
    }
    let mut end = End::new(Config::default());
    let (id, stream, _) = end.asking(&connect());
    end.cm.give_up_at(id, end.now + 3 * SECOND);
    end.hear(stream, &bytes(&REPLY), 1000);
    end.cm.give_up_at(id, end.now + SECOND);
    assert_eq!(end.cm.deadline(), None, "the answer has come");
}

#[test]
fn a_request_that_comes_byte_by_byte_has_ten_seconds() {
    let mut end = End::new(Config::default());
    let stream = end.accept_stream();
    let request = bytes(&REQUEST);
    for byte in request.chunks(1).take(19) {
        end.hear(stream, byte, 1);
        end.wait(500 * MS);
    }
    assert!(!end.closed.contains_key(&stream));
    end.wait(500 * MS);
    assert_eq!((end.closed[&stream], end.cm.counters().late), (Close::Reset, 1));
    assert!(end.cm.is_empty() && end.events.is_empty() && end.cm.deadline().is_none());
    end.cm.received(end.now, stream, &request);
    assert!(!end.take());
}

#[test]
fn of_too_many_streams_without_a_request_the_oldest_is_closed() {
    let mut end = End::new(Config { max_unfinished: 4, ..Config::default() });
    let streams: Vec<_> = (0..10).map(|_| end.asked_by(b"MPA ID", 3)).collect();
    assert_eq!((end.cm.unfinished(), end.cm.counters().crowded_out), (4, 6));
    assert_eq!(end.closed.keys().copied().collect::<Vec<_>>(), streams[..6]);
    // Those that are left go on, and one that is whole counts no more.
    end.hear(streams[9], &bytes(&REQUEST)[6..], 3);
    assert!(matches!(end.events[..], [(_, Event::Request(_))]));
    assert_eq!(end.cm.unfinished(), 3);
    assert!(Config::default().max_unfinished == 128);
}

#[test]
fn a_request_waits_for_its_answer_as_long_as_the_program_likes() {
    let mut end = End::new(Config::default());
    end.asked_by(&bytes(&REQUEST), 1000);
    let (id, _) = end.request();
    assert_eq!(end.cm.deadline(), None);
    end.wait(Duration::from_secs(3600));
    end.cm.accept(end.now, id, &accept()).unwrap();
    end.take();
    assert_eq!(end.last(id), &Event::Established);
}

#[test]
fn an_rtr_has_ten_seconds_from_the_reply_on() {
    let active = Config { peer_to_peer: true, ..Config::default() };
    let mut pair = Pair::with(1000, active, Config::default());
    let [_, passive] = pair.connected();
    pair.ends[1].wait(10 * SECOND - MS);
    assert_eq!(pair.ends[1].events_of(passive).len(), 1);
    pair.ends[1].wait(MS);
    assert_eq!(pair.ends[1].last(passive), &UNREACHABLE);
    assert_eq!(pair.ends[1].closed[&pair.link()[1]], Close::Reset);
    assert_eq!(pair.ends[1].released.len(), 1);
}
