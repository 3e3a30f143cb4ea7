//! How long requests go by packets that might have gone a shorter way, after one could not.

/// Requests that go by packets at first.
const FEWEST: u64 = 32;
/// Requests that go by packets at last, where none ever can go otherwise, as with the keys of
/// windows.
const MOST: u64 = 4096;

/// Requests are named by their ordinal numbers.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// The first that may try again.
    until: u64,
    /// How many did not.
    count: u64,
}

impl Refused {
    /// Request `number`, which became the oldest, could not go the shorter way.
    pub fn once_more(&mut self, number: u64) {
        self.count = (self.count * 2).clamp(FEWEST, MOST);
        self.until = number + self.count;
    }
    /// A request could go the shorter way.
    pub fn no_more(&mut self) {
        *self = Refused::default();
    }
    /// Whether this one may try.
    pub fn lets(&self, number: u64) -> bool {
        number >= self.until
    }
}
