//! XRC (IBA annex A14): an initiator's requests name a shared receive queue, a target does what
//! they ask on the queue they name.

use std::collections::{BTreeMap, VecDeque};

use crate::support;
use crate::support::{
    BASE, KEY, PSN, TestContext, ack, atomic, nak, read, rnr, rtr, rts, send, sge, some_instant, write,
};
use transport::op::{AtomicOp, Completion, QpEvent, RecvWr, SendOp, SendWr, Side, Status};
use transport::rc::{AckDelay, State};
use transport::{CongestionWindow, Context, Fault, Memory, Rc, TxBatch};
use wire::bth::{Bth, Feth, NakCode, Reth, XrcEth};
use wire::roce::{Header, Op, Packet, ReadAt, SendAt, SendTail, Service, WriteAt};
use wire::{Mtu, Pkey, Psn, Qpn, Rkey};

const ONLY: Op = Op::Send(SendAt::Only(SendTail::None));

/// A target's domain: queues by number.
#[derive(Default)]
struct Domain {
    inner: TestContext,
    queues: BTreeMap<u32, VecDeque<RecvWr>>,
    chosen: Option<u32>,
    /// Receives that completed, and in whose CQ.
    received: Vec<(Option<u32>, Completion)>,
}

impl Context for Domain {
    fn memory(&self) -> impl Memory + Copy {
        assert!(self.chosen.is_some(), "memory is that of a queue's domain");
        self.inner.memory()
    }
    fn take_receive(&mut self) -> Option<RecvWr> {
        self.queues.get_mut(&self.chosen?)?.pop_front()
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        assert_eq!(side, Side::Receive, "a target has no requests");
        self.received.push((self.chosen, completion));
    }
    fn event(&mut self, event: QpEvent) {
        self.inner.event(event);
    }
    fn choose_srq(&mut self, number: u32) -> Result<(), Fault> {
        self.chosen = self.queues.contains_key(&number).then_some(number);
        self.chosen.map(drop).ok_or(Fault::Key)
    }
    fn window(&self) -> &CongestionWindow {
        self.inner.window()
    }
}

/// A target in RTR, and its domain.
struct Target {
    rc: Rc,
    cx: Domain,
}

impl Target {
    /// With two queues, of numbers 5 and 6.
    fn new() -> Self {
        let mut rc = Rc::xrc_target(Qpn::new(0x11), Pkey::default());
        rc.ready_to_receive(rtr(Mtu::M256));
        let mut cx = Domain { inner: support::End::in_rtr(Mtu::M256, 4096).cx, ..Domain::default() };
        cx.queues = [(5, VecDeque::new()), (6, VecDeque::new())].into();
        Self { rc, cx }
    }
    fn post_receive(&mut self, queue: u32, wr_id: u64) {
        let sges = [sge(1, 0, 1024)].into_iter().collect();
        self.cx.queues.entry(queue).or_default().push_back(RecvWr { wr_id, sges });
    }
    fn hear(&mut self, psn: u32, service: Service, op: Op, payload: &[u8]) {
        self.hear_held(psn, service, op, payload, AckDelay::No);
    }
    /// Like [`Target::hear`], where an ACK may wait.
    fn hear_held(&mut self, psn: u32, service: Service, op: Op, payload: &[u8], ack_delay: AckDelay) {
        let bth = Bth { psn: Psn::new(PSN).add(psn), ack_request: true, ..Bth::default() };
        let packet = Packet { header: Header { bth, service, op }, payload };
        self.rc.receive(some_instant(), &packet, ack_delay, &mut self.cx);
    }
    /// What the target answers; an answer bears no XRCETH.
    fn answers(&mut self) -> Vec<Op> {
        sent(&mut self.rc, &mut self.cx)
            .into_iter()
            .map(|h| {
                assert_eq!(h.service, Service::Xrc(None));
                h.op
            })
            .collect()
    }
    /// Queue, mark and status of what completed.
    fn received(&mut self) -> Vec<(Option<u32>, u64, Status)> {
        self.cx.received.drain(..).map(|(queue, c)| (queue, c.wr_id, c.status)).collect()
    }
}

/// The headers of all that wants to leave.
fn sent(rc: &mut Rc, cx: &mut impl Context) -> Vec<Header> {
    let mut all = Vec::new();
    let mut batch = TxBatch::new();
    loop {
        batch.clear();
        rc.fill(some_instant(), &mut batch, cx);
        if batch.is_empty() {
            return all;
        }
        all.extend(batch.iter().map(|p| Packet::parse(&p[..p.len() - 4]).expect("legal").header));
    }
}

