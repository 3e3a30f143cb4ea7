//! Flows that get a socket of their own, as their packets land at other processes again and again.
//!
//! ```text
//!                a packet came by way                 as many as `promote_after`, and there is room,
//!                of another process                   or the longest silent flow makes some
//!  not counted ----------------------> counted -----------------------------------> has a socket
//!       ^                                 |                                             |
//!       +---- MAX_COUNTED are counted ----+                                             |
//!       |                                                                               |
//!       +---- silent for IDLE; for 100 ms (SILENT_NANOS), and another flow or any ------+
//!             other descriptor needs the room
//! ```
//!
//! A flow that got no socket is tried again after as many packets. Its socket is also closed where
//! its address is gone ([`RxSockets::follow`]); then its packets stay counted.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Lineup, Opener, RxSockets, State};
use crate::counters::add;
use crate::rx_socket::RxSocket;
use crate::tx::IDLE;

/// Most flows with a socket of their own.
const MAX_PROMOTED: usize = 64;
/// A flow that was silent for so long may lose its socket to another.
const SILENT_NANOS: u64 = 100_000_000;
/// Most flows whose forwarded packets are counted.
const MAX_COUNTED: usize = 1024;

/// The sockets of flows.
fn promoted(lineup: &Lineup) -> impl Iterator<Item = &Arc<RxSocket>> {
    lineup.sockets.iter().filter(|socket| socket.peer.is_some())
}

impl RxSockets {
    /// Counts a packet of `peer` that came by way of another process; at the configured number its
    /// flow gets a socket. True where it got one.
    pub(crate) fn note_forwarded(&self, peer: SocketAddr, dest: SocketAddr, with: &Opener<'_>) -> bool {
        let mut state = self.lock();
        if state.forwarded.len() >= MAX_COUNTED {
            // Flows that matter are soon counted again.
            state.forwarded.clear();
        }
        let count = state.forwarded.entry((peer, dest)).or_insert(0);
        *count = count.saturating_add(1);
        if !count.is_multiple_of(with.config.promote_after.max(1)) {
            return false;
        }
        let lineup = self.lineup.load_full();
        let base = lineup.sockets.iter().find(|socket| socket.dest == dest && socket.peer.is_none());
        let already = lineup.sockets.iter().any(|socket| socket.dest == dest && socket.peer == Some(peer));
        let Some(base) = base.filter(|_| !already) else { return false };
        if !self.make_room(&lineup, &mut state, with) {
            return false;
        }
        let is_promoted = self.open(dest, base.interface, Some(peer), with).is_ok();
        add(&with.counters.promotions, is_promoted.into());
        is_promoted
    }

    /// Closes the longest silent flow's socket where there are too many; false where none is
    /// silent.
    fn make_room(&self, lineup: &Lineup, state: &mut State, with: &Opener<'_>) -> bool {
        if promoted(lineup).count() < MAX_PROMOTED {
            return true;
        }
        let Some(oldest) = promoted(lineup).min_by_key(|socket| socket.delivered_at()) else { return false };
        let is_silent = with.clock.now().saturating_sub(oldest.delivered_at()) >= SILENT_NANOS;
        if is_silent {
            self.demote(std::slice::from_ref(oldest), lineup, state, with);
        }
        is_silent
    }

    /// Closes the sockets of flows that were silent for [`IDLE`]; when the next one will be. By the
    /// environment's clock.
    pub(crate) fn close_silent(&self, now: u64, with: &Opener<'_>) -> Option<u64> {
        let mut state = self.lock();
        let lineup = self.lineup.load_full();
        let ends = |socket: &Arc<RxSocket>| socket.delivered_at() + IDLE.as_nanos() as u64;
        let (silent, others): (Vec<_>, Vec<_>) = promoted(&lineup).cloned().partition(|it| ends(it) <= now);
        if !silent.is_empty() {
            self.demote(&silent, &lineup, &mut state, with);
            add(&with.counters.idle_sockets_closed, silent.len());
        }
        others.iter().map(ends).min()
    }

    /// Closes the longest silent flow's socket, as the system has no descriptor left; false where
    /// none is silent.
    pub(crate) fn give_up_silent(&self, with: &Opener<'_>) -> bool {
        let mut state = self.lock();
        let lineup = self.lineup.load_full();
        let Some(oldest) = promoted(&lineup).min_by_key(|socket| socket.delivered_at()) else { return false };
        if with.clock.now().saturating_sub(oldest.delivered_at()) < SILENT_NANOS {
            return false;
        }
        self.demote(std::slice::from_ref(oldest), &lineup, &mut state, with);
        add(&with.counters.sockets_given_up, 1);
        true
    }

    /// Closes sockets of flows. Should one speak up again, it is counted from the start.
    fn demote(&self, gone: &[Arc<RxSocket>], lineup: &Lineup, state: &mut State, with: &Opener<'_>) {
        for socket in gone {
            with.reactor.remove(socket.token, &**socket);
            state.forwarded.retain(|(peer, dest), _| Some(*peer) != socket.peer || *dest != socket.dest);
        }
        let stays = |socket: &&Arc<RxSocket>| gone.iter().all(|gone| gone.token != socket.token);
        let hot = lineup.sockets[..lineup.hot].iter().filter(stays).count();
        let sockets = lineup.sockets.iter().filter(stays).cloned().collect();
        self.lineup.store(Arc::new(Lineup { sockets, hot }));
    }
}
