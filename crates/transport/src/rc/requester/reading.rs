//! READs of which both ends copy ([`super::sharing`]). The responder is the sender: of what a part of one asks for it copies every other piece to its place, which the request tells, and lends the others.
//!
//! What it copies is there before the answer that says so. So a READ is asked for only where none before it that has not all come goes to the same bytes; the very same READ may, as each
//! end copies the same pieces of both, in their order. Where one did not go as it should, because there was no room on the way or memory was not reached, nothing counts any more of what was asked for so
//! before: it is asked for again in packets.
//!
//! What is no READ waits until these are complete: so a peer that learns by a message that they are behind us has lent nothing any more.

use std::time::Instant;

use wire::Psn;

use super::bulk::Left;
use super::race::Way;
use super::{Connection, Requester, TxBatch};
use crate::op::{Bulk, Context, Data, Part, Payload, SendOp, Source};
use crate::rc::bulk::FEWEST_SHARED;
use crate::rc::request::Request;

/// Response packets that are asked for at once.
const PART: u32 = 128;
/// Those that may be under way so, at least.
const WINDOW: u32 = 2 * PART;

/// What is known of such READs.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Ordinal number of the last one.
    last: Option<u64>,
    /// What was asked for so does not count before this number.
    counts_from: Option<Psn>,
}

impl Reading {
    /// All before `una` is acknowledged.
    pub fn progress(&mut self, una: Psn) {
        self.counts_from = self.counts_from.filter(|from| una.before(*from));
    }
}

impl Requester {
    /// Whether READs of which both ends copy are under way.
    #[inline]
    pub(super) fn has_shared_reads(&self) -> bool {
        let last = |sharing: &super::Sharing| sharing.reading.last.is_some_and(|last| last >= self.retired);
        self.sharing.as_deref().is_some_and(last)
    }

    /// Whether the request at `at` waits for those.
    #[inline]
    pub(super) fn waits_for_reads(&self, at: usize) -> bool {
        self.has_shared_reads()
            && self.queue.get(at).is_some_and(|next| !matches!(next.wr.op, SendOp::Read { .. }))
    }

    /// Both ends copy what the request at `at` brings, which begins, where it is a READ that is to go so.
    pub(super) fn share_read(&mut self, at: usize, cx: &impl Context) {
        let Some(request) = self.queue.get(at) else { return };
        if request.place().is_none() || request.executed || request.fault.is_some() {
            return;
        }
        let always = cx.shares_from();
        let is_long = request.len >= always.unwrap_or(FEWEST_SHARED);
        if !is_long || (self.race.way() != Way::Both && always.is_none()) || !cx.fetches() {
            return;
        }
        self.sharing.get_or_insert_default().reading.last = Some(self.retired + at as u64);
        if let Some(request) = self.queue.get_mut(at) {
            request.share(PART);
        }
    }

    /// Asks for the part of a READ at the cursor so; `None` where it is to be asked for by a packet.
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
        let is_too_much = under_way > 0 && under_way + psns > share.max(WINDOW);
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

    /// Whether these bytes of the oldest READ, which begin with that number, may be taken for what they seem to be.
    pub(super) fn counts(&mut self, psn: Psn, payload: Payload<'_>) -> bool {
        let (high, Some(sharing)) = (self.high, &mut self.sharing) else {
            return !matches!(payload, Payload::Elsewhere(_));
        };
        if !matches!(payload, Payload::Elsewhere(_)) {
            // The responder has copied nothing to there; what it has copied of others there comes before this.
            if let Some(oldest) = self.queue.front_mut().filter(|oldest| oldest.shares) {
                oldest.shares = false;
                sharing.reading.counts_from = Some(high);
            }
            return true;
        }
        let is_shared = self.queue.front().is_some_and(|oldest| oldest.shares);
        is_shared && sharing.reading.counts_from.is_none_or(|from| !psn.before(from))
    }

    /// The bytes that the oldest READ is to have next are not reached, or do not count: they are asked for again.
    pub(super) fn was_not_reached(&mut self, cx: &mut impl Context) {
        // Nothing was lost; and what is on its way of the same kind says nothing new.
        if self.went_back_at != Some(self.una) {
            self.race.refused();
            self.go_back(cx);
        }
    }

    /// All is sent again in packets.
    pub(super) fn shares_no_read(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.reading.counts_from = Some(self.high);
            self.queue.iter_mut().for_each(|request| request.shares = false);
        }
    }
}
