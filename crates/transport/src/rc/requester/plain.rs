//! A SEND that leaves as soon as it is posted, and what acknowledges it: nothing waits before it, and nothing is sent again. And a WRITE, READ or atomic that
//! is done as soon as it is posted.

use std::time::Instant;

use wire::Psn;

use super::{Cursor, Requester, execute_at_once, share};
use crate::op::{AtOnce, AtomicOp, Context, SendOp, SendWr, Side, Status};
use crate::rc::Connection;
use crate::rc::request::{self, Request};

impl Requester {
    /// The number of a SEND of one packet that is posted now, where it may leave at once. `oldest_is_done`: the oldest packet is acknowledged, though that is not noted.
    #[inline]
    pub fn next_plain(&mut self, oldest_is_done: bool, cx: &mut impl Context) -> Option<Psn> {
        let goes_on = self.cursor.request == self.queue.len() && self.next == self.high;
        if !goes_on || self.rnr_until.is_some() || self.recover.is_some() {
            return None;
        }
        let under_way = self.under_way() - u32::from(oldest_is_done);
        if under_way == 0 {
            return Some(self.next);
        }
        // Who has something under way has a share.
        (under_way < share(cx)).then_some(self.next)
    }

    /// An ACK of the oldest request alone, where that was one packet; false where it is another, and then nothing has changed.
    #[inline]
    pub fn acknowledged_plain(
        &mut self,
        now: Instant,
        conn: &Connection,
        psn: Psn,
        cx: &mut impl Context,
    ) -> bool {
        let is_oldest = |front: &Request| front.packets == 1 && !front.awaits_answer();
        let is_plain =
            psn == self.una && self.una.before(self.high) && self.queue.front().is_some_and(is_oldest);
        if is_plain {
            self.acknowledged_oldest(now, conn, cx);
        }
        is_plain
    }

    /// Whether this number is that of all that is queued: one request of one packet, which completes visibly to nobody.
    #[inline]
    pub fn is_lone(&self, psn: Psn) -> bool {
        let is_plain = |r: &Request| r.packets == 1 && r.done == 0 && !r.awaits_answer() && !r.wr.signaled;
        psn == self.una
            && self.next == self.una.add(1)
            && self.high == self.next
            && self.queue.len() == 1
            && self.queue.front().is_some_and(is_plain)
    }

    /// The oldest packet is acknowledged.
    #[inline]
    pub fn acknowledged_oldest(&mut self, now: Instant, conn: &Connection, cx: &mut impl Context) {
        self.advance(conn, 1, cx);
        self.progress(now, 1, cx);
    }

    /// Executes a WRITE, READ or atomic that is posted now, where it is alone and needs no packet: then it has completed. Else it is to be posted.
    #[inline]
    pub fn execute_alone(
        &mut self,
        now: &mut dyn FnMut() -> Instant,
        conn: &Connection,
        wr: &SendWr,
        cx: &mut impl Context,
    ) -> bool {
        if !self.takes_alone(wr) {
            return false;
        }
        let became = execute_at_once(now, &mut self.race, wr, cx);
        let done = self.executed_alone(became);
        if done && wr.signaled {
            // It was not more than is copied at once.
            let len = wr.data.len_bytes() as u32;
            cx.complete(Side::Send, request::completion(wr, len, Status::Success, conn));
        }
        done
    }

    /// Whether a request is of those that may need no packet, and nothing waits before it.
    #[inline]
    fn takes_alone(&self, wr: &SendWr) -> bool {
        let may = match wr.op {
            SendOp::Atomic { op: AtomicOp::Write(_), .. } => true,
            SendOp::Read { .. } | SendOp::Atomic { .. } => self.limits.max_rd_atomic > 0,
            _ => request::moves_bytes(wr),
        };
        may && self.is_idle()
    }

    /// Whether nothing waits, and what is posted now was not tried just now.
    #[inline]
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.rnr_until.is_none() && !self.needs_packets
    }

    /// Whether a WRITE, or a READ, that is posted now, while no other is under way or unpolled, may be executed by whoever asks; he says what became of it.
    #[inline]
    pub fn begins_alone(&mut self, is_read: bool) -> bool {
        let begins = self.is_idle() && (!is_read || self.limits.max_rd_atomic > 0);
        if begins {
            self.race.pause();
        }
        begins
    }

    /// What became of a request that is not queued; whether it is done.
    #[inline]
    pub fn executed_alone(&mut self, became: AtOnce) -> bool {
        self.note_at_once(became);
        let done = became == AtOnce::Done;
        self.needs_packets = !done;
        self.retired += u64::from(done);
        done
    }

    /// It has left.
    #[inline]
    pub fn sent_plain(&mut self, now: Instant, wr: &mut SendWr, len: u32, cx: &mut impl Context) {
        // One alone is no more than everybody may have whatever the window is: its share need not be counted in and out for each message.
        if self.una.before(self.next) {
            self.enter(cx);
        }
        self.queue.push_back(Request::begun_plain(wr, len));
        self.cursor = Cursor { request: self.queue.len(), packet: 0 };
        (self.unasked, self.held_back) = (0, false);
        self.sent(now, 1);
    }
}
