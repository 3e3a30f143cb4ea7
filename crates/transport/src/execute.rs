//! Execution of inbound messages: the one place where a message that came from a peer is checked,
//! takes its receive, moves its bytes and completes.
//!
//! [`Inbound`] knows nothing of packets, sequence numbers or acknowledgements. A carrier gives it
//! the pieces of a message in their order, each once, or the whole message as one piece, and says
//! by its own means what a [`Refusal`] means to the sender:
//!
//! | refusal | RC, XRC | UC, UD, raw packets |
//! |---|---|---|
//! | `NoReceive` | RNR NAK; the same piece comes again | the message is dropped |
//! | `TooLong` | NAK, invalid request; both sides fail | the message is dropped, the receive serves the next one |
//! | `Local` | NAK, remote operational error; both sides fail | the receiver fails |
//! | `Remote` | NAK, remote access error; both sides fail | the message is dropped |
//! | `Illegal` | NAK, invalid request; both sides fail | the message is dropped |
//! | `Absent` | RNR NAK; the same piece comes again | the message is dropped |
//! | `Away` | NAK, PSN sequence error; the piece comes again, with its bytes | none is |
//!
//! After a refusal the carrier calls one of two: [`Inbound::fail`] where the queue pair goes to the
//! error state, so that the receive in use completes with the reason; [`Inbound::abandon`] where
//! only the message is lost. After `NoReceive`, `Absent` and `Away` it may
//! call neither, and give the same piece again.

mod injected;
mod placed;
mod refusal;

use std::task::Poll;

use wire::Qpn;
use wire::roce::{Header, SendTail};

pub use refusal::Refusal;
use refusal::{refusal, remote};

use crate::likely::likely;
use crate::op::{
    Access, AtomicOp, Completed, Completion, Context, Fault, Flush, LocalPath, MAX_MESSAGE, Memory,
    NetworkHeader, Payload, Place, RecvWr, Remote, Side, Status, TagInfo, Tagged, Tail, Whole, ZeroCopy,
};

/// The two queue pairs that a completion names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The one that receives.
    pub local: Qpn,
    /// The one that sent; 0 where nothing says it.
    pub peer: Qpn,
}

/// A piece of a SEND.
#[derive(Clone, Copy, Debug)]
pub struct SendPiece<'a> {
    /// The piece's bytes, which follow those of the piece before; perhaps none.
    pub bytes: Payload<'a>,
    /// Whether the piece begins the message.
    pub first: bool,
    /// What the message ends with, where the piece ends it.
    pub end: Option<SendTail>,
    /// The sender asks for a solicited event; only the last piece's counts.
    pub solicited: bool,
    /// What the completion says of the network header of its packets.
    pub header: NetworkHeader,
    /// Headers with which the sender is told where the message goes: of an exported first piece
    /// that others follow.
    pub shows: Option<Header>,
}

/// A message that is always whole: a datagram, delivered after a header of the receiver's making,
/// or an Ethernet frame.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Where in the receive the message begins.
    pub at: usize,
    /// What lies in the receive before the message, `at` bytes at most; perhaps nothing.
    pub head: &'a [u8],
    /// What the completion says of `head`.
    pub header: NetworkHeader,
    /// The message; perhaps no bytes.
    pub bytes: &'a [u8],
    /// What the message ends with.
    pub tail: SendTail,
    /// The sender asks for a solicited event.
    pub solicited: bool,
}

impl Datagram<'_> {
    /// Puts header and message where a receive says; its completion. For a queue that takes
    /// datagrams without a queue pair; others call [`Inbound::datagram`].
    ///
    /// # Errors
    ///
    /// `TooLong`, where the receive may serve the next; `Local`, where it completes with
    /// [`Status::LocalProtection`].
    pub fn deliver(&self, receive: &RecvWr, ends: Ends, memory: &impl Memory) -> Result<Completion, Refusal> {
        let len = (self.at + self.bytes.len()) as u64;
        check_fits(receive, len)?;
        scatter(receive, 0, self.head.into(), tail_of(self.bytes.is_empty()), memory)?;
        scatter(receive, self.at as u64, self.bytes.into(), Tail::End, memory)?;
        Ok(Completion {
            byte_len: len as u32,
            tail: self.tail,
            header: self.header,
            solicited: self.solicited,
            ..plain(receive, Status::Success, ends)
        })
    }
}

/// What one queue pair executes for its peer: the message that is arriving, and the receive that it
/// fills.
#[derive(Debug, Default)]
pub struct Inbound {
    pub(crate) message: Message,
    /// The receive in use, or one that an abandoned message had begun to fill: it serves the next.
    receive: Option<RecvWr>,
    /// The sender knows where that is.
    shown: bool,
}

