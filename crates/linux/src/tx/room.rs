//! Which sockets that send are closed: those of peers that are gone, as nothing says that they are,
//! and those that stand in the way of others.
//!
//! | when | which |
//! |---|---|
//! | after [`IDLE`] | every one that sent nothing for so long |
//! | a socket is opened, and there are many | the least recently used one that is not busy |
//! | the system has no descriptor left | the least recently used one, whatever it did |

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::limits;

use super::{Key, MAX_DETOURS, MAX_SOCKETS, SendSocket, Sockets, Tx, of_flow};
use crate::counters::Counters;
use crate::reactor::Reactor;

/// One that sent nothing for so long is closed; should it be wanted again, it is opened again, on
/// another port.
pub(crate) const IDLE: Duration = Duration::from_secs(5);
/// One that sent something within this time stays where there are many.
const BUSY: Duration = Duration::from_secs(1);
/// Of the descriptors that the process may have, a share so large is many.
const SHARE: usize = 4;
/// Fewest sockets that are many.
const MIN: usize = 8;
/// Sockets that are closed for one that cannot be opened otherwise. Another thread may take what is
/// freed.
const MAX_FOR_ONE: usize = 4;

/// How many were closed, and why.
#[derive(Default)]
pub(super) struct Closed {
    idle: AtomicU64,
    given_up: AtomicU64,
}

impl Tx {
    /// Closes the sockets that are idle; when the next one will be. By the environment's clock.
    pub(crate) fn close_idle(&self, now: u64, reactor: &Reactor) -> Option<u64> {
        let ends = |socket: &SendSocket| socket.used_at.load(Ordering::Relaxed) + IDLE.as_nanos() as u64;
        let first = self.sockets.read().values().map(|socket| ends(socket)).min()?;
        if first > now {
            return Some(first);
        }
        let mut sockets = self.sockets.write();
        let idle: Vec<Key> =
            sockets.iter().filter(|(_, socket)| ends(socket) <= now).map(|(key, _)| *key).collect();
        self.closed.idle.fetch_add(idle.len() as u64, Ordering::Relaxed);
        idle.iter().for_each(|key| close(&mut sockets, key, reactor));
        sockets.values().map(|socket| ends(socket)).min()
    }

    /// The system has no descriptor left: closes the least recently used socket. False where there
    /// is none.
    pub(crate) fn give_up_one(&self, reactor: &Reactor) -> bool {
        self.closed.give_up_one(&mut self.sockets.write(), reactor)
    }

    /// Brings what was counted to the counters.
    pub(crate) fn fold_counters(&self, counters: &Counters) {
        for (from, to) in [
            (&self.closed.idle, &counters.idle_sockets_closed),
            (&self.closed.given_up, &counters.sockets_given_up),
        ] {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Closed {
    /// Opens something, for which sockets are closed where there is no descriptor left.
    pub(super) fn while_none_is_left<T>(
        &self,
        sockets: &mut Sockets,
        reactor: &Reactor,
        mut open: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut opened = open();
        for _ in 0..MAX_FOR_ONE {
            let is_short = opened.as_ref().is_err_and(limits::no_descriptor_is_left);
            if !is_short || !self.give_up_one(sockets, reactor) {
                break;
            }
            opened = open();
        }
        opened
    }

    fn give_up_one(&self, sockets: &mut Sockets, reactor: &Reactor) -> bool {
        let Some(key) = least_recent(sockets) else { return false };
        close(sockets, &key, reactor);
        self.given_up.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Closes the least recently used detour of a flow that has too many, and of all sockets
    /// likewise.
    pub(super) fn make_room(&self, sockets: &mut Sockets, new: &Key, now: u64, reactor: &Reactor) {
        if of_flow(sockets, new).count() >= MAX_DETOURS {
            let detour = of_flow(sockets, new).min_by_key(used_at).map(|(key, _)| *key);
            detour.iter().for_each(|key| close(sockets, key, reactor));
        }
        let many = (limits::descriptors() / SHARE).clamp(MIN, MAX_SOCKETS);
        let is_busy = |sockets: &Sockets, key: &Key| {
            let used_at = sockets.get(key).map_or(now, |socket| socket.used_at.load(Ordering::Relaxed));
            now.saturating_sub(used_at) < BUSY.as_nanos() as u64
        };
        while sockets.len() >= many {
            let Some(key) = least_recent(sockets) else { break };
            if sockets.len() < MAX_SOCKETS && is_busy(sockets, &key) {
                break;
            }
            close(sockets, &key, reactor);
            self.idle.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn used_at((_, socket): &(&Key, &std::sync::Arc<SendSocket>)) -> u64 {
    socket.used_at.load(Ordering::Relaxed)
}

fn least_recent(sockets: &Sockets) -> Option<Key> {
    sockets.iter().min_by_key(used_at).map(|(key, _)| *key)
}

fn close(sockets: &mut Sockets, key: &Key, reactor: &Reactor) {
    if let Some(socket) = sockets.remove(key) {
        reactor.remove(socket.token, &socket.fd);
    }
}
