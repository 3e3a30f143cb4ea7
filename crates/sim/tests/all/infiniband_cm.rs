//! rdma_cm between InfiniBand ports: addresses of IPoIB, paths of the subnet's administration,
//! requests with LIDs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support::subnet::port;
use crate::support::{Endpoint, RIGHTS, SimNode, send};
use nic::device::IbPort;
use nic::device::port::PortState;
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Ah, Buffer, Datagram, Errno, QpType};
use sim::{Faults, HostId, Mark, Sim};
use stack::{Config, Event, EventChannel, Id};
use transport::op::{RecvWr, Status};
use wire::Pkey;
use wire::mad::PortSpace;

const PORT: u16 = 7174;
const TIMEOUT: Duration = Duration::from_secs(2);

/// An end of a connection, with its receive buffer.
type Connected = (Arc<Id>, (Endpoint, Buffer));

/// A host of the subnet with one process.
struct Party {
    host: HostId,
    address: SocketAddr,
    node: SimNode,
    channel: Arc<EventChannel>,
}

impl Party {
    fn new(sim: &mut Sim, n: u8, port: IbPort) -> Self {
        let ip = IpAddr::from([10, 4, 0, n]);
        let host = sim.add_ib_host(port, &[ip]);
        let process = sim.start(host, &Config::default());
        let channel = EventChannel::new(Box::new(Mark::default()));
        Self { host, address: SocketAddr::new(ip, PORT), node: sim.node(process).unwrap(), channel }
    }

    fn id(&self, space: PortSpace) -> Arc<Id> {
        self.node.create_id(&self.channel, space)
    }

    fn listen(&self, space: PortSpace) -> Arc<Id> {
        let id = self.id(space);
        self.node.bind(&id, self.address).unwrap();
        self.node.listen(&id, 0).unwrap();
        id
    }

    /// An identifier whose address is resolved.
    fn resolved(&self, sim: &mut Sim, space: PortSpace, to: &Self) -> Arc<Id> {
        let id = self.id(space);
        self.node.resolve_addr(&id, None, to.address, TIMEOUT).unwrap();
        assert_eq!(self.next(sim).kind, EventKind::AddrResolved);
        id
    }

    /// An identifier with a path.
    fn routed(&self, sim: &mut Sim, space: PortSpace, to: &Self) -> Arc<Id> {
        let id = self.resolved(sim, space, to);
        self.node.resolve_route(&id, TIMEOUT).unwrap();
        assert_eq!(self.next(sim).kind, EventKind::RouteResolved);
        id
    }

    /// A queue pair with a receive of 256 bytes.
    fn equip(&self, id: &Arc<Id>, kind: QpType) -> (Endpoint, Buffer) {
        let endpoint = Endpoint::of(&self.node, kind);
        self.node.set_qp(id, &endpoint.qp).unwrap();
        let inbox = Buffer::new(&endpoint.pd, 256, 0x1000, RIGHTS).unwrap();
        let sges = [inbox.sge(0, 256)].into_iter().collect();
        endpoint.qp.post_receive(RecvWr { wr_id: 1, sges }).unwrap();
        (endpoint, inbox)
    }

    /// A connection by a path of the administration: the identifier and queue pair of both ends.
    fn connected(&self, sim: &mut Sim, to: &Self) -> (Connected, Connected) {
        let asks = self.routed(sim, PortSpace::Tcp, to);
        let ours = self.equip(&asks, QpType::Rc);
        self.node.connect(&asks, &ConnParam { retry_count: 7, ..ConnParam::default() }, b"").unwrap();
        let asked = to.next(sim).id;
        let theirs = to.equip(&asked, QpType::Rc);
        to.node.accept(&asked, None, b"").unwrap();
        assert_eq!(self.next(sim).kind, EventKind::Established);
        ((asks, ours), (asked, theirs))
    }

    fn next(&self, sim: &mut Sim) -> Event {
        let mut found = None;
        sim.run_until(Duration::from_secs(20), |_| {
            found = found.take().or_else(|| self.node.next_event(&self.channel));
            found.is_some()
        });
        found.expect("an event")
    }
}

