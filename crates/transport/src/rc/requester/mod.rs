//! The requester (IBA 1.4 §9.7): a queue of requests and three places in the PSNs they take.
//!
//! ```text
//! acknowledged | una ... sent ... | next ... sent before, to be sent again ... | high ... not yet sent
//! ```
//!
//! Recovery is go-back-N: `next` returns to `una`, and everything follows again. `una` lies always
//! in the oldest request, `next` at the cursor. At most a window and a part of a READ are
//! outstanding, far fewer PSNs than 2^23, so serial arithmetic between the three is sound.
//!
//! Here requests are sent; in `responses` answers complete them; in `recovery` NAKs and timers take
//! `next` back. A request that leaves as it is posted has a fast path, `fast_path`. For a peer on
//! the same host, which needs fewer packets or none, [`local`](super::local) is asked.

mod fast_path;
mod recovery;
mod responses;
mod run;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wire::Psn;

use super::local::{Left, Local};
use super::request::Request;
use super::{Connection, Recoveries, Role, RtsAttr, timeout_of};
use crate::batch::{TxBatch, packet_len};
use crate::op::{Context, LocalOp, Memory, SendWr, Side, Status};

/// Shortest local ACK timeout: responders are threads, not gates. The standard lets an adapter have
/// a least timeout and wait up to four times as long as it was told (IBA 1.4 §9.7.6.1.3).
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Requester {
    limits: Limits,
    pub(super) queue: VecDeque<Request>,
    /// Requests that have left the queue: the ordinal number of its front.
    pub(super) retired: u64,
    /// Ordinal number of the last READ or atomic begun.
    last_answered: Option<u64>,
    /// Oldest PSN not acknowledged.
    pub(super) una: Psn,
    /// PSN sent next.
    pub(super) next: Psn,
    /// PSN after the last ever sent.
    pub(super) high: Psn,
    /// Where `next` is.
    pub(super) cursor: Cursor,
    /// READ requests and atomics sent and not answered.
    pub(super) reads: u32,
    /// Packets sent since one asked for an ACK.
    pub(super) unasked: u32,
    timer: Option<Instant>,
    /// The peer wants to be left alone until then.
    pub(super) rnr_until: Option<Instant>,
    /// `una` when we last went back: what arrives from before that says nothing new.
    went_back_at: Option<Psn>,
    /// `high` when the window was last halved: a loss event lasts until all sent before is acked.
    recover: Option<Psn>,
    /// The window, not the application, was what stopped the last [`Requester::fill`].
    pub(super) held_back: bool,
    /// Counted in the window: with anything under way but one message that left alone as soon as it
    /// was posted.
    entered: bool,
    path_suspect: bool,
    pub(super) recoveries: Recoveries,
    /// What a peer on the same host adds.
    pub(super) local: Local,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub request: usize,
    pub packet: u32,
}

#[derive(Debug, Default)]
struct Limits {
    max_rd_atomic: u8,
    timeout: Option<Duration>,
    retry_cnt: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
}

/// Nothing, or the status with which the oldest request fails, and the queue pair with it.
type Outcome = Result<(), Status>;

