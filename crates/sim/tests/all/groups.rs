//! Datagrams to multicast groups, from host to hosts.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::{Endpoint, RIGHTS, SimNode};
use nic::{AddressVector, Ah, Buffer, Datagram, QpAttr, QpState, QpType, mask};
use sim::{Faults, Sim};
use stack::Env;
use transport::op::{RecvWr, Status};
use wire::grh::{GRH_LEN, Grh};
use wire::{Gid, Qkey, Qpn};

const QKEY: Qkey = Qkey(0x1234);
const GROUP: &str = "239.1.2.3";

/// A datagram queue pair in RTS, with one receive of 256 bytes posted.
struct End {
    node: SimNode,
    endpoint: Endpoint,
    inbox: Buffer,
}

impl End {
    fn new(node: SimNode) -> Self {
        let endpoint = Endpoint::of(&node, QpType::Ud);
        node.attach(&node.devices()[0]).unwrap();
        let now = node.env().now();
        let attr = QpAttr { port: 1, qkey: QKEY, ..QpAttr::default() };
        let init = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY;
        endpoint.qp.modify(now, &attr.with_state(QpState::Init), init).unwrap();
        endpoint.qp.modify(now, &attr.with_state(QpState::Rtr), mask::STATE).unwrap();
        endpoint.qp.modify(now, &attr.with_state(QpState::Rts), mask::STATE | mask::SQ_PSN).unwrap();
        let inbox = Buffer::new(&endpoint.pd, 256, 0x1000, RIGHTS).unwrap();
        let end = Self { node, endpoint, inbox };
        end.post_receive();
        end
    }
    fn post_receive(&self) {
        let wr = RecvWr { wr_id: 1, sges: [self.inbox.sge(0, 256)].into_iter().collect() };
        self.endpoint.qp.post_receive(wr).unwrap();
    }
    fn join(&self) {
        self.endpoint.qp.attach_group(group()).unwrap();
    }
    /// Sends to the group.
    fn say(&self, text: &[u8]) {
        let gids = self.node.devices()[0].port();
        let sgid_index = gids.gids.iter().find(|(_, e)| e.borne).unwrap().0 as u8;
        let av =
            AddressVector { dgid: group(), sgid_index, is_global: true, port: 1, ..AddressVector::default() };
        let ah = Ah::new(&self.endpoint.pd, av).unwrap();
        let wr = support::send(2, text);
        let to = Datagram { ah, qpn: Qpn::MULTICAST, qkey: QKEY };
        self.endpoint.qp.post_datagram(self.node.env().now(), wr, &to).unwrap();
    }
    /// Messages that came since the last call.
    fn heard(&self) -> usize {
        let all = Endpoint::poll(&self.endpoint.receives);
        assert!(all.iter().all(|c| c.status == Status::Success));
        all.len()
    }
}

fn group() -> Gid {
    GROUP.parse::<IpAddr>().unwrap().into()
}

fn addresses(i: u8) -> [IpAddr; 1] {
    [IpAddr::from([10, 0, 0, i])]
}

#[test]
fn every_process_that_joined_hears_a_datagram_once_and_nobody_else_does() {
    let mut sim = Sim::new(1, Faults::default());
    let hosts: Vec<_> = (1..=3).map(|i| sim.add_host(&addresses(i), 1500)).collect();
    // Two processes on the last host.
    let processes = [0, 1, 2, 2].map(|h| sim.start(hosts[h], &stack::Config::default()));
    let ends: Vec<End> = processes.iter().map(|p| End::new(sim.node(*p).unwrap())).collect();
    ends[0].join();
    ends[2].join();
    ends[3].join();
    ends[0].say(b"to all");
    sim.run_for(Duration::from_secs(1));
    assert_eq!([0, 1, 2, 3].map(|i| ends[i].heard()), [1, 0, 1, 1], "the sender hears itself too");
    let bytes = ends[3].inbox.read(0, 256);
    let Ok(Grh::V4 { source, dest, .. }) = Grh::parse(&bytes) else { panic!("an IPv4 header") };
    assert_eq!((IpAddr::V4(source), IpAddr::V4(dest)), (addresses(1)[0], GROUP.parse().unwrap()));
    assert_eq!(bytes[GRH_LEN..GRH_LEN + 6], *b"to all");

    ends[2].endpoint.qp.detach_group(group()).unwrap();
    sim.kill(processes[3]);
    ends[0].post_receive();
    ends[2].post_receive();
    ends[0].say(b"again");
    sim.run_for(Duration::from_secs(1));
    assert_eq!([0, 1, 2].map(|i| ends[i].heard()), [1, 0, 0]);
    assert!(Arc::strong_count(&ends[0].endpoint.qp) > 1, "the device and the group hold it");
    ends[0].endpoint.qp.destroy();
    assert!(!ends[0].endpoint.qp.is_attached());
}
