//! Whether the processes at the far ends still live.
//!
//! A kernel outlives its processes and says DREQ or REJ for them; a killed process in user space
//! has no such help. So a process of our kind on another host ([`Config::is_kin`](super::Config))
//! that has said nothing for a while gets an MRA about a connection with it. One that lives takes
//! no notice, as the standard asks of an MRA out of turn. For one that is gone, another process of
//! its host answers that it does not know the connection (REJ, invalid communication id). Or its
//! kernel answers that no process has the port (ICMP). Both ends probe, but an end that has heard a
//! probe waits with its own: one packet in [`Timing::probe_after`] for each pair of processes,
//! however many their connections.
//!
//! A request whose sender has not shown that it hears us is probed only as far as `address` lets
//! it.
//!
//! Silence proves nothing, the process may be stopped or the network cut: it ends no connection.
//! One ICMP error proves nothing either, as an address may be set anew just then. From the first to
//! the second the probes are LAPs, which any process that lives answers.
//!
//! [`Timing::probe_after`]: super::Timing

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use wire::mad::{Apr, apr_status};
use wire::{Address, CommId};

use super::connection::CmState;
use super::messages::{REJECTS_OTHER, REJECTS_REP, REJECTS_REQ};
use super::table::{Addressee, Cm};
use crate::event::ConnId;
use crate::mads::Origin;

/// A refusal says that one connection is gone; were it the process, so would be the others. They
/// are asked so many at a time.
const BURST: usize = 32;
/// Two ICMP errors this far apart, and nothing heard between them, mean that the process is gone.
/// The second may take long: a host sends one a second to another when it has much to refuse
/// (icmp(7), icmp_ratelimit).
const ICMP_APART: Duration = Duration::from_millis(100);
/// Probes take turns on so many source ports: one may end at a process that is stopped.
const PORTS: u32 = 4;

/// A process: its host's address and what [`Config::process_of`](super::Config) says of its
/// communication ids.
type Key = (Address, u32);

#[derive(Debug)]
struct Peer {
    connections: BTreeSet<ConnId>,
    /// The connection asked about last.
    last: Option<ConnId>,
    next: Instant,
    probes: u32,
    unreachable_at: Option<Instant>,
    /// A connection with it turned out not to exist.
    suspect: bool,
}

/// All processes that are probed.
#[derive(Debug, Default)]
pub(super) struct Probes {
    peers: BTreeMap<Key, Peer>,
    timers: BTreeSet<(Instant, Key)>,
}

impl Probes {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    fn set(&mut self, key: Key, at: Instant) {
        if let Some(peer) = self.peers.get_mut(&key) {
            self.timers.remove(&(peer.next, key));
            peer.next = at;
            self.timers.insert((at, key));
        }
    }
}

impl Peer {
    /// The connections to ask about now: those after the last, and from the beginning.
    fn choose(&mut self) -> Vec<ConnId> {
        let most = if std::mem::take(&mut self.suspect) { BURST } else { 1 };
        let behind = self.connections.iter().filter(|id| self.last.is_none_or(|last| **id > last));
        let chosen: Vec<ConnId> =
            behind.chain(&self.connections).copied().take(most.min(self.connections.len())).collect();
        self.last = chosen.last().copied().or(self.last);
        chosen
    }
}

impl Cm {
    /// From now on the process at the other end of a connection is probed.
    pub(super) fn probe_from(&mut self, now: Instant, id: ConnId) {
        let Some(key) = self.probe_key(id) else { return };
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.probed = true;
        let next = now + self.config.timing.probe_after;
        let new = || Peer {
            connections: BTreeSet::new(),
            last: None,
            next,
            probes: 0,
            unreachable_at: None,
            suspect: false,
        };
        let peer = self.probes.peers.entry(key).or_insert_with(new);
        let is_new = peer.connections.is_empty();
        peer.connections.insert(id);
        if is_new {
            self.probes.set(key, next);
        }
    }

    /// The connection is over, or another message asks for an answer all the time.
    pub(super) fn unprobe(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if !std::mem::take(&mut conn.probed) {
            return;
        }
        let Some(key) = self.probe_key(id) else { return };
        if let Some(peer) = self.probes.peers.get_mut(&key) {
            peer.connections.remove(&id);
            if peer.connections.is_empty() {
                self.probes.timers.remove(&(peer.next, key));
                self.probes.peers.remove(&key);
            }
        }
    }

