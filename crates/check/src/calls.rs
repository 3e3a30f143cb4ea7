//! What a caller tells a checker of: requests, completions, and the program behind them.

use crate::ends::Peer;
use crate::objects::Handle;
use crate::reads::Reads;

/// The program that is checked.
pub trait Program {
    /// A number that tells the bytes of a range from others; `None` where they cannot be read.
    fn digest(&self, addr: u64, len: u64) -> Option<u64>;
    /// Whether a queue pair executes requests, and so uses their memory.
    fn executes(&self, pair: Handle) -> bool;
    /// Whether requests of a queue pair may have completed: it receives, or is in error.
    fn completes(&self, pair: Handle) -> bool;
    /// Completions that a queue holds and gives no event for: it was armed when they had come.
    fn unannounced(&self, queue: Handle) -> u32;
    /// READs and atomics of a queue pair; `None` where it is connected to none, or never was.
    fn reads(&self, pair: Handle) -> Option<Reads>;
}

/// What the adapter does with the memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reads it: SEND, WRITE.
    Reads,
    /// Writes it: RECV, READ, atomics.
    Writes,
}

/// An element of a work request (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Address of the first byte, as the region names it.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The local key.
    pub key: u32,
}

/// A work request that is about to be posted.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The program's number.
    pub wr_id: u64,
    /// The operation's name.
    pub name: &'static str,
    /// What the adapter does with the memory.
    pub direction: Direction,
    /// Whether the bytes are copied by the call (IBV_SEND_INLINE).
    pub is_inline: bool,
    /// Whether it asks for a completion (IBV_SEND_SIGNALED); receives always have one.
    pub is_signaled: bool,
    /// The memory.
    pub elements: &'a [Element],
    /// Where in the peer's memory it begins, and the right that this needs, without IBV_ACCESS_.
    pub remote: Option<(u64, &'static str)>,
}

/// The queue that a work request is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue of a queue pair.
    Send(Handle),
    /// The receive queue of a queue pair.
    Receive(Handle),
    /// A shared receive queue, or a receive work queue.
    Shared(Handle),
}

/// A completion that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// The completion queue.
    pub queue: Handle,
    /// The queue pair's number.
    pub number: u32,
    /// The request's number.
    pub wr_id: u64,
    /// Whether it is of a receive.
    pub is_receive: bool,
    /// Why it failed: the status's words and its code; `None` where it succeeded.
    pub failure: Option<(&'static str, u32)>,
    /// The queue pair's peer, where the request failed by [`is_of_ends`] and the peer is known.
    pub peer: Option<&'a Peer>,
}

/// Whether the peer has part in a status: IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,
/// IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR.
pub fn is_of_ends(status: u32) -> bool {
    matches!(status, 9 | 10 | 12 | 13)
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The error's name.
    pub error: &'static str,
    /// The state of the queue pair, as RESET, INIT, RTR, RTS, SQD, SQE or ERR.
    pub state: &'static str,
    /// What is wrong with the request, in a sentence, where that is known.
    pub why: Option<&'static str>,
}
