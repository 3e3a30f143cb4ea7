//! Multicast groups of rdma_cm between InfiniBand ports: the administration of the subnet is asked.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support::subnet::port;
use crate::support::{Endpoint, RIGHTS, SimNode, send};
use nic::device::port::PortState;
use nic::rdma_cm::{EventKind, UDP_QKEY};
use nic::{Ah, Buffer, Datagram, Errno, QpType};
use sim::{Faults, HostId, Mark, Sim};
use stack::{Config, Event, EventChannel, Group, Id};
use transport::op::RecvWr;
use wire::mad::PortSpace;
use wire::{Gid, Qpn};

const GROUP: [u8; 4] = [239, 1, 2, 3];
/// In RDMA_PS_UDP.
const MGID: [u16; 8] = [0xff12, 0x4001, 0xffff, 0, 0, 0, 0x0f01, 0x0203];
const FULL: u8 = 1;
const SEND_ONLY: u8 = 8;

fn mgid() -> Gid {
    Gid(Ipv6Addr::from(MGID).octets())
}

/// A process with an identifier of datagrams and its queue pair.
struct Member {
    host: HostId,
    node: SimNode,
    channel: Arc<EventChannel>,
    id: Arc<Id>,
    endpoint: Endpoint,
    _inbox: Buffer,
}

impl Member {
    fn new(sim: &mut Sim, n: u8) -> Self {
        let ip = IpAddr::from([10, 4, 0, n]);
        let host = sim.add_ib_host(port(n.into()), &[ip]);
        let process = sim.start(host, &Config::default());
        let node = sim.node(process).unwrap();
        let channel = EventChannel::new(Box::new(Mark::default()));
        let id = another(&node, &channel);
        let endpoint = Endpoint::of(&node, QpType::Ud);
        node.set_qp(&id, &endpoint.qp).unwrap();
        let inbox = Buffer::new(&endpoint.pd, 256, 0x1000, RIGHTS).unwrap();
        let sges = [inbox.sge(0, 256)].into_iter().collect();
        endpoint.qp.post_receive(RecvWr { wr_id: 1, sges }).unwrap();
        Self { host, node, channel, id, endpoint, _inbox: inbox }
    }

    fn next(&self, sim: &mut Sim) -> Event {
        let mut found = None;
        sim.run_until(Duration::from_secs(20), |_| {
            found = found.take().or_else(|| self.node.next_event(&self.channel));
            found.is_some()
        });
        found.expect("an event")
    }

    fn join(&self, sim: &mut Sim, id: &Arc<Id>, send_only: bool) -> Event {
        self.node.join_multicast(id, IpAddr::from(GROUP), send_only, 0x77).unwrap();
        self.next(sim)
    }

    fn heard(&self) -> usize {
        Endpoint::poll(&self.endpoint.receives).len()
    }
}

/// An identifier whose address is the group.
fn another(node: &SimNode, channel: &Arc<EventChannel>) -> Arc<Id> {
    let id = node.create_id(channel, PortSpace::Udp);
    node.resolve_addr(&id, None, SocketAddr::from((GROUP, 0)), Duration::from_secs(2)).unwrap();
    assert_eq!(node.next_event(channel).unwrap().kind, EventKind::AddrResolved);
    id
}

fn states(sim: &Sim) -> Vec<u8> {
    sim.group_members(mgid()).into_iter().map(|(_, state)| state).collect()
}

#[test]
fn a_member_has_the_lid_that_the_administration_gives_and_hears_until_it_leaves() {
    let mut sim = Sim::new(1, Faults::none());
    let [a, b, c] = [3, 4, 5].map(|n| Member::new(&mut sim, n));
    let joined = a.join(&mut sim, &a.id, true);
    assert_eq!((joined.kind, joined.status), (EventKind::MulticastJoin, 0));
    let to = joined.ud.unwrap();
    assert_eq!((to.qpn, to.qkey, to.context), (Qpn::MULTICAST, UDP_QKEY, 0x77));
    assert_eq!((to.av.dgid, to.av.dlid, to.av.is_global), (mgid(), 0xc001, true));
    for member in [&b, &c] {
        assert_eq!(member.join(&mut sim, &member.id, false).ud.unwrap().av.dlid, 0xc001);
    }
    assert_eq!(states(&sim), [SEND_ONLY, FULL, FULL]);
    c.node.leave_multicast(&c.id, IpAddr::from(GROUP)).unwrap();
    let ah = Ah::new(&a.endpoint.pd, to.av).unwrap();
    let to = Datagram { ah, qpn: to.qpn, qkey: to.qkey };
    a.endpoint.qp.post_datagram(sim.now(), send(2, b"to all"), &to).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!([&a, &b, &c].map(Member::heard), [0, 1, 0]);
    assert_eq!(states(&sim), [SEND_ONLY, FULL]);
}

