//! The sending half (IBA 1.4 §9.8.2.1): messages leave packet by packet, at a pace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use wire::bth::Reth;
use wire::roce::{Op, SendTail};
use wire::{Psn, Qpn};

use super::Connection;
use crate::batch::{TxBatch, packet_len};
use crate::op::{Context, MAX_MESSAGE, SendOp, SendWr, Side, Status};
use crate::pacing::{Failing, Pace, Pacer, Takes, sent};
use crate::segmentation::{send_at, write_at};

#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<SendWr>,
    /// PSN sent next.
    psn: Psn,
    /// Bytes of the oldest request that have left, in full packets.
    sent: u64,
    pacer: Pacer,
    failing: Failing,
}

impl Requester {
    pub(super) fn new(pace: Arc<Pace>) -> Self {
        let (queue, psn, failing) = (VecDeque::new(), Psn::default(), Failing::default());
        Self { queue, psn, sent: 0, pacer: Pacer::new(pace), failing }
    }
    pub(super) fn start(&mut self, psn: Psn) {
        self.psn = psn;
    }
    pub(super) fn psn(&self) -> Psn {
        self.psn
    }
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }
    pub(super) fn between_messages(&self) -> bool {
        self.sent == 0
    }
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pacer.deadline()
    }
    pub(super) fn post(&mut self, wr: SendWr) {
        self.queue.push_back(wr);
    }

    /// The request that was posted last fails when its turn comes.
    pub(super) fn fail_last(&mut self, status: Status) {
        self.failing.set_last(self.queue.len(), status);
    }

    /// Sends what pace and batch allow; an error is the status of the oldest request.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        conn: &Connection,
        draining: bool,
        batch: &mut TxBatch,
        cx: &mut impl Context,
    ) -> Result<(), Status> {
        while let Some(wr) = self.queue.front() {
            if draining && self.sent == 0 {
                break;
            }
            if self.sent == 0
                && let Some(status) = self.failing.oldest()
            {
                return Err(status);
            }
            let len = legal_len(wr)?;
            let payload_len = (len - self.sent).min(conn.mtu as u64) as usize;
            let last = self.sent + payload_len as u64 == len;
            let mut header = conn.header(self.psn, operation(wr, self.sent == 0, last, len));
            header.bth.solicited = last && asks_event(wr);
            let packet_len = packet_len(&header, payload_len);
            if !batch.has_room(packet_len) || !self.pacer.may_send(now, packet_len, takes(wr)) {
                return Ok(());
            }
            let memory = &cx.memory();
            batch
                .push_with_remainder(&header, payload_len, |dst| wr.data.copy_out(self.sent, dst, memory))
                .map_err(|_| Status::LocalProtection)?;
            self.psn = self.psn.add(1);
            self.sent += payload_len as u64;
            if last {
                self.retire(conn.qpn, cx);
            }
        }
        self.pacer.rest();
        Ok(())
    }

    /// The oldest request has left.
    fn retire(&mut self, qpn: Qpn, cx: &mut impl Context) {
        self.sent = 0;
        self.failing.advance();
        if let Some(wr) = self.queue.pop_front()
            && wr.signaled
        {
            cx.complete(Side::Send, sent(&wr, Status::Success, qpn));
        }
    }

    pub(super) fn fail_oldest(&mut self, status: Status, qpn: Qpn, cx: &mut impl Context) {
        self.sent = 0;
        if let Some(wr) = self.queue.pop_front() {
            cx.complete(Side::Send, sent(&wr, status, qpn));
        }
    }

    /// Completes all that is queued as flushed.
    pub(super) fn flush(&mut self, qpn: Qpn, cx: &mut impl Context) {
        self.sent = 0;
        self.failing = Failing::default();
        self.pacer.rest();
        while let Some(wr) = self.queue.pop_front() {
            cx.complete(Side::Send, sent(&wr, Status::WrFlush, qpn));
        }
    }
}

/// Bytes of the message, at most 2^31; the status of a request that this service does not carry.
fn legal_len(wr: &SendWr) -> Result<u64, Status> {
    let len = wr.data.len_bytes();
    match wr.op {
        SendOp::Send(SendTail::None | SendTail::Immediate(_)) | SendOp::Write { .. } if len > MAX_MESSAGE => {
            Err(Status::LocalLength)
        }
        SendOp::Send(SendTail::None | SendTail::Immediate(_)) | SendOp::Write { .. } => Ok(len),
        // IBA 1.4 table 38.
        SendOp::Send(SendTail::Invalidate(_))
        | SendOp::Read { .. }
        | SendOp::Atomic { .. }
        | SendOp::Flush { .. }
        | SendOp::Local(_) => Err(Status::LocalQpOperation),
    }
}

/// What the message takes from its receiver.
fn takes(wr: &SendWr) -> Takes {
    if let SendOp::Write { .. } = wr.op { Takes::Room } else { Takes::Receive }
}

/// Whether the last packet of the message may ask for a solicited event: what consumes a receive
/// (IBA 1.4 §9.2.3).
fn asks_event(wr: &SendWr) -> bool {
    wr.solicited && matches!(wr.op, SendOp::Send(_) | SendOp::Write { immediate: Some(_), .. })
}

/// The operation of a packet by its place in a message of `len` bytes, at most 2^31.
fn operation(wr: &SendWr, first: bool, last: bool, len: u64) -> Op {
    match wr.op {
        SendOp::Write { addr, rkey, immediate } => {
            Op::Write(write_at(first, last, Reth { addr, rkey, length: len as u32 }, immediate))
        }
        SendOp::Send(tail) => Op::Send(send_at(first, last, tail)),
        // `legal_len` let none of these through.
        SendOp::Read { .. } | SendOp::Atomic { .. } | SendOp::Flush { .. } | SendOp::Local(_) => {
            Op::Send(send_at(first, last, SendTail::None))
        }
    }
}
