//! One end of the demonstration's connection: device, memory, queues, and the connection manager's events.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use host::RealWorld;
use host::process::Instance;
use nic::device::async_events::AsyncEventQueue;
use nic::memory::Access;
use nic::{Buffer, Cq, Qp, QpCap, QpInit, QpType, Signal};
use node::{ConnParam, Event, EventChannel, EventKind, Id, Node};
use transport::Sge;
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, Status};

use crate::devices;

/// Bytes of each side's buffer.
pub const BUFFER: u32 = 1 << 20;
/// Where it begins, as work requests and the peer name it: any number will do.
const BUFFER_ADDR: u64 = 0x1000_0000;
/// Longest wait for an event or a completion.
const PATIENCE: Duration = Duration::from_secs(5);

/// Events there are to fetch.
#[derive(Clone, Default)]
struct Bell(Arc<(Mutex<u64>, Condvar)>);

impl Signal for Bell {
    fn signal(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.1.notify_all();
    }
    fn take_back(&self) {
        let mut count = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
    }
}

impl Bell {
    fn wait(&self) -> bool {
        let count = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut count, late) =
            self.0.1.wait_timeout_while(count, PATIENCE, |n| *n == 0).unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
        !late.timed_out()
    }
}

struct Queues {
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    buffer: Buffer,
}

/// One end.
pub struct Side {
    instance: Arc<Instance>,
    channel: Arc<EventChannel>,
    bell: Bell,
    id: Option<Arc<Id>>,
    queues: Option<Queues>,
    begin: Instant,
    /// Print each event.
    pub narrate: bool,
}

impl Side {
    /// An end that is not connected.
    pub fn start() -> Result<Side, String> {
        let bell = Bell::default();
        Ok(Side {
            instance: devices::start()?,
            channel: EventChannel::new(Box::new(bell.clone())),
            bell,
            id: None,
            queues: None,
            begin: Instant::now(),
            narrate: false,
        })
    }

    fn node(&self) -> &Arc<Node<RealWorld>> {
        self.instance.node()
    }

    fn event(&self, wanted: EventKind) -> Result<Event, String> {
        if !self.bell.wait() {
            return Err(format!("no event within {} s while waiting for {wanted:?}", PATIENCE.as_secs()));
        }
        let event = self.node().next_event(&self.channel).ok_or("an event vanished")?;
        if self.narrate {
            let ms = self.begin.elapsed().as_secs_f64() * 1e3;
            println!("client: {ms:8.3} ms  {}, status {}", rdma_name(event.kind), event.status);
        }
        match event.kind == wanted {
            true => Ok(event),
            false => Err(format!("{} with status {}", rdma_name(event.kind), event.status)),
        }
    }

    /// Listens on an address.
    pub fn listen(&self, address: SocketAddr) -> Result<Arc<Id>, String> {
        let listener = self.node().create_id(&self.channel, wire::mad::PortSpace::Tcp);
        self.node().bind(&listener, address).map_err(|e| format!("cannot bind {address}: {e}"))?;
        self.node().listen(&listener, 1).map_err(|e| format!("cannot listen: {e}"))?;
        Ok(listener)
    }

    /// Takes one connection; its private data tells the client address and key of the buffer.
    pub fn accept(&mut self) -> Result<(), String> {
        let request = self.event(EventKind::ConnectRequest)?;
        self.make_queues(&request.id)?;
        let queues = self.queues.as_ref().ok_or("no queues")?;
        let mut data = queues.buffer.addr().to_be_bytes().to_vec();
        data.extend(queues.buffer.key().0.to_be_bytes());
        self.node().accept(&request.id, None, &data).map_err(|e| format!("cannot accept: {e}"))?;
        self.id = Some(request.id);
        self.event(EventKind::Established).map(drop)
    }

