use super::*;

/// Bytes of most requests.
const LEN: u64 = 1 << 20;

/// A stream whose requests take so many microseconds, each way.
struct Stream {
    race: Race,
    len: u64,
    now: Instant,
    copy: u64,
    packet: u64,
    both: u64,
}

impl Stream {
    fn of(copy: u64, packet: u64) -> Stream {
        #[allow(clippy::disallowed_methods)] // Where the clock starts does not matter.
        let now = Instant::now();
        Stream { race: Race::default(), len: LEN, now, copy, packet, both: packet }
    }
    /// One goes; which way.
    fn one(&mut self) -> Way {
        let (way, begun) = (self.race.next(self.now), self.now);
        let took = match way {
            Way::Copies => self.copy,
            Way::Pieces => self.packet,
            Way::Both => self.both,
        };
        self.now += Duration::from_micros(took);
        match way {
            Way::Copies => self.race.copied(begun, self.len),
            Way::Pieces | Way::Both => self.race.brought(self.now, self.len),
        }
        way
    }
    /// How many of the next `n` go this way.
    fn that_go(&mut self, n: u32, way: Way) -> u32 {
        (0..n).map(|_| u32::from(self.one() == way)).sum()
    }
    fn copied(&mut self, n: u32) -> u32 {
        self.that_go(n, Way::Copies)
    }
}

#[test]
fn the_fastest_of_three_is_found_and_found_again() {
    let mut stream = Stream { both: 30, ..Stream::of(70, 50) };
    stream.that_go(100, Way::Both);
    assert!(stream.that_go(1000, Way::Both) > 900);
    (stream.packet, stream.both) = (30, 50);
    stream.that_go(8 * MOST + 16, Way::Pieces);
    assert!(stream.that_go(1000, Way::Pieces) > 900);
    // Of SENDs there are two.
    let mut sends = Stream { race: Race::of_sends(), both: 28, ..Stream::of(1, 30) };
    assert!(sends.that_go(2000, Way::Pieces) > 1800, "a fifteenth is not worth a change");
    sends.both = 20;
    sends.that_go(8 * MOST + 16, Way::Both);
    assert!(sends.that_go(1000, Way::Both) > 900);
}

#[test]
fn requests_that_each_wait_for_the_one_before_go_the_faster_way_too() {
    let mut sends = Stream { race: Race::of_sends(), both: 20, ..Stream::of(1, 30) };
    let mut both = 0;
    for n in 0..300 {
        // Time in which nothing is under way counts for no way.
        sends.now += Duration::from_millis(n % 7);
        let way = sends.race.next_alone(sends.now);
        sends.now += Duration::from_micros(if way == Way::Both { sends.both } else { sends.packet });
        sends.race.brought(sends.now, LEN);
        both += u32::from(way == Way::Both);
    }
    assert!(both > 250, "{both}");
}

#[test]
fn what_is_refused_is_tried_less_and_less() {
    let mut race = Stream { race: Race::of_sends(), both: 1, ..Stream::of(1, 30) };
    let mut refused = 0;
    for _ in 0..10_000 {
        if race.one() == Way::Both {
            race.race.refused();
            refused += 1;
        }
    }
    assert!((3..20).contains(&refused), "{refused}");
}

#[test]
fn a_stream_goes_the_faster_way_and_tries_the_other_now_and_then() {
    let mut stream = Stream::of(70, 30);
    assert_eq!(stream.copied(8), 8);
    assert_eq!(stream.copied(500), 0);
    assert!((1..=16).contains(&stream.copied(500)), "both ways are tried");
    let mut stream = Stream::of(70, 60);
    let packets = 10_000 - stream.copied(10_000);
    assert!((17..200).contains(&packets), "{packets}: a seventh is not worth the peer's processor");
}

#[test]
fn who_has_no_processor_any_more_is_not_waited_for_and_is_seen_when_he_has() {
    let mut stream = Stream::of(70, 30);
    stream.copied(100);
    (stream.packet, stream.both) = (3000, 3000);
    let packets = 10_000 - stream.copied(10_000);
    assert!((17..250).contains(&packets), "{packets}");
    (stream.packet, stream.both) = (30, 30);
    stream.copied(MOST * 8 + 16);
    assert!(stream.copied(500) <= 16);
}

