//! The way of most packets: a whole SEND that comes in its turn to a queue pair with nothing else
//! in hand. It is executed here in a few steps, or not at all, and then goes through all of them.
//! And the way of most messages to a process of this host, which need not look like packets, and
//! of runs: packets in the midst of a message for which PSN, length, key, range and answer are
//! settled once. A run that is not in its turn, or that would be refused, changes nothing.

use std::time::Instant;

use wire::Psn;
use wire::roce::{Header, Op, Packet, ReadAt, SendAt, SendTail, Service, WriteAt};
use wire::run::Run;

use super::local::Arrival;
use super::responder::Responder;
use super::{AckDelay, Connection, Rc, Role, State, request};
use crate::likely::{likely, unlikely};
use crate::op::{Completed, Completion, Context, DirectOutcome, Payload, SendWr, Whole};
use crate::short::{Short, What};

/// What is still to be done after a short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// What follows any step: packets may have to leave.
    Step,
    /// No packet leaves and no timer changes, but else as `Step`: an ACK is held back, as
    /// [`Rc::held`] says.
    Held,
    /// As `Held`, and [`Rc::acknowledge_oldest`] before anything else is done with the queue pair
    /// but [`Rc::next_short`]. It completes nothing, and no thread waits for it.
    Acknowledge,
}

impl Rc {
    /// How a message of so many bytes leaves that is posted now, where that is at once and as one
    /// packet, perhaps with an ACK. Nothing has changed. `oldest_is_done`: but for
    /// [`Rc::acknowledge_oldest`].
    // Always: what a call returns is stored in small parts and loaded as a whole, for which the
    // processor waits before the message leaves.
    #[inline(always)]
    pub fn next_short(
        &mut self,
        len: usize,
        solicited: bool,
        what: What,
        oldest_is_done: bool,
        cx: &mut impl Context,
    ) -> Option<Short> {
        let works = self.state == State::Rts && self.conn.role == Role::Rc && len <= self.conn.mtu;
        let acknowledged = match self.responder.answers.sole_ack() {
            None if unlikely(!self.responder.has_no_answers()) => return None,
            sole_ack => sole_ack,
        };
        let psn = if likely(works) { self.requester.next_fast(oldest_is_done, cx)? } else { return None };
        let (dest_qp, pkey) = (self.conn.dest, self.conn.pkey);
        Some(Short { dest_qp, pkey, psn, solicited, what, acknowledged })
    }

    /// Executes a WRITE, READ or atomic that is posted now, where nothing waits before it and it
    /// needs no packet. Else it is to be posted.
    #[inline]
    pub fn execute_alone(&mut self, wr: &SendWr, cx: &mut impl Context) -> bool {
        let works = self.state == State::Rts && self.conn.role == Role::Rc;
        let done = works && self.requester.execute_alone(&self.conn, wr, cx);
        if done {
            self.executed_directly();
        }
        done
    }

    /// Whether the caller may execute a WRITE, or a READ, that is posted now, while no other takes
    /// a place in the queue. Then it does, and says the outcome of it.
    #[inline]
    pub fn begins_alone(&self, is_read: bool) -> bool {
        self.state == State::Rts && self.conn.role == Role::Rc && self.requester.begins_alone(is_read)
    }

    /// The outcome of it, which is of so many bytes; whether it is done. Else it is to be posted.
    #[inline]
    pub fn executed_alone(&mut self, outcome: DirectOutcome, len: u32) -> bool {
        let done = self.requester.executed_alone(outcome, &self.conn, len);
        if done {
            self.executed_directly();
        }
        done
    }

    /// How it has ended, where that is well.
    #[inline]
    pub fn completion_of(&self, wr_id: u64, opcode: Completed, byte_len: u32) -> Completion {
        request::good(&self.conn, wr_id, opcode, byte_len)
    }

    /// A message has left as a short one, and the ACK with it; `request` is that message. `now` is
    /// asked where a timer begins.
    #[inline]
    pub fn sent_short(
        &mut self,
        now: impl FnOnce() -> Instant,
        request: impl FnOnce() -> SendWr,
        len: usize,
        cx: &mut impl Context,
    ) {
        self.requester.sent_fast(now, request, len as u32, cx);
        self.responder.answers.sole_ack_left();
        (self.held, self.unanswered) = (AckDelay::No, 0);
    }

