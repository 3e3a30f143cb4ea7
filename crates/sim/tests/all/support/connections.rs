//! Connections by rdma_cm between simulated nodes: a node with its channel, an end of a connection,
//! and two that are connected.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Buffer, Link, QpState};
use sim::{Faults, HostId, Mark, ProcessId, Sim, SimEnv};
use stack::{Config, Event, EventChannel, Id};
use transport::op::{Data, RecvWr, SendOp, SendWr, Status};
use wire::mad::PortSpace;
use wire::roce::SendTail;

use super::{Endpoint, SimNode, Way};

pub(crate) const PORT: u16 = 7471;
/// Messages each side sends.
pub(crate) const MESSAGES: u64 = 5;
pub(crate) const MESSAGE_LEN: usize = 3000;
/// One end of a connection.
pub(crate) struct Side {
    pub id: Option<Arc<Id>>,
    pub endpoint: Option<Endpoint>,
    pub inbox: Option<Buffer>,
    pub outbox: Option<Buffer>,
    pub events: Vec<(EventKind, i32)>,
    pub received: u64,
    pub ending: bool,
    /// Later calls, by time.
    pub destroy_at: Option<Duration>,
    pub decide_at: Option<Duration>,
    pub give_up_at: Option<Duration>,
    /// The queue pair gave up: legal where the network is bad enough.
    pub broken: bool,
}

impl Side {
    pub(crate) fn new(id: Arc<Id>) -> Self {
        Self {
            id: Some(id),
            endpoint: None,
            inbox: None,
            outbox: None,
            events: Vec::new(),
            received: 0,
            ending: false,
            destroy_at: None,
            decide_at: None,
            give_up_at: None,
            broken: false,
        }
    }
    pub(crate) fn has(&self, kind: EventKind) -> bool {
        self.events.iter().any(|(k, _)| *k == kind)
    }
    /// Makes the queue pair and posts its receives.
    pub(crate) fn equip(&mut self, node: &SimNode) {
        let Some(id) = &self.id else { return };
        let endpoint = Endpoint::new(node);
        node.set_qp(id, &endpoint.qp).unwrap();
        let size = MESSAGES as usize * MESSAGE_LEN;
        let inbox = Buffer::new(&endpoint.pd, size, 0x10_0000, nic::Access::LOCAL_WRITE).unwrap();
        let outbox = Buffer::new(&endpoint.pd, size, 0x20_0000, 0).unwrap();
        for n in 0..MESSAGES {
            let sges = [inbox.sge(n as usize * MESSAGE_LEN, MESSAGE_LEN)].into_iter().collect();
            endpoint.qp.post_receive(RecvWr { wr_id: n, sges }).unwrap();
        }
        outbox.write(0, &message_bytes(size));
        (self.endpoint, self.inbox, self.outbox) = (Some(endpoint), Some(inbox), Some(outbox));
    }
    pub(crate) fn send_all(&self, node: &SimNode) {
        let (Some(endpoint), Some(outbox)) = (&self.endpoint, &self.outbox) else { return };
        let mut sender = endpoint.qp.sender(stack::Env::now(&**node.env()));
        for n in 0..MESSAGES {
            let sges = [outbox.sge(n as usize * MESSAGE_LEN, MESSAGE_LEN)].into_iter().collect();
            let mut wr = SendWr {
                wr_id: n,
                op: SendOp::Send(SendTail::None),
                data: Data::Sges(sges),
                signaled: true,
                solicited: false,
                fence: false,
            };
            sender.post(&mut wr, nic::PostFlags::default()).unwrap();
        }
        sender.finish();
    }
    pub(crate) fn poll(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        for c in Endpoint::poll(&endpoint.receives) {
            if c.status == Status::Success {
                assert_eq!((c.wr_id, c.byte_len as usize), (self.received, MESSAGE_LEN));
                self.received += 1;
            }
        }
        for c in Endpoint::poll(&endpoint.sends) {
            match c.status {
                Status::Success | Status::WrFlush => {}
                // The peer ended the connection while messages were on their way, or the network is
                // that bad.
                Status::RetryExceeded => self.broken = true,
                _ => panic!("illegal {c:?}"),
            }
        }
    }
}

pub(crate) fn message_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8).collect()
}

/// A node with its channel.
pub(crate) struct Party {
    pub process: ProcessId,
    pub host: HostId,
    pub address: IpAddr,
    pub node: SimNode,
    pub channel: Arc<EventChannel>,
}

