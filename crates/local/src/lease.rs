//! Which thread serves a socket: the program's threads that poll, the engine, or both.
//!
//! A poll takes the socket out of the engine's hands for a while, which makes polling cheaper. A
//! program that polls, then watches its memory for what a peer writes would wait until that while
//! is over, each time. So where packets are found to have waited for it, both serve the socket, for
//! as long as the engine finds packets that no poll came for.
//!
//! A [`Lease`] runs or is over, and its socket is shared or not:
//!
//! ```text
//!          ---- renew ------------------------------------------->
//!    over                                                           runs
//!          <--- 200 us (LEASE_NANOS) without renew, or end -------
//!
//!          ---- engine_found within 50 us (WAITED_NANOS) of ----->
//!               taken_back
//!   alone                                                           shared
//!          <--- `shared` comes down to 0 -------------------------
//! ```
//!
//! | lease | socket | served by |
//! |---|---|---|
//! | over | either | the engine |
//! | runs | alone | threads that poll |
//! | runs | shared | both |
//!
//! `shared` begins at 32 (`MAX_SHARED`), which is also the most. Packets that the engine was needed
//! for add 4 (`NEEDED`). A poll that brings packets takes 1 off. So do packets that the engine
//! finds just behind a poll, which would have brought them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// For how long after a poll the polling thread alone serves the sockets it polls.
pub const LEASE_NANOS: u64 = 200_000;
/// The engine looks at threads that poll once in a lease and so much more: a part of the time for
/// which they have polled without a break, and at most.
const PAUSE_PART: u64 = 4;
/// The engine looks at threads that poll so much later than a lease ends, at most.
pub const MAX_PAUSE_NANOS: u64 = 4_000_000;
/// What the engine finds so soon after a lease has ended was waiting for that.
const WAITED_NANOS: u64 = 50_000;
/// A thread that has not polled for so long does something else: polls in a row are less than 1 us
/// apart.
const AWAY_NANOS: u64 = 1_500;
/// So many polls that bring packets, with none left to the engine between them, make the socket
/// theirs again.
const MAX_SHARED: u32 = 32;
/// What one packet that the engine was needed for weighs in polls.
const NEEDED: u32 = 4;

/// How long after the end of a lease the engine looks at threads that have polled for so long
/// without a break: each look takes the processor from one of them, and what comes to one that
/// stops waits for it, once.
pub fn pause(polled_nanos: u64) -> u64 {
    (polled_nanos / PAUSE_PART).min(MAX_PAUSE_NANOS)
}

/// One socket's lease. Its numbers are hints: that two threads change them at once does no harm.
#[derive(Default)]
pub struct Lease {
    /// When a polling thread last tried the socket; 0 where none does.
    polled_at: AtomicU64,
    /// When the engine took the socket back at the end of a lease.
    taken_back_at: AtomicU64,
    /// Polls until the socket is the polling threads' alone; 0 where it is.
    shared: AtomicU32,
}

impl Lease {
    /// Starts or renews it: a thread polls.
    #[inline]
    pub fn renew(&self, now: u64) {
        self.polled_at.store(now, Ordering::Relaxed);
    }

    /// When a polling thread last tried the socket; 0 where none does.
    pub fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// When the lease ends, where one runs.
    pub fn ends_at(&self, now: u64) -> Option<u64> {
        match self.polled_at.load(Ordering::Relaxed) {
            0 => None,
            polled_at => Some(polled_at.saturating_add(LEASE_NANOS)).filter(|&end| end > now),
        }
    }

    /// No thread polls any more. Returns whether one had, since polling was ended before.
    pub fn end(&self) -> bool {
        let polled = self.polled_at.load(Ordering::Relaxed) != 0;
        if polled {
            self.polled_at.store(0, Ordering::Relaxed);
        }
        polled
    }

    /// The lease has ended by itself, and the engine is told of packets from now on.
    pub fn taken_back(&self, now: u64) {
        self.taken_back_at.store(now, Ordering::Relaxed);
    }

