//! What the engine's tests stand on: memory of a few regions, a context that keeps what it is told,
//! one end of a connection to be fed packet by packet, and a pair of ends on virtual time with a
//! network between them.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod both;
mod pair;
mod peer_memory;
mod scripted;
mod stream;
mod zero_copy;

pub(crate) use both::*;
pub(crate) use pair::*;
pub(crate) use peer_memory::*;
pub(crate) use scripted::*;
pub(crate) use stream::*;
pub(crate) use zero_copy::*;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::{Duration, Instant};

use transport::batch::Payloads;
use transport::op::{
    Access, AtomicOp, Completion, Data, Flush, FragmentOutcome, LocalPath, NetworkHeader, Part, Payload,
    QpEvent, RecvWr, SendOp, SendWr, SharedBytes, Side, Source, Status, Tail, Whole,
};
use transport::rc::{AckDelay, RtrAttr, RtsAttr};
use transport::{CongestionWindow, Context, Fault, Memory, Rc, Remote, Sge, TxBatch};
use wire::bth::{Aeth, AtomicEth, Bth, NakCode, Reth, Syndrome};
use wire::roce::{Header, Op, Packet, SendAt, SendTail, Service};
use wire::{Mtu, Pkey, Psn, Qpn, Rkey};

/// Where the first region begins.
pub(crate) const BASE: u64 = 0x10_0000;
/// Key of region `i` is `KEY + i`.
pub(crate) const KEY: u32 = 0x4100;

/// A region of test memory; its address is `BASE * (1 + index)`.
#[derive(Debug)]
pub struct Region {
    pub bytes: RefCell<Vec<u8>>,
    pub remote: bool,
}

/// Regions, addressed by key; every check of the real thing in few lines.
#[derive(Debug, Default)]
pub struct TestMemory {
    pub regions: Vec<Region>,
    /// Order and kind of the copies that ended a message.
    pub tails: RefCell<Vec<Tail>>,
    /// Keys taken back.
    pub invalidated: RefCell<Vec<Rkey>>,
    /// Addresses of FLUSHes begun; those to persistence take long.
    pub flushed: RefCell<Vec<u64>>,
    /// How often a key was looked up.
    pub asked: Cell<u32>,
    /// Payloads are copied out one by one, not those of several packets.
    pub refuses_runs: bool,
    /// How often those of several packets were.
    pub runs_copied: Cell<u32>,
    /// What the peer exports, where it is reached.
    pub exported: RefCell<Option<Vec<u8>>>,
}

impl TestMemory {
    fn find(&self, key: Rkey, addr: u64, length: u64) -> Result<(&Region, usize), Fault> {
        self.asked.set(self.asked.get() + 1);
        let index = key.0.checked_sub(KEY).ok_or(Fault::Key)? as usize;
        let region = self.regions.get(index).ok_or(Fault::Key)?;
        let start = addr.checked_sub(BASE * (1 + index as u64)).ok_or(Fault::Range)?;
        let end = start.checked_add(length).ok_or(Fault::Range)?;
        if end > region.bytes.borrow().len() as u64 {
            return Err(Fault::Range);
        }
        Ok((region, start as usize))
    }
    fn walk(
        &self,
        sges: &[Sge],
        mut at: u64,
        mut len: usize,
        mut each: impl FnMut(&Region, usize, usize),
    ) -> Result<(), Fault> {
        for sge in sges {
            let room = u64::from(sge.length).saturating_sub(at);
            let n = room.min(len as u64);
            if n > 0 {
                let (region, start) = self.find(sge.lkey, sge.addr + at, n)?;
                each(region, start, n as usize);
                len -= n as usize;
            }
            at = at.saturating_sub(sge.length.into());
        }
        if len == 0 { Ok(()) } else { Err(Fault::Range) }
    }
    fn remote(&self, r: Remote, at: u64, len: usize) -> Result<(&Region, usize), Fault> {
        let (region, start) = self.find(r.rkey, r.addr.wrapping_add(at), len as u64)?;
        if region.remote { Ok((region, start)) } else { Err(Fault::Rights) }
    }
    fn copy_run(
        &self,
        at: u64,
        dst: &mut Payloads<'_>,
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if self.refuses_runs {
            return Err(Fault::Key);
        }
        self.runs_copied.set(self.runs_copied.get() + 1);
        let mut at = at;
        dst.iter_mut().try_for_each(|(payload, _)| {
            copy(at, payload)?;
            at += payload.len() as u64;
            Ok(())
        })
    }
    /// Bytes of a region.
    pub fn bytes(&self, region: usize) -> Vec<u8> {
        self.regions[region].bytes.borrow().clone()
    }
}

