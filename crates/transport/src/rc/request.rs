//! A send work request on its way: how many packets it takes, what each of them says, how much is
//! done.

use wire::Psn;
use wire::bth::{AtomicEth, Feth, Reth};
use wire::icrc::Remainder;
use wire::roce::{Header, Op, SendTail};

use super::Connection;
use super::local::{Arrival, CopyPath};
use crate::op::{
    AtomicOp, Completed, Completion, Data, Fault, Flush, LocalOp, MAX_MESSAGE, Memory, NetworkHeader,
    Payload, SendOp, SendWr, Sge, Status, TagInfo, Tail,
};
use crate::segmentation::{send_at, write_at};

/// Fewest response packets that a READ is split into parts of.
const MIN_PART: u32 = 16;

/// Bytes an atomic returns.
const ATOMIC_LEN: u64 = 8;

/// An entry of the send queue.
#[derive(Debug)]
pub(super) struct Request {
    pub wr: SendWr,
    /// The shared receive queue it is for, of an XRC initiator.
    srq: u32,
    /// Whether its first packet has been sent, or would have been but for `fault`.
    pub begun: bool,
    /// Bytes of the message; known from the beginning on.
    pub len: u32,
    /// PSNs it takes; known from the beginning on.
    pub packets: u32,
    /// Packets acknowledged, or answers received.
    pub done: u32,
    /// The request needed no packet and is done; it completes once all before it are complete.
    pub executed: bool,
    /// Why it can not be sent: it fails once all before it are complete.
    pub fault: Option<Status>,
    /// A READ is asked for in parts of so many response packets, a power of two: responses are not
    /// acknowledged, so the requester paces them.
    part: u32,
    /// Some part was asked for again, so that responses to the old request and to the new may
    /// differ in their opcodes.
    resumed: bool,
    /// How the request goes to a process of the same host.
    pub way: CopyPath,
}

impl Request {
    #[inline]
    pub(super) fn new(wr: SendWr, srq: u32) -> Self {
        Self {
            wr,
            srq,
            begun: false,
            len: 0,
            packets: 1,
            done: 0,
            executed: false,
            fault: None,
            part: 1,
            resumed: false,
            way: CopyPath::Fragments,
        }
    }

    /// A SEND of one packet that has left.
    #[inline]
    pub(super) fn begun_fast(wr: SendWr, len: u32) -> Self {
        Self { begun: true, len, ..Self::new(wr, 0) }
    }

    /// What is to be known before the first packet.
    pub(super) fn begin(&mut self, conn: &Connection, share: u32, max_rd_atomic: u8) {
        self.begun = true;
        let len = self.wr.data.len_bytes();
        self.fault = self.illegal(len, max_rd_atomic);
        if self.fault.is_some() {
            return;
        }
        match self.wr.op {
            SendOp::Atomic { .. } => self.len = ATOMIC_LEN as u32,
            SendOp::Local(_) => self.packets = 0,
            // It bears no data, whatever it was given.
            SendOp::Flush { .. } => {}
            SendOp::Send(_) | SendOp::Write { .. } | SendOp::Read { .. } => {
                // At most 2^31, as `illegal` has seen.
                self.len = len as u32;
                self.packets = conn.packets(self.len);
            }
        }
        // So that the next part is asked for while this one comes, where that is allowed.
        self.part = part_for(if max_rd_atomic > 1 { share / 2 } else { share });
    }

    /// This READ is requested in parts of so many response packets, a power of two.
    pub(super) fn set_part(&mut self, packets: u32) {
        self.part = packets;
    }

    /// Whether no part of it was requested again.
    pub(super) fn is_first_try(&self) -> bool {
        !self.resumed
    }

    /// Where a READ of one element goes.
    pub(super) fn place(&self) -> Option<&Sge> {
        let (SendOp::Read { .. }, Data::Sges(list)) = (&self.wr.op, &self.wr.data) else { return None };
        if let [sge] = list.as_slice() { Some(sge) } else { None }
    }

    /// Whether another end may copy what this READ brings, though one that was asked for before has
    /// not all come: the two go to different bytes, or to the same ones, and then each end
    /// copies the same ones of both.
    pub(super) fn keeps_apart_from(&self, before: &Self) -> bool {
        let (Some(ours), Some(other)) = (self.place(), before.place()) else { return false };
        let end = |sge: &Sge| sge.addr.saturating_add(sge.length.into());
        let is_alike = before.way == CopyPath::ZeroCopy && !before.resumed && before.part == self.part;
        ours.lkey == other.lkey
            && (ours.addr >= end(other) || end(ours) <= other.addr || (is_alike && ours == other))
    }

