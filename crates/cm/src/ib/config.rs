//! What a [`Cm`](super::Cm) is made from, where its messages come from, and what it hands out.

use wire::mad::Mad;
use wire::{Address, CommId, Gid, Guid, Mtu, Qpn};

use super::timing::Timing;
use crate::event::{ConnId, Event};
use crate::parameters::PathRecord;

/// What a [`Cm`](super::Cm) is and how much it holds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The channel adapter's GUID, the same for all processes of a host that share an address.
    pub guid: Guid,
    /// Connections at most, whatever their state, time wait and remembered refusals included.
    pub max_connections: usize,
    /// Incoming requests at most that the consumer has not answered yet.
    pub max_pending_requests: usize,
    /// Refused requests remembered at most; beyond, the oldest is forgotten.
    pub max_refusals: usize,
    /// ACK delay code of this adapter, 0 to 31; 15 is rxe's.
    pub ack_delay: u8,
    /// Durations.
    pub timing: Timing,
    /// Whether the connection manager with this GUID is of our kind on another host. That is one
    /// that refuses a message about a connection it does not know, so that its processes can be
    /// probed (see `probe`).
    pub is_kin: fn(Guid) -> bool,
    /// The process of a host that drew a communication id.
    pub process_of: fn(CommId) -> u32,
}

impl Config {
    /// Defaults for the adapter `guid`: 65,536 connections, 1,024 pending requests, 1,024 refusals,
    /// rxe's ACK delay.
    pub fn new(guid: Guid) -> Config {
        Config {
            guid,
            max_connections: 65_536,
            max_pending_requests: 1_024,
            max_refusals: 1_024,
            ack_delay: 15,
            timing: Timing::default(),
            is_kin: |_| false,
            process_of: |id| id.0,
        }
    }
}

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's address.
    pub source: Address,
    /// The address that it was sent to.
    pub dest: Address,
    /// The caller's own mark for the link it came over; answers go back with it.
    pub link: u32,
}

impl Origin {
    /// The way back. Between LIDs it has no GIDs: a packet need not bear them.
    pub fn path(&self) -> PathRecord {
        let gid = |address: Address| address.ip().map(Gid::from).unwrap_or_default();
        let lids = match (self.dest, self.source) {
            (Address::Lid(ours), Address::Lid(theirs)) => Some([ours, theirs]),
            _ => None,
        };
        let path = PathRecord::new(gid(self.dest), gid(self.source), self.link, Mtu::default());
        PathRecord { lids, ..path }
    }
}

/// What [`Cm::poll`](super::Cm::poll) hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a MAD to QP1 of the far end.
    Transmit {
        /// The connection it belongs to, if any.
        conn: Option<ConnId>,
        /// The way.
        path: PathRecord,
        /// The message.
        mad: Box<Mad>,
        /// 0 for a message sent the first time, more for every repetition: the sender changes its
        /// source port with it, so that a stuck process which shares the far port does not
        /// get them all.
        attempt: u32,
    },
    /// Tell the consumer.
    Event {
        /// The connection whose event it is.
        conn: ConnId,
        /// What.
        event: Event,
    },
    /// The connection no longer holds its queue pair number nor its communication id; comes once
    /// for each connection that had a queue pair, after destroy too.
    Released {
        /// The connection.
        conn: ConnId,
        /// The connection's queue pair.
        qpn: Qpn,
    },
}
