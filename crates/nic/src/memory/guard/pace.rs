//! Which of two ways serves better, here and now, to copy long pieces into memory that another
//! process reads, or out of memory that it fills, again and again. Where its processor is near
//! the reader does best with a loop over vector registers, and the writer with stores that the
//! caches keep; where it is far away the reader with the processor's string instruction, and
//! the writer with stores past the caches. The processors of a virtual machine may be near each
//! other for some minutes and then far, and nothing says so. What one copy takes does not
//! tell (docs/design/long-messages.md): so slices of a stream are compared, each from its first
//! piece to its last.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of a slice.
const SLICE: u64 = 4 << 20;
/// What a slice took is told of so many bytes.
const UNIT: u64 = 1 << 14;
/// Ticks, about half a millisecond, without the end of a piece: a slice with such a pause says
/// nothing.
const PAUSE: u64 = 1 << 20;
/// Slices that go the better way before the other one is tried, after a change. `MORE` times as
/// many each time that it was no better, `MANY` at most. Writer and reader see the same stream, and
/// would confuse their trials: they begin at different slices.
pub(super) const FEW_WRITTEN: u32 = 8;
pub(super) const FEW_READ: u32 = 5;
const MORE: u32 = 8;
const MANY: u32 = 256;

/// What is known, which are hints: that two threads change them at once does no harm.
pub(super) struct Pace {
    /// Whether the other way serves better, as far as is known, and whether it is in use.
    better: AtomicBool,
    used: AtomicBool,
    /// What a slice of the better one took, in ticks of the processor; 0 where none was seen.
    took: AtomicU64,
    /// Slices until the other one is tried, and how many there were last time.
    left: AtomicU32,
    row: AtomicU32,
    few: u32,
    /// Whether the last slice took far more than those before.
    slow: AtomicBool,
    /// Whether a slice has gone the way that is tried.
    warm: AtomicBool,
    /// Of this slice: its bytes so far, when it began, when the last piece was done, and whether
    /// there was a pause.
    bytes: AtomicU64,
    begun: AtomicU64,
    last: AtomicU64,
    paused: AtomicBool,
}

impl Pace {
    pub(super) const fn new(few: u32) -> Pace {
        Pace {
            better: AtomicBool::new(false),
            used: AtomicBool::new(false),
            took: AtomicU64::new(0),
            left: AtomicU32::new(few),
            row: AtomicU32::new(few),
            few,
            slow: AtomicBool::new(false),
            warm: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            last: AtomicU64::new(0),
            paused: AtomicBool::new(true),
        }
    }

