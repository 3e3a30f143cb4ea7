//! Runs one scenario so many times, in one thread, over simulated hosts on a perfect network: the
//! same arguments execute the same instructions. `bench/instructions` counts them.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nic::device::async_events::AsyncEventQueue;
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Access, Buffer, Cq, Pd, Qp, QpCap, QpInit, QpType};
use sim::{Faults, HostId, Mark, Sim, SimEnv};
use stack::{Config, Event, EventChannel, Id, Node};
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::mad::PortSpace;
use wire::roce::SendTail;

const PORT: u16 = 7471;
/// Bytes of registered memory of an end, where no message is longer.
const MEMORY_LEN: usize = 8192;
/// Virtual time in which whatever has begun on a perfect network is over.
const A_WHILE: Duration = Duration::from_millis(10);

/// A process with its event channel.
struct Process {
    node: Arc<Node<SimEnv>>,
    channel: Arc<EventChannel>,
    address: IpAddr,
}

/// A queue pair with its completion queues and its memory.
struct Endpoint {
    qp: Arc<Qp>,
    sends: Arc<Cq>,
    receives: Arc<Cq>,
    memory: Buffer,
}

/// A client and a server, on one host or on two.
struct Pair {
    sim: Sim,
    memory_len: usize,
    client: Process,
    server: Process,
    _listener: Arc<Id>,
}

/// The two ends of a connection: the client's, the server's.
struct Connection {
    ids: [Arc<Id>; 2],
    ends: [Endpoint; 2],
}

impl Process {
    fn start(sim: &mut Sim, host: HostId, address: IpAddr) -> Self {
        let process = sim.start(host, &Config::default());
        let node = sim.node(process).expect("the process lives");
        Self { node, channel: EventChannel::new(Box::new(Mark::default())), address }
    }

    fn event(&self, kind: EventKind) -> Event {
        let event = self.node.next_event(&self.channel).expect("an event");
        assert_eq!(event.kind, kind);
        event
    }
}

impl Endpoint {
    fn new(process: &Process, id: &Arc<Id>, memory_len: usize) -> Self {
        let device = process.node.devices()[0].clone();
        let pd: Arc<Pd> = Arc::new(device.alloc_pd().expect("a protection domain"));
        let events = AsyncEventQueue::new(Box::new(Mark::default()));
        let cq = || Cq::new(64, None, events.clone()).expect("a completion queue");
        let (sends, receives) = (cq(), cq());
        let cap =
            QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let init = QpInit {
            srq: None,
            kind: QpType::Rc,
            send_cq: sends.clone(),
            recv_cq: receives.clone(),
            cap,
            sq_sig_all: false,
            events,
        };
        let qp = Qp::create(&device, &pd, init).expect("a queue pair");
        process.node.set_qp(id, &qp).expect("an identifier without a queue pair");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = Buffer::new(&pd, memory_len, 0x10_0000, rights).expect("a region");
        Self { qp, sends, receives, memory }
    }

    /// Posts a signaled request of `len` bytes from registered memory.
    fn post(&self, process: &Process, op: SendOp, len: usize) {
        let data = Data::Sges([self.memory.sge(0, len)].into_iter().collect());
        let wr = SendWr { wr_id: 1, op, data, signaled: true, solicited: false, fence: false };
        let now = stack::Env::now(&**process.node.env());
        self.qp.post_send(now, wr).expect("room for a request");
    }

    fn post_receive(&self, len: usize) {
        let sges = [self.memory.sge(0, len)].into_iter().collect();
        self.qp.post_receive(RecvWr { wr_id: 2, sges }).expect("room for a receive");
    }
}

/// Takes the one completion that the queue has.
fn completed(cq: &Cq) {
    let mut all = 0;
    cq.poll(4, |c: Completion| {
        assert_eq!(c.status, Status::Success);
        all += 1;
    })
    .expect("a queue that has not overrun");
    assert_eq!(all, 1);
}

impl Pair {
    fn new(one_host: bool) -> Self {
        Self::on_link(one_host, 9000, MEMORY_LEN)
    }

