//! One connection: its state, and what it knows of either end.
//!
//! States are those of IBA 1.4 §12.9.7 (figures 132, 133), without those for LAP, which is always
//! declined; MRA only moves a timer. To the left the side that connects, to the right the one that
//! is asked:
//!
//! ```text
//!       connect: REQ                              REQ in
//!            v                                      v
//!         ReqSent                              ReqReceived --- reject, destroy: REJ ---> Refused
//!            | REP in                               | accept: REP                           | time
//!            v                                      v                                       v
//!       RepReceived                              RepSent                                forgotten
//!            | established: RTU                     | RTU in, or established: data came
//!            +-----------------> Established <------+
//!                                     | disconnect, destroy: DREQ
//!                                     v
//!                                 DreqSent
//!                                     | DREP, DREQ or REJ in, time out, peer unreachable or gone
//!                                     v
//!                                 TimeWait --- time ---> Closed --- destroy ---> forgotten
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | `ReqSent` | `Closed` | REJ or DREQ in, a REP that names a connected queue pair, time out, peer unreachable or gone, `destroy` (REJ) |
//! | `ReqReceived` | `Closed` | REJ in, peer gone |
//! | `RepReceived` | `TimeWait` | DREQ or REJ in, peer gone, `destroy` (REJ) |
//! | `RepReceived` | forgotten | `reject` (REJ) |
//! | `RepSent` | `TimeWait` | DREQ or REJ in, time out, peer unreachable or gone, `destroy` (REJ) |
//! | `RepReceived`, `RepSent` | `DreqSent` | `disconnect` (DREQ) |
//! | `Established` | `TimeWait` | DREQ or REJ in, peer gone |
//! | `Refused`, `SidrAnswered` | forgotten | another request under its id, more answers than are remembered |
//!
//! A peer is gone where its process has ended, and where it says that it does not know the
//! connection. What the consumer has destroyed is forgotten where it would be `Closed`.
//!
//! Service id resolution:
//!
//! ```text
//!   sidr_request: SIDR_REQ
//!        v
//!     SidrSent --- SIDR_REP in, time out, peer unreachable, destroy ---> Closed
//!
//!   SIDR_REQ in
//!        v
//!   SidrReceived --- sidr_reply, reject, destroy: SIDR_REP --> SidrAnswered --- time --> forgotten
//! ```

use std::time::Instant;

use wire::mad::Mad;
use wire::{Address, CommId, Guid, Psn, Qpn};

use super::stale::StaleCheck;
use super::timing::Retry;
use crate::event::ConnId;
use crate::parameters::{PathRecord, QpAttributes};

/// State of a connection (IBA 1.4 §12.9.7), or of a service id resolution (§12.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmState {
    /// A REQ is repeated until its answer comes.
    ReqSent,
    /// The consumer has the REP, and the peer has no RTU yet.
    RepReceived,
    /// The consumer has the REQ.
    ReqReceived,
    /// A REP is repeated until the RTU comes.
    RepSent,
    /// Both ends are ready for data.
    Established,
    /// A DREQ is repeated until its answer comes.
    DreqSent,
    /// Packets of the connection may still be under way (§12.9.8.4).
    TimeWait,
    /// Duplicates of a REQ that was refused get the same REJ.
    Refused,
    /// The consumer has not destroyed what has ended.
    Closed,
    /// A SIDR_REQ is repeated until its answer comes.
    SidrSent,
    /// The consumer has the SIDR_REQ.
    SidrReceived,
    /// Duplicates of a SIDR_REQ that was answered get the same SIDR_REP.
    SidrAnswered,
}

impl CmState {
    /// A request that the consumer has not answered.
    pub(super) fn is_unanswered(self) -> bool {
        matches!(self, Self::ReqReceived | Self::SidrReceived)
    }

    /// A request was taken, and the peer has not said that it is ready.
    pub(super) fn is_half_open(self) -> bool {
        matches!(self, Self::ReqReceived | Self::RepSent)
    }

