//! What an operation asks of the peer, and the work request that says it.

use transport::op::{AtomicOp, Data, Flush, LocalOp, SendOp, SendWr, SgeList};
use wire::Rkey;
use wire::roce::SendTail;

use crate::error::{Error, Result};
use crate::mem;
use crate::remote::RemoteMemory;
use crate::ud::{Destination, To};

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Send,
    /// The destination, or why nothing can be sent there.
    SendTo(Result<Destination>),
    Write(RemoteMemory),
    Read(RemoteMemory),
    Atomic(RemoteMemory, AtomicOp),
    Flush(RemoteMemory, Flush),
    Local(LocalOp),
}

/// What is asked, with its options.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    asked: Asked,
    tail: SendTail,
    pub solicited: bool,
    pub fence: bool,
    /// Number of the shared receive queue that the request is for, of an XRC initiator.
    pub srq: u32,
    /// Bytes that go with the work request, in place of registered ones.
    pub inline: Option<Data>,
}

const POST: &str = "ibv_post_send";

impl Request {
    pub(crate) fn new(asked: Asked) -> Self {
        Self { asked, tail: SendTail::None, solicited: false, fence: false, srq: 0, inline: None }
    }
    pub(crate) fn set_imm(&mut self, imm: u32) {
        self.tail = SendTail::Immediate(imm.to_be_bytes());
    }
    pub(crate) fn set_invalidate(&mut self, rkey: u32) {
        self.tail = SendTail::Invalidate(Rkey(rkey));
    }
    /// Whether an atomic's answer needs a place of the queue pair's own.
    #[inline]
    pub(crate) fn brings_a_word(&self) -> bool {
        matches!(self.asked, Asked::Atomic(_, AtomicOp::CompareSwap { .. } | AtomicOp::FetchAdd(_)))
    }

    /// The destination of a datagram.
    #[inline]
    pub(crate) fn to(&self) -> Option<&To> {
        if let Asked::SendTo(Ok(to)) = &self.asked { Some(to.datagram()) } else { None }
    }

    /// Leaves out what a READ has no bytes for.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where there is too little room for it.
    #[inline]
    pub(crate) fn cut(&self, pieces: &mut mem::SgeList<'_>) -> Result<()> {
        let Asked::Read(from) = &self.asked else { return Ok(()) };
        if pieces.len() < from.len() {
            return Err(Error::range(POST, 0, from.len(), pieces.len()));
        }
        pieces.cut(from.len());
        Ok(())
    }

    /// Whether the request may be posted with these pieces of registered memory.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where source or destination is too short; why a datagram goes nowhere.
    #[inline]
    pub(crate) fn check(&self, pieces: &SgeList) -> Result<()> {
        if let Asked::Send = self.asked { Ok(()) } else { self.check_range(pieces) }
    }

    fn check_range(&self, pieces: &SgeList) -> Result<()> {
        let len = || self.inline.as_ref().map_or(pieces.len_bytes(), Data::len_bytes);
        match &self.asked {
            Asked::Send | Asked::Read(_) | Asked::Local(_) => Ok(()),
            Asked::SendTo(Err(why)) => Err(why.clone()),
            Asked::SendTo(Ok(to)) => to.check(len()),
            Asked::Write(to) if len() > to.len() => Err(Error::range(POST, 0, len(), to.len())),
            Asked::Write(_) => Ok(()),
            Asked::Atomic(at, _) if at.len() < 8 || !at.addr().is_multiple_of(8) => {
                Err(Error::range(POST, at.addr() % 8, 8, at.len()))
            }
            Asked::Atomic(..) => Ok(()),
            Asked::Flush(what, _) => {
                let most = u64::from(u32::MAX);
                match what.len() > most {
                    true => Err(Error::number(POST, "length of a FLUSH", what.len(), 0..=most)),
                    false => Ok(()),
                }
            }
        }
    }

    /// The work request, with these pieces of registered memory, with which it was checked.
    #[inline]
    pub(crate) fn wr(&self, wr_id: u64, pieces: SgeList) -> SendWr {
        let data = match &self.inline {
            None => Data::Sges(pieces),
            Some(inline) => inline.clone(),
        };
        match &self.asked {
            Asked::Send => self.with(wr_id, SendOp::Send(self.tail), data),
            _ => self.other(wr_id, data),
        }
    }

    fn other(&self, wr_id: u64, data: Data) -> SendWr {
        let op = match &self.asked {
            Asked::Send | Asked::SendTo(_) => SendOp::Send(self.tail),
            Asked::Write(to) => {
                let immediate = if let SendTail::Immediate(imm) = self.tail { Some(imm) } else { None };
                SendOp::Write { addr: to.addr(), rkey: Rkey(to.rkey()), immediate }
            }
            Asked::Read(from) => SendOp::Read { addr: from.addr(), rkey: Rkey(from.rkey()) },
            &Asked::Atomic(at, op) => {
                let data = match op {
                    AtomicOp::Write(value) => Data::inline(&value.to_ne_bytes()),
                    _ => data,
                };
                let op = SendOp::Atomic { addr: at.addr(), rkey: Rkey(at.rkey()), op };
                return self.with(wr_id, op, data);
            }
            &Asked::Flush(what, how) => {
                // No longer than that, or it was refused.
                let length = u32::try_from(what.len()).unwrap_or(u32::MAX);
                SendOp::Flush { addr: what.addr(), rkey: Rkey(what.rkey()), length, how }
            }
            Asked::Local(op) => SendOp::Local(*op),
        };
        self.with(wr_id, op, data)
    }

    #[inline]
    fn with(&self, wr_id: u64, op: SendOp, data: Data) -> SendWr {
        let Self { solicited, fence, .. } = *self;
        SendWr { wr_id, op, data, signaled: true, solicited, fence }
    }
}
