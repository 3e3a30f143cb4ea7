//! What the responder says (IBA 1.4 §9.7.5): ACKs and NAKs, READ responses, results of atomics.
//! Each answers for all PSNs before its own.

use std::time::Instant;

use wire::Psn;
use wire::bth::{Aeth, NakCode, Syndrome};
use wire::roce::{Op, ReadAt};

use super::{Connection, Cursor, Outcome, Requester, share};
use crate::likely::unlikely;
use crate::op::{Context, Fault, Payload, SendOp, Side, Status};
use crate::rc::local::{Arrival, CopyPath};

impl Requester {
    pub(crate) fn response(
        &mut self,
        now: Instant,
        conn: &Connection,
        packet: &Arrival<'_>,
        cx: &mut impl Context,
    ) -> Outcome {
        let psn = packet.header.bth.psn;
        let ahead = psn.since(self.una);
        if ahead < 0 || ahead >= self.high.since(self.una) {
            // A ghost: acknowledged long ago, or never sent (IBA 1.4 §9.7.5).
            return Ok(());
        }
        match packet.header.op {
            Op::Acknowledge(Aeth { syndrome, .. }) => self.acknowledge(now, conn, psn, syndrome, cx),
            Op::AtomicAcknowledge(Aeth { syndrome: Syndrome::Ack { .. }, .. }, original) => {
                self.atomic_answer(now, conn, psn, original, cx)
            }
            Op::ReadResponse(at) => self.read_answer(now, conn, psn, at, packet, cx),
            _ => Err(Status::BadResponse),
        }
    }

    fn acknowledge(
        &mut self,
        now: Instant,
        conn: &Connection,
        psn: Psn,
        syndrome: Syndrome,
        cx: &mut impl Context,
    ) -> Outcome {
        // An ACK acknowledges its own PSN, a NAK all before it (IBA 1.4 §9.7.5).
        let end = if matches!(syndrome, Syndrome::Ack { .. }) { psn.add(1) } else { psn };
        if !self.retire_before(now, conn, end, cx) {
            return match fatal(syndrome) {
                // The answer that is missing is of the very READ that is refused.
                Some(status) if self.in_oldest(psn) => Err(status),
                _ => {
                    self.implied_nak(cx);
                    Ok(())
                }
            };
        }
        match syndrome {
            Syndrome::Ack { .. } => Ok(()),
            Syndrome::RnrNak { timer } => self.rnr_nak(now, timer, cx),
            Syndrome::Nak(_) => fatal(syndrome).map_or_else(|| self.sequence_nak(cx), Err),
        }
    }

    /// Takes all before `end` as acknowledged; false where a READ or atomic stands before it whose
    /// answer has not come.
    fn retire_before(&mut self, now: Instant, conn: &Connection, end: Psn, cx: &mut impl Context) -> bool {
        let mut acked = 0;
        let reached = loop {
            let left = end.since(self.una);
            if left <= 0 {
                break true;
            }
            match self.queue.front() {
                Some(front) if front.awaits_answer() => break false,
                Some(front) => {
                    let n = front.left().min(left as u32);
                    acked += n;
                    self.advance(conn, n, cx);
                }
                None => break true,
            }
        };
        if acked > 0 {
            self.progress(now, acked, cx);
        }
        reached
    }

    /// The next `n` packets of the oldest request are done.
    #[inline(always)]
    pub(super) fn advance(&mut self, conn: &Connection, n: u32, cx: &mut impl Context) {
        let Some(front) = self.queue.front_mut() else { return };
        front.done += n;
        let (done, complete) = (front.done, front.left() == 0);
        self.una = self.una.add(n);
        if complete {
            if front.wr.signaled {
                cx.complete(Side::Send, front.completion(Status::Success, conn));
            }
            self.queue.pop_front();
            self.retired += 1;
            self.cursor.request = self.cursor.request.saturating_sub(1);
            self.retire_executed(conn, cx);
        }
        if unlikely(self.next.before(self.una)) {
            // What was to be sent again had arrived the first time.
            if !complete && let Some(front) = self.queue.front_mut() {
                front.go_back(share(cx));
            }
            self.next = self.una;
            self.cursor = Cursor { request: 0, packet: if complete { 0 } else { done } };
            self.reads = 0;
        }
    }

    /// The responder got further.
    #[inline(always)]
    pub(super) fn progress(&mut self, now: Instant, acked: u32, cx: &mut impl Context) {
        self.limits.refill();
        self.local.progress(self.una);
        self.rnr_until = None;
        self.went_back_at = None;
        self.unasked = self.unasked.min(self.under_way());
        if unlikely(self.recover.is_some_and(|end| !self.una.before(end))) {
            self.recover = None;
        }
        // What leaves while a loss is made good says nothing about room for more.
        if self.held_back && self.recover.is_none() {
            cx.window().acked(acked);
        }
        let idle = self.next == self.una;
        self.timer = if idle { None } else { self.limits.timeout.map(|t| now + t) };
        if self.una == self.high {
            self.leave(cx);
        }
    }

