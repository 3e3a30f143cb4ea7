//! The responder (IBA 1.4 §9.7): executes requests in the order of their PSNs, each once, and queues the
//! answers.

use std::task::Poll;

use wire::bth::{AtomicEth, Feth, NakCode, Reth};
use wire::roce::{Op, Packet, SendAt, SendTail, WriteAt};
use wire::{Psn, Rkey};

use super::answers::{Answers, Read};
use super::resources::{Executed, Resources};
use super::{MAX_MESSAGE, Path, RtrAttr};
use crate::TxBatch;
use crate::op::{
    Access, AtomicOp, Completed, Completion, Context, Fault, Flush, Memory, NetworkHeader, QpEvent, RecvWr,
    Remote, Side, Status, TagInfo, Tagged, Tail,
};

/// Repeated READs and atomics answered at once beyond `max_dest_rd_atomic`; more are dropped, their requester asks again.
const EXTRA_REPEATED: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Responder {
    max_rd_atomic: usize,
    min_rnr_timer: u8,
    expected: Psn,
    msn: u32,
    /// A NAK has named the expected PSN: what lies after it is dropped in silence until it comes.
    quiet: bool,
    message: Message,
    /// At an XRC target, the shared receive queue that the latest request executed was for.
    srq: Option<u32>,
    answers: Answers,
    flushing: Option<Box<Flushing>>,
    /// What may be asked for again.
    resources: Resources,
    /// The latest request that came again since a new one came.
    repeated: Option<Psn>,
    path_suspect: bool,
}

/// The message of several packets that is arriving.
#[derive(Debug, Default)]
enum Message {
    #[default]
    None,
    Send {
        receive: RecvWr,
        received: u64,
        tagged: Option<Tagged>,
    },
    Write {
        to: Remote,
        received: u64,
    },
}

/// The FLUSH that is not done yet. Until it is, nothing is executed that comes after it: an ATOMIC WRITE must not pass it
/// (IBA annex A19).
#[derive(Debug)]
struct Flushing {
    psn: Psn,
    rkey: Rkey,
    task: Option<FlushTask>,
    /// A later request came and was dropped: it will be asked for.
    missed: bool,
}

/// A FLUSH that takes long, for [`Rc::take_flush`](super::Rc::take_flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTask {
    /// What the peer named; the key and, of a range, the bytes.
    pub range: Remote,
    /// How.
    pub how: Flush,
    /// At an XRC target, the shared receive queue in whose domain that counts.
    pub srq: Option<u32>,
}

/// Why a request is not executed.
enum Refusal {
    /// No receive is posted: the requester may try again.
    NotReady,
    /// The queue pair can not go on.
    Nak(NakCode, Option<QpEvent>),
}

/// The request breaks the protocol ("invalid request", IBA 1.4 table 46).
const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest, Some(QpEvent::RequestError));

impl From<Fault> for Refusal {
    /// A fault at the address that the peer named.
    fn from(_: Fault) -> Refusal {
        Refusal::Nak(NakCode::RemoteAccess, Some(QpEvent::AccessError))
    }
}

/// The queue pair goes to the error state; the NAK is queued.
#[derive(Debug)]
pub(super) struct Broken;

