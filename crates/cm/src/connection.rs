//! One connection: its state, what it knows of either end, and the messages made from that.

use std::time::Instant;

use wire::mad::{Apr, Drep, Dreq, Lap, Mad, Message, Mra, Rej, ReqPath, Rtu, reason};
use wire::{CommId, Gid, Guid, Psn, Qpn};

use crate::doubt::Doubt;
use crate::params::{ConnId, Path, QpAttributes};
use crate::timing::Retry;

/// LID that stands for "any": RoCE has none.
const PERMISSIVE_LID: u16 = 0xffff;

/// States of IBA 1.4 §12.9.7 (figures 132, 133), without those for LAP, which is always declined; MRA only moves a timer.
///
/// | state | leaves by |
/// |---|---|
/// | `ReqSent` | REP, REJ, time out, peer unreachable |
/// | `RepReceived` | `established` (RTU), REJ, DREQ |
/// | `ReqReceived` | `accept`, `reject`, REJ |
/// | `RepSent` | RTU, `established` (data), REJ, DREQ, time out |
/// | `Established` | `disconnect`, DREQ, REJ, a peer that does not know it |
/// | `DreqSent` | DREP, DREQ, REJ, time out |
/// | `TimeWait` | time |
/// | `Refused` | time: answers duplicates of a REQ that was rejected |
/// | `Closed` | `destroy` |
/// | `SidrSent`, `SidrReceived`, `SidrAnswered` | the same for SIDR |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    ReqSent,
    RepReceived,
    ReqReceived,
    RepSent,
    Established,
    DreqSent,
    TimeWait,
    Refused,
    Closed,
    SidrSent,
    SidrReceived,
    SidrAnswered,
}

impl State {
    /// For error messages.
    pub fn name(self) -> &'static str {
        match self {
            State::ReqSent => "waiting for a reply",
            State::RepReceived => "replied to, not yet established",
            State::ReqReceived => "waiting for the consumer's answer",
            State::RepSent => "waiting for the peer to get ready",
            State::Established => "established",
            State::DreqSent => "disconnecting",
            State::TimeWait => "in time wait",
            State::Refused => "refused",
            State::Closed => "closed",
            State::SidrSent | State::SidrReceived | State::SidrAnswered => "a SIDR exchange",
        }
    }
}

/// What the REQ said that its duplicate must say too, or the communication id means another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReqMark {
    pub transaction_id: u64,
    pub service_id: u64,
    pub qpn: Qpn,
    pub psn: Psn,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnId,
    pub state: State,
    /// The consumer has destroyed it: no more events.
    pub detached: bool,
    pub path: Path,
    pub local: CommId,
    /// The peer's id, once its REQ or REP has named it.
    pub remote: Option<CommId>,
    /// The id in the peer's MRA, before any REP: only to notice that its process is gone.
    pub remote_hint: Option<CommId>,
    pub remote_guid: Guid,
    /// Transaction id of the connection: random where it is ours, else the REQ's.
    pub transaction_id: u64,
    /// Passive side: the REQ's mark.
    pub req_mark: Option<ReqMark>,
    /// What is repeated until answered: REQ, REP, DREQ, SIDR_REQ; or the remembered answer to a refused REQ or a SIDR_REQ.
    pub message: Option<Box<Mad>>,
    pub retry: Option<Retry>,
    /// The peer is being asked whether it knows the connection.
    pub doubt: Option<Doubt>,
    /// How often the REQ lets its REP be repeated.
    pub max_cm_retries: u8,
    /// When the state ends by itself: time wait, refusal.
    pub until: Option<Instant>,
    /// Answers sent so far: they too take another source port each time.
    pub answers: u32,
    pub local_qpn: Qpn,
    pub remote_qpn: Qpn,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub local_ack_timeout: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Whether REQ came from here.
    pub active: bool,
    /// Of an extended reliable connection.
    pub xrc: bool,
    /// Stands in the table of those whose peer is probed.
    pub probed: bool,
    /// A queue pair number is held and its release must be told.
    pub holds_qpn: bool,
}

impl Connection {
    pub fn new(id: ConnId, state: State, path: Path, local: CommId, transaction_id: u64) -> Connection {
        Connection {
            id,
            state,
            detached: false,
            path,
            local,
            remote: None,
            remote_hint: None,
            remote_guid: Guid::default(),
            transaction_id,
            req_mark: None,
            message: None,
            retry: None,
            doubt: None,
            max_cm_retries: 0,
            until: None,
            answers: 0,
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            responder_resources: 0,
            initiator_depth: 0,
            local_ack_timeout: path.packet_life_time.saturating_add(1).min(31),
            retry_count: 7,
            rnr_retry_count: 7,
            active: false,
            xrc: false,
            probed: false,
            holds_qpn: false,
        }
    }

    /// When time alone changes something.
    pub fn deadline(&self) -> Option<Instant> {
        match (self.doubt, self.retry, self.until) {
            (Some(doubt), _, _) => Some(doubt.retry.due()),
            (None, Some(retry), _) => Some(retry.due()),
            (None, None, until) => until,
        }
    }

