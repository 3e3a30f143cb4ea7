//! Connections between InfiniBand ports: by LID, within a partition, while the port is active.

use std::time::Duration;

use crate::support::subnet::{Subnet, events, port, to_lid};
use crate::support::{Endpoint, RIGHTS, Wiring, send, wire_up_by};
use nic::device::async_events::EventKind;
use nic::device::port::PortState;
use nic::{AddressVector, Buffer, Error, QpAttr, QpState, QpType, mask};
use sim::Faults;
use transport::op::{Data, RecvWr, SendOp, SendWr, Sge, SgeList, Status};
use wire::{Gid, Guid, Mtu, Pkey, Psn};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M2048, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
const MESSAGES: u64 = 30;
const PSNS: (Psn, Psn) = (Psn::new(1), Psn::new(1));

/// Two queue pairs of a kind that are each other's peers by these addresses.
fn connected(subnet: &Subnet, kinds: [QpType; 2], to: [AddressVector; 2]) -> [Endpoint; 2] {
    let ends = [0, 1].map(|n| Endpoint::of(&subnet.nodes[n], kinds[n]));
    for n in 0..2 {
        wire_up_by(&subnet.nodes[n], &ends[n], &ends[1 - n], &to[n], &WIRING, PSNS);
        ends[n].pd.as_ref();
    }
    ends
}

fn receive(end: &Endpoint, wr_id: u64, sges: &[Sge]) {
    end.qp.post_receive(RecvWr { wr_id, sges: sges.iter().copied().collect() }).unwrap();
}

fn statuses(cq: &nic::Cq) -> Vec<Status> {
    Endpoint::poll(cq).iter().map(|c| c.status).collect()
}

#[test]
fn connections_between_lids_carry_every_message_once_and_in_order_over_a_bad_network() {
    sim::seeds::each_seed("infiniband", "connections_between_lids", 50, |seed| {
        let mut subnet = Subnet::new(seed, Faults::lossy(), &[port(3), port(0x1234)]);
        let ends = connected(&subnet, [QpType::Rc; 2], [to_lid(0x1234), to_lid(3)]);
        let [source, target] =
            ends.each_ref().map(|end| Buffer::new(&end.pd, 20_000, 0x10_000, RIGHTS).unwrap());
        let written: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
        source.write(0, &written);
        let data = Data::Sges(SgeList::from_iter([source.sge(0, 20_000)]));
        let write = SendOp::Write { addr: target.addr(), rkey: target.key(), immediate: None };
        let wr = SendWr { wr_id: 99, op: write, data, signaled: true, solicited: false, fence: false };
        ends[0].qp.post_send(subnet.now(), wr).unwrap();
        for n in 0..MESSAGES {
            ends.iter().for_each(|end| receive(end, n, &[]));
            ends.iter().for_each(|end| end.qp.post_send(subnet.now(), send(n, b"")).unwrap());
        }
        subnet.sim.run_for(Duration::from_secs(5));
        for end in &ends {
            let received: Vec<_> =
                Endpoint::poll(&end.receives).iter().map(|c| (c.wr_id, c.status)).collect();
            let all: Vec<_> = (0..MESSAGES).map(|n| (n, Status::Success)).collect();
            assert_eq!(received, all);
        }
        assert!(target.holds(0, &written));
    });
}

#[test]
fn unreliable_queue_pairs_connect_by_lid() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3), port(4)]);
    let ends = connected(&subnet, [QpType::Uc; 2], [to_lid(4), to_lid(3)]);
    receive(&ends[1], 7, &[]);
    ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
    subnet.sim.run_for(Duration::from_millis(10));
    assert_eq!(statuses(&ends[1].receives), [Status::Success]);
}

#[test]
fn a_path_has_the_lid_of_its_path_bits_and_service_levels_differ_by_direction() {
    let wide = |lid| nic::device::IbPort { lmc: 2, ..port(lid) };
    let mut subnet = Subnet::new(1, Faults::none(), &[wide(8), wide(16)]);
    let to = [
        AddressVector { sl: 3, src_path_bits: 1, ..to_lid(18) },
        AddressVector { sl: 5, src_path_bits: 2, ..to_lid(9) },
    ];
    let ends = connected(&subnet, [QpType::Rc; 2], to);
    receive(&ends[1], 7, &[]);
    ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
    subnet.sim.run_for(Duration::from_millis(10));
    assert_eq!(statuses(&ends[0].sends), [Status::Success]);
    assert_eq!(statuses(&ends[1].receives), [Status::Success]);
    // A peer that sends from another of its LIDs is another one.
    let other = AddressVector { src_path_bits: 3, ..to[1] };
    let ends = connected(&subnet, [QpType::Rc; 2], [to[0], other]);
    receive(&ends[1], 7, &[]);
    ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
    subnet.sim.run_for(Duration::from_secs(1));
    assert_eq!(statuses(&ends[1].receives), []);
    assert!(subnet.counted(1, "wrong_peer") > 0);
}

