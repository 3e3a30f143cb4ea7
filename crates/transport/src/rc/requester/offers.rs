//! Long SENDs to a process of this host: in place of packets that bear copies of its bytes one goes out that says where they are, and the receiver
//! copies them itself. Those packets have their numbers all the same, and are acknowledged as ever. What is not had so, because our
//! memory is not reached or something before it was lost, is sent again in packets that bear it.

use std::time::Instant;

use wire::Psn;

use super::{Connection, Cursor, Requester, TxBatch};
use crate::batch::packet_len;
use crate::op::{Context, Pull};

/// Packets for which one goes out, at least.
const FEWEST: u32 = 2;

/// What became of the next packets.
pub(super) enum Offered {
    /// They are offered.
    Yes,
    /// They will be when there is more room in the window.
    Later,
    /// They are no such packets.
    No,
}

impl Requester {
    /// Offers the packets at the cursor, if they are of a SEND and go out for the first time.
    pub(super) fn offer_next(
        &mut self,
        now: Instant,
        conn: &Connection,
        batch: &mut TxBatch,
        cx: &impl Context,
    ) -> Offered {
        let Cursor { request: index, packet: at } = self.cursor;
        let Some(request) = self.queue.get(index) else { return Offered::No };
        let may = self.next == self.high && self.refused_offers.lets(self.retired + index as u64);
        let left = request.packets - at;
        if !may || left < FEWEST || !request.is_send() {
            return Offered::No;
        }
        // It takes no room on the way.
        let share = cx.window().share();
        let most = left.min((share / 2).max(FEWEST)).min(Pull::MOST_PACKETS);
        let mtu = conn.mtu as u32;
        let begin = u64::from(at) * u64::from(mtu);
        let len = u64::from(most * mtu).min(u64::from(request.len) - begin);
        let Some(mut pull) = cx.offer(&request.wr, begin, len) else { return Offered::No };
        let under_way = self.under_way();
        let room = share.saturating_sub(under_way);
        if u64::from(pull.len) < len || room < most {
            // Whole packets, if not all.
            let packets = (pull.len / mtu).min(room);
            if packets < FEWEST {
                // Where an ACK is to come it makes room.
                let waits = room < FEWEST && under_way > self.unasked;
                self.held_back |= waits;
                return if waits { Offered::Later } else { Offered::No };
            }
            pull.len = packets * mtu;
        }
        let packets = pull.len.div_ceil(mtu);
        let message_ends = at + packets == request.packets;
        let asks = message_ends || self.unasked + packets >= (share / 2).max(1);
        let Some(mut header) = request.header_of(conn, self.next, at, packets) else { return Offered::No };
        header.bth.ack_request = asks;
        if !batch.has_room(packet_len(&header, Pull::LEN)) {
            return Offered::Later;
        }
        batch.push_pull(&header, pull);
        self.unasked = if asks { 0 } else { self.unasked + packets };
        self.pass(packets, message_ends);
        let from = self.offered.map_or(self.next, |(from, _)| from);
        self.sent(now, packets);
        self.offered = Some((from, self.next));
        Offered::Yes
    }

    /// The peer has got further: whether it has all that was offered to it.
    pub(super) fn offers_taken(&mut self) {
        if self.offered.is_some_and(|(_, end)| !self.una.before(end)) {
            self.offered = None;
            self.refused_offers.no_more();
        }
    }

    /// All is sent again from the oldest PSN on, and nothing offered for a while.
    pub(super) fn withdraw_offers(&mut self) {
        if self.offered.take().is_some() {
            self.refused_offers.once_more(self.retired);
        }
    }

    /// Whether the peer, which wants this PSN again, has it only as an offer.
    pub(super) fn is_offered(&self, psn: Psn) -> bool {
        self.offered.is_some_and(|(from, end)| !psn.before(from) && psn.before(end))
    }
}
