//! Long SENDs, WRITEs and READs between processes of this host, of which both ends copy: from
//! memory to memory, each byte once. Of one piece the receiver copies the bytes, to which end they
//! are lent to it; the next one the sender copies to its place, where it knows that, and says so.
//! Meanwhile both are at work.
//!
//! Where a SEND goes the receiver tells as soon as it has the first piece, which is lent: before it
//! copies that. The sender waits for this with the second one. Of a READ the receiver is
//! the requester, and tells with the request ([`super::reading`]).
//!
//! A piece has the numbers of its packets, and comes in their order. What is placed is there
//! before, though: so nothing is placed while something is under way that has to come before
//! it at the same place. The last piece of a message is lent always, so that its last word becomes
//! visible last.

use std::time::Instant;

use arrayvec::ArrayVec;
use wire::Psn;

use super::bulk::Left;
use super::race::{Race, Way};
use super::{Connection, Requester, TxBatch};
use crate::op::{Bulk, Company, Context, Data, Part, Remote, SendOp, SendWr, Source};
use crate::rc::bulk::{FEWEST_BYTES, FEWEST_SHARED, MOST_SHARED, is_the_senders, piece, shared_len};

/// Bytes that may be under way so, at least.
const WINDOW: u32 = 2 * MOST_SHARED;
/// How many numbers of packets there are.
const PSNS: u32 = 1 << 24;
/// Pieces that are lent at once, at most: what a window holds.
const LENT: usize = 16;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Which way SENDs go that come in a stream.
    race: Race,
    /// Bytes of long SENDs that were brought, until the race is told.
    brought: u64,
    /// What is lent and not acknowledged yet, the oldest first.
    lent: ArrayVec<Lent, LENT>,
    /// The first number of the last SEND, where its first piece was lent: the receiver tells where
    /// it goes.
    asked: Option<Psn>,
    /// Where the message of `asked` goes, as the receiver has told.
    place: Option<Remote>,
    /// Ordinal number of the last READ of which both ends copy.
    pub(super) last_read: Option<u64>,
}

/// A piece that is lent.
#[derive(Clone, Copy, Debug)]
struct Lent {
    /// The piece's first number, and the one after the last.
    psns: (Psn, Psn),
    /// Where it goes in the peer's memory, of a WRITE.
    to: Option<Remote>,
}

impl Default for Sharing {
    fn default() -> Sharing {
        Sharing {
            race: Race::of_sends(),
            brought: 0,
            lent: ArrayVec::new(),
            asked: None,
            place: None,
            last_read: None,
        }
    }
}

impl Sharing {
    /// A request of so many bytes has completed, which packets brought.
    pub fn completed(&mut self, wr: &SendWr, len: u32) {
        if matches!(wr.op, SendOp::Send(_)) {
            self.brought += u64::from(len);
        }
    }

    /// All before `una` is acknowledged.
    pub fn progress(&mut self, now: Instant, una: Psn) {
        self.race.brought(now, std::mem::take(&mut self.brought));
        self.lent.retain(|lent| una.before(lent.psns.1));
    }

    /// Whether nothing that is lent goes to these bytes of the peer's.
    fn is_apart(&self, to: Remote) -> bool {
        let end = |range: Remote| range.addr.saturating_add(range.length);
        let is_apart =
            |other: Remote| other.rkey == to.rkey && (end(other) <= to.addr || end(to) <= other.addr);
        self.lent.iter().all(|lent| lent.to.is_some_and(is_apart))
    }

    /// Where a SEND goes, if the receiver has told.
    fn place_of(&self, begins: Psn) -> Option<Remote> {
        self.place.filter(|_| self.asked == Some(begins))
    }

    /// Whether the receiver has not told yet where a SEND goes whose first piece was lent, and may
    /// still.
    fn is_asked(&self, begins: Psn, una: Psn) -> bool {
        self.asked == Some(begins) && !begins.before(una) && self.place_of(begins).is_none()
    }

    /// The way of a long SEND that might begin now, or go on.
    fn way_of_send(&mut self, now: Instant, begins: bool, company: Company) -> Way {
        match company {
            Company::None if begins => self.race.next_alone(now),
            Company::Stream if begins => self.race.next(now),
            _ => self.race.way(),
        }
    }
}

/// The next piece of a message.
struct Next {
    /// The number of the message's first packet.
    message: Psn,
    /// Where the piece begins, in bytes, and how long it is.
    begin: u64,
    packets: u32,
    len: u32,
    /// Whether the piece ends the message.
    ends: bool,
    /// Whether the piece is the sender's to copy, where that is possible.
    ours: bool,
    is_send: bool,
    /// Where it goes in the peer's memory, as far as that is known.
    to: Option<Remote>,
}

impl Next {
    /// Where a piece of a WRITE goes.
    fn written(&self) -> Option<Remote> {
        self.to.filter(|_| !self.is_send)
    }
}