fn to(srq: u32) -> Service {
    Service::Xrc(Some(XrcEth { srq }))
}

#[test]
fn every_request_of_an_initiator_names_its_queue() {
    let mut rc = Rc::xrc_initiator(Qpn::new(0x11), Pkey::default());
    rc.ready_to_receive(rtr(Mtu::M256));
    rc.ready_to_send(rts());
    let mut cx = support::End::in_rtr(Mtu::M256, 4096).cx;
    let requests: [(SendWr, usize); 4] = [
        (send(1, sge(0, 0, 700)), 3),
        (write(2, sge(0, 0, 300), sge(1, 0, 300), None), 2),
        (read(3, sge(1, 0, 600), sge(0, 0, 600)), 1),
        (atomic(4, AtomicOp::FetchAdd(1), sge(1, 0, 8), sge(0, 0, 8)), 1),
    ];
    let mut expected = Vec::new();
    for (mut wr, packets) in requests {
        let srq = 0xab_cd00 + wr.wr_id as u32;
        expected.extend(std::iter::repeat_n(to(srq), packets));
        rc.post_to_srq(&mut wr, srq, &mut cx);
    }
    let services: Vec<_> = sent(&mut rc, &mut cx).iter().map(|h| h.service).collect();
    assert_eq!(services, expected);
}

#[test]
fn an_initiator_hears_answers_only() {
    let mut rc = Rc::xrc_initiator(Qpn::new(0x11), Pkey::default());
    rc.ready_to_receive(rtr(Mtu::M256));
    rc.ready_to_send(rts());
    let mut cx = support::End::in_rtr(Mtu::M256, 4096).cx;
    cx.receives.push_back(RecvWr { wr_id: 9, sges: [].into_iter().collect() });
    rc.post_to_srq(&mut send(1, sge(0, 0, 8)), 5, &mut cx);
    sent(&mut rc, &mut cx);
    let bth = Bth { psn: Psn::new(PSN), ack_request: true, ..Bth::default() };
    for (service, op) in [(Service::Rc, ONLY), (to(5), ONLY), (Service::Rc, ack(1))] {
        let packet = Packet { header: Header { bth, service, op }, payload: &[] };
        rc.receive(some_instant(), &packet, AckDelay::No, &mut cx);
        assert_eq!((cx.completions.len(), cx.receives.len()), (0, 1), "{op:?} of {service:?}");
    }
    assert!(sent(&mut rc, &mut cx).is_empty());
    let packet = Packet { header: Header { bth, service: Service::Xrc(None), op: ack(1) }, payload: &[] };
    rc.receive(some_instant(), &packet, AckDelay::No, &mut cx);
    assert_eq!(cx.completions.len(), 1);
}

#[test]
fn a_target_takes_each_receive_from_the_queue_that_the_request_names() {
    let mut t = Target::new();
    t.post_receive(5, 50);
    t.post_receive(6, 60);
    t.post_receive(6, 61);
    t.hear(0, to(6), ONLY, b"six");
    let reth = Reth { addr: BASE * 2, rkey: Rkey(KEY + 1), length: 4 };
    t.hear(1, to(5), Op::Write(WriteAt::Only(reth, Some(*b"imm!"))), b"five");
    t.hear(2, to(6), ONLY, b"six");
    assert_eq!(
        t.received(),
        [(Some(6), 60, Status::Success), (Some(5), 50, Status::Success), (Some(6), 61, Status::Success)]
    );
    assert_eq!(t.answers(), [ack(3)]);
    t.hear(3, to(5), ONLY, b"too soon");
    assert_eq!(t.answers(), [rnr(12, 3)]);
}

#[test]
fn an_ack_of_a_target_waits_for_more_to_acknowledge_but_for_no_request() {
    let mut t = Target::new();
    t.post_receive(5, 50);
    t.hear_held(0, to(5), ONLY, &[], AckDelay::ForProgram);
    assert_eq!((t.rc.held(), t.answers()), (AckDelay::Briefly, vec![]));
    t.rc.release();
    assert_eq!(t.answers(), [ack(1)]);
}

