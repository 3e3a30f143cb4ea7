//! QP1, the transport of protocols whose messages are MADs: what a node needs of a MAD before it
//! knows what connection it is about, and where it hands the MAD to.
//!
//! Several processes share QP1 of an address. The node that gets a MAD finds by [`destination`]
//! what process it is for, and hands it to [`Mads::input`] of the device it came by, or on.

use std::time::Instant;

use wire::mad::Mad;
use wire::{Address, CommId, Gid, Mtu};

use crate::event::ConnId;
pub use crate::ib::{
    Destination, Undelivered, asked_ip, destination, is_question, refuse, refuse_unknown_service, undelivered,
};
use crate::parameters::PathRecord;

/// Where a MAD came from.
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

/// The end of QP1 of a connection manager ([`Cm::mads`](crate::Cm::mads)).
pub trait Mads {
    /// A MAD that arrived.
    fn input(&mut self, now: Instant, from: Origin, mad: &Mad);
    /// Whether a request comes again about something that is known here.
    fn has_asked(&self, from: Origin, request: &Mad) -> bool;
    /// The connection that stands, and that this MAD ends.
    fn ended_by(&self, from: Origin, mad: &Mad) -> Option<ConnId>;
    /// An ICMP error says that nothing at `peer` takes our packets; `ours` is our communication id
    /// in the packet that came back.
    fn peer_unreachable(&mut self, now: Instant, peer: Address, ours: CommId);
    /// Messages dropped so far because they name a connection of ours and bear another transaction
    /// id, come from another address or name another peer.
    fn unmatched(&self) -> u64;
}
