//! RC against RC, or an XRC initiator against a target, over a network that loses, repeats,
//! reorders and corrupts as the input says.
//!
//! Every message is executed exactly once and in order: what a receive, a WRITE's range, a READ or
//! an atomic holds is compared when it completes, and again in the end. Nothing but the retry
//! counter fails, and with a network that works again nothing is stuck.

mod messages;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use transport::TxBatch;
use transport::op::{QpEvent, Side};
use transport::rc::{AckDelay, Rc, State};
use wire::icrc::{self, Flow};
use wire::roce::Packet;
use wire::{Pkey, Qpn};

use crate::{Input, start};
use messages::End;

/// Most steps that the input decides about.
const STEPS: u32 = 600;
/// Most packets and timers until all is done once the network works.
const SETTLE: u32 = 20_000;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Pair::new(&mut Input::new(bytes), false).run();
}

/// The pair's queue pairs, for XRC.
pub fn run_xrc(input: &mut Input<'_>) {
    Pair::new(input, true).run();
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

fn flow(from: usize) -> Flow {
    // IPv6, whose headers have no identification: the ICRC vouches for every bit.
    let address = |n: usize| SocketAddr::from(([0xfd, 0, 0, 0, 0, 0, 0, n as u16 + 1], 4791));
    Flow { source: address(from), dest: address(1 - from) }
}

impl<'a, 'b> Pair<'a, 'b> {
    fn new(input: &'a mut Input<'b>, xrc: bool) -> Self {
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
                let ack_delay = if n == 18 {
                    AckDelay::ForProgram
                } else if n < 22 {
                    AckDelay::Briefly
                } else {
                    AckDelay::No
                };
                self.deliver(e, ack_delay);
            }
        }
    }

    /// The queue that an XRC request names, 0 for RC.
    fn queue(&mut self) -> u32 {
        if self.xrc { 1 + self.input.below(3) } else { 0 }
    }

    /// The oldest packet from an end arrives.
    fn deliver(&mut self, from: usize, ack_delay: AckDelay) {
        let Some(bytes) = self.wires[from].pop_front() else { return };
        let opened = icrc::open(&flow(from), &bytes).expect("what was sealed opens");
        let packet = Packet::parse(opened).expect("the engine sends legal packets");
        let to = &mut self.ends[1 - from];
        to.rc.receive(self.now, &packet, ack_delay, &mut to.ground);
    }

    /// The oldest packet from an end arrives with a bit turned over, and is dropped.
    fn corrupt(&mut self, from: usize) {
        let Some(mut bytes) = self.wires[from].pop_front() else { return };
        let at = self.input.index(bytes.len() * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        // The ICRC leaves out the fields that routers change (IBA annex A17 §A17.3.3): FECN, BECN
        // and reserved bits.
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
            // A sender keeps to its window, a responder to what it is asked; the network keeps the
            // copies.
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
                Some(e) => self.deliver(e, AckDelay::No),
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
}