impl Requester {
    /// Sends the packets at the cursor so, if they go out for the first time; `None` where they are
    /// to go otherwise.
    pub(super) fn share_next(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &TxBatch,
        cx: &mut impl Context,
    ) -> Option<Left> {
        if self.queue.get(self.cursor.request)?.asks_to_share() {
            return self.ask_next(now, conn, share, batch, cx);
        }
        // Such pieces take no room on the way, and none is lost.
        let share = share.max(WINDOW / conn.mtu as u32);
        let next = self.next_shared(now, conn, share, cx)?;
        // What is in the batch leaves first.
        if !batch.is_empty() {
            return Some(Left::Later);
        }
        let under_way = self.under_way();
        // Where an ACK is to come it makes room.
        let later = (under_way > self.unasked).then_some(Left::Later);
        let is_too_much = next.packets > share.saturating_sub(under_way);
        let sharing = self.sharing.as_mut()?;
        if is_too_much || sharing.lent.is_full() {
            self.held_back |= is_too_much;
            return later;
        }
        if next.ours && next.is_send && sharing.is_asked(next.message, self.una) {
            return Some(Left::Later);
        }
        let request = self.queue.get(self.cursor.request)?;
        let Data::Sges(list) = &request.wr.data else { return None };
        let mut header = request.header_of(conn, self.next, self.cursor.packet, next.packets)?;
        let part = Part { from: Source::List(list.as_slice()), at: next.begin, len: next.len as usize };
        // A sender that knows where a SEND goes knows that all before it has come. A WRITE is
        // placed before the peer has seen any of it.
        let is_due = self.proven && !self.una.before(self.other_until);
        let comes_in_time = next.is_send || next.written().is_some_and(|to| is_due && sharing.is_apart(to));
        let mut became = Bulk::NoWay;
        if let (true, true, Some(to)) = (next.ours, comes_in_time, next.to) {
            header.bth.ack_request = next.ends || self.unasked + next.packets >= share / 2;
            became = cx.place_bulk(&header, part, to);
        }
        let is_placed = became == Bulk::Sent;
        if became == Bulk::NoWay {
            header.bth.ack_request = true;
            became = cx.lend_bulk(&header, part);
        }
        match became {
            Bulk::Sent => {}
            Bulk::Full => return Some(later.unwrap_or(Left::No)),
            Bulk::NoWay => return None,
        }
        if !is_placed {
            let psns = (self.next, self.next.add(next.packets));
            sharing.lent.push(Lent { psns, to: next.written() });
        }
        if next.is_send && next.begin == 0 {
            sharing.asked = Some(next.message);
        }
        self.unasked = if header.bth.ack_request { 0 } else { self.unasked + next.packets };
        // This one is none of the others.
        let other_until = self.other_until;
        self.pass(next.packets, next.ends);
        self.sent(|| now, next.packets);
        self.other_until = other_until;
        Some(Left::Yes)
    }

    /// The piece at the cursor, where it is to go so.
    fn next_shared(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        cx: &impl Context,
    ) -> Option<Next> {
        let at = self.cursor.packet;
        let request = self.queue.get(self.cursor.request)?;
        if request.len < FEWEST_BYTES || self.next != self.high {
            return None;
        }
        let always = cx.shares_from();
        let fewest = always.unwrap_or(FEWEST_SHARED);
        if request.len < fewest || !cx.fetches() {
            return None;
        }
        let sharing = self.sharing.get_or_insert_default();
        let message = self.next.add(PSNS - at);
        let (way, whole, is_send) = match request.wr.op {
            SendOp::Send(_) => {
                // Numbers come round: what was told of another message must not be taken for its
                // own.
                if at == 0 {
                    (sharing.asked, sharing.place) = (None, None);
                }
                let way = sharing.way_of_send(now, at == 0, cx.company(&request.wr));
                (way, sharing.place_of(message), true)
            }
            SendOp::Write { addr, rkey, .. } => {
                (self.race.way(), Some(Remote { addr, length: request.len.into(), rkey }), false)
            }
            _ => return None,
        };
        if way != Way::Both && always.is_none() {
            return None;
        }
        let mtu = conn.mtu as u32;
        let (begin, left) = (u64::from(at) * u64::from(mtu), request.packets - at);
        let rest = u64::from(request.len) - begin;
        let most = shared_len(mtu, request.len, fewest);
        // Half a window, so that what comes is acknowledged while more is on its way.
        let (packets, len) = piece(mtu, left, rest, most as usize, share / 2)?;
        // Of a SEND every other piece, from the second one on; of a WRITE from the last but one
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

    /// The peer tells where the SEND goes that begins with this number.
    pub fn is_shown(&mut self, begins: Psn, place: Remote) {
        if let Some(sharing) = self.sharing.as_mut().filter(|sharing| sharing.asked == Some(begins)) {
            sharing.place = Some(place);
        }
    }

    /// The peer asks for the packet at `una` again. Whether that was lent, and the peer did not get
    /// it: then it goes through the ring.
    pub(super) fn refused_what_was_lent(&mut self) -> bool {
        let una = self.una;
        let is_lent = |lent: &Lent| !una.before(lent.psns.0) && una.before(lent.psns.1);
        let Some(sharing) = &mut self.sharing else { return false };
        let refused = sharing.lent.iter().any(is_lent);
        if refused {
            sharing.race.refused();
            self.race.refused();
        }
        refused
    }
}
