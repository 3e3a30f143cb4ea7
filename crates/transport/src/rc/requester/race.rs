//! Which way a stream of long messages takes to a process of this host: the system copies a WRITE or READ, or packets bring it; and where packets do, in pieces
//! through the ring, or in pieces that both ends copy from memory to memory.
//!
//! The copy needs nobody at the peer, but has one processor do it all, page by page. Packets have the peer's process do its half, which is faster where
//! a processor is free for it, and much slower where none is. Through the ring each byte is copied twice, without the system: what is faster depends on the
//! processors and on the pages. Nobody but a clock knows: so all are tried, for a slice each, and the fastest goes on, until another's turn comes to be tried again.

use std::time::{Duration, Instant};

/// Bytes for which a way goes before its time is looked at: long enough for a thread to be woken.
const SLICE: u64 = 8 << 20;
/// Slices after which another way is tried: at first, and at most, where that never helps.
const FEWEST: u32 = 8;
const MOST: u32 = 1024;
/// The first of these where another way than the first one was found to be faster.
const STAY: u32 = 64;
/// Trials that were of no use may have cost one slice of so many.
const WORTH: u128 = 32;

/// How a long message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The system copies it, nobody at the peer does anything.
    Copies,
    /// In packets, whose bytes the ring has.
    Pieces,
    /// In packets, whose bytes both ends copy.
    Both,
}

/// Those that WRITEs and READs may go, and SENDs; first the one that they go where nothing is known.
const ONE_SIDED: &[Way] = &[Way::Copies, Way::Pieces, Way::Both];
const SENDS: &[Way] = &[Way::Pieces, Way::Both];

/// What a slice is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// It goes the way that was the fastest one.
    Usual,
    /// It wakes the peer's thread and touches the ring's memory, so that the next one, which goes the same way, is none that begins.
    WarmsUp,
    /// It is to show whether the way is faster.
    Trial,
}

#[derive(Debug)]
pub(super) struct Race {
    ways: &'static [Way],
    /// Which of them it goes now, which one was the fastest, and which one was tried last.
    now: usize,
    best: usize,
    tried: usize,
    /// Bytes a second by each, as last seen; 0 where it was not tried.
    rates: [u64; 3],
    /// Bytes of this slice that went, and the time it took to the last pause.
    bytes: u64,
    spent: Duration,
    /// Since when it goes on, and when the last copy began or the last answer came.
    begun: Option<Instant>,
    last: Option<Instant>,
    slice: Slice,
    /// Slices until the next trial, and how many there are between two.
    left: u32,
    patience: u32,
    /// Nanoseconds that the last trials, warming up included, took longer than the fastest way.
    lost: u128,
}

impl Default for Race {
    fn default() -> Race {
        Race::between(ONE_SIDED)
    }
}

impl Race {
    /// Of SENDs.
    pub fn of_sends() -> Race {
        Race::between(SENDS)
    }

    fn between(ways: &'static [Way]) -> Race {
        Race {
            ways,
            now: 0,
            best: 0,
            tried: 0,
            rates: [0; 3],
            bytes: 0,
            spent: Duration::ZERO,
            begun: None,
            last: None,
            slice: Slice::Usual,
            left: 0,
            patience: FEWEST,
            lost: 0,
        }
    }

    /// The way of what leaves now.
    pub fn way(&self) -> Way {
        self.ways.get(self.now).copied().unwrap_or(Way::Pieces)
    }

    /// The way of a request of the stream that might begin now.
    pub fn next(&mut self, now: Instant) -> Way {
        let copies = self.way() == Way::Copies;
        // Many may be copied in one call, of which only the next one knows how long they took.
        let is_known = !copies || self.last != Some(now);
        if self.bytes >= SLICE && is_known {
            self.look(now);
        }
        if self.way() == Way::Copies && self.begun.is_none() {
            self.begun = Some(now);
        }
        self.way()
    }

    /// The way of a request that begins while nothing is under way, and takes until it is known that packets have brought it.
    pub fn next_alone(&mut self, now: Instant) -> Way {
        self.pause();
        let way = self.next(now);
        self.begun = Some(now);
        way
    }

    /// Nothing was under way: the time since the last request went is nobody's.
    pub fn pause(&mut self) {
        if let (Some(begun), Some(last)) = (self.begun.take(), self.last) {
            self.spent += last.saturating_duration_since(begun);
        }
    }

    /// A request was copied.
    pub fn copied(&mut self, now: Instant, len: u64) {
        self.bytes += len;
        self.last = Some(now);
    }