/// The message of several pieces that is arriving.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Message {
    #[default]
    None,
    Send {
        received: u64,
        tagged: Option<Tagged>,
    },
    Write {
        to: Remote,
        received: u64,
    },
}

impl Inbound {
    /// Whether a message has begun and not ended.
    pub fn in_message(&self) -> bool {
        !matches!(self.message, Message::None)
    }
    /// Whether a receive was taken and has not completed.
    pub fn holds_receive(&self) -> bool {
        self.receive.is_some()
    }

    // ---- SEND and datagrams ----

    /// Executes a piece of a SEND; the last one completes the receive.
    ///
    /// # Errors
    ///
    /// Every [`Refusal`]; `Remote` for a key that can not be invalidated.
    pub fn send(&mut self, ends: Ends, piece: SendPiece<'_>, cx: &mut impl Context) -> Result<(), Refusal> {
        let mut bytes = piece.bytes;
        match bytes {
            // Only the receiver knows where a SEND goes, until it tells.
            Payload::ZeroCopy(ZeroCopy::Placed(_)) if !self.shown => return Err(Refusal::Illegal),
            Payload::ZeroCopy(_) if !cx.local().reaches() => return Err(Refusal::Away),
            _ => {}
        }
        let before_it = self.message;
        let (before, tagged) = match (&self.message, piece.first) {
            (Message::None, true) => (0, self.begin_send(&mut bytes, piece.end.is_some(), ends, cx)?),
            (&Message::Send { received, tagged }, false) => (received, tagged),
            _ => return Err(Refusal::Illegal),
        };
        let Some(receive) = &self.receive else { return Err(Refusal::Illegal) };
        let received = before + bytes.len() as u64;
        self.shown |= piece.shows.is_some_and(|header| cx.local().advertise(&header, receive));
        self.message = Message::Send { received, tagged };
        check_fits(receive, received)?;
        scatter(receive, before, bytes, tail_of(piece.end.is_some()), &cx.receive_memory())
            .inspect_err(|refusal| self.has_not_come(before_it, *refusal))?;
        let Some(tail) = piece.end else { return Ok(()) };
        if let SendTail::Invalidate(key) = tail {
            // Before the completion that tells of it (IBA 1.4 §9.4.1.1.3).
            cx.memory().invalidate(key).map_err(Refusal::Remote)?;
        }
        self.message = Message::None;
        self.complete(Status::Success, ends, cx, |plain| {
            let whole = Completion { byte_len: received as u32, tail, solicited: piece.solicited, ..plain };
            match tagged {
                Some(t) => Completion { opcode: t.opcode, status: t.status, tm: t.info, ..whole },
                None => Completion { header: piece.header, ..whole },
            }
        });
        Ok(())
    }

    /// Like [`Inbound::send`], for a whole SEND without a key. False where anything is unusual, and
    /// then [`Inbound::send`] says how.
    #[inline]
    pub fn send_whole(&mut self, message: &Whole<'_>, cx: &mut impl Context) -> bool {
        let takes_whole = !self.in_message() && self.receive.is_none();
        likely(takes_whole) && cx.deliver(message)
    }

    /// Takes the receive for a SEND that begins with `bytes`, of which those stay that are to be
    /// delivered. How it completes, where a tag-matching queue placed it.
    fn begin_send(
        &mut self,
        bytes: &mut Payload<'_>,
        whole: bool,
        ends: Ends,
        cx: &mut impl Context,
    ) -> Result<Option<Tagged>, Refusal> {
        if self.receive.is_some() {
            return Ok(None);
        }
        // Taken apart where it is: each further step would copy it.
        let Some(Place { receive, part, tagged }) = cx.place(bytes.own(), whole) else {
            return Err(Refusal::NoReceive);
        };
        *bytes = bytes.part(part);
        let receive = self.receive.insert(receive);
        Ok(match tagged {
            Some(tagged) if !whole => Some(tell_match(tagged, receive, ends, cx)),
            other => other,
        })
    }

    /// Executes a datagram: the receive completes, or is kept where it is too short.
    ///
    /// # Errors
    ///
    /// `NoReceive`, `TooLong`, `Local`; `Illegal` in the middle of a message.
    pub fn datagram(
        &mut self,
        ends: Ends,
        datagram: Datagram<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        if self.in_message() {
            return Err(Refusal::Illegal);
        }
        let receive = self.take_receive(cx)?;
        let completion = datagram.deliver(receive, ends, &cx.receive_memory())?;
        self.receive = None;
        cx.complete(Side::Receive, completion);
        Ok(())
    }

    // ---- RDMA WRITE ----