fn pair(seed: u64, faults: Faults, ports: [IbPort; 2]) -> (Sim, [Party; 2]) {
    let mut sim = Sim::new(seed, faults);
    let [client, server] = ports;
    let client = Party::new(&mut sim, 1, client);
    let server = Party::new(&mut sim, 2, server);
    (sim, [client, server])
}

/// A message from one queue pair to another arrives.
fn arrives(sim: &mut Sim, from: &Endpoint, to: &Endpoint) {
    from.qp.post_send(sim.now(), send(5, b"over the subnet")).unwrap();
    let mut received = Vec::new();
    sim.run_until(Duration::from_secs(5), |_| {
        received.extend(Endpoint::poll(&to.receives));
        !received.is_empty()
    });
    assert_eq!(received.iter().map(|c| c.status).collect::<Vec<_>>(), [Status::Success]);
}

#[test]
fn a_connection_is_made_by_addresses_of_ipoib_and_a_path_of_the_administration() {
    sim::seeds::each_seed("infiniband_cm", "a_connection_is_made", 50, |seed| {
        let (mut sim, [client, server]) = pair(seed, Faults::lossy(), [port(3), port(4)]);
        server.listen(PortSpace::Tcp);
        let asks = client.routed(&mut sim, PortSpace::Tcp, &server);
        let ours = client.equip(&asks, QpType::Rc);
        client.node.connect(&asks, &ConnParam { retry_count: 7, ..ConnParam::default() }, b"hello").unwrap();
        let request = server.next(&mut sim);
        assert_eq!(request.kind, EventKind::ConnectRequest);
        assert!(request.private_data.starts_with(b"hello"));
        let asked = request.id;
        let ends = {
            let inner = asked.lock();
            [inner.source, inner.dest].map(|end| end.unwrap().ip())
        };
        assert_eq!(ends, [server.address.ip(), client.address.ip()]);
        let theirs = server.equip(&asked, QpType::Rc);
        server.node.accept(&asked, None, b"").unwrap();
        assert_eq!(client.next(&mut sim).kind, EventKind::Established);
        assert_eq!(server.next(&mut sim).kind, EventKind::Established);
        let av = ours.0.qp.query().av;
        assert_eq!((av.dlid, av.is_global), (4, false), "no GRH within a subnet");
        assert_eq!(theirs.0.qp.query().av.dlid, 3);
        arrives(&mut sim, &ours.0, &theirs.0);
        client.node.disconnect(&asks).unwrap();
        assert_eq!(server.next(&mut sim).kind, EventKind::Disconnected);
    });
}

#[test]
fn a_datagram_service_is_asked_for_and_answered_by_lid() {
    let (mut sim, [client, server]) = pair(1, Faults::none(), [port(3), port(4)]);
    server.listen(PortSpace::Udp);
    let asks = client.routed(&mut sim, PortSpace::Udp, &server);
    let ours = client.equip(&asks, QpType::Ud);
    client.node.connect(&asks, &ConnParam::default(), b"").unwrap();
    let asked = server.next(&mut sim).id;
    let theirs = server.equip(&asked, QpType::Ud);
    server.node.accept(&asked, None, b"").unwrap();
    let answer = client.next(&mut sim);
    assert_eq!(answer.kind, EventKind::Established);
    let ud = answer.ud.unwrap();
    assert_eq!((ud.av.dlid, ud.av.is_global), (4, false));
    let to = Datagram { ah: Ah::new(&ours.0.pd, ud.av).unwrap(), qpn: ud.qpn, qkey: ud.qkey };
    ours.0.qp.post_datagram(sim.now(), send(2, b"by the record"), &to).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(Endpoint::poll(&theirs.0.receives).len(), 1);
}

#[test]
fn without_an_administration_the_route_ends_with_a_timeout_and_connections_live() {
    let (mut sim, [client, server]) = pair(1, Faults::none(), [port(3), port(4)]);
    server.listen(PortSpace::Tcp);
    let ((_asks, ours), (_asked, theirs)) = client.connected(&mut sim, &server);
    sim.set_subnet_administration(false);
    let other = client.resolved(&mut sim, PortSpace::Tcp, &server);
    client.node.resolve_route(&other, TIMEOUT).unwrap();
    let before = sim.elapsed();
    let event = client.next(&mut sim);
    assert_eq!((event.kind, event.status), (EventKind::RouteError, -Errno::ETIMEDOUT.0));
    assert_eq!(sim.elapsed() - before, TIMEOUT);
    arrives(&mut sim, &ours.0, &theirs.0);
    // The identifier may ask again.
    sim.set_subnet_administration(true);
    client.node.resolve_route(&other, TIMEOUT).unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::RouteResolved);
}

