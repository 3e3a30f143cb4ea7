//! Why a message is not executed, and what a fault of memory means for it.

use crate::op::Fault;

/// Why a message, or a piece of one, was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No receive is posted. Nothing has changed: the sender may try the same piece again.
    #[error("no receive is posted")]
    NoReceive,
    /// The message is longer than the receive it was to fill.
    #[error("the message is longer than its receive")]
    TooLong,
    /// The receive names memory that it must not: the receiver's own fault.
    #[error("the receive's memory: {0}")]
    Local(Fault),
    /// The peer named memory, or a key to invalidate, that it must not.
    #[error("the memory that the peer named: {0}")]
    Remote(Fault),
    /// The piece is not one that may come now, or a length is not what was announced, or an address
    /// is not aligned.
    #[error("the message breaks the protocol")]
    Illegal,
    /// The memory that the peer named is not there yet. The piece has not come; some of its bytes
    /// may have been copied.
    #[error("the memory that the peer named is not there yet")]
    Absent,
    /// The piece's bytes are elsewhere, and not reached there. It has not come; some of them may
    /// have been copied.
    #[error("the piece's bytes are not reached where they are")]
    Away,
}

/// What a fault of memory means, which is this unless it is none of ours.
pub(super) fn refusal(fault: Fault, ours: impl FnOnce(Fault) -> Refusal) -> Refusal {
    match fault {
        Fault::Away => Refusal::Away,
        Fault::Absent => Refusal::Absent,
        fault => ours(fault),
    }
}

/// Like [`refusal`], for memory that the peer named.
pub(super) fn remote(fault: Fault) -> Refusal {
    refusal(fault, Refusal::Remote)
}
