//! Packets in the midst of a message, sent as one: equal headers, whole payloads, and none that
//! asks for an ACK.

use std::time::Instant;

use super::{Cursor, Requester};
use crate::batch::{MIN_RUN, Payloads, TxBatch, packet_len};
use crate::op::{Context, Fault, Memory};
use crate::rc::Connection;
use crate::rc::request::Request;

impl Requester {
    /// Sends as many packets of the request at the cursor as may leave now and need not be looked
    /// at one by one. False where these are too few, or memory refuses them: then nothing has
    /// changed.
    pub(super) fn send_run(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &mut TxBatch,
        cx: &mut impl Context,
    ) -> bool {
        let Cursor { request: index, packet: at } = self.cursor;
        let Some(request) = self.queue.get(index) else { return false };
        // Neither the first packet nor the last one.
        let in_message = if at == 0 { 0 } else { (request.packets - at).saturating_sub(1) };
        let in_window = share.saturating_sub(self.under_way());
        let before_asking = (share / 2).max(1).saturating_sub(self.unasked + 1);
        let wanted = in_message.min(in_window).min(before_asking) as usize;
        if wanted < MIN_RUN {
            return false;
        }
        let Some(header) = request.header_of(conn, self.next, at, 1) else { return false };
        let count = wanted.min(batch.room_for(packet_len(&header, conn.mtu)));
        if count < MIN_RUN {
            return false;
        }
        let copy = |payloads: &mut Payloads<'_>| request.copy_run_out(conn, at, payloads, &cx.memory());
        if batch.push_run(&header, conn.mtu, count, copy).is_err() {
            return false;
        }
        self.unasked += count as u32;
        self.pass(count as u32, false);
        self.sent(|| now, count as u32);
        true
    }
}

impl Request {
    /// Copies the payloads of the packets from `at` on out.
    fn copy_run_out(
        &self,
        conn: &Connection,
        at: u32,
        payloads: &mut Payloads<'_>,
        memory: &impl Memory,
    ) -> Result<(), Fault> {
        self.wr.data.copy_run_out(u64::from(at) * conn.mtu as u64, payloads, memory)
    }
}
