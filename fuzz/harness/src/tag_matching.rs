//! A tag-matching queue under any messages and operations, beside a model of a few lines that says
//! which buffer each message takes.
//!
//! Each operation and each message completes as the model says, rendezvous data once and only after
//! their match.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use nic::{Access, Buffer, Cq, Qp, QpType, Srq, SrqAttr, TagOp, TagWr};
use transport::op::{Completed, Completion, RecvWr, Status};
use transport::rc::AckDelay;
use wire::bth::{Aeth, Bth, NakCode, Reth, Syndrome};
use wire::roce::{Header, Op, Packet, ReadAt, SendAt, SendTail, Service};
use wire::tm::{RENDEZVOUS_LEN, TMH_LEN, TmMessage, Tmh};
use wire::{Psn, Rkey};

use crate::adapter::{Adapter, HERE, THERE, completions};
use crate::{Input, packets};

const STEPS: u32 = 300;
const MAX_TAGS: u32 = 8;
const MAX_RECEIVES: u32 = 8;
/// Bytes of the buffer that all receives name; what it holds in the end does not matter here.
const LEN: usize = 8192;
const IOVA: u64 = 0x10_0000;
/// Path MTU of the queue pair.
const MTU: usize = 256;
/// A rendezvous with a longer header is software's.
const MAX_RENDEZVOUS: usize = nic::limits::MAX_RENDEZVOUS_HEADER;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    Scene::new(&mut Input::new(bytes)).run();
}

/// A tagged buffer as the model has it.
struct Tagged {
    handle: u32,
    wr_id: u64,
    room: u32,
    tag: u64,
    mask: u64,
    live: bool,
}

/// What the adapter must do.
#[derive(Default)]
struct Model {
    tags: Vec<Tagged>,
    ordinary: VecDeque<u64>,
    unexpected: u32,
    handled: u32,
    /// Completions that are due: mark, opcode, and the status where the model knows it.
    due: VecDeque<(u64, Completed, Option<Status>)>,
    /// Matches that were told of before their data are all here.
    to_come: BTreeSet<u64>,
}

impl Model {
    fn in_step(&self) -> bool {
        self.unexpected == self.handled
    }
    fn take(&mut self, tag: u64) -> Option<Tagged> {
        let at = self.tags.iter().position(|t| t.live && tag & t.mask == t.tag)?;
        Some(self.tags.remove(at))
    }
    /// A message arrives; false where it finds no receive.
    fn message(&mut self, first: &[u8], whole: bool) -> bool {
        let (opcode, matched) = match TmMessage::parse(first) {
            TmMessage::Untagged | TmMessage::Fin(..) => (Completed::TmNoTag, None),
            TmMessage::Eager(tmh) => {
                let matched = self.take(tmh.tag);
                if !whole {
                    self.to_come.extend(matched.iter().map(|tagged| tagged.wr_id));
                }
                (Completed::TmReceive, matched)
            }
            TmMessage::Rendezvous(tmh, rvh) if whole && first.len() <= MAX_RENDEZVOUS => {
                let matched = self.take(tmh.tag);
                let fits = |tagged: &&Tagged| rvh.length <= tagged.room;
                self.to_come.extend(matched.iter().filter(fits).map(|tagged| tagged.wr_id));
                (Completed::TmReceive, matched)
            }
            TmMessage::Rendezvous(..) => (Completed::TmReceive, None),
        };
        if let Some(tagged) = matched {
            self.due.push_back((tagged.wr_id, opcode, None));
            return true;
        }
        let Some(wr_id) = self.ordinary.pop_front() else { return false };
        if opcode == Completed::TmReceive {
            self.unexpected = self.unexpected.wrapping_add(1);
        }
        self.due.push_back((wr_id, opcode, None));
        true
    }
}

struct Scene<'a, 'b> {
    input: &'a mut Input<'b>,
    adapter: Adapter,
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    qp: Arc<Qp>,
    buffer: Buffer,
    model: Model,
    psn: Psn,
    next_id: u64,
    /// READs that wait for an answer: PSN and bytes.
    reads: VecDeque<(Psn, u32)>,
    /// A packet came that the model does not know the outcome of.
    astray: bool,
}