impl Party {
    pub(crate) fn new(sim: &mut Sim, host: HostId, address: IpAddr) -> Self {
        Self::with(sim, host, address, &Config::default())
    }
    /// Like [`Party::new`], with other devices.
    pub(crate) fn with(sim: &mut Sim, host: HostId, address: IpAddr, config: &Config) -> Self {
        Self::on(sim, host, address, config, |env| env)
    }
    /// Like [`Party::with`], on the link that `decorate` puts over the host's own.
    pub(crate) fn on(
        sim: &mut Sim,
        host: HostId,
        address: IpAddr,
        config: &Config,
        decorate: impl FnOnce(Arc<SimEnv>) -> Arc<dyn Link>,
    ) -> Self {
        let process = sim.start_on(host, config, decorate);
        let node = sim.node(process).unwrap();
        Self { process, host, address, node, channel: EventChannel::new(Box::new(Mark::default())) }
    }
    pub(crate) fn next(&self) -> Option<Event> {
        self.node.next_event(&self.channel)
    }
    /// The next event, within a minute.
    pub(crate) fn wait(&self, sim: &mut Sim) -> Event {
        let until = sim.elapsed() + Duration::from_secs(60);
        loop {
            match self.next() {
                Some(event) => return event,
                None => assert!(sim.step(until), "no event"),
            }
        }
    }
    pub(crate) fn listen(&self) -> Arc<Id> {
        let id = self.node.create_id(&self.channel, PortSpace::Tcp);
        let any: SocketAddr = match self.address {
            IpAddr::V4(_) => "0.0.0.0:7471".parse().unwrap(),
            IpAddr::V6(_) => "[::]:7471".parse().unwrap(),
        };
        self.node.bind(&id, any).unwrap();
        self.node.listen(&id, 0).unwrap();
        id
    }
}

pub(crate) fn param() -> ConnParam {
    ConnParam {
        responder_resources: 4,
        initiator_depth: 4,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

pub(crate) fn end_connection(side: &mut Side, node: &SimNode) {
    if let Some(id) = &side.id {
        side.ending = true;
        node.disconnect(id).unwrap();
        if let Some(endpoint) = &side.endpoint {
            assert_eq!(endpoint.qp.state(), QpState::Error);
        }
    }
}

/// One connection on a perfect network, established and quiet.
pub(crate) fn connected(together: bool) -> (Sim, Party, Party, Side, Side) {
    connected_with(1, together)
}

/// Like [`connected`], with a seed.
pub(crate) fn connected_with(seed: u64, together: bool) -> (Sim, Party, Party, Side, Side) {
    connected_by(Way::Wire, seed, together)
}

/// Like [`connected_with`], by another way.
pub(crate) fn connected_by(way: Way, seed: u64, together: bool) -> (Sim, Party, Party, Side, Side) {
    connected_on(way, seed, together, |_, env| env)
}

/// Like [`connected_by`]; the client is 1 and the server 2 on the links that `decorate` puts over
/// those of their hosts.
pub(crate) fn connected_on(
    way: Way,
    seed: u64,
    together: bool,
    mut decorate: impl FnMut(u8, Arc<SimEnv>) -> Arc<dyn Link>,
) -> (Sim, Party, Party, Side, Side) {
    let mut sim = Sim::new(seed, Faults::none());
    let address = |n| IpAddr::from([10, 0, 0, n]);
    let here = sim.add_host(&[address(1)], 1500);
    let (there, n) = if together { (here, 1) } else { (sim.add_host(&[address(2)], 1500), 2) };
    let client = Party::on(&mut sim, here, address(1), &way.config(), |env| decorate(1, env));
    let server = Party::on(&mut sim, there, address(n), &way.config(), |env| decorate(2, env));
    let _listener = server.listen();
    let id = resolved(&mut sim, &client, address(n));
    let mut ours = Side::new(id.clone());
    ours.equip(&client.node);
    client.node.connect(&id, &param(), &[]).unwrap();
    sim.run_for(Duration::from_millis(10));
    let request = server.next().unwrap();
    assert_eq!(request.kind, EventKind::ConnectRequest);
    let mut theirs = Side::new(request.id.clone());
    theirs.equip(&server.node);
    server.node.accept(&request.id, None, &[]).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(server.next().unwrap().kind, EventKind::Established);
    assert_eq!(client.next().unwrap().kind, EventKind::Established);
    (sim, client, server, ours, theirs)
}

pub(crate) fn resolved(sim: &mut Sim, party: &Party, dest: IpAddr) -> Arc<Id> {
    let id = party.node.create_id(&party.channel, PortSpace::Tcp);
    let dest = SocketAddr::new(dest, PORT);
    party.node.resolve_addr(&id, None, dest, Duration::from_secs(2)).unwrap();
    sim.run_for(Duration::from_millis(10));
    assert_eq!(party.next().unwrap().kind, EventKind::AddrResolved);
    party.node.resolve_route(&id, Duration::from_secs(2)).unwrap();
    assert_eq!(party.next().unwrap().kind, EventKind::RouteResolved);
    id
}
