//! Datagrams between InfiniBand ports: with and without a global routing header.

use std::time::Duration;

use crate::support::subnet::{PREFIX, QKEY, Subnet, port, to_lid};
use crate::support::{Endpoint, RIGHTS, send};
use nic::{AddressVector, Ah, Buffer, Datagram};
use sim::Faults;
use transport::op::{Completion, NetworkHeader, RecvWr};
use wire::grh::{GRH_LEN, Grh};
use wire::{Gid, LidAddress, Pkey, Qpn};

/// What lies in a receive before anything came.
const BEFORE: [u8; 64] = [0xaa; 64];

/// A datagram queue pair with a receive.
struct End {
    endpoint: Endpoint,
    inbox: Buffer,
}

impl End {
    fn new(subnet: &Subnet, host: usize, pkey_index: u16) -> Self {
        let endpoint = subnet.datagrams(host, pkey_index);
        let inbox = Buffer::new(&endpoint.pd, 256, 0x1000, RIGHTS).unwrap();
        let end = Self { endpoint, inbox };
        end.post_receive();
        end
    }

    fn post_receive(&self) {
        self.inbox.write(0, &BEFORE);
        let sges = [self.inbox.sge(0, 256)].into_iter().collect();
        self.endpoint.qp.post_receive(RecvWr { wr_id: 1, sges }).unwrap();
    }

    fn say(&self, subnet: &Subnet, av: AddressVector, qpn: Qpn, text: &[u8]) {
        let ah = Ah::new(&self.endpoint.pd, av).unwrap();
        let to = Datagram { ah, qpn, qkey: QKEY };
        self.endpoint.qp.post_datagram(subnet.now(), send(2, text), &to).unwrap();
    }

    fn heard(&self, subnet: &mut Subnet) -> Option<Completion> {
        subnet.sim.run_for(Duration::from_millis(10));
        let mut all = Endpoint::poll(&self.endpoint.receives);
        assert!(all.len() <= 1);
        all.pop()
    }
}

#[test]
fn without_a_grh_the_first_forty_bytes_are_left_alone_and_the_completion_says_the_lid() {
    let wide = |lid| nic::device::IbPort { lmc: 3, ..port(lid) };
    let mut subnet = Subnet::new(1, Faults::none(), &[wide(8), wide(16)]);
    let ends = [0, 1].map(|n| End::new(&subnet, n, 0));
    let av = AddressVector { sl: 6, src_path_bits: 5, ..to_lid(18) };
    ends[0].say(&subnet, av, ends[1].endpoint.qp.qpn(), b"by LID");
    let heard = ends[1].heard(&mut subnet).unwrap();
    assert_eq!(heard.header, NetworkHeader::Lrh(LidAddress::new(13, 6, 2).unwrap()));
    assert!(!heard.header.has_grh());
    assert_eq!((heard.byte_len, heard.source_qp), (46, ends[0].endpoint.qp.qpn()));
    assert!(ends[1].inbox.holds(0, &BEFORE[..GRH_LEN]));
    assert!(ends[1].inbox.holds(GRH_LEN, b"by LID"));
}

#[test]
fn a_grh_comes_with_the_packet_as_its_sender_wrote_it() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3), port(4)]);
    let ends = [0, 1].map(|n| End::new(&subnet, n, 0));
    let gid = |host: usize, index| subnet.nodes[host].devices()[0].gid(index).unwrap().gid;
    let (sgid, dgid) = (gid(0, 1), gid(1, 0));
    let av = AddressVector {
        is_global: true,
        dgid,
        sgid_index: 1,
        flow_label: 0xabcde,
        traffic_class: 0x41,
        hop_limit: 7,
        ..to_lid(4)
    };
    ends[0].say(&subnet, av, ends[1].endpoint.qp.qpn(), b"by GID");
    let heard = ends[1].heard(&mut subnet).unwrap();
    assert_eq!(heard.header, NetworkHeader::Lrh(LidAddress::new(3, 0, 0).unwrap().with_grh()));
    let grh = Grh::parse(&ends[1].inbox.read(0, GRH_LEN)).unwrap();
    // BTH, DETH, six bytes padded to eight, ICRC.
    let expected = Grh::Ib {
        traffic_class: 0x41,
        flow_label: 0xabcde,
        payload_len: 12 + 8 + 8 + 4,
        hop_limit: 7,
        sgid,
        dgid,
    };
    assert_eq!(grh, expected);
    assert!(ends[1].inbox.holds(GRH_LEN, b"by GID"));
}

#[test]
fn a_datagram_of_another_partition_or_to_another_ports_lid_is_dropped_and_counted() {
    let member = |lid, pkey| nic::device::IbPort { pkeys: vec![Pkey(0xffff), Pkey(pkey)], ..port(lid) };
    let mut subnet = Subnet::new(1, Faults::none(), &[member(3, 0x8005), member(4, 0x8006)]);
    let ends = [End::new(&subnet, 0, 1), End::new(&subnet, 1, 1)];
    ends[0].say(&subnet, to_lid(4), ends[1].endpoint.qp.qpn(), b"");
    assert_eq!(ends[1].heard(&mut subnet), None);
    assert_eq!(subnet.counted(1, "wrong_pkey"), 1);
    let default = End::new(&subnet, 0, 0);
    default.say(&subnet, to_lid(4), ends[1].endpoint.qp.qpn(), b"");
    assert_eq!(ends[1].heard(&mut subnet), None);
    assert_eq!(subnet.counted(1, "wrong_pkey"), 2);
    // The port takes another LID while a packet is on its way.
    let late = End::new(&subnet, 1, 0);
    default.say(&subnet, to_lid(4), late.endpoint.qp.qpn(), b"");
    subnet.sim.change_ib_port(subnet.hosts[1], |port| port.lid = 5);
    assert_eq!(late.heard(&mut subnet), None);
}

#[test]
fn a_group_of_a_multicast_lid_hears_by_the_gid_of_the_grh() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3), port(4), port(5)]);
    let ends = [0, 1, 2].map(|n| End::new(&subnet, n, 0));
    let group = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    ends[1].endpoint.qp.attach_group(group).unwrap();
    let av = AddressVector { is_global: true, dgid: group, hop_limit: 1, ..to_lid(0xc004) };
    ends[0].say(&subnet, av, Qpn::MULTICAST, b"all");
    assert!(ends[1].heard(&mut subnet).is_some());
    assert!(ends[2].heard(&mut subnet).is_none());
    assert!(ends[0].heard(&mut subnet).is_none());
    let other = AddressVector { dgid: Gid([0xff; 16]), ..av };
    ends[1].post_receive();
    ends[0].say(&subnet, other, Qpn::MULTICAST, b"others");
    assert!(ends[1].heard(&mut subnet).is_none());
}

#[test]
fn gids_are_the_subnet_prefix_and_the_guids_of_the_port() {
    let subnet = Subnet::new(1, Faults::none(), &[port(3)]);
    let device = &subnet.nodes[0].devices()[0];
    let guid = |n: usize| u128::from(port(3).guids[n].0);
    for n in 0..2 {
        let gid = Gid((u128::from(PREFIX) << 64 | guid(n)).to_be_bytes());
        assert_eq!(device.gid(n as u8).unwrap().gid, gid);
    }
    assert!(device.gid(2).is_none());
    assert_eq!((&*device.config.name, device.config.guid), ("mlx5_0", port(3).node_guid));
}