    /// Takes in a short message, and the ACK that came with it; returns what is left to do after
    /// that.
    #[inline]
    pub fn receive_short(
        &mut self,
        now: Instant,
        short: &Short,
        bytes: &[u8],
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) -> Rest {
        let works = matches!(self.state, State::Rts | State::Sqd) && self.conn.role == Role::Rc;
        let tail = match short.what {
            What::Send => Some(SendTail::None),
            What::SendImmediate(data) => Some(SendTail::Immediate(data)),
            What::WriteImmediate(..) => None,
        };
        let message = |tail| Whole { bytes, tail, source_qp: self.conn.dest, solicited: short.solicited };
        let mut rest = Rest::Step;
        if likely(works)
            && let Some(message) = tail.map(message)
            && likely(self.responder.execute_fast(&self.conn, short.psn, &message, true, cx))
        {
            self.delay_ack(Op::SEND_ONLY, 1, ack_delay);
            if self.held == AckDelay::ForProgram && self.state == State::Rts {
                rest = Rest::Held;
            }
        } else {
            self.receive_any(now, &short.packet(bytes), ack_delay, cx);
        }
        let Some(psn) = short.acknowledged else { return rest };
        if rest == Rest::Held && self.requester.is_sole(psn) {
            // After it nothing is under way: no packet leaves, and no timer runs.
            if !self.requester.completes_visibly() {
                return Rest::Acknowledge;
            }
            self.requester.acknowledged_sole(now, &self.conn, cx);
            return Rest::Held;
        }
        if !(works && self.requester.acknowledged_fast(now, &self.conn, psn, cx))
            && let Some(ack) = short.ack()
        {
            self.receive_any(now, &ack, ack_delay, cx);
        }
        Rest::Step
    }

    /// The oldest request, which is the last one too, is acknowledged since `now`: what a short
    /// message has left to do ([`Rest::Acknowledge`]).
    #[inline]
    pub fn acknowledge_oldest(&mut self, now: Instant, cx: &mut impl Context) {
        self.requester.acknowledged_oldest(now, &self.conn, cx);
    }

    /// Executes a packet that is such a SEND; false where it is not, or something is not as it
    /// mostly is: then nothing has changed, and it is for [`Rc::receive`]. The state
    /// of the connection is as before.
    #[inline]
    pub fn receive_fast(&mut self, packet: &Packet<'_>, ack_delay: AckDelay, cx: &mut impl Context) -> bool {
        let Packet { header: Header { bth, service: Service::Rc, op }, payload: bytes } = *packet else {
            return false;
        };
        let Op::Send(SendAt::Only(tail @ (SendTail::None | SendTail::Immediate(_)))) = op else {
            return false;
        };
        let message = Whole { bytes, tail, source_qp: self.conn.dest, solicited: bth.solicited };
        let is_simple = self.conn.role == Role::Rc
            && matches!(self.state, State::Rts | State::Sqd)
            && self.responder.execute_fast(&self.conn, bth.psn, &message, bth.ack_request, cx);
        if is_simple {
            self.delay_ack(Op::SEND_ONLY, 1, ack_delay);
        }
        is_simple
    }

    /// Takes in a run of several packets from the midst of a message, as [`Rc::receive`] does with
    /// one after the other. False where anything is unusual: then nothing has changed, and the
    /// packets are for [`Rc::receive`].
    pub fn receive_run(
        &mut self,
        now: Instant,
        run: &Run<'_>,
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) -> bool {
        let header = &run.first().header;
        let Some(payloads) = run.payloads() else { return false };
        let works = self.conn.role == Role::Rc && matches!(self.state, State::Rts | State::Sqd);
        if !works || header.service != Service::Rc {
            return false;
        }
        let arrival = Arrival { header, payload: Payload::Strided(payloads), packets: run.count() };
        match header.op {
            Op::Send(SendAt::Middle) | Op::Write(WriteAt::Middle) => {
                let is_taken = self.responder.request_run(&self.conn, &arrival, cx);
                if is_taken {
                    self.delay_ack(header.op, run.count(), ack_delay);
                }
                is_taken
            }
            Op::ReadResponse(ReadAt::Middle) => self.requester.response_run(now, &self.conn, &arrival, cx),
            _ => false,
        }
    }
}

impl Responder {
    pub(super) fn take_begun(&mut self) -> bool {
        std::mem::take(&mut self.begun_is_news)
    }

    #[inline(always)]
    fn execute_fast(
        &mut self,
        conn: &Connection,
        psn: Psn,
        message: &Whole<'_>,
        ack_request: bool,
        cx: &mut impl Context,
    ) -> bool {
        // The first request of a connection is an event for the adapter.
        if unlikely(!self.is_due(psn) || !self.begun || message.bytes.len() > conn.mtu)
            || unlikely(!self.inbound.send_whole(message, cx))
        {
            return false;
        }
        self.take(1, true);
        if ack_request {
            self.answers.ack(psn, self.msn);
        }
        self.quiet = false;
        true
    }

    /// Executes packets from the midst of a SEND or a WRITE; false where nothing has changed.
    fn request_run(&mut self, conn: &Connection, run: &Arrival<'_>, cx: &mut impl Context) -> bool {
        if !self.is_due(run.header.bth.psn) || !self.begun {
            return false;
        }
        let before = self.inbound.message;
        let is_done = self.execute(conn, run, cx).is_ok();
        if is_done {
            self.quiet = false;
        } else {
            self.inbound.message = before;
        }
        is_done
    }
}