    /// Connects; returns the server's buffer and its key.
    pub fn connect(&mut self, to: SocketAddr) -> Result<(u64, u32), String> {
        self.begin = Instant::now();
        let id = self.node().create_id(&self.channel, wire::mad::PortSpace::Tcp);
        self.node().resolve_addr(&id, None, to, PATIENCE).map_err(|e| format!("cannot resolve {to}: {e}"))?;
        self.event(EventKind::AddrResolved)?;
        self.node().resolve_route(&id).map_err(|e| e.to_string())?;
        self.event(EventKind::RouteResolved)?;
        self.make_queues(&id)?;
        let param = ConnParam {
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        self.node().connect(&id, &param, &[]).map_err(|e| format!("cannot connect: {e}"))?;
        self.id = Some(id);
        let answer = self.event(EventKind::Established)?.private_data;
        let (addr, rest) = answer.split_first_chunk::<8>().ok_or("the answer is too short")?;
        let (key, _) = rest.split_first_chunk::<4>().ok_or("the answer is too short")?;
        Ok((u64::from_be_bytes(*addr), u32::from_be_bytes(*key)))
    }

    fn make_queues(&mut self, id: &Arc<Id>) -> Result<(), String> {
        let said = |e: nic::Error| e.to_string();
        let device = id.lock().device.clone().ok_or("the identifier has no device")?;
        let events = AsyncEventQueue::new(Box::new(Bell::default()));
        let pd = Arc::new(device.alloc_pd().map_err(said)?);
        let cq = Cq::new(256, None, events.clone()).map_err(said)?;
        let cap =
            QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, events };
        let qp = Qp::create(&device, &pd, init).map_err(said)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let buffer = Buffer::new(&pd, BUFFER as usize, BUFFER_ADDR, access).map_err(said)?;
        self.node().set_qp(id, &qp).map_err(said)?;
        self.queues = Some(Queues { cq, qp, buffer });
        (0..4).try_for_each(|_| self.receive())
    }

    fn queues(&self) -> Result<&Queues, String> {
        self.queues.as_ref().ok_or_else(|| "not connected".to_owned())
    }

    /// Posts a receive for a small message.
    pub fn receive(&self) -> Result<(), String> {
        let q = self.queues()?;
        let wr = RecvWr { wr_id: 1, sges: std::iter::once(q.sge(4096)).collect() };
        q.qp.post_receive(wr).map_err(|e| e.to_string())
    }

    /// Posts a request on the first bytes of the buffer.
    pub fn post(&self, op: SendOp, bytes: u32) -> Result<(), String> {
        let q = self.queues()?;
        let data = Data::Sges(std::iter::once(q.sge(bytes)).collect());
        let wr = SendWr { wr_id: 0, op, data, signaled: true, solicited: false, fence: false };
        q.qp.post_send(Instant::now(), wr).map_err(|e| e.to_string())
    }

    /// What has completed.
    pub fn poll(&self) -> Vec<Completion> {
        let mut done = Vec::new();
        if let Some(q) = &self.queues {
            _ = self.instance.host.poll_cq(&q.cq, 64, |c| done.push(c));
        }
        done
    }

    /// Polls until at least `n` have completed; how many did.
    pub fn wait_for(&self, n: usize) -> Result<usize, String> {
        let (begin, mut done) = (Instant::now(), 0);
        while done < n {
            for c in self.poll() {
                if c.status != Status::Success {
                    return Err(format!("{:?} completed with {:?}", c.opcode, c.status));
                }
                done += 1;
            }
            if begin.elapsed() > PATIENCE {
                return Err("completions are missing".to_owned());
            }
        }
        Ok(done)
    }

    /// Whether the peer has left.
    pub fn ended(&self) -> bool {
        self.node().next_event(&self.channel).is_some_and(|e| e.kind == EventKind::Disconnected)
    }

    /// Ends the connection and waits until the peer knows.
    pub fn disconnect(&mut self) -> Result<(), String> {
        if let Some(id) = &self.id {
            self.node().disconnect(id).map_err(|e| e.to_string())?;
            self.event(EventKind::Disconnected)?;
        }
        self.finish();
        Ok(())
    }

    /// Gives everything back.
    pub fn finish(&mut self) {
        if let Some(id) = self.id.take() {
            _ = self.node().disconnect(&id);
            self.node().destroy(&id);
        }
        if let Some(q) = self.queues.take() {
            q.qp.destroy();
        }
    }
}

impl Queues {
    fn sge(&self, length: u32) -> Sge {
        self.buffer.sge(0, length as usize)
    }
}

/// The event's name in `enum rdma_cm_event_type`.
fn rdma_name(kind: EventKind) -> String {
    let mut name = String::from("RDMA_CM_EVENT");
    for c in format!("{kind:?}").chars() {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}