#[test]
fn a_port_leaves_with_the_last_identifier_of_the_process() {
    let mut sim = Sim::new(1, Faults::none());
    let a = Member::new(&mut sim, 3);
    let second = another(&a.node, &a.channel);
    a.join(&mut sim, &a.id, false);
    a.join(&mut sim, &second, false);
    a.join(&mut sim, &second, true);
    assert_eq!(states(&sim), [FULL | SEND_ONLY]);
    a.node.destroy(&second);
    sim.run_for(Duration::from_millis(10));
    assert_eq!(states(&sim), [FULL]);
    // By its GID, as an AF_IB address names it.
    a.node.leave_multicast(&a.id, Group::Gid(mgid())).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(states(&sim), [0; 0]);
    // A join that is under way when its identifier ends comes to nothing.
    let third = another(&a.node, &a.channel);
    a.node.join_multicast(&third, IpAddr::from(GROUP), false, 0).unwrap();
    a.node.destroy(&third);
    sim.run_for(Duration::from_secs(4));
    assert_eq!(states(&sim), [0; 0]);
    assert!(a.node.next_event(&a.channel).is_none());
}

#[test]
fn a_member_is_told_to_join_again_where_a_new_manager_may_know_no_groups() {
    let mut sim = Sim::new(1, Faults::none());
    let [a, b] = [3, 4].map(|n| Member::new(&mut sim, n));
    let joined = a.join(&mut sim, &a.id, true);
    b.join(&mut sim, &b.id, false);
    let changes: [fn(&mut nic::device::IbPort); 3] = [
        |port| port.client_reregister += 1,
        |port| port.state = PortState::Down,
        |port| port.state = PortState::Active,
    ];
    for change in changes {
        sim.change_ib_port(b.host, change);
        sim.run_for(Duration::from_millis(1));
    }
    let lost = b.node.next_event(&b.channel).unwrap();
    assert_eq!((lost.kind, lost.status), (EventKind::MulticastError, -Errno::ENETRESET.0));
    assert_eq!(lost.ud.unwrap().context, 0x77);
    assert!(b.node.next_event(&b.channel).is_none(), "what is lost is not lost again");
    let again = b.join(&mut sim, &b.id, false);
    assert_eq!((again.kind, again.status), (EventKind::MulticastJoin, 0));
    let to = joined.ud.unwrap();
    let to = Datagram { ah: Ah::new(&a.endpoint.pd, to.av).unwrap(), qpn: to.qpn, qkey: to.qkey };
    a.endpoint.qp.post_datagram(sim.now(), send(2, b"to all"), &to).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(b.heard(), 1, "once, although the queue pair was attached already");
    // Of a membership that is lost the administration is told nothing.
    sim.change_ib_port(b.host, |port| port.client_reregister += 1);
    sim.run_for(Duration::from_millis(1));
    assert_eq!(b.next(&mut sim).status, -Errno::ENETRESET.0);
    b.node.leave_multicast(&b.id, IpAddr::from(GROUP)).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(states(&sim), [SEND_ONLY, FULL]);
}

#[test]
fn a_join_that_is_refused_or_not_answered_is_an_error_event() {
    let mut sim = Sim::new(1, Faults::none());
    let a = Member::new(&mut sim, 3);
    sim.set_subnet_administration(false);
    let before = sim.elapsed();
    let silent = a.join(&mut sim, &a.id, false);
    assert_eq!((silent.kind, silent.status), (EventKind::MulticastError, -Errno::ETIMEDOUT.0));
    assert_eq!((sim.elapsed() - before, silent.ud.unwrap().context), (Duration::from_secs(3), 0x77));
    let left = a.node.leave_multicast(&a.id, IpAddr::from(GROUP));
    assert_eq!(left.map_err(|error| error.errno()), Err(Errno::EADDRNOTAVAIL));
    sim.set_subnet_administration(true);
    sim.refuse_members(true);
    let refused = a.join(&mut sim, &a.id, false);
    assert_eq!((refused.kind, refused.status), (EventKind::MulticastError, -Errno::EINVAL.0));
    sim.refuse_members(false);
    assert_eq!(a.join(&mut sim, &a.id, false).kind, EventKind::MulticastJoin);
}