#[test]
fn what_has_no_path_or_no_manager_or_no_port_is_told_at_once() {
    let member = |lid, pkey| IbPort { pkeys: vec![Pkey(pkey)], ..port(lid) };
    let (mut sim, [client, server]) = pair(1, Faults::none(), [member(3, 0x8005), member(4, 0x8006)]);
    let id = client.resolved(&mut sim, PortSpace::Tcp, &server);
    client.node.resolve_route(&id, TIMEOUT).unwrap();
    let event = client.next(&mut sim);
    assert_eq!(
        (event.kind, event.status),
        (EventKind::RouteError, -Errno::EINVAL.0),
        "no partition has both"
    );
    sim.change_ib_port(client.host, |port| port.sm_lid = 0);
    sim.run_for(Duration::from_millis(1));
    let refused = client.node.resolve_route(&id, TIMEOUT);
    assert_eq!(refused.map_err(|error| error.errno()), Err(Errno::EAGAIN));
    sim.change_ib_port(client.host, |port| (port.sm_lid, port.state) = (1, PortState::Init));
    sim.run_for(Duration::from_millis(1));
    let refused = client.node.resolve_route(&id, TIMEOUT);
    assert_eq!(refused.map_err(|error| error.errno()), Err(Errno::EAGAIN));
    let nowhere = client.id(PortSpace::Tcp);
    let to = SocketAddr::from(([10, 4, 0, 99], PORT));
    client.node.resolve_addr(&nowhere, None, to, TIMEOUT).unwrap();
    let event = client.next(&mut sim);
    assert_eq!((event.kind, event.status), (EventKind::AddrError, -Errno::EHOSTUNREACH.0));
}

#[test]
fn a_request_that_no_listener_takes_is_refused() {
    let (mut sim, [client, server]) = pair(1, Faults::none(), [port(3), port(4)]);
    let asks = client.routed(&mut sim, PortSpace::Tcp, &server);
    let _ours = client.equip(&asks, QpType::Rc);
    client.node.connect(&asks, &ConnParam::default(), b"").unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::Rejected);
}

#[test]
fn a_path_that_the_program_gives_needs_no_administration() {
    let (mut sim, [client, server]) = pair(1, Faults::none(), [port(3), port(4)]);
    server.listen(PortSpace::Tcp);
    sim.set_subnet_administration(false);
    let asks = client.resolved(&mut sim, PortSpace::Tcp, &server);
    let ends = client.node.gids(&asks).unwrap();
    let path = |lids| stack::PathChoice {
        mtu: wire::Mtu::M1024,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 0,
        service_level: 2,
        packet_life_time: 14,
        lids,
        packet_rate: 0,
        pkey: Pkey(0xffff),
    };
    let none = client.node.choose_path(&asks, ends, path([3, 0]));
    assert_eq!(none.map_err(|error| error.errno()), Err(Errno::EINVAL));
    client.node.choose_path(&asks, ends, path([3, 4])).unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::RouteResolved);
    let ours = client.equip(&asks, QpType::Rc);
    client.node.connect(&asks, &ConnParam::default(), b"").unwrap();
    let asked = server.next(&mut sim).id;
    let theirs = server.equip(&asked, QpType::Rc);
    server.node.accept(&asked, None, b"").unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::Established);
    let attr = ours.0.qp.query();
    assert_eq!((attr.av.dlid, attr.av.sl, attr.path_mtu), (4, 2, wire::Mtu::M1024));
    arrives(&mut sim, &theirs.0, &ours.0);
}

/// The service of RDMA_PS_IB, and of `AF_IB` addresses that name the port.
fn by_gid(space: PortSpace) -> stack::IbService {
    let sid = u64::from(space.code()) << 16 | u64::from(PORT);
    stack::IbService { pkey: 0xffff, sid, sid_mask: u64::MAX, ..stack::IbService::default() }
}

fn gid(party: &Party) -> wire::Gid {
    party.node.devices()[0].gid(0).unwrap().gid
}