impl<'a, 'b> Scene<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let adapter = Adapter::default();
        let cq = adapter.cq(1024);
        let attr = SrqAttr { max_wr: MAX_RECEIVES, max_sge: 2, limit: 0 };
        let srq = Srq::create_tm(&adapter.pd, attr, adapter.events.clone(), MAX_TAGS, cq.clone());
        let srq = srq.expect("a small tag-matching queue");
        let init = nic::QpInit { srq: Some(srq.clone()), ..adapter.init(QpType::Rc, &cq, 0) };
        let qp = adapter.qp(init);
        let buffer = Buffer::new(&adapter.pd, LEN, IOVA, Access::LOCAL_WRITE).expect("memory");
        let (model, psn, reads) = (Model::default(), Psn::new(0), VecDeque::new());
        Scene { input, adapter, cq, srq, qp, buffer, model, psn, next_id: 1, reads, astray: false }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if !self.input.more() {
                break;
            }
            self.step();
            self.look();
        }
        self.qp.fail(self.adapter.now);
        self.look_at_the_end();
        self.qp.destroy();
        self.srq.destroy();
        self.adapter.pass(Duration::from_secs(100));
    }

    fn receive(&mut self) -> (RecvWr, u32) {
        let room = self.input.choose(&[256, 0, 15, 16, 32, 64, 1024, 4096]);
        let wr_id = self.next_id;
        self.next_id += 1;
        let sge = self.buffer.sge(self.input.below(8) as usize, room as usize);
        (RecvWr { wr_id, sges: [sge].into_iter().collect() }, room)
    }

    fn step(&mut self) {
        match self.input.below(16) {
            0..=3 => self.add(),
            4 => {
                let handle = match self.model.tags.len() {
                    0 => self.input.below(16),
                    n => self.model.tags[self.input.index(n)].handle,
                };
                let handle = handle.wrapping_add(self.input.one_in(8).into());
                self.operate(TagOp::Delete(handle), Completed::TmDelete);
            }
            5 => self.operate(TagOp::Sync, Completed::TmSync),
            6 | 7 => {
                let (wr, _) = self.receive();
                let wr_id = wr.wr_id;
                if self.srq.post(wr).is_ok() {
                    self.model.ordinary.push_back(wr_id);
                }
                assert!(self.astray || self.model.ordinary.len() <= MAX_RECEIVES as usize);
            }
            8 => {
                let time = self.input.below(200_000);
                self.adapter.pass(Duration::from_micros(time.into()));
            }
            9 => self.answer_read(),
            10 if self.input.one_in(8) => self.stray(),
            _ => self.message(),
        }
    }

    fn add(&mut self) {
        let (receive, room) = self.receive();
        let (tag, mask) = (self.input.below(4).into(), self.input.choose(&[u64::MAX, 3, 1, 0]));
        let wr_id = receive.wr_id;
        let handled = self.handled();
        let wr = TagWr { wr_id, op: TagOp::Add { receive, tag, mask }, handled, signaled: true };
        match self.srq.post_tag_op(wr) {
            Ok(Some(handle)) => {
                self.synchronize(handled);
                let live = self.model.in_step();
                self.model.tags.push(Tagged { handle, wr_id, room, tag, mask, live });
                self.model.due.push_back((wr_id, Completed::TmAdd, Some(Status::Success)));
            }
            Ok(None) => panic!("a tag without a handle"),
            Err(_) => {
                let full = self.model.tags.len() == MAX_TAGS as usize;
                assert!(full || self.astray, "refused although there is room");
            }
        }
    }

    /// What the program says it has handled: mostly the truth.
    fn handled(&mut self) -> Option<u32> {
        match self.input.below(4) {
            0 => None,
            1 => Some(self.input.below(4)),
            _ => Some(self.model.unexpected),
        }
    }

    fn synchronize(&mut self, handled: Option<u32>) {
        let Some(handled) = handled else { return };
        self.model.handled = handled;
        if self.model.in_step() {
            self.model.tags.iter_mut().for_each(|t| t.live = true);
        }
    }

    fn operate(&mut self, op: TagOp, opcode: Completed) {
        let (wr_id, handled, signaled) = (self.next_id, self.handled(), self.input.any());
        self.next_id += 1;
        let known = match op {
            TagOp::Delete(handle) => {
                let at = self.model.tags.iter().position(|t| t.handle == handle);
                at.map(|at| self.model.tags.remove(at)).is_some()
            }
            _ => true,
        };
        let none = self.srq.post_tag_op(TagWr { wr_id, op, handled, signaled });
        assert_eq!(none, Ok(None), "only a tag that is added has a handle");
        self.synchronize(handled);
        if signaled {
            let status = if known { Status::Success } else { Status::Tm };
            self.model.due.push_back((wr_id, opcode, Some(status)));
        }
    }

    /// A message of any headers in one packet or three.
    fn message(&mut self) {
        let tmh = Tmh { app_ctx: self.input.u32(), tag: self.input.below(4).into() };
        let length = self.input.choose(&[0, 1, 64, 256, 300, 1024, 5000, u32::MAX]);
        let rvh = Reth { addr: 0x1000, rkey: Rkey(7), length };
        let message = match self.input.below(4) {
            0 => TmMessage::Rendezvous(tmh, rvh),
            1 if self.input.one_in(4) => TmMessage::Fin(tmh, rvh),
            2 if self.input.one_in(4) => TmMessage::Untagged,
            _ => TmMessage::Eager(tmh),
        };
        let mut first = message.emit().to_vec();
        let len = self.input.choose(&[RENDEZVOUS_LEN, TMH_LEN, 0, 8, 31, 64, 65, MTU]);
        first.resize(len, 0x5a);
        if self.input.one_in(8) && !first.is_empty() {
            let at = self.input.index(first.len());
            first[at] = self.input.u8();
        }
        let whole = first.len() < MTU || self.input.any();
        let accepted = !self.astray && self.is_alive() && self.model.message(&first, whole);
        let tail = if self.input.one_in(8) { SendTail::Immediate([1; 4]) } else { SendTail::None };
        if whole {
            return self.packet(Op::Send(SendAt::Only(tail)), &first, accepted);
        }
        self.packet(Op::Send(SendAt::First), &first, accepted);
        if accepted {
            self.packet(Op::Send(SendAt::Middle), &[0x6b; MTU], true);
            self.packet(Op::Send(SendAt::Last(tail)), &[0x7c; 9], true);
        }
    }

    fn is_alive(&self) -> bool {
        self.qp.state() == nic::QpState::Rts
    }

    /// A request with the PSN that is expected, which moves on where it is taken.
    fn packet(&mut self, op: Op, payload: &[u8], taken: bool) {
        self.packet_at(self.psn, op, payload);
        if taken {
            self.psn = self.psn.add(1);
        }
    }

    fn packet_at(&mut self, psn: Psn, op: Op, payload: &[u8]) {
        let bth = Bth { psn, ack_request: true, dest_qp: self.qp.qpn(), ..Bth::default() };
        let packet = Packet { header: Header { bth, service: Service::Rc, op }, payload };
        let ends = (THERE.into(), HERE.into());
        self.adapter.device.input(self.adapter.now, ends.0, ends.1, AckDelay::No, &packet.into(), || None);
    }

    /// Any packet at all; from now on the model does not know which messages are taken.
    fn stray(&mut self) {
        let op = packets::op(self.input.below(packets::OPS), self.input);
        let psn = self.psn.add(self.input.choose(&[0, 0, 1, 0xff_ffff]));
        let len = self.input.choose(&[0, 16, MTU]);
        self.astray = true;
        self.packet_at(psn, op, &vec![3; len]);
    }

    /// The peer answers a READ, or the FIN behind it, well or not.
    fn answer_read(&mut self) {
        let Some((psn, len)) = self.reads.pop_front() else { return };
        let ack = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0 };
        if self.input.one_in(8) {
            let nak = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0 };
            return self.packet_at(psn, Op::Acknowledge(nak), &[]);
        }
        let packets = len.div_ceil(MTU as u32).max(1);
        for at in 0..packets {
            let op = match (at == 0, at + 1 == packets) {
                (true, true) => ReadAt::Only(ack),
                (true, false) => ReadAt::First(ack),
                (false, true) => ReadAt::Last(ack),
                (false, false) => ReadAt::Middle,
            };
            let bytes = vec![9; (len - at * MTU as u32).min(MTU as u32) as usize];
            self.packet_at(psn.add(at), Op::ReadResponse(op), &bytes);
        }
        // The FIN, which follows the READ.
        self.packet_at(psn.add(packets), Op::Acknowledge(ack), &[]);
    }

    /// What was sent, and what completed.
    fn look(&mut self) {
        for bytes in self.adapter.sent() {
            let packet = Packet::parse(&bytes).expect("the adapter sends legal packets");
            assert!(packet.payload.len() <= MTU, "a packet longer than the path MTU");
            if let Op::ReadRequest(reth) = packet.header.op {
                let read = (packet.header.bth.psn, reth.length);
                if !self.reads.contains(&read) {
                    self.reads.push_back(read);
                }
            }
        }
        for completion in completions(&self.cq) {
            self.completed(&completion);
        }
        if !self.astray && self.is_alive() {
            assert!(self.model.due.is_empty(), "no completion came for {:?}", self.model.due);
        }
    }

    fn completed(&mut self, completion: &Completion) {
        let fetched = completion.opcode == Completed::TmReceive && !completion.tm.matched;
        if fetched && self.model.to_come.contains(&completion.wr_id) {
            // Its match was told of before: it is not due any more.
            let due = self.model.due.iter().any(|(wr_id, ..)| *wr_id == completion.wr_id);
            assert!(!due, "data before their match: {completion:?}");
            self.model.to_come.remove(&completion.wr_id);
            return;
        }
        if self.astray {
            return;
        }
        let Some((wr_id, opcode, status)) = self.model.due.pop_front() else {
            // An error ends what had begun.
            assert_ne!(completion.status, Status::Success, "nothing was due: {completion:?}");
            return;
        };
        assert_eq!(wr_id, completion.wr_id, "{completion:?}");
        if completion.status == Status::Success {
            assert_eq!(opcode, completion.opcode, "{completion:?}");
        }
        assert!(status.is_none_or(|status| status == completion.status), "{completion:?}");
        if opcode == Completed::TmAdd || opcode == Completed::TmSync || opcode == Completed::TmDelete {
            assert_eq!(completion.tm.sync_required, !self.model.in_step());
        }
    }

    /// Everything has ended, rendezvous too.
    fn look_at_the_end(&mut self) {
        self.look();
        assert!(self.astray || self.model.to_come.is_empty(), "{:?} never end", self.model.to_come);
    }
}
