//! What the responder still has to say: ACKs, NAKs, READ responses and atomics' results, in the
//! order in which they must leave. READ responses are gathered as they leave, so a long READ costs
//! one entry.

use std::collections::VecDeque;

use wire::Psn;
use wire::bth::{Aeth, NakCode, Syndrome};
use wire::roce::{Op, ReadAt};

use super::Connection;
use super::local::{Fragment, send_fragment};
use crate::batch::{MIN_RUN, Payloads, TxBatch, packet_len};
use crate::op::{Context, Fault, Memory, Remote};

/// Most answers kept. A requester that has more outstanding is not heard until some have left; it
/// tries again.
const MAX_ANSWERS: usize = 1024;

/// What a turn takes of READ responses: 512 KiB, a fraction of a millisecond's work.
const QUANTUM_BYTES: usize = 512 << 10;
/// The least bytes that a READ response counts for: the work of a short one.
const LEAST_COST: usize = 1024;

/// The credit count of every ACK: no end-to-end flow control, as the kernel sends it.
const NO_CREDITS: u8 = 31;

#[derive(Debug)]
pub(super) enum Answer {
    /// ACK, NAK or RNR NAK.
    Acknowledge(Psn, Aeth),
    Atomic {
        psn: Psn,
        msn: u32,
        original: u64,
        repeated: bool,
    },
    Read(Read),
}

/// A READ being answered.
#[derive(Debug)]
pub(super) struct Read {
    /// PSN of packet 0.
    pub psn: Psn,
    pub msn: u32,
    pub from: Remote,
    /// Where it goes in the requester's memory, as long as both ends copy.
    pub place: Option<Remote>,
    /// At an XRC target, the shared receive queue whose domain the memory is of.
    pub srq: Option<u32>,
    pub packets: u32,
    /// The packet that leaves next.
    pub next: u32,
    /// Asked for again: does not count as one of the READs outstanding.
    pub repeated: bool,
}

impl Read {
    /// The opcode of the READ's next response packet, or of so many as one piece.
    pub(super) fn op(&self, count: u32) -> Op {
        let aeth = ack(self.msn);
        Op::ReadResponse(match (self.next == 0, self.next + count == self.packets) {
            (true, true) => ReadAt::Only(aeth),
            (true, false) => ReadAt::First(aeth),
            (false, true) => ReadAt::Last(aeth),
            (false, false) => ReadAt::Middle,
        })
    }
}

/// What an ACK says.
#[inline]
pub(crate) fn ack(msn: u32) -> Aeth {
    Aeth { syndrome: Syndrome::Ack { credits: NO_CREDITS }, msn }
}

/// The queue of answers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// READs and atomics in it that were asked for the first time.
    fresh: usize,
    /// READs and atomics in it that were asked for again.
    repeated: usize,
    /// What of [`QUANTUM_BYTES`] is used up.
    spent: usize,
    /// RNR NAKs that were ever queued.
    pub rnr_naks: u32,
}

