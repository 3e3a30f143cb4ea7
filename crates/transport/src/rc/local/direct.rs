//! Direct copies: a WRITE, READ, atomic or FLUSH that the requester executes in the peer's memory,
//! without a packet and without the peer's responder.
//!
//! A request is executed only while it is the oldest, so all are executed in the order in which
//! they were posted. What is refused leaves as packets, and the peer's responder says why.

use super::choice::{is_direct, is_zero_copy};
use super::{CopyPath, Local};
use crate::op::{Context, DirectOutcome, LocalPath, SendOp, SendWr, Side, Status};
use crate::rc::Connection;
use crate::rc::request::{self, Request, moves_bytes};
use crate::rc::requester::Requester;

/// Bytes of requests that one turn copies at most, but for the last one of them. The queue pair is
/// locked meanwhile, and a thread that posted a list waits.
pub(super) const QUANTUM_BYTES: u64 = 8 << 20;

impl Local {
    /// Notes the outcome of a request that was to be executed directly, `number` in order.
    fn note(&mut self, outcome: DirectOutcome, number: u64) {
        match outcome {
            DirectOutcome::Done => {
                self.executed = true;
                self.refused.reset();
            }
            DirectOutcome::Refused => self.refused.refuse(number),
            DirectOutcome::Unavailable => {}
        }
    }
}

impl Requester {
    /// Begins the next turn: requests are copied again.
    pub(crate) fn begin_quantum(&mut self) {
        self.local.copied = 0;
    }

    /// Whether the oldest request waits for the next turn.
    #[inline]
    pub(crate) fn needs_reschedule(&self) -> bool {
        self.local.copied >= QUANTUM_BYTES
            && self.queue.front().is_some_and(|next| !next.begun && next.is_one_sided())
    }

    /// Chooses the way of the request at `at`, which has just begun, and executes it if it needs no
    /// packet.
    pub(in crate::rc) fn begin_local(&mut self, at: usize, mtu: u32, cx: &mut impl Context) {
        let may = self.local.proven & !std::mem::take(&mut self.local.needs_packets);
        let Some(request) = self.queue.get_mut(at).filter(|request| request.fault.is_none()) else { return };
        if at == 0 && may && request.is_one_sided() && is_direct(&request.wr, &cx.local()) {
            let outcome = cx.local().copy(&request.wr);
            if outcome == DirectOutcome::Done {
                request.executed = true;
                self.local.copied += request.wr.data.len_bytes();
                self.local.unsent_psns = self.local.unsent_psns.wrapping_add(request.packets);
            }
            self.local.note(outcome, self.retired);
        }
        self.begin_zero_copy(at, mtu, cx);
    }

    /// Whether the request at `at` waits until those before it are complete, because it needs no
    /// packet then: after a WRITE or READ, which is complete soon.
    pub(in crate::rc) fn waits_to_be_executed(&self, at: usize, cx: &mut impl Context) -> bool {
        let Some(next) = self.queue.get(at).filter(|next| !next.begun && next.is_one_sided()) else {
            return false;
        };
        let follows_bytes = at > 0 && self.queue.get(at - 1).is_some_and(Request::moves_bytes);
        if !follows_bytes || !self.local.proven || !self.local.refused.allows(self.retired) {
            return false;
        }
        let local = cx.local();
        (local.reaches() || local.is_mapped(&next.wr)) && is_direct(&next.wr, &local)
    }

    /// Executes a WRITE, READ or atomic that is posted now, where it is alone and needs no packet:
    /// then it has completed. Else it is to be posted.
    #[inline]
    pub(crate) fn execute_alone(&mut self, conn: &Connection, wr: &SendWr, cx: &mut impl Context) -> bool {
        if !self.takes_alone(wr) || !is_direct(wr, &cx.local()) {
            return false;
        }
        let outcome = cx.local().copy(wr);
        // It was not more than is copied at once.
        let len = wr.data.len_bytes() as u32;
        let done = self.executed_alone(outcome, conn, len);
        if done && wr.signaled {
            cx.complete(Side::Send, request::completion(wr, len, Status::Success, conn));
        }
        done
    }

    /// Whether a request is of those that may need no packet, and nothing waits before it.
    #[inline]
    fn takes_alone(&self, wr: &SendWr) -> bool {
        let may = match wr.op {
            SendOp::Read { .. } | SendOp::Atomic { .. } => self.reads_are_allowed(),
            _ => moves_bytes(wr),
        };
        may && self.is_idle()
    }

    /// Whether nothing waits, the peer is known to take what comes next, and what is posted now was
    /// not tried just now.
    #[inline]
    fn is_idle(&self) -> bool {
        let may = self.local.proven & !self.local.needs_packets;
        self.queue.is_empty() && self.rnr_until.is_none() && may
    }

    /// Whether the caller may execute a WRITE, or a READ, that is posted now, while no other is
    /// outstanding or unpolled; it reports the outcome to [`Requester::executed_alone`].
    #[inline]
    pub(crate) fn begins_alone(&self, is_read: bool) -> bool {
        self.is_idle() && (!is_read || self.reads_are_allowed())
    }

    /// Notes the outcome of a request of `len` bytes that is not queued; whether it is done.
    #[inline]
    pub(crate) fn executed_alone(&mut self, outcome: DirectOutcome, conn: &Connection, len: u32) -> bool {
        self.local.note(outcome, self.retired);
        let done = outcome == DirectOutcome::Done;
        self.local.needs_packets = !done;
        self.retired += u64::from(done);
        if done {
            let packets = if len as usize <= conn.mtu { 1 } else { conn.packets(len) };
            self.local.unsent_psns = self.local.unsent_psns.wrapping_add(packets);
        }
        done
    }

    /// Has both ends copy the request at `at`, if the rule says so.
    fn begin_zero_copy(&mut self, at: usize, mtu: u32, cx: &mut impl Context) {
        let number = self.retired + at as u64;
        let Some(request) = self.queue.get_mut(at).filter(|request| !request.executed) else { return };
        let is_open = self.local.zero_copy.as_ref().is_none_or(|zero_copy| zero_copy.allows(number));
        if !is_open || !is_zero_copy(&request.wr, &cx.local()) {
            return;
        }
        let zero_copy = self.local.zero_copy.get_or_insert_default();
        request.way = CopyPath::ZeroCopy;
        if matches!(request.wr.op, SendOp::Read { .. }) {
            zero_copy.begin_read(number);
            request.set_part(super::reads::PART / mtu);
        }
    }
}
