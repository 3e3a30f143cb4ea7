//! Which way a stream of WRITEs or READs takes to memory of a process of this host: the system copies it, or packets bring it.
//!
//! The copy needs nobody at the peer, but has one processor do it all, page by page. Packets have the peer's process do its half, which is faster where
//! a processor is free for it and the pages are small, and much slower where none is. Nobody but a clock knows: so both are tried, for a slice each,
//! and the faster goes on, until the other's turn comes to be tried again.

use std::time::{Duration, Instant};

/// Bytes for which a way goes before its time is looked at: long enough for a thread to be woken.
const SLICE: u64 = 8 << 20;
/// Slices of copies after which packets are tried again: at first, and at most, where that never helps.
const FEWEST: u32 = 8;
const MOST: u32 = 256;
/// Slices of packets after which copies are.
const STAY: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Copies,
    Packets,
}

/// What a slice is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// It goes the way that was the faster one.
    Usual,
    /// It wakes the peer's thread and touches the ring's memory, so that the next one, which goes the same way, is none that begins.
    WarmsUp,
    /// It is to show whether the other way is faster.
    Trial,
}

#[derive(Debug)]
pub(super) struct Race {
    way: Way,
    /// Bytes a second by the one and by the other, as last seen; 0 where it was not tried. Packets take the peer's processor, too: they are to be faster
    /// by a quarter.
    copies: u64,
    packets: u64,
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
}

impl Default for Race {
    fn default() -> Race {
        Race {
            way: Way::Copies,
            copies: 0,
            packets: 0,
            bytes: 0,
            spent: Duration::ZERO,
            begun: None,
            last: None,
            slice: Slice::Usual,
            left: 0,
            patience: FEWEST,
        }
    }
}

impl Race {
    /// Whether a request of the stream that might begin now is to be copied.
    pub fn copies(&mut self, now: Instant) -> bool {
        // Many may be copied in one call, of which only the next one knows how long they took.
        let is_known = self.way == Way::Packets || self.last != Some(now);
        if self.bytes >= SLICE && is_known {
            self.look(now);
        }
        if self.way == Way::Copies && self.begun.is_none() {
            self.begun = Some(now);
        }
        self.way == Way::Copies
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
        if self.way != Way::Packets {
            return;
        }
        // Until the first one is done somebody may have to be woken.
        match self.begun {
            None => self.begun = Some(now),
            Some(_) => self.bytes += len,
        }
        self.last = Some(now);
    }

    /// A slice has ended.
    fn look(&mut self, now: Instant) {
        let since = self.begun.take().map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let nanos = (std::mem::take(&mut self.spent) + since).as_nanos();
        let bytes = u128::from(std::mem::take(&mut self.bytes));
        // Two threads may have taken answers in, and one of them have looked at the clock long before.
        let is_void = self.way == Way::Packets && nanos == 0;
        if self.slice == Slice::WarmsUp || is_void {
            self.slice = if is_void { self.slice } else { Slice::Trial };
            return;
        }
        let rate = (bytes * 1_000_000_000).checked_div(nanos).unwrap_or(u128::MAX);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        let trial = std::mem::replace(&mut self.slice, Slice::Usual) == Slice::Trial;
        let seen = if self.way == Way::Copies { &mut self.copies } else { &mut self.packets };
        // One slow slice of many may have met somebody who had the processor for a while.
        *seen = if trial { rate } else { rate.max(*seen / 4 * 3) };
        let packets_are_faster = self.packets > self.copies.saturating_add(self.copies / 4);
        self.way = match (self.way, trial) {
            (Way::Copies, false) if packets_are_faster || self.left == 0 => self.begin_trial(Way::Packets),
            (Way::Packets, false) if !packets_are_faster || self.left == 0 => self.begin_trial(Way::Copies),
            (way, false) => {
                self.left -= 1;
                way
            }
            (_, true) if packets_are_faster => {
                (self.left, self.patience) = (STAY, FEWEST);
                Way::Packets
            }
            (tried, true) => {
                self.left = self.patience;
                if tried == Way::Packets {
                    self.patience = (self.patience * 2).min(MOST);
                }
                Way::Copies
            }
        };
    }

    fn begin_trial(&mut self, way: Way) -> Way {
        self.slice = if way == Way::Packets { Slice::WarmsUp } else { Slice::Trial };
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a request.
    const LEN: u64 = 1 << 20;

    /// A stream whose requests take so many microseconds, one way and the other.
    struct Stream {
        race: Race,
        now: Instant,
        copy: u64,
        packet: u64,
    }

    impl Stream {
        fn of(copy: u64, packet: u64) -> Stream {
            #[allow(clippy::disallowed_methods)] // Where the clock starts does not matter.
            let now = Instant::now();
            Stream { race: Race::default(), now, copy, packet }
        }
        /// How many of the next `n` are copied.
        fn copied(&mut self, n: u32) -> u32 {
            let one = |stream: &mut Stream| {
                let copies = stream.race.copies(stream.now);
                let begun = stream.now;
                stream.now += Duration::from_micros(if copies { stream.copy } else { stream.packet });
                match copies {
                    true => stream.race.copied(begun, LEN),
                    false => stream.race.brought(stream.now, LEN),
                }
                u32::from(copies)
            };
            (0..n).map(|_| one(self)).sum()
        }
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
        stream.packet = 3000;
        let packets = 10_000 - stream.copied(10_000);
        assert!((17..250).contains(&packets), "{packets}");
        stream.packet = 30;
        stream.copied(MOST * 8 + 16);
        assert!(stream.copied(500) <= 16);
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
