//! iWARP against iWARP over a stream that takes, cuts, holds up, damages and resets as the input
//! says.
//!
//! Every message is executed once and in order, and completions come in the order of posting. What
//! completes has the bytes that were sent, unless bytes were changed that no CRC covers. Where
//! nothing was broken all arrives, and memory that no message names stays as it is. What one end
//! refuses ends both.

use std::collections::VecDeque;

use transport::Sge;
use transport::iwarp::{Attr, Iwarp, State, StreamBatch};
use transport::op::{Data, RecvWr, SendOp, SendWr, Side, Status};
use wire::Qpn;
use wire::roce::SendTail;

use crate::Input;
use crate::ground::{BASE, Ground, KEY};
use crate::ledger::Ledger;

/// Most steps that the input decides about.
const STEPS: u32 = 600;
/// Rounds until all has come, once the stream works.
const SETTLE: u32 = 20_000;
/// Send requests outstanding, and receives posted, at most: each has a slot in every area.
const SLOTS: u64 = 8;
/// Bytes of a slot, and so of a message: several FPDUs.
const SLOT: u32 = 2048;
/// Where things lie in each end's region. What READs fetch, and what lies behind, never changes.
const SOURCES: u32 = 0;
const WRITTEN: u32 = 16 << 10;
const RECEIVED: u32 = 32 << 10;
const READ: u32 = 48 << 10;
const READ_SLOT: u32 = 1024;
const CONSTANT: u32 = 56 << 10;
const CONSTANT_LEN: u32 = 8 << 10;
/// Lengths of the pieces that a stream takes or gives.
const PIECES: [usize; 8] = [1, 2, 3, 7, 20, 64, 1000, 2048];

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Pair::new(&mut Input::new(bytes)).run();
}

/// Bytes that no other message has.
fn pattern(seed: u64, len: u32) -> Vec<u8> {
    (0..u64::from(len)).map(|at| (seed.wrapping_mul(0x9e37) ^ (at * 7) ^ (at >> 8)) as u8).collect()
}

/// What a request of an end leaves.
enum Effect {
    Sent,
    Written { slot: usize, bytes: Vec<u8> },
    Read { at: u32, bytes: Vec<u8> },
}

struct End {
    iwarp: Iwarp,
    ground: Ground,
    batch: StreamBatch,
    ledger: Ledger,
    open: VecDeque<(u64, Effect)>,
    /// SENDs of this end that have not been received.
    expected: VecDeque<Vec<u8>>,
    /// What ranges over there hold in the end.
    written: Vec<Vec<u8>>,
    receives: [bool; SLOTS as usize],
    posted_receives: u64,
    /// This half has ended.
    has_ended: bool,
    /// The other end has been told so.
    is_end_told: bool,
}

impl End {
    fn new(attr: Attr, at: u32) -> Self {
        let mut iwarp = Iwarp::new(Qpn::new(1 + at));
        iwarp.ready(attr);
        let mut ground = Ground::default();
        ground.receives.insert(0, VecDeque::new());
        ground.memory.set(CONSTANT as usize, &pattern(0xc0, CONSTANT_LEN));
        Self {
            iwarp,
            ground,
            batch: StreamBatch::new(),
            ledger: Ledger::default(),
            open: VecDeque::new(),
            expected: VecDeque::new(),
            written: vec![Vec::new(); SLOTS as usize],
            receives: [false; SLOTS as usize],
            posted_receives: 0,
            has_ended: false,
            is_end_told: false,
        }
    }

    fn post_receive(&mut self) -> bool {
        let Some(slot) = self.receives.iter().position(|taken| !taken) else { return false };
        self.receives[slot] = true;
        let addr = BASE + u64::from(RECEIVED + SLOT * slot as u32);
        let wr_id = self.posted_receives << 8 | slot as u64;
        self.posted_receives += 1;
        let sge = Sge { addr, length: SLOT, lkey: KEY };
        self.ground.post_receive(0, RecvWr { wr_id, sges: [sge].into_iter().collect() });
        true
    }
}

struct Pair<'a, 'b> {
    input: &'a mut Input<'b>,
    crc: bool,
    ends: [End; 2],
    /// Bytes from each end.
    wires: [VecDeque<u8>; 2],
    /// Bytes were changed on the way.
    is_damaged: bool,
    /// The connection may end before all is done.
    may_end: bool,
}

