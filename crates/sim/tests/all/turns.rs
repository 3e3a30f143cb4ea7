//! What one peer asks for holds no other one up: turns, timers, partitions, seen by whole hosts
//! that get packets no honest peer sends.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::support;
use crate::support::{Endpoint, RIGHTS, SimNode, Wiring, send, wire_up};
use nic::{Buffer, QpAttr, QpState, QpType, mask};
use sim::{Faults, Sim};
use stack::env::Datagram;
use stack::{Env, Input, InputHandler};
use transport::op::{RecvWr, SendWr, Status};
use transport::rc::AckDelay;
use wire::bth::{Bth, Deth, Reth};
use wire::icrc::{self, Flow, ICRC_LEN};
use wire::mad::GSI_QKEY;
use wire::roce::{Header, Op, SendAt, SendTail, Service};
use wire::{Mtu, Pkey, Psn, Qkey, Qpn};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M1024, timeout: 14, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
const MS: Duration = Duration::from_millis(1);

fn address(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn hosts() -> (Sim, [SimNode; 2]) {
    let mut sim = Sim::new(1, Faults::none());
    let ids = [1, 2].map(|n| sim.add_host(&[address(n)], 1500));
    let nodes = ids.map(|host| {
        let process = sim.start(host, &stack::Config::default());
        sim.node(process).unwrap()
    });
    (sim, nodes)
}

/// Connected queue pairs of both.
fn connect([a, b]: &[SimNode; 2]) -> (Endpoint, Endpoint) {
    let (at_a, at_b) = (Endpoint::new(a), Endpoint::new(b));
    wire_up(a, &at_a, &at_b, address(2), &WIRING, (Psn::new(0), Psn::new(0)));
    wire_up(b, &at_b, &at_a, address(1), &WIRING, (Psn::new(0), Psn::new(0)));
    (at_a, at_b)
}

fn post(node: &SimNode, from: &Endpoint, wr: SendWr) {
    from.qp.post_send(Env::now(&**node.env()), wr).unwrap();
}

/// Gives `node`, at 10.0.0.2, a packet as if it came from 10.0.0.1.
fn forge(node: &SimNode, header: &Header, payload: &[u8]) {
    forge_held(node, header, payload, AckDelay::No);
}

/// Like [`forge`]; `ack_delay` says whether an ACK may wait.
fn forge_held(node: &SimNode, header: &Header, payload: &[u8], ack_delay: AckDelay) {
    let len = header.len();
    let mut bytes = vec![0; len + payload.len() + ICRC_LEN];
    header.emit(payload.len(), &mut bytes);
    bytes[len..len + payload.len()].copy_from_slice(payload);
    let (source, dest) = (SocketAddr::new(address(1), 49_152), SocketAddr::new(address(2), 4791));
    icrc::seal(&Flow { source, dest }, 0, &mut bytes);
    let interface = node.devices()[0].config.interface;
    let (source, dest) = (source.into(), dest.into());
    let datagram = Datagram { source, dest, interface, forwarded: false, ack_delay, bytes: &bytes };
    node.input(Env::now(&**node.env()), Input::Datagram(datagram));
}

fn counted(node: &SimNode, name: &str) -> u64 {
    node.counted().into_iter().find(|(n, _)| n.ends_with(name)).unwrap().1
}

/// Historic bug 23.
#[test]
fn a_long_read_holds_nobody_up() {
    const LEN: u32 = 8 << 20;
    let (mut sim, nodes) = hosts();
    let (greedy, victim) = connect(&nodes);
    let (other, at_b) = connect(&nodes);
    let memory = Buffer::new(&victim.pd, LEN as usize, 0x10_0000, RIGHTS).unwrap();
    let reth = Reth { addr: memory.addr(), rkey: memory.key(), length: LEN };
    let bth = Bth { dest_qp: victim.qp.qpn(), psn: Psn::new(0), ..Bth::default() };
    let read = Header { bth, service: Service::Rc, op: Op::ReadRequest(reth) };
    for _ in 0..100 {
        forge(&nodes[1], &read, &[]);
    }
    sim.step(sim.elapsed());
    let turn = sim.counters().sent;
    assert!((1..=512).contains(&turn), "{turn} packets at once");
    // Another's message passes while most of it is still to be answered.
    let inbox = Buffer::new(&at_b.pd, 64, 0x10_0000, RIGHTS).unwrap();
    at_b.qp.post_receive(RecvWr { wr_id: 1, sges: [inbox.sge(0, 64)].into_iter().collect() }).unwrap();
    post(&nodes[0], &other, send(1, b"hello"));
    let (mut most, mut before) = (0, sim.counters().sent);
    while at_b.receives.is_empty() {
        assert!(sim.step(sim.elapsed() + 50 * MS));
        most = most.max(sim.counters().sent - before);
        before = sim.counters().sent;
    }
    sim.run_for(50 * MS);
    assert!(most <= 520, "{most} packets at once, a few of them of the message");
    assert!(sim.counters().sent >= 8192, "all of it is answered in the end");
    drop(greedy);
}

#[test]
fn a_queue_pair_has_one_timer_however_often_it_waits_for_receives() {
    let (mut sim, nodes) = hosts();
    let (ours, theirs) = connect(&nodes);
    post(&nodes[0], &ours, send(1, b"nobody waits for it"));
    let device = nodes[0].devices()[0].clone();
    let mut most = 0;
    for _ in 0..2000 {
        sim.step(sim.elapsed() + MS);
        most = most.max(device.timers());
    }
    assert!(sim.counters().sent > 200, "many RNR NAKs: {:?}", sim.counters());
    assert_eq!(most, 1);
    theirs.qp.destroy();
    ours.qp.destroy();
    assert_eq!(device.timers(), 0);
}

#[test]
fn datagrams_that_wait_for_their_pace_do_not_stop_a_host_whose_queue_pair_drains() {
    let (mut sim, nodes) = hosts();
    let (connected, at_b) = connect(&nodes);
    let ud = Endpoint::of(&nodes[0], QpType::Ud);
    let now = || Env::now(&**nodes[0].env());
    let attr = QpAttr { port: 1, qkey: Qkey(7), ..QpAttr::default() };
    let state = mask::STATE;
    let init = state | mask::PKEY_INDEX | mask::PORT | mask::QKEY;
    ud.qp.modify(now(), &attr.with_state(QpState::Init), init).unwrap();
    ud.qp.modify(now(), &attr.with_state(QpState::Rtr), state).unwrap();
    ud.qp.modify(now(), &attr.with_state(QpState::Rts), state | mask::SQ_PSN).unwrap();
    let data = Buffer::new(&ud.pd, 1024, 0x10_0000, RIGHTS).unwrap();
    let to = nic::Datagram {
        ah: nic::Ah::new(&ud.pd, connected.qp.query().av).unwrap(),
        qpn: at_b.qp.qpn(),
        qkey: Qkey(7),
    };
    let wr =
        SendWr { data: transport::op::Data::Sges([data.sge(0, 1024)].into_iter().collect()), ..send(1, &[]) };
    let requests: Vec<_> =
        (0..support::DEPTH).map(|_| nic::Request { wr: wr.clone(), to: Some(to.clone()), srq: 0 }).collect();
    for _ in 0..4 {
        let mut sender = ud.qp.sender(now());
        _ = sender.post_all(&requests);
        sender.finish();
    }
    ud.qp.modify(now(), &attr.with_state(QpState::Sqd), state).unwrap();
    sim.run_for(10 * MS);
    let left = Endpoint::poll(&ud.sends).len();
    let inbox = Buffer::new(&at_b.pd, 64, 0x10_0000, RIGHTS).unwrap();
    at_b.qp.post_receive(RecvWr { wr_id: 1, sges: [inbox.sge(0, 64)].into_iter().collect() }).unwrap();
    post(&nodes[0], &connected, send(1, b"hello"));
    sim.run_for(10 * MS);
    assert_eq!(Endpoint::poll(&connected.sends)[0].status, Status::Success);
    assert!(!ud.qp.query().sq_draining);
    ud.qp.modify(now(), &attr.with_state(QpState::Rts), state).unwrap();
    sim.run_for(10 * MS);
    assert!(left + Endpoint::poll(&ud.sends).len() >= support::DEPTH as usize);
}

#[test]
fn who_is_no_member_of_the_partition_is_not_heard() {
    let (mut sim, nodes) = hosts();
    let (_ours, theirs) = connect(&nodes);
    let inbox = Buffer::new(&theirs.pd, 64, 0x10_0000, RIGHTS).unwrap();
    for wr_id in 0..4 {
        theirs.qp.post_receive(RecvWr { wr_id, sges: [inbox.sge(0, 64)].into_iter().collect() }).unwrap();
    }
    let message = |pkey: u16, psn: u32| {
        let bth = Bth { pkey: Pkey(pkey), dest_qp: theirs.qp.qpn(), psn: Psn::new(psn), ..Bth::default() };
        Header { bth, service: Service::Rc, op: Op::Send(SendAt::Only(SendTail::None)) }
    };
    for pkey in [0x8001, 0xfffe, 0x7ffe, 0x8000, 0] {
        forge(&nodes[1], &message(pkey, 0), b"");
    }
    let device = nodes[1].devices()[0].clone();
    assert_eq!(device.counters.wrong_pkey.get(), 5);
    assert!(theirs.receives.is_empty());
    // Full and limited members are.
    forge(&nodes[1], &message(0xffff, 0), b"");
    forge(&nodes[1], &message(0x7fff, 1), b"");
    assert_eq!(Endpoint::poll(&theirs.receives).len(), 2);
    let management = |pkey: u16| {
        let bth = Bth { pkey: Pkey(pkey), dest_qp: Qpn::GSI, ..Bth::default() };
        let service = Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI });
        Header { bth, service, op: Op::Send(SendAt::Only(SendTail::None)) }
    };
    forge(&nodes[1], &management(0x8001), &[0; 256]);
    assert_eq!((counted(&nodes[1], "node.wrong_pkey"), counted(&nodes[1], "node.bad_mad")), (1, 0));
    forge(&nodes[1], &management(0x7fff), &[0; 256]);
    assert_eq!((counted(&nodes[1], "node.wrong_pkey"), counted(&nodes[1], "node.bad_mad")), (1, 1));
    sim.run_for(MS);
}

