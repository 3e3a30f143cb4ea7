//! One connection: its state, and what it knows of either end.
//!
//! To the left the side that connects, to the right the one that is asked:
//!
//! ```text
//!    connect: a stream opens              a request is whole
//!            v                                   v
//!         Opening                            Requested --- reject, destroy: R ---> forgotten
//!            | opened: request                   | accept: reply, hand-over
//!            v                                   v
//!         Asking                             RtrAwaited (with RTR only)
//!            | a reply is whole                  | established: RTR, or data, came
//!            v                                   |
//!         Replied                                |
//!            | established: hand-over            |
//!            +-----------> Established <---------+
//!                               | disconnect, the stream ends
//!                               v
//!                            Closed --- destroy ---> forgotten
//! ```
//!
//! Every state but `Established` is `Closed` by time, too, and every one by the end of its stream.
//! What the consumer has destroyed is forgotten where it would be `Closed`.

use std::time::Instant;

use wire::iwarp::mpa::Enhanced;
use wire::{Psn, Qpn};

use crate::event::ConnId;
use crate::parameters::{PathRecord, QpAttributes, Service};
use crate::streams::{Agreed, StreamId};

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The node connects the stream.
    Opening,
    /// The peer has our request.
    Asking,
    /// The consumer has the reply.
    Replied,
    /// The consumer has the request.
    Requested,
    /// The queue pair has the stream, and the peer's RTR has not come.
    RtrAwaited,
    /// The queue pair has the stream, and both ends are ready for data.
    Established,
    /// The consumer has not destroyed what has ended.
    Closed,
}

impl State {
    /// A request was taken, and the peer is not known to be ready.
    pub(super) fn is_half_open(self) -> bool {
        matches!(self, Self::Requested | Self::RtrAwaited)
    }

    /// For error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Opening => "connecting its stream",
            Self::Asking => "waiting for a reply",
            Self::Replied => "replied to, not yet established",
            Self::Requested => "waiting for the consumer's answer",
            Self::RtrAwaited => "waiting for the peer to get ready",
            Self::Established => "established",
            Self::Closed => "closed",
        }
    }
}

/// What a frame said that its answer depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub revision: u8,
    pub crc: bool,
    pub enhanced: Option<Enhanced>,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnId,
    pub state: State,
    /// `None` once it has ended.
    pub stream: Option<StreamId>,
    /// The consumer has destroyed it: no more events.
    pub detached: bool,
    /// The node has fetched the hand-over of its stream.
    pub handed_over: bool,
    pub path: PathRecord,
    pub service: Service,
    /// The queue pair whose release must be told.
    pub qpn: Option<Qpn>,
    /// The request, ours or the peer's.
    pub asked: Asked,
    /// Our request's frame until the stream is open.
    pub request: Vec<u8>,
    /// What has come of the peer's reply; from then on, what came behind it.
    pub front: Vec<u8>,
    pub agreed: Agreed,
    /// The consumer waits no longer, whatever the state.
    pub give_up: Option<Instant>,
    /// When its timer is due, as it stands in the table of timers.
    pub due: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        id: ConnId,
        state: State,
        stream: StreamId,
        path: PathRecord,
        service: Service,
        asked: Asked,
    ) -> Self {
        Self {
            id,
            state,
            stream: Some(stream),
            detached: false,
            handed_over: false,
            path,
            service,
            qpn: None,
            asked,
            request: Vec::new(),
            front: Vec::new(),
            agreed: Agreed::default(),
            give_up: None,
            due: None,
        }
    }

    pub(super) fn attributes(&self) -> Option<QpAttributes> {
        let known = matches!(self.state, State::Replied | State::RtrAwaited | State::Established);
        known.then(|| self.known_attributes())
    }

    /// Attributes of a request that waits for its answer: what the peer lets us have at most.
    pub(super) fn requested_attributes(&self) -> Option<QpAttributes> {
        (self.state == State::Requested).then(|| self.known_attributes())
    }

    /// iWARP tells no queue pair numbers, no PSNs and no timeouts: TCP has those.
    fn known_attributes(&self) -> QpAttributes {
        QpAttributes {
            path: self.path,
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            path_mtu: self.path.mtu,
            max_rd_atomic: self.agreed.ord,
            max_dest_rd_atomic: self.agreed.ird,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
        }
    }
}
