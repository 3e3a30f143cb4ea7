//! What identifiers learn when the interface under their device changes or goes.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::Endpoint;
use crate::support::connections::{MESSAGES, connected, param, resolved};
use nic::rdma_cm::EventKind;
use transport::op::Status;

const SOON: Duration = Duration::from_millis(10);

#[test]
fn another_hardware_address_is_told_to_everybody_on_the_device() {
    let (mut sim, client, server, _ours, _theirs) = connected(false);
    let idle = resolved(&mut sim, &client, server.address);
    sim.set_mac(client.host, [2, 9, 9, 9, 9, 9]);
    sim.run_for(SOON);
    for _ in 0..2 {
        let event = client.next().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::AddrChange, 0));
    }
    assert!(client.next().is_none() && server.next().is_none());
    // It is a hint: what was connected still is.
    sim.run_for(Duration::from_secs(5));
    assert!(client.next().is_none());
    client.node.destroy(&idle);
}

#[test]
fn an_address_that_goes_is_told_to_those_who_have_it() {
    let (mut sim, client, _server, ours, _theirs) = connected(false);
    let another: IpAddr = [10, 0, 0, 77].into();
    sim.set_addresses(client.host, &[client.address, another]);
    sim.run_for(SOON);
    assert!(client.next().is_none(), "one more address concerns nobody");
    sim.set_addresses(client.host, &[another]);
    sim.run_for(SOON);
    let event = client.next().unwrap();
    assert_eq!(event.kind, EventKind::AddrChange);
    assert!(std::sync::Arc::ptr_eq(&event.id, ours.id.as_ref().unwrap()));
    assert!(client.next().is_none());
}

#[test]
fn a_device_that_is_gone_ends_everything_on_it_and_the_peer_learns() {
    let (mut sim, client, server, ours, theirs) = connected(false);
    let id = ours.id.clone().unwrap();
    let bound = resolved(&mut sim, &client, server.address);
    sim.remove_interface(client.host);
    sim.run_for(SOON);
    let mut removed = Vec::new();
    while let Some(event) = client.next() {
        assert_eq!((event.kind, event.status), (EventKind::DeviceRemoval, 0));
        removed.push(event.id);
    }
    assert_eq!(removed.len(), 2);
    let endpoint = ours.endpoint.as_ref().unwrap();
    let flushed = Endpoint::poll(&endpoint.receives);
    assert_eq!(flushed.len() as u64, MESSAGES);
    assert!(flushed.iter().all(|c| c.status == Status::WrFlush));
    client.node.connect(&bound, &param(), &[]).unwrap_err();
    client.node.disconnect(&id).unwrap();
    sim.run_for(Duration::from_secs(10));
    assert!(client.next().is_none(), "nothing follows");
    client.node.take_qp(&id).unwrap().destroy();
    removed.into_iter().for_each(|id| client.node.destroy(&id));
    client.node.destroy(&bound);
    sim.run_for(Duration::from_secs(100));
    assert_eq!(client.node.connections(), 0);
    assert_eq!(stack::env::InputHandler::deadline(&*client.node), None);
    // The host is off the network: only what the server itself sends finds that out.
    server.node.disconnect(theirs.id.as_ref().unwrap()).unwrap();
    sim.run_for(Duration::from_secs(3));
    assert_eq!(server.next().unwrap().kind, EventKind::Disconnected);
}

#[test]
fn a_listener_on_the_device_is_told_and_one_on_all_addresses_is_not() {
    let (mut sim, _client, server, _ours, theirs) = connected(false);
    let id = server.node.create_id(&server.channel, wire::mad::PortSpace::Tcp);
    server.node.bind(&id, (server.address, 4000).into()).unwrap();
    server.node.listen(&id, 1).unwrap();
    sim.remove_interface(server.host);
    sim.run_for(SOON);
    let told: Vec<_> = std::iter::from_fn(|| server.next()).collect();
    assert!(told.iter().all(|e| e.kind == EventKind::DeviceRemoval));
    let has = |id| told.iter().filter(|e| std::sync::Arc::ptr_eq(&e.id, id)).count();
    assert_eq!((told.len(), has(&id), has(theirs.id.as_ref().unwrap())), (2, 1, 1));
}
