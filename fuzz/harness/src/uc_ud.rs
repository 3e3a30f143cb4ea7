//! A UC and a UD queue pair on one port: against any packets and calls, and UC against UC over a
//! network that loses.
//!
//! Each request completes once and in order; deadlines lie ahead; a message that UC delivers is one
//! that was sent, whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use transport::op::{Data, SendOp, SendWr, Side, Status};
use transport::pacing::{Pace, UnreliableState};
use transport::ud::Destination;
use transport::{Sge, TxBatch, Uc, Ud, uc};
use wire::bth::{Bth, Deth};
use wire::grh::Grh;
use wire::roce::{Header, Packet, SendTail, Service};
use wire::{Mtu, Pkey, Psn, Qkey, Qpn};

use crate::ground::{BASE, Ground, KEY, offset};
use crate::ledger::Ledger;
use crate::{Input, packets, requests, start};

const STEPS: u32 = 300;
const MAX_SEND: usize = 32;
const MTU: Mtu = Mtu::M256;
/// Of a message of 2^31 bytes much leaves at once where the pace has been saved for long.
const MAX_FILLS: u32 = 1_000;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.any() { Port::new(&mut input).run() } else { pair(&mut input) }
}

fn uc(pace: &Arc<Pace>) -> Uc {
    let mut uc = Uc::new(Qpn::new(1), Pkey::default(), pace.clone());
    let psn = Psn::new(0xff_fffe);
    uc.ready_to_receive(uc::RtrAttr { dest_qpn: Qpn::new(2), path_mtu: MTU, rq_psn: psn });
    uc.ready_to_send(psn);
    uc
}

/// Takes what wants to leave just now.
fn drain_uc(uc: &mut Uc, now: Instant, ground: &mut Ground, mut each: impl FnMut(&[u8])) {
    let mut batch = TxBatch::new();
    for _ in 0..MAX_FILLS {
        batch.clear();
        uc.fill(now, &mut batch, ground);
        if batch.is_empty() {
            assert!(uc.deadline().is_none_or(|at| at > now), "UC: a deadline that is over after fill");
            return;
        }
        for bytes in batch.iter() {
            let bytes = &bytes[..bytes.len() - 4];
            let packet = Packet::parse(bytes).expect("UC sends legal packets");
            assert!(packet.payload.len() <= MTU.bytes(), "a packet longer than the path MTU");
            each(bytes);
        }
    }
    panic!("UC: sending does not end, whatever the pace");
}

/// Two queue pairs that share a pace, and what is known of them.
struct Port<'a, 'b> {
    input: &'a mut Input<'b>,
    uc: Uc,
    ud: Ud<u8>,
    grounds: [Ground; 2],
    ledgers: [Ledger; 2],
    now: Instant,
    receives: u64,
}