    /// Packets have brought a request, and this is known now.
    pub fn brought(&mut self, now: Instant, len: u64) {
        if self.way() == Way::Copies {
            return;
        }
        // Until the first one is done somebody may have to be woken.
        match self.begun {
            None => self.begun = Some(now),
            Some(_) => self.bytes += len,
        }
        self.last = Some(now);
    }

    /// The peer does not reach what was lent: another way goes on, and this one is tried again later, less and less often.
    pub fn refused(&mut self) {
        if self.way() == Way::Both {
            self.rates[self.now] = 1;
            self.best = if self.best == self.now { 0 } else { self.best };
            (self.now, self.left, self.slice) = (self.best, self.patience, Slice::Usual);
            self.patience = (self.patience * 2).min(MOST);
            (self.bytes, self.spent, self.begun) = (0, Duration::ZERO, None);
        }
    }

    /// A slice has ended.
    fn look(&mut self, now: Instant) {
        let since = self.begun.take().map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let nanos = (std::mem::take(&mut self.spent) + since).as_nanos();
        let bytes = u128::from(std::mem::take(&mut self.bytes));
        // Two threads may have taken answers in, and one of them have looked at the clock long before.
        let is_void = self.way() != Way::Copies && nanos == 0;
        if self.slice != Slice::Usual && !is_void {
            self.lost += nanos.saturating_sub(self.nanos_of(bytes));
        }
        if self.slice == Slice::WarmsUp || is_void {
            self.slice = if is_void { self.slice } else { Slice::Trial };
            return;
        }
        let rate = (bytes * 1_000_000_000).checked_div(nanos).unwrap_or(u128::MAX);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        let trial = std::mem::replace(&mut self.slice, Slice::Usual) == Slice::Trial;
        let seen = &mut self.rates[self.now];
        // One slow slice of many may have met somebody who had the processor for a while.
        *seen = if trial { rate } else { rate.max(*seen / 4 * 3) };
        let fastest = self.fastest();
        if trial {
            self.tried = self.now;
            if fastest != self.best {
                (self.best, self.patience) = (fastest, if fastest == 0 { FEWEST } else { STAY });
                self.lost = 0;
            }
            self.now = self.best;
            self.left = 0;
            // What was never tried has its turn first.
            if self.rates[self.other()] != 0 {
                self.left = self.patience.max(self.pays_off_after());
                self.patience = (self.patience * 2).min(MOST);
                self.lost = 0;
            }
        } else if fastest != self.best {
            self.try_it(fastest);
        } else if self.left == 0 {
            self.try_it(self.other());
        } else {
            self.left -= 1;
        }
    }

    /// Slices of the fastest way behind which the last trials have cost no more than they may. Where others want the peer's processor they cost most.
    fn pays_off_after(&self) -> u32 {
        let after = (self.lost * WORTH).checked_div(self.nanos_of(SLICE.into())).unwrap_or(0);
        u32::try_from(after).unwrap_or(MOST).min(MOST)
    }

    /// How long so many bytes take the fastest way.
    fn nanos_of(&self, bytes: u128) -> u128 {
        bytes * 1_000_000_000 / u128::from(self.rates[self.best].max(1))
    }

    /// The fastest one, as far as is known. Packets take the peer's processor, too: they are to be faster than copies by a quarter; and one way of theirs is to be
    /// faster than the other by an eighth.
    fn fastest(&self) -> usize {
        let worth = |at: usize| {
            let rate = self.rates[at];
            match self.ways[at] {
                Way::Copies => rate.saturating_add(rate / 4),
                _ if at == self.best => rate.saturating_add(rate / 8),
                _ => rate,
            }
        };
        (0..self.ways.len()).fold(self.best, |best, at| if worth(at) > worth(best) { at } else { best })
    }

    /// The one that was not tried for longest.
    fn other(&self) -> usize {
        let next = |at: usize| (at + 1) % self.ways.len();
        let other = next(self.tried);
        if other == self.best { next(other) } else { other }
    }

    fn try_it(&mut self, at: usize) {
        self.now = at;
        self.slice = if self.way() == Way::Copies { Slice::Trial } else { Slice::WarmsUp };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a request.
    const LEN: u64 = 1 << 20;

    /// A stream whose requests take so many microseconds, each way.
    struct Stream {
        race: Race,
        now: Instant,
        copy: u64,
        packet: u64,
        both: u64,
    }

    impl Stream {
        fn of(copy: u64, packet: u64) -> Stream {
            #[allow(clippy::disallowed_methods)] // Where the clock starts does not matter.
            let now = Instant::now();
            Stream { race: Race::default(), now, copy, packet, both: packet }
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
                Way::Copies => self.race.copied(begun, LEN),
                Way::Pieces | Way::Both => self.race.brought(self.now, LEN),
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
            // Time in which nothing is under way is nobody's.
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
}