    /// The peer's communication id as tables name it. The GID is part of it, so that only who can send from the peer's
    /// address can touch the connection.
    pub fn remote_key(&self) -> Option<(Guid, Gid, CommId)> {
        self.remote.map(|id| (self.remote_guid, self.path.remote_gid, id))
    }

    /// Key of the table of the peer's queue pairs.
    pub fn qpn_key(&self) -> (Guid, Gid, Qpn) {
        (self.remote_guid, self.path.remote_gid, self.remote_qpn)
    }

    /// The peer's id as an answer names it: 0 where it is not known.
    fn remote_or_zero(&self) -> CommId {
        self.remote.unwrap_or_default()
    }

    pub fn attributes(&self) -> Option<QpAttributes> {
        let known = matches!(
            self.state,
            State::RepReceived | State::RepSent | State::Established | State::DreqSent | State::TimeWait
        );
        known.then(|| self.known_attributes())
    }

    /// Those of a request that waits for its answer: all but `rq_psn`, which the answer brings.
    pub fn requested_attributes(&self) -> Option<QpAttributes> {
        (self.state == State::ReqReceived).then(|| self.known_attributes())
    }

    fn known_attributes(&self) -> QpAttributes {
        QpAttributes {
            path: self.path,
            dest_qpn: self.remote_qpn,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            path_mtu: self.path.mtu,
            max_rd_atomic: self.initiator_depth,
            max_dest_rd_atomic: self.responder_resources,
            timeout: self.local_ack_timeout,
            retry_cnt: self.retry_count,
            rnr_retry: self.rnr_retry_count,
            min_rnr_timer: 0,
        }
    }

    pub fn rtu(&self) -> Mad {
        self.mad(Message::Rtu(Rtu {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            private_data: [0; 224],
        }))
    }

    pub fn dreq(&self, private_data: [u8; 220]) -> Mad {
        self.mad(Message::Dreq(Dreq {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            remote_qpn: self.remote_qpn,
            private_data,
        }))
    }

    /// `message`: 0 a REQ, 1 a REP, 2 a LAP is acknowledged.
    pub fn mra(&self, message: u8, service_timeout: u8) -> Mad {
        self.mad(Message::Mra(Mra {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            message,
            service_timeout,
            private_data: [0; 222],
        }))
    }

    /// The path as a REQ names it.
    pub fn primary_path(&self) -> ReqPath {
        let path = &self.path;
        ReqPath {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            flow_label: path.flow_label,
            packet_rate: path.packet_rate,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            service_level: path.service_level,
            subnet_local: false,
            local_ack_timeout: self.local_ack_timeout,
        }
    }

    /// A LAP that changes nothing: its alternate path is the primary one.
    pub fn lap(&self, remote_cm_response_timeout: u8) -> Mad {
        self.mad(Message::Lap(Lap {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            remote_qpn: self.remote_qpn,
            remote_cm_response_timeout,
            alternate: self.primary_path(),
            private_data: [0; 168],
        }))
    }

    /// A REJ of what the state calls for: the REQ, the REP, or neither. One for a time out names the sender's GUID, since
    /// the peer may have to find the connection by it (IBA 1.4 §12.6.7.2: the peer's id may not be known yet).
    pub fn rej(&self, guid: Guid, why: u16, extra: &[u8], private_data: [u8; 148]) -> Mad {
        let message = match self.state {
            State::ReqReceived => REJECTS_REQ,
            State::RepReceived => REJECTS_REP,
            _ => REJECTS_OTHER,
        };
        let guid = guid.0.to_be_bytes();
        let extra = if why == reason::TIMEOUT && extra.is_empty() { &guid[..] } else { extra };
        self.mad(rej(self.local, self.remote_or_zero(), message, why, extra, private_data))
    }

    fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }
}

/// Values of a REJ's "message rejected".
pub(crate) const REJECTS_REQ: u8 = 0;
pub(crate) const REJECTS_REP: u8 = 1;
pub(crate) const REJECTS_OTHER: u8 = 2;

/// A REJ; of `extra` the first 72 bytes.
pub(crate) fn rej(
    local: CommId,
    remote: CommId,
    message: u8,
    why: u16,
    extra: &[u8],
    private_data: [u8; 148],
) -> Message {
    let mut info = [0; 72];
    let len = extra.len().min(info.len());
    info[..len].copy_from_slice(&extra[..len]);
    Message::Rej(Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        message,
        info_len: len as u8,
        reason: why,
        info,
        private_data,
    })
}

/// The answer to a DREQ, whether the connection exists or not.
pub(crate) fn drep(transaction_id: u64, dreq: &Dreq) -> Mad {
    Mad {
        transaction_id,
        message: Message::Drep(Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; 224],
        }),
    }
}

/// The answer to a LAP.
pub(crate) fn apr(transaction_id: u64, lap: &Lap, status: u8) -> Mad {
    Mad {
        transaction_id,
        message: Message::Apr(Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            info_len: 0,
            status,
            info: [0; 72],
            private_data: [0; 148],
        }),
    }
}