    /// A message about a connection has come from its peer's process: it lives. Not so REJ and
    /// DREP: a process that does not know a connection answers in another's name.
    pub(super) fn heard(&mut self, now: Instant, id: ConnId) {
        if self.probes.peers.is_empty() {
            return;
        }
        let Some(key) = self.probe_key(id) else { return };
        let Some(peer) = self.probes.peers.get_mut(&key) else { return };
        peer.unreachable_at = None;
        // The end that was asked to connect waits a little longer, so that not both ends ask at the
        // same time for ever.
        let first = peer.connections.first();
        let active = first.and_then(|id| self.connections.get(id)).is_some_and(|conn| conn.active);
        let after = self.config.timing.probe_after;
        self.probes.set(key, now + if active { after } else { after * 5 / 4 });
    }

    /// A connection of this process turned out not to exist at the other end: the next probes leave
    /// at once.
    fn suspect(&mut self, now: Instant, id: ConnId) {
        let Some(key) = self.probe_key(id) else { return };
        if let Some(peer) = self.probes.peers.get_mut(&key) {
            peer.suspect = true;
            self.probes.set(key, now);
        }
    }

    /// An ICMP error says that no process on the host `peer` has the port any more, for a packet to
    /// its process `process`. When another says so the connections with that process end like those
    /// of one that is [gone](Cm::peer_gone).
    pub fn process_unreachable(&mut self, now: Instant, peer: Address, process: u32) {
        let key = (peer, process);
        let process_of = self.config.process_of;
        let Some(known) = self.probes.peers.get_mut(&key) else { return };
        match known.unreachable_at {
            Some(at) if now.saturating_duration_since(at) >= ICMP_APART => {
                self.peer_gone(now, |id, address| address == key.0 && id.map(process_of) == Some(process));
            }
            Some(_) => {}
            None => {
                known.unreachable_at = Some(now);
                self.probes.set(key, now + ICMP_APART);
            }
        }
    }

    /// Sends the probes that are due.
    pub(super) fn expire_probes(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.probes.timers.first() {
            if at > now {
                break;
            }
            // Never twice at the same time.
            let after = self.config.timing.probe_after.max(Duration::from_millis(1));
            self.probes.set(key, now + after);
            let Some(peer) = self.probes.peers.get_mut(&key) else { break };
            peer.probes = peer.probes.wrapping_add(1);
            let (port, is_suspect) = (peer.probes % PORTS, peer.unreachable_at.is_some());
            for id in peer.choose() {
                self.send_probe(id, port, is_suspect);
            }
        }
    }

    /// The answer to a LAP of ours.
    pub(super) fn on_apr(&mut self, now: Instant, from: Origin, transaction_id: u64, apr: &Apr) {
        let (ours, theirs) = (apr.remote_comm_id, apr.local_comm_id);
        let Addressee::Is(id) = self.addressee_of(from, Some(transaction_id), ours, theirs) else { return };
        match apr.status {
            apr_status::INVALID_COMM_ID => self.unknown_to_peer(now, id),
            _ => self.heard(now, id),
        }
    }

    /// No process at the other end knows a connection.
    pub(super) fn unknown_to_peer(&mut self, now: Instant, id: ConnId) {
        self.suspect(now, id);
        self.end_of_peer(now, id);
    }

    fn send_probe(&mut self, id: ConnId, port: u32, is_suspect: bool) {
        if !self.may_send_unasked(id) {
            return self.unprobe(id);
        }
        let Some(conn) = self.connections.get(&id) else { return };
        if is_suspect {
            let mad = conn.lap(self.config.timing.cm_response_timeout);
            return self.transmit(id, mad, port);
        }
        let message = match conn.state {
            CmState::ReqReceived => REJECTS_REQ,
            CmState::RepReceived => REJECTS_REP,
            _ => REJECTS_OTHER,
        };
        let mad = conn.mra(message, self.config.timing.mra_service_timeout);
        self.transmit(id, mad, port);
    }

    /// The process at the other end of a connection, where it is probed.
    fn probe_key(&self, id: ConnId) -> Option<Key> {
        let conn = self.connections.get(&id)?;
        // A process of this host and address is watched by other means.
        let elsewhere = conn.remote_guid != self.config.guid && (self.config.is_kin)(conn.remote_guid);
        let probed = elsewhere && !self.config.timing.probe_after.is_zero();
        let remote: CommId = conn.remote.filter(|_| probed)?;
        Some((conn.path.dest(), (self.config.process_of)(remote)))
    }
}