    /// On a link of this MTU, with as much memory at either end.
    fn on_link(one_host: bool, mtu: u32, memory_len: usize) -> Self {
        let mut sim = Sim::new(1, Faults::none());
        let addresses = [1, if one_host { 1 } else { 2 }].map(|n| IpAddr::from([10, 0, 0, n]));
        let here = sim.add_host(&addresses[..1], mtu);
        let there = if one_host { here } else { sim.add_host(&addresses[1..], mtu) };
        let client = Process::start(&mut sim, here, addresses[0]);
        let server = Process::start(&mut sim, there, addresses[1]);
        let listener = server.node.create_id(&server.channel, PortSpace::Tcp);
        server.node.bind(&listener, SocketAddr::from(([0, 0, 0, 0], PORT))).expect("a free port");
        server.node.listen(&listener, 0).expect("a bound identifier");
        Self { sim, memory_len, client, server, _listener: listener }
    }

    fn connect(&mut self) -> Connection {
        let (client, server) = (&self.client, &self.server);
        let param = ConnParam {
            responder_resources: 4,
            initiator_depth: 4,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        let id = client.node.create_id(&client.channel, PortSpace::Tcp);
        let to = SocketAddr::new(server.address, PORT);
        client.node.resolve_addr(&id, None, to, Duration::from_secs(2)).expect("a route");
        self.sim.run_for(A_WHILE);
        client.event(EventKind::AddrResolved);
        client.node.resolve_route(&id, Duration::from_secs(2)).expect("an address");
        client.event(EventKind::RouteResolved);
        let ours = Endpoint::new(client, &id, self.memory_len);
        client.node.connect(&id, &param, &[]).expect("a route and a queue pair");
        self.sim.run_for(A_WHILE);
        let request = server.event(EventKind::ConnectRequest);
        let theirs = Endpoint::new(server, &request.id, self.memory_len);
        server.node.accept(&request.id, None, &[]).expect("a request");
        self.sim.run_for(A_WHILE);
        server.event(EventKind::Established);
        client.event(EventKind::Established);
        Connection { ids: [id, request.id.clone()], ends: [ours, theirs] }
    }

    fn disconnect(&mut self, connection: Connection) {
        let [id, their_id] = &connection.ids;
        self.client.node.disconnect(id).expect("a connection");
        self.sim.run_for(A_WHILE);
        self.client.event(EventKind::Disconnected);
        self.server.event(EventKind::Disconnected);
        for (process, id) in [(&self.client, id), (&self.server, their_id)] {
            process.node.destroy(id);
        }
        connection.ends.iter().for_each(|end| end.qp.destroy());
    }
}

/// SENDs of `len` bytes, each received before the next.
fn send(one_host: bool, len: usize, turns: u64) {
    let mut pair = Pair::new(one_host);
    let Connection { ends: [ours, theirs], ids: _ids } = pair.connect();
    for _ in 0..turns {
        theirs.post_receive(len);
        ours.post(&pair.client, SendOp::Send(SendTail::None), len);
        pair.sim.run_for(Duration::from_millis(1));
        completed(&theirs.receives);
        completed(&ours.sends);
    }
}

/// WRITEs of `len` bytes.
fn write(mut pair: Pair, len: usize, turns: u64) {
    let Connection { ends: [ours, theirs], ids: _ids } = pair.connect();
    let (addr, rkey) = (theirs.memory.addr(), theirs.memory.key());
    for _ in 0..turns {
        ours.post(&pair.client, SendOp::Write { addr, rkey, immediate: None }, len);
        pair.sim.run_for(Duration::from_millis(1));
        completed(&ours.sends);
    }
}

/// Connections between two hosts: resolved, accepted, ended.
fn connect(turns: u64) {
    let mut pair = Pair::new(false);
    for _ in 0..turns {
        let connection = pair.connect();
        pair.disconnect(connection);
    }
}

/// Polls of a completion queue that has nothing.
fn poll_empty(turns: u64) {
    let mut pair = Pair::new(true);
    let connection = pair.connect();
    for _ in 0..turns {
        let found = connection.ends[0].sends.poll(1, |_| unreachable!("no request was posted"));
        assert_eq!(std::hint::black_box(found), Ok(0));
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, turns] = &arguments[..] else {
        eprintln!("verbena-instructions SCENARIO TURNS");
        return ExitCode::from(2);
    };
    let turns = turns.parse().expect("a number of turns");
    match scenario.as_str() {
        "send-64" => send(true, 64, turns),
        "write-8" => write(Pair::new(true), 8, turns),
        "send-4096-wire" => send(false, 4096, turns),
        "write-65536-wire" => write(Pair::on_link(false, 1500, 64 << 10), 64 << 10, turns),
        "connect" => connect(turns),
        "poll-empty" => poll_empty(turns),
        _ => {
            eprintln!("no scenario of that name: {scenario}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