impl Answers {
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= MAX_ANSWERS
    }
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// Whether an ACK is all there is to say.
    #[inline]
    pub(super) fn is_sole_ack(&self) -> bool {
        let is_ack =
            |a: &Answer| matches!(a, Answer::Acknowledge(_, Aeth { syndrome: Syndrome::Ack { .. }, .. }));
        self.queue.len() == 1 && self.queue.front().is_some_and(is_ack)
    }
    /// The number of the ACK that is all there is to say.
    #[inline]
    pub(super) fn sole_ack(&self) -> Option<Psn> {
        match self.queue.front() {
            Some(&Answer::Acknowledge(psn, _)) if self.is_sole_ack() => Some(psn),
            _ => None,
        }
    }
    /// The ACK that was all there is to say ([`Answers::sole_ack`]) has left.
    #[inline]
    pub(super) fn sole_ack_left(&mut self) {
        if self.is_sole_ack() {
            self.queue.clear();
        }
    }
    /// READs are answered again.
    pub(super) fn begin_quantum(&mut self) {
        self.spent = 0;
    }
    /// Whether a READ waits for that.
    #[inline]
    pub(super) fn needs_reschedule(&self) -> bool {
        self.spent >= QUANTUM_BYTES && matches!(self.queue.front(), Some(Answer::Read(_)))
    }
    /// READs and atomics asked for and not answered, repeated ones apart.
    pub(super) fn fresh(&self) -> usize {
        self.fresh
    }
    pub(super) fn repeated(&self) -> usize {
        self.repeated
    }

    /// An ACK stands for all before it, so one that follows another in the queue takes its place.
    #[inline]
    pub(super) fn ack(&mut self, psn: Psn, msn: u32) {
        match self.queue.back_mut() {
            Some(Answer::Acknowledge(last, aeth))
                if matches!(aeth.syndrome, Syndrome::Ack { .. }) && !psn.before(*last) =>
            {
                (*last, *aeth) = (psn, ack(msn));
            }
            _ => self.queue.push_back(Answer::Acknowledge(psn, ack(msn))),
        }
    }
    pub(super) fn nak(&mut self, psn: Psn, msn: u32, code: NakCode) {
        self.queue.push_back(Answer::Acknowledge(psn, Aeth { syndrome: Syndrome::Nak(code), msn }));
    }
    pub(super) fn rnr_nak(&mut self, psn: Psn, msn: u32, timer: u8) {
        self.rnr_naks += 1;
        self.queue.push_back(Answer::Acknowledge(psn, Aeth { syndrome: Syndrome::RnrNak { timer }, msn }));
    }
    pub(super) fn atomic(&mut self, psn: Psn, msn: u32, original: u64, repeated: bool) {
        *self.count(repeated) += 1;
        self.queue.push_back(Answer::Atomic { psn, msn, original, repeated });
    }
    pub(super) fn read(&mut self, read: Read) {
        *self.count(read.repeated) += 1;
        self.queue.push_back(Answer::Read(read));
    }

    /// Puts a READ asked for again in the place of a queued one that it continues or restarts, if
    /// there is one: the requester wants the rest only as it asks for it now. However often it
    /// asks, that is one READ's work.
    pub(super) fn replace(&mut self, again: &Read) -> bool {
        for answer in &mut self.queue {
            if let Answer::Read(read) = answer {
                let at = again.psn.since(read.psn);
                if at >= 0 && at as u32 + again.packets == read.packets {
                    *read = Read { repeated: read.repeated, ..*again };
                    return true;
                }
            }
        }
        false
    }
    /// Whether the result of the atomic at `psn` waits to leave.
    pub(super) fn holds_atomic(&self, psn: Psn) -> bool {
        self.queue.iter().any(|a| matches!(a, Answer::Atomic { psn: p, .. } if *p == psn))
    }
    /// Forgets the first READ and all that comes after it: nothing is read for a peer in the error
    /// state.
    pub(super) fn cut_off(&mut self) {
        if let Some(at) = self.queue.iter().position(|a| matches!(a, Answer::Read(_))) {
            self.truncate(at);
        }
    }

    /// Sends what fits.
    ///
    /// # Errors
    ///
    /// Memory refused a READ: a NAK takes the place of the rest of its response and of all that was
    /// to follow.
    pub(super) fn fill(
        &mut self,
        conn: &Connection,
        batch: &mut TxBatch,
        cx: &mut impl Context,
    ) -> Result<(), Fault> {
        let mut outcome = Ok(());
        while let Some(answer) = self.queue.front_mut() {
            let (psn, op) = match answer {
                Answer::Acknowledge(psn, aeth) => (*psn, Op::Acknowledge(*aeth)),
                Answer::Atomic { psn, msn, original, .. } => {
                    (*psn, Op::AtomicAcknowledge(ack(*msn), *original))
                }
                Answer::Read(read) => match fill_read(read, &mut self.spent, conn, batch, cx) {
                    Ok(true) => {
                        self.pop();
                        continue;
                    }
                    Ok(false) => break,
                    // Its memory went since it was executed: a requester that asks again is not
                    // told more than before.
                    Err(_) if read.repeated => {
                        self.pop();
                        continue;
                    }
                    Err(fault) => {
                        let (psn, msn) = (read.psn.add(read.next), read.msn);
                        self.truncate(0);
                        self.nak(psn, msn, NakCode::RemoteAccess);
                        outcome = Err(fault);
                        continue;
                    }
                },
            };
            let header = conn.header(psn, op);
            if !batch.has_room(packet_len(&header, 0)) || batch.push(&header, 0, |_| Ok(())).is_err() {
                break;
            }
            self.pop();
        }
        outcome
    }

    fn count(&mut self, repeated: bool) -> &mut usize {
        if repeated { &mut self.repeated } else { &mut self.fresh }
    }
    fn pop(&mut self) {
        if let Some(Answer::Atomic { repeated, .. } | Answer::Read(Read { repeated, .. })) =
            self.queue.pop_front()
        {
            *self.count(repeated) -= 1;
        }
    }
    fn truncate(&mut self, len: usize) {
        self.queue.truncate(len);
        let counted = |wanted: bool| {
            move |a: &&Answer| match a {
                Answer::Acknowledge(..) => false,
                Answer::Atomic { repeated, .. } => *repeated == wanted,
                Answer::Read(read) => read.repeated == wanted,
            }
        };
        self.fresh = self.queue.iter().filter(counted(false)).count();
        self.repeated = self.queue.iter().filter(counted(true)).count();
    }
}

