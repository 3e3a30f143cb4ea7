//! What `ibv_modify_qp` changes about a queue pair that runs, seen from its traffic; and the
//! drained send queue of SQD.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::{Endpoint, SimNode, Wiring, wire_up};
use nic::{Buffer, EventKind, QpAttr, QpState, mask};
use sim::{Faults, HostId, Sim};
use transport::op::{Data, RecvWr, SendOp, SendWr, Status};
use transport::rc::Failure;
use wire::roce::SendTail;
use wire::{Mtu, Psn};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Bytes of a message: many packets.
const LEN: usize = 100_000;

struct End {
    node: SimNode,
    endpoint: Endpoint,
    buffer: Buffer,
}

impl End {
    fn modify(&self, attr: QpAttr, bits: u32) {
        self.endpoint.qp.modify(stack::Env::now(&**self.node.env()), &attr, bits).unwrap();
    }
    fn go_to(&self, state: QpState) {
        self.modify(QpAttr { state, ..QpAttr::default() }, mask::STATE);
    }
    fn send(&self, wr_id: u64, len: usize) {
        let data = Data::Sges([self.buffer.sge(0, len)].into_iter().collect());
        let op = SendOp::Send(SendTail::None);
        let wr = SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false };
        self.endpoint.qp.post_send(stack::Env::now(&**self.node.env()), wr).unwrap();
    }
    fn receive(&self) {
        let sges = [self.buffer.sge(0, LEN)].into_iter().collect();
        self.endpoint.qp.post_receive(RecvWr { wr_id: 0, sges }).unwrap();
    }
    fn sent(&self) -> Vec<(u64, Status)> {
        Endpoint::poll(&self.endpoint.sends).into_iter().map(|c| (c.wr_id, c.status)).collect()
    }
    fn is_told_of_drain(&self) -> bool {
        match self.endpoint.events.pop() {
            Some(event) => event.kind == EventKind::SqDrained,
            None => false,
        }
    }
}

/// Two ends on a perfect network, both in RTS.
fn connected(wiring: Wiring) -> (Sim, [HostId; 2], End, End) {
    let mut sim = Sim::new(1, Faults::none());
    let hosts = [HERE, THERE].map(|a| sim.add_host(&[a], 1500));
    let [a, b] = hosts.map(|host| {
        let process = sim.start(host, &stack::Config::default());
        let node = sim.node(process).unwrap();
        let endpoint = Endpoint::new(&node);
        let buffer =
            Buffer::new(&endpoint.pd, LEN, 0x10_0000, nic::Access::LOCAL_WRITE | nic::Access::REMOTE_READ)
                .unwrap();
        End { node, endpoint, buffer }
    });
    let psn = Psn::new(7);
    wire_up(&a.node, &a.endpoint, &b.endpoint, THERE, &wiring, (psn, psn));
    wire_up(&b.node, &b.endpoint, &a.endpoint, HERE, &wiring, (psn, psn));
    (sim, hosts, a, b)
}

fn wiring() -> Wiring {
    Wiring { mtu: Mtu::M1024, timeout: 14, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 1 }
}

#[test]
fn a_send_queue_that_has_drained_in_sqd_says_so_once() {
    let (mut sim, _, a, b) = connected(wiring());
    b.receive();
    b.receive();
    a.send(1, LEN);
    a.go_to(QpState::Sqd);
    a.send(2, 8);
    assert!(a.endpoint.qp.query().sq_draining);
    assert!(!a.is_told_of_drain(), "the first message is under way");
    sim.run_for(Duration::from_millis(50));
    assert_eq!(a.sent(), [(1, Status::Success)]);
    assert!(a.is_told_of_drain());
    assert!(!a.endpoint.qp.query().sq_draining);
    a.go_to(QpState::Sqd);
    assert!(!a.is_told_of_drain(), "it was told already");
    a.go_to(QpState::Rts);
    sim.run_for(Duration::from_millis(50));
    assert_eq!(a.sent(), [(2, Status::Success)]);
    assert!(!a.is_told_of_drain());
}

#[test]
fn a_send_queue_with_nothing_to_drain_says_so_at_once_unless_it_shall_not() {
    let (_sim, _, a, _b) = connected(wiring());
    let asked = mask::STATE | mask::EN_SQD_ASYNC_NOTIFY;
    let to = |state, en_sqd_async_notify| QpAttr { state, en_sqd_async_notify, ..QpAttr::default() };
    a.modify(to(QpState::Sqd, true), asked);
    assert!(a.is_told_of_drain());
    a.go_to(QpState::Rts);
    a.modify(to(QpState::Sqd, false), asked);
    assert!(!a.is_told_of_drain());
}

#[test]
fn a_queue_pair_that_fails_while_it_drains_has_not_drained() {
    let (mut sim, _, a, _b) = connected(wiring());
    a.send(1, LEN);
    a.go_to(QpState::Sqd);
    a.go_to(QpState::Error);
    sim.run_for(Duration::from_millis(50));
    assert_eq!(a.sent(), [(1, Status::WrFlush)]);
    assert!(!a.is_told_of_drain());
}

