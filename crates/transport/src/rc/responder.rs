//! The responder (IBA 1.4 §9.7): has requests executed ([`crate::execute`]) in the order of their
//! PSNs, each once, and queues the answers. `flush`: the FLUSH that takes longer than a packet.

mod flush;

use wire::Psn;
use wire::bth::{AtomicEth, NakCode, Reth};
use wire::roce::{Op, SendAt, WriteAt};

use super::answers::{Answers, Read, ack};
use super::local::Arrival;
use super::resources::{Executed, Resources};
use super::{Connection, OutOfOrder, RtrAttr};
use crate::TxBatch;
use crate::execute::{Inbound, Refusal, SendPiece};
use crate::op::{
    AtomicOp, Context, Fault, LocalPath, NetworkHeader, Payload, QpEvent, Remote, Status, ZeroCopy,
};
use crate::segmentation::{check_len, remote, send_place, write_place};

pub use flush::FlushTask;
use flush::Flushing;

/// Repeated READs and atomics answered beyond `max_dest_rd_atomic`; more are dropped.
const EXTRA_REPEATED: usize = 16;

/// A FLUSH repeated so often gets an RNR NAK: a requester repeats at most 7 times otherwise.
const MAX_REPEATED: u32 = 3;
/// How long the requester shall wait then: 82 ms (IBA 1.4 table 45).
const FLUSH_TIMER: u8 = 26;

#[derive(Debug, Default)]
pub(super) struct Responder {
    max_rd_atomic: usize,
    min_rnr_timer: u8,
    pub(super) expected: Psn,
    pub(super) msn: u32,
    /// A NAK has named the expected PSN: what lies after it is dropped in silence until it comes.
    pub(super) quiet: bool,
    /// A request of this connection was executed: the peer fits, as far as packets tell.
    pub(super) begun: bool,
    /// The adapter has not been told of that.
    pub(super) begun_is_news: bool,
    pub(super) inbound: Inbound,
    /// At an XRC target, the shared receive queue that the latest request executed was for.
    srq: Option<u32>,
    pub(super) answers: Answers,
    pub(super) flushing: Option<Box<Flushing>>,
    /// What may be asked for again.
    resources: Resources,
    /// The latest request that came again since a new one came.
    repeated: Option<Psn>,
    path_suspect: bool,
    pub(super) out_of_order: OutOfOrder,
}

/// The queue pair goes to the error state; the NAK is queued.
#[derive(Debug)]
pub(super) struct Broken(pub NakCode);

