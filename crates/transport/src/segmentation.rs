//! How RC and UC cut messages into packets (IBA 1.4 §9.7.4 and §9.8.2): which opcode stands for
//! which place in a message, and how long the payload is there.

use wire::bth::Reth;
use wire::roce::{SendAt, SendTail, WriteAt};

use crate::execute::Refusal;
use crate::op::Remote;

/// The packet of a SEND by its place; `tail` is what the last one bears.
pub(crate) fn send_at(first: bool, last: bool, tail: SendTail) -> SendAt {
    match (first, last) {
        (true, true) => SendAt::Only(tail),
        (true, false) => SendAt::First,
        (false, true) => SendAt::Last(tail),
        (false, false) => SendAt::Middle,
    }
}

/// The packet of a WRITE by its place.
pub(crate) fn write_at(first: bool, last: bool, reth: Reth, immediate: Option<[u8; 4]>) -> WriteAt {
    match (first, last) {
        (true, true) => WriteAt::Only(reth, immediate),
        (true, false) => WriteAt::First(reth),
        (false, true) => WriteAt::Last(immediate),
        (false, false) => WriteAt::Middle,
    }
}

/// Whether a packet of a SEND is the first, and what it ends the message with.
pub(crate) fn send_place(at: SendAt) -> (bool, Option<SendTail>) {
    match at {
        SendAt::First => (true, None),
        SendAt::Middle => (false, None),
        SendAt::Last(tail) => (false, Some(tail)),
        SendAt::Only(tail) => (true, Some(tail)),
    }
}

/// What the first packet of a WRITE names, whether a packet is the last, and with what immediate
/// data.
pub(crate) fn write_place(at: WriteAt) -> (Option<Remote>, bool, Option<[u8; 4]>) {
    match at {
        WriteAt::First(reth) => (Some(remote(reth)), false, None),
        WriteAt::Middle => (None, false, None),
        WriteAt::Last(immediate) => (None, true, immediate),
        WriteAt::Only(reth, immediate) => (Some(remote(reth)), true, immediate),
    }
}

/// Checks a payload's length by its packet's place: full but for the last, which is not empty
/// unless it is the only one.
pub(crate) fn check_len(mtu: usize, len: usize, first: bool, last: bool) -> Result<(), Refusal> {
    let legal = match (first, last) {
        (_, false) => len == mtu,
        (false, true) => (1..=mtu).contains(&len),
        (true, true) => len <= mtu,
    };
    if legal { Ok(()) } else { Err(Refusal::Illegal) }
}

/// The memory that a RETH names.
pub(crate) fn remote(reth: Reth) -> Remote {
    Remote { addr: reth.addr, length: reth.length.into(), rkey: reth.rkey }
}
