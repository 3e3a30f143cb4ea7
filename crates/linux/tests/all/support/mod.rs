//! What the tests of the real environment share: an input handler that writes everything down,
//! batches, and a place to be alone in.
#![allow(dead_code, reason = "each test file uses its part")]
#![expect(clippy::disallowed_types, reason = "locks of the tests' own have no rank")]

pub(crate) mod exported;
pub(crate) mod raw;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linux::eventfd::{self, Counter, Wait, Woken};
use linux::{Config, Host, LinuxEnv};
use nic::{Access, Errno, Link, Path, Signal};
use stack::env::{Claim, Route};
use stack::{Env, Input, InputHandler, Interface, Name, Watch};
use transport::TxBatch;
use wire::bth::Bth;
use wire::icrc::{self, Flow};
use wire::roce::{Header, Op, SendAt, Service};
use wire::{Psn, Qpn, Rkey};

pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
pub(crate) const LO: u32 = 1;

/// What queue pairs here let their peers do.
const ALL: u32 = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;

/// Longer than anything here takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace of the calling thread, where we may make one; else the turn to use the
/// machine's.
pub(crate) struct Alone {
    /// Whether it is a namespace of our own.
    pub own_namespace: bool,
    _turn: Option<MutexGuard<'static, ()>>,
}

pub(crate) fn alone() -> Alone {
    static TURN: Mutex<()> = Mutex::new(());
    // SAFETY: no pointers; only the calling thread moves.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        ip("link set lo up");
        Alone { own_namespace: true, _turn: None }
    } else {
        Alone { own_namespace: false, _turn: Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)) }
    }
}

/// Whether the system lets a process reach the memory of the one that started it; a line says where
/// it does not: under Yama, or a filter of system calls.
pub(crate) fn is_peer_memory_reachable() -> bool {
    let word = AtomicU64::new(0);
    let place = libc::iovec { iov_base: word.as_ptr().cast(), iov_len: 8 };
    // SAFETY: the child makes three system calls and ends; a word of its own is copied to where it
    // lies in the parent, too.
    let reached = unsafe {
        let child = libc::fork();
        if child == 0 {
            let done = libc::process_vm_writev(libc::getppid(), &raw const place, 1, &raw const place, 1, 0);
            libc::_exit(i32::from(done != 8));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0) == child && status == 0
    };
    if !reached {
        println!("left out: the system lets no process reach the memory of another one");
    }
    reached
}

/// Runs ip(8) in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// What the environment told, so that it can be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Frame {
        interface: u32,
        outgoing: bool,
        bytes: Vec<u8>,
    },
    Datagram {
        source: SocketAddr,
        dest: SocketAddr,
        interface: u32,
        forwarded: bool,
        bytes: Vec<u8>,
        thread: String,
    },
    Resolved {
        ticket: u64,
        result: Result<(), Errno>,
    },
    Unreachable {
        dest: IpAddr,
        source: IpAddr,
        errno: Errno,
        sent: Vec<u8>,
    },
    Interfaces(Vec<Interface>),
    Gone(Name, Watch),
    Expired(Instant),
}

/// Writes everything down.
pub(crate) struct Recorder {
    pub env: Arc<LinuxEnv>,
    told: Mutex<VecDeque<Told>>,
    news: Condvar,
    pub deadline: Mutex<Option<Instant>>,
    pub panic_once: Mutex<bool>,
    /// Packets that came directly are handed to the owner of this name.
    pub forward_to: Mutex<Option<Name>>,
    /// How long the input handler thinks about a message of a connection manager.
    pub thinks: Mutex<Duration>,
    /// Messages of connection managers that the input handler has begun with.
    pub messages: AtomicU64,
    /// While a test holds this lock, the input handler stays with such a message.
    pub held: Mutex<()>,
    /// Counts packets, if it is there.
    pub counter: Mutex<Option<Counter>>,
    /// What each packet is a request for that is executed: the queue pair and the key.
    pub names: Mutex<Vec<(Qpn, Rkey)>>,
}

