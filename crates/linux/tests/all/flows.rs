//! Connections between processes that share an address: which of their messages are handed on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::{Config, Host, LinuxEnv};
use nic::device::async_events::AsyncEventQueue;
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Cq, Qp, QpCap, QpInit, QpType, Signal};
use stack::{EventChannel, Id, Node};
use wire::mad::PortSpace;

use crate::support::{TIMEOUT, alone};

const PORT: u16 = 7471;
const CLIENTS: usize = 6;
/// Connections of a client by which each flow has been handed on often enough.
const FIRST: usize = 6;

struct Silent;

impl Signal for Silent {
    fn signal(&self) {}
    fn take_back(&self) {}
}

/// A process: a node on its own sockets, with an event channel. What is made stays until its end.
struct Process {
    host: Arc<Host<Node<LinuxEnv>>>,
    channel: Arc<EventChannel>,
    qps: Vec<Arc<Qp>>,
}

impl Process {
    fn start() -> Self {
        let make = |env: Arc<LinuxEnv>| {
            let interfaces = env.interfaces();
            Node::new(env, &stack::Config::default(), &interfaces)
        };
        let host = Host::start(make, Config { same_host: false, ..Config::default() }).unwrap();
        Self { host, channel: EventChannel::new(Box::new(Silent)), qps: Vec::new() }
    }

    fn node(&self) -> &Node<LinuxEnv> {
        self.host.handler()
    }

    fn id(&self) -> Arc<Id> {
        self.node().create_id(&self.channel, PortSpace::Tcp)
    }

    fn listen(&self) -> Arc<Id> {
        let id = self.id();
        self.node().bind(&id, SocketAddr::from(([127, 0, 0, 1], PORT))).unwrap();
        self.node().listen(&id, 0).unwrap();
        id
    }

    fn equip(&mut self, id: &Arc<Id>) {
        let device = self.node().devices()[0].clone();
        let pd = Arc::new(device.alloc_pd().unwrap());
        let events = AsyncEventQueue::new(Box::new(Silent));
        let cq = Cq::new(16, None, events.clone()).unwrap();
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq);
        let init = QpInit { srq: None, kind: QpType::Rc, send_cq, recv_cq, cap, sq_sig_all: false, events };
        let qp = Qp::create(&device, &pd, init).unwrap();
        self.node().set_qp(id, &qp).unwrap();
        self.qps.push(qp);
    }

    /// Serves the next event, as a server; false where there is none.
    fn serve(&mut self) -> bool {
        let Some(event) = self.node().next_event(&self.channel) else { return false };
        match event.kind {
            EventKind::ConnectRequest => {
                self.equip(&event.id);
                self.node().accept(&event.id, Some(&param()), &[]).unwrap();
            }
            EventKind::Disconnected => self.node().destroy(&event.id),
            _ => {}
        }
        true
    }

    fn forwarded(&self) -> u64 {
        let counters = self.host.env().counters().snapshot();
        counters.into_iter().find(|(name, _)| *name == "forwarded_out").unwrap().1
    }
}

fn param() -> ConnParam {
    ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() }
}

/// Waits for an event of the client while the servers serve.
fn expect(client: &Process, servers: &mut [Process], kind: EventKind) {
    let end = Instant::now() + TIMEOUT;
    loop {
        while servers.iter_mut().any(Process::serve) {}
        if let Some(event) = client.node().next_event(&client.channel) {
            if event.kind == EventKind::TimewaitExit {
                continue;
            }
            return assert_eq!((event.kind, event.status), (kind, 0));
        }
        assert!(Instant::now() < end, "no {kind:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Connects to whichever of the servers listens, and ends the connection.
fn connect(client: &mut Process, servers: &mut [Process]) {
    let id = client.id();
    let dest = SocketAddr::from(([127, 0, 0, 1], PORT));
    client.node().resolve_addr(&id, None, dest, TIMEOUT).unwrap();
    expect(client, servers, EventKind::AddrResolved);
    client.node().resolve_route(&id, Duration::from_secs(2)).unwrap();
    expect(client, servers, EventKind::RouteResolved);
    client.equip(&id);
    client.node().connect(&id, &param(), &[]).unwrap();
    expect(client, servers, EventKind::Established);
    client.node().disconnect(&id).unwrap();
    expect(client, servers, EventKind::Disconnected);
    client.node().destroy(&id);
}

/// Messages that are handed on while each client connects so often.
fn handed_on(clients: &mut [Process], servers: &mut [Process], times: usize) -> u64 {
    let all = |clients: &[Process], servers: &[Process]| {
        clients.iter().chain(servers).map(Process::forwarded).sum::<u64>()
    };
    let before = all(clients, servers);
    (0..times).for_each(|_| clients.iter_mut().for_each(|client| connect(client, servers)));
    all(clients, servers) - before
}

#[test]
fn messages_between_processes_that_are_connected_again_and_again_are_not_handed_on() {
    if !alone().own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let mut servers = [Process::start()];
    let _listener = servers[0].listen();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Process::start()).collect();
    let first = handed_on(&mut clients, &mut servers, FIRST);
    assert!(first > 0, "packets land at any process");
    let later = handed_on(&mut clients, &mut servers, FIRST);
    // Of five messages a connection; one that is repeated leaves from a shared port.
    assert!(later < (CLIENTS * FIRST) as u64 / 4, "{later} after {first}");

    // A process ends, and another one comes.
    clients[2] = Process::start();
    handed_on(&mut clients, &mut servers, FIRST);
    let later = handed_on(&mut clients, &mut servers, FIRST);
    assert!(later < (CLIENTS * FIRST) as u64 / 4, "{later}");
}

#[test]
fn a_request_finds_its_listener_though_another_process_accepted_the_last_one() {
    if !alone().own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let mut servers = [Process::start(), Process::start()];
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Process::start()).collect();
    // The process that clients remember is there all the time, and no longer listens.
    for round in 0..4 {
        let listener = servers[round % 2].listen();
        handed_on(&mut clients, &mut servers, FIRST);
        servers[round % 2].node().destroy(&listener);
    }
    // It has ended.
    for _ in 0..2 {
        let mut server = [Process::start()];
        let _listener = server[0].listen();
        handed_on(&mut clients, &mut server, FIRST);
    }
}