    /// Executes a piece of an RDMA WRITE; `to` is the range that the message's first piece names,
    /// `None` of later ones.
    ///
    /// # Errors
    ///
    /// `Remote` where the peer may not write there, `Illegal` where the piece is out of place or
    /// the lengths do not add up to that of the range.
    pub fn write(
        &mut self,
        to: Option<Remote>,
        bytes: Payload<'_>,
        last: bool,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let at = self.check_write(to, bytes, last, cx)?;
        self.copy_write(at, bytes, last, cx)
    }

    /// Executes the last piece of an RDMA WRITE with immediate data: takes a receive, and completes
    /// it.
    ///
    /// # Errors
    ///
    /// As [`Inbound::write`], and `NoReceive`, before a byte has moved.
    pub fn write_with_imm(
        &mut self,
        ends: Ends,
        to: Option<Remote>,
        bytes: Payload<'_>,
        immediate: [u8; 4],
        solicited: bool,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let at @ (range, _) = self.check_write(to, bytes, true, cx)?;
        self.take_receive(cx)?;
        self.copy_write(at, bytes, true, cx)?;
        self.complete(Status::Success, ends, cx, |plain| Completion {
            opcode: Completed::ReceiveWriteImmediate,
            byte_len: range.length as u32,
            tail: SendTail::Immediate(immediate),
            header: NetworkHeader::Unseen,
            solicited,
            ..plain
        });
        Ok(())
    }

    /// The range that the message is for and how much of it came before this piece, which may come
    /// now.
    fn check_write(
        &self,
        to: Option<Remote>,
        bytes: Payload<'_>,
        last: bool,
        cx: &impl Context,
    ) -> Result<(Remote, u64), Refusal> {
        let (range, before) = match (&self.message, to) {
            (Message::None, Some(to)) => (to, 0),
            (&Message::Write { to, received }, None) => (to, received),
            _ => return Err(Refusal::Illegal),
        };
        let after = before + bytes.len() as u64;
        // The last piece ends the length announced; any other leaves some for it.
        let adds_up = if last { after == range.length } else { after < range.length };
        if !adds_up || range.length > MAX_MESSAGE {
            return Err(Refusal::Illegal);
        }
        if to.is_some() && range.length > 0 {
            cx.memory().check(range, Access::Write).map_err(remote)?;
        }
        Ok((range, before))
    }

    fn copy_write(
        &mut self,
        (to, before): (Remote, u64),
        bytes: Payload<'_>,
        last: bool,
        cx: &impl Context,
    ) -> Result<(), Refusal> {
        let before_it = std::mem::replace(
            &mut self.message,
            Message::Write { to, received: before + bytes.len() as u64 },
        );
        if !bytes.is_empty() {
            cx.memory()
                .write_payload(to, before, bytes, tail_of(last))
                .map_err(remote)
                .inspect_err(|refusal| self.has_not_come(before_it, *refusal))?;
        }
        if last {
            self.message = Message::None;
        }
        Ok(())
    }

    /// After `Away` and `Absent` all is as before the piece, but that a receive may have been taken
    /// for it.
    fn has_not_come(&mut self, before_it: Message, refusal: Refusal) {
        if matches!(refusal, Refusal::Away | Refusal::Absent) {
            self.message = before_it;
        }
    }

    // ---- RDMA READ, atomics, FLUSH ----

    /// Whether the peer may read this range now; the carrier then reads it through [`Memory::read`]
    /// as it answers.
    ///
    /// # Errors
    ///
    /// `Remote`; `Illegal` in the middle of a message, or for more than 2^31 bytes.
    pub fn check_read(&self, from: Remote, cx: &impl Context) -> Result<(), Refusal> {
        if self.in_message() || from.length > MAX_MESSAGE {
            return Err(Refusal::Illegal);
        }
        if from.length == 0 {
            return Ok(());
        }
        cx.memory().check(from, Access::Read).map_err(remote)
    }

    /// Executes an atomic, ATOMIC WRITE included; what was there before.
    ///
    /// # Errors
    ///
    /// `Remote`; `Illegal` in the middle of a message, or for a range that is not eight aligned
    /// bytes.
    pub fn atomic(&self, at: Remote, op: AtomicOp, cx: &impl Context) -> Result<u64, Refusal> {
        if self.in_message() || at.length != 8 || !at.addr.is_multiple_of(8) {
            return Err(Refusal::Illegal);
        }
        cx.memory().atomic(at, op).map_err(remote)
    }

