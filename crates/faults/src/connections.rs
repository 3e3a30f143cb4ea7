//! Connection requests, as their packets show them. A request comes again until it is answered, and
//! meets the same fate each time.

use std::collections::VecDeque;

use wire::icrc::ICRC_LEN;
use wire::mad::{Mad, Message};
use wire::roce::Packet;
use wire::{Address, Qpn, bth::Bth};

use crate::spec::Action;

/// Whether it leads out, the peer, and the transaction id.
pub(crate) type Asked = (bool, Address, u64);

/// Requests that are remembered.
const MAX: usize = 1_024;

/// The transaction id of a connection request (REQ, and SIDR_REQ of datagram services).
pub(crate) fn transaction_of(bytes: &[u8]) -> Option<u64> {
    if Bth::peek_dest_qp(bytes) != Some(Qpn::GSI) {
        return None;
    }
    let (bytes, _icrc) = bytes.split_last_chunk::<ICRC_LEN>()?;
    let mad = Mad::parse(Packet::parse(bytes).ok()?.payload).ok()?;
    matches!(mad.message, Message::Req(_) | Message::SidrReq(_)).then_some(mad.transaction_id)
}

/// The last requests, and what befell them.
#[derive(Debug, Default)]
pub(crate) struct Connections(VecDeque<(Asked, Option<Action>)>);

impl Connections {
    /// What befell a request that came before; `None` where it did not.
    pub(crate) fn before(&self, asked: Asked) -> Option<Option<Action>> {
        self.0.iter().rev().find(|(known, _)| *known == asked).map(|(_, action)| *action)
    }

    /// This befell a request that came for the first time.
    pub(crate) fn remember(&mut self, asked: Asked, action: Option<Action>) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back((asked, action));
    }
}
