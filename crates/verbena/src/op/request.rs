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
    /// To whom, or why nobody can send there.
    SendTo(Result<Destination>),
    Write(RemoteMemory),
    Read(RemoteMemory),
    Atomic(RemoteMemory, AtomicOp),
    Flush(RemoteMemory, Flush),
    Local(LocalOp),
}

/// The same with its options.
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
    pub fn new(asked: Asked) -> Request {
        Request { asked, tail: SendTail::None, solicited: false, fence: false, srq: 0, inline: None }
    }
    pub fn set_imm(&mut self, imm: u32) {
        self.tail = SendTail::Immediate(imm.to_be_bytes());
    }
    pub fn set_invalidate(&mut self, rkey: u32) {
        self.tail = SendTail::Invalidate(Rkey(rkey));
    }
    /// Whether an atomic's answer needs a place of the queue pair's own.
    pub fn brings_a_word(&self) -> bool {
        matches!(self.asked, Asked::Atomic(_, AtomicOp::CompareSwap { .. } | AtomicOp::FetchAdd(_)))
    }

    /// Whom a datagram is for.
    pub fn to(&self) -> Option<&To> {
        if let Asked::SendTo(Ok(to)) = &self.asked { Some(to.datagram()) } else { None }
    }

    /// Leaves out what a READ has no bytes for.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where there is too little room for it.
    pub fn cut(&self, pieces: &mut mem::SgeList<'_>) -> Result<()> {
        let Asked::Read(from) = &self.asked else { return Ok(()) };
        if pieces.len() < from.len() {
            return Err(Error::range(POST, 0, from.len(), pieces.len()));
        }
        pieces.cut(from.len());
        Ok(())
    }

    /// The work request, with these pieces of registered memory; its wr_id is the caller's to set.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where source or destination is too short.
    pub fn wr(&self, pieces: SgeList) -> Result<SendWr> {
        let op = match &self.asked {
            Asked::Send => SendOp::Send(self.tail),
            Asked::SendTo(Err(why)) => return Err(why.clone()),
            Asked::SendTo(Ok(to)) => {
                to.check(self.inline.as_ref().map_or(pieces.len_bytes(), Data::len_bytes))?;
                SendOp::Send(self.tail)
            }
            Asked::Write(to) => {
                let len = self.inline.as_ref().map_or(pieces.len_bytes(), Data::len_bytes);
                if len > to.len() {
                    return Err(Error::range(POST, 0, len, to.len()));
                }
                let immediate = if let SendTail::Immediate(imm) = self.tail { Some(imm) } else { None };
                SendOp::Write { addr: to.addr(), rkey: Rkey(to.rkey()), immediate }
            }
            Asked::Read(from) => SendOp::Read { addr: from.addr(), rkey: Rkey(from.rkey()) },
            &Asked::Atomic(at, op) => {
                if at.len() < 8 || !at.addr().is_multiple_of(8) {
                    return Err(Error::range(POST, at.addr() % 8, 8, at.len()));
                }
                let data = match op {
                    AtomicOp::Write(value) => Data::inline(&value.to_ne_bytes()),
                    _ => Data::Sges(pieces),
                };
                return Ok(self.with(SendOp::Atomic { addr: at.addr(), rkey: Rkey(at.rkey()), op }, data));
            }
            &Asked::Flush(what, how) => {
                let most = u64::from(u32::MAX);
                let length = u32::try_from(what.len())
                    .map_err(|_| Error::number(POST, "length of a FLUSH", what.len(), 0..=most))?;
                SendOp::Flush { addr: what.addr(), rkey: Rkey(what.rkey()), length, how }
            }
            Asked::Local(op) => SendOp::Local(*op),
        };
        let data = self.inline.clone().unwrap_or(Data::Sges(pieces));
        Ok(self.with(op, data))
    }

    fn with(&self, op: SendOp, data: Data) -> SendWr {
        let Request { solicited, fence, .. } = *self;
        SendWr { wr_id: 0, op, data, signaled: true, solicited, fence }
    }
}
