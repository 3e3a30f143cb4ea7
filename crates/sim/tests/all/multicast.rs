//! Multicast groups of rdma_cm identifiers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::{Endpoint, RIGHTS, SimNode};
use nic::rdma_cm::{EventKind, UDP_QKEY, UdParam};
use nic::{Ah, Buffer, Datagram, QpType};
use sim::{Faults, Mark, Sim};
use stack::{Config, EventChannel, Id};
use transport::op::RecvWr;
use wire::Qpn;
use wire::mad::PortSpace;

const GROUP: [u8; 4] = [239, 1, 2, 3];
const GROUP_6: [u16; 8] = [0xff15, 0, 0, 0, 0, 0, 0, 0x1234];

fn group() -> IpAddr {
    GROUP.into()
}

/// A process with one identifier of datagrams, which has a queue pair with eight receives.
struct Member {
    node: SimNode,
    channel: Arc<EventChannel>,
    id: Arc<Id>,
    endpoint: Endpoint,
    _inbox: Buffer,
}

impl Member {
    /// A member whose identifier is bound to `address` and has resolved `group`.
    fn new(sim: &mut Sim, host: sim::HostId, address: IpAddr, group: IpAddr) -> Self {
        let process = sim.start(host, &Config::default());
        let node = sim.node(process).unwrap();
        let channel = EventChannel::new(Box::new(Mark::default()));
        let id = node.create_id(&channel, PortSpace::Udp);
        node.bind(&id, SocketAddr::new(address, 0)).unwrap();
        node.resolve_addr(&id, None, SocketAddr::new(group, 0), Duration::from_secs(2)).unwrap();
        assert_eq!(node.next_event(&channel).unwrap().kind, EventKind::AddrResolved, "nobody is asked");
        let endpoint = Endpoint::of(&node, QpType::Ud);
        node.set_qp(&id, &endpoint.qp).unwrap();
        let inbox = Buffer::new(&endpoint.pd, 256, 0x1000, RIGHTS).unwrap();
        for _ in 0..8 {
            let sges = [inbox.sge(0, 256)].into_iter().collect();
            endpoint.qp.post_receive(RecvWr { wr_id: 1, sges }).unwrap();
        }
        Self { node, channel, id, endpoint, _inbox: inbox }
    }
    fn join(&self, group: IpAddr, send_only: bool) -> UdParam {
        self.node.join_multicast(&self.id, group, send_only, 0x77).unwrap();
        let event = self.node.next_event(&self.channel).unwrap();
        assert_eq!((event.kind, event.status), (EventKind::MulticastJoin, 0));
        event.ud.unwrap()
    }
    fn say(&self, to: &UdParam) {
        let ah = Ah::new(&self.endpoint.pd, to.av).unwrap();
        let wr = support::send(2, b"to all");
        let to = Datagram { ah, qpn: to.qpn, qkey: to.qkey };
        self.endpoint.qp.post_datagram(stack::Env::now(&**self.node.env()), wr, &to).unwrap();
    }
    /// Messages that came since the last call.
    fn heard(&self) -> usize {
        Endpoint::poll(&self.endpoint.receives).len()
    }
}

/// Three hosts with a member each that has not joined.
fn three(group: IpAddr) -> (Sim, [Member; 3]) {
    let mut sim = Sim::new(1, Faults::none());
    let address = |n: u8| match group {
        IpAddr::V4(_) => IpAddr::from([10, 0, 0, n]),
        IpAddr::V6(_) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)]),
    };
    let hosts = [1, 2, 3].map(|n| (sim.add_host(&[address(n)], 1500), address(n)));
    let members = hosts.map(|(host, address)| Member::new(&mut sim, host, address, group));
    (sim, members)
}

#[test]
fn who_joined_hears_the_group_from_its_event_until_it_leaves() {
    for group in [group(), GROUP_6.into()] {
        let (mut sim, [a, b, c]) = three(group);
        let to = a.join(group, false);
        assert_eq!((to.qpn, to.qkey, to.context), (Qpn::MULTICAST, UDP_QKEY, 0x77));
        assert_eq!(to.av.dgid, group.into());
        b.join(group, false);
        c.join(group, true);
        a.say(&to);
        sim.run_for(Duration::from_millis(10));
        assert_eq!([&a, &b, &c].map(Member::heard), [1, 1, 0], "who only sends hears nothing");
        c.say(&to);
        sim.run_for(Duration::from_millis(10));
        assert_eq!([&a, &b, &c].map(Member::heard), [1, 1, 0]);
        b.node.leave_multicast(&b.id, group).unwrap();
        c.node.leave_multicast(&c.id, group).unwrap();
        a.say(&to);
        sim.run_for(Duration::from_millis(10));
        assert_eq!([&a, &b, &c].map(Member::heard), [1, 0, 0]);
        assert_eq!(
            b.node.leave_multicast(&b.id, group),
            Err(stack::Error::System(stack::Errno::EADDRNOTAVAIL))
        );
    }
}

