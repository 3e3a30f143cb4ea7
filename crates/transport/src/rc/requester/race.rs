//! Which way a stream of long messages takes to a process of this host: the system copies a WRITE
//! or READ, or packets bring it; and where packets do, in pieces through the ring, or in pieces
//! that both ends copy from memory to memory.
//!
//! The copy needs no thread at the peer, but has one processor do it all, page by page. Packets
//! have the peer's process do its half, which is faster where a processor is free for it, and much
//! slower where none is. Through the ring each byte is copied twice, without the system. What is
//! faster depends on the processors and on the pages, and only a clock can tell. So all are tried,
//! for a slice each, and the fastest goes on, until another's turn comes to be tried again.

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
/// How often a trial is begun anew because one pause took most of it.
const REPEATS: u32 = 2;

/// How a long message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The system copies it, and no thread of the peer does anything.
    Copies,
    /// In packets, whose bytes the ring has.
    Pieces,
    /// In packets, whose bytes both ends copy.
    Both,
}

/// Ways that WRITEs and READs may go, and SENDs; first the one that they go where nothing is known.
const ONE_SIDED: &[Way] = &[Way::Copies, Way::Pieces, Way::Both];
const SENDS: &[Way] = &[Way::Pieces, Way::Both];

/// The longest time of a slice in which packets brought no request, and the bytes of the one that
/// came then.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    spent: Duration,
    bytes: u64,
}

impl Pause {
    fn is_most_of(self, nanos: u128) -> bool {
        self.spent.as_nanos() * 2 > nanos
    }
}

/// What a slice is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// The slice goes the way that was the fastest one.
    Usual,
    /// The slice wakes the peer's thread and touches the ring's memory, so that the next one, which
    /// goes the same way, is none that begins.
    WarmsUp,
    /// The slice is to show whether the way is faster.
    Trial,
}

#[derive(Debug)]
pub(super) struct Race {
    ways: &'static [Way],
    /// Which of the ways a message goes now, which one was the fastest, and which one was tried
    /// last.
    now: usize,
    best: usize,
    tried: usize,
    /// Bytes a second by each, as last seen; 0 where it was not tried.
    rates: [u64; 3],
    /// Bytes of this slice that went, and the time it took to the last pause.
    bytes: u64,
    spent: Duration,
    longest: Pause,
    /// Since when it goes on, and when the last copy began or the last answer came.
    begun: Option<Instant>,
    last: Option<Instant>,
    slice: Slice,
    /// Slices until the next trial, and how many there are between two.
    left: u32,
    patience: u32,
    /// Nanoseconds that the last trials, warming up included, took longer than the fastest way.
    lost: u128,
    /// How often the trial that goes on was begun anew.
    repeated: u32,
}

impl Default for Race {
    fn default() -> Race {
        Race::between(ONE_SIDED)
    }
}