#[test]
fn a_flush_is_of_memory_of_the_queue_that_the_request_names() {
    let mut t = Target::new();
    let reth = Reth { addr: BASE, rkey: Rkey(KEY), length: 8 };
    let flush = |placement| Op::Flush(Feth { placement, selectivity: 0 }, reth);
    t.hear(0, to(5), flush(1), &[]);
    assert!(matches!(t.answers()[..], [Op::ReadResponse(ReadAt::Only(_))]));
    t.hear(1, to(6), flush(2), &[]);
    assert_eq!(t.rc.take_flush().map(|task| task.srq), Some(Some(6)));
    t.hear(2, to(7), flush(1), &[]);
    t.rc.flushed(Ok(()), &mut t.cx);
    assert_eq!(t.answers().last(), Some(&nak(NakCode::PsnSequence, 2)));
    t.hear(2, to(7), flush(1), &[]);
    assert_eq!(t.answers(), [nak(NakCode::InvalidRequest, 2)]);
}

#[test]
fn a_target_hears_xrc_requests_only() {
    let mut t = Target::new();
    t.post_receive(5, 50);
    for (service, op) in [(Service::Rc, ONLY), (Service::Xrc(None), ack(1)), (Service::Uc, ONLY)] {
        t.hear(0, service, op, &[]);
        assert_eq!((t.received(), t.answers()), (vec![], vec![]), "{op:?} of {service:?}");
    }
}

#[test]
fn a_queue_that_the_domain_has_not_is_an_invalid_request() {
    let mut t = Target::new();
    t.hear(0, to(7), ONLY, b"whom?");
    assert_eq!(t.answers(), [nak(NakCode::InvalidRequest, 0)]);
    assert_eq!(t.rc.state(), State::Error);
    assert!(t.cx.inner.events.contains(&QpEvent::RequestError));
}

#[test]
fn a_message_that_changes_its_queue_is_an_invalid_request_and_its_receive_is_flushed_where_it_came_from() {
    let mut t = Target::new();
    t.post_receive(5, 50);
    t.post_receive(6, 60);
    t.hear(0, to(5), Op::Send(SendAt::First), &[1; 256]);
    t.hear(1, to(6), Op::Send(SendAt::Last(SendTail::None)), &[2; 10]);
    assert_eq!(t.answers().last(), Some(&nak(NakCode::InvalidRequest, 0)));
    assert_eq!(t.received(), [(Some(5), 50, Status::WrFlush)]);
}

#[test]
fn a_half_filled_receive_of_a_queue_that_is_gone_completes_nowhere() {
    let mut t = Target::new();
    t.post_receive(5, 50);
    t.hear(0, to(5), Op::Send(SendAt::First), &[1; 256]);
    t.cx.queues.remove(&5);
    t.rc.fail(&mut t.cx);
    assert_eq!(t.received(), []);
}

#[test]
fn a_read_finds_the_memory_of_its_queue_when_its_answer_leaves() {
    let request = |srq| (to(srq), Op::ReadRequest(Reth { addr: BASE, rkey: Rkey(KEY), length: 300 }));
    let mut t = Target::new();
    t.post_receive(6, 60);
    let (service, op) = request(5);
    t.hear(0, service, op, &[]);
    t.hear(2, to(6), ONLY, &[]);
    assert!(matches!(
        t.answers()[..],
        [Op::ReadResponse(ReadAt::First(_)), Op::ReadResponse(ReadAt::Last(_)), Op::Acknowledge(_)]
    ));
    // Asked for again.
    t.hear(0, service, op, &[]);
    assert_eq!(t.answers().len(), 2);
    // For another queue it is another request, and was never there.
    t.hear(0, to(6), op, &[]);
    assert_eq!(t.answers().len(), 0);
    t.hear(3, service, op, &[]);
    t.cx.queues.remove(&5);
    assert_eq!(t.answers(), [nak(NakCode::RemoteAccess, 3)]);
    assert_eq!(t.rc.state(), State::Error);
}

#[test]
fn an_operation_without_data_names_its_queue_too() {
    let mut rc = Rc::xrc_initiator(Qpn::new(0x11), Pkey::default());
    rc.ready_to_receive(rtr(Mtu::M256));
    rc.ready_to_send(rts());
    let mut cx = support::End::in_rtr(Mtu::M256, 64).cx;
    let op = SendOp::Send(SendTail::Immediate(*b"imm!"));
    rc.post_to_srq(&mut SendWr { op, ..send(1, sge(0, 0, 0)) }, 0xff_ffff, &mut cx);
    let all = sent(&mut rc, &mut cx);
    assert_eq!(all.iter().map(|h| (h.service, h.len())).collect::<Vec<_>>(), [(to(0xff_ffff), 12 + 4 + 4)]);
}
