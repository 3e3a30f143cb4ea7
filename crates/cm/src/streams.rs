//! Streams, the transport of protocols whose messages go by TCP: what a node tells such a protocol
//! of its streams, and what the protocol wants done to them.
//!
//! The connection manager names each stream by a [`StreamId`] that it never gives out twice. A
//! stream of ours has its id in [`Action::Open`], and one that a listener accepted gets its id from
//! [`Streams::accepted`]. A node keeps a table from ids to sockets.
//!
//! ```text
//!   Action::Open ──▶ opened or lost         a listener ──▶ accepted
//!   Action::Write, received: the messages of the protocol, either way
//!   Action::HandOver: the bytes belong to the queue pair from here on
//!   Action::Close, or lost: the node forgets the stream, and the protocol has
//! ```
//!
//! A stream lives until [`Action::Close`] or [`Streams::lost`]. What a node says of a stream after
//! that changes nothing. Nothing here waits: the node writes what it is given when the socket takes
//! it, in order, and closes gracefully only behind that.

use std::time::Instant;

use crate::event::ConnId;
use crate::parameters::{PathRecord, Service};

/// Names a stream of one connection manager. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

/// A stream that a listener accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The way back: our address first, the peer's second.
    pub path: PathRecord,
    /// The service whose port the peer connected to.
    pub service: Service,
    /// The peer's TCP port.
    pub peer_port: u16,
}

/// What a protocol wants done to a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect by TCP. [`Streams::opened`] or [`Streams::lost`] follows.
    Open(Box<Open>),
    /// Send these bytes behind all that were given before, 1 or more.
    Write(Vec<u8>),
    /// Give the stream to the connection's queue pair. Of what follows, the protocol is told the
    /// end alone.
    HandOver(Box<HandOver>),
    /// End the stream and forget it.
    Close(Close),
}

/// Where a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The connection that the stream is for.
    pub conn: ConnId,
    /// From our address to the peer's.
    pub path: PathRecord,
    /// Our TCP port, 0 for any.
    pub source_port: u16,
    /// The peer's service, whose port is the TCP port.
    pub service: Service,
}

/// What a queue pair takes over a stream with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The connection whose queue pair it is.
    pub conn: ConnId,
    /// What both ends agreed on.
    pub agreed: Agreed,
    /// What came behind the last message of the protocol: the first bytes that the queue pair
    /// reads.
    pub behind: Vec<u8>,
}

/// What both ends of a stream agreed on (RFC 5044 §7.1, RFC 6581 §9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// FPDUs bear a CRC, both ways.
    pub crc: bool,
    /// READ requests that we accept at once.
    pub ird: u8,
    /// READ requests that we start at once.
    pub ord: u8,
    /// The message that lets the responder send.
    pub rtr: Rtr,
}

/// "Ready to receive": the initiator's first message, without which the responder sends nothing
/// (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rtr {
    /// Neither end asked for one.
    #[default]
    None,
    /// The queue pair sends it before all else.
    Send(RtrMessage),
    /// The queue pair sends nothing until it, or another FPDU, has come. Then the node calls
    /// [`Cm::established`](crate::Cm::established).
    Await(RtrMessage),
}

/// The message that serves as RTR. No program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtrMessage {
    /// A WRITE of zero bytes.
    Write,
    /// A READ of zero bytes.
    Read,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// By FIN behind all that was written.
    Gracefully,
    /// By RST, at once: what is not sent yet is dropped.
    Reset,
}

/// What a node tells a protocol of streams ([`Cm::streams`](crate::Cm::streams)).
///
/// What comes of it is fetched by [`Cm::poll`](crate::Cm::poll). A stream that is unknown or has
/// been closed is passed over.
pub trait Streams {
    /// A listener accepted a stream: its id. Beyond the bound of those whose request is not whole,
    /// the oldest of them is closed.
    fn accepted(&mut self, now: Instant, accepted: &Accepted) -> StreamId;
    /// The stream of an [`Action::Open`] stands.
    fn opened(&mut self, now: Instant, stream: StreamId);
    /// Bytes came, in any pieces. None after [`Action::HandOver`]: those are the queue pair's.
    fn received(&mut self, now: Instant, stream: StreamId, bytes: &[u8]);
    /// The peer ended its half of the stream (FIN), and all bytes before that have been given.
    fn ended(&mut self, now: Instant, stream: StreamId);
    /// The stream could not be opened, or is lost, or its queue pair ended it. `errno`: why,
    /// positive, as the system says it.
    fn lost(&mut self, now: Instant, stream: StreamId, errno: i32);
    /// Streams ended so far because of what the peer did or did not send.
    fn counters(&self) -> StreamCounters;
}

/// Streams that a protocol ended because of what the peer did or did not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// What came is no message of the protocol, or one out of turn.
    pub malformed: u64,
    /// No whole request came in time.
    pub late: u64,
    /// Closed as the oldest of too many without a whole request.
    pub crowded_out: u64,
    /// Requests that the protocol refused by itself: for markers, or for lack of room.
    pub refused: u64,
}
