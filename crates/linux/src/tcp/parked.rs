//! Listeners that a program gave up a moment ago. Programs listen at the same port again at once
//! (perftest with `-R` makes two connections so), and a peer that connects between the two is to
//! wait, not to be refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use locks::{Mutex, Rank};

use crate::tcp::TcpListener;

/// For how long such a listener stays. Peers that wait are refused then.
const STAY: Duration = Duration::from_millis(200);

/// All of them.
pub(super) struct Parked {
    /// Each with the time to close it, in nanoseconds of the clock; the first one first.
    listeners: Mutex<Vec<(u64, Arc<TcpListener>)>>,
    /// When the first is to be closed; `u64::MAX` where there is none.
    earliest: AtomicU64,
}

impl Default for Parked {
    fn default() -> Self {
        Self { listeners: Mutex::new(Rank::RxSockets, Vec::new()), earliest: AtomicU64::new(u64::MAX) }
    }
}

impl Parked {
    /// Adds one; when it is to be closed.
    pub(super) fn add(&self, now: u64, listener: &Arc<TcpListener>) -> u64 {
        let until = now + STAY.as_nanos() as u64;
        self.listeners.lock().push((until, listener.clone()));
        self.earliest.fetch_min(until, Ordering::Relaxed);
        until
    }

    /// The one that listens so. Others at the port would keep it from a new listener: they are
    /// closed.
    pub(super) fn take(&self, at: SocketAddr, v6_only: bool) -> Option<Arc<TcpListener>> {
        let mut listeners = self.listeners.lock();
        let at_port: Vec<_> =
            listeners.extract_if(.., |(_, listener)| listener.at.port() == at.port()).collect();
        let same = |listener: &Arc<TcpListener>| (listener.at, listener.v6_only) == (at, v6_only);
        at_port.into_iter().map(|(_, listener)| listener).find(same)
    }

    /// Closes those whose time has come; when to come back.
    pub(super) fn close_due(&self, now: u64) -> u64 {
        if self.earliest.load(Ordering::Relaxed) > now {
            return self.earliest.load(Ordering::Relaxed);
        }
        let mut listeners = self.listeners.lock();
        listeners.retain(|(until, _)| *until > now);
        let earliest = listeners.first().map_or(u64::MAX, |(until, _)| *until);
        self.earliest.store(earliest, Ordering::Relaxed);
        earliest
    }
}