#[test]
fn a_join_whose_event_nobody_fetched_attaches_nothing_and_vanishes_with_the_leave() {
    let (mut sim, [a, b, _]) = three(group());
    let to = a.join(group(), true);
    b.node.join_multicast(&b.id, group(), false, 0).unwrap();
    a.say(&to);
    sim.run_for(Duration::from_millis(10));
    assert_eq!(b.heard(), 0);
    b.node.leave_multicast(&b.id, group()).unwrap();
    assert!(b.node.next_event(&b.channel).is_none());
    assert!(!b.endpoint.qp.is_attached());
}

#[test]
fn an_identifier_that_ends_or_loses_its_queue_pair_leaves_its_groups() {
    let (_sim, [a, b, _]) = three(group());
    for other in [[239, 1, 2, 3], [239, 1, 2, 4]] {
        a.join(other.into(), false);
        b.join(other.into(), false);
    }
    assert!(a.endpoint.qp.is_attached() && b.endpoint.qp.is_attached());
    a.node.destroy(&a.id);
    b.node.take_qp(&b.id);
    assert!(!a.endpoint.qp.is_attached() && !b.endpoint.qp.is_attached());
    b.node.leave_multicast(&b.id, group()).unwrap();
}

#[test]
fn a_join_that_the_environment_refuses_is_an_error_event() {
    let (mut sim, [a, _b, _]) = three(group());
    let dead = sim.start(a.node.env().host(), &Config::default());
    let b = {
        let address = [10, 0, 0, 1].into();
        let node = sim.node(dead).unwrap();
        let channel = EventChannel::new(Box::new(Mark::default()));
        let id = node.create_id(&channel, PortSpace::Udp);
        node.bind(&id, SocketAddr::new(address, 0)).unwrap();
        let endpoint = Endpoint::of(&node, QpType::Ud);
        node.set_qp(&id, &endpoint.qp).unwrap();
        node.join_multicast(&id, group(), false, 5).unwrap();
        (node, channel, id)
    };
    // An environment that has ended joins nothing.
    sim.kill(dead);
    let event = b.0.next_event(&b.1).unwrap();
    assert_eq!((event.kind, event.status), (EventKind::MulticastError, -19));
    assert_eq!(event.ud.unwrap().context, 5);
    assert_eq!(b.0.leave_multicast(&b.2, group()), Err(stack::Error::System(stack::Errno::EADDRNOTAVAIL)));
}

#[test]
fn what_is_no_group_or_no_datagram_identifier_is_invalid() {
    let (_sim, [a, ..]) = three(group());
    let invalid =
        |r: Result<(), stack::Error>| assert_eq!(r.map_err(stack::Error::errno), Err(stack::Errno::EINVAL));
    invalid(a.node.join_multicast(&a.id, IpAddr::from([10, 0, 0, 2]), false, 0));
    invalid(a.node.join_multicast(&a.id, IpAddr::from(GROUP_6), false, 0));
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let here = SocketAddr::from(([10, 0, 0, 1], 0));
    let tcp = a.node.create_id(&a.channel, PortSpace::Tcp);
    a.node.bind(&tcp, here).unwrap();
    invalid(a.node.join_multicast(&tcp, group(), false, 0));
    invalid(a.node.resolve_addr(&tcp, None, SocketAddr::new(group(), 0), Duration::from_secs(1)));
    let unbound = a.node.create_id(&a.channel, PortSpace::Udp);
    invalid(a.node.join_multicast(&unbound, group(), false, 0));
    a.node.bind(&unbound, any).unwrap();
    invalid(a.node.join_multicast(&unbound, group(), false, 0));
    let ipoib = a.node.create_id(&a.channel, PortSpace::Ipoib);
    invalid(a.node.bind(&ipoib, here));
    a.node.bind(&ipoib, any).unwrap();
    assert_eq!(
        a.node.join_multicast(&ipoib, group(), false, 0),
        Err(stack::Error::System(stack::Errno::ENODEV))
    );
}

#[test]
fn a_group_answers_no_questions() {
    let (_sim, [a, ..]) = three(group());
    a.node.resolve_route(&a.id, Duration::from_secs(2)).unwrap();
    assert_eq!(a.node.next_event(&a.channel).unwrap().kind, EventKind::RouteResolved);
    let asked = a.node.connect(&a.id, &nic::rdma_cm::ConnParam::default(), &[]);
    assert_eq!(asked.map_err(stack::Error::errno), Err(stack::Errno::EINVAL));
}
