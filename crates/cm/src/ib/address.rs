//! Addresses that have not shown that they hear us. Any sender can write a REQ in another host's
//! name. An address is confirmed by a message that names a communication id of ours, which only our
//! packets have told. Until then, what leaves for it is what it asks for, one answer for each
//! message, and a few packets beside.

use std::collections::BTreeMap;

use wire::Address;

use super::table::Cm;
use crate::event::ConnId;

/// Packets beyond one answer for each request that an unconfirmed address gets: repetitions of a
/// REP, probes, the REJ of an end that gives up. Seven repetitions make a handshake up at one
/// packet lost of five.
const UNASKED: u64 = 7;

/// What passed between us and an address, while there are connections with it.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    connections: usize,
    requests: u64,
    unasked: u64,
    confirmed: bool,
}

/// The addresses of all connections.
#[derive(Debug, Default)]
pub(super) struct Addresses(BTreeMap<Address, Account>);

impl Addresses {
    /// A connection with the address has been made.
    pub(super) fn enter(&mut self, peer: Address) {
        self.0.entry(peer).or_default().connections += 1;
    }

    /// A connection with the address is forgotten, and with the last the address.
    pub(super) fn leave(&mut self, peer: Address) {
        let Some(account) = self.0.get_mut(&peer) else { return };
        account.connections = account.connections.saturating_sub(1);
        if account.connections == 0 {
            self.0.remove(&peer);
        }
    }

    /// A message from there named a communication id of ours.
    pub(super) fn confirm(&mut self, peer: Address) {
        if let Some(account) = self.0.get_mut(&peer) {
            account.confirmed = true;
        }
    }

    /// A request came from there: it earns its answer, and one packet more.
    pub(super) fn asked(&mut self, peer: Address) {
        if let Some(account) = self.0.get_mut(&peer) {
            account.requests += 1;
        }
    }

    /// Whether a packet that nothing asks for may leave for the address; counts it.
    fn may_send(&mut self, peer: Address) -> bool {
        let Some(account) = self.0.get_mut(&peer) else { return false };
        let may = account.confirmed || account.unasked < UNASKED + account.requests;
        account.unasked += u64::from(may);
        may
    }
}

impl Cm {
    /// Whether a connection may send what its peer has not just asked for.
    pub(super) fn may_send_unasked(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.connections.get(&id) else { return false };
        conn.active || self.addresses.may_send(conn.path.dest())
    }
}
