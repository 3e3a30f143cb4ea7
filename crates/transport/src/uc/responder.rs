//! The receiving half (IBA 1.4 §9.8.2.2): takes messages whose packets come one after the other, and drops all others in
//! silence.
//!
//! The PSN expected is the one after the last that came, whatever became of that packet: a gap abandons the message that is
//! arriving, and the next first packet begins anew. A receive that an abandoned SEND had begun to fill serves
//! the next message.

use wire::bth::Reth;
use wire::roce::{Op, Packet, SendAt, SendTail, WriteAt};
use wire::{Psn, Qpn};

use super::{MAX_MESSAGE, Path};
use crate::op::{
    Access, Completed, Completion, Context, Memory, NetworkHeader, RecvWr, Remote, Side, Status, Tail,
};

#[derive(Debug, Default)]
pub(super) struct Responder {
    expected: Psn,
    message: Message,
    /// The receive in use, or that an abandoned message left.
    receive: Option<RecvWr>,
}

/// The message of several packets that is arriving.
#[derive(Clone, Copy, Debug, Default)]
enum Message {
    /// None, or one that is dropped.
    #[default]
    None,
    Send {
        received: u64,
    },
    Write {
        to: Remote,
        received: u64,
    },
}

/// The queue pair goes to the error state: a receive named memory that it must not.
#[derive(Debug)]
pub(super) struct Broken;

impl Responder {
    pub fn start(&mut self, psn: Psn) {
        self.expected = psn;
    }
    pub fn expected(&self) -> Psn {
        self.expected
    }
    /// A receive in use completes as flushed.
    pub fn flush(&mut self, qpn: Qpn, cx: &mut impl Context) {
        self.message = Message::None;
        if let Some(receive) = self.receive.take() {
            cx.complete(Side::Receive, receive.completion(Status::WrFlush, qpn));
        }
    }

    pub fn request(&mut self, path: &Path, packet: &Packet<'_>, cx: &mut impl Context) -> Result<(), Broken> {
        let psn = packet.header.bth.psn;
        if psn != self.expected {
            self.message = Message::None;
        }
        self.expected = psn.add(1);
        let message = std::mem::take(&mut self.message);
        self.message = match packet.header.op {
            Op::Send(at) => self.send(path, message, at, packet, cx)?,
            Op::Write(at) => self.write(path, message, at, packet, cx),
            // IBA 1.4 table 38 has no other operation of this service.
            _ => Message::None,
        };
        Ok(())
    }

    /// The state of the message after this packet of a SEND.
    fn send(
        &mut self,
        path: &Path,
        message: Message,
        at: SendAt,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Result<Message, Broken> {
        let (first, tail) = match at {
            SendAt::First => (true, None),
            SendAt::Middle => (false, None),
            SendAt::Last(tail) => (false, Some(tail)),
            SendAt::Only(tail) => (true, Some(tail)),
        };
        let before = match message {
            _ if first => 0,
            Message::Send { received } => received,
            Message::None | Message::Write { .. } => return Ok(Message::None),
        };
        if !legal_len(path, packet.payload, first, tail.is_some()) {
            return Ok(Message::None);
        }
        let Some(receive) = self.receive.take().or_else(|| cx.take_receive()) else {
            return Ok(Message::None);
        };
        let after = before + packet.payload.len() as u64;
        if after > receive.sges.len_bytes().min(MAX_MESSAGE) {
            // Too long for the receive: the message is dropped (IBA 1.4 §9.9.3, class D).
            self.receive = Some(receive);
            return Ok(Message::None);
        }
        let end = if tail.is_some() { Tail::End } else { Tail::More };
        if !packet.payload.is_empty()
            && cx.receive_memory().scatter(receive.sges.as_slice(), before, packet.payload, end).is_err()
        {
            cx.complete(Side::Receive, receive.completion(Status::LocalProtection, path.qpn));
            return Err(Broken);
        }
        let Some(tail) = tail else {
            self.receive = Some(receive);
            return Ok(Message::Send { received: after });
        };
        cx.complete(
            Side::Receive,
            Completion { tail, ..arrived(&receive, path, packet, after, Completed::Receive) },
        );
        Ok(Message::None)
    }

    /// The state of the message after this packet of a WRITE.
    fn write(
        &mut self,
        path: &Path,
        message: Message,
        at: WriteAt,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Message {
        let (reth, ends, immediate) = match at {
            WriteAt::First(reth) => (Some(reth), false, None),
            WriteAt::Middle => (None, false, None),
            WriteAt::Last(immediate) => (None, true, immediate),
            WriteAt::Only(reth, immediate) => (Some(reth), true, immediate),
        };
        let (to, before) = match (reth, message) {
            (Some(reth), _) => (remote(reth), 0),
            (None, Message::Write { to, received }) => (to, received),
            (None, Message::None | Message::Send { .. }) => return Message::None,
        };
        let after = before + packet.payload.len() as u64;
        // A last packet ends the length that the RETH says; any other leaves some for it.
        let fits = if ends { after == to.length } else { after < to.length };
        if !fits || to.length > MAX_MESSAGE || !legal_len(path, packet.payload, reth.is_some(), ends) {
            return Message::None;
        }
        if reth.is_some() && to.length > 0 && cx.memory().check(to, Access::Write).is_err() {
            return Message::None;
        }
        if immediate.is_some() && self.receive.is_none() {
            self.receive = cx.take_receive();
            if self.receive.is_none() {
                return Message::None;
            }
        }
        let tail = if ends { Tail::End } else { Tail::More };
        if !packet.payload.is_empty() && cx.memory().write(to, before, packet.payload, tail).is_err() {
            return Message::None;
        }
        if let Some(immediate) = immediate
            && let Some(receive) = self.receive.take()
        {
            let completion = arrived(&receive, path, packet, after, Completed::ReceiveWriteImmediate);
            cx.complete(Side::Receive, Completion { tail: SendTail::Immediate(immediate), ..completion });
        }
        if ends { Message::None } else { Message::Write { to, received: after } }
    }
}

/// The completion of a receive whose message of `len` bytes, at most 2^31, ends with `packet`.
fn arrived(receive: &RecvWr, path: &Path, packet: &Packet<'_>, len: u64, opcode: Completed) -> Completion {
    Completion {
        opcode,
        byte_len: len as u32,
        source_qp: path.dest,
        header: NetworkHeader::Unseen,
        solicited: packet.header.bth.solicited,
        ..receive.completion(Status::Success, path.qpn)
    }
}

/// Payload lengths by a packet's place in its message (IBA 1.4 §9.8.2.2): full but for the last, which is not empty
/// unless it is the only one.
fn legal_len(path: &Path, payload: &[u8], first: bool, last: bool) -> bool {
    let len = payload.len();
    match (first, last) {
        (_, false) => len == path.mtu,
        (false, true) => (1..=path.mtu).contains(&len),
        (true, true) => len <= path.mtu,
    }
}

fn remote(reth: Reth) -> Remote {
    Remote { addr: reth.addr, length: reth.length.into(), rkey: reth.rkey }
}
