//! What an engine may use of its queue pair: memory, receives, completion queues, events, the
//! path's congestion window.

use std::ops::Range;

use wire::Qpn;
use wire::roce::SendTail;

use super::{Completed, Completion, Fault, LocalPath, Memory, NoLocalPath, RecvWr, Status, TagInfo};
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
    pub fn ordinary(receive: RecvWr, first: &[u8]) -> Self {
        Self { receive, part: 0..first.len(), tagged: None }
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
    /// The way to a peer that is a process of the same host.
    fn local(&mut self) -> impl LocalPath {
        NoLocalPath
    }
    /// Packets for which there is room between here and the peer: more would wait somewhere on the
    /// way.
    fn room(&self) -> u32 {
        u32::MAX
    }
    /// The congestion window of the path to the peer.
    fn window(&self) -> &CongestionWindow;
}
