//! RC against RC, or an XRC initiator against a target, over a network that loses, repeats, reorders and corrupts as the input says.
//!
//! Every message is executed exactly once and in order: what a receive, a WRITE's range, a READ or an atomic holds is compared when it
//! completes, and again in the end. Nothing but the retry counter fails, and with a network that works again nothing
//! is stuck.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use transport::op::{
    AtomicOp, Bind, Completion, Data, Flush, LocalOp, QpEvent, RecvWr, SendOp, SendWr, Side, Status,
};
use transport::rc::{Hold, Rc, RtrAttr, RtsAttr, State};
use transport::{Sge, TxBatch};
use wire::icrc::{self, Flow};
use wire::roce::{Packet, SendTail};
use wire::{Mtu, Pkey, Psn, Qpn, Rkey};

use crate::ground::{BASE, Ground, KEY, WINDOWS};
use crate::ledger::Ledger;
use crate::{Input, start};

/// Most steps that the input decides about.
const STEPS: u32 = 600;
/// Most packets and timers until all is done once the network works.
const SETTLE: u32 = 20_000;
/// Send requests outstanding, and receives posted, at most: each has a slot of its own in every area.
const SLOTS: u64 = 8;
/// Bytes of a slot, and so of a message: eight packets.
const SLOT: u32 = 2048;

/// Where things lie in each end's region.
const SOURCES: u32 = 0;
const WRITTEN: u32 = 16 << 10;
const RECEIVED: u32 = 32 << 10;
const READ: u32 = 48 << 10;
const READ_SLOT: u32 = 1024;
/// What READs fetch; never changes.
const CONSTANT: u32 = 56 << 10;
const WORD: u32 = 60 << 10;
const RESULTS: u32 = WORD + 8;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Pair::new(&mut Input::new(bytes), false).run();
}

/// The same for XRC.
pub fn run_xrc(input: &mut Input<'_>) {
    Pair::new(input, true).run();
}

/// Bytes that no other message has.
fn pattern(seed: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len)).map(|at| (seed.wrapping_mul(0x9e37) ^ (at * 7) ^ (at >> 8)) as u8).collect()
}

/// What a message does when it is executed, and what it leaves.
#[derive(Clone, Debug)]
enum Effect {
    /// A receive completes: the one of that ordinal.
    Received(u64),
    Written {
        at: u32,
        bytes: Vec<u8>,
        receive: Option<u64>,
    },
    Read {
        at: u32,
        bytes: Vec<u8>,
    },
    /// The value before, in the result's slot.
    Atomic {
        at: u32,
        before: u64,
    },
    Nothing,
}

/// What the next receive of an end has to say.
#[derive(Debug)]
struct Expected {
    queue: u32,
    tail: SendTail,
    /// `None` where the data are a WRITE's.
    bytes: Option<Vec<u8>>,
}

/// One end, and what was asked of the other.
struct End {
    rc: Rc,
    ground: Ground,
    ledger: Ledger,
    /// Posted here and not completed.
    open: VecDeque<(u64, Effect)>,
    /// What receives over there will say, in order.
    expected: VecDeque<Expected>,
    /// Messages posted here that take a receive, and those that have.
    sends: u64,
    delivered: u64,
    /// What ranges over there hold once all is done.
    written: Vec<Option<Vec<u8>>>,
    /// What the word over there holds then.
    word: u64,
    invalidated: Vec<Rkey>,
    /// Slots of receives posted here.
    receives: Vec<bool>,
    posted_receives: u64,
    failed: Option<Status>,
}

struct Pair<'a, 'b> {
    input: &'a mut Input<'b>,
    xrc: bool,
    ends: [End; 2],
    /// From each end, sealed.
    wires: [VecDeque<Vec<u8>>; 2],
    now: Instant,
    batch: TxBatch,
    /// The test ends them.
    closing: bool,
}