#[test]
fn trials_cost_little_however_slow_the_other_ways_are() {
    for slow in [100, 140, 1000] {
        let mut stream = Stream::of(70, slow);
        let begun = stream.now;
        let copied = stream.copied(20_000);
        let (took, needed) = (stream.now - begun, Duration::from_micros(70) * 20_000);
        assert!(took < needed + needed / 8, "{slow}: {took:?}");
        assert!(copied < 20_000 - 50, "{slow}: they are tried again");
    }
}

#[test]
fn one_slow_slice_of_many_changes_nothing() {
    let mut stream = Stream::of(70, 30);
    stream.copied(100);
    stream.now += Duration::from_millis(5);
    assert_eq!(stream.copied(200), 0);
}

#[test]
fn the_third_way_is_tried_when_the_second_one_is_at_its_full_pace() {
    // Packets take longer as long as their memory is new.
    let mut stream = Stream { both: 45, ..Stream::of(140, 90) };
    let mut packets = 0;
    for _ in 0..300 {
        packets += u32::from(stream.one() == Way::Pieces);
        stream.packet = if packets < 30 { 90 } else { 38 };
    }
    assert!(stream.that_go(500, Way::Pieces) > 450);
    // Of a way's slices no two take the same time, and one of them is the last before another way
    // is tried.
    let mut packets = 0;
    for n in 0..10_000 {
        stream.packet = if n % 70 < 60 { 38 } else { 52 };
        packets += u32::from(stream.one() == Way::Pieces);
    }
    assert!(packets > 9_500, "{packets}");
}

#[test]
fn a_way_that_is_slower_by_far_is_given_up_before_its_slice_ends() {
    let mut stream = Stream::of(30, 300);
    stream.copied(8);
    let packets = 150 - stream.copied(150);
    assert!((8..20).contains(&packets), "{packets}, where two slices each are 36");
}

#[test]
fn a_trial_is_begun_anew_where_one_pause_took_most_of_it() {
    for way in [Way::Pieces, Way::Both] {
        let mut stream = match way {
            Way::Both => Stream { both: 30, ..Stream::of(70, 100) },
            _ => Stream { both: 100, ..Stream::of(70, 30) },
        };
        let mut left = 2;
        for _ in 0..200 {
            let is_tried =
                stream.race.way() == way && stream.race.slice == Slice::Trial && stream.race.bytes == 4 * LEN;
            if left > 0 && is_tried {
                (left, stream.now) = (left - 1, stream.now + Duration::from_millis(4));
            }
            stream.one();
        }
        assert_eq!(left, 0, "{way:?}");
        assert!(stream.that_go(100, way) > 80, "{way:?}");
    }
    // Whose every trial has such a pause has no processor to itself.
    let mut stream = Stream::of(70, 30);
    let begun = stream.now;
    for _ in 0..20_000 {
        if stream.race.way() != Way::Copies && stream.race.bytes == 4 * LEN {
            stream.now += Duration::from_millis(4);
        }
        stream.one();
    }
    let (took, needed) = (stream.now - begun, Duration::from_micros(70) * 20_000);
    assert!(took < needed + needed / 8, "{took:?}");
    assert!(stream.copied(1000) > 900);
}

#[test]
fn of_few_long_requests_a_pause_is_told_from_slowness_where_most_came_without_it() {
    // One request is a slice: what took so long is not known.
    let mut stream = Stream { len: SLICE, ..Stream::of(700, 900) };
    stream.copied(1);
    let packets = 30 - stream.copied(30);
    assert!((6..12).contains(&packets), "{packets}: no trial is begun anew");
    // The first one of four pauses.
    let mut stream = Stream { len: SLICE / 4, both: 400, ..Stream::of(140, 60) };
    let mut left = 1;
    for _ in 0..60 {
        if left > 0 && stream.race.slice == Slice::Trial && stream.race.begun.is_some() {
            (left, stream.now) = (0, stream.now + Duration::from_millis(4));
        }
        stream.one();
    }
    assert!(stream.that_go(40, Way::Pieces) > 30);
}

#[test]
fn what_is_copied_in_one_call_is_known_with_the_next() {
    let mut stream = Stream::of(0, 30);
    assert_eq!(stream.copied(100), 100, "the clock stood still");
    stream.now += Duration::from_micros(100);
    assert_eq!(stream.copied(1), 0);
}

#[test]
fn a_pause_is_not_taken_for_slowness() {
    let mut stream = Stream::of(70, 30);
    stream.copied(100);
    for _ in 0..20 {
        stream.now += Duration::from_millis(100);
        stream.race.pause();
        assert_eq!(stream.copied(20), 0);
    }
}