#[test]
fn a_lid_that_no_port_has_ends_a_connection_with_retries_exceeded() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3), port(4)]);
    let ends = connected(&subnet, [QpType::Rc; 2], [to_lid(77), to_lid(3)]);
    ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
    subnet.sim.run_for(Duration::from_secs(5));
    assert_eq!(statuses(&ends[0].sends), [Status::RetryExceeded]);
    assert_eq!(subnet.counted(1, "received"), 0);
}

#[test]
fn an_address_that_the_port_can_not_use_is_refused() {
    let required = nic::device::IbPort { grh_required: true, ..port(3) };
    let subnet = Subnet::new(1, Faults::none(), &[required, port(4)]);
    let try_rtr = |host: usize, av: AddressVector| {
        let end = Endpoint::of(&subnet.nodes[host], QpType::Rc);
        let attr = QpAttr { port: 1, av, path_mtu: Mtu::M2048, ..QpAttr::default() };
        end.qp.modify(subnet.now(), &attr.with_state(QpState::Init), mask::INIT).unwrap();
        end.qp.modify(subnet.now(), &attr.with_state(QpState::Rtr), mask::RTR)
    };
    let without = try_rtr(0, to_lid(4));
    assert_eq!(without.map_err(|error| error.errno()), Err(nic::Errno::EINVAL), "no GRH");
    let dgid = subnet.nodes[1].devices()[0].gid(0).unwrap().gid;
    let global = AddressVector { dgid, is_global: true, hop_limit: 1, ..to_lid(4) };
    assert_eq!(try_rtr(0, global), Ok(()));
    assert!(matches!(try_rtr(0, AddressVector { sgid_index: 9, ..global }), Err(Error::Vacant { .. })));
    let elsewhere = AddressVector { dgid: Gid([0x20; 16]), ..global };
    for av in [to_lid(0), to_lid(0xffff), to_lid(0xc001), AddressVector { sl: 16, ..to_lid(3) }, elsewhere] {
        assert_eq!(try_rtr(1, av).map_err(|error| error.errno()), Err(nic::Errno::EINVAL), "{av:?}");
    }
    assert_eq!(try_rtr(1, to_lid(3)), Ok(()));
}

#[test]
fn queue_pairs_of_different_partitions_or_both_limited_members_do_not_hear_each_other() {
    let member = |lid, pkey| nic::device::IbPort { pkeys: vec![Pkey(0xffff), Pkey(pkey)], ..port(lid) };
    for (keys, hears) in
        [([0x8005, 5], true), ([0x8005, 0x8005], true), ([5, 5], false), ([0x8005, 0x8006], false)]
    {
        let mut subnet = Subnet::new(1, Faults::none(), &[member(3, keys[0]), member(4, keys[1])]);
        let ends = [0, 1].map(|n| Endpoint::of(&subnet.nodes[n], QpType::Rc));
        for (n, lid) in [(0, 4), (1, 3)] {
            wire_up_by(&subnet.nodes[n], &ends[n], &ends[1 - n], &to_lid(lid), &WIRING, PSNS);
            let sqd = QpAttr { pkey_index: 1, ..QpAttr::default() };
            let modify = |state, bits| {
                ends[n].qp.modify(subnet.now(), &sqd.with_state(state), mask::STATE | bits).unwrap();
            };
            modify(QpState::Sqd, 0);
            modify(QpState::Sqd, mask::PKEY_INDEX);
            modify(QpState::Rts, 0);
        }
        receive(&ends[1], 7, &[]);
        ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
        subnet.sim.run_for(Duration::from_secs(5));
        let expected = if hears { Status::Success } else { Status::RetryExceeded };
        assert_eq!(statuses(&ends[0].sends), [expected], "{keys:x?}");
        assert_eq!(subnet.counted(1, "wrong_pkey") > 0, !hears, "{keys:x?}");
    }
}