    fn illegal(&self, len: u64, max_rd_atomic: u8) -> Option<Status> {
        let answer_place = matches!(self.wr.data, Data::Sges(_));
        match self.wr.op {
            _ if len > MAX_MESSAGE => Some(Status::LocalLength),
            // IBA annex A19: its eight bytes go, nothing comes back; it counts as an atomic.
            SendOp::Atomic { op: AtomicOp::Write(_), .. } if max_rd_atomic > 0 => {
                (len != ATOMIC_LEN).then_some(Status::LocalLength)
            }
            // IBA annex A19: it takes a place among the READs.
            SendOp::Flush { .. } => (max_rd_atomic == 0).then_some(Status::LocalQpOperation),
            SendOp::Read { .. } | SendOp::Atomic { .. } if !answer_place || max_rd_atomic == 0 => {
                Some(Status::LocalQpOperation)
            }
            SendOp::Atomic { .. } if len < ATOMIC_LEN => Some(Status::LocalLength),
            _ => None,
        }
    }

    /// Whether it only moves bytes to or from the peer's memory.
    pub(super) fn moves_bytes(&self) -> bool {
        moves_bytes(&self.wr)
    }
    /// Whether it concerns nothing but the peer's memory, so that it might need no packet.
    pub(super) fn is_one_sided(&self) -> bool {
        self.moves_bytes() || matches!(self.wr.op, SendOp::Flush { .. })
    }
    /// Whether it is complete only with an answer of its own: READ, atomic or FLUSH.
    pub(super) fn awaits_answer(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::Atomic { .. } | SendOp::Flush { .. })
    }
    /// What the request does without a packet.
    pub(super) fn local(&self) -> Option<LocalOp> {
        if let SendOp::Local(op) = self.wr.op { Some(op) } else { None }
    }
    /// Whether it is an ATOMIC WRITE or a FLUSH, whose answer is a READ response without a byte.
    pub(super) fn awaits_nothing_but_word(&self) -> bool {
        matches!(self.wr.op, SendOp::Atomic { op: AtomicOp::Write(_), .. } | SendOp::Flush { .. })
    }
    /// PSNs not yet acknowledged or answered.
    pub(super) fn left(&self) -> u32 {
        self.packets - self.done
    }
    /// PSNs that the request packet at `at` takes: a READ takes one for each response.
    pub(super) fn psns(&self, at: u32) -> u32 {
        match self.wr.op {
            SendOp::Read { .. } => (self.part - at % self.part).min(self.packets - at),
            _ => 1,
        }
    }
    /// Whether the answer before `at` ends what one request packet asked for.
    pub(super) fn ends_part(&self, at: u32) -> bool {
        at == self.packets || at.is_multiple_of(self.part)
    }
    /// The request will be sent again from `done` on, at a share of the window of `share`.
    pub(super) fn go_back(&mut self, share: u32) {
        self.resumed = true;
        // Both are powers of two, so that what ended a part before still does.
        self.part = self.part.min(part_for(share));
    }

    /// Whether it has been sent again, from somewhere on.
    pub(super) fn has_resumed(&self) -> bool {
        self.resumed
    }

    /// Headers of the request packet at `at`, and its payload's length; none where it takes no
    /// packet. The ACK request is the caller's to add.
    pub(super) fn header(&self, conn: &Connection, psn: Psn, at: u32) -> Option<(Header, usize)> {
        let offset = u64::from(at) * conn.mtu as u64;
        let mut payload_len = conn.payload_len(self.len, at);
        let op = match self.wr.op {
            SendOp::Send(_) | SendOp::Write { .. } => {
                return Some((self.header_of(conn, psn, at, 1)?, payload_len));
            }
            SendOp::Read { addr, rkey } => {
                payload_len = 0;
                let until = u64::from(at + self.psns(at)) * conn.mtu as u64;
                let length = u64::from(self.len).min(until).saturating_sub(offset) as u32;
                Op::ReadRequest(Reth { addr: addr.wrapping_add(offset), rkey, length })
            }
            SendOp::Atomic { addr, rkey, op: AtomicOp::Write(_) } => {
                Op::AtomicWrite(Reth { addr, rkey, length: self.len })
            }
            SendOp::Atomic { addr, rkey, op } => {
                payload_len = 0;
                match op {
                    AtomicOp::CompareSwap { compare, swap } => {
                        Op::CompareSwap(AtomicEth { addr, rkey, swap_or_add: swap, compare })
                    }
                    AtomicOp::FetchAdd(add) | AtomicOp::Write(add) => {
                        Op::FetchAdd(AtomicEth { addr, rkey, swap_or_add: add, compare: 0 })
                    }
                }
            }
            SendOp::Flush { addr, rkey, length, how } => {
                payload_len = 0;
                Op::Flush(feth(how), Reth { addr, rkey, length })
            }
            SendOp::Local(_) => return None,
        };
        Some((conn.request_header(psn, op, self.srq), payload_len))
    }

    /// Headers of one packet that stands for `count` of a SEND or a WRITE, from `at` on; none of
    /// anything else. The ACK request is the caller's to add.
    pub(super) fn header_of(&self, conn: &Connection, psn: Psn, at: u32, count: u32) -> Option<Header> {
        let (first, last) = (at == 0, at + count == self.packets);
        let (op, asks_event) = match self.wr.op {
            SendOp::Send(tail) => (Op::Send(send_at(first, last, tail)), last),
            SendOp::Write { addr, rkey, immediate } => {
                let reth = Reth { addr, rkey, length: self.len };
                (Op::Write(write_at(first, last, reth, immediate)), last && immediate.is_some())
            }
            _ => return None,
        };
        let mut header = conn.request_header(psn, op, self.srq);
        header.bth.solicited = asks_event && self.wr.solicited;
        Some(header)
    }

    /// Copies the payload of packet `at` out; what it adds to the ICRC, where that is known.
    pub(super) fn copy_out(
        &self,
        conn: &Connection,
        at: u32,
        dst: &mut [u8],
        memory: &impl Memory,
    ) -> Result<Option<Remainder>, Fault> {
        self.wr.data.copy_out(u64::from(at) * conn.mtu as u64, dst, memory)
    }

    /// Copies the bytes of the next answers, so many, to where the application wants them.
    pub(super) fn copy_in(
        &self,
        conn: &Connection,
        src: Payload<'_>,
        answers: u32,
        memory: &impl Memory,
    ) -> Result<(), Fault> {
        match &self.wr.data {
            Data::Sges(_) if src.is_empty() => Ok(()),
            Data::Sges(list) => {
                let offset = u64::from(self.done) * conn.mtu as u64;
                let tail = if self.left() == answers { Tail::End } else { Tail::More };
                memory.scatter_payload(list.as_slice(), offset, src, tail)
            }
            Data::Inline(_) | Data::InlineLong(_) => Err(Fault::Rights),
        }
    }

    /// Whether a READ response of this opcode and length is one that the next packet of this READ
    /// may be, or the next ones.
    pub(super) fn expects(&self, conn: &Connection, at: wire::roce::ReadAt, packet: &Arrival<'_>) -> bool {
        use wire::roce::ReadAt;
        let (from, count) = (self.done, packet.packets);
        if count > self.left() {
            return false;
        }
        let begins = from == 0 || from.is_multiple_of(self.part);
        let ends = self.ends_part(from + count);
        let position = match at {
            ReadAt::First(_) => begins && !ends,
            ReadAt::Middle => !begins && !ends,
            ReadAt::Last(_) => !begins && ends,
            ReadAt::Only(_) => begins && ends,
        };
        // An old request may have asked for more at once, a new one may have begun anywhere.
        let end_of_part = matches!(at, ReadAt::Last(_) | ReadAt::Only(_));
        let resumed = self.resumed && if self.left() == count { end_of_part } else { ends || !end_of_part };
        let before_last = (count - 1) as usize * conn.mtu;
        let len = before_last + conn.payload_len(self.len, from + count - 1);
        let of_one_part = self.resumed || from % self.part + count <= self.part;
        (position || resumed) && of_one_part && packet.payload.len() == len
    }

    /// The request's completion.
    #[inline]
    pub(super) fn completion(&self, status: Status, conn: &Connection) -> Completion {
        completion(&self.wr, self.len, status, conn)
    }
}