#[test]
fn between_gids_a_request_has_no_header_and_finds_the_listener_of_its_gid_and_port_space() {
    for (space, of_all) in [(PortSpace::Ib, false), (PortSpace::Tcp, true), (PortSpace::Udp, false)] {
        let (mut sim, [client, server]) = pair(1, Faults::none(), [port(3), port(4)]);
        let listener = server.id(space);
        let at = if of_all { wire::Gid::default() } else { gid(&server) };
        server.node.bind_service(&listener, at, by_gid(space)).unwrap();
        server.node.listen(&listener, 0).unwrap();
        let asks = client.id(space);
        client.node.resolve_service(&asks, None, (gid(&server), by_gid(space))).unwrap();
        assert_eq!(client.next(&mut sim).kind, EventKind::AddrResolved);
        client.node.resolve_route(&asks, TIMEOUT).unwrap();
        assert_eq!(client.next(&mut sim).kind, EventKind::RouteResolved);
        let kind = if space == PortSpace::Udp { QpType::Ud } else { QpType::Rc };
        let ours = client.equip(&asks, kind);
        let param = ConnParam { retry_count: 7, ..ConnParam::default() };
        client.node.connect(&asks, &param, b"first byte").unwrap();
        let request = server.next(&mut sim);
        assert_eq!(request.kind, EventKind::ConnectRequest);
        assert!(request.private_data.starts_with(b"first byte"), "{space:?}");
        let theirs = server.equip(&request.id, kind);
        server.node.accept(&request.id, None, b"").unwrap();
        assert_eq!(client.next(&mut sim).kind, EventKind::Established);
        if space != PortSpace::Udp {
            assert_eq!(server.next(&mut sim).kind, EventKind::Established);
            arrives(&mut sim, &ours.0, &theirs.0);
        }
    }
}

#[test]
fn a_gid_without_a_port_or_of_another_subnet_or_partition_is_no_device() {
    let (mut sim, [client, server]) = pair(1, Faults::none(), [port(3), port(4)]);
    let refused = |gid, service: stack::IbService| {
        let id = client.id(PortSpace::Ib);
        let refused = client.node.resolve_service(&id, None, (gid, service));
        refused.map_err(|error| error.errno())
    };
    let service = by_gid(PortSpace::Ib);
    let mut elsewhere = gid(&server);
    elsewhere.0[7] = 1;
    assert_eq!(refused(elsewhere, service), Err(Errno::ENODEV));
    assert_eq!(refused(gid(&server), stack::IbService { pkey: 0x8005, ..service }), Err(Errno::ENODEV));
    assert_eq!(
        refused(gid(&server), stack::IbService { sid: 1 << 32, ..service }),
        Err(Errno::EPROTONOSUPPORT)
    );
    let id = client.id(PortSpace::Ib);
    let bound = client.node.bind_service(&id, gid(&server), service);
    assert_eq!(bound.map_err(|error| error.errno()), Err(Errno::ENODEV));
    // No listener: the connection manager of the port refuses.
    client.node.resolve_service(&id, None, (gid(&server), service)).unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::AddrResolved);
    client.node.resolve_route(&id, TIMEOUT).unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::RouteResolved);
    let _ours = client.equip(&id, QpType::Rc);
    client.node.connect(&id, &ConnParam::default(), b"").unwrap();
    assert_eq!(client.next(&mut sim).kind, EventKind::Rejected);
}

#[test]
fn a_limited_member_of_a_partition_and_a_full_one_connect() {
    let limited = IbPort { pkeys: vec![Pkey(0x7fff)], ..port(3) };
    let (mut sim, [client, server]) = pair(1, Faults::none(), [limited, port(4)]);
    server.listen(PortSpace::Tcp);
    let ((_asks, ours), (_asked, theirs)) = client.connected(&mut sim, &server);
    arrives(&mut sim, &ours.0, &theirs.0);
}

#[test]
fn a_port_with_an_address_of_ipoib_has_its_own_device_and_none_of_roce() {
    let (_, [client, _]) = pair(1, Faults::none(), [port(3), port(4)]);
    let devices = client.node.devices();
    assert_eq!(devices.iter().map(|device| &*device.config.name).collect::<Vec<_>>(), ["mlx5_0"]);
}