impl<'a, 'b> Port<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let pace: Arc<Pace> = Arc::default();
        let uc = uc(&pace);
        let mut ud = Ud::new(Qpn::new(3), Pkey::default(), pace);
        ud.set_qkey(Qkey(1));
        ud.ready_to_receive(1024);
        ud.ready_to_send(Psn::new(9));
        Port {
            input,
            uc,
            ud,
            grounds: Default::default(),
            ledgers: Default::default(),
            now: start(),
            receives: 0,
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            self.step();
            self.drain();
            self.check();
        }
        self.uc.fail(&mut self.grounds[0]);
        self.ud.fail(&mut self.grounds[1]);
        self.drain();
        self.check();
        for end in 0..2 {
            self.ledgers[end].assert_empty();
            assert_eq!(self.grounds[end].taken.len(), 0, "a receive that was taken has been flushed");
        }
        assert!(self.uc.deadline().is_none() && self.ud.deadline().is_none(), "the dead wait for nothing");
    }

    fn step(&mut self) {
        let end = usize::from(self.input.any::<bool>());
        match self.input.below(10) {
            0 | 1 => self.post(end),
            2 => {
                let wr = requests::recv_wr(self.input, self.receives);
                self.grounds[end].post_receive(0, wr);
                self.receives += 1;
            }
            3 => self.now += Duration::from_nanos(self.input.below(1_000_000).into()),
            4 => match (end, self.input.below(3)) {
                (0, 0) => self.uc.drain(),
                (_, 0) => self.ud.drain(),
                (0, _) => {
                    self.uc.resume();
                    self.ledgers[0].forgive();
                }
                _ => {
                    self.ud.resume();
                    self.ledgers[1].forgive();
                }
            },
            5 if self.input.one_in(16) => match end {
                0 => self.uc.fail(&mut self.grounds[0]),
                _ => self.ud.fail(&mut self.grounds[1]),
            },
            _ => self.receive(end),
        }
    }

    fn post(&mut self, end: usize) {
        if [self.uc.outstanding(), self.ud.outstanding()][end] >= MAX_SEND {
            return;
        }
        let arm = if self.input.one_in(8) {
            self.input.below(requests::SEND_OPS)
        } else {
            self.input.below(2 - end as u32)
        };
        let op = requests::send_op(arm, self.input);
        let wr = requests::send_wr(self.input, self.ledgers[end].next(), op);
        self.ledgers[end].post(wr.signaled);
        if end == 0 {
            // The adapter refuses what UC does not carry.
            return match wr.op {
                SendOp::Send(_) | SendOp::Write { .. } => self.uc.post(wr, &mut self.grounds[0]),
                _ => {
                    let op = SendOp::Send(SendTail::None);
                    self.uc.post(SendWr { op, ..wr }, &mut self.grounds[0]);
                }
            };
        }
        let address = self.input.u8() & 1;
        let to = Destination { address, grh: None, qpn: Qpn::new(4), qkey: Qkey(self.input.u32()) };
        self.ud.post(wr, to, &mut self.grounds[1]);
    }

    fn receive(&mut self, end: usize) {
        let input = &mut *self.input;
        let arms = if input.one_in(8) { packets::OPS } else { 12 };
        let op = packets::op(input.below(arms), input);
        let len = match input.u8() {
            0 => 0,
            1..=150 => MTU.bytes(),
            n => usize::from(n) * 4 - 600,
        };
        let payload = vec![1; len];
        let ahead = u32::from(input.u8());
        let psn = if ahead < 240 { self.uc.rq_psn() } else { self.uc.rq_psn().add(ahead) };
        let bth = Bth { psn, solicited: input.any(), ..Bth::default() };
        let deth = Deth { qkey: Qkey(u32::from(!input.one_in(8))), source_qp: Qpn::new(9) };
        let service = match end {
            0 if !input.one_in(32) => Service::Uc,
            _ => Service::Ud(deth),
        };
        let packet = Packet { header: Header { bth, service, op }, payload: &payload };
        if end == 0 {
            return self.uc.receive(&packet, &mut self.grounds[0]);
        }
        let (source, dest) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let grh = Grh::V4 { tos: 0, payload_len: 40, identification: 0, ttl: 1, source, dest };
        let _ = self.ud.receive(None, Some(&grh), &packet, &mut self.grounds[1]);
    }

    fn drain(&mut self) {
        drain_uc(&mut self.uc, self.now, &mut self.grounds[0], |_| {});
        let mut batch = TxBatch::new();
        for _ in 0..MAX_FILLS {
            batch.clear();
            let to = self.ud.fill(self.now, &mut batch, &mut self.grounds[1]);
            assert_eq!(to.is_none(), batch.is_empty(), "packets have an address");
            if to.is_none() {
                let idle = self.ud.deadline().is_none_or(|at| at > self.now);
                assert!(idle, "UD: a deadline that is over after fill");
                return;
            }
            for bytes in batch.iter() {
                let packet = Packet::parse(&bytes[..bytes.len() - 4]).expect("UD sends legal packets");
                assert!(packet.payload.len() <= 1024, "a datagram longer than the port's MTU");
            }
        }
        panic!("UD: sending does not end, whatever the pace");
    }

    fn check(&mut self) {
        for (ground, ledger) in self.grounds.iter_mut().zip(&mut self.ledgers) {
            for (side, completion) in ground.done.drain(..) {
                if side == Side::Send {
                    ledger.complete(&completion);
                }
            }
        }
        self.ledgers[0].assert_outstanding(self.uc.outstanding());
        self.ledgers[1].assert_outstanding(self.ud.outstanding());
        for state in [self.uc.state(), self.ud.state()] {
            assert!(!matches!(state, UnreliableState::Init | UnreliableState::Rtr), "no way back");
        }
    }
}

