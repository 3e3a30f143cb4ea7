//! Messages of the connection manager out of a fuzzer's bytes: any legal fields, mostly with
//! numbers that one end knows.

use cm::{PortSpace, Service};
use wire::mad::{IpCm, MAD_LEN, Mad, Message, reason};
use wire::{CommId, Guid, Qpn, ServiceId};

use crate::Input;

/// Number of arms of [`message`].
pub const MESSAGES: u32 = 11;

/// Numbers that messages may name: those of the engines, as far as a peer or a spy has seen them,
/// and a few more.
#[derive(Debug)]
pub struct Known {
    /// Communication ids.
    pub ids: Vec<CommId>,
    /// Transaction ids.
    pub transactions: Vec<u64>,
}

impl Default for Known {
    fn default() -> Self {
        Self { ids: [0, 1, 2, 3, 0x10_0001, 0x20_0001].map(CommId).into(), transactions: vec![0, 1, 2] }
    }
}

impl Known {
    /// Most numbers that are kept of each kind: the newest.
    const MAX: usize = 32;

    /// A peer sent this.
    pub fn saw(&mut self, mad: &Mad) {
        let (ours, theirs) = ids(&mad.message);
        for id in [ours, theirs].into_iter().flatten() {
            push(&mut self.ids, id);
        }
        push(&mut self.transactions, mad.transaction_id);
    }
}

fn push<T: PartialEq>(to: &mut Vec<T>, new: T) {
    if !to.contains(&new) {
        if to.len() >= Known::MAX {
            to.remove(0);
        }
        to.push(new);
    }
}

/// The communication ids of a message: its sender's, its receiver's.
pub fn ids(message: &Message) -> (Option<CommId>, Option<CommId>) {
    match message {
        Message::Req(m) => (Some(m.local_comm_id), None),
        Message::Mra(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Rej(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Rep(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Rtu(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Dreq(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Drep(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::SidrReq(m) => (Some(m.request_id), None),
        Message::SidrRep(m) => (None, Some(m.request_id)),
        Message::Lap(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Apr(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
    }
}

/// One of the services that are asked for.
pub fn service(n: u32) -> Service {
    Service { space: PortSpace::Tcp, port: 1 + n as u16 }
}

/// The request's service id, or one that names no port.
fn service_id(input: &mut Input<'_>) -> ServiceId {
    let service = service(input.below(2));
    let id = ServiceId::from_port(service.space, service.port);
    if input.below(8) == 7 { ServiceId(!id.0) } else { id }
}

/// What stands in front of a request's private data, mostly; a few bits of it may be others.
fn header(private_data: &mut [u8]) {
    let ip = std::net::IpAddr::from([10, 0, 0, 2]);
    let header = IpCm { source: ip, source_port: 7, dest: ip }.emit();
    private_data.iter_mut().zip(header).for_each(|(byte, legal)| *byte ^= legal);
}

/// Where a REQ has its path MTU, of which not every value is legal, in the upper four bits.
const REQ_MTU: usize = 24 + 50;

/// A message: the arm says which. `None` where the input made it one that does not parse.
pub fn message(arm: u32, input: &mut Input<'_>, known: &Known) -> Option<Mad> {
    let mut bytes = [0; MAD_LEN];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[8..16].copy_from_slice(&input.choose(&known.transactions).to_be_bytes());
    bytes[17] = 0x10 + arm as u8;
    bytes[REQ_MTU] = 0x30;
    for _ in 0..input.below(6) {
        let at = 20 + input.below(MAD_LEN as u32 - 20) as usize;
        bytes[at] = input.u8();
    }
    let mut mad = Mad::parse(&bytes).ok()?;
    name(&mut mad.message, input, known);
    Some(mad)
}

/// Puts numbers into it that mean something.
fn name(message: &mut Message, input: &mut Input<'_>, known: &Known) {
    let local = input.choose(&known.ids);
    let remote = input.choose(&known.ids);
    let qpn = Qpn::new(input.below(6));
    let guid = Guid(u64::from(input.below(4)));
    match message {
        Message::Req(m) => {
            m.local_comm_id = local;
            (m.local_qpn, m.local_ca_guid, m.service_id) = (qpn, guid, service_id(input));
            header(&mut m.private_data);
            (m.transport_service, m.extended_transport) =
                input.choose(&[(0, 0), (0, 0), (1, 0), (3, 1), (2, 0)]);
        }
        Message::Rep(m) => {
            (m.local_comm_id, m.remote_comm_id) = (local, remote);
            (m.local_qpn, m.local_ca_guid) = (qpn, guid);
        }
        Message::Rej(m) => {
            (m.local_comm_id, m.remote_comm_id) = (local, remote);
            const REASONS: [u16; 5] = [
                reason::TIMEOUT,
                reason::INVALID_COMM_ID,
                reason::STALE_CONNECTION,
                reason::CONSUMER_DEFINED,
                reason::INVALID_COMM_ID,
            ];
            (m.reason, m.info_len, m.info[7]) = (input.choose(&REASONS), 8, guid.0 as u8);
        }
        Message::Mra(m) => (m.local_comm_id, m.remote_comm_id) = (local, remote),
        Message::Rtu(m) => (m.local_comm_id, m.remote_comm_id) = (local, remote),
        Message::Dreq(m) => {
            (m.local_comm_id, m.remote_comm_id, m.remote_qpn) = (local, remote, qpn);
        }
        Message::Drep(m) => (m.local_comm_id, m.remote_comm_id) = (local, remote),
        Message::SidrReq(m) => {
            (m.request_id, m.service_id) = (local, service_id(input));
            header(&mut m.private_data);
        }
        Message::SidrRep(m) => (m.request_id, m.qpn) = (remote, qpn),
        Message::Lap(m) => (m.local_comm_id, m.remote_comm_id) = (local, remote),
        Message::Apr(m) => (m.local_comm_id, m.remote_comm_id) = (local, remote),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_attribute_that_is_a_message_has_an_arm() {
        let legal: BTreeSet<u16> = (0..=u16::MAX)
            .filter(|attribute| {
                let mut bytes = [0; MAD_LEN];
                bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
                bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
                bytes[REQ_MTU] = 0x30;
                Mad::parse(&bytes).is_ok()
            })
            .collect();
        let made: BTreeSet<u16> = (0..MESSAGES)
            .map(|arm| message(arm, &mut Input::new(&[]), &Known::default()).expect("a plain message parses"))
            .map(|mad| mad.message.attribute())
            .collect();
        assert_eq!(legal, made);
    }
}