impl Responder {
    pub fn start(&mut self, attr: RtrAttr) {
        self.max_rd_atomic = attr.max_dest_rd_atomic.into();
        self.min_rnr_timer = attr.min_rnr_timer;
        self.expected = attr.rq_psn;
    }
    /// Fewer than before: what is being answered is, and what is remembered stays until there is something new.
    pub fn set_resources(&mut self, max_dest_rd_atomic: u8) {
        self.max_rd_atomic = max_dest_rd_atomic.into();
    }
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.min_rnr_timer = code & 31;
    }
    pub fn rq_psn(&self) -> Psn {
        self.expected
    }
    pub fn fill(&mut self, path: &Path, batch: &mut TxBatch, cx: &mut impl Context) -> Result<(), Fault> {
        self.answers.fill(path, batch, cx)
    }
    pub fn begin_turn(&mut self) {
        self.answers.begin_turn();
    }
    pub fn wants_turn(&self) -> bool {
        self.answers.wants_turn()
    }
    pub fn has_lone_ack(&self) -> bool {
        self.answers.is_lone_ack()
    }
    pub fn take_path_suspect(&mut self) -> bool {
        std::mem::take(&mut self.path_suspect)
    }
    pub fn cut_off(&mut self) {
        self.answers.cut_off();
    }
    pub fn take_flush(&mut self) -> Option<FlushTask> {
        self.flushing.as_mut()?.task.take()
    }

    /// The FLUSH is done.
    pub fn flushed(&mut self, result: Result<(), Fault>, cx: &mut impl Context) -> Result<(), Broken> {
        let Some(flushing) = self.flushing.take() else { return Ok(()) };
        let Flushing { psn, rkey, missed, .. } = *flushing;
        if result.is_err() {
            self.answers.nak(psn, self.msn, NakCode::RemoteAccess);
            cx.event(QpEvent::AccessError);
            return Err(Broken);
        }
        self.flush_done(psn, rkey);
        if missed {
            self.quiet = true;
            self.answers.nak(self.expected, self.msn, NakCode::PsnSequence);
        }
        Ok(())
    }

    /// A receive half filled completes as flushed.
    pub fn flush(&mut self, path: &Path, cx: &mut impl Context) {
        self.flushing = None;
        if let Message::Send { receive, tagged, .. } = std::mem::take(&mut self.message) {
            if let Some(srq) = self.srq
                && cx.choose_srq(srq).is_err()
            {
                // The queue is gone, and its receives with it.
                return;
            }
            let mut completion = received(&receive, Status::WrFlush, path);
            completion.opcode = tagged.map_or(Completed::Receive, |t| t.opcode);
            cx.complete(Side::Receive, completion);
        }
    }

    /// A request, at an XRC target for the shared receive queue `srq`.
    pub fn request(
        &mut self,
        path: &Path,
        packet: &Packet<'_>,
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
            return Ok(());
        }
        if ahead < 0 {
            self.repeat(path, packet, srq);
            return Ok(());
        }
        if ahead > 0 {
            if !std::mem::replace(&mut self.quiet, true) {
                self.answers.nak(self.expected, self.msn, NakCode::PsnSequence);
            }
            return Ok(());
        }
        match self.choose(srq, cx).and_then(|()| self.execute(path, packet, cx)) {
            Ok(()) => {
                self.quiet = false;
                Ok(())
            }
            Err(Refusal::NotReady) => {
                self.quiet = true;
                self.answers.rnr_nak(psn, self.msn, self.min_rnr_timer);
                Ok(())
            }
            Err(Refusal::Nak(code, event)) => {
                self.answers.nak(psn, self.msn, code);
                event.into_iter().for_each(|e| cx.event(e));
                Err(Broken)
            }
        }
    }

    /// Turns to the shared receive queue that a request is for: one that the domain has, the same in a whole message.
    fn choose(&mut self, srq: Option<u32>, cx: &mut impl Context) -> Result<(), Refusal> {
        let Some(number) = srq else { return Ok(()) };
        if !matches!(self.message, Message::None) && self.srq != srq {
            return Err(INVALID);
        }
        cx.choose_srq(number).map_err(|_| INVALID)?;
        self.srq = srq;
        Ok(())
    }

    /// The request expected next.
    fn execute(&mut self, path: &Path, packet: &Packet<'_>, cx: &mut impl Context) -> Result<(), Refusal> {
        let bth = &packet.header.bth;
        let message_ends = match packet.header.op {
            Op::Send(at) => self.send(path, at, packet, cx)?,
            Op::Write(at) => self.write(path, at, packet, cx)?,
            Op::ReadRequest(reth) if packet.payload.is_empty() => return self.read(path, bth.psn, reth, cx),
            Op::CompareSwap(eth) if packet.payload.is_empty() => {
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add };
                return self.atomic(bth.psn, eth, op, cx);
            }
            Op::FetchAdd(eth) if packet.payload.is_empty() => {
                return self.atomic(bth.psn, eth, AtomicOp::FetchAdd(eth.swap_or_add), cx);
            }
            Op::AtomicWrite(reth) => return self.atomic_write(bth.psn, reth, packet.payload, cx),
            Op::Flush(feth, reth) if packet.payload.is_empty() => {
                return self.start_flush(bth.psn, feth, reth, cx);
            }
            _ => return Err(INVALID),
        };
        self.take(1, message_ends);
        if bth.ack_request {
            self.answers.ack(bth.psn, self.msn);
        }
        Ok(())
    }

    /// PSNs executed.
    fn take(&mut self, psns: u32, message_ends: bool) {
        self.repeated = None;
        self.expected = self.expected.add(psns);
        self.msn = self.msn.wrapping_add(u32::from(message_ends)) & 0xff_ffff;
    }

    // ---- SEND ----

    /// Whether the message ends with this packet.
    fn send(
        &mut self,
        path: &Path,
        at: SendAt,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Result<bool, Refusal> {
        let (first, tail) = match at {
            SendAt::First => (true, None),
            SendAt::Middle => (false, None),
            SendAt::Last(tail) => (false, Some(tail)),
            SendAt::Only(tail) => (true, Some(tail)),
        };
        check_len(path, packet.payload, first, tail.is_some())?;
        let mut payload = packet.payload;
        match (&self.message, first) {
            (Message::None, true) => {
                let place = cx.place(payload, tail.is_some()).ok_or(Refusal::NotReady)?;
                payload = payload.get(place.part).unwrap_or_default();
                let tagged = match place.tagged {
                    Some(t) if tail.is_none() => Some(tell_match(t, &place.receive, path, cx)),
                    other => other,
                };
                self.message = Message::Send { receive: place.receive, received: 0, tagged };
            }
            (Message::Send { .. }, false) => {}
            _ => return Err(INVALID),
        }
        self.append(path, payload, tail, packet.header.bth.solicited, cx)?;
        Ok(tail.is_some())
    }

    /// Puts the payload where the receive says; completes it at the end of the message, or where it can not take it.
    fn append(
        &mut self,
        path: &Path,
        payload: &[u8],
        tail: Option<SendTail>,
        solicited: bool,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let Message::Send { receive, received: before, .. } = &mut self.message else { return Err(INVALID) };
        let after = *before + payload.len() as u64;
        let failure = if after > receive.sges.len_bytes().min(MAX_MESSAGE) {
            // IBA 1.4 §9.7.4: the message is too long for the receive.
            Some((Status::LocalLength, NakCode::InvalidRequest))
        } else if payload.is_empty() {
            None
        } else {
            let copied =
                cx.receive_memory().scatter(receive.sges.as_slice(), *before, payload, tail_of(tail));
            // The responder's own fault, not the requester's.
            copied.err().map(|_| (Status::LocalProtection, NakCode::RemoteOperational))
        };
        let failure = match tail {
            // Before the completion that tells of it (IBA 1.4 §9.4.1.1.3).
            Some(SendTail::Invalidate(key)) if failure.is_none() => {
                let invalidated = cx.memory().invalidate(key);
                invalidated.err().map(|_| (Status::RemoteInvalidRequest, NakCode::RemoteAccess))
            }
            _ => failure,
        };
        *before = after;
        let status = match (failure, tail) {
            (Some((status, _)), _) => status,
            (None, Some(_)) => Status::Success,
            (None, None) => return Ok(()),
        };
        if let Message::Send { receive, tagged, .. } = std::mem::take(&mut self.message) {
            let mut completion = received(&receive, status, path);
            if let Some(tagged) = tagged {
                completion.opcode = tagged.opcode;
            }
            if let (Status::Success, Some(tail)) = (status, tail) {
                completion.byte_len = after as u32;
                completion.tail = tail;
                completion.solicited = solicited;
                match tagged {
                    Some(tagged) => (completion.status, completion.tm) = (tagged.status, tagged.info),
                    None => completion.header = NetworkHeader::Unseen,
                }
            }
            cx.complete(Side::Receive, completion);
        }
        match failure {
            None => Ok(()),
            // The key that the peer named; all else is our own fault.
            Some((_, code @ NakCode::RemoteAccess)) => Err(Refusal::Nak(code, Some(QpEvent::AccessError))),
            Some((_, code)) => Err(Refusal::Nak(code, None)),
        }
    }

    // ---- WRITE ----

    /// Whether the message ends with this packet.
    fn write(
        &mut self,
        path: &Path,
        at: WriteAt,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Result<bool, Refusal> {
        let (reth, ends, immediate) = match at {
            WriteAt::First(reth) => (Some(reth), false, None),
            WriteAt::Middle => (None, false, None),
            WriteAt::Last(immediate) => (None, true, immediate),
            WriteAt::Only(reth, immediate) => (Some(reth), true, immediate),
        };
        check_len(path, packet.payload, reth.is_some(), ends)?;
        let (to, before) = match (&self.message, reth) {
            (Message::None, Some(reth)) => (remote(reth), 0),
            (Message::Write { to, received }, None) => (*to, *received),
            _ => return Err(INVALID),
        };
        let after = before + packet.payload.len() as u64;
        // A last packet ends the length that the RETH says; any other leaves some for it.
        if to.length > MAX_MESSAGE || (ends && after != to.length) || (!ends && after >= to.length) {
            return Err(INVALID);
        }
        if reth.is_some() && to.length > 0 {
            cx.memory().check(to, Access::Write)?;
        }
        let receive = match immediate {
            Some(_) => Some(cx.take_receive().ok_or(Refusal::NotReady)?),
            None => None,
        };
        let tail = if ends { Tail::End } else { Tail::More };
        let copied = match packet.payload {
            [] => Ok(()),
            payload => cx.memory().write(to, before, payload, tail),
        };
        self.message = if ends { Message::None } else { Message::Write { to, received: after } };
        if let (Some(receive), Some(immediate)) = (&receive, immediate) {
            let status = if copied.is_ok() { Status::Success } else { Status::WrFlush };
            let mut completion = received(receive, status, path);
            completion.opcode = Completed::ReceiveWriteImmediate;
            if copied.is_ok() {
                completion.byte_len = after as u32;
                completion.tail = SendTail::Immediate(immediate);
                completion.header = NetworkHeader::Unseen;
                completion.solicited = packet.header.bth.solicited;
            }
            cx.complete(Side::Receive, completion);
        }
        copied?;
        Ok(ends)
    }

    // ---- READ and atomics ----

    fn read(&mut self, path: &Path, psn: Psn, reth: Reth, cx: &mut impl Context) -> Result<(), Refusal> {
        let from = self.check_read(reth)?;
        if self.answers.fresh() >= self.max_rd_atomic {
            return Err(INVALID);
        }
        if from.length > 0 {
            cx.memory().check(from, Access::Read)?;
        }
        let packets = path.packets(reth.length);
        self.take(packets, true);
        let (msn, srq) = (self.msn, self.srq);
        self.resources.keep(Executed::Read { psn, packets, from, srq }, self.max_rd_atomic);
        self.answers.read(Read { psn, msn, from, srq, packets, next: 0, repeated: false });
        Ok(())
    }

    fn check_read(&self, reth: Reth) -> Result<Remote, Refusal> {
        let legal = matches!(self.message, Message::None) && u64::from(reth.length) <= MAX_MESSAGE;
        if legal { Ok(remote(reth)) } else { Err(INVALID) }
    }

    fn atomic(
        &mut self,
        psn: Psn,
        eth: AtomicEth,
        op: AtomicOp,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        if !matches!(self.message, Message::None)
            || !eth.addr.is_multiple_of(8)
            || self.answers.fresh() >= self.max_rd_atomic
        {
            return Err(INVALID);
        }
        let original = cx.memory().atomic(Remote { addr: eth.addr, length: 8, rkey: eth.rkey }, op)?;
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
        let Ok(value) = <[u8; 8]>::try_from(payload) else { return Err(INVALID) };
        if !matches!(self.message, Message::None)
            || reth.length != 8
            || !reth.addr.is_multiple_of(8)
            || self.answers.fresh() >= self.max_rd_atomic
        {
            return Err(INVALID);
        }
        cx.memory().atomic(remote(reth), AtomicOp::Write(u64::from_ne_bytes(value)))?;
        self.take(1, true);
        self.resources.keep(Executed::AtomicWrite { psn, rkey: reth.rkey }, self.max_rd_atomic);
        self.answers.read(nothing(psn, self.msn, false));
        Ok(())
    }

    /// FLUSH (IBA annex A19): answered by a READ response of no bytes, as the kernel does, when it is done. The kernel's
    /// requester does not count it among its READs, so neither is it counted here.
    fn start_flush(
        &mut self,
        psn: Psn,
        feth: Feth,
        reth: Reth,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let how = Flush {
            global: feth.placement & 1 != 0,
            persistent: feth.placement & 2 != 0,
            whole: feth.selectivity == 1,
        };
        let legal = (1..=3).contains(&feth.placement) && feth.selectivity <= 1;
        if !legal || !matches!(self.message, Message::None) {
            return Err(INVALID);
        }
        match cx.memory().flush(remote(reth), how) {
            Poll::Ready(done) => {
                done?;
                self.flush_done(psn, reth.rkey);
            }
            Poll::Pending => {
                let task = FlushTask { range: remote(reth), how, srq: self.srq };
                self.flushing =
                    Some(Box::new(Flushing { psn, rkey: reth.rkey, task: Some(task), missed: false }));
            }
        }
        Ok(())
    }

    fn flush_done(&mut self, psn: Psn, rkey: Rkey) {
        self.take(1, true);
        self.resources.keep_flush(psn, rkey);
        self.answers.read(nothing(psn, self.msn, true));
    }

    // ---- requests that came before ----

    /// A PSN from before the one expected (IBA 1.4 §9.7.5.1.2): nothing is executed twice, and what bears an answer of its own
    /// is answered as far as [`Resources`] remembers it. Memory is not asked before the answer leaves.
    fn repeat(&mut self, path: &Path, packet: &Packet<'_>, srq: Option<u32>) {
        let psn = packet.header.bth.psn;
        // A peer that asks for the same again has not had our answers.
        if self.repeated.replace(psn).is_none_or(|last| !last.before(psn)) {
            self.path_suspect = true;
        }
        let no_payload = packet.payload.is_empty();
        match packet.header.op {
            Op::Send(_) | Op::Write(_) => self.answers.ack(self.expected.add(0xff_ffff), self.msn),
            Op::ReadRequest(reth) if no_payload && self.resources.has_read(path, psn, reth, srq) => {
                let (msn, from, packets) = (self.msn, remote(reth), path.packets(reth.length));
                self.read_again(Read { psn, msn, from, srq, packets, next: 0, repeated: true });
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

/// Payload lengths by a packet's place in its message (IBA 1.4 §9.7.4): full but for the last, which is not empty
/// unless it is the only one.
fn check_len(path: &Path, payload: &[u8], first: bool, last: bool) -> Result<(), Refusal> {
    let len = payload.len();
    let legal = match (first, last) {
        (_, false) => len == path.mtu,
        (false, true) => (1..=path.mtu).contains(&len),
        (true, true) => len <= path.mtu,
    };
    if legal { Ok(()) } else { Err(INVALID) }
}

/// A READ response of no bytes.
fn nothing(psn: Psn, msn: u32, repeated: bool) -> Read {
    Read { psn, msn, from: Remote::default(), srq: None, packets: 1, next: 0, repeated }
}

fn tail_of(end: Option<SendTail>) -> Tail {
    if end.is_some() { Tail::End } else { Tail::More }
}

fn remote(reth: Reth) -> Remote {
    Remote { addr: reth.addr, length: reth.length.into(), rkey: reth.rkey }
}

/// The first packet of several to a tag-matching queue: a match is told of now, the arrival of the data later.
fn tell_match(tagged: Tagged, receive: &RecvWr, path: &Path, cx: &mut impl Context) -> Tagged {
    if !tagged.info.matched {
        return tagged;
    }
    let completion = received(receive, Status::Success, path);
    let tm = TagInfo { data_valid: false, ..tagged.info };
    cx.complete(Side::Receive, Completion { opcode: tagged.opcode, tm, ..completion });
    Tagged { info: TagInfo { data_valid: true, ..TagInfo::default() }, ..tagged }
}

/// The completion of a receive, as far as its status alone says.
fn received(receive: &RecvWr, status: Status, path: &Path) -> Completion {
    Completion { source_qp: path.dest, ..receive.completion(status, path.qpn) }
}