/// Whether a request only moves bytes to or from the peer's memory.
pub(super) fn moves_bytes(wr: &SendWr) -> bool {
    matches!(wr.op, SendOp::Write { immediate: None, .. } | SendOp::Read { .. })
}

/// How a request of so many bytes has ended.
#[inline(always)]
pub(super) fn completion(wr: &SendWr, len: u32, status: Status, conn: &Connection) -> Completion {
    let (opcode, answer_len) = match wr.op {
        SendOp::Send(_) => (Completed::Send, 0),
        SendOp::Write { .. } => (Completed::Write, 0),
        SendOp::Read { .. } => (Completed::Read, len),
        SendOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => (Completed::CompareSwap, len),
        SendOp::Atomic { op: AtomicOp::FetchAdd(_), .. } => (Completed::FetchAdd, len),
        SendOp::Atomic { op: AtomicOp::Write(_), .. } => (Completed::AtomicWrite, 0),
        SendOp::Flush { .. } => (Completed::Flush, 0),
        SendOp::Local(LocalOp::Bind(_)) => (Completed::BindMw, 0),
        SendOp::Local(LocalOp::Invalidate(_)) => (Completed::LocalInvalidate, 0),
    };
    let done = good(conn, wr.wr_id, opcode, answer_len);
    if status == Status::Success { done } else { Completion { status, byte_len: 0, solicited: true, ..done } }
}

/// How one has ended that has done what it should.
#[inline]
pub(super) fn good(conn: &Connection, wr_id: u64, opcode: Completed, byte_len: u32) -> Completion {
    Completion {
        wr_id,
        status: Status::Success,
        opcode,
        byte_len,
        tail: SendTail::None,
        qpn: conn.qpn,
        source_qp: conn.dest,
        header: NetworkHeader::None,
        solicited: false,
        tm: TagInfo::default(),
    }
}

fn feth(how: Flush) -> Feth {
    let placement = u8::from(how.global) | u8::from(how.persistent) << 1;
    Feth { placement, selectivity: u8::from(how.whole) }
}

/// The part of a READ for so many packets: the greatest power of two in them.
fn part_for(share: u32) -> u32 {
    1 << share.max(MIN_PART).ilog2()
}