impl InputHandler for Recorder {
    fn release(&self, _all: bool) {}
    fn input(&self, _now: Instant, input: Input<'_>) {
        if std::mem::take(&mut *self.panic_once.lock().unwrap()) {
            panic!("as the test wants it");
        }
        let told = match input {
            Input::Datagrams { run, size } | Input::Unsealed { run, size } => {
                for bytes in run.bytes.chunks(size) {
                    self.input(Instant::now(), Input::Datagram(stack::env::Datagram { bytes, ..run }));
                }
                return;
            }
            Input::Short(message, short) => {
                // As the packet that it stands for.
                let packet = short.packet(message.bytes);
                let mut bytes = vec![0; packet.header.len()];
                packet.header.emit(message.bytes.len(), &mut bytes);
                let bytes = [&bytes, message.bytes].concat();
                return self.input(
                    Instant::now(),
                    Input::Datagram(stack::env::Datagram { bytes: &bytes, ..message }),
                );
            }
            Input::Fragment(headers, bytes) => {
                let bytes = [headers.bytes, &bytes.to_vec()].concat();
                return self.input(
                    Instant::now(),
                    Input::Datagram(stack::env::Datagram { bytes: &bytes, ..headers }),
                );
            }
            Input::Datagram(datagram) => {
                if let Some(name) = *self.forward_to.lock().unwrap()
                    && !datagram.forwarded
                {
                    assert!(self.env.forward(name, &datagram));
                    return;
                }
                if Bth::peek_dest_qp(datagram.bytes) == Some(Qpn::GSI) {
                    self.messages.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(*self.thinks.lock().unwrap());
                    // A test that fails as it holds the lock lets go, too.
                    drop(self.held.lock());
                }
                for &(qpn, key) in self.names.lock().unwrap().iter() {
                    self.env.local().inspect(|reach| reach.named(qpn, key, ALL));
                }
                let thread = std::thread::current().name().unwrap_or("").to_owned();
                let stack::env::Datagram { source, dest, interface, forwarded, bytes, .. } = datagram;
                let [source, dest] = [source, dest].map(|end| end.udp().expect("it came over UDP"));
                Told::Datagram { source, dest, interface, forwarded, bytes: bytes.to_vec(), thread }
            }
            Input::Resolved { ticket, result } => Told::Resolved { ticket, result },
            Input::Unreachable { dest, source, errno, sent } => {
                let [dest, source] = [dest, source].map(|end| end.ip().expect("it left over UDP"));
                Told::Unreachable { dest, source, errno, sent: sent.to_vec() }
            }
            Input::Interfaces(interfaces) => Told::Interfaces(interfaces.to_vec()),
            Input::Gone(name, watch) => Told::Gone(name, watch),
            // None of these tests is on a host of a subnet.
            Input::Mad { .. } => return,
            Input::Frame { interface, outgoing, bytes } => {
                Told::Frame { interface, outgoing, bytes: bytes.to_vec() }
            }
        };
        self.tell(told);
    }
    fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap()
    }
    fn expire(&self, now: Instant) {
        let mut deadline = self.deadline.lock().unwrap();
        if deadline.is_some_and(|at| at <= now) {
            *deadline = None;
            drop(deadline);
            self.tell(Told::Expired(Instant::now()));
        }
    }
}

impl Recorder {
    fn tell(&self, told: Told) {
        let is_packet = matches!(told, Told::Datagram { .. });
        // Asked for first: the thread that sets it has taken the packets before.
        let counter = if is_packet { self.counter.lock().unwrap().clone() } else { None };
        self.told.lock().unwrap().push_back(told);
        self.news.notify_all();
        counter.iter().for_each(Signal::signal);
    }

    /// The first thing told that `pick` wants, taken out; waits for it. `None` after the timeout.
    pub(crate) fn find<T>(&self, pick: impl FnMut(&Told) -> Option<T>) -> Option<T> {
        self.find_within(TIMEOUT, pick)
    }

    pub(crate) fn find_within<T>(
        &self,
        timeout: Duration,
        mut pick: impl FnMut(&Told) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + timeout;
        let mut told = self.told.lock().unwrap();
        loop {
            let found =
                told.iter().enumerate().find_map(|(index, told)| pick(told).map(|found| (index, found)));
            if let Some((index, found)) = found {
                told.remove(index);
                return Some(found);
            }
            let left = end.checked_duration_since(Instant::now())?;
            told = self.news.wait_timeout(told, left).unwrap().0;
        }
    }

    /// The next packet: sender, receiver, whether forwarded, bytes.
    pub(crate) fn packet(&self) -> Option<Packet> {
        self.find(packet)
    }

    pub(crate) fn resolved(&self, ticket: u64) -> Option<Result<(), Errno>> {
        self.find(|told| match told {
            Told::Resolved { ticket: found, result } if *found == ticket => Some(*result),
            _ => None,
        })
    }
}

/// Waits for an event and takes it, as `capi::waiting` does.
pub(crate) fn wait(host: &Recording, counter: &Counter) {
    let mut next = host.wait_as_driver(counter);
    while let Wait::InDriverSlot(waits) = next {
        // SAFETY: no thread of a test is cancelled.
        next = match unsafe { eventfd::wait_as_driver(waits) } {
            Woken::Rung => host.sit_on(counter),
            Woken::BySignal => panic!("nobody sends a signal"),
            Woken::Closed => {
                host.release_driver(Some(counter), true);
                Wait::AtCounter
            }
        };
    }
    if next == Wait::Over {
        return;
    }
    // SAFETY: as above.
    assert!(unsafe { eventfd::wait(counter.fd()) });
    counter.taken();
}

/// Waits until a thread of this process sleeps, or has ended.
pub(crate) fn until_it_sleeps(thread: u32) {
    let end = Instant::now() + TIMEOUT;
    // proc_pid_stat(5): the state stands behind the name.
    let runs = |stat: String| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
    while std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).is_ok_and(runs) {
        assert!(Instant::now() < end, "it does not sleep");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A packet that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub source: SocketAddr,
    pub dest: SocketAddr,
    pub interface: u32,
    pub forwarded: bool,
    pub bytes: Vec<u8>,
    pub thread: String,
}

