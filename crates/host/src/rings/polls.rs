//! When threads polled, what that brought, and when they look at the sockets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// While rings bring packets, a thread that polls looks at the sockets so often: where they bring some, too, and at the least.
const SOCKETS_NANOS: u64 = 10_000;
const QUIET_SOCKETS_NANOS: u64 = 8 * SOCKETS_NANOS;
/// A ring that brought nothing for so long does not keep anybody from the sockets.
const QUIET_NANOS: u64 = 100_000;

/// See the module. Times are nanoseconds of the host's clock.
#[derive(Default)]
pub(super) struct Polls {
    polled_at: AtomicU64,
    /// When the rings last brought something to a poll.
    delivered_at: AtomicU64,
    /// When a thread that polls last looked at the sockets, and how long until the next look.
    sockets_at: AtomicU64,
    sockets_pause: AtomicU64,
    /// The rings brought packets lately, when that was asked last.
    busy: AtomicBool,
}

impl Polls {
    /// Whether rings brought packets lately, when that was asked last.
    #[inline]
    pub(super) fn are_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn polled(&self, now: u64) {
        self.polled_at.store(now, Ordering::Relaxed);
    }

    pub(super) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn delivered(&self, now: u64) {
        self.delivered_at.store(now, Ordering::Relaxed);
    }

    /// Whether a thread that polls and found nothing in a ring shall look at the sockets: a system call that costs more than many
    /// looks at a ring.
    #[inline]
    pub(super) fn sockets_are_due(&self, now: u64) -> bool {
        let busy = now.saturating_sub(self.delivered_at.load(Ordering::Relaxed)) < QUIET_NANOS;
        self.busy.store(busy, Ordering::Relaxed);
        let pause = self.sockets_pause.load(Ordering::Relaxed);
        if busy && now.saturating_sub(self.sockets_at.load(Ordering::Relaxed)) < pause {
            return false;
        }
        self.sockets_at.store(now, Ordering::Relaxed);
        true
    }

    /// Whether that look brought something: where it does not, the next one is later each time.
    #[inline]
    pub(super) fn looked_at_sockets(&self, brought: bool) {
        let pause = self.sockets_pause.load(Ordering::Relaxed);
        let pause = if brought { 0 } else { pause * 2 };
        let pause = pause.clamp(SOCKETS_NANOS, QUIET_SOCKETS_NANOS);
        self.sockets_pause.store(pause, Ordering::Relaxed);
    }
}