    /// For error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReqSent => "waiting for a reply",
            Self::RepReceived => "replied to, not yet established",
            Self::ReqReceived => "waiting for the consumer's answer",
            Self::RepSent => "waiting for the peer to get ready",
            Self::Established => "established",
            Self::DreqSent => "disconnecting",
            Self::TimeWait => "in time wait",
            Self::Refused => "refused",
            Self::Closed => "closed",
            Self::SidrSent | Self::SidrReceived | Self::SidrAnswered => "a SIDR exchange",
        }
    }
}

/// What the REQ said that its duplicate must say too, or the communication id means another
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReqMark {
    pub transaction_id: u64,
    pub service_id: u64,
    pub qpn: Qpn,
    pub psn: Psn,
}

/// A peer's communication id, and whose. The number stands first: of connections with one peer all
/// else is the same, and one comparison tells two apart.
pub(super) type RemoteKey = (CommId, Guid, Address);

/// Like [`RemoteKey`], for a communication id or the number of a queue pair, in tables of one kind.
pub(super) type PeersNumber = (u32, Guid, Address);

#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnId,
    pub state: CmState,
    /// The consumer has destroyed it: no more events.
    pub detached: bool,
    pub path: PathRecord,
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
    /// What is repeated until answered: REQ, REP, DREQ, SIDR_REQ; or the remembered answer to a
    /// refused REQ or a SIDR_REQ.
    pub message: Option<Box<Mad>>,
    pub retry: Option<Retry>,
    /// The peer is being asked whether it knows the connection.
    pub stale_check: Option<StaleCheck>,
    /// How often the REQ lets its REP be repeated.
    pub max_cm_retries: u8,
    /// When the state ends by itself: time wait, refusal.
    pub until: Option<Instant>,
    /// When its timer is due, as it stands in the table of timers.
    pub armed: Option<Instant>,
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
    /// Whether the connection is an extended reliable one.
    pub xrc: bool,
    /// Stands in the table of those whose peer is probed.
    pub probed: bool,
    /// A queue pair number is held and its release must be told.
    pub holds_qpn: bool,
}

impl Connection {
    pub(super) fn new(
        id: ConnId,
        state: CmState,
        path: PathRecord,
        local: CommId,
        transaction_id: u64,
    ) -> Self {
        Self {
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
            stale_check: None,
            max_cm_retries: 0,
            until: None,
            armed: None,
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
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.stale_check, self.retry, self.until) {
            (Some(stale_check), _, _) => Some(stale_check.retry.due()),
            (None, Some(retry), _) => Some(retry.due()),
            (None, None, until) => until,
        }
    }

    /// The peer's communication id as tables name it. The GID is part of it, so that only a host
    /// that can send from the peer's address can touch the connection.
    pub(super) fn remote_key(&self) -> Option<RemoteKey> {
        self.remote.map(|id| (id, self.remote_guid, self.path.dest()))
    }

    /// Key of the table of the peer's communication ids.
    pub(super) fn id_key(&self) -> Option<PeersNumber> {
        self.remote_key().map(|(id, guid, peer)| (id.0, guid, peer))
    }

    /// Key of the table of the peer's queue pairs.
    pub(super) fn qpn_key(&self) -> PeersNumber {
        (self.remote_qpn.get(), self.remote_guid, self.path.dest())
    }

    pub(super) fn attributes(&self) -> Option<QpAttributes> {
        let known = matches!(
            self.state,
            CmState::RepReceived
                | CmState::RepSent
                | CmState::Established
                | CmState::DreqSent
                | CmState::TimeWait
        );
        known.then(|| self.known_attributes())
    }

    /// Attributes of a request that waits for its answer: all but `rq_psn`, which the answer
    /// brings.
    pub(super) fn requested_attributes(&self) -> Option<QpAttributes> {
        (self.state == CmState::ReqReceived).then(|| self.known_attributes())
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
}
