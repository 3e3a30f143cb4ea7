//! Streams that a queue pair has let go of before the peer's TCP has all that was sent.
//!
//! The kernel answers what comes to a closed socket, or lies there unread, by RST, and drops what
//! it had still to send. The peer of an iWARP connection has not said its last word when this side
//! closes: it may return credits. So such a socket stays for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use locks::{Mutex, Rank};
use sys::fork::Fd;

/// How often the sockets are looked at.
const PERIOD: Duration = Duration::from_millis(10);
/// For how long one stays: a peer that reads slowly loses the rest. One that acknowledges nothing
/// is given up by TCP before.
const STAY: Duration = Duration::from_secs(60);
/// How many stay, at most: peers that do not read cost so many descriptors.
const MAX: usize = 1024;

/// All of them.
pub(super) struct Closing {
    /// Each with the time to close it, in nanoseconds of the clock.
    sockets: Mutex<Vec<(u64, Fd)>>,
    /// When to look at them; `u64::MAX` where there is none.
    next: AtomicU64,
}

impl Default for Closing {
    fn default() -> Self {
        Self { sockets: Mutex::new(Rank::RxSockets, Vec::new()), next: AtomicU64::new(u64::MAX) }
    }
}

impl Closing {
    /// Adds one, where there is room; when to look at it.
    pub(super) fn add(&self, now: u64, socket: Fd) -> u64 {
        let mut sockets = self.sockets.lock();
        if sockets.len() < MAX {
            sockets.push((now + STAY.as_nanos() as u64, socket));
            self.next.fetch_min(now + PERIOD.as_nanos() as u64, Ordering::Relaxed);
        }
        self.next.load(Ordering::Relaxed)
    }

    /// Closes those whose peer has all, and those whose time is over; when to come back.
    pub(super) fn close_due(&self, now: u64) -> u64 {
        if self.next.load(Ordering::Relaxed) > now {
            return self.next.load(Ordering::Relaxed);
        }
        let mut sockets = self.sockets.lock();
        sockets.retain(|(until, fd)| *until > now && sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0));
        let next = if sockets.is_empty() { u64::MAX } else { now + PERIOD.as_nanos() as u64 };
        self.next.store(next, Ordering::Relaxed);
        next
    }
}
