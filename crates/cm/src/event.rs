//! What a connection manager tells of its connections, and why it refuses a call.

use wire::{CommId, Gid, Qkey, Qpn};

use crate::parameters::{Reply, Request, SidrRequest};

/// `-ETIMEDOUT`, the status of an `Unreachable` event on Linux.
pub const ETIMEDOUT: i32 = -110;
/// `-ECONNREFUSED`, the status of a `Rejected` event on Linux over iWARP: no process has the port,
/// or the peer asks for markers.
pub const ECONNREFUSED: i32 = -111;
/// `-ECONNRESET`, the status of a `Rejected` event on Linux over siw: the peer refuses, or ends the
/// stream before it is connected.
pub const ECONNRESET: i32 = -104;
/// `-EINVAL`, the status of a `ConnectError` event on Linux over siw.
pub const EINVAL: i32 = -22;

/// Names a connection, or a question for a datagram service, of one connection manager. Never used
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(crate) u64);

/// What happened to a connection, as rdma_cm tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection; answer with accept, reject or destroy. The first event of its
    /// [`ConnId`].
    Request(Box<Request>),
    /// The peer accepts: move the queue pair by [`Cm::qp_attr`](crate::Cm::qp_attr), then call
    /// [`Cm::established`](crate::Cm::established).
    Reply(Box<Reply>),
    /// The peer is ready: an RTU, an RTR or data was received, or MPA without an RTR accepted.
    /// Passive side only.
    Established,
    /// The peer refuses, or ends the connection by REJ.
    Rejected {
        /// The number that `rdma_cm_event.status` shows: the REJ's reason (IBA 1.4 §12.6.7.2); over
        /// MPA, which has no reasons, [`ECONNRESET`] or [`ECONNREFUSED`].
        reason: i32,
        /// Private data, the whole field.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    Unreachable {
        /// Negative errno: [`ETIMEDOUT`]; over streams also that of an address without a way to it.
        status: i32,
    },
    /// The connection could not be made, for a reason that is neither of these. Over streams only.
    ConnectError {
        /// Negative errno: [`EINVAL`] for an answer that cannot be used.
        status: i32,
    },
    /// The connection ended. Move the queue pair to the error state.
    Disconnected {
        /// 0, or [`ETIMEDOUT`] where the peer never answered our DREQ.
        status: i32,
    },
    /// Time wait is over: the queue pair may be used anew.
    TimewaitExit,
    /// A peer asks for a datagram service; answer with
    /// [`Cm::sidr_reply`](crate::Cm::sidr_reply), reject or destroy.
    SidrRequest(Box<SidrRequest>),
    /// The answer to such a question of ours; the exchange is over.
    SidrReply {
        /// The number that `rdma_cm_event.status` shows: the SIDR_REP's status (IBA 1.4 §12.11.2).
        /// The rest is valid for 0 only.
        status: u8,
        /// Queue pair of the service.
        qpn: Qpn,
        /// Q_Key of the service's queue pair.
        qkey: Qkey,
        /// Private data, the whole field.
        private_data: Vec<u8>,
    },
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection is not in a state that allows the call (EINVAL).
    #[error("connection {0:?} is {1}: the call is not possible now")]
    State(ConnId, &'static str),
    /// No such connection, or it has been destroyed (EINVAL).
    #[error("connection {0:?} does not exist")]
    Unknown(ConnId),
    /// A parameter is wider than its field of the message, or above what it may be (EINVAL).
    #[error("{what} is {value}, not 0 to {most}")]
    OutOfRange {
        /// The parameter, by its name in the manual pages, or in the message where they have none.
        what: &'static str,
        /// What the caller gave.
        value: u32,
        /// The largest that is taken.
        most: u32,
    },
    /// The path lacks a GID of one end, or of both (EINVAL).
    #[error("the path lacks a GID: it is from {from:?} to {to:?}")]
    Gid {
        /// Our end.
        from: Gid,
        /// The peer's.
        to: Gid,
    },
    /// More private data than the message has room for (EINVAL).
    #[error("{0} bytes of private data: the message has room for {1}")]
    PrivateData(usize, usize),
    /// The table is full (ENOMEM).
    #[error("all {0} connections are in use: destroy some, or raise max_connections")]
    Full(usize),
    /// The protocol has no datagram services (EOPNOTSUPP).
    #[error("the protocol has no datagram services")]
    NoDatagrams,
    /// The caller's source of communication ids gives none that is free (ENOMEM).
    #[error("no communication id is free; the last one offered was {0:?}")]
    CommIds(CommId),
}

/// Whether a parameter is at most `most`.
pub(crate) fn at_most(what: &'static str, value: impl Into<u32>, most: u32) -> Result<(), Error> {
    let value = value.into();
    if value <= most { Ok(()) } else { Err(Error::OutOfRange { what, value, most }) }
}