    /// Whether the engine serves the socket in spite of the lease.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) > 0
    }

    /// The engine woke at `now` and found packets, and the program had last polled any socket at
    /// `polled_at`: just now, and they would have been found without it; or later than now,
    /// which says that it sends and then will.
    pub fn engine_found(&self, now: u64, polled_at: u64) {
        let shared = self.shared.load(Ordering::Relaxed);
        let waited = now.saturating_sub(self.taken_back_at.swap(0, Ordering::Relaxed)) < WAITED_NANOS;
        if waited {
            self.shared.store(MAX_SHARED, Ordering::Relaxed);
        } else if shared > 0 {
            let away = now.saturating_sub(polled_at) > AWAY_NANOS;
            let shared = if away { (shared + NEEDED).min(MAX_SHARED) } else { shared - 1 };
            self.shared.store(shared, Ordering::Relaxed);
        }
    }

    /// A poll brought packets.
    #[inline]
    pub fn poll_found(&self) {
        let shared = self.shared.load(Ordering::Relaxed);
        if shared > 0 {
            self.shared.store(shared - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000;

    /// A lease at whose end a packet was found to have waited.
    fn shared() -> Lease {
        let lease = Lease::default();
        lease.renew(START - LEASE_NANOS);
        lease.taken_back(START);
        lease.engine_found(START + 5_000, START - LEASE_NANOS);
        lease
    }

    #[test]
    fn a_lease_runs_for_200_us_after_the_last_poll() {
        let lease = Lease::default();
        assert_eq!(lease.ends_at(START), None);
        lease.renew(START);
        lease.renew(START + 50_000);
        assert_eq!(lease.ends_at(START + 50_000), Some(START + 250_000));
        assert_eq!(lease.ends_at(START + 250_000), None);
        lease.renew(START + 300_000);
        lease.end();
        assert_eq!(lease.ends_at(START + 300_000), None);
    }

    #[test]
    fn who_has_polled_for_long_is_left_alone_for_a_while_and_four_milliseconds_at_most() {
        assert_eq!((pause(0), pause(1_600_000)), (0, 400_000));
        assert_eq!((pause(1 << 40), pause(u64::MAX)), (MAX_PAUSE_NANOS, MAX_PAUSE_NANOS));
    }

    #[test]
    fn packets_that_waited_for_the_end_of_a_lease_make_the_socket_shared() {
        assert!(shared().is_shared());
    }

    #[test]
    fn packets_that_come_after_a_lease_has_ended_change_nothing() {
        let lease = Lease::default();
        lease.renew(START - LEASE_NANOS);
        lease.taken_back(START);
        lease.engine_found(START + WAITED_NANOS, START - LEASE_NANOS);
        lease.engine_found(START + WAITED_NANOS, START - LEASE_NANOS);
        assert!(!lease.is_shared());
    }

    #[test]
    fn a_program_that_polls_and_then_watches_its_memory_keeps_the_socket_shared() {
        let (lease, mut now) = (shared(), START);
        for _ in 0..1000 {
            // The ACK of its own message comes to a poll, the peer's message does not.
            now += 20_000;
            lease.renew(now);
            lease.poll_found();
            lease.engine_found(now + 5_000, now);
            assert!(lease.is_shared());
        }
    }

    #[test]
    fn polls_that_bring_all_packets_have_the_socket_to_themselves_again() {
        let lease = shared();
        for _ in 0..MAX_SHARED {
            assert!(lease.is_shared());
            lease.poll_found();
        }
        assert!(!lease.is_shared());
    }

    #[test]
    fn what_the_engine_finds_just_behind_a_poll_or_while_the_program_sends_did_not_need_it() {
        let lease = shared();
        for at in 0..u64::from(MAX_SHARED) {
            assert!(lease.is_shared());
            let polled_at = START + at * 20_000;
            lease.engine_found(polled_at + if at % 2 == 0 { 500 } else { 0 }, polled_at);
        }
        assert!(!lease.is_shared());
        let sends_until = START + 40_000;
        shared().engine_found(START + 10_000, sends_until);
    }
}