impl End {
    fn new(mut rc: Rc, dest: u32, depth: u8, timeout: u8, xrc: bool) -> End {
        let psn = Psn::new(0xff_fff0);
        rc.ready_to_receive(RtrAttr {
            dest_qpn: Qpn::new(dest),
            path_mtu: Mtu::M256,
            rq_psn: psn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
        });
        rc.ready_to_send(RtsAttr { sq_psn: psn, max_rd_atomic: depth, timeout, retry_cnt: 7, rnr_retry: 7 });
        let mut ground = Ground::default();
        if xrc {
            ground.receives.extend((1..=3).map(|queue| (queue, Default::default())));
        }
        ground.memory.set(CONSTANT as usize, &pattern(0xc0, 4096));
        End {
            rc,
            ground,
            ledger: Ledger::default(),
            open: VecDeque::new(),
            expected: VecDeque::new(),
            sends: 0,
            delivered: 0,
            written: vec![None; SLOTS as usize],
            word: 0,
            invalidated: Vec::new(),
            receives: vec![false; SLOTS as usize],
            posted_receives: 0,
            failed: None,
        }
    }

    /// Posts a receive where a slot is free. Three queues share the slots, so that each can have one.
    fn post_receive(&mut self, queue: u32) {
        if queue > 0 && self.ground.receives.get(&queue).is_some_and(|posted| posted.len() > 1) {
            return;
        }
        let Some(slot) = self.receives.iter().position(|taken| !taken) else { return };
        self.receives[slot] = true;
        let addr = BASE + u64::from(RECEIVED + SLOT * slot as u32);
        let wr_id = self.posted_receives << 16 | u64::from(queue) << 8 | slot as u64;
        self.posted_receives += 1;
        let sge = Sge { addr, length: SLOT, lkey: KEY };
        self.ground.post_receive(queue, RecvWr { wr_id, sges: [sge].into_iter().collect() });
    }
}

fn flow(from: usize) -> Flow {
    // IPv6, whose headers have no identification: the ICRC vouches for every bit.
    let address = |n: usize| SocketAddr::from(([0xfd, 0, 0, 0, 0, 0, 0, n as u16 + 1], 4791));
    Flow { source: address(from), dest: address(1 - from) }
}

impl<'a, 'b> Pair<'a, 'b> {
    fn new(input: &'a mut Input<'b>, xrc: bool) -> Pair<'a, 'b> {
        let (depth, timeout) = (1 + input.u8() % 4, 8 + input.u8() % 6);
        let new = |at: usize| {
            let qpn = Qpn::new(1 + at as u32);
            let rc = match (xrc, at) {
                (false, _) => Rc::new(qpn, Pkey::default()),
                (true, 0) => Rc::xrc_initiator(qpn, Pkey::default()),
                (true, _) => Rc::xrc_target(qpn, Pkey::default()),
            };
            End::new(rc, 2 - at as u32, depth, timeout, xrc)
        };
        let ends = [new(0), new(1)];
        Pair {
            input,
            xrc,
            ends,
            wires: Default::default(),
            now: start(),
            batch: TxBatch::new(),
            closing: false,
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() || self.is_broken() {
                break;
            }
            self.step();
            self.pump();
        }
        if !self.is_broken() {
            self.settle();
        }
        if !self.is_broken() {
            self.check_end();
        }
        self.closing = true;
        for end in &mut self.ends {
            end.rc.fail(&mut end.ground);
        }
        self.pump();
        for end in &self.ends {
            end.ledger.assert_empty();
            end.ground.assert_window_is_left();
        }
    }

    fn is_broken(&self) -> bool {
        self.ends.iter().any(|end| end.rc.state() == State::Error)
    }

    fn step(&mut self) {
        let e = usize::from(self.input.any::<bool>());
        match self.input.below(32) {
            0..=5 => self.post(if self.xrc { 0 } else { e }),
            6 => drop(self.wires[e].pop_front()),
            7 => self.wires[e].rotate_left(usize::from(self.wires[e].len() > 1)),
            8 => {
                let again = self.wires[e].front().cloned();
                self.wires[e].extend(again);
            }
            9 => self.corrupt(e),
            10 => {
                let time = self.input.below(65_536);
                self.expire(Duration::from_micros(time.into()));
            }
            11 => self.ends[e].rc.release(),
            12 => match self.input.below(3) {
                0 => self.ends[e].rc.drain(),
                _ => self.ends[e].rc.resume(),
            },
            13 => self.end_flush(e),
            14..=17 => {
                let queue = self.queue();
                self.ends[if self.xrc { 1 } else { e }].post_receive(queue);
            }
            n => {
                let hold = if n == 18 {
                    Hold::ForProgram
                } else if n < 22 {
                    Hold::Briefly
                } else {
                    Hold::No
                };
                self.deliver(e, hold);
            }
        }
    }

