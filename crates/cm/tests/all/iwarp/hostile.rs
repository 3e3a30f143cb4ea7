//! A peer that sends what it likes: streams end, tables stay bounded, nothing panics.

use super::support::*;
use crate::support::Rng;
use cm::iw::Config;
use cm::{Close, Event};
use wire::iwarp::mpa::{Enhanced, Frame, MAX_LEN};

#[test]
fn what_is_no_mpa_ends_the_stream_at_the_first_byte_that_tells() {
    let http = b"GET / HTTP/1.1\r\n\r\n";
    let reply = bytes(&REPLY);
    let mut long = bytes(&Frame { private_data: &[1; 508], ..REQUEST });
    long[18..20].copy_from_slice(&513u16.to_be_bytes());
    let mut short = bytes(&REQUEST);
    short[18..20].copy_from_slice(&3u16.to_be_bytes());
    for (sent, first) in [(&http[..], 1), (&reply, 10), (&long, 20), (&short, 20), (b"MPA ID Reg ", 10)] {
        let mut end = End::new(Config::default());
        let stream = end.asked_by(&sent[..first - 1], 1);
        assert!(end.closed.is_empty() && end.cm.unfinished() == 1);
        end.hear(stream, &sent[first - 1..first], 1);
        assert_eq!((end.closed[&stream], end.cm.counters().malformed), (Close::Reset, 1));
        assert!(end.cm.is_empty() && end.says(stream).is_empty() && end.events.is_empty());
        let stream = end.asked_by(sent, 1000);
        assert_eq!(end.closed[&stream], Close::Reset);
    }
}

#[test]
fn what_is_no_reply_is_a_connect_error_and_ends_the_stream() {
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    let request = bytes(&REQUEST);
    for (sent, first) in [(&http[..], 1), (&request, 10)] {
        let mut end = End::new(Config::default());
        let (id, stream, _) = end.asking(&connect());
        end.hear(stream, &sent[..first - 1], 1);
        assert!(end.events.is_empty());
        end.hear(stream, &sent[first - 1..first], 1);
        assert_eq!(end.events_of(id), [&Event::ConnectError { status: cm::EINVAL }]);
        assert_eq!((end.closed[&stream], end.cm.counters().malformed), (Close::Reset, 1));
        assert_eq!(end.released.len(), 1);
    }
}

#[test]
fn bytes_behind_a_request_end_the_stream_before_and_after_the_program_sees_it() {
    let mut end = End::new(Config::default());
    let stream = end.asked_by(&[bytes(&REQUEST), vec![0]].concat(), 1000);
    assert_eq!((end.closed[&stream], end.events.len()), (Close::Reset, 0));

    let stream = end.asked_by(&bytes(&REQUEST), 1000);
    let (id, _) = end.request();
    end.hear(stream, &[0], 1);
    assert_eq!((end.last(id), end.closed[&stream]), (&rejected(-ECONNRESET), Close::Reset));
    assert!(!end.cm.is_unanswered(id) && end.cm.counters().malformed == 2);
    assert!(matches!(end.cm.accept(end.now, id, &accept()), Err(cm::Error::State(..))));
    end.cm.destroy(id);
    assert!(end.cm.is_empty());
}

#[test]
fn bytes_behind_a_reply_are_bounded() {
    for first in [0, 50] {
        let mut end = End::new(Config { max_behind: 100, ..Config::default() });
        let (id, stream, _) = end.asking(&connect());
        end.hear(stream, &[bytes(&REPLY), vec![0; first]].concat(), 1000);
        end.hear(stream, &vec![0; 100 - first], 7);
        assert!(end.closed.is_empty());
        end.hear(stream, &[0], 1);
        assert_eq!(end.last(id), &Event::Disconnected { status: 0 });
        assert_eq!((end.closed[&stream], end.cm.counters().malformed), (Close::Reset, 1));
    }
    let mut end = End::new(Config { max_behind: 100, ..Config::default() });
    let (id, stream, _) = end.asking(&connect());
    end.hear(stream, &[bytes(&REPLY), vec![0; 101]].concat(), 1000);
    assert_eq!(end.events_of(id), [&Event::ConnectError { status: cm::EINVAL }]);
}