#[test]
fn a_queue_pair_follows_the_p_key_table_and_an_index_beyond_it_is_refused() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3), port(4)]);
    let end = Endpoint::of(&subnet.nodes[0], QpType::Rc);
    let attr = QpAttr { port: 1, pkey_index: 4, ..QpAttr::default() };
    let init = end.qp.modify(subnet.now(), &attr.with_state(QpState::Init), mask::INIT);
    assert!(matches!(init, Err(Error::OutOfRange { .. })), "{init:?}");
    let ends = connected(&subnet, [QpType::Rc; 2], [to_lid(4), to_lid(3)]);
    let set = |subnet: &mut Subnet, key| {
        subnet.hosts.clone().iter().for_each(|host| {
            subnet.sim.change_ib_port(*host, |port| port.pkeys[0] = Pkey(key));
        });
        subnet.sim.run_for(Duration::from_millis(1));
    };
    set(&mut subnet, 0x8005);
    receive(&ends[1], 7, &[]);
    ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
    subnet.sim.run_for(Duration::from_millis(10));
    assert_eq!(statuses(&ends[0].sends), [Status::Success], "both are of the other partition");
    subnet.sim.change_ib_port(subnet.hosts[1], |port| port.pkeys[0] = Pkey(0));
    subnet.sim.run_for(Duration::from_millis(1));
    ends[0].qp.post_send(subnet.now(), send(2, b"")).unwrap();
    subnet.sim.run_for(Duration::from_secs(5));
    assert_eq!(statuses(&ends[0].sends), [Status::RetryExceeded]);
}

#[test]
fn each_change_of_a_port_is_told_by_its_event() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3)]);
    let end = Endpoint::of(&subnet.nodes[0], QpType::Rc);
    subnet.nodes[0].devices()[0].tell(&end.events);
    let mut told = |change: fn(&mut nic::device::IbPort)| {
        subnet.sim.change_ib_port(subnet.hosts[0], change);
        subnet.sim.run_for(Duration::from_millis(1));
        events(&end)
    };
    assert_eq!(told(|_| ()), []);
    assert_eq!(told(|port| port.lid = 9), [EventKind::LidChange]);
    assert_eq!(told(|port| port.lmc = 1), [EventKind::LidChange]);
    assert_eq!(told(|port| port.sm_lid = 2), [EventKind::SmChange]);
    assert_eq!(told(|port| port.client_reregister += 1), [EventKind::ClientReregister]);
    assert_eq!(told(|port| port.pkeys[1] = Pkey(0x8001)), [EventKind::PkeyChange]);
    assert_eq!(told(|port| port.guids[1] = Guid(77)), [EventKind::GidChange]);
    assert_eq!(told(|port| port.subnet_prefix += 1), [EventKind::GidChange]);
    assert_eq!(told(|port| port.state = PortState::Init), [EventKind::PortError]);
    assert_eq!(told(|port| port.state = PortState::Armed), []);
    assert_eq!(told(|port| port.state = PortState::Active), [EventKind::PortActive]);
}

#[test]
fn a_port_that_is_not_active_loses_what_is_sent_until_it_is() {
    let mut subnet = Subnet::new(1, Faults::none(), &[port(3), port(4)]);
    let ends = connected(&subnet, [QpType::Rc; 2], [to_lid(4), to_lid(3)]);
    receive(&ends[1], 7, &[]);
    let set = |subnet: &mut Subnet, state| {
        subnet.sim.change_ib_port(subnet.hosts[1], |port| port.state = state);
        subnet.sim.run_for(Duration::from_millis(1));
    };
    set(&mut subnet, PortState::Init);
    ends[0].qp.post_send(subnet.now(), send(1, b"")).unwrap();
    subnet.sim.run_for(Duration::from_millis(5));
    assert_eq!(statuses(&ends[0].sends), [], "it is sent again");
    set(&mut subnet, PortState::Active);
    subnet.sim.run_for(Duration::from_millis(100));
    assert_eq!(statuses(&ends[0].sends), [Status::Success]);
    set(&mut subnet, PortState::Down);
    ends[0].qp.post_send(subnet.now(), send(2, b"")).unwrap();
    subnet.sim.run_for(Duration::from_secs(5));
    assert_eq!(statuses(&ends[0].sends), [Status::RetryExceeded]);
}