impl Responder {
    pub(super) fn start(&mut self, attr: RtrAttr) {
        self.max_rd_atomic = attr.max_dest_rd_atomic.into();
        self.min_rnr_timer = attr.min_rnr_timer;
        self.expected = attr.rq_psn;
    }
    /// Fewer than before: what is being answered is, and what is remembered stays until there is
    /// something new.
    pub(super) fn set_resources(&mut self, max_dest_rd_atomic: u8) {
        self.max_rd_atomic = max_dest_rd_atomic.into();
    }
    pub(super) fn set_min_rnr_timer(&mut self, code: u8) {
        self.min_rnr_timer = code & 31;
    }
    pub(super) fn rq_psn(&self) -> Psn {
        self.expected
    }
    pub(super) fn fill(
        &mut self,
        conn: &Connection,
        batch: &mut TxBatch,
        cx: &mut impl Context,
    ) -> Result<(), Fault> {
        self.answers.fill(conn, batch, cx)
    }
    pub(super) fn begin_quantum(&mut self) {
        self.answers.begin_quantum();
    }
    #[inline]
    pub(super) fn needs_reschedule(&self) -> bool {
        self.answers.needs_reschedule()
    }
    #[inline]
    pub(super) fn has_no_answers(&self) -> bool {
        self.answers.is_empty()
    }
    #[inline]
    pub(super) fn has_sole_ack(&self) -> bool {
        self.answers.is_sole_ack()
    }
    #[inline]
    pub(super) fn take_path_suspect(&mut self) -> bool {
        std::mem::take(&mut self.path_suspect)
    }
    /// Whether it is in the midst of nothing, answers apart.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.flushing.is_none() && !self.path_suspect && !self.begun_is_news
    }
    pub(super) fn cut_off(&mut self) {
        self.answers.cut_off();
    }

    /// A receive half filled completes as flushed.
    pub(super) fn flush(&mut self, conn: &Connection, cx: &mut impl Context) {
        self.flushing = None;
        if let Some(srq) = self.srq
            && self.inbound.holds_receive()
            && cx.choose_srq(srq).is_err()
        {
            // The queue is gone, and its receives with it.
            self.inbound = Inbound::default();
        }
        self.inbound.flush_receive(conn.ends(), cx);
    }

    /// A request, at an XRC target for the shared receive queue `srq`.
    pub(super) fn request(
        &mut self,
        conn: &Connection,
        packet: &Arrival<'_>,
        srq: Option<u32>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        if self.answers.is_full() {
            return Ok(());
        }
        let psn = packet.header.bth.psn;
        let ahead = psn.since(self.expected);
        if let Some(flushing) = &mut self.flushing {
            flushing.missed |= ahead > 0;
            flushing.repeated += u32::from(ahead == 0);
            // From then on the requester asks again after its RNR wait, as often as for receives.
            if ahead == 0 && flushing.repeated >= MAX_REPEATED {
                self.answers.rnr_nak(psn, self.msn, FLUSH_TIMER);
            }
            return Ok(());
        }
        if ahead < 0 {
            self.out_of_order.duplicates = self.out_of_order.duplicates.wrapping_add(packet.packets);
            self.repeat(conn, packet, srq);
            return Ok(());
        }
        if ahead > 0 {
            self.out_of_order.early = self.out_of_order.early.wrapping_add(packet.packets);
            if !std::mem::replace(&mut self.quiet, true) {
                self.answers.nak(self.expected, self.msn, NakCode::PsnSequence);
            }
            return Ok(());
        }
        match self.choose(srq, cx).and_then(|()| self.execute(conn, packet, cx)) {
            Ok(()) => {
                self.quiet = false;
                self.begun_is_news |= !self.begun;
                self.begun = true;
                Ok(())
            }
            Err(refusal) => self.refuse(conn, psn, refusal, cx),
        }
    }

    /// Answers a refused request (IBA 1.4 table 46): the requester tries again, or both ends fail.
    /// The receive of the message that is expected next completes with a status, and a NAK is the
    /// answer. False where no receive is posted.
    pub(super) fn fail_receive(
        &mut self,
        conn: &Connection,
        status: Status,
        code: NakCode,
        cx: &mut impl Context,
    ) -> bool {
        let is_posted = self.inbound.fail_receive(status, conn.ends(), cx);
        if is_posted {
            self.answers.nak(self.expected, self.msn, code);
        }
        is_posted
    }

    fn refuse(
        &mut self,
        conn: &Connection,
        psn: Psn,
        refusal: Refusal,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        let (code, event) = match refusal {
            Refusal::NoReceive | Refusal::Absent => {
                self.quiet = true;
                self.answers.rnr_nak(psn, self.msn, self.min_rnr_timer);
                return Ok(());
            }
            Refusal::Away => {
                self.quiet = true;
                self.answers.nak(psn, self.msn, NakCode::PsnSequence);
                return Ok(());
            }
            Refusal::TooLong => (NakCode::InvalidRequest, None),
            Refusal::Local(_) => (NakCode::RemoteOperational, None),
            Refusal::Remote(_) => (NakCode::RemoteAccess, Some(QpEvent::AccessError)),
            Refusal::Illegal => (NakCode::InvalidRequest, Some(QpEvent::RequestError)),
        };
        self.inbound.fail(refusal, conn.ends(), cx);
        self.answers.nak(psn, self.msn, code);
        event.into_iter().for_each(|e| cx.event(e));
        Err(Broken(code))
    }

    /// Turns to the shared receive queue of a request: of this domain, one for a whole message.
    fn choose(&mut self, srq: Option<u32>, cx: &mut impl Context) -> Result<(), Refusal> {
        let Some(number) = srq else { return Ok(()) };
        if self.inbound.in_message() && self.srq != srq {
            return Err(Refusal::Illegal);
        }
        cx.choose_srq(number).map_err(|_| Refusal::Illegal)?;
        self.srq = srq;
        Ok(())
    }

    /// Whether a request of this PSN is the one expected next, and may be executed now.
    #[inline(always)]
    pub(super) fn is_due(&self, psn: Psn) -> bool {
        psn == self.expected && self.flushing.is_none() && !self.answers.is_full()
    }

    /// The request expected next.
    pub(super) fn execute(
        &mut self,
        conn: &Connection,
        packet: &Arrival<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let bth = &packet.header.bth;
        let message_ends = match packet.header.op {
            Op::Send(at) => self.send(conn, at, packet, cx)?,
            Op::Write(at) => self.write(conn, at, packet, cx)?,
            Op::ReadRequest(reth) => {
                let place = place_of(packet.payload, reth)?;
                return self.read(conn, bth.psn, reth, place, cx);
            }
            Op::CompareSwap(eth) if packet.payload.is_empty() => {
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add };
                return self.atomic(bth.psn, eth, op, cx);
            }
            Op::FetchAdd(eth) if packet.payload.is_empty() => {
                return self.atomic(bth.psn, eth, AtomicOp::FetchAdd(eth.swap_or_add), cx);
            }
            Op::AtomicWrite(reth) => return self.atomic_write(bth.psn, reth, packet.payload.own(), cx),
            Op::Flush(feth, reth) if packet.payload.is_empty() => {
                return self.start_flush(bth.psn, feth, reth, cx);
            }
            _ => return Err(Refusal::Illegal),
        };
        self.take(packet.packets, message_ends);
        if bth.ack_request {
            self.answers.ack(bth.psn.add(packet.packets - 1), self.msn);
        }
        Ok(())
    }

    /// PSNs executed.
    pub(super) fn take(&mut self, psns: u32, message_ends: bool) {
        self.repeated = None;
        self.expected = self.expected.add(psns);
        self.msn = self.msn.wrapping_add(u32::from(message_ends)) & 0xff_ffff;
    }

    // ---- SEND and WRITE ----

    /// Whether the message ends with this packet.
    fn send(
        &mut self,
        conn: &Connection,
        at: SendAt,
        packet: &Arrival<'_>,
        cx: &mut impl Context,
    ) -> Result<bool, Refusal> {
        let (first, end) = send_place(at);
        check_len(packet.most_bytes(conn), packet.payload.len(), first, end.is_some())?;
        let bth = &packet.header.bth;
        let is_exported = matches!(packet.payload, Payload::ZeroCopy(ZeroCopy::Exported(_)));
        let shows = (is_exported && first && end.is_none())
            .then(|| conn.header(bth.psn, Op::Acknowledge(ack(self.msn))));
        let (solicited, header) = (bth.solicited, NetworkHeader::Unseen);
        let piece = SendPiece { bytes: packet.payload, first, end, solicited, header, shows };
        self.inbound.send(conn.ends(), piece, cx)?;
        Ok(end.is_some())
    }

    /// Whether the message ends with this packet.
    fn write(
        &mut self,
        conn: &Connection,
        at: WriteAt,
        packet: &Arrival<'_>,
        cx: &mut impl Context,
    ) -> Result<bool, Refusal> {
        let (to, last, immediate) = write_place(at);
        let bytes = packet.payload;
        check_len(packet.most_bytes(conn), bytes.len(), to.is_some(), last)?;
        match immediate {
            None => self.inbound.write(to, bytes, last, cx)?,
            Some(imm) => {
                let solicited = packet.header.bth.solicited;
                self.inbound.write_with_imm(conn.ends(), to, bytes, imm, solicited, cx)?;
            }
        }
        Ok(last)
    }

    // ---- READ and atomics ----

    fn read(
        &mut self,
        conn: &Connection,
        psn: Psn,
        reth: Reth,
        place: Option<Remote>,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        self.check_resources()?;
        let from = remote(reth);
        self.inbound.check_read(from, cx)?;
        if place.is_some() {
            // Nothing completes here, by which the peer would be heard.
            cx.local().hear();
        }
        let packets = conn.packets(reth.length);
        self.take(packets, true);
        let (msn, srq) = (self.msn, self.srq);
        self.resources.keep(Executed::Read { psn, packets, from, srq }, self.max_rd_atomic);
        self.answers.read(Read { psn, msn, from, place, srq, packets, next: 0, repeated: false });
        Ok(())
    }

    /// No more READs and atomics at once than were agreed.
    fn check_resources(&self) -> Result<(), Refusal> {
        if self.answers.fresh() < self.max_rd_atomic { Ok(()) } else { Err(Refusal::Illegal) }
    }

    fn atomic(
        &mut self,
        psn: Psn,
        eth: AtomicEth,
        op: AtomicOp,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        self.check_resources()?;
        let at = Remote { addr: eth.addr, length: 8, rkey: eth.rkey };
        let original = self.inbound.atomic(at, op, cx)?;
        self.take(1, true);
        let executed = Executed::Atomic { psn, addr: eth.addr, rkey: eth.rkey, original };
        self.resources.keep(executed, self.max_rd_atomic);
        self.answers.atomic(psn, self.msn, original, false);
        Ok(())
    }

    /// ATOMIC WRITE (IBA annex A19): answered by a READ response of no bytes, as the kernel does.
    fn atomic_write(
        &mut self,
        psn: Psn,
        reth: Reth,
        payload: &[u8],
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let Ok(value) = <[u8; 8]>::try_from(payload) else { return Err(Refusal::Illegal) };
        self.check_resources()?;
        self.inbound.atomic(remote(reth), AtomicOp::Write(u64::from_ne_bytes(value)), cx)?;
        self.take(1, true);
        self.resources.keep(Executed::AtomicWrite { psn, rkey: reth.rkey }, self.max_rd_atomic);
        self.answers.read(nothing(psn, self.msn, false));
        Ok(())
    }

    // ---- requests that came before ----

    /// A PSN from before the one expected (IBA 1.4 §9.7.5.1.2): nothing is executed twice, and what
    /// bears an answer of its own is answered as far as [`Resources`] remembers it. Memory is
    /// not asked before the answer leaves.
    fn repeat(&mut self, conn: &Connection, packet: &Arrival<'_>, srq: Option<u32>) {
        let psn = packet.header.bth.psn;
        // A peer that asks for the same again has not had our answers.
        if self.repeated.replace(psn).is_none_or(|last| !last.before(psn)) {
            self.path_suspect = true;
        }
        let no_payload = packet.payload.is_empty();
        match packet.header.op {
            Op::Send(_) | Op::Write(_) => self.answers.ack(self.expected.add(0xff_ffff), self.msn),
            Op::ReadRequest(reth) if no_payload && self.resources.has_read(conn, psn, reth, srq) => {
                let (msn, from, packets) = (self.msn, remote(reth), conn.packets(reth.length));
                self.read_again(Read { psn, msn, from, place: None, srq, packets, next: 0, repeated: true });
            }
            Op::AtomicWrite(reth) if self.resources.has_atomic_write(psn, reth.rkey) => {
                self.read_again(nothing(psn, self.msn, true));
            }
            Op::Flush(_, reth) if self.resources.has_flush(psn, reth.rkey) => {
                self.read_again(nothing(psn, self.msn, true));
            }
            Op::CompareSwap(eth) | Op::FetchAdd(eth) => {
                if let Some(original) = self.resources.atomic(psn, eth)
                    && self.has_room_for_repeated()
                    && !self.answers.holds_atomic(psn)
                {
                    self.answers.atomic(psn, self.msn, original, true);
                }
            }
            _ => {}
        }
    }

    fn read_again(&mut self, read: Read) {
        if !self.answers.replace(&read) && self.has_room_for_repeated() {
            self.answers.read(read);
        }
    }

    fn has_room_for_repeated(&self) -> bool {
        self.answers.repeated() < self.max_rd_atomic + EXTRA_REPEATED
    }
}

/// A READ response of no bytes.
fn nothing(psn: Psn, msn: u32, repeated: bool) -> Read {
    Read { psn, msn, from: Remote::default(), place: None, srq: None, packets: 1, next: 0, repeated }
}

/// Where a READ goes in the requester's memory, if it tells.
fn place_of(payload: Payload<'_>, reth: Reth) -> Result<Option<Remote>, Refusal> {
    match payload {
        Payload::ZeroCopy(ZeroCopy::Exported(place)) if place.length == reth.length.into() => Ok(Some(place)),
        payload if payload.is_empty() => Ok(None),
        _ => Err(Refusal::Illegal),
    }
}
