//! READs of which both ends copy ([`super::sharing`]). The responder is the sender: of what a part
//! of one asks for it copies every other piece to its place, which the request tells, and lends the
//! others.
//!
//! What it copies is there before the answer that says so. So a READ waits for those before it that
//! go to some of its bytes; not for the very same READ, as each end copies the same pieces of both,
//! in their order. Where one did not go as it should, because there was no room on the way or
//! memory was not reached, what was asked for so before does not count any more: it is asked for
//! again in packets.
//!
//! What is no READ waits until these are complete. So a peer that learns by a message that they are
//! complete has lent nothing any more.

use std::time::Instant;

use super::bulk::Left;
use super::race::Way;
use super::{Connection, Requester, TxBatch};
use crate::op::{Bulk, Context, Data, Part, Payload, SendOp, Source};
use crate::rc::bulk::{FEWEST_SHARED, MOST_SHARED};
use crate::rc::request::Request;

/// Bytes that are asked for at once.
const PART: u32 = 2 * MOST_SHARED;
/// Packets that may be under way so, at least.
const WINDOW: u32 = 2 * PART;

impl Requester {
    /// Whether READs of which both ends copy are under way.
    #[inline]
    pub(super) fn has_shared_reads(&self) -> bool {
        let last = |sharing: &super::Sharing| sharing.last_read.is_some_and(|last| last >= self.retired);
        self.sharing.as_deref().is_some_and(last)
    }

    /// Whether the request at `at` waits for those.
    #[inline]
    pub(super) fn waits_for_reads(&self, at: usize) -> bool {
        self.has_shared_reads()
            && self.queue.get(at).is_some_and(|next| !matches!(next.wr.op, SendOp::Read { .. }))
    }

    /// Lets both ends copy what the request at `at` brings, which begins, where it is a READ that
    /// is to go so.
    pub(super) fn share_read(&mut self, at: usize, mtu: u32, cx: &impl Context) {
        let Some(request) = self.queue.get(at) else { return };
        if request.place().is_none() || request.executed || request.fault.is_some() {
            return;
        }
        let always = cx.shares_from();
        let is_long = request.len >= always.unwrap_or(FEWEST_SHARED);
        if !is_long || (self.race.way() != Way::Both && always.is_none()) || !cx.fetches() {
            return;
        }
        self.sharing.get_or_insert_default().last_read = Some(self.retired + at as u64);
        if let Some(request) = self.queue.get_mut(at) {
            request.share(PART / mtu);
        }
    }

    /// Asks for the part of a READ at the cursor so; `None` where it is to be asked for by a
    /// packet.
    pub(super) fn ask_next(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &TxBatch,
        cx: &mut impl Context,
    ) -> Option<Left> {
        let (at, under_way) = (self.cursor, self.under_way());
        let request = self.queue.get(at.request)?;
        let brings = |before: &&Request| before.awaits_answer() && !before.awaits_nothing_but_word();
        let mut before = self.queue.iter().take(at.request).filter(brings);
        let is_apart = before.all(|before| request.keeps_apart_from(before));
        let psns = request.psns(at.packet);
        let is_too_much = under_way > 0 && under_way + psns > share.max(WINDOW / conn.mtu as u32);
        if !batch.is_empty()
            || !is_apart
            || is_too_much
            || self.reads >= u32::from(self.limits.max_rd_atomic.max(1))
        {
            self.held_back |= is_too_much;
            return Some(Left::Later);
        }
        let mut became = Bulk::NoWay;
        if self.next == self.high
            && let (Some((mut header, _)), Data::Sges(list)) =
                (request.header(conn, self.next, at.packet), &request.wr.data)
        {
            header.bth.ack_request = true;
            let begin = u64::from(at.packet) * conn.mtu as u64;
            let len = (u64::from(request.len) - begin).min(u64::from(psns) * conn.mtu as u64);
            let part = Part { from: Source::List(list.as_slice()), at: begin, len: len as usize };
            became = cx.ask_bulk(&header, part);
        }
        let message_ends = at.packet + psns == request.packets;
        if became != Bulk::Sent {
            self.queue.get_mut(at.request)?.shares = false;
            return None;
        }
        self.reads += 1;
        self.unasked = 0;
        self.pass(psns, message_ends);
        self.sent(|| now, psns);
        Some(Left::Yes)
    }

    /// Whether the next bytes of the oldest READ may be taken for what they seem to be.
    pub(super) fn counts(&mut self, payload: Payload<'_>) -> bool {
        let is_elsewhere = matches!(payload, Payload::Elsewhere(_));
        let shares = self.queue.front().is_some_and(|oldest| oldest.shares);
        if shares && !is_elsewhere {
            // These are copied now; what the responder has placed of READs after this one may have
            // been there before.
            self.share_no_read();
        }
        shares || !is_elsewhere
    }

    /// The bytes that the oldest READ is to have next are not reached, or do not count: they are
    /// asked for again.
    pub(super) fn was_not_reached(&mut self, cx: &mut impl Context) {
        // Nothing was lost; and what is on its way of the same kind says nothing new.
        if self.went_back_at != Some(self.una) {
            self.race.refused();
            self.go_back(cx);
        }
    }

    /// Nothing counts any more that was asked for so.
    pub(super) fn share_no_read(&mut self) {
        self.queue.iter_mut().for_each(|request| request.shares = false);
    }
}