/// Bytes of message `n`: each tells the message and its place in it.
fn message(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at / 256 * 7 + at) as u8).collect()
}

/// A sender and a receiver.
fn pair(input: &mut Input<'_>) {
    const BUFFER: u32 = 2048;
    let pace: Arc<Pace> = Arc::default();
    let (mut from, mut to) = (uc(&pace), uc(&pace));
    let (mut here, mut there) = (Ground::default(), Ground::default());
    let (mut now, mut ledger) = (start(), Ledger::default());
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let (mut receives, mut next) = (0, 0);
    // In order and once, as long as the network neither repeats nor reorders.
    let orderly: bool = input.any();
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        let room = here.memory.bytes.borrow().len() / BUFFER as usize;
        if sent.len() < room && input.any() {
            let bytes = message(sent.len(), input.below(BUFFER) as usize);
            let addr = BASE + u64::from(BUFFER) * sent.len() as u64;
            here.memory.set(offset(addr), &bytes);
            let sge = Sge { addr, length: bytes.len() as u32, lkey: KEY };
            sent.push(bytes);
            let wr_id = ledger.post(true);
            let (op, data) = (SendOp::Send(SendTail::None), Data::Sges([sge].into_iter().collect()));
            from.post(SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false }, &mut here);
        }
        if receives < room && input.any() {
            let sge = Sge { addr: BASE + u64::from(BUFFER) * receives as u64, length: BUFFER, lkey: KEY };
            let wr = transport::op::RecvWr { wr_id: receives as u64, sges: [sge].into_iter().collect() };
            there.post_receive(0, wr);
            receives += 1;
        }
        now += Duration::from_micros(input.below(200).into());
        let mut wire: Vec<Vec<u8>> = Vec::new();
        drain_uc(&mut from, now, &mut here, |packet| match input.below(16) {
            0 => {}
            1 if !orderly => wire.extend([packet.to_vec(), packet.to_vec()]),
            2 if !orderly => wire.insert(0, packet.to_vec()),
            _ => wire.push(packet.to_vec()),
        });
        for bytes in wire {
            let packet = Packet::parse(&bytes).expect("what was sent is legal");
            to.receive(&packet, &mut there);
        }
        here.done.drain(..).for_each(|(_, completion)| ledger.complete(&completion));
        for (_, completion) in there.done.drain(..) {
            assert_eq!(completion.status, Status::Success);
            let at = BUFFER as usize * completion.wr_id as usize;
            let got = there.memory.copy(at, completion.byte_len as usize);
            let first = if orderly { next } else { 0 };
            let which = sent.iter().skip(first).position(|bytes| *bytes == got);
            let Some(which) = which else {
                panic!("message {} was never sent, or comes again", completion.wr_id)
            };
            next = first + which + 1;
        }
    }
    from.fail(&mut here);
    to.fail(&mut there);
    here.done.drain(..).for_each(|(_, completion)| ledger.complete(&completion));
    ledger.assert_empty();
    assert_eq!(there.taken.len(), 0, "a receive that was begun has been flushed");
}