    /// The queue that an XRC request names, 0 for RC.
    fn queue(&mut self) -> u32 {
        if self.xrc { 1 + self.input.below(3) } else { 0 }
    }

    /// Posts a request, and writes down what it will have done.
    fn post(&mut self, e: usize) {
        let queue = self.queue();
        let (arm, len) = (self.input.below(10), self.input.below(SLOT));
        let [signaled, fence] = [!self.input.one_in(4), self.input.one_in(4)];
        let add = self.input.u64();
        let end = &mut self.ends[e];
        if end.open.len() as u64 >= SLOTS {
            return;
        }
        let wr_id = end.ledger.post(signaled);
        let slot = (wr_id % SLOTS) as u32;
        let at = |area: u32, size: u32| area + slot * size;
        let sge = |at: u32, length| {
            Data::Sges([Sge { addr: BASE + u64::from(at), length, lkey: KEY }].into_iter().collect())
        };
        let remote = |at: u32| BASE + u64::from(at);
        let bytes = pattern(wr_id + 1, len);
        let source = sge(at(SOURCES, SLOT), len);
        end.ground.memory.set(at(SOURCES, SLOT) as usize, &bytes);
        let mut expect = |tail, bytes| {
            end.expected.push_back(Expected { queue, tail, bytes });
            end.sends += 1;
            end.sends - 1
        };
        let none = || Data::Sges([].into_iter().collect());
        let (op, data, effect) = match arm {
            0..=2 => {
                let tail = match arm {
                    0 => SendTail::None,
                    1 => SendTail::Immediate([slot as u8; 4]),
                    _ => SendTail::Invalidate(Rkey(slot % WINDOWS)),
                };
                if let SendTail::Invalidate(key) = tail {
                    end.invalidated.push(key);
                }
                (SendOp::Send(tail), source, Effect::Received(expect(tail, Some(bytes))))
            }
            3 | 4 => {
                let immediate = (arm == 4).then_some([slot as u8; 4]);
                let receive = immediate.map(|data| expect(SendTail::Immediate(data), None));
                let to = at(WRITTEN, SLOT);
                let written = end.written[slot as usize].get_or_insert_default();
                written.splice(..bytes.len().min(written.len()), bytes.iter().copied());
                let op = SendOp::Write { addr: remote(to), rkey: KEY, immediate };
                (op, source, Effect::Written { at: to, bytes, receive })
            }
            5 => {
                let len = len % READ_SLOT;
                let to = at(READ, READ_SLOT);
                let bytes = pattern(0xc0, 4096)[slot as usize..][..len as usize].to_vec();
                let op = SendOp::Read { addr: remote(CONSTANT + slot), rkey: KEY };
                (op, sge(to, len), Effect::Read { at: to, bytes })
            }
            6 | 7 => {
                let before = end.word;
                let op = match arm {
                    6 => AtomicOp::FetchAdd(add),
                    _ if add.is_multiple_of(3) => AtomicOp::CompareSwap { compare: before ^ 1, swap: add },
                    _ => AtomicOp::CompareSwap { compare: before, swap: add },
                };
                end.word = match op {
                    AtomicOp::FetchAdd(add) => before.wrapping_add(add),
                    AtomicOp::CompareSwap { compare, swap } if compare == before => swap,
                    _ => before,
                };
                let to = at(RESULTS, 8);
                (
                    SendOp::Atomic { addr: remote(WORD), rkey: KEY, op },
                    sge(to, 8),
                    Effect::Atomic { at: to, before },
                )
            }
            8 if add.is_multiple_of(2) => {
                end.word = add;
                let op = SendOp::Atomic { addr: remote(WORD), rkey: KEY, op: AtomicOp::Write(add) };
                (op, Data::inline(&add.to_ne_bytes()), Effect::Nothing)
            }
            8 => {
                let bind = Bind { window: 0, key: Rkey(1), region: KEY, addr: BASE, length: 8, access: 2 };
                (SendOp::Local(LocalOp::Bind(bind)), none(), Effect::Nothing)
            }
            _ => {
                let how =
                    Flush { global: true, persistent: add.is_multiple_of(2), whole: add.is_multiple_of(3) };
                let op = SendOp::Flush { addr: remote(WRITTEN), rkey: KEY, length: 64, how };
                (op, none(), Effect::Nothing)
            }
        };
        end.open.push_back((wr_id, effect));
        let wr = SendWr { wr_id, op, data, signaled, solicited: false, fence };
        end.rc.post_to_srq(wr, queue, &mut end.ground);
    }

