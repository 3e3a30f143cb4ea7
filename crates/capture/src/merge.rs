//! Packets of several processes in the order of their times. A process shows an arrived packet once
//! its fate is known, so after the answers that it sent, and each process has a stream of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What waits for earlier things.
#[derive(Debug)]
pub struct Merge<T> {
    waiting: BinaryHeap<Reverse<Entry<T>>>,
    count: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: (u64, u64),
    what: T,
}

impl<T> Default for Merge<T> {
    fn default() -> Self {
        Self { waiting: BinaryHeap::new(), count: 0 }
    }
}

impl<T> Merge<T> {
    /// Adds something of a time, in nanoseconds. Of one time the first one comes first.
    pub fn push(&mut self, time: u64, what: T) {
        self.waiting.push(Reverse(Entry { at: (time, self.count), what }));
        self.count += 1;
    }

    /// The earliest, if it is of this time or before.
    pub fn pop_until(&mut self, time: u64) -> Option<T> {
        if self.waiting.peek()?.0.at.0 > time {
            return None;
        }
        self.waiting.pop().map(|entry| entry.0.what)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_come_out_by_their_times_and_no_earlier_than_asked_for() {
        let mut merge = Merge::default();
        for (time, what) in [(5, 'c'), (3, 'a'), (9, 'd'), (3, 'b')] {
            merge.push(time, what);
        }
        let until: String = std::iter::from_fn(|| merge.pop_until(5)).collect();
        assert_eq!((until.as_str(), merge.len()), ("abc", 1));
        assert_eq!((merge.pop_until(8), merge.pop_until(9), merge.is_empty()), (None, Some('d'), true));
    }
}
