//! What an engine may use of its queue pair: memory, receives, completion queues, events, the
//! path's congestion window.

use std::ops::Range;

use wire::Qpn;
use wire::roce::{Header, SendTail};

use super::{Completed, Completion, Fault, Memory, RecvWr, Remote, SendWr, Sge, Status, TagInfo};
use crate::CongestionWindow;

/// Where a SEND goes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The receive that takes it.
    pub receive: RecvWr,
    /// What of the first piece is delivered; of later ones all is.
    pub part: Range<usize>,
    /// How it completes, where a tag-matching queue placed it.
    pub tagged: Option<Tagged>,
}

impl Place {
    /// The whole message, whose first piece is `first`, in an ordinary receive.
    #[inline]
    pub fn ordinary(receive: RecvWr, first: &[u8]) -> Place {
        Place { receive, part: 0..first.len(), tagged: None }
    }
}

/// How a message completes that a tag-matching queue placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Opcode of the message's completions.
    pub opcode: Completed,
    /// Status of the last of them, if all goes well.
    pub status: Status,
    /// What the completions say of the tag. A match is told of when the first piece has come, the
    /// rest with the last.
    pub info: TagInfo,
}

/// A SEND of one piece, without a key to invalidate.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// The message's bytes.
    pub bytes: &'a [u8],
    /// Immediate data, or nothing.
    pub tail: SendTail,
    /// The queue pair that sent it.
    pub source_qp: Qpn,
    /// The sender asks for a solicited event.
    pub solicited: bool,
}

/// Which queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The send queue's CQ.
    Send,
    /// The receive queue's CQ.
    Receive,
}

/// What happens to a queue pair beside completions; each becomes an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The first packet arrived while still in RTR (IBV_EVENT_COMM_EST).
    CommunicationEstablished,
    /// A peer's request was illegal (IBV_EVENT_QP_REQ_ERR).
    RequestError,
    /// A peer's request violated access rights (IBV_EVENT_QP_ACCESS_ERR).
    AccessError,
    /// The queue pair can not go on (IBV_EVENT_QP_FATAL).
    Fatal,
}

/// What became of a WRITE, READ or FLUSH that might need no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// The request is done.
    Done,
    /// The request can not be done so: its packets will tell why.
    Refused,
    /// The peer's memory is not reached, or not for so much.
    NoWay,
}

/// What is under way with a request, or was and has not been told to the program yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Company {
    /// Nothing is under way.
    #[default]
    None,
    /// Something, but which way this one goes does not matter.
    Some,
    /// So much that the program does not wait for each request: a stream.
    Stream,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In memory that a work request names.
    List(&'a [Sge]),
    /// In memory that a peer reads.
    Range(Remote),
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Where the message is.
    pub from: Source<'a>,
    /// Where the part begins, in bytes.
    pub at: u64,
    /// Bytes.
    pub len: usize,
}

/// What became of a piece of a message that was to go to a process of this host at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    /// The piece has left.
    Sent,
    /// There is no room for the piece now.
    Full,
    /// There is no way for pieces just now.
    NoWay,
}

