//! Sockets that threads of the program read while they poll, and the engine at other times.

use local::lease::Lease;
use locks::{Mutex, Rank};

use crate::reactor::Reactor;

/// Such a socket.
pub(crate) trait Leased: Send + Sync {
    /// The name that the engine has for the socket.
    fn token(&self) -> u64;
    /// Who serves it.
    fn lease(&self) -> &Lease;
    /// Has the engine told of what comes again; of what is there, at once.
    fn arm(&self, reactor: &Reactor);
    /// Leaves what comes to the thread that polls.
    fn disarm(&self, reactor: &Reactor);
}

/// Whether the engine is told of what comes.
pub(crate) struct Armed(Mutex<bool>);

impl Default for Armed {
    fn default() -> Self {
        Self(Mutex::new(Rank::Armed, true))
    }
}

impl Armed {
    /// Changes it, and the engine's interest with it, where it is another one. The lock is held
    /// meanwhile: were the two to part, no thread would read the socket any more.
    pub(crate) fn set(&self, to: bool, change_interest: impl FnOnce()) {
        let mut armed = self.0.lock();
        if *armed != to {
            *armed = to;
            change_interest();
        }
    }
}

/// Most sockets that polling threads look at each time.
pub(crate) const MAX_HOT: usize = 8;
/// A hot socket that brought nothing for so long may lose its place.
pub(crate) const COLD_NANOS: u64 = 1_000_000;
/// A hot socket that brought something within this time is tried before the others.
const WARM_NANOS: u64 = 50_000;

/// Which of several hot sockets' turn it is, where `delivered_at` says when each brought something
/// last: that of the next one that did just now. Each eighth round, or where there is no such one,
/// all have their turns.
pub(crate) fn next_hot(hot: usize, turn: u32, now: u64, delivered_at: impl Fn(usize) -> u64) -> usize {
    let turn = turn as usize;
    let is_warm = |&index: &usize| now.saturating_sub(delivered_at(index)) < WARM_NANOS;
    let everyone = (turn / hot).is_multiple_of(8);
    let warm = (turn..turn + hot).map(|turn| turn % hot).find(is_warm).filter(|_| !everyone);
    warm.unwrap_or(turn % hot)
}