    /// The oldest packet from an end arrives.
    fn deliver(&mut self, from: usize, hold: Hold) {
        let Some(bytes) = self.wires[from].pop_front() else { return };
        let opened = icrc::open(&flow(from), &bytes).expect("what was sealed opens");
        let packet = Packet::parse(opened).expect("the engine sends legal packets");
        let to = &mut self.ends[1 - from];
        to.rc.receive(self.now, &packet, hold, &mut to.ground);
    }

    /// The oldest packet from an end arrives with a bit turned over, and is dropped.
    fn corrupt(&mut self, from: usize) {
        let Some(mut bytes) = self.wires[from].pop_front() else { return };
        let at = self.input.index(bytes.len() * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        // The ICRC leaves out the fields that routers change (IBA annex A17 §A17.3.3): FECN, BECN and reserved bits.
        if at / 8 != 4 {
            assert!(icrc::open(&flow(from), &bytes).is_err(), "a bit turned over is noticed: {at}");
        }
    }

    fn expire(&mut self, time: Duration) {
        self.now += time;
        for end in &mut self.ends {
            end.rc.expire(self.now, &mut end.ground);
        }
        self.pump();
        for end in &self.ends {
            assert!(end.rc.deadline().is_none_or(|at| at > self.now), "a deadline that is over after expire");
        }
    }

    fn end_flush(&mut self, e: usize) {
        let end = &mut self.ends[e];
        if end.rc.take_flush().is_some() {
            end.rc.flushed(Ok(()), &mut end.ground);
        }
    }

    /// Packets go onto the wire, completions are compared.
    fn pump(&mut self) {
        for e in 0..2 {
            loop {
                let end = &mut self.ends[e];
                self.batch.clear();
                end.rc.fill(self.now, &mut self.batch, &mut end.ground);
                if self.batch.is_empty() {
                    break;
                }
                for packet in self.batch.iter() {
                    let mut packet = packet.to_vec();
                    icrc::seal(&flow(e), 0, &mut packet);
                    self.wires[e].push_back(packet);
                }
            }
            // A sender keeps to its window, a responder to what it is asked; the network keeps the copies.
            assert!(self.wires[e].len() < 20_000, "the wire fills up");
        }
        for e in 0..2 {
            for (side, completion) in std::mem::take(&mut self.ends[e].ground.done) {
                match side {
                    Side::Receive => self.received(e, &completion),
                    Side::Send => {
                        self.ends[e].ledger.complete(&completion);
                        self.sent(e, &completion);
                    }
                }
            }
            let events = &self.ends[e].ground.events;
            assert!(events.iter().all(|event| *event == QpEvent::CommunicationEstablished), "{events:?}");
            let failed = self.ends[e].rc.state() == State::Error;
            assert!(!failed || self.ends[e].failed.is_some() || self.closing, "an error without a reason");
        }
    }

    /// A receive of end `e` is what the other end sent next.
    fn received(&mut self, e: usize, completion: &Completion) {
        let slot = (completion.wr_id & 0xff) as usize;
        self.ends[e].receives[slot] = false;
        if completion.status != Status::Success {
            assert_eq!(completion.status, Status::WrFlush);
            return;
        }
        let expected = self.ends[1 - e].expected.pop_front().expect("nothing was sent that could arrive");
        self.ends[1 - e].delivered += 1;
        assert_eq!(u64::from(expected.queue), completion.wr_id >> 8 & 0xff, "the queue that was named");
        assert_eq!(expected.tail, completion.tail);
        if let Some(bytes) = expected.bytes {
            assert_eq!(completion.byte_len as usize, bytes.len());
            let got = self.ends[e].ground.memory.copy(RECEIVED as usize + slot * SLOT as usize, bytes.len());
            assert_eq!(got, bytes, "the message that was sent");
        }
    }

    /// Requests of end `e` are complete, all up to this one.
    fn sent(&mut self, e: usize, completion: &Completion) {
        if completion.status != Status::Success {
            let first = *self.ends[e].failed.get_or_insert(completion.status);
            let alive = self.ends[e].rc.state() != State::Error;
            assert!(!alive, "a failure leaves the queue pair in the error state");
            assert!(first == Status::RetryExceeded || self.closing, "{completion:?}");
            return;
        }
        while let Some((wr_id, effect)) = self.ends[e].open.pop_front() {
            self.check_effect(e, &effect);
            if wr_id == completion.wr_id {
                return;
            }
        }
        panic!("{completion:?} was not open");
    }

    fn check_effect(&self, e: usize, effect: &Effect) {
        let (here, there) = (&self.ends[e], &self.ends[1 - e].ground.memory);
        let delivered = |ordinal: u64| assert!(ordinal < here.delivered, "complete, but not received");
        match effect {
            Effect::Received(ordinal) => delivered(*ordinal),
            Effect::Written { at, bytes, receive } => {
                receive.iter().for_each(|ordinal| delivered(*ordinal));
                assert_eq!(there.copy(*at as usize, bytes.len()), *bytes, "what was written");
            }
            Effect::Read { at, bytes } => {
                assert_eq!(here.ground.memory.copy(*at as usize, bytes.len()), *bytes, "what was read");
            }
            Effect::Atomic { at, before } => {
                assert_eq!(here.ground.memory.word(*at as usize), *before, "an atomic is executed once");
            }
            Effect::Nothing => {}
        }
    }

    /// The network works again: everything ends well, or the retry counter had run out.
    fn settle(&mut self) {
        for end in &mut self.ends {
            end.rc.resume();
        }
        for _ in 0..SETTLE {
            for e in 0..2 {
                self.end_flush(e);
                self.ends[e].rc.release();
            }
            self.post_wanted();
            self.pump();
            if self.is_broken() {
                return;
            }
            match (0..2).find(|e| !self.wires[*e].is_empty()) {
                Some(e) => self.deliver(e, Hold::No),
                None if self.ends.iter().all(|end| end.rc.outstanding() == 0) => return,
                None => {
                    let next = self.ends.iter().filter_map(|end| end.rc.deadline()).min();
                    let next = next.expect("requests are outstanding and nobody waits for anything");
                    self.expire(next.saturating_duration_since(self.now));
                }
            }
            self.pump();
        }
        panic!("stuck: {:?} outstanding", [0, 1].map(|e| self.ends[e].rc.outstanding()));
    }

    /// A receive for each message that waits for one.
    fn post_wanted(&mut self) {
        for e in 0..2 {
            let wanted: Vec<u32> = self.ends[1 - e].expected.iter().map(|expected| expected.queue).collect();
            for queue in wanted {
                if self.ends[e].ground.receives.get(&queue).is_none_or(VecDeque::is_empty) {
                    self.ends[e].post_receive(queue);
                }
            }
        }
    }

    /// All is done: memory is what all messages, executed once and in order, make of it.
    fn check_end(&mut self) {
        for e in 0..2 {
            let end = &mut self.ends[e];
            let open: Vec<Effect> = end.open.drain(..).map(|(_, effect)| effect).collect();
            open.iter().for_each(|effect| self.check_effect(e, effect));
            let (end, there) = (&self.ends[e], &self.ends[1 - e].ground.memory);
            assert!(end.expected.is_empty(), "messages were lost: {:?}", end.expected);
            assert_eq!(there.word(WORD as usize), end.word, "atomics are executed once");
            assert_eq!(*there.invalidated.borrow(), end.invalidated, "keys are taken back once");
            for (slot, bytes) in end.written.iter().enumerate() {
                let bytes = bytes.as_deref().unwrap_or_default();
                let got = there.copy(WRITTEN as usize + slot * SLOT as usize, bytes.len());
                assert_eq!(got, bytes, "a WRITE that came late wrote again");
            }
        }
    }
}
