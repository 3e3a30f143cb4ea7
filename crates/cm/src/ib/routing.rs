//! Which process a message is for. Several processes share QP1 of an address. One that gets a MAD
//! finds out here whether it is its own, and what to say about it where it is no process's.

use std::net::IpAddr;

use wire::CommId;
use wire::mad::{IpCm, Mad, Message, sidr_status};

use super::messages::{refusal, service_of, unknown_service};
use super::sidr::NO_GUID;
use super::table::Cm;
use crate::mads::Origin;
use crate::parameters::Service;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The listener of this port; `None` for a service id that names none.
    Service(Option<Service>),
    /// The process that drew this communication id.
    CommId(CommId),
}

/// Where a message goes, as its numbers say.
pub fn destination(mad: &Mad) -> Destination {
    Destination::CommId(match &mad.message {
        Message::Req(m) => return Destination::Service(service_of(m.service_id)),
        Message::SidrReq(m) => return Destination::Service(service_of(m.service_id)),
        Message::SidrRep(m) => m.request_id,
        Message::Rep(m) => m.remote_comm_id,
        Message::Rtu(m) => m.remote_comm_id,
        Message::Rej(m) => m.remote_comm_id,
        Message::Mra(m) => m.remote_comm_id,
        Message::Dreq(m) => m.remote_comm_id,
        Message::Drep(m) => m.remote_comm_id,
        Message::Lap(m) => m.remote_comm_id,
        Message::Apr(m) => m.remote_comm_id,
    })
}

/// The address that a request names as its receiver's: in the header of annex A11 an IP address,
/// without one the GID of a REQ. `None` for what is no request, and for a SIDR_REQ without a
/// header.
pub fn asked_ip(request: &Mad) -> Option<IpAddr> {
    let (private_data, gid) = match &request.message {
        Message::Req(m) => (&m.private_data[..], Some(m.primary.remote_gid.ip())),
        Message::SidrReq(m) => (&m.private_data[..], None),
        _ => return None,
    };
    IpCm::parse(private_data).map(|header| header.dest).ok().or(gid)
}

/// The answer to a request for a service that is not served here; `None` for what is no request.
pub fn refuse_unknown_service(request: &Mad) -> Option<Mad> {
    let message = unknown_service(&request.message)?;
    Some(Mad { transaction_id: request.transaction_id, message })
}

/// The answer to a request that is refused for this reason (IBA 1.4 table 109); `None` for what is
/// no request.
pub fn refuse(request: &Mad, why: u16) -> Option<Mad> {
    let message = refusal(&request.message, why, sidr_status::REJECTED)?;
    Some(Mad { transaction_id: request.transaction_id, message })
}

/// What a message of ours says that came back undelivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// Our communication id, where the message waits for an answer.
    pub ours: Option<CommId>,
    /// The communication id it was for.
    pub theirs: Option<CommId>,
}

/// What a message of ours says that came back undelivered.
pub fn undelivered(mad: &Mad) -> Undelivered {
    let (ours, theirs) = match &mad.message {
        Message::Req(m) => (Some(m.local_comm_id), None),
        Message::Rep(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Rtu(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Dreq(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        Message::Mra(m) => (None, Some(m.remote_comm_id)),
        Message::Lap(m) => (None, Some(m.remote_comm_id)),
        Message::SidrReq(m) => (Some(m.request_id), None),
        _ => (None, None),
    };
    Undelivered { ours, theirs }
}

impl Cm {
    /// Whether a request comes again about something that is known here.
    pub fn has_asked(&self, from: Origin, request: &Mad) -> bool {
        match &request.message {
            Message::Req(req) => self.has_peer(req.local_ca_guid, from.source, req.local_comm_id),
            Message::SidrReq(req) => self.has_peer(NO_GUID, from.source, req.request_id),
            _ => false,
        }
    }
}
