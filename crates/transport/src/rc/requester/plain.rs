//! A SEND that leaves as soon as it is posted, and what acknowledges it: nothing waits before it, and nothing is sent again.

use std::time::Instant;

use wire::Psn;

use super::{Cursor, Requester};
use crate::op::{Context, SendWr};
use crate::rc::Connection;
use crate::rc::request::Request;

impl Requester {
    /// The number of a SEND of one packet that is posted now, where it may leave at once.
    #[inline]
    pub fn next_plain(&mut self, cx: &mut impl Context) -> Option<Psn> {
        let goes_on = self.cursor.request == self.queue.len() && self.next == self.high;
        if !goes_on || self.rnr_until.is_some() || self.recover.is_some() {
            return None;
        }
        let under_way = self.under_way();
        if under_way == 0 {
            return Some(self.next);
        }
        // Who has something under way has a share.
        (under_way < cx.window().share()).then_some(self.next)
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
            self.advance(conn, 1, cx);
            self.progress(now, 1, cx);
        }
        is_plain
    }

    /// It has left.
    #[inline]
    pub fn sent_plain(&mut self, now: Instant, wr: SendWr, len: u32, cx: &mut impl Context) {
        self.enter(cx);
        self.queue.push_back(Request::begun_plain(wr, len));
        self.cursor = Cursor { request: self.queue.len(), packet: 0 };
        (self.unasked, self.held_back) = (0, false);
        self.sent(now, 1);
    }
}
