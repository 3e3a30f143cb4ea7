//! One RC queue pair against any packets, calls and times.
//!
//! No panic; each request completes once and in order, everything is flushed in the end; packets
//! are legal and no longer than the path MTU; deadlines lie ahead; nothing grows beyond what was
//! posted.

use std::time::{Duration, Instant};

use transport::Fault;
use transport::TxBatch;
use transport::op::Side;
use transport::rc::{AckDelay, Rc, RtrAttr, RtsAttr, State};
use wire::bth::{Bth, XrcEth};
use wire::roce::{Header, Op, Packet, Service};
use wire::{Mtu, Pkey, Psn, Qpn};

use crate::ground::Ground;
use crate::ledger::Ledger;
use crate::{Input, packets, requests, start};

/// Most steps of one input.
const STEPS: u32 = 300;
/// Most send requests outstanding: what the adapter would let a program post.
const MAX_SEND: usize = 32;
const MAX_RECEIVE: usize = 64;
/// The most packets that one step may bring about: two READs of the whole region with the shortest
/// packets, and 32 requests of as many.
const MAX_BURST: usize = 40 * (crate::ground::LEN / 256 + 2);

/// Which halves of a connection are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Both.
    Rc,
    /// Of XRC, the one that asks.
    Initiator,
    /// Of XRC, the one that answers.
    Target,
}

/// The fuzzer's bytes for RC.
pub fn run(bytes: &[u8]) {
    End::new(Kind::Rc, &mut Input::new(bytes)).run();
}

/// One end and everything that is known of it.
pub struct End<'a, 'b> {
    input: &'a mut Input<'b>,
    kind: Kind,
    mtu: usize,
    rc: Rc,
    ground: Ground,
    ledger: Ledger,
    now: Instant,
    receives: u64,
    batch: TxBatch,
}

impl<'a, 'b> End<'a, 'b> {
    /// In RTS, or RTR for a target, with attributes out of the input.
    pub fn new(kind: Kind, input: &'a mut Input<'b>) -> Self {
        let (qpn, pkey) = (Qpn::new(0x11), Pkey::default());
        let mut rc = match kind {
            Kind::Rc => Rc::new(qpn, pkey),
            Kind::Initiator => Rc::xrc_initiator(qpn, pkey),
            Kind::Target => Rc::xrc_target(qpn, pkey),
        };
        let psn = Psn::new(input.choose(&[0xff_fffe, 0, 0x7f_ffff, 0x12_3456]));
        let path_mtu = input.choose(&[Mtu::M256, Mtu::M1024, Mtu::M4096]);
        rc.ready_to_receive(RtrAttr {
            dest_qpn: Qpn::new(2),
            path_mtu,
            rq_psn: psn,
            max_dest_rd_atomic: input.u8() % 5,
            min_rnr_timer: input.u8() % 32,
        });
        let [depth, timeout, retry_cnt, rnr_retry] = [5, 20, 8, 8].map(|end| input.u8() % end);
        let rts = RtsAttr { sq_psn: psn, max_rd_atomic: depth, timeout, retry_cnt, rnr_retry };
        if kind != Kind::Target || input.one_in(4) {
            rc.ready_to_send(rts);
        }
        let mut ground = Ground::default();
        if kind == Kind::Target {
            ground.receives.extend((1..=3).map(|queue| (queue, Default::default())));
        }
        let (now, mtu) = (start(), path_mtu.bytes());
        let (ledger, batch) = (Ledger::default(), TxBatch::new());
        End { input, kind, mtu, rc, ground, ledger, now, receives: 0, batch }
    }