/// A frame with some of its bytes changed, and bytes behind it at times.
fn mutated(rng: &mut Rng, frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = bytes(frame);
    for _ in 0..rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
    if rng.percent(20) {
        bytes.extend((0..rng.below(600)).map(|n| n as u8));
    }
    bytes.truncate(if rng.percent(20) { rng.below(700) as usize } else { bytes.len() });
    bytes
}

fn any_frame<'a>(rng: &mut Rng, base: Frame<'a>, data: &'a [u8]) -> Frame<'a> {
    let enhanced = Enhanced {
        peer_to_peer: rng.percent(50),
        send_rtr: rng.percent(50),
        write_rtr: rng.percent(50),
        read_rtr: rng.percent(50),
        ird: rng.below(1 << 14) as u16,
        ord: rng.below(300) as u16,
    };
    Frame {
        markers: rng.percent(5),
        crc: rng.percent(50),
        rejected: rng.percent(10),
        revision: rng.below(4) as u8,
        enhanced: rng.percent(80).then_some(enhanced),
        private_data: &data[..rng.below(509) as usize],
        ..base
    }
}

#[test]
fn any_bytes_in_any_pieces_end_the_stream_or_make_a_connection_and_nothing_grows() {
    let data = [0xda; 508];
    for seed in 0..3000 {
        let mut rng = Rng(seed);
        let config = Config { peer_to_peer: rng.percent(50), max_behind: 200, ..Config::default() };
        let mut end = End::new(config);
        let (id, ours, _) = end.asking(&connect());
        let theirs = end.accept_stream();
        for (stream, base) in [(theirs, REQUEST), (ours, REPLY)] {
            let frame = any_frame(&mut rng, base, &data);
            let sent = match rng.below(3) {
                0 => (0..rng.below(2000)).map(|_| rng.next() as u8).collect(),
                _ => mutated(&mut rng, &frame),
            };
            end.hear(stream, &sent, 1 + rng.below(40) as usize);
            let written = end.says(stream);
            assert!(written.len() <= MAX_LEN, "one frame, or a TERMINATE");
        }
        if matches!(end.events.last(), Some((_, Event::Reply(_)))) {
            end.cm.established(end.now, id).unwrap();
            end.take();
        }
        let request = end.events.iter().find(|(of, _)| *of != id).map(|(of, _)| *of);
        if let Some(request) = request.filter(|request| end.cm.is_unanswered(*request)) {
            end.cm.accept(end.now, request, &accept()).unwrap();
            end.take();
        }
        // Nothing is left that only waits: each stream is the queue pair's, or ends by time.
        end.wait(10 * SECOND);
        for stream in [theirs, ours] {
            let given = end.given.get(&stream);
            assert!(given.is_some() || end.closed.contains_key(&stream), "seed {seed}");
            assert!(given.is_none_or(|given| given.behind.len() <= 200), "seed {seed}");
        }
        assert_eq!((end.cm.unfinished(), end.cm.deadline()), (0, None));
        end.events.iter().map(|(id, _)| *id).for_each(|id| end.cm.destroy(id));
        assert!(end.cm.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_flood_of_streams_and_requests_is_held_within_the_bounds() {
    let config =
        Config { max_unfinished: 8, max_pending_requests: 5, max_connections: 10, ..Config::default() };
    let mut end = End::new(config);
    let request = bytes(&REQUEST);
    for n in 0..1000 {
        end.asked_by(if n % 2 == 0 { &request } else { &request[..19] }, 1000);
        assert!(end.cm.len() <= 5 && end.cm.unfinished() <= 8);
    }
    assert_eq!((end.events.len(), end.cm.counters().refused), (5, 495));
    assert_eq!(end.cm.counters().crowded_out, 492);
    end.wait(10 * SECOND);
    assert_eq!((end.cm.unfinished(), end.cm.counters().late), (0, 8));
}