impl Memory for &TestMemory {
    fn gather(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        self.walk(sges, at, dst.len(), |region, start, n| {
            dst[done..done + n].copy_from_slice(&region.bytes.borrow()[start..start + n]);
            done += n;
        })
    }
    fn gather_run(&self, sges: &[Sge], at: u64, dst: &mut Payloads<'_>) -> Result<(), Fault> {
        self.copy_run(at, dst, |at, payload| self.gather(sges, at, payload))
    }
    fn read_run(&self, from: Remote, at: u64, dst: &mut Payloads<'_>) -> Result<(), Fault> {
        self.copy_run(at, dst, |at, payload| self.read(from, at, payload))
    }
    fn scatter(&self, sges: &[Sge], at: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
        let mut done = 0;
        self.tails.borrow_mut().push(tail);
        self.walk(sges, at, src.len(), |region, start, n| {
            region.bytes.borrow_mut()[start..start + n].copy_from_slice(&src[done..done + n]);
            done += n;
        })
    }
    fn scatter_exported(&self, sges: &[Sge], at: u64, _: Remote, tail: Tail) -> Result<(), Fault> {
        let exported = self.exported.take().ok_or(Fault::Away)?;
        self.scatter(sges, at, &exported, tail)
    }
    fn write_exported(&self, to: Remote, at: u64, _: Remote, tail: Tail) -> Result<(), Fault> {
        let exported = self.exported.take().ok_or(Fault::Away)?;
        self.write(to, at, &exported, tail)
    }
    fn check(&self, range: Remote, _: Access) -> Result<(), Fault> {
        self.remote(range, 0, range.length as usize).map(|_| ())
    }
    fn write(&self, to: Remote, at: u64, src: &[u8], tail: Tail) -> Result<(), Fault> {
        let (region, start) = self.remote(to, at, src.len())?;
        self.tails.borrow_mut().push(tail);
        region.bytes.borrow_mut()[start..start + src.len()].copy_from_slice(src);
        Ok(())
    }
    fn read(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let (region, start) = self.remote(from, at, dst.len())?;
        dst.copy_from_slice(&region.bytes.borrow()[start..start + dst.len()]);
        Ok(())
    }
    fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault> {
        let (region, start) = self.remote(at, 0, 8)?;
        let mut bytes = region.bytes.borrow_mut();
        let word: &mut [u8; 8] = (&mut bytes[start..start + 8]).try_into().unwrap();
        let old = u64::from_ne_bytes(*word);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
            AtomicOp::Write(value) => value,
        };
        *word = new.to_ne_bytes();
        Ok(old)
    }
    fn flush(&self, range: Remote, how: Flush) -> Poll<Result<(), Fault>> {
        let good = self.remote(range, 0, if how.whole { 0 } else { range.length as usize });
        if let Err(fault) = good {
            return Poll::Ready(Err(fault));
        }
        self.flushed.borrow_mut().push(range.addr);
        if how.persistent { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
    fn invalidate(&self, key: Rkey) -> Result<(), Fault> {
        if key.0 >= KEY {
            return Err(Fault::Key);
        }
        self.invalidated.borrow_mut().push(key);
        Ok(())
    }
}

/// Keeps what the engine says.
#[derive(Debug, Default)]
pub(crate) struct TestContext {
    pub memory: TestMemory,
    pub receives: VecDeque<RecvWr>,
    pub completions: Vec<(Side, Completion)>,
    pub events: Vec<QpEvent>,
    pub window: CongestionWindow,
    /// Packets for which there is room on the way, where it is little.
    pub room: Option<u32>,
    /// What is executed in the peer's memory, where that is possible.
    pub reach: Option<TestPeerMemory>,
    /// Requests come in a stream.
    pub stream: bool,
    /// What left lies where the peer's process has not taken it.
    pub has_unread: bool,
    /// Bytes of the longest fragment.
    pub max_fragment: usize,
    /// Outcome of fragments now.
    pub outcome: Option<FragmentOutcome>,
    /// Fragments that left, in the form of packets that are too long, or of [`Away`].
    pub fragments: RefCell<Vec<Vec<u8>>>,
    /// Each process may copy to and from memory of the other one.
    pub reaches: bool,
    /// A request of the peer's bore the numbers of the connection, where nothing completed.
    pub heard: bool,
    /// Receive buffers are advertised.
    pub advertises: bool,
    /// The peer's access has ended.
    pub is_revoked: bool,
    /// A whole message goes to the receive in few steps, where that has room for it.
    pub delivers: bool,
}

impl Context for TestContext {
    fn memory(&self) -> impl Memory + Copy {
        &self.memory
    }
    fn take_receive(&mut self) -> Option<RecvWr> {
        self.receives.pop_front()
    }
    fn deliver(&mut self, message: &Whole<'_>) -> bool {
        let &Whole { bytes, tail, source_qp, solicited } = message;
        let Some(receive) = self.receives.front().filter(|_| self.delivers) else { return false };
        if (&self.memory).scatter(receive.sges.as_slice(), 0, bytes, Tail::End).is_err() {
            return false;
        }
        let (byte_len, header) = (bytes.len() as u32, NetworkHeader::Unseen);
        let plain = receive.completion(Status::Success, Qpn::new(0x11));
        self.receives.pop_front();
        self.complete(Side::Receive, Completion { byte_len, tail, source_qp, solicited, header, ..plain });
        true
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        self.completions.push((side, completion));
    }
    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
    fn local(&mut self) -> impl LocalPath {
        TestLocalPath { cx: self }
    }
    fn room(&self) -> u32 {
        self.room.unwrap_or(u32::MAX)
    }
    fn window(&self) -> &CongestionWindow {
        &self.window
    }
}

/// First PSN of either direction; close to the wrap.
pub(crate) const PSN: u32 = 0xff_fffa;

/// One end: an engine, its context, and the time it believes in.
#[derive(Debug)]
pub(crate) struct End {
    pub rc: Rc,
    pub cx: TestContext,
    pub now: Instant,
    pub mtu: Mtu,
    /// What the reader of packets says.
    pub ack_delay: AckDelay,
}

/// Attributes that most tests share.
pub(crate) fn rtr(mtu: Mtu) -> RtrAttr {
    RtrAttr {
        dest_qpn: Qpn::new(0x22),
        path_mtu: mtu,
        rq_psn: Psn::new(PSN),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
    }
}

/// Attributes that most tests share: 67 ms, 3 tries more, 2 more after an RNR NAK.
pub(crate) fn rts() -> RtsAttr {
    RtsAttr { sq_psn: Psn::new(PSN), max_rd_atomic: 4, timeout: 14, retry_cnt: 3, rnr_retry: 2 }
}

#[expect(clippy::disallowed_methods, reason = "where the virtual clock starts does not matter")]
pub(crate) fn some_instant() -> Instant {
    Instant::now()
}

impl End {
    /// In RTS with one region of `len` bytes that counts 0, 1, ..., and one of zeroes.
    pub(crate) fn new(mtu: Mtu, len: usize, rts: RtsAttr) -> Self {
        let mut end = Self::in_rtr(mtu, len);
        end.rc.ready_to_send(rts);
        end
    }
    pub(crate) fn in_rtr(mtu: Mtu, len: usize) -> Self {
        Self::with(rtr(mtu), len)
    }
    fn with(attr: RtrAttr, len: usize) -> Self {
        let (mtu, mut rc) = (attr.path_mtu, Rc::new(Qpn::new(0x11), Pkey::default()));
        rc.ready_to_receive(attr);
        let mut cx = TestContext::default();
        let counting = (0..len).map(pattern).collect();
        for bytes in [counting, vec![0; len]] {
            cx.memory.regions.push(Region { bytes: RefCell::new(bytes), remote: true });
        }
        Self { rc, cx, now: some_instant(), mtu, ack_delay: AckDelay::No }
    }
    pub(crate) fn post(&mut self, wr: SendWr) {
        self.rc.post(wr, &mut self.cx);
    }
    pub(crate) fn post_receive(&mut self, wr_id: u64, sge: Sge) {
        self.cx.receives.push_back(RecvWr { wr_id, sges: [sge].into_iter().collect() });
    }
    /// All that wants to leave, turn by turn, until nothing does.
    pub(crate) fn fill(&mut self) -> Vec<Vec<u8>> {
        let mut sent = self.fill_quantum();
        while self.rc.needs_reschedule() {
            self.rc.begin_quantum();
            sent.extend(self.fill_quantum());
        }
        sent
    }
    /// All that may leave before the next turn.
    pub(crate) fn fill_quantum(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut batch = TxBatch::new();
        loop {
            batch.clear();
            let rests = self.rc.is_at_rest();
            self.rc.fill(self.now, &mut batch, &mut self.cx);
            // What is in the batch comes after them.
            let fragments = self.cx.fragments.take();
            assert!(!rests || batch.is_empty() && fragments.is_empty(), "who is at rest has nothing to send");
            sent.extend(fragments);
            if batch.is_empty() {
                return sent;
            }
            sent.extend(batch.iter().map(|p| p[..p.len() - 4].to_vec()));
        }
    }
    /// Like [`End::fill`], parsed.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        let parse = |bytes: Vec<u8>| {
            let packet = Packet::parse(&bytes).expect("the engine sends legal packets");
            let Header { bth, op, .. } = packet.header;
            Sent { psn: off(bth.psn), op, bth, payload: packet.payload.to_vec() }
        };
        self.fill().into_iter().map(parse).collect()
    }
    /// A packet from the scripted peer at the `psn`th PSN.
    pub(crate) fn hear(&mut self, psn: i64, op: Op, payload: &[u8]) {
        self.hear_with(psn, op, payload, true);
    }
    pub(crate) fn hear_with(&mut self, psn: i64, op: Op, payload: &[u8], ack_request: bool) {
        let psn = Psn::new((i64::from(PSN) + psn) as u32);
        let bth = Bth { psn, ack_request, dest_qp: Qpn::new(0x11), ..Bth::default() };
        let header = Header { bth, service: Service::Rc, op };
        self.rc.receive(self.now, &Packet { header, payload }, self.ack_delay, &mut self.cx);
    }
    /// A packet of a peer; a fragment where it is too long for one.
    pub(crate) fn hear_any(&mut self, bytes: &[u8]) {
        if let Some(away) = Away::parse(bytes) {
            return self.hear_away(&away, true);
        }
        if let Some((header, place)) = place_of(bytes) {
            return self.hear_fragment(&header, place);
        }
        let packet = Packet::parse(bytes).expect("the peer sends legal packets");
        if packet.payload.len() > self.mtu.bytes() {
            self.hear_fragment(&packet.header, packet.payload);
        } else {
            self.hear_bytes(bytes);
        }
    }
    pub(crate) fn hear_fragment(&mut self, header: &Header, payload: &[u8]) {
        let words: Vec<_> = (0..payload.len().div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let shared = SharedBytes::new(&words, payload.len());
        shared.store(payload);
        self.rc.receive_fragment(
            self.now,
            header,
            self.mtu,
            Payload::Shared(shared),
            self.ack_delay,
            &mut self.cx,
        );
    }
    pub(crate) fn hear_bytes(&mut self, bytes: &[u8]) {
        if let Ok(packet) = Packet::parse(bytes) {
            self.rc.receive(self.now, &packet, self.ack_delay, &mut self.cx);
        }
    }
    /// Time passes.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.rc.expire(self.now, &mut self.cx);
    }
    /// Time passes until the engine's next deadline; how long that was.
    pub(crate) fn wait_for_deadline(&mut self) -> Duration {
        let wait = self.rc.deadline().expect("a timer runs") - self.now;
        self.wait(wait);
        wait
    }
    /// Completions since the last call: mark and status.
    pub(crate) fn completed(&mut self) -> Vec<(u64, Status)> {
        self.cx.completions.drain(..).map(|(_, c)| (c.wr_id, c.status)).collect()
    }
    pub(crate) fn events(&mut self) -> Vec<QpEvent> {
        std::mem::take(&mut self.cx.events)
    }
}