#[test]
fn an_ack_waits_for_the_program_for_200_us_and_no_longer() {
    let (mut sim, nodes) = hosts();
    let (_ours, theirs) = connect(&nodes);
    let inbox = Buffer::new(&theirs.pd, 64, 0x10_0000, RIGHTS).unwrap();
    let message = |psn| {
        let bth = Bth { dest_qp: theirs.qp.qpn(), psn: Psn::new(psn), ack_request: true, ..Bth::default() };
        Header { bth, service: Service::Rc, op: Op::Send(SendAt::Only(SendTail::None)) }
    };
    let us = Duration::from_micros;
    // The second one comes while the ACK for the first waits: it is no reason to wait for longer.
    for (psn, waited) in [(0, us(0)), (1, us(150))] {
        theirs.qp.post_receive(RecvWr { wr_id: 1, sges: [inbox.sge(0, 64)].into_iter().collect() }).unwrap();
        sim.run_for(waited);
        forge_held(&nodes[1], &message(psn), b"", AckDelay::ForProgram);
        // All is read that was there; the program does nothing.
        nodes[1].release(false);
    }
    sim.run_for(us(49));
    assert_eq!(sim.counters().sent, 0, "the program may still post, poll or arm");
    sim.run_for(us(1));
    assert_eq!(sim.counters().sent, 1, "one ACK for both");
    assert_eq!(nodes[1].devices()[0].deadline(), None);
}
