//! What a [`Cm`](super::Cm) is made from.

use wire::{CommId, Guid};

use super::timing::Timing;

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
    pub fn new(guid: Guid) -> Self {
        Self {
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
