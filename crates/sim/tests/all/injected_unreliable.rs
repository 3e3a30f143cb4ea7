//! Send requests of unreliable services that fail by a rule.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Endpoint, RIGHTS, SimNode, Wiring, send, wire_up};
use faults::FaultLink;
use nic::{AddressVector, Ah, Buffer, Datagram, QpAttr, QpState, QpType, mask};
use sim::{Faults, Sim};
use transport::op::{RecvWr, Status};
use wire::{Mtu, Psn, Qkey};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M1024, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
const MS: Duration = Duration::from_millis(1);
const QKEY: Qkey = Qkey(0x1111);

/// Two queue pairs that are ready to send, the first one of a host with a rule.
struct Pair {
    sim: Sim,
    nodes: [SimNode; 2],
    ends: [Endpoint; 2],
    /// The way to the second, for datagrams.
    to: Option<Datagram>,
}

impl Pair {
    fn new(kind: QpType, rules: &str) -> Self {
        let mut sim = Sim::new(1, Faults::none());
        let addresses = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let nodes = addresses.map(|address| {
            let host = sim.add_host(&[address], 1500);
            let process = sim.start_on(host, &stack::Config::default(), |env| {
                let link = FaultLink::new(env.clone(), env);
                let rules = if address == addresses[0] { rules } else { "loss=0%" };
                link.set(&rules.parse().unwrap_or_else(|error| panic!("{error}")), 7);
                Arc::new(link)
            });
            sim.node(process).unwrap()
        });
        let ends = nodes.each_ref().map(|node| Endpoint::of(node, kind));
        let psns = (Psn::new(1), Psn::new(1));
        let mut to = None;
        if kind == QpType::Uc {
            wire_up(&nodes[0], &ends[0], &ends[1], addresses[1], &WIRING, psns);
            wire_up(&nodes[1], &ends[1], &ends[0], addresses[0], &WIRING, psns);
        } else {
            nodes.iter().zip(&ends).for_each(|(node, end)| ready(node, end));
            to = Some(way(&nodes[0], &ends[0], addresses, &ends[1]));
        }
        Self { sim, nodes, ends, to }
    }

    fn post(&self, wr_id: u64) {
        let ([node, _], [end, _]) = (&self.nodes, &self.ends);
        let (now, wr) = (stack::Env::now(&**node.env()), send(wr_id, b"a message"));
        match &self.to {
            Some(to) => end.qp.post_datagram(now, wr, to).unwrap(),
            None => end.qp.post_send(now, wr).unwrap(),
        }
    }

    /// The sends that have completed, and how many messages came.
    fn outcome(&mut self) -> (Vec<(u64, Status)>, usize) {
        self.sim.run_for(MS);
        let sent = Endpoint::poll(&self.ends[0].sends).iter().map(|done| (done.wr_id, done.status)).collect();
        (sent, Endpoint::poll(&self.ends[1].receives).len())
    }
}

/// The way of datagrams from a queue pair of the first address to one of the second.
fn way(node: &SimNode, from: &Endpoint, addresses: [IpAddr; 2], to: &Endpoint) -> Datagram {
    let (dgid, hop_limit, is_global, port) = (addresses[1].into(), 64, true, 1);
    let device = node.devices()[0].port();
    let borne = device.gids.iter().find(|(_, gid)| gid.borne && gid.address == Some(addresses[0]));
    let sgid_index = borne.unwrap().0 as u8;
    let av = AddressVector { dgid, sgid_index, hop_limit, is_global, port, ..Default::default() };
    Datagram { ah: Ah::new(&from.pd, av).unwrap(), qpn: to.qp.qpn(), qkey: QKEY }
}

