//! SENDs that leave in a few steps: as soon as one is posted, where nothing waits before it and
//! nothing is sent again, and as packets. What acknowledges them.

use std::time::Instant;

use wire::Psn;
use wire::bth::Bth;
use wire::roce::SendTail;

use super::{Cursor, Requester, share};
use crate::batch::{TxBatch, packet_len_of};
use crate::likely::unlikely;
use crate::op::{Context, Data, Memory, SendOp, SendWr, Sge, Side, Status};
use crate::rc::Connection;
use crate::rc::local::MIN_FRAGMENT;
use crate::rc::request::Request;

/// Longer messages may leave several packets as one fragment.
const SHORT: u32 = MIN_FRAGMENT - 1;

/// The element of a request that is a SEND of one packet with neither immediate data nor a key, and
/// waits for nothing before it; and its bytes, one at least.
#[inline]
fn plain<'a>(request: &'a Request, conn: &Connection) -> Option<(&'a Sge, u32)> {
    let SendWr { op: SendOp::Send(SendTail::None), data: Data::Sges(list), fence: false, .. } = &request.wr
    else {
        return None;
    };
    let [sge] = list.as_slice() else { return None };
    let fits = (1..=SHORT).contains(&sge.length) && sge.length as usize <= conn.mtu;
    (fits && request.fault.is_none()).then_some((sge, sge.length))
}

impl Requester {
    /// Sends requests at the cursor that are as most of a list are, each in a few steps. What comes
    /// then goes the way of all: so does one whose memory is not there, and one for which there
    /// is no room.
    pub(super) fn send_fast(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &mut TxBatch,
        cx: &impl Context,
    ) {
        if self.waits_for_reads(self.cursor.request) {
            return;
        }
        while self.cursor.packet == 0
            && self.under_way() < share.max(1)
            && let Some(request) = self.queue.get_mut(self.cursor.request)
            && let Some((sge, len)) = plain(request, conn)
            && batch.has_room(packet_len_of(Bth::LEN, len as usize))
        {
            let bth = Bth {
                solicited: request.wr.solicited,
                pkey: conn.pkey,
                dest_qp: conn.dest,
                ack_request: true,
                psn: self.next,
                ..Bth::default()
            };
            if batch.push_send_only(&bth, len as usize, |dst| cx.memory().get(sge, dst)).is_err() {
                return;
            }
            (request.begun, request.len) = (true, len);
            self.unasked = 0;
            self.local.passed_by();
            self.cursor.request += 1;
            self.sent(|| now, 1);
        }
    }

    /// The number of a SEND of one packet that is posted now, where it may leave at once.
    /// `oldest_is_done`: the oldest packet is acknowledged, though that is not noted.
    #[inline(always)]
    pub(crate) fn next_fast(&mut self, oldest_is_done: bool, cx: &mut impl Context) -> Option<Psn> {
        let goes_on = self.cursor.request == self.queue.len() && self.next == self.high;
        if unlikely(
            !goes_on || self.rnr_until.is_some() || self.recover.is_some() || self.has_zero_copy_reads(),
        ) {
            return None;
        }
        let under_way = self.under_way() - u32::from(oldest_is_done);
        if under_way == 0 {
            return Some(self.next);
        }
        // A requester that has something under way has a share.
        (under_way < share(cx)).then_some(self.next)
    }

    /// An ACK of the oldest request alone, where that was one packet; false where it is another,
    /// and then nothing has changed.
    #[inline]
    pub(crate) fn acknowledged_fast(
        &mut self,
        now: Instant,
        conn: &Connection,
        psn: Psn,
        cx: &mut impl Context,
    ) -> bool {
        let is_oldest = |front: &Request| front.packets == 1 && !front.awaits_answer();
        let is_simple =
            psn == self.una && self.una.before(self.high) && self.queue.front().is_some_and(is_oldest);
        if is_simple {
            self.acknowledged_oldest(now, conn, cx);
        }
        is_simple
    }

    /// All that is queued is acknowledged, which is one request of one packet
    /// ([`Requester::is_sole`]) that completes visibly. As [`Requester::acknowledged_fast`], in
    /// fewer steps: nothing is under way or queued after it.
    #[inline]
    pub(crate) fn acknowledged_sole(&mut self, now: Instant, conn: &Connection, cx: &mut impl Context) {
        let Some(front) = self.queue.front() else { return };
        cx.complete(Side::Send, front.completion(Status::Success, conn));
        self.queue.clear();
        self.retired += 1;
        self.cursor.request = 0;
        self.una = self.next;
        self.progress(now, 1, cx);
    }

    /// Whether the oldest request completes visibly.
    #[inline]
    pub(crate) fn completes_visibly(&self) -> bool {
        self.queue.front().is_some_and(|front| front.wr.signaled)
    }

    /// Whether this number is that of all that is queued: one request of one packet.
    #[inline]
    pub(crate) fn is_sole(&self, psn: Psn) -> bool {
        let is_simple = |r: &Request| r.packets == 1 && r.done == 0 && !r.awaits_answer();
        psn == self.una
            && self.next == self.una.add(1)
            && self.high == self.next
            && self.queue.len() == 1
            && self.queue.front().is_some_and(is_simple)
    }

    /// The oldest packet is acknowledged.
    #[inline]
    pub(crate) fn acknowledged_oldest(&mut self, now: Instant, conn: &Connection, cx: &mut impl Context) {
        self.advance(conn, 1, cx);
        self.progress(now, 1, cx);
    }

    /// A request of so many bytes has left as one packet.
    #[inline]
    pub(crate) fn sent_fast(
        &mut self,
        now: impl FnOnce() -> Instant,
        request: impl FnOnce() -> SendWr,
        len: u32,
        cx: &mut impl Context,
    ) {
        // One alone is no more than every queue pair may have, whatever the window is. So its share
        // need not be counted in and out for each message.
        if self.una.before(self.next) {
            self.enter(cx);
        }
        self.queue.push_back(Request::begun_fast(request(), len));
        self.cursor = Cursor { request: self.queue.len(), packet: 0 };
        (self.unasked, self.held_back) = (0, false);
        self.sent(now, 1);
    }
}