#[test]
fn a_minimum_rnr_timer_changed_in_rts_holds_for_the_next_rnr_nak() {
    // Code 0 is 655.36 ms, code 1 is 10 us (IBA 1.4 table 45).
    let (mut sim, _, a, b) = connected(Wiring { min_rnr_timer: 0, ..wiring() });
    b.modify(QpAttr { min_rnr_timer: 1, ..QpAttr::default() }, mask::MIN_RNR_TIMER);
    a.send(1, 8);
    sim.run_for(Duration::from_millis(2));
    b.receive();
    sim.run_for(Duration::from_millis(2));
    assert_eq!(a.sent(), [(1, Status::Success)]);
}

#[test]
fn timeout_and_retries_changed_in_sqd_hold_from_then_on() {
    // Code 20 is 4.3 s, code 10 is 4.2 ms.
    let (mut sim, [here, there], a, _b) = connected(Wiring { timeout: 20, ..wiring() });
    a.go_to(QpState::Sqd);
    let attr = QpAttr { timeout: 10, retry_cnt: 1, ..QpAttr::default() };
    a.modify(attr, mask::TIMEOUT | mask::RETRY_CNT);
    a.go_to(QpState::Rts);
    sim.partition(here, there, Duration::from_secs(100));
    a.send(1, 8);
    sim.run_for(Duration::from_millis(100));
    assert_eq!(a.sent(), [(1, Status::RetryExceeded)]);
    assert_eq!((a.endpoint.qp.query().timeout, a.endpoint.qp.query().retry_cnt), (10, 1));
}

#[test]
fn a_snapshot_says_where_a_queue_pair_stands_and_why_and_when_it_failed() {
    let (mut sim, [here, there], a, b) = connected(wiring());
    a.go_to(QpState::Sqd);
    let attr = QpAttr { timeout: 10, retry_cnt: 1, ..QpAttr::default() };
    a.modify(attr, mask::TIMEOUT | mask::RETRY_CNT);
    a.go_to(QpState::Rts);
    a.send(1, 8);
    b.receive();
    b.receive();
    sim.run_for(Duration::from_millis(1));
    assert_eq!(a.sent(), [(1, Status::Success)]);
    let (ours, theirs) = (a.endpoint.qp.snapshot(), b.endpoint.qp.snapshot());
    let reliable = ours.reliable.unwrap();
    assert_eq!((ours.state, ours.sends, reliable.completed), (QpState::Rts, 0, 1));
    assert_eq!((reliable.in_flight, reliable.failure), (0, None));
    assert_eq!(ours.path.unwrap().dest_qpn, theirs.qpn);
    assert_eq!((ours.sq_psn, ours.rq_psn), (theirs.rq_psn, theirs.sq_psn));
    assert!(theirs.received >= 1 && theirs.receives < b.endpoint.qp.init().cap.max_recv_wr as usize);
    sim.partition(here, there, Duration::from_secs(100));
    a.send(2, 8);
    a.send(3, 8);
    assert_eq!(
        (a.endpoint.qp.snapshot().sends, a.endpoint.qp.snapshot().reliable.unwrap().in_flight),
        (2, 2)
    );
    sim.run_for(Duration::from_millis(100));
    let failed = a.endpoint.qp.snapshot();
    let reliable = failed.reliable.unwrap();
    let (why, when) = reliable.failure.unwrap();
    assert_eq!((failed.state, why), (QpState::Error, Failure::Request(Status::RetryExceeded)));
    assert!(when <= stack::Env::now(&**a.node.env()));
    assert_eq!((reliable.recoveries.timeouts, reliable.recoveries.retransmissions), (2, 1));
    a.go_to(QpState::Reset);
    assert_eq!(a.endpoint.qp.snapshot().reliable.unwrap().failure, None);
}

#[test]
fn the_initiator_depth_changed_in_sqd_holds_from_then_on() {
    let (mut sim, _, a, b) = connected(wiring());
    let read = |wr_id| {
        let data = Data::Sges([a.buffer.sge(0, 8)].into_iter().collect());
        let op = SendOp::Read { addr: b.buffer.sge(0, 8).addr, rkey: b.buffer.sge(0, 8).lkey };
        let wr = SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false };
        a.endpoint.qp.post_send(stack::Env::now(&**a.node.env()), wr).unwrap();
    };
    a.go_to(QpState::Sqd);
    b.go_to(QpState::Sqd);
    a.modify(QpAttr { max_rd_atomic: 0, ..QpAttr::default() }, mask::MAX_QP_RD_ATOMIC);
    a.modify(QpAttr { max_rd_atomic: 3, ..QpAttr::default() }, mask::MAX_QP_RD_ATOMIC);
    b.modify(QpAttr { max_dest_rd_atomic: 3, ..QpAttr::default() }, mask::MAX_DEST_RD_ATOMIC);
    a.go_to(QpState::Rts);
    b.go_to(QpState::Rts);
    (1..=3).for_each(read);
    sim.run_for(Duration::from_millis(50));
    assert_eq!(a.sent(), [1, 2, 3].map(|id| (id, Status::Success)));
    a.go_to(QpState::Sqd);
    a.modify(QpAttr { max_rd_atomic: 0, ..QpAttr::default() }, mask::MAX_QP_RD_ATOMIC);
    a.go_to(QpState::Rts);
    read(4);
    assert_eq!(a.sent(), [(4, Status::LocalQpOperation)], "no READ without a depth");
}
