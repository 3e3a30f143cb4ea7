//! A datagram socket on a simulated host: any messages to its UDP socket, and any calls.
//!
//! What parses comes back. Messages that the socket keeps are as many as may be, and it answers
//! each message once at most.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nic::{Buffer, Errno, Pd, Signal};
use rsocket::datagram::header::{self, Op, Service};
use rsocket::{Datagrams, How, Memory, Owner, Settings, Udp};
use sim::{Faults, Mark, Sim, SimEnv};
use stack::{Config, Env, Node};
use wire::Qpn;

use crate::Input;

const STEPS: u32 = 200;
const FIRST: u64 = 1 << 16;
const PORT: u16 = 7174;
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), PORT);

struct Host(Arc<Node<SimEnv>>);

impl Owner for Host {
    fn signal(&self) -> Box<dyn Signal> {
        Box::new(Mark::default())
    }
    fn memory(&self, pd: &Arc<Pd>, len: usize, access: u32) -> Result<Box<dyn Memory>, nic::Error> {
        Ok(Box::new(Buffer::new(pd, len, FIRST, access)?))
    }
    fn now(&self) -> Instant {
        self.0.env().now()
    }
}

/// Messages that the socket sends.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<Sent>>>);

/// Where to, and what.
type Sent = (SocketAddr, Vec<u8>);

impl Udp for Messages {
    fn send(&self, to: &SocketAddr, pieces: &[&[u8]]) -> Result<(), Errno> {
        self.0.lock().expect("no panic before").push((*to, pieces.concat()));
        Ok(())
    }
}

fn address(input: &mut Input<'_>) -> SocketAddr {
    let port = input.choose(&[PORT, 1, 0, 7175]);
    match input.below(4) {
        0 => (input.any::<[u8; 16]>(), port).into(),
        1 => (input.any::<[u8; 4]>(), port).into(),
        _ => ([10, 0, 0, input.below(6) as u8], port).into(),
    }
}

fn message(input: &mut Input<'_>, from: &SocketAddr) -> Vec<u8> {
    let rest = input.bytes(64);
    if input.one_in(4) {
        return rest.to_vec();
    }
    let op = if input.any() { Op::Data } else { Op::Control };
    let qpn = Qpn::new(input.below(1 << 24));
    let mut bytes = Service { op, qpn, address: from.ip() }.encode().as_slice().to_vec();
    if input.one_in(4) {
        let at = input.index(bytes.len());
        bytes[at] = input.u8();
    }
    if input.one_in(16) {
        bytes.resize(input.below(3000) as usize, 1);
    }
    bytes.extend_from_slice(rest);
    bytes
}

pub(super) fn run(input: &mut Input<'_>) {
    let bytes = input.bytes(40);
    if let Ok((from, len)) = header::decode(bytes) {
        assert_eq!(header::encode(&from).as_slice(), &bytes[..len], "what parses comes back");
    }
    let mut sim = Sim::new(5, Faults::default());
    let host = sim.add_host(&[HERE.ip()], 4200);
    sim.add_host(&[IpAddr::from([10, 0, 0, 2])], 4200);
    let process = sim.start(host, &Config::default());
    let node = sim.node(process).expect("it was started just now");
    let sent = Messages::default();
    let settings = Settings { receive_buffer: 1 << 14, ..Settings::default() };
    let mut socket =
        Datagrams::new(&node, Arc::new(Host(node.clone())), Some(Box::new(sent.clone())), settings);
    socket.set_local(HERE);
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        sent.0.lock().expect("no panic before").clear();
        step(input, &mut sim, &mut socket);
        assert!(sent.0.lock().expect("no panic before").len() <= 1, "more than one answer");
    }
    let mut room = [0; 64];
    let left = std::iter::from_fn(|| {
        // An error that waits is told first.
        socket.take_error();
        let received = socket.receive(&mut [&mut room], false).expect("no error");
        received.filter(|received| received.from.is_some())
    });
    // By UDP, and by the queue pair.
    assert!(left.count() <= 16, "more is kept than may be");
}

fn step(input: &mut Input<'_>, sim: &mut Sim, socket: &mut Datagrams<SimEnv>) {
    match input.below(8) {
        0..=3 => {
            let from = address(input);
            socket.input(from, &message(input, &from));
        }
        4 => {
            let (to, bytes) = (address(input), vec![3; input.below(2100) as usize]);
            let sent = socket.send(input.any::<bool>().then_some(to), &[&bytes]);
            assert!(bytes.len() <= 2032 || !matches!(sent, Ok(Some(_))), "a datagram that no peer takes");
        }
        5 => {
            let mut room = [0; 100];
            if let Ok(Some(received)) = socket.receive(&mut [&mut room], input.any()) {
                assert!(received.copied <= received.len.min(100));
            }
        }
        6 => {
            sim.run_for(Duration::from_millis(300));
            socket.step();
        }
        _ => match input.below(8) {
            0 => _ = socket.connect(address(input)),
            1 => _ = socket.shutdown(input.choose(&[How::Read, How::Write])),
            2 => socket.fail(Errno::ECONNREFUSED),
            _ => _ = (socket.readiness(), socket.is_flushed(), socket.take_refused()),
        },
    }
}
