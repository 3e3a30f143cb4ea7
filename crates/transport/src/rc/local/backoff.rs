//! Exponential backoff of a way that was refused.

/// Requests that go another way after the first refusal.
const MIN_SKIPPED: u64 = 32;
/// Requests that go another way at most, where the way never opens, as with keys of windows.
const MAX_SKIPPED: u64 = 4096;

/// Requests are named by their ordinal numbers.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The first request that may try again.
    until: u64,
    /// How many requests the last refusal skips.
    skipped: u64,
}

impl Backoff {
    /// Request `number` was refused.
    pub(super) fn refuse(&mut self, number: u64) {
        self.skipped = (self.skipped * 2).clamp(MIN_SKIPPED, MAX_SKIPPED);
        self.until = number + self.skipped;
    }
    /// A request went this way: the next refusal is the first one.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
    /// Whether request `number` may try.
    pub(super) fn allows(&self, number: u64) -> bool {
        number >= self.until
    }
}
