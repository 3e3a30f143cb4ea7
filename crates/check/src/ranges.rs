//! Ranges of memory under outstanding work requests, which may overlap each other.

use std::collections::BTreeMap;

/// Ranges, each of a request.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// By first address and request: the address behind the last byte.
    ends: BTreeMap<(u64, u64), u64>,
    /// Bytes of the longest range that ever was here.
    longest: u64,
}

impl Ranges {
    /// Enters a range of `len` > 0 bytes of a request.
    pub(crate) fn insert(&mut self, start: u64, len: u64, request: u64) {
        let end = self.ends.entry((start, request)).or_insert(0);
        *end = start.saturating_add(len).max(*end);
        self.longest = self.longest.max(len);
    }

    /// Takes a range of a request out.
    pub(crate) fn remove(&mut self, start: u64, request: u64) {
        self.ends.remove(&(start, request));
    }

    /// The requests that have a range with bytes of this one.
    pub(crate) fn overlapping(&self, start: u64, len: u64) -> impl Iterator<Item = u64> {
        let first = start.saturating_sub(self.longest);
        let behind = start.saturating_add(len);
        let near = self.ends.range((first, 0)..(behind, 0));
        near.filter(move |(_, end)| **end > start).map(|((_, request), _)| *request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_each_of_its_bytes_and_by_no_other() {
        let mut ranges = Ranges::default();
        ranges.insert(100, 10, 1);
        ranges.insert(100, 5, 2);
        ranges.insert(200, 1, 3);
        let found = |ranges: &Ranges, start, len| ranges.overlapping(start, len).collect::<Vec<u64>>();
        let none: [u64; 0] = [];
        assert_eq!(found(&ranges, 90, 10), none);
        assert_eq!(found(&ranges, 104, 1), [1, 2]);
        assert_eq!(found(&ranges, 109, 1), [1]);
        assert_eq!(found(&ranges, 110, 90), none);
        assert_eq!(found(&ranges, 110, 91), [3]);
        ranges.remove(100, 1);
        assert_eq!((found(&ranges, 104, 1), found(&ranges, 105, 5)), (vec![2], vec![]));
        ranges.insert(u64::MAX - 1, 8, 4);
        assert_eq!(found(&ranges, u64::MAX - 1, 1), [4]);
    }
}
