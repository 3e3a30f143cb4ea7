//! Where datagrams go: the way to each peer, and how much of it is known.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nic::Ah;
use stack::Id;
use wire::Qpn;

use crate::datagram::header::{Bytes, HEADER_MAX};

/// Peers that a socket knows, at most. The one that was used longest ago makes room for another.
pub(super) const MAX_DESTINATIONS: usize = 1024;
/// Ways that are looked for at a time because a peer asked, at most.
pub(super) const MAX_RESOLVING: usize = 64;
/// For how long a peer's queue pair is taken to be the one that it told of. After that a datagram
/// goes by UDP, and asks anew: the peer may have begun anew.
const FRESH: Duration = Duration::from_secs(1);

/// A peer.
pub(super) struct Destination {
    /// Our address, as the peer is to see it, and as a header.
    pub(super) source: SocketAddr,
    pub(super) header: Bytes<HEADER_MAX>,
    /// Which of the queue pairs leads there.
    pub(super) queue_pair: usize,
    /// Bytes of the longest datagram.
    pub(super) most: usize,
    /// The way, and the queue pair at its end.
    pub(super) ah: Option<Ah>,
    pub(super) qpn: Option<Qpn>,
    /// The identifier that looks for the way.
    pub(super) resolving: Option<Arc<Id>>,
    /// When the next datagram goes by UDP, and when the way may be looked for again.
    ask_at: Option<Instant>,
    pub(super) retry_at: Option<Instant>,
    used: u64,
}

impl Destination {
    pub(super) fn new(
        source: SocketAddr,
        header: Bytes<HEADER_MAX>,
        queue_pair: usize,
        most: usize,
        id: Arc<Id>,
    ) -> Self {
        Self {
            source,
            header,
            queue_pair,
            most,
            ah: None,
            qpn: None,
            resolving: Some(id),
            ask_at: None,
            retry_at: None,
            used: 0,
        }
    }

    /// The way and the queue pair, where they are known and the peer was heard of lately.
    pub(super) fn way(&mut self, now: Instant) -> Option<(Ah, Qpn)> {
        let (ah, qpn) = (self.ah.clone()?, self.qpn?);
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = Some(now + FRESH);
            return None;
        }
        Some((ah, qpn))
    }

    /// The peer has told of its queue pair; whether that is another than before.
    pub(super) fn told(&mut self, qpn: Qpn, now: Instant) -> bool {
        self.ask_at = Some(now + FRESH);
        self.qpn.replace(qpn).is_some_and(|before| before != qpn)
    }
}

/// All peers.
#[derive(Default)]
pub(super) struct Destinations {
    all: BTreeMap<SocketAddr, Destination>,
    tick: u64,
}

impl Destinations {
    /// The peer, which is being used.
    pub(super) fn get(&mut self, addr: &SocketAddr) -> Option<&mut Destination> {
        self.tick += 1;
        let found = self.all.get_mut(addr)?;
        found.used = self.tick;
        Some(found)
    }

    /// Adds a peer. Gives back the one that made room.
    pub(super) fn add(&mut self, addr: SocketAddr, made: Destination) -> Option<Destination> {
        self.tick += 1;
        let gone = match self.all.len() {
            ..MAX_DESTINATIONS => None,
            _ => {
                // One that never answered, where there is any.
                let key = |(_, peer): &(&SocketAddr, &Destination)| (peer.qpn.is_some(), peer.used);
                self.all.iter().min_by_key(key).map(|(addr, _)| *addr)
            }
        };
        let gone = gone.and_then(|addr| self.all.remove(&addr));
        self.all.insert(addr, Destination { used: self.tick, ..made });
        gone
    }

    /// The peer whose way an identifier looks for.
    pub(super) fn resolved_by(&mut self, id: &Arc<Id>) -> Option<(&SocketAddr, &mut Destination)> {
        let is_it = |peer: &Destination| peer.resolving.as_ref().is_some_and(|own| Arc::ptr_eq(own, id));
        let mut all = self.all.iter_mut();
        all.find(|(_, peer)| is_it(peer))
    }

    /// The identifiers that look for ways.
    pub(super) fn resolving(&self) -> impl Iterator<Item = &Arc<Id>> {
        self.all.values().filter_map(|peer| peer.resolving.as_ref())
    }

    /// Whether no way to a peer is known, and one is looked for.
    pub(super) fn waits(&self, addr: &SocketAddr) -> bool {
        self.all.get(addr).is_some_and(|peer| peer.qpn.is_none() && peer.resolving.is_some())
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