    /// Does what the input says, then ends the queue pair.
    pub fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            self.step();
            self.drain();
            self.check();
        }
        self.rc.fail(&mut self.ground);
        self.drain();
        self.check();
        self.ledger.assert_empty();
        assert_eq!(self.ground.taken.len(), 0, "a receive that was begun has been flushed");
        self.ground.assert_window_is_left();
    }

    fn step(&mut self) {
        match self.input.below(16) {
            0 | 1 => self.post(),
            2 => self.post_receive(),
            3 => {
                self.now += Duration::from_micros(self.input.below(3_000_000).into());
                self.rc.expire(self.now, &mut self.ground);
            }
            4 => match self.input.below(5) {
                0 => self.rc.drain(),
                1 => self.rc.set_depths(self.input.u8() % 5, self.input.u8() % 5),
                2 => self.rc.set_min_rnr_timer(self.input.u8() % 32),
                _ => self.rc.resume(),
            },
            5 => {
                if self.rc.take_flush().is_some() {
                    let result = if self.input.any() { Ok(()) } else { Err(Fault::Unmapped) };
                    self.rc.flushed(result, &mut self.ground);
                }
            }
            6 => {
                self.rc.release();
                let _ = self.rc.take_path_suspect();
            }
            7 => {
                self.ground.memory.unmapped.set(self.input.one_in(4));
                if self.input.one_in(16) {
                    self.rc.fail(&mut self.ground);
                }
            }
            8 if self.input.one_in(8) => {
                self.rc.on_exit(&mut self.batch, &mut self.ground);
                self.sent();
            }
            _ => self.receive(),
        }
    }

    fn post(&mut self) {
        if self.kind == Kind::Target || self.rc.outstanding() >= MAX_SEND {
            return;
        }
        let op = requests::send_op(self.input.below(requests::SEND_OPS), self.input);
        let mut wr = requests::send_wr(self.input, self.ledger.next(), op);
        self.ledger.post(wr.signaled);
        self.rc.post_to_srq(&mut wr, self.input.below(4), &mut self.ground);
    }

    fn post_receive(&mut self) {
        let queue = if self.kind == Kind::Target { 1 + self.input.below(3) } else { 0 };
        if self.ground.receives.get(&queue).is_none_or(|q| q.len() < MAX_RECEIVE) {
            let wr = requests::recv_wr(self.input, self.receives);
            self.ground.post_receive(queue, wr);
            self.receives += 1;
        }
    }

    /// A packet of any kind, mostly with a PSN near to those expected.
    fn receive(&mut self) {
        let input = &mut *self.input;
        let op = packets::op(input.below(packets::OPS), input);
        let near = u32::from(input.u8());
        let answer = matches!(op, Op::Acknowledge(_) | Op::AtomicAcknowledge(..) | Op::ReadResponse(_));
        let back = |psn: Psn, n: u32| psn.add(0x100_0000 - n);
        let psn = match near {
            _ if answer => back(self.rc.sq_psn(), near),
            0..=200 => self.rc.rq_psn(),
            201..=235 => back(self.rc.rq_psn(), near - 200),
            236..=250 => self.rc.rq_psn().add(near - 235),
            _ => Psn::new(input.u32()),
        };
        let len = match input.u8() {
            0 => 0,
            1..=160 => self.mtu,
            161 => 4096,
            n => usize::from(n) * 4 - 600,
        };
        let payload = vec![0xaa; len.min(4096)];
        let service = match self.kind {
            Kind::Rc => Service::Rc,
            Kind::Target if !input.one_in(32) => Service::Xrc(Some(XrcEth { srq: input.below(5) })),
            _ => Service::Xrc(None),
        };
        let [ack_request, solicited] = [input.any(), input.any()];
        let bth = Bth { psn, ack_request, solicited, ..Bth::default() };
        let ack_delay = input.choose(&[AckDelay::No, AckDelay::Briefly, AckDelay::ForProgram]);
        let packet = Packet { header: Header { bth, service, op }, payload: &payload };
        self.rc.receive(self.now, &packet, ack_delay, &mut self.ground);
    }

    /// Takes what wants to leave, until nothing does.
    fn drain(&mut self) {
        let mut packets = 0;
        loop {
            self.batch.clear();
            self.rc.fill(self.now, &mut self.batch, &mut self.ground);
            if self.batch.is_empty() {
                return;
            }
            packets += self.batch.len();
            assert!(packets < MAX_BURST, "sending does not end");
            self.sent();
        }
    }

    fn sent(&self) {
        for bytes in self.batch.iter() {
            let packet = Packet::parse(&bytes[..bytes.len() - 4]).expect("the engine sends legal packets");
            assert!(packet.payload.len() <= self.mtu, "a packet longer than the path MTU");
            assert_eq!(packet.header.bth.dest_qp, Qpn::new(2));
        }
    }

    fn check(&mut self) {
        for (side, completion) in self.ground.done.drain(..) {
            if side == Side::Send {
                self.ledger.complete(&completion);
            }
        }
        self.ledger.assert_outstanding(self.rc.outstanding());
        if self.rc.state() == State::Error {
            assert_eq!(self.rc.outstanding(), 0, "everything is flushed in the error state");
            assert_eq!(self.rc.deadline(), None, "nothing is waited for in the error state");
        }
        if self.rc.deadline().is_some_and(|at| at <= self.now) {
            self.rc.expire(self.now, &mut self.ground);
            self.drain();
            assert!(
                self.rc.deadline().is_none_or(|at| at > self.now),
                "a deadline that is over after expire"
            );
            self.ground.done.drain(..).filter(|(side, _)| *side == Side::Send).for_each(|(_, completion)| {
                self.ledger.complete(&completion);
            });
        }
        let posted = self.receives as usize;
        assert!(self.ground.events.len() <= posted + 4, "an event for each packet would be a flood");
    }
}