    /// Whether a piece is to be copied the other way now.
    pub(super) fn is_other(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// A piece was copied until this tick.
    pub(super) fn note(&self, end: u64, len: usize) {
        if end.saturating_sub(self.last.swap(end, Relaxed)) > PAUSE {
            self.paused.store(true, Relaxed);
        }
        let before = self.bytes.fetch_add(len as u64, Relaxed);
        let bytes = before + len as u64;
        // One thread finds it full.
        if before < SLICE && bytes >= SLICE {
            let begun = self.begun.swap(end, Relaxed);
            if !self.paused.swap(false, Relaxed) {
                self.judge(end.saturating_sub(begun).saturating_mul(UNIT) / bytes);
            }
            self.bytes.store(0, Relaxed);
        }
    }

    /// A slice took so long.
    fn judge(&self, took: u64) {
        let (better, used) = (self.better.load(Relaxed), self.used.load(Relaxed));
        let known = self.took.load(Relaxed);
        if used == better {
            let left = self.left.load(Relaxed);
            let is_slow = known > 0 && took > known.saturating_mul(2);
            // Once says nothing: the other process may be trying its other way.
            if is_slow && !self.slow.swap(true, Relaxed) {
                return;
            }
            self.slow.store(false, Relaxed);
            let average = if known == 0 || is_slow { took } else { (known + took) / 2 };
            self.took.store(average, Relaxed);
            if is_slow {
                self.row.store(self.few, Relaxed);
            }
            if is_slow || left == 0 {
                self.used.store(!used, Relaxed);
            } else {
                self.left.store(left - 1, Relaxed);
            }
            return;
        }
        // The first slice finds the lines where the better way has left them. It tells what is
        // slower by far.
        if !self.warm.swap(true, Relaxed) && took < known.saturating_mul(3) / 2 {
            return;
        }
        self.warm.store(false, Relaxed);
        // Better by an eighth, or not.
        let row = if took < known - known / 8 {
            self.better.store(!better, Relaxed);
            self.took.store(took, Relaxed);
            self.few
        } else {
            self.used.store(better, Relaxed);
            self.row.load(Relaxed).saturating_mul(MORE).min(MANY)
        };
        self.row.store(row, Relaxed);
        self.left.store(row, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 1 << 16;

    /// A stream of so many slices, whose pieces take so long by each way; how many pieces went the
    /// other way.
    fn stream(pace: &Pace, now: &mut u64, slices: usize, by_one: u64, by_other: u64) -> usize {
        let mut one = || {
            let other = pace.is_other();
            *now += if other { by_other } else { by_one };
            pace.note(*now, PIECE);
            other
        };
        (0..slices * SLICE as usize / PIECE).filter(|_| one()).count()
    }

    #[test]
    fn the_better_way_is_taken_and_the_other_one_tried_less_and_less() {
        const SLICES: usize = 2_000;
        let pieces = SLICES * SLICE as usize / PIECE;
        let (pace, mut now) = (Pace::new(FEW_WRITTEN), 5);
        let tried = stream(&pace, &mut now, SLICES, 8_000, 9_000) * PIECE / SLICE as usize;
        assert!((8..20).contains(&tried), "{tried}");
        let pace = Pace::new(FEW_WRITTEN);
        let by_one = pieces - stream(&pace, &mut now, SLICES, 20_000, 12_000);
        let tried = by_one * PIECE / SLICE as usize;
        assert!((16..30).contains(&tried), "{tried}");
    }

    #[test]
    fn that_the_other_way_is_better_now_is_seen() {
        let (pace, mut now) = (Pace::new(FEW_WRITTEN), 5);
        stream(&pace, &mut now, 10_000, 8_000, 9_000);
        // Both take longer, and what was better does by more: seen at the second slice.
        stream(&pace, &mut now, 3, 40_000, 20_000);
        assert!(pace.is_other());
        // All is faster: seen when the other one is tried again.
        stream(&pace, &mut now, 2 * MANY as usize, 8_000, 12_000);
        assert!(!pace.is_other());
    }

    #[test]
    fn the_second_slice_of_a_trial_counts_unless_the_first_is_slower_by_far() {
        let pieces = SLICE as usize / PIECE;
        for (first, second, slices, is_better) in
            [(10_000, 6_000, 2, true), (6_000, 8_000, 2, false), (13_000, 6_000, 1, false)]
        {
            let (pace, mut now) = (Pace::new(FEW_READ), 5);
            while !pace.is_other() {
                stream(&pace, &mut now, 1, 8_000, first);
            }
            let tried = stream(&pace, &mut now, 1, 8_000, first) + stream(&pace, &mut now, 1, 8_000, second);
            assert_eq!((tried, pace.is_other()), (slices * pieces, is_better), "{first} and {second}");
        }
    }

    #[test]
    fn writer_and_reader_of_one_stream_do_not_try_in_the_same_slice() {
        let (paces, mut now) = ([FEW_WRITTEN, FEW_READ].map(Pace::new), 5);
        for slice in 0..10_000 {
            let tried = paces.each_ref().map(Pace::is_other);
            assert_ne!(tried, [true; 2], "slice {slice}");
            for _ in 0..SLICE as usize / PIECE {
                now += if tried == [false; 2] { 8_000 } else { 9_000 };
                paces.iter().for_each(|pace| pace.note(now, PIECE));
            }
        }
    }

    #[test]
    fn one_slice_that_takes_long_changes_nothing() {
        let (pace, mut now) = (Pace::new(FEW_WRITTEN), 5);
        stream(&pace, &mut now, 4, 8_000, 9_000);
        let known = pace.took.load(Relaxed);
        for _ in 0..4 {
            stream(&pace, &mut now, 1, 40_000, 9_000);
            stream(&pace, &mut now, 1, 8_000, 9_000);
        }
        assert_eq!((pace.is_other(), pace.took.load(Relaxed)), (false, known));
    }

    #[test]
    fn a_pause_says_nothing_of_the_way() {
        let (pace, mut now) = (Pace::new(FEW_WRITTEN), 5);
        stream(&pace, &mut now, 4, 8_000, 9_000);
        let left = pace.left.load(Relaxed);
        for _ in 0..100 {
            now += PAUSE + 1;
            stream(&pace, &mut now, 1, 8_000, 9_000);
        }
        assert_eq!((pace.is_other(), pace.left.load(Relaxed)), (false, left));
    }

    #[test]
    fn no_number_is_too_great() {
        let pace = Pace::new(FEW_WRITTEN);
        for (end, len) in [(u64::MAX, 1 << 30), (0, 1 << 30), (3, 0), (u64::MAX, 1 << 23)] {
            (0..20).for_each(|_| pace.note(end, len));
        }
    }
}