    /// Executes a FLUSH; `Pending` where it takes long and is done by the owner of the memory
    /// ([`Memory::flush`]).
    ///
    /// # Errors
    ///
    /// `Remote`; `Local` where the storage has failed; `Illegal` in the middle of a message, or for
    /// neither visibility nor persistence.
    pub fn flush(&self, range: Remote, how: Flush, cx: &impl Context) -> Result<Poll<()>, Refusal> {
        if self.in_message() || !(how.global || how.persistent) {
            return Err(Refusal::Illegal);
        }
        match cx.memory().flush(range, how) {
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(fault @ Fault::Storage)) => Err(Refusal::Local(fault)),
            Poll::Ready(Err(fault)) => Err(Refusal::Remote(fault)),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    // ---- the end of a message, or of the queue pair ----

    /// Drops the message that is arriving. A receive that it had begun to fill serves the next
    /// message.
    pub fn abandon(&mut self) {
        self.message = Message::None;
    }

    /// The queue pair goes to the error state because of a refusal: the receive of the message
    /// refused, where it has one, completes with the reason. One in use by a message that an
    /// illegal piece interrupts waits for [`Inbound::flush_receive`].
    pub fn fail(&mut self, refusal: Refusal, ends: Ends, cx: &mut impl Context) {
        let of_write = matches!(self.message, Message::Write { .. });
        let (status, opcode) = match refusal {
            Refusal::NoReceive | Refusal::Illegal | Refusal::Away | Refusal::Absent => return,
            Refusal::TooLong => (Status::LocalLength, Completed::Receive),
            Refusal::Local(_) => (Status::LocalProtection, Completed::Receive),
            // Nothing is wrong with the receive of a WRITE: the bytes lie elsewhere.
            Refusal::Remote(_) if of_write => (Status::WrFlush, Completed::ReceiveWriteImmediate),
            Refusal::Remote(_) => (Status::RemoteInvalidRequest, Completed::Receive),
        };
        self.end_receive(status, opcode, ends, cx);
    }

    /// The queue pair goes to the error state: a receive in use completes as flushed.
    pub fn flush_receive(&mut self, ends: Ends, cx: &mut impl Context) {
        self.end_receive(Status::WrFlush, Completed::Receive, ends, cx);
    }

    /// Completes the receive in use with an error; a tag-matching queue has chosen the opcode of
    /// its own.
    fn end_receive(&mut self, status: Status, opcode: Completed, ends: Ends, cx: &mut impl Context) {
        let opcode = match std::mem::take(&mut self.message) {
            Message::Send { tagged: Some(tagged), .. } => tagged.opcode,
            _ => opcode,
        };
        self.complete(status, ends, cx, |plain| Completion { opcode, ..plain });
    }

    // ---- receives ----

    /// The receive in use, or the next one posted.
    fn take_receive(&mut self, cx: &mut impl Context) -> Result<&RecvWr, Refusal> {
        match &mut self.receive {
            Some(receive) => Ok(receive),
            none => Ok(none.insert(cx.take_receive().ok_or(Refusal::NoReceive)?)),
        }
    }

    /// Completes the receive in use, where there is one, with what `tell` adds to status and queue
    /// pairs.
    fn complete(
        &mut self,
        status: Status,
        ends: Ends,
        cx: &mut impl Context,
        tell: impl FnOnce(Completion) -> Completion,
    ) {
        if let Some(receive) = &self.receive {
            cx.complete(Side::Receive, tell(plain(receive, status, ends)));
            (self.receive, self.shown) = (None, false);
        }
    }
}

fn check_fits(receive: &RecvWr, len: u64) -> Result<(), Refusal> {
    if len > receive.sges.len_bytes().min(MAX_MESSAGE) { Err(Refusal::TooLong) } else { Ok(()) }
}

fn scatter(
    receive: &RecvWr,
    at: u64,
    bytes: Payload<'_>,
    tail: Tail,
    memory: &impl Memory,
) -> Result<(), Refusal> {
    if bytes.is_empty() {
        return Ok(());
    }
    let copied = memory.scatter_payload(receive.sges.as_slice(), at, bytes, tail);
    copied.map_err(|fault| refusal(fault, Refusal::Local))
}

fn tail_of(last: bool) -> Tail {
    if last { Tail::End } else { Tail::More }
}

/// The first piece of several to a tag-matching queue: a match is told of now, the arrival of the
/// data later.
fn tell_match(tagged: Tagged, receive: &RecvWr, ends: Ends, cx: &mut impl Context) -> Tagged {
    if !tagged.info.matched {
        return tagged;
    }
    let tm = TagInfo { data_valid: false, ..tagged.info };
    let told = plain(receive, Status::Success, ends);
    cx.complete(Side::Receive, Completion { opcode: tagged.opcode, tm, ..told });
    Tagged { info: TagInfo { data_valid: true, ..TagInfo::default() }, ..tagged }
}

/// The completion of a receive, as far as status and queue pairs say it.
fn plain(receive: &RecvWr, status: Status, ends: Ends) -> Completion {
    Completion { source_qp: ends.peer, ..receive.completion(status, ends.local) }
}
