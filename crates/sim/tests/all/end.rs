//! What the end of a queue pair leaves to those that share its completion queue.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::{DEPTH, Endpoint, SimNode, Wiring, send, wire_up};
use nic::{Arm, Channel, Cq, Qp, QpAttr, QpCap, QpInit, QpState, QpType, mask};
use sim::{Faults, Mark, Sim};
use transport::op::{RecvWr, Status};
use wire::{Mtu, Psn};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

const WIRING: Wiring =
    Wiring { mtu: Mtu::M1024, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };

/// Two hosts with a process each.
fn two(sim: &mut Sim) -> [SimNode; 2] {
    [HERE, THERE].map(|address| {
        let host = sim.add_host(&[address], 1500);
        let process = sim.start(host, &stack::Config::default());
        sim.node(process).unwrap()
    })
}

fn receive(wr_id: u64) -> RecvWr {
    RecvWr { wr_id, sges: [].into_iter().collect() }
}

#[test]
fn what_was_sent_before_its_queue_pair_was_destroyed_is_told_and_what_was_received_or_flushed_is_not() {
    let mut sim = Sim::new(1, Faults::none());
    let [here, there] = two(&mut sim);
    let (ours, theirs) = (Endpoint::new(&here), Endpoint::new(&there));
    wire_up(&here, &ours, &theirs, THERE, &WIRING, (Psn::new(1), Psn::new(1)));
    wire_up(&there, &theirs, &ours, HERE, &WIRING, (Psn::new(1), Psn::new(1)));
    for id in [5, 6] {
        theirs.qp.post_receive(receive(id)).unwrap();
    }
    let now = stack::Env::now(&**here.env());
    ours.qp.post_send(now, send(1, b"")).unwrap();
    sim.run_for(Duration::from_millis(1));
    assert!(!ours.sends.is_empty() && !theirs.receives.is_empty(), "the message is delivered");
    let now = stack::Env::now(&**here.env());
    for end in [&ours, &theirs] {
        end.qp.fail(now);
    }
    ours.qp.post_send(now, send(2, b"")).unwrap();
    for end in [&ours, &theirs] {
        end.qp.destroy();
    }
    let told = |cq| Endpoint::poll(cq).iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>();
    assert_eq!(told(&ours.sends), [(1, Status::Success)]);
    assert!(told(&theirs.receives).is_empty());
}

#[test]
fn a_queue_pair_that_ends_with_requests_under_way_takes_no_event_from_others() {
    for destroy in [true, false] {
        let mut sim = Sim::new(1, Faults::none());
        let [here, there] = two(&mut sim);
        let (plain, peer) = (Endpoint::new(&here), Endpoint::new(&there));
        let channel = Channel::new(Box::new(Mark::default()));
        // Room for one completion: what no program will fetch must not fill it either.
        let cq = Cq::new(1, Some(channel.clone()), plain.events.clone()).unwrap();
        let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: 1, max_inline_data: 64, ..QpCap::default() };
        let [ends, stays] = [0, 1].map(|_| {
            let (send_cq, recv_cq, events) = (cq.clone(), cq.clone(), plain.events.clone());
            let init =
                QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: false, events };
            let qp = Qp::create(plain.qp.device(), &plain.pd, init).unwrap();
            let end = Endpoint { qp, pd: plain.pd.clone(), sends: cq.clone(), ..Endpoint::new(&here) };
            wire_up(&here, &end, &peer, THERE, &WIRING, (Psn::new(1), Psn::new(1)));
            end.qp
        });
        let now = stack::Env::now(&**here.env());
        cq.arm(Arm::Next);
        for id in 0..3 {
            ends.post_send(now, send(id, b"never answered")).unwrap();
        }
        if destroy {
            ends.destroy();
        } else {
            ends.modify(now, &QpAttr::default().with_state(QpState::Reset), mask::STATE).unwrap();
        }
        assert!(cq.is_empty() && !cq.is_overrun() && channel.pop().is_none());
        stays.fail(now);
        stays.post_receive(receive(9)).unwrap();
        assert!(channel.pop().is_some(), "the event that was asked for");
        let got: Vec<_> = Endpoint::poll(&cq).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, [(9, Status::WrFlush)]);
    }
}
