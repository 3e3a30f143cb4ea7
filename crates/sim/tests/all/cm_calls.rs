//! Calls of rdma_cm on a perfect network: limits, refusals, unreachable hosts, processes that are
//! killed.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::connections::{PORT, Party, Side, connected, param, resolved};
use nic::rdma_cm::{ConnParam, EventKind};
use sim::{Faults, Sim};
use wire::mad::PortSpace;

#[test]
fn retry_counts_above_7_are_7_and_a_depth_above_the_requests_is_the_requests() {
    let mut sim = Sim::new(1, Faults::none());
    let here = sim.add_host(&[[10, 0, 0, 1].into()], 1500);
    let client = Party::new(&mut sim, here, [10, 0, 0, 1].into());
    let server = Party::new(&mut sim, here, [10, 0, 0, 1].into());
    let _listener = server.listen();
    let id = resolved(&mut sim, &client, server.address);
    let mut ours = Side::new(id.clone());
    ours.equip(&client.node);
    let asked = ConnParam { initiator_depth: 1, responder_resources: 2, ..param() };
    let asked = ConnParam { retry_count: 8, rnr_retry_count: 255, ..asked };
    client.node.connect(&id, &asked, &[]).unwrap();
    sim.run_for(Duration::from_millis(10));
    let request = server.next().unwrap();
    assert_eq!((request.param.retry_count, request.param.rnr_retry_count), (7, 7));
    let mut theirs = Side::new(request.id.clone());
    theirs.equip(&server.node);
    let answer = ConnParam { initiator_depth: 100, rnr_retry_count: 8, ..param() };
    let beyond = ConnParam { initiator_depth: nic::limits::MAX_RD_ATOMIC + 1, ..answer };
    let refused = server.node.accept(&request.id, Some(&beyond), &[]).unwrap_err();
    assert_eq!(refused.errno(), stack::Errno::EINVAL);
    server.node.accept(&request.id, Some(&answer), &[]).unwrap();
    sim.run_for(Duration::from_millis(10));
    let [ours, theirs] = [ours, theirs].map(|s| s.endpoint.unwrap().qp.query());
    assert_eq!((ours.retry_cnt, ours.rnr_retry, theirs.rnr_retry), (7, 7, 7));
    assert_eq!(theirs.max_rd_atomic, 2);
}

#[test]
fn a_process_killed_on_the_same_host_disconnects_its_peer_within_a_second() {
    for kill_server in [true, false] {
        let (mut sim, client, server, _ours, _theirs) = connected(true);
        let (dead, alive) = if kill_server { (&server, &client) } else { (&client, &server) };
        sim.kill(dead.process);
        sim.run_for(Duration::from_secs(1));
        let event = alive.next().expect("an event within a second");
        assert_eq!(event.kind, EventKind::Disconnected);
    }
}

#[test]
fn a_process_killed_elsewhere_is_noticed_by_the_disconnecting_end() {
    let (mut sim, client, server, ours, _theirs) = connected(false);
    sim.kill(server.process);
    let id = ours.id.as_ref().unwrap();
    client.node.disconnect(id).unwrap();
    sim.run_for(Duration::from_secs(3));
    assert_eq!(client.next().unwrap().kind, EventKind::Disconnected);
}

#[test]
fn without_a_listener_a_request_is_rejected_with_reason_8() {
    for together in [true, false] {
        let (mut sim, client, server, _ours, _theirs) = connected(together);
        let id = client.node.create_id(&client.channel, PortSpace::Tcp);
        let dest = SocketAddr::new(server.address, PORT + 1);
        client.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
        sim.run_for(Duration::from_millis(10));
        assert_eq!(client.next().unwrap().kind, EventKind::AddrResolved);
        client.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
        assert_eq!(client.next().unwrap().kind, EventKind::RouteResolved);
        client.node.connect(&id, &param(), &[]).unwrap();
        sim.run_for(Duration::from_millis(10));
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::Rejected, 8));
    }
}

#[test]
fn a_host_without_rdma_is_unreachable() {
    let mut sim = Sim::new(1, Faults::none());
    let here = sim.add_host(&[[10, 0, 0, 1].into()], 1500);
    sim.add_host(&[[10, 0, 0, 2].into()], 1500);
    let client = Party::new(&mut sim, here, [10, 0, 0, 1].into());
    let id = resolved(&mut sim, &client, [10, 0, 0, 2].into());
    client.node.connect(&id, &param(), &[]).unwrap();
    sim.run_for(Duration::from_secs(1));
    let event = client.next().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, -110));
}

#[test]
fn a_neighbour_that_does_not_answer_is_an_address_error() {
    let mut sim = Sim::new(1, Faults::none());
    let here = sim.add_host(&[[10, 0, 0, 1].into()], 1500);
    let client = Party::new(&mut sim, here, [10, 0, 0, 1].into());
    for (timeout, status) in [(2, -110), (5, -113)] {
        let id = client.node.create_id(&client.channel, PortSpace::Tcp);
        let dest = "10.0.0.9:7471".parse().unwrap();
        client.node.resolve_addr(&id, None, dest, Duration::from_secs(timeout)).unwrap();
        sim.run_for(Duration::from_secs(10));
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::AddrError, status));
        assert!(client.next().is_none());
        client.node.destroy(&id);
    }
    assert!(sim.is_idle());
}
