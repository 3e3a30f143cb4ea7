//! The rows of programs: a way, and how many packets and words went it.
//!
//! | word | what |
//! |---|---|
//! | 0 | state in the upper half, the program's number in the lower one |
//! | 1 | where the way ends: kind, port; how many hops it has |
//! | 2, 3 | packets, words of 4 bytes |
//! | from 4 on | the ports out of each node, two a word |
//!
//! A program takes a row that is free, writes the way, and adds to the numbers. It gives the row
//! back when its way is another one. The fabric has added up all of it before the row is free
//! again.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::way::End;
use super::{NEXT_ROW, Plane, REFUSED, USED_ROWS};
use crate::route::MAX_ROUTE;

/// Words of a row: whole lines of a cache.
pub(super) const ROW_WORDS: usize = 40;
const ABOUT: usize = 1;
const PACKETS: usize = 2;
const WORDS: usize = 3;
const HOPS: usize = 4;

/// How many rows that were in use before are tried, before one that never was.
const TRIES: usize = 64;

/// States of a row.
const TAKEN: u64 = 1 << 32;
const LIVE: u64 = 2 << 32;
const GIVEN_BACK: u64 = 3 << 32;

/// The number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowId(u32);

/// What a row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) owner: u32,
    pub(super) is_given_back: bool,
    pub(super) hops: Vec<u32>,
    pub(super) end: End,
    pub(super) packets: u64,
    pub(super) words: u64,
}

impl Plane<'_> {
    fn row_word(&self, row: RowId, at: usize) -> Option<&AtomicU64> {
        self.words.get(self.layout.row(row.0) + at)
    }

    /// Takes a row for a way; `None` where none is free.
    pub(super) fn take_row(&self, owner: u32, hops: &[u32], end: End) -> Option<RowId> {
        let row = self.free_row(owner)?;
        let at = self.layout.row(row.0);
        let (kind, port) = match end {
            End::Arrived(port) => (0, port),
            End::Discarded(port) => (1, port),
            End::NoRelay(port) => (2, port),
            End::Astray => (3, 0),
            End::Damaged(port) => (4, port),
            End::RefusedOut(port) => (5, port),
            End::RefusedIn(port) => (6, port),
        };
        self.store(at + ABOUT, u64::from(port) | kind << 32 | (hops.len() as u64) << 40);
        for (n, pair) in hops.chunks(2).take(MAX_ROUTE / 2).enumerate() {
            let high = pair.get(1).map_or(0, |port| u64::from(*port) << 32);
            self.store(at + HOPS + n, u64::from(pair[0]) | high);
        }
        self.row_word(row, 0)?.store(LIVE | u64::from(owner), Release);
        Some(row)
    }

    fn free_row(&self, owner: u32) -> Option<RowId> {
        let used = self.words.get(USED_ROWS)?;
        let take = |row: u32| {
            let taken = TAKEN | u64::from(owner);
            self.row_word(RowId(row), 0)?.compare_exchange(0, taken, AcqRel, Relaxed).ok()?;
            Some(RowId(row))
        };
        // Rows that were given back are free once the fabric has added them up: a search does not
        // begin where the last one has.
        let many = u32::try_from(used.load(Acquire)).unwrap_or(u32::MAX).min(self.layout.rows);
        let begin = self.words.get(NEXT_ROW)?.fetch_add(1, Relaxed) as u32 % many.max(1);
        if let Some(row) = (begin..many).chain(0..begin).take(TRIES).find_map(take) {
            return Some(row);
        }
        let row = (many..self.layout.rows).chain(0..many).find_map(|row| {
            // Said before it is taken, so that the fabric finds it.
            used.fetch_max(u64::from(row) + 1, AcqRel);
            take(row)
        });
        if row.is_none()
            && let Some(refused) = self.words.get(REFUSED)
        {
            refused.fetch_add(1, Relaxed);
        }
        row
    }

    /// Adds to a row. No other thread does so meanwhile.
    #[inline]
    pub(super) fn add_to_row(&self, row: RowId, packets: u64, words: u64) {
        let at = self.layout.row(row.0);
        if let Some([to_packets, to_words]) = self.words.get(at + PACKETS..=at + WORDS) {
            to_packets.store(to_packets.load(Relaxed).wrapping_add(packets), Relaxed);
            to_words.store(to_words.load(Relaxed).wrapping_add(words), Relaxed);
        }
    }

    /// Gives a row back: nothing is added to it any more.
    pub(super) fn give_row_back(&self, row: RowId, owner: u32) {
        if let Some(word) = self.row_word(row, 0) {
            let _ = word.compare_exchange(
                LIVE | u64::from(owner),
                GIVEN_BACK | u64::from(owner),
                AcqRel,
                Relaxed,
            );
        }
    }

    /// The rows that may be in use.
    pub(super) fn used_rows(&self) -> impl Iterator<Item = RowId> + use<> {
        let many = u32::try_from(self.load(USED_ROWS)).unwrap_or(u32::MAX);
        (0..many.min(self.layout.rows)).map(RowId)
    }

    /// The program that has a row, also one whose way is not written yet.
    pub(super) fn row_owner(&self, row: RowId) -> Option<u32> {
        let state = self.row_word(row, 0)?.load(Acquire);
        (state >> 32 != 0).then_some(state as u32)
    }

    /// What a row says; `None` where it has no way. The state is read first: the numbers of a row
    /// that was given back are its last ones.
    pub(super) fn row(&self, row: RowId) -> Option<Row> {
        let state = self.row_word(row, 0)?.load(Acquire);
        let is_given_back = match state >> 32 << 32 {
            LIVE => false,
            GIVEN_BACK => true,
            _ => return None,
        };
        let at = self.layout.row(row.0);
        let about = self.load(at + ABOUT);
        let port = about as u32;
        let end = match about >> 32 & 0xff {
            0 => End::Arrived(port),
            1 => End::Discarded(port),
            2 => End::NoRelay(port),
            4 => End::Damaged(port),
            5 => End::RefusedOut(port),
            6 => End::RefusedIn(port),
            _ => End::Astray,
        };
        let many = usize::try_from(about >> 40).unwrap_or(usize::MAX).min(MAX_ROUTE);
        let hop = |n: usize| (self.load(at + HOPS + n / 2) >> (32 * (n % 2))) as u32;
        Some(Row {
            owner: state as u32,
            is_given_back,
            hops: (0..many).map(hop).collect(),
            end,
            packets: self.load(at + PACKETS),
            words: self.load(at + WORDS),
        })
    }

    /// Makes a row free, whose numbers were added up.
    pub(super) fn free(&self, row: RowId) {
        let at = self.layout.row(row.0);
        self.store(at + PACKETS, 0);
        self.store(at + WORDS, 0);
        if let Some(word) = self.row_word(row, 0) {
            word.store(0, Release);
        }
    }
}

impl RowId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}
