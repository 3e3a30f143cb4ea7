//! Zero copy: long SENDs and WRITEs between processes of one host that both ends copy, from memory
//! to memory, each byte once. The sender exports one fragment, and the receiver copies its bytes.
//! The next fragment the sender copies to its place, where it knows that, and says so. Meanwhile
//! both processes are at work.
//!
//! The receiver advertises the buffer of a SEND as soon as it has the first fragment, which is
//! exported, before it copies that. The sender waits for this with the second fragment. Of a READ
//! the receiver is the requester, and advertises with the request ([`super::reads`]).
//!
//! A fragment has the PSNs of its packets, and arrives in their order. The bytes of a placed
//! fragment are there earlier, though. So the sender places nothing while something is outstanding
//! that has to come before it at the same place. The last fragment of a message is always
//! exported, so that its last word becomes visible last.

use std::time::Instant;

use arrayvec::ArrayVec;
use wire::Psn;

use super::CopyPath;
use super::backoff::Backoff;
use super::choice::min_zero_copy;
use super::fragments::Left;
use super::receive::{MAX_ZERO_COPY, fragment, is_the_senders, zero_copy_len};
use crate::batch::TxBatch;
use crate::op::{Context, Data, FragmentBytes, FragmentOutcome, LocalPath, Part, Remote, SendOp, Source};
use crate::rc::Connection;
use crate::rc::requester::Requester;

/// Bytes of fragments that may be outstanding, at least.
const WINDOW: u32 = 2 * MAX_ZERO_COPY;
/// Fragments that are exported at a time, at most: what a window holds.
const MAX_EXPORTED: usize = 16;

/// The requester's state of messages that both ends copy.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy {
    /// Messages whose exported memory the peer did not reach.
    refused: Backoff,
    /// Fragments that are exported and not acknowledged yet, the oldest first.
    exported: ArrayVec<Exported, MAX_EXPORTED>,
    /// The first PSN of the last SEND, where its first fragment was exported: the receiver is to
    /// advertise its buffer.
    asked: Option<Psn>,
    /// The buffer of the message of `asked`, as the receiver has advertised it.
    place: Option<Remote>,
    /// Ordinal number of the last READ that both ends copy.
    last_read: Option<u64>,
}

/// A fragment that is exported.
#[derive(Clone, Copy, Debug)]
struct Exported {
    /// The fragment's first PSN, and the one after the last.
    psns: (Psn, Psn),
    /// Where the fragment goes in the peer's memory, of a WRITE.
    to: Option<Remote>,
}

impl ZeroCopy {
    /// Whether request `number` may go this way.
    pub(super) fn allows(&self, number: u64) -> bool {
        self.refused.allows(number)
    }

    /// READ `number` begins, which both ends copy.
    pub(super) fn begin_read(&mut self, number: u64) {
        self.last_read = Some(number);
    }

    /// Whether READs that both ends copy are outstanding; `retired` is the number of the oldest
    /// request.
    #[inline]
    pub(super) fn has_reads(&self, retired: u64) -> bool {
        self.last_read.is_some_and(|last| last >= retired)
    }

    /// All before `una` is acknowledged.
    pub(super) fn progress(&mut self, una: Psn) {
        self.exported.retain(|exported| una.before(exported.psns.1));
    }

    /// Whether no exported fragment goes to these bytes of the peer's.
    fn is_apart(&self, to: Remote) -> bool {
        let end = |range: Remote| range.addr.saturating_add(range.length);
        let is_apart =
            |other: Remote| other.rkey == to.rkey && (end(other) <= to.addr || end(to) <= other.addr);
        self.exported.iter().all(|exported| exported.to.is_some_and(is_apart))
    }

    /// The buffer of a SEND, if the receiver has advertised it.
    fn place_of(&self, begins: Psn) -> Option<Remote> {
        self.place.filter(|_| self.asked == Some(begins))
    }

    /// Whether the receiver has not advertised the buffer of a SEND yet whose first fragment was
    /// exported, and still may.
    fn is_asked(&self, begins: Psn, una: Psn) -> bool {
        self.asked == Some(begins) && !begins.before(una) && self.place_of(begins).is_none()
    }
}

/// The next fragment of a message.
struct Next {
    /// The PSN of the message's first packet.
    message: Psn,
    /// Where the fragment begins, in bytes.
    begin: u64,
    packets: u32,
    /// Bytes.
    len: u32,
    /// Whether the fragment ends the message.
    ends: bool,
    /// Whether the fragment is the sender's to copy, where that is possible.
    ours: bool,
    is_send: bool,
    /// Where it goes in the peer's memory, as far as that is known.
    to: Option<Remote>,
}

impl Next {
    /// Where a fragment of a WRITE goes.
    fn written(&self) -> Option<Remote> {
        self.to.filter(|_| !self.is_send)
    }
}