impl Requester {
    pub(super) fn start(&mut self, attr: RtsAttr) {
        (self.una, self.next, self.high) = (attr.sq_psn, attr.sq_psn, attr.sq_psn);
        self.local.start(attr.sq_psn);
        self.limits.max_rd_atomic = attr.max_rd_atomic;
        self.set_retries(attr);
    }
    pub(super) fn set_retries(&mut self, attr: RtsAttr) {
        self.limits.timeout = timeout_of(attr.timeout).map(|t| t.max(MIN_TIMEOUT));
        self.limits.retry_cnt = attr.retry_cnt;
        self.limits.rnr_retry = attr.rnr_retry;
        self.limits.refill();
    }
    pub(super) fn set_depth(&mut self, max_rd_atomic: u8) {
        self.limits.max_rd_atomic = max_rd_atomic;
    }
    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }
    pub(super) fn sq_psn(&self) -> Psn {
        self.high
    }
    pub(super) fn nothing_under_way(&self) -> bool {
        self.queue.front().is_none_or(|r| !r.begun)
    }
    #[inline]
    pub(super) fn take_path_suspect(&mut self) -> bool {
        std::mem::take(&mut self.path_suspect)
    }
    /// Whether [`Requester::take_path_suspect`] has something to tell.
    #[inline]
    pub(super) fn is_path_suspect(&self) -> bool {
        self.path_suspect
    }
    #[inline]
    pub(super) fn post(&mut self, wr: &mut SendWr, srq: u32) {
        self.queue.push_back(Request::new(wr.take(), srq));
    }

    /// The next PSN, and how many the peer has not seen of those that requests have taken.
    pub(super) fn take_unsent_psns(&mut self) -> Option<(Psn, u32)> {
        let count = self.local.take_unsent_psns();
        (count > 0).then_some((self.high, count))
    }

    /// Whether READs and atomics may be outstanding.
    #[inline]
    pub(super) fn reads_are_allowed(&self) -> bool {
        self.limits.max_rd_atomic > 0
    }

    /// Whether there is room for one more READ or atomic. One that began when the depth was not 0
    /// yet does not wait for ever.
    #[inline]
    pub(super) fn has_room_for_read(&self) -> bool {
        self.reads < u32::from(self.limits.max_rd_atomic.max(1))
    }

    // ---- sending ----

    /// Whether there is nothing that could be sent now, so that it is not the window that stops us.
    #[inline]
    pub(super) fn is_at_rest(&mut self) -> bool {
        self.held_back = false;
        self.rnr_until.is_some() || self.queue.len() <= self.cursor.request
    }

    /// Sends what window, depth, fence and batch allow.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        conn: &Connection,
        draining: bool,
        batch: &mut TxBatch,
        cx: &mut impl Context,
    ) -> Outcome {
        if self.is_at_rest() {
            return Ok(());
        }
        // A requester that asks for a share counts as one that has one.
        self.enter(cx);
        let share = share(cx);
        let plain = conn.role == Role::Rc && !draining;
        loop {
            if plain {
                self.send_fast(now, conn, share, batch, cx);
            }
            let goes_on = self.begin_next(conn, share, draining, cx)?
                && (self.do_next(conn, cx)? || self.send_next(now, conn, share, batch, cx)?);
            if !goes_on {
                break;
            }
        }
        if self.una == self.high {
            self.leave(cx);
        }
        Ok(())
    }

    /// Whether the request at the cursor has begun or may now.
    fn begin_next(
        &mut self,
        conn: &Connection,
        share: u32,
        draining: bool,
        cx: &mut impl Context,
    ) -> Result<bool, Status> {
        let Cursor { request: at, .. } = self.cursor;
        if self.waits_to_be_executed(at, cx) {
            return Ok(false);
        }
        let Some(request) = self.queue.get_mut(at) else { return Ok(false) };
        if !request.begun {
            // A fence waits for READs and atomics before it, nothing else (IBA 1.4 §10.8.3.3). It
            // is not asked again once it has let a request through.
            let fenced = request.wr.fence && self.last_answered.is_some_and(|last| last >= self.retired);
            if draining || fenced || self.waits_for_reads(at) {
                return Ok(false);
            }
            if self.needs_reschedule() {
                return Ok(false);
            }
            let Some(request) = self.queue.get_mut(at) else { return Ok(false) };
            request.begin(conn, share, self.limits.max_rd_atomic);
            if request.awaits_answer() {
                self.last_answered = Some(self.retired + at as u64);
            }
            self.begin_local(at, conn.mtu as u32, cx);
        }
        let Some(request) = self.queue.get(at) else { return Ok(false) };
        match request.fault {
            Some(status) if at == 0 => Err(status),
            Some(_) => Ok(false),
            None => Ok(true),
        }
    }

    /// Does what needs no packet at the cursor: once, however often the cursor comes by.
    fn do_next(&mut self, conn: &Connection, cx: &mut impl Context) -> Result<bool, Status> {
        let at = self.cursor.request;
        let Some(request) = self.queue.get_mut(at) else { return Ok(false) };
        if !request.executed {
            let Some(op) = request.local() else { return Ok(false) };
            let done = match op {
                LocalOp::Bind(bind) => cx.memory().bind(&bind),
                LocalOp::Invalidate(key) => cx.memory().invalidate(key),
            };
            if done.is_err() {
                // IBA 1.4 §10.10.3.3: a memory management operation error. `send_next` finds
                // nothing to send.
                request.fault = Some(Status::MwBind);
                return if at == 0 { Err(Status::MwBind) } else { Ok(false) };
            }
            request.executed = true;
        }
        self.cursor = Cursor { request: at + 1, packet: 0 };
        self.retire_executed(conn, cx);
        Ok(true)
    }

    /// Completes what needed no packet and has become the oldest.
    #[inline]
    fn retire_executed(&mut self, conn: &Connection, cx: &mut impl Context) {
        if self.queue.front().is_some_and(|r| r.executed) {
            self.retire_all_executed(conn, cx);
        }
    }

    #[inline(never)]
    fn retire_all_executed(&mut self, conn: &Connection, cx: &mut impl Context) {
        while self.queue.front().is_some_and(|r| r.executed) {
            let Some(request) = self.queue.pop_front() else { return };
            if request.wr.signaled {
                cx.complete(Side::Send, request.completion(Status::Success, conn));
            }
            self.retired += 1;
            self.cursor.request = self.cursor.request.saturating_sub(1);
        }
    }

    /// Sends the packet at the cursor, if it may go now and fits.
    fn send_next(
        &mut self,
        now: Instant,
        conn: &Connection,
        share: u32,
        batch: &mut TxBatch,
        cx: &mut impl Context,
    ) -> Result<bool, Status> {
        match self.send_fragment(now, conn, share, batch, cx)? {
            Left::Yes => return Ok(true),
            Left::Later => return Ok(false),
            Left::No => {}
        }
        if self.send_run(now, conn, share, batch, cx) {
            return Ok(true);
        }
        let Cursor { request: index, packet: at } = self.cursor;
        let (under_way, has_room_for_read) = (self.under_way(), self.has_room_for_read());
        let Some(request) = self.queue.get_mut(index) else { return Ok(false) };
        let psns = request.psns(at);
        let full = under_way > 0 && under_way + psns > share;
        self.held_back |= full;
        // A window that shrank may be full of packets none of which asks for an ACK; then one more
        // goes that does.
        let must_ask = full && self.unasked == under_way;
        if full && !must_ask {
            return Ok(false);
        }
        if request.awaits_answer() && !has_room_for_read {
            return Ok(false);
        }
        let Some((mut header, payload_len)) = request.header(conn, self.next, at) else { return Ok(false) };
        let message_ends = at + psns == request.packets;
        // Asking twice a window keeps it moving.
        let asks =
            must_ask || message_ends || request.awaits_answer() || self.unasked + 1 >= (share / 2).max(1);
        header.bth.ack_request = asks;
        if !batch.has_room(packet_len(&header, payload_len)) {
            return Ok(false);
        }
        let memory = &cx.memory();
        let copied =
            batch.push_with_remainder(&header, payload_len, |dst| request.copy_out(conn, at, dst, memory));
        if copied.is_err() {
            request.fault = Some(Status::LocalProtection);
            return if index == 0 { Err(Status::LocalProtection) } else { Ok(false) };
        }
        self.reads += u32::from(request.awaits_answer());
        self.unasked = if asks { 0 } else { self.unasked + 1 };
        self.pass(psns, message_ends);
        self.sent(|| now, psns);
        Ok(true)
    }

    /// The cursor goes on by so many packets, which may end their message.
    pub(super) fn pass(&mut self, packets: u32, message_ends: bool) {
        let Cursor { request, packet } = self.cursor;
        self.cursor = match message_ends {
            true => Cursor { request: request + 1, packet: 0 },
            false => Cursor { request, packet: packet + packets },
        };
    }

    #[inline]
    pub(super) fn sent(&mut self, now: impl FnOnce() -> Instant, psns: u32) {
        if self.timer.is_none() || self.next == self.una {
            self.timer = self.limits.timeout.map(|t| now() + t);
        }
        self.next = self.next.add(psns);
        if self.high.before(self.next) {
            self.high = self.next;
        }
        self.local.sent(self.next);
    }

    /// PSNs sent, and not yet to be sent again.
    #[inline]
    pub(super) fn under_way(&self) -> u32 {
        self.next.since(self.una).max(0) as u32
    }

    // ---- the end ----

    pub(super) fn fail_oldest(&mut self, status: Status, conn: &Connection, cx: &mut impl Context) {
        if let Some(request) = self.queue.pop_front() {
            cx.complete(Side::Send, request.completion(status, conn));
        }
    }

    /// Completes all that is queued as flushed; nothing is waited for any more.
    pub(super) fn flush(&mut self, conn: &Connection, cx: &mut impl Context) {
        while let Some(request) = self.queue.pop_front() {
            cx.complete(Side::Send, request.completion(Status::WrFlush, conn));
        }
        self.cursor = Cursor::default();
        (self.timer, self.rnr_until) = (None, None);
        self.leave(cx);
    }

    #[inline]
    fn enter(&mut self, cx: &mut impl Context) {
        if !std::mem::replace(&mut self.entered, true) {
            cx.window().enter();
        }
    }

    #[inline]
    fn leave(&mut self, cx: &mut impl Context) {
        if std::mem::take(&mut self.entered) {
            cx.window().leave();
        }
    }
}

impl Limits {
    #[inline]
    fn refill(&mut self) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
    }
}

/// Packets that may be under way now.
#[inline]
fn share(cx: &impl Context) -> u32 {
    cx.window().share_of(cx.room())
}