impl<'a, 'b> Pair<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let crc = input.any();
        let max_payload = input.choose(&[1, 5, 64, 1000, 4096]);
        let depths = [0, 1].map(|_| 1 + input.below(3) as u16);
        let end = |at: usize| {
            let (ird, ord) = (depths[1 - at], depths[at]);
            End::new(Attr { crc, ird, ord, max_payload }, at as u32)
        };
        let ends = [end(0), end(1)];
        Pair { input, crc, ends, wires: Default::default(), is_damaged: false, may_end: false }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            self.step();
            self.look();
        }
        self.settle();
        if !self.may_end {
            self.check_all();
        }
        for end in &mut self.ends {
            end.iwarp.fail(&mut end.ground);
        }
        self.look();
        self.ends.iter().for_each(|end| end.ledger.assert_empty());
    }

    fn step(&mut self) {
        let e = usize::from(self.input.any::<bool>());
        match self.input.below(32) {
            0..=6 => self.post(e),
            7..=9 => _ = self.ends[e].post_receive(),
            10..=18 => {
                let most = self.input.choose(&PIECES);
                self.send(e, most);
            }
            19..=28 => {
                let most = self.input.choose(&PIECES);
                self.deliver(e, most);
            }
            29 if !self.wires[e].is_empty() && self.input.one_in(4) => {
                let at = self.input.index(self.wires[e].len() * 8);
                self.wires[e][at / 8] ^= 1 << (at % 8);
                (self.is_damaged, self.may_end) = (true, true);
            }
            30 if self.input.one_in(8) => self.reset(),
            31 if self.input.one_in(8) => {
                self.may_end = true;
                let end = &mut self.ends[e];
                if !end.iwarp.close() {
                    end.iwarp.fail(&mut end.ground);
                }
            }
            _ => {}
        }
    }

    /// The stream is lost at both ends.
    fn reset(&mut self) {
        self.may_end = true;
        self.wires.iter_mut().for_each(VecDeque::clear);
        for end in &mut self.ends {
            end.batch.clear();
            end.has_ended = true;
            end.iwarp.end_of_stream(&mut end.ground);
        }
    }

    /// The stream takes some bytes of an end.
    fn send(&mut self, e: usize, most: usize) -> bool {
        let end = &mut self.ends[e];
        if end.has_ended {
            return false;
        }
        if end.batch.is_empty() {
            end.iwarp.fill(&mut end.batch, &mut end.ground);
        }
        let mut bytes = Vec::new();
        end.batch.copy_out(most, &&end.ground.memory, &mut bytes).expect("the memory is there");
        end.batch.advance(bytes.len() as u64);
        end.iwarp.sent(bytes.len() as u64, &mut end.ground);
        end.has_ended = end.batch.is_empty() && end.iwarp.ends_stream();
        self.wires[e].extend(&bytes);
        !bytes.is_empty() || end.has_ended
    }

    /// Some bytes of an end arrive, or the end of its half.
    fn deliver(&mut self, from: usize, most: usize) -> bool {
        let len = most.min(self.wires[from].len());
        let bytes: Vec<u8> = self.wires[from].drain(..len).collect();
        let is_over = self.wires[from].is_empty() && self.ends[from].has_ended;
        let is_news = is_over && !self.ends[from].is_end_told;
        self.ends[from].is_end_told |= is_over;
        let to = &mut self.ends[1 - from];
        to.iwarp.receive(&bytes, &mut to.ground);
        if is_over {
            to.iwarp.end_of_stream(&mut to.ground);
        }
        len > 0 || is_news
    }

    fn post(&mut self, e: usize) {
        let (arm, len) = (self.input.below(8), self.input.below(SLOT));
        let [signaled, fence, lacks_receive] =
            [!self.input.one_in(4), self.input.one_in(4), self.input.one_in(64)];
        if self.ends[e].open.len() as u64 >= SLOTS {
            return;
        }
        if arm < 3 {
            // A SEND that finds no receive ends the connection.
            let posted: usize = self.ends[1 - e].ground.receives.values().map(VecDeque::len).sum();
            let awaited = self.ends[e].expected.len();
            if posted <= awaited && !lacks_receive && !self.ends[1 - e].post_receive() {
                return;
            }
            self.may_end |= lacks_receive;
        }
        let end = &mut self.ends[e];
        let wr_id = end.ledger.post(signaled);
        let slot = (wr_id % SLOTS) as u32;
        let sge = |at: u32, length| {
            Data::Sges([Sge { addr: BASE + u64::from(at), length, lkey: KEY }].into_iter().collect())
        };
        let (bytes, source) = (pattern(wr_id + 1, len), sge(SOURCES + slot * SLOT, len));
        end.ground.memory.set((SOURCES + slot * SLOT) as usize, &bytes);
        let (op, data, effect) = match arm {
            0..=2 => {
                end.expected.push_back(bytes);
                (SendOp::Send(SendTail::None), source, Effect::Sent)
            }
            3..=5 => {
                let addr = BASE + u64::from(WRITTEN + slot * SLOT);
                let op = SendOp::Write { addr, rkey: KEY, immediate: None };
                (op, source, Effect::Written { slot: slot as usize, bytes })
            }
            _ => {
                let (at, len) = (READ + slot * READ_SLOT, len % READ_SLOT);
                let bytes = pattern(0xc0, CONSTANT_LEN)[slot as usize..][..len as usize].to_vec();
                let addr = BASE + u64::from(CONSTANT + slot);
                (SendOp::Read { addr, rkey: KEY }, sge(at, len), Effect::Read { at, bytes })
            }
        };
        end.open.push_back((wr_id, effect));
        end.iwarp.post(SendWr { wr_id, op, data, signaled, solicited: false, fence }, &mut end.ground);
    }

    /// Completions and events are compared.
    fn look(&mut self) {
        let tells = self.crc || !self.is_damaged;
        for e in 0..2 {
            for (side, completion) in std::mem::take(&mut self.ends[e].ground.done) {
                let is_good = completion.status == Status::Success;
                assert!(is_good || self.ends[e].iwarp.state() != State::Rts, "{completion:?}");
                if side == Side::Send {
                    self.ends[e].ledger.complete(&completion);
                    self.sent(e, completion.wr_id, is_good, tells);
                } else if is_good {
                    let slot = (completion.wr_id & 0xff) as usize;
                    self.ends[e].receives[slot] = false;
                    let sent = self.ends[1 - e].expected.pop_front().expect("a message is executed once");
                    let at = RECEIVED as usize + slot * SLOT as usize;
                    let came = self.ends[e].ground.memory.copy(at, completion.byte_len as usize);
                    assert!(!tells || came == sent, "the message that was sent");
                }
            }
            assert!(
                self.may_end || self.ends[e].ground.events.is_empty(),
                "{:?}",
                self.ends[e].ground.events
            );
        }
    }

    /// Requests of an end are complete, all up to this one.
    fn sent(&mut self, e: usize, wr_id: u64, is_good: bool, tells: bool) {
        while let Some((done, effect)) = self.ends[e].open.pop_front() {
            match effect {
                Effect::Written { slot, bytes } => {
                    let written = &mut self.ends[e].written[slot];
                    written.splice(..bytes.len().min(written.len()), bytes);
                }
                Effect::Read { at, bytes } if is_good && tells => {
                    let came = self.ends[e].ground.memory.copy(at as usize, bytes.len());
                    assert!(came == bytes, "what was read");
                }
                Effect::Read { .. } | Effect::Sent => {}
            }
            if done == wr_id {
                return;
            }
        }
        panic!("request {wr_id} was not open");
    }

    /// The stream works: all that is under way arrives, and where one end refused something or
    /// ended, both have ended.
    fn settle(&mut self) {
        for _ in 0..SETTLE {
            let moved = [0, 1].map(|e| {
                let sent = self.send(e, usize::MAX);
                // As much as memory takes at once.
                self.deliver(e, 4096) || sent
            });
            self.look();
            if moved == [false; 2] {
                let in_error = [0, 1].map(|e| self.ends[e].iwarp.state() == State::Error);
                assert_eq!(in_error[0], in_error[1], "one end alone has ended");
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Nothing was broken: all is done, once and in order.
    fn check_all(&mut self) {
        for e in 0..2 {
            // Requests that want no completion.
            while let Some((wr_id, _)) = self.ends[e].open.front() {
                let wr_id = *wr_id;
                self.sent(e, wr_id, true, true);
            }
            let (here, there) = (&self.ends[e], &self.ends[1 - e].ground.memory);
            assert_eq!((here.iwarp.state(), here.iwarp.outstanding()), (State::Rts, 0));
            assert!(here.expected.is_empty(), "messages were lost");
            for (slot, bytes) in here.written.iter().enumerate() {
                let came = there.copy(WRITTEN as usize + slot * SLOT as usize, bytes.len());
                assert!(came == *bytes, "what was written");
            }
            let constant = there.copy(CONSTANT as usize, CONSTANT_LEN as usize);
            assert!(constant == pattern(0xc0, CONSTANT_LEN), "memory that no message names was changed");
        }
    }
}
