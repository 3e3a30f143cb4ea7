//! READs that both ends copy ([`super::zero_copy`]). The responder is the sender: of what a part of
//! a READ asks for it copies every other fragment to its place, which the request advertises, and
//! exports the others.
//!
//! What the responder copies is there before the answer that says so. So a READ waits for those
//! before it that go to some of its bytes. It does not wait for a READ of the very same bytes, as
//! each end copies the same fragments of both, in their order. Where one did not go as it should,
//! because there was no room or memory was not reached, what was requested before counts no more:
//! packets request it again.
//!
//! Requests other than READs wait until these are complete. So a peer that learns by a message that
//! they are complete exports nothing any more.

use std::time::Instant;

use super::CopyPath;
use super::fragments::Left;
use super::receive::MAX_ZERO_COPY;
use crate::batch::TxBatch;
use crate::op::{Context, Data, FragmentBytes, FragmentOutcome, LocalPath, Part, Payload, SendOp, Source};
use crate::rc::Connection;
use crate::rc::request::Request;
use crate::rc::requester::Requester;

/// Bytes that are requested at a time.
pub(super) const PART: u32 = 2 * MAX_ZERO_COPY;
/// Bytes of such READs that may be outstanding, at least.
const WINDOW: u32 = 2 * PART;

impl Requester {
    /// Whether READs that both ends copy are outstanding.
    #[inline]
    pub(in crate::rc) fn has_zero_copy_reads(&self) -> bool {
        self.local.zero_copy.as_deref().is_some_and(|zero_copy| zero_copy.has_reads(self.retired))
    }

    /// Whether the request at `at` waits for READs that both ends copy.
    #[inline]
    pub(in crate::rc) fn waits_for_reads(&self, at: usize) -> bool {
        self.has_zero_copy_reads()
            && self.queue.get(at).is_some_and(|next| !matches!(next.wr.op, SendOp::Read { .. }))
    }

    /// Requests the part of a READ at the cursor by a fragment; `None` where a packet is to request
    /// it.
    pub(super) fn request_part(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &TxBatch,
        cx: &mut impl Context,
    ) -> Option<Left> {
        let (at, under_way) = (self.cursor, self.under_way());
        let request = self.queue.get(at.request).filter(|request| request.is_first_try())?;
        let brings = |before: &&Request| before.awaits_answer() && !before.awaits_nothing_but_word();
        let mut before = self.queue.iter().take(at.request).filter(brings);
        let is_apart = before.all(|before| request.keeps_apart_from(before));
        let psns = request.psns(at.packet);
        let is_too_much = under_way > 0 && under_way + psns > share.max(WINDOW / conn.mtu as u32);
        if !batch.is_empty() || !is_apart || is_too_much || !self.has_room_for_read() {
            self.held_back |= is_too_much;
            return Some(Left::Later);
        }
        let mut outcome = FragmentOutcome::Unavailable;
        if self.next == self.high
            && let (Some((mut header, _)), Data::Sges(list)) =
                (request.header(conn, self.next, at.packet), &request.wr.data)
        {
            header.bth.ack_request = true;
            let begin = u64::from(at.packet) * conn.mtu as u64;
            let len = (u64::from(request.len) - begin).min(u64::from(psns) * conn.mtu as u64);
            let part = Part { from: Source::List(list.as_slice()), at: begin, len: len as usize };
            let sent = cx.local().send_fragment(&header, part, FragmentBytes::Requested);
            outcome = sent.unwrap_or(FragmentOutcome::Unavailable);
        }
        let message_ends = at.packet + psns == request.packets;
        if outcome != FragmentOutcome::Sent {
            self.queue.get_mut(at.request)?.way = CopyPath::Fragments;
            return None;
        }
        self.reads += 1;
        self.unasked = 0;
        self.pass(psns, message_ends);
        self.sent(|| now, psns);
        Some(Left::Yes)
    }

    /// Whether the next bytes of the oldest READ may be taken for what they seem to be.
    pub(in crate::rc) fn counts(&mut self, payload: Payload<'_>) -> bool {
        let is_by_reference = matches!(payload, Payload::ZeroCopy(_));
        let is_zero_copy = self.queue.front().is_some_and(|oldest| oldest.way == CopyPath::ZeroCopy);
        if is_zero_copy && !is_by_reference {
            // These are copied now; what the responder has placed of READs after this one may have
            // been there before.
            self.drop_zero_copy_reads();
        }
        is_zero_copy || !is_by_reference
    }

    /// The bytes that the oldest READ is to have next are not reached, or do not count: they are
    /// asked for again.
    pub(in crate::rc) fn was_not_reached(&mut self, cx: &mut impl Context) {
        // Nothing was lost; and what is on its way of the same kind says nothing new.
        if !self.went_back() {
            self.refuse_zero_copy();
            self.go_back(cx);
        }
    }

    /// What READs have requested of both ends counts no more.
    pub(in crate::rc) fn drop_zero_copy_reads(&mut self) {
        let reads = self.queue.iter_mut().filter(|request| matches!(request.wr.op, SendOp::Read { .. }));
        reads.for_each(|request| request.way = CopyPath::Fragments);
    }
}