pub(crate) fn packet(told: &Told) -> Option<Packet> {
    let Told::Datagram { source, dest, interface, forwarded, bytes, thread } = told.clone() else {
        return None;
    };
    Some(Packet { source, dest, interface, forwarded, bytes, thread })
}

impl Packet {
    /// Checks the ICRC; the packet sequence number.
    pub(crate) fn psn(&self) -> u32 {
        let flow = Flow { source: self.source, dest: self.dest };
        let bytes = icrc::open(&flow, &self.bytes).expect("a valid ICRC");
        wire::roce::Packet::parse(bytes).unwrap().header.bth.psn.get()
    }
}

pub(crate) type Recording = Arc<Host<Recorder>>;

pub(crate) fn start() -> Recording {
    start_with(Config { same_host: false, ..Config::default() })
}

pub(crate) fn start_with(config: Config) -> Recording {
    let make = |env| {
        Arc::new(Recorder {
            env,
            told: Mutex::default(),
            news: Condvar::new(),
            deadline: Mutex::default(),
            panic_once: Mutex::default(),
            forward_to: Mutex::default(),
            thinks: Mutex::default(),
            messages: AtomicU64::default(),
            held: Mutex::default(),
            counter: Mutex::default(),
            names: Mutex::default(),
        })
    };
    Host::start(make, config).unwrap()
}

pub(crate) fn counter(host: &Recording, name: &str) -> u64 {
    host.env().counters().snapshot().into_iter().find(|(known, _)| *known == name).unwrap().1
}

/// What a counter has come to, at last: what is handed over may be taken before it is counted.
pub(crate) fn settled(host: &Recording, name: &str, wanted: u64) -> u64 {
    let end = Instant::now() + TIMEOUT;
    while counter(host, name) < wanted && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    counter(host, name)
}

pub(crate) fn path(address: IpAddr) -> Path {
    Path {
        source: address.into(),
        dest: address.into(),
        interface: LO,
        dest_qpn: Qpn::new(0x123_456),
        traffic_class: 0,
        hop_limit: 0,
        source_port_epoch: 0,
        no_multicast_loop: false,
    }
}

pub(crate) fn route_to(dest: IpAddr, interface: u32, local: bool) -> Route {
    Route { source: dest, dest, interface, next_hop: dest, local, mtu: 1500 }
}

/// Packets of these payload lengths, numbered from `first_psn`, each filled with its number.
pub(crate) fn batch(first_psn: u32, payloads: &[usize]) -> TxBatch {
    let mut batch = TxBatch::new();
    for (psn, &len) in (first_psn..).zip(payloads) {
        let bth = Bth { dest_qp: Qpn::new(0x123_456), psn: Psn::new(psn), ..Bth::default() };
        let header = Header { bth, service: Service::Rc, op: Op::Send(SendAt::Middle) };
        let fill = |bytes: &mut [u8]| {
            bytes.fill(psn as u8);
            Ok(())
        };
        batch.push(&header, len, fill).unwrap();
    }
    batch
}

/// A packet to QP1.
pub(crate) fn message() -> TxBatch {
    let mut batch = TxBatch::new();
    let bth = Bth { dest_qp: Qpn::GSI, ..Bth::default() };
    let op = Op::Send(SendAt::Middle);
    let header = Header { bth, service: Service::Rc, op };
    batch.push(&header, 64, |_| Ok(())).unwrap();
    batch
}

/// Sends until so many packets are under way, more than a ring holds.
pub(crate) fn overfill(sender: &Recording, batches: u32) {
    let mut full = TxBatch::new();
    for n in 0..batches {
        full.clear();
        full = batch(n * 15, &[4096; 15]);
        sender.env().send(&path(V4), &mut full);
    }
}

/// Keeps an engine busy as long as the guard lives, with a message of a connection manager that
/// another one sends.
pub(crate) fn keeps_busy<'a>(host: &'a Recording, sender: &Recording) -> MutexGuard<'a, ()> {
    host.env().attach(LO).unwrap();
    let send = || sender.env().send(&Path { dest_qpn: Qpn::GSI, ..path(V4) }, &mut message());
    busy_with(host, send)
}

/// Keeps an engine busy as long as the guard lives, with the message that `send` lets come.
pub(crate) fn busy_with(host: &Recording, send: impl FnOnce()) -> MutexGuard<'_, ()> {
    let busy = host.handler().held.lock().unwrap();
    send();
    let end = Instant::now() + TIMEOUT;
    while host.handler().messages.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < end, "the message does not come");
        std::thread::yield_now();
    }
    busy
}

/// The block of the queue pair that [`path`] leads to.
pub(crate) const BLOCK: Name = Name::Block(0x123);

/// A process that sends by rings, and one that bears the block.
pub(crate) fn pair() -> (Recording, Recording, Box<dyn Claim>) {
    let (sender, reader) = (start_with(Config::default()), start_with(Config::default()));
    let claim = reader.env().claim(BLOCK).unwrap();
    (sender, reader, claim)
}

/// The number of a packet or a piece that came by a ring: what the first byte after its BTH says.
pub(crate) fn number(packet: &Packet) -> u8 {
    packet.bytes[12]
}
