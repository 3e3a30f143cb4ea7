//! Whether much comes or goes: then the next of it is near.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a message of which there may be many.
pub(super) const LEAST: usize = 16 << 10;
/// For how long the next one is waited for awake: it takes some 20 us to send 64 KiB.
const PAUSE: Duration = Duration::from_micros(50);

/// When the last of it came or went.
#[derive(Default)]
pub(super) struct Bulk {
    began: OnceLock<Instant>,
    /// In nanoseconds after `began`.
    last: AtomicU64,
    /// A thread of the program has taken what arrived, and the engine thread leaves that to it for
    /// a while.
    polled: AtomicBool,
}

impl Bulk {
    /// Notes that some of it comes or goes now.
    pub(super) fn note(&self) {
        let since = self.began.get_or_init(Instant::now).elapsed();
        self.last.store(nanos(since), Ordering::Relaxed);
    }
    /// A thread of the program takes what arrives.
    pub(super) fn polls(&self) {
        self.polled.store(true, Ordering::Relaxed);
    }
    /// Notes that the thread sleeps now; whether it took what arrived.
    pub(super) fn polls_no_more(&self) -> bool {
        self.polled.swap(false, Ordering::Relaxed)
    }
    /// Whether some of it came or went just now.
    pub(super) fn is_near(&self) -> bool {
        let near = |began: &Instant| {
            nanos(began.elapsed()).saturating_sub(self.last.load(Ordering::Relaxed)) < nanos(PAUSE)
        };
        self.began.get().is_some_and(near)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_near_that_never_came_or_came_long_ago() {
        let bulk = Bulk::default();
        assert!(!bulk.is_near());
        bulk.note();
        std::thread::sleep(PAUSE * 2);
        assert!(!bulk.is_near());
    }
}
