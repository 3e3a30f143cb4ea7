//! The window of a destination, shared by all queue pairs that send there: packets that may be
//! under way at once.
//!
//! The far socket buffer is shared by every queue pair and sender and holds an unknown number of
//! packets, so the window grows by one packet a round trip and halves on loss (additive increase,
//! multiplicative decrease). Each queue pair takes an equal share, at least one packet, so none
//! ever waits for another to wake it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Smallest window in packets.
pub const MIN_PACKETS: u32 = 2;
/// Largest window in packets.
pub const MAX_PACKETS: u32 = 512;
/// CongestionWindow of a new destination in packets.
pub const INITIAL_PACKETS: u32 = 64;

/// A congestion window; cheap to share and to ask.
#[derive(Debug)]
pub struct CongestionWindow {
    /// In 1/256 packets, so that growth of less than a packet an ACK is kept.
    size: AtomicU32,
    /// Below this size it doubles each round trip: it was wide enough before, or is where a new one
    /// begins.
    threshold: AtomicU32,
    /// Queue pairs with something under way.
    active: AtomicU32,
}

impl Default for CongestionWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionWindow {
    /// The window of a new destination.
    pub const fn new() -> Self {
        let initial = INITIAL_PACKETS << 8;
        Self { size: AtomicU32::new(initial), threshold: AtomicU32::new(initial), active: AtomicU32::new(0) }
    }
    /// The window of a channel whose room is known: nothing is to be found out.
    pub const fn of_a_channel() -> Self {
        let window = Self::new();
        Self { size: AtomicU32::new(MAX_PACKETS << 8), ..window }
    }
    /// Packets that one queue pair may have under way now, where only so many may be in all; at
    /// least 1.
    #[inline]
    pub fn share_of(&self, most: u32) -> u32 {
        let active = self.active.load(Ordering::Relaxed).max(1);
        ((self.size.load(Ordering::Relaxed) >> 8).min(most) / active).max(1)
    }
    /// A queue pair starts having packets under way.
    #[inline]
    pub fn enter(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }
    /// The queue pair has no packets under way any more.
    #[inline]
    pub fn leave(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
    /// `n` packets were acknowledged while the window was what held the sender back: doubles per
    /// round trip up to [`INITIAL_PACKETS`] or half of what the last loss met, then grows a
    /// packet a round trip.
    pub fn acked(&self, n: u32) {
        let size = self.size.load(Ordering::Relaxed);
        let n = n.min(size >> 8);
        let slow_start = size < self.threshold.load(Ordering::Relaxed);
        let grow = if slow_start { n << 8 } else { (n << 16) / size };
        self.size.store((size + grow).min(MAX_PACKETS << 8), Ordering::Relaxed);
    }
    /// Packets were lost: half the window. Call once a loss event, not once a packet.
    pub fn lost(&self) {
        let half = (self.size.load(Ordering::Relaxed) / 2).max(MIN_PACKETS << 8);
        self.size.store(half, Ordering::Relaxed);
        self.threshold.store(half, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_halves_and_a_round_trip_adds_a_packet() {
        let window = CongestionWindow::default();
        window.lost();
        assert_eq!(window.share_of(u32::MAX), 32);
        window.acked(16);
        window.acked(16);
        assert_eq!(window.share_of(u32::MAX), 32, "within rounding");
        window.acked(1);
        assert_eq!(window.share_of(u32::MAX), 33);
        for _ in 0..20 {
            window.lost();
        }
        assert_eq!(window.share_of(u32::MAX), MIN_PACKETS);
        for _ in 0..100_000 {
            window.acked(4096);
        }
        assert_eq!(window.share_of(u32::MAX), MAX_PACKETS);
    }

    #[test]
    fn nobody_gets_less_than_a_packet() {
        let window = CongestionWindow::default();
        for _ in 0..1000 {
            window.enter();
        }
        assert_eq!(window.share_of(u32::MAX), 1);
    }
}