    fn read_answer(
        &mut self,
        now: Instant,
        conn: &Connection,
        psn: Psn,
        at: ReadAt,
        packet: &Arrival<'_>,
        cx: &mut impl Context,
    ) -> Outcome {
        if !self.retire_before(now, conn, psn, cx) {
            self.implied_nak(cx);
            return Ok(());
        }
        let Some(front) = self.queue.front() else { return Ok(()) };
        let good = match at {
            ReadAt::First(aeth) | ReadAt::Last(aeth) | ReadAt::Only(aeth) => {
                matches!(aeth.syndrome, Syndrome::Ack { .. })
            }
            ReadAt::Middle => true,
        };
        if front.awaits_nothing_but_word() {
            if !good || !matches!(at, ReadAt::Only(_)) || !packet.payload.is_empty() {
                return Err(Status::BadResponse);
            }
            self.answered(now, conn, 1, true, cx);
            return Ok(());
        }
        if !self.counts(packet.payload) {
            self.was_not_reached(cx);
            return Ok(());
        }
        let Some(front) = self.queue.front() else { return Ok(()) };
        if !good || !matches!(front.wr.op, SendOp::Read { .. }) || !front.expects(conn, at, packet) {
            return Err(Status::BadResponse);
        }
        let part_ends = front.ends_part(front.done + packet.packets);
        match front.copy_in(conn, packet.payload, packet.packets, &cx.memory()) {
            Ok(()) => {}
            Err(Fault::Away) => {
                self.was_not_reached(cx);
                return Ok(());
            }
            Err(_) => return Err(Status::LocalProtection),
        }
        self.answered(now, conn, packet.packets, part_ends, cx);
        Ok(())
    }

    /// Takes in responses from the midst of the oldest READ, which are next, as one; false where
    /// anything is unusual, and then nothing has changed.
    pub(crate) fn response_run(
        &mut self,
        now: Instant,
        conn: &Connection,
        run: &Arrival<'_>,
        cx: &mut impl Context,
    ) -> bool {
        let is_next = run.header.bth.psn == self.una && run.packets < self.high.since(self.una) as u32;
        let is_taken = is_next
            && self.queue.front().is_some_and(|front| {
                matches!(front.wr.op, SendOp::Read { .. })
                    && !front.has_resumed()
                    && front.way != CopyPath::ZeroCopy
                    && front.expects(conn, ReadAt::Middle, run)
                    && front.copy_in(conn, run.payload, run.packets, &cx.memory()).is_ok()
            });
        if is_taken {
            self.answered(now, conn, run.packets, false, cx);
        }
        is_taken
    }

    fn atomic_answer(
        &mut self,
        now: Instant,
        conn: &Connection,
        psn: Psn,
        original: u64,
        cx: &mut impl Context,
    ) -> Outcome {
        if !self.retire_before(now, conn, psn, cx) {
            self.implied_nak(cx);
            return Ok(());
        }
        let Some(front) = self.queue.front() else { return Ok(()) };
        if !matches!(front.wr.op, SendOp::Atomic { .. }) || front.awaits_nothing_but_word() {
            return Err(Status::BadResponse);
        }
        front
            .copy_in(conn, Payload::Own(&original.to_ne_bytes()), 1, &cx.memory())
            .map_err(|_| Status::LocalProtection)?;
        self.answered(now, conn, 1, true, cx);
        Ok(())
    }

    fn answered(
        &mut self,
        now: Instant,
        conn: &Connection,
        packets: u32,
        part_ends: bool,
        cx: &mut impl Context,
    ) {
        self.advance(conn, packets, cx);
        if part_ends {
            self.reads = self.reads.saturating_sub(1);
        }
        self.progress(now, packets, cx);
    }

    fn in_oldest(&self, psn: Psn) -> bool {
        self.queue.front().is_some_and(|front| psn.since(self.una) < front.left() as i32)
    }
}

/// The status of a request that met this answer, where no further try can help.
fn fatal(syndrome: Syndrome) -> Option<Status> {
    match syndrome {
        Syndrome::Nak(NakCode::InvalidRequest) => Some(Status::RemoteInvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccess) => Some(Status::RemoteAccess),
        Syndrome::Nak(NakCode::RemoteOperational) => Some(Status::RemoteOperation),
        Syndrome::Nak(NakCode::InvalidRdRequest) => Some(Status::RemoteInvalidRdRequest),
        Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Ack { .. } | Syndrome::RnrNak { .. } => None,
    }
}