impl Requester {
    /// Sends the packets at the cursor as a fragment that one of both ends copies, if they go out
    /// for the first time; `None` where they are to go otherwise.
    pub(super) fn send_zero_copy(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &TxBatch,
        cx: &mut impl Context,
    ) -> Option<Left> {
        if let SendOp::Read { .. } = self.queue.get(self.cursor.request)?.wr.op {
            return self.request_part(now, conn, share, batch, cx);
        }
        // Such fragments take no room on the way, and none is lost.
        let share = share.max(WINDOW / conn.mtu as u32);
        let next = self.next_zero_copy(conn, share, cx)?;
        // What is in the batch leaves first.
        if !batch.is_empty() {
            return Some(Left::Later);
        }
        let under_way = self.under_way();
        // Where an ACK is to come it makes room.
        let later = (under_way > self.unasked).then_some(Left::Later);
        let is_too_much = next.packets > share.saturating_sub(under_way);
        let zero_copy = self.local.zero_copy.as_mut()?;
        if is_too_much || zero_copy.exported.is_full() {
            self.held_back |= is_too_much;
            return later;
        }
        if next.ours && next.is_send && zero_copy.is_asked(next.message, self.una) {
            return Some(Left::Later);
        }
        let request = self.queue.get(self.cursor.request)?;
        let Data::Sges(list) = &request.wr.data else { return None };
        let mut header = request.header_of(conn, self.next, self.cursor.packet, next.packets)?;
        let part = Part { from: Source::List(list.as_slice()), at: next.begin, len: next.len as usize };
        // A sender that knows where a SEND goes knows that all before it has come. A WRITE is
        // placed before the peer has seen any of it.
        let is_due = self.local.proven && !self.una.before(self.local.other_until);
        let comes_in_time = next.is_send || next.written().is_some_and(|to| is_due && zero_copy.is_apart(to));
        let mut outcome = FragmentOutcome::Unavailable;
        if let (true, true, Some(to)) = (next.ours, comes_in_time, next.to) {
            header.bth.ack_request = next.ends || self.unasked + next.packets >= share / 2;
            outcome = cx
                .local()
                .send_fragment(&header, part, FragmentBytes::Placed(to))
                .unwrap_or(FragmentOutcome::Unavailable);
        }
        let is_placed = outcome == FragmentOutcome::Sent;
        if outcome == FragmentOutcome::Unavailable {
            header.bth.ack_request = true;
            outcome = cx
                .local()
                .send_fragment(&header, part, FragmentBytes::Exported)
                .unwrap_or(FragmentOutcome::Unavailable);
        }
        match outcome {
            FragmentOutcome::Sent => {}
            FragmentOutcome::Full => return Some(later.unwrap_or(Left::No)),
            FragmentOutcome::Unavailable => return None,
        }
        if !is_placed {
            let psns = (self.next, self.next.add(next.packets));
            zero_copy.exported.push(Exported { psns, to: next.written() });
        }
        if next.is_send && next.begin == 0 {
            zero_copy.asked = Some(next.message);
        }
        self.unasked = if header.bth.ack_request { 0 } else { self.unasked + next.packets };
        // This one is none of the others.
        let other_until = self.local.other_until;
        self.pass(next.packets, next.ends);
        self.sent(|| now, next.packets);
        self.local.other_until = other_until;
        Some(Left::Yes)
    }

    /// The fragment at the cursor, if its packets go out for the first time.
    fn next_zero_copy(&mut self, conn: &Connection, share: u32, cx: &mut impl Context) -> Option<Next> {
        let at = self.cursor.packet;
        let request = self.queue.get(self.cursor.request)?;
        let local = cx.local();
        if self.next != self.high || !local.reaches() {
            return None;
        }
        let zero_copy = self.local.zero_copy.as_mut()?;
        let message = self.next.sub(at);
        let (whole, is_send) = match request.wr.op {
            SendOp::Send(_) => {
                // PSNs come round: what was advertised for another message must not be taken for
                // this one's.
                if at == 0 {
                    (zero_copy.asked, zero_copy.place) = (None, None);
                }
                (zero_copy.place_of(message), true)
            }
            SendOp::Write { addr, rkey, .. } => {
                (Some(Remote { addr, length: request.len.into(), rkey }), false)
            }
            _ => return None,
        };
        let mtu = conn.mtu as u32;
        let (begin, left) = (u64::from(at) * u64::from(mtu), request.packets - at);
        let rest = u64::from(request.len) - begin;
        let most = zero_copy_len(mtu, request.len, min_zero_copy(&local));
        // Half a window, so that what comes is acknowledged while more is on its way.
        let (packets, len) = fragment(mtu, left, rest, most as usize, share / 2)?;
        // Of a SEND every other fragment, from the second one on; of a WRITE from the last but one
        // back.
        let ours = match is_send {
            true => begin / u64::from(most) % 2 == 1,
            false => is_the_senders(rest - u64::from(len), most),
        };
        let to = whole.filter(|whole| begin + u64::from(len) <= whole.length).map(|whole| Remote {
            addr: whole.addr.wrapping_add(begin),
            length: len.into(),
            ..whole
        });
        Some(Next { message, begin, packets, len, ends: packets == left, ours, is_send, to })
    }

    /// The peer advertises the buffer of the SEND that begins with this PSN.
    pub(crate) fn is_shown(&mut self, begins: Psn, place: Remote) {
        let zero_copy = self.local.zero_copy.as_mut();
        if let Some(zero_copy) = zero_copy.filter(|zero_copy| zero_copy.asked == Some(begins)) {
            zero_copy.place = Some(place);
        }
    }

    /// The peer asks for the packet at `una` again. Whether that was exported, and the peer did not
    /// reach it: then all that has begun goes through the ring.
    pub(in crate::rc) fn refused_exported(&mut self) -> bool {
        let una = self.una;
        let is_exported = |one: &Exported| !una.before(one.psns.0) && una.before(one.psns.1);
        let Some(zero_copy) = &self.local.zero_copy else { return false };
        let refused = zero_copy.exported.iter().any(is_exported);
        if refused {
            self.refuse_zero_copy();
        }
        refused
    }

    /// One end did not reach the memory of the other one: what has begun goes through the ring, and
    /// so do the next requests.
    pub(super) fn refuse_zero_copy(&mut self) {
        let mut has_any = false;
        for request in &mut self.queue {
            has_any |= std::mem::take(&mut request.way) == CopyPath::ZeroCopy;
        }
        // A refusal that is told of twice counts once.
        if let Some(zero_copy) = self.local.zero_copy.as_mut().filter(|_| has_any) {
            zero_copy.refused.refuse(self.retired + self.queue.len() as u64);
        }
    }
}