impl Race {
    /// The race of SENDs.
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
            longest: Pause::default(),
            begun: None,
            last: None,
            slice: Slice::Usual,
            left: 0,
            patience: FEWEST,
            lost: 0,
            repeated: 0,
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
        if (self.bytes >= SLICE || self.has_lost()) && is_known {
            self.look(now);
        }
        if self.way() == Way::Copies && self.begun.is_none() {
            self.begun = Some(now);
        }
        self.way()
    }

    /// The way of a request that begins while nothing is under way, and takes until it is known
    /// that packets have brought it.
    pub fn next_alone(&mut self, now: Instant) -> Way {
        self.pause();
        let way = self.next(now);
        self.begun = Some(now);
        way
    }

    /// Nothing was under way: the time since the last request went counts for no way.
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
        // A part of one says nothing.
        if self.way() == Way::Copies || len == 0 {
            return;
        }
        let last = self.last.replace(now);
        // Until the first one is done the peer's thread may have to be woken.
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            return;
        };
        self.bytes += len;
        let spent = now.saturating_duration_since(last.unwrap_or(begun).max(begun));
        if spent > self.longest.spent {
            self.longest = Pause { spent, bytes: len };
        }
    }

    /// The peer does not reach what was lent: another way goes on, and this one is tried again
    /// later, less and less often.
    pub fn refused(&mut self) {
        if self.way() == Way::Both {
            self.rates[self.now] = 1;
            self.best = if self.best == self.now { 0 } else { self.best };
            (self.now, self.left, self.slice) = (self.best, self.patience, Slice::Usual);
            self.patience = (self.patience * 2).min(MOST);
            (self.bytes, self.spent, self.begun) = (0, Duration::ZERO, None);
            (self.longest, self.repeated) = (Pause::default(), 0);
        }
    }

    /// A slice has ended.
    fn look(&mut self, now: Instant) {
        // Of packets to the last answer, as what goes on since is not known yet; many copies are
        // made at one time.
        let nanos =
            self.spent_until(if self.way() == Way::Copies { Some(now) } else { self.last }).as_nanos();
        (self.spent, self.begun) = (Duration::ZERO, None);
        let bytes = u128::from(std::mem::take(&mut self.bytes));
        let longest = std::mem::take(&mut self.longest);
        // Two threads may have taken answers in, and one of them have looked at the clock long
        // before.
        let is_void = self.way() != Way::Copies && nanos == 0;
        if self.slice != Slice::Usual && !is_void {
            self.lost += nanos.saturating_sub(self.nanos_of(bytes));
        }
        if self.slice == Slice::WarmsUp || is_void {
            self.slice = if is_void { self.slice } else { Slice::Trial };
            return;
        }
        if self.slice == Slice::Trial && self.repeated < REPEATS && self.is_disturbed(bytes, nanos, longest) {
            self.repeated += 1;
            return;
        }
        self.repeated = 0;
        let rate = rate(bytes, nanos);
        let trial = std::mem::replace(&mut self.slice, Slice::Usual) == Slice::Trial;
        let seen = &mut self.rates[self.now];
        // One slow slice of many may have met another thread on the processor for a while, and no
        // two take the same time.
        *seen = if trial || *seen == 0 { rate } else { (*seen / 4 * 3 + rate / 4).max(1) };
        let fastest = self.fastest();
        if trial {
            self.tried = self.now;
            if fastest != self.best {
                (self.best, self.patience) = (fastest, if fastest == 0 { FEWEST } else { STAY });
                self.lost = 0;
            }
            self.now = self.best;
            // What was never tried has its turn first, but not before the best one has come to its
            // pace.
            self.left = FEWEST;
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

    /// The time of this slice.
    fn spent_until(&self, end: Option<Instant>) -> Duration {
        let since = self.begun.zip(end).map(|(begun, end)| end.saturating_duration_since(begun));
        self.spent + since.unwrap_or_default()
    }

    /// Whether one pause took most of a trial's time, and the way would be the fastest one without
    /// it. On a busy machine a thread loses its processor for some milliseconds, longer than a
    /// trial takes.
    fn is_disturbed(&self, bytes: u128, nanos: u128, longest: Pause) -> bool {
        let others = bytes.saturating_sub(longest.bytes.into());
        let is_known = others * 2 >= bytes && longest.is_most_of(nanos);
        is_known && self.fastest_if(rate(others, nanos.saturating_sub(longest.spent.as_nanos()))) == self.now
    }

    /// Whether it is clear before the end of its slice that a way which is tried is slower by far:
    /// a quarter of the bytes has taken twice as long as all of them would, and that was no
    /// single pause.
    fn has_lost(&self) -> bool {
        if self.slice == Slice::Usual || self.way() == Way::Copies || self.bytes < SLICE / 4 {
            return false;
        }
        let nanos = self.spent_until(self.last).as_nanos();
        nanos > 2 * self.nanos_of(SLICE.into()) && !self.longest.is_most_of(nanos)
    }

    /// Slices of the fastest way after which the last trials have cost no more than they may. Where
    /// others want the peer's processor they cost most.
    fn pays_off_after(&self) -> u32 {
        let after = (self.lost * WORTH).checked_div(self.nanos_of(SLICE.into())).unwrap_or(0);
        u32::try_from(after).unwrap_or(MOST).min(MOST)
    }

    /// How long so many bytes take the fastest way.
    fn nanos_of(&self, bytes: u128) -> u128 {
        bytes * 1_000_000_000 / u128::from(self.rates[self.best].max(1))
    }

    /// The fastest one, as far as is known. Packets take the peer's processor, too: they are to be
    /// faster than copies by a quarter; and one way of theirs is to be faster than the other by
    /// an eighth.
    fn fastest(&self) -> usize {
        self.fastest_if(self.rates[self.now])
    }

    /// Like [`Race::fastest`], if the present way went at this rate.
    fn fastest_if(&self, now: u64) -> usize {
        let worth = |at: usize| {
            let rate = if at == self.now { now } else { self.rates[at] };
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

/// Bytes a second, at least one.
fn rate(bytes: u128, nanos: u128) -> u64 {
    let rate = (bytes * 1_000_000_000).checked_div(nanos).unwrap_or(u128::MAX);
    u64::try_from(rate).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests;
