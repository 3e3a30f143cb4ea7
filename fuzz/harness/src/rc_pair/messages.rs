//! The messages of the pair: what each end posts, and what of it must be there when it completes,
//! and in the end.
use std::collections::VecDeque;

use transport::Sge;
use transport::op::{AtomicOp, Bind, Completion, Data, Flush, LocalOp, RecvWr, SendOp, SendWr, Status};
use transport::rc::{Rc, RtrAttr, RtsAttr, State};
use wire::roce::SendTail;
use wire::{Mtu, Psn, Qpn, Rkey};

use super::Pair;
use crate::ground::{BASE, Ground, KEY, WINDOWS};
use crate::ledger::Ledger;

/// Send requests outstanding, and receives posted, at most: each has a slot of its own in every
/// area.
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
pub(super) struct Expected {
    pub queue: u32,
    tail: SendTail,
    /// `None` where the data are a WRITE's.
    bytes: Option<Vec<u8>>,
}

/// One end, and what was asked of the other.
pub(super) struct End {
    pub rc: Rc,
    pub ground: Ground,
    pub ledger: Ledger,
    /// Posted here and not completed.
    open: VecDeque<(u64, Effect)>,
    /// What receives over there will say, in order.
    pub expected: VecDeque<Expected>,
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
    pub failed: Option<Status>,
}

impl End {
    pub(super) fn new(mut rc: Rc, dest: u32, depth: u8, timeout: u8, xrc: bool) -> Self {
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
        Self {
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

    /// Posts a receive where a slot is free. Three queues share the slots, so that each can have
    /// one.
    pub(super) fn post_receive(&mut self, queue: u32) {
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

impl Pair<'_, '_> {
    /// Posts a request, and writes down what it will have done.
    #[expect(clippy::too_many_lines, reason = "an arm an operation")]
    pub(super) fn post(&mut self, e: usize) {
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
        let mut wr = SendWr { wr_id, op, data, signaled, solicited: false, fence };
        end.rc.post_to_srq(&mut wr, queue, &mut end.ground);
    }

    /// A receive of end `e` is what the other end sent next.
    pub(super) fn received(&mut self, e: usize, completion: &Completion) {
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
    pub(super) fn sent(&mut self, e: usize, completion: &Completion) {
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

    /// All is done: memory is what all messages, executed once and in order, make of it.
    pub(super) fn check_end(&mut self) {
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