/// A packet the engine sent; its PSN counted from [`PSN`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub psn: i32,
    pub op: Op,
    pub bth: Bth,
    pub payload: Vec<u8>,
}

fn off(psn: Psn) -> i32 {
    psn.since(Psn::new(PSN))
}

/// PSNs of packets, counted from [`PSN`].
pub(crate) fn psns(sent: &[Sent]) -> Vec<i32> {
    sent.iter().map(|s| s.psn).collect()
}
/// Operations of packets.
pub(crate) fn ops(sent: &[Sent]) -> Vec<Op> {
    sent.iter().map(|s| s.op).collect()
}

pub(crate) fn pattern(i: usize) -> u8 {
    (i ^ i >> 8).wrapping_mul(31) as u8
}

/// `length` bytes at `offset` of a region.
pub(crate) fn sge(region: usize, offset: u64, length: u32) -> Sge {
    Sge { addr: BASE * (1 + region as u64) + offset, length, lkey: Rkey(KEY + region as u32) }
}

fn wr(wr_id: u64, op: SendOp, sge: Sge) -> SendWr {
    let data = Data::Sges([sge].into_iter().collect());
    SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false }
}
pub(crate) fn send(wr_id: u64, data: Sge) -> SendWr {
    wr(wr_id, SendOp::Send(SendTail::None), data)
}
/// WRITE to the peer's region at the same place as `to` names here.
pub(crate) fn write(wr_id: u64, data: Sge, to: Sge, immediate: Option<[u8; 4]>) -> SendWr {
    wr(wr_id, SendOp::Write { addr: to.addr, rkey: to.lkey, immediate }, data)
}
pub(crate) fn read(wr_id: u64, from: Sge, data: Sge) -> SendWr {
    wr(wr_id, SendOp::Read { addr: from.addr, rkey: from.lkey }, data)
}
pub(crate) fn atomic(wr_id: u64, op: AtomicOp, at: Sge, result: Sge) -> SendWr {
    wr(wr_id, SendOp::Atomic { addr: at.addr, rkey: at.lkey, op }, result)
}

pub(crate) fn flush(wr_id: u64, at: Sge, how: Flush) -> SendWr {
    let op = SendOp::Flush { addr: at.addr, rkey: at.lkey, length: at.length, how };
    SendWr { op, ..send(wr_id, sge(0, 0, 0)) }
}

pub(crate) fn aeth(msn: u32) -> Aeth {
    Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn }
}
pub(crate) fn ack(msn: u32) -> Op {
    Op::Acknowledge(aeth(msn))
}
pub(crate) fn nak(code: NakCode, msn: u32) -> Op {
    Op::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), msn })
}
pub(crate) fn rnr(timer: u8, msn: u32) -> Op {
    Op::Acknowledge(Aeth { syndrome: Syndrome::RnrNak { timer }, msn })
}