/// What an engine may use of its queue pair during one call. The adapter implements it.
pub trait Context {
    /// Memory of the queue pair's protection domain.
    fn memory(&self) -> impl Memory + Copy;
    /// Memory that receives name: that of the SRQ's protection domain, where there is one.
    fn receive_memory(&self) -> impl Memory + Copy {
        self.memory()
    }
    /// Takes the next posted receive, from the queue pair's own queue or its SRQ.
    fn take_receive(&mut self) -> Option<RecvWr>;
    /// Takes the receive for a SEND that begins with the piece `first`; `whole`: there is no other
    /// piece. At a tag-matching queue the piece decides where the message goes.
    fn place(&mut self, first: &[u8], _whole: bool) -> Option<Place> {
        Some(Place::ordinary(self.take_receive()?, first))
    }
    /// Puts a whole message, a SEND without a key, where the next receive says, and completes that.
    /// False where something is not as it mostly is: then nothing has changed, but perhaps the
    /// bytes where the receive says, and [`Context::place`] and what follows it are asked.
    fn deliver(&mut self, _message: &Whole<'_>) -> bool {
        false
    }
    /// Adds a completion to the send or receive CQ, in order.
    fn complete(&mut self, side: Side, completion: Completion);
    /// Raises an asynchronous event.
    fn event(&mut self, event: QpEvent);
    /// At an XRC target, the shared receive queue that a request names: from now on memory is that
    /// of its protection domain, receives come from it, and receive completions go to its CQ
    /// (IBA annex A14).
    ///
    /// # Errors
    ///
    /// The target's XRC domain has no such queue; then nothing of before is chosen any more.
    fn choose_srq(&mut self, _number: u32) -> Result<(), Fault> {
        Err(Fault::Key)
    }
    /// Executes a WRITE, READ or FLUSH without the peer's responder, where its memory is reached
    /// from here. Nothing of the queue pair is under way.
    fn execute_at_once(&mut self, _wr: &SendWr) -> AtOnce {
        AtOnce::NoWay
    }
    /// Whether the peer's memory is reached from here, for a request like this.
    fn reaches(&self, _wr: &SendWr) -> bool {
        false
    }
    /// What else is under way with a WRITE or READ that might need no packet.
    fn company(&self, _wr: &SendWr) -> Company {
        Company::None
    }
    /// Bytes of a message, at most, that go to the peer as one piece, in place of packets; 0 where
    /// none do.
    fn most_bulk(&self) -> usize {
        0
    }
    /// Sends a piece of a message, which may be several packets, with the headers of one. All that
    /// was sent before it has been handed over.
    ///
    /// # Errors
    ///
    /// Those of the memory; then nothing has left.
    fn send_bulk(&self, _header: &Header, _part: Part<'_>) -> Result<Bulk, Fault> {
        Ok(Bulk::NoWay)
    }
    /// Sends a piece of a message, of which the receiver copies the bytes from where they are; the
    /// rest is as with [`Context::send_bulk`]. Those of a request that has not completed stay
    /// there; those that a READ asks for may be gone.
    fn lend_bulk(&self, _header: &Header, _part: Part<'_>) -> Bulk {
        Bulk::NoWay
    }
    /// Copies a piece of a WRITE to where it belongs in the peer's memory, or one of a SEND or of a
    /// READ response to the place that the peer has shown ([`Context::show_place`],
    /// [`Context::ask_bulk`]), and then sends it without its bytes; the rest is as with
    /// [`Context::send_bulk`].
    fn place_bulk(&mut self, _header: &Header, _part: Part<'_>, _to: Remote) -> Bulk {
        Bulk::NoWay
    }
    /// Asks for a part of a READ, of one element, and tells the peer where it goes: it may copy to
    /// there until the READ completes. So the READ completes with an error only when the peer
    /// copies nothing any more. The rest is as with [`Context::send_bulk`].
    fn ask_bulk(&mut self, _header: &Header, _part: Part<'_>) -> Bulk {
        Bulk::NoWay
    }
    /// Whether bytes of a piece can be elsewhere than in it ([`Elsewhere`](super::Elsewhere)), as
    /// far as is known.
    fn fetches(&self) -> bool {
        false
    }
    /// Tells the peer where the message goes that begins with the piece which these headers name:
    /// it may copy to there what it sends, until the receive completes. So that one does
    /// with an error only when the peer copies nothing any more. False where the peer is not told.
    fn show_place(&mut self, _header: &Header, _receive: &RecvWr) -> bool {
        false
    }
    /// Tells the peer, where it is a process of this host, that so many numbers from that of these
    /// headers on are used up: no packet bears them. The queue pair is about to go.
    fn tell_numbers(&mut self, _header: &Header, _count: u32) {}
    /// From how many bytes on all messages go in such pieces; `None`: from some on, where that is
    /// faster.
    fn shares_from(&self) -> Option<u32> {
        None
    }
    /// Requests and receives are about to complete as flushed. The peer copies nothing any more
    /// that they lend, or what it has copied does not count.
    fn lends_no_more(&mut self) {}
    /// Whether something that left for the peer lies where only the peer's process takes it, and is
    /// not taken yet.
    fn lies_unread(&self) -> bool {
        false
    }
    /// Packets for which there is room between here and the peer: more would wait somewhere on the
    /// way.
    fn room(&self) -> u32 {
        u32::MAX
    }
    /// The congestion window of the path to the peer.
    fn window(&self) -> &CongestionWindow;
}
