//! SENDs and WRITEs to a process of the same host: several packets leave as one fragment.

use std::time::Instant;

use super::CopyPath;
use super::receive::{MAX_PACKETS, fragment};
use crate::batch::TxBatch;
use crate::op::{Context, Data, FragmentBytes, FragmentOutcome, LocalPath, Part, SendOp, Source, Status};
use crate::rc::Connection;
use crate::rc::requester::Requester;

/// Outcome of the packets at the cursor, which might leave as a fragment.
pub(in crate::rc) enum Left {
    /// The packets have left.
    Yes,
    /// The packets leave when there is more room.
    Later,
    /// The packets are no fragment.
    No,
}

impl Requester {
    /// Sends the packets at the cursor as a fragment, if they go out for the first time.
    pub(in crate::rc) fn send_fragment(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &TxBatch,
        cx: &mut impl Context,
    ) -> Result<Left, Status> {
        let most_bytes = cx.local().max_fragment();
        if most_bytes == 0 {
            return Ok(Left::No);
        }
        let way = self.queue.get(self.cursor.request).map_or(CopyPath::Fragments, |request| request.way);
        if way == CopyPath::ZeroCopy
            && let Some(left) = self.send_zero_copy(now, conn, share, batch, cx)
        {
            return Ok(left);
        }
        let (at, under_way) = (self.cursor.packet, self.under_way());
        let Some(request) = self.queue.get_mut(self.cursor.request) else { return Ok(Left::No) };
        let may = self.next == self.high;
        let (true, SendOp::Send(_) | SendOp::Write { .. }, Data::Sges(list)) =
            (may, &request.wr.op, &request.wr.data)
        else {
            return Ok(Left::No);
        };
        let mtu = conn.mtu as u32;
        let (begin, left) = (u64::from(at) * u64::from(mtu), request.packets - at);
        let rest = u64::from(request.len) - begin;
        // Half a window, so that what comes is acknowledged while more is on its way.
        let most = (share / 2).clamp(1, MAX_PACKETS);
        if fragment(mtu, left, rest, most_bytes, most).is_none() {
            return Ok(Left::No);
        }
        // Where an ACK is to come it makes room.
        let later = if under_way > self.unasked { Left::Later } else { Left::No };
        let room = share.saturating_sub(under_way).min(most);
        let Some((packets, len)) = fragment(mtu, left, rest, most_bytes, room) else {
            self.held_back |= matches!(later, Left::Later);
            return Ok(later);
        };
        // What is in the batch leaves first.
        if !batch.is_empty() {
            return Ok(Left::Later);
        }
        let message_ends = packets == left;
        let asks = message_ends || self.unasked + packets >= (share / 2).max(1);
        let Some(mut header) = request.header_of(conn, self.next, at, packets) else {
            return Ok(Left::No);
        };
        header.bth.ack_request = asks;
        let part = Part { from: Source::List(list.as_slice()), at: begin, len: len as usize };
        match cx.local().send_fragment(&header, part, FragmentBytes::Inline) {
            Ok(FragmentOutcome::Sent) => {}
            Ok(FragmentOutcome::Full) => return Ok(later),
            Ok(FragmentOutcome::Unavailable) => return Ok(Left::No),
            Err(_) => {
                request.fault = Some(Status::LocalProtection);
                return if self.cursor.request == 0 { Err(Status::LocalProtection) } else { Ok(Left::Later) };
            }
        }
        self.unasked = if asks { 0 } else { self.unasked + packets };
        self.pass(packets, message_ends);
        self.sent(|| now, packets);
        Ok(Left::Yes)
    }
}