/// Takes a queue pair of datagrams to RTS.
fn ready(node: &SimNode, end: &Endpoint) {
    node.attach(&node.devices()[0]).unwrap();
    let now = stack::Env::now(&**node.env());
    let attr = QpAttr { port: 1, qkey: QKEY, ..QpAttr::default() };
    for (state, bits) in [
        (QpState::Init, mask::PKEY_INDEX | mask::PORT | mask::QKEY),
        (QpState::Rtr, 0),
        (QpState::Rts, mask::SQ_PSN),
    ] {
        end.qp.modify(now, &attr.with_state(state), mask::STATE | bits).unwrap();
    }
}

#[test]
fn an_unreliable_request_fails_by_a_rule_and_the_queue_pair_goes_on_from_sqe() {
    for (kind, word) in [(QpType::Uc, "uc"), (QpType::Ud, "ud")] {
        // Rules for others, and statuses that a peer tells, do nothing and count nothing.
        let other = if word == "uc" { "ud" } else { "uc" };
        let rules = format!(
            "error=general,type={other}; error=rem-access; error=retry-exc; error=fatal,op=write; \
             error=fatal,qp=1; error=loc-prot,type={word},nth=3"
        );
        let mut pair = Pair::new(kind, &rules);
        let inbox = Buffer::new(&pair.ends[1].pd, 256, 0x1000, RIGHTS).unwrap();
        for wr_id in 0..8 {
            let sges = [inbox.sge(0, 256)].into_iter().collect();
            pair.ends[1].qp.post_receive(RecvWr { wr_id, sges }).unwrap();
        }
        (0..5).for_each(|wr_id| pair.post(wr_id));
        let (ok, flushed) = (Status::Success, Status::WrFlush);
        let expected = vec![(0, ok), (1, ok), (2, Status::LocalProtection), (3, flushed), (4, flushed)];
        assert_eq!(pair.outcome(), (expected, 2), "{word}");
        assert_eq!(pair.ends[0].qp.state(), QpState::Sqe);
        let now = stack::Env::now(&**pair.nodes[0].env());
        let back = QpAttr::default().with_state(QpState::Rts);
        pair.ends[0].qp.modify(now, &back, mask::STATE).unwrap();
        pair.post(5);
        assert_eq!(pair.outcome(), (vec![(5, ok)], 1));
    }
}

#[test]
fn a_rule_befalls_no_packet_that_its_process_hands_on_to_another() {
    let mut sim = Sim::new(1, Faults::none());
    let addresses = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
    let hosts = addresses.map(|address| sim.add_host(&[address], 1500));
    // Of the processes of the second host the first one loses all that arrives.
    let nodes = [(hosts[0], "loss=0%"), (hosts[1], "loss=100%,dir=in"), (hosts[1], "loss=0%")].map(
        |(host, rules)| {
            let process = sim.start_on(host, &stack::Config::default(), |env| {
                let link = FaultLink::new(env.clone(), env);
                link.set(&rules.parse().unwrap_or_else(|error| panic!("{error}")), 7);
                Arc::new(link)
            });
            sim.node(process).unwrap()
        },
    );
    let bystander = Endpoint::of(&nodes[1], QpType::Ud);
    ready(&nodes[1], &bystander);
    let receiver = Endpoint::of(&nodes[2], QpType::Ud);
    ready(&nodes[2], &receiver);
    let inbox = Buffer::new(&receiver.pd, 256, 0x1000, RIGHTS).unwrap();
    for wr_id in 0..16 {
        let sges = [inbox.sge(0, 256)].into_iter().collect();
        receiver.qp.post_receive(RecvWr { wr_id, sges }).unwrap();
    }
    // Each sender has a port of its own, by which the system chooses the process that gets packets.
    let senders: Vec<_> = (0..16).map(|_| Endpoint::of(&nodes[0], QpType::Ud)).collect();
    for sender in &senders {
        ready(&nodes[0], sender);
        let to = way(&nodes[0], sender, addresses, &receiver);
        sender.qp.post_datagram(stack::Env::now(&**nodes[0].env()), send(0, b"a message"), &to).unwrap();
    }
    sim.run_for(MS);
    assert_eq!(Endpoint::poll(&receiver.receives).len(), 16);
}