/// Sends what fits of a READ's response, and into the turn; whether that was all.
fn fill_read(
    read: &mut Read,
    spent: &mut usize,
    conn: &Connection,
    batch: &mut TxBatch,
    cx: &mut impl Context,
) -> Result<bool, Fault> {
    let from = read.from;
    read.srq.map_or(Ok(()), |srq| cx.choose_srq(srq))?;
    while read.next < read.packets {
        if *spent < QUANTUM_BYTES {
            match send_fragment(read, conn, batch.is_empty(), cx)? {
                Fragment::Sent { packets, copied } => {
                    read.next += packets;
                    *spent += copied.max(LEAST_COST);
                    continue;
                }
                // What is in the batch leaves first.
                Fragment::Later => return Ok(false),
                Fragment::No => {}
            }
        }
        if let Some(count) = fill_run(read, *spent, conn, batch, cx) {
            read.next += count as u32;
            *spent += count * conn.mtu.max(LEAST_COST);
            continue;
        }
        let header = conn.header(read.psn.add(read.next), read.op(1));
        let payload_len = conn.payload_len(from.length as u32, read.next);
        if *spent >= QUANTUM_BYTES || !batch.has_room(packet_len(&header, payload_len)) {
            return Ok(false);
        }
        let at = u64::from(read.next) * conn.mtu as u64;
        batch.push_with_remainder(&header, payload_len, |dst| {
            if dst.is_empty() { Ok(None) } else { cx.memory().read_for_icrc(from, at, dst) }
        })?;
        read.next += 1;
        *spent += payload_len.max(LEAST_COST);
    }
    Ok(true)
}

/// Writes packets from the midst of a READ's response that need not be looked at one by one; how
/// many. `None` where these are too few, or memory refuses them: then nothing has changed.
fn fill_run(
    read: &Read,
    spent: usize,
    conn: &Connection,
    batch: &mut TxBatch,
    cx: &impl Context,
) -> Option<usize> {
    // Neither the first packet nor the last one.
    let in_answer = if read.next == 0 { 0 } else { (read.packets - read.next).saturating_sub(1) };
    let in_quantum = QUANTUM_BYTES.saturating_sub(spent) / conn.mtu.max(LEAST_COST);
    let wanted = in_quantum.min(in_answer as usize);
    if wanted < MIN_RUN {
        return None;
    }
    let header = conn.header(read.psn.add(read.next), read.op(1));
    let count = wanted.min(batch.room_for(packet_len(&header, conn.mtu)));
    if count < MIN_RUN {
        return None;
    }
    let at = u64::from(read.next) * conn.mtu as u64;
    let copy = |payloads: &mut Payloads<'_>| cx.memory().read_run(read.from, at, payloads);
    batch.push_run(&header, conn.mtu, count, copy).is_ok().then_some(count)
}
