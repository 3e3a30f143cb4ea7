//! Datagram rsockets on simulated hosts. Their UDP sockets are a list of messages.

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nic::Errno;
use rsocket::datagram::header::{Op, Service};
use rsocket::{Datagrams, Settings, Udp};
use sim::{Dice, Faults, Sim, SimEnv};
use stack::{Config, Node};
use wire::Qpn;

use support::Host;

const PORT: u16 = 7174;
const HOSTS: u8 = 3;
/// Longer than any resolving takes.
const LONG: Duration = Duration::from_secs(10);

/// Messages of UDP sockets: to, from, bytes.
type Mail = Arc<Mutex<Vec<(SocketAddr, SocketAddr, Vec<u8>)>>>;

struct Messages(SocketAddr, Mail);

impl Udp for Messages {
    fn send(&self, to: &SocketAddr, pieces: &[&[u8]]) -> Result<(), Errno> {
        self.1.lock().unwrap().push((*to, self.0, pieces.concat()));
        Ok(())
    }
}

struct Network {
    sim: Sim,
    mail: Mail,
    /// Whether addresses carry UDP.
    has_udp: bool,
    nodes: Vec<Arc<Node<SimEnv>>>,
    sockets: BTreeMap<SocketAddr, Datagrams<SimEnv>>,
}

fn address(number: u8) -> SocketAddr {
    (IpAddr::from([10, 0, 0, number]), PORT).into()
}

impl Network {
    fn new(seed: u64, faults: Faults, has_udp: bool) -> Self {
        let mut network = Self {
            sim: Sim::new(seed, faults),
            mail: Mail::default(),
            has_udp,
            nodes: Vec::new(),
            sockets: BTreeMap::new(),
        };
        for number in 1..=HOSTS {
            let host = network.sim.add_host(&[address(number).ip()], 4200);
            let process = network.sim.start(host, &Config::default());
            network.nodes.push(network.sim.node(process).expect("it has just begun"));
            network.open(number);
        }
        network
    }

    /// A socket on a host, in place of the one before.
    fn open(&mut self, number: u8) {
        let node = &self.nodes[usize::from(number) - 1];
        self.sockets.remove(&address(number));
        let udp = || Box::new(Messages(address(number), self.mail.clone())) as Box<dyn Udp>;
        let udp = self.has_udp.then(udp);
        let mut socket = Datagrams::new(node, Arc::new(Host(node.clone())), udp, Settings::default());
        match self.has_udp {
            true => socket.set_local(address(number)),
            false => socket.bind(address(number)).expect("the port is free"),
        }
        self.sockets.insert(address(number), socket);
    }

    /// Time goes on; a share of the messages of UDP is lost. False where nothing more happens.
    fn step(&mut self, dice: &mut Dice, lost_in_ten: u64) -> bool {
        let mail = std::mem::take(&mut *self.mail.lock().unwrap());
        let any = !mail.is_empty();
        for (to, from, bytes) in mail {
            if dice.below(10) >= lost_in_ten {
                self.sockets.get_mut(&to).expect("a host").input(from, &bytes);
            }
        }
        let more = self.sim.step(LONG);
        self.sockets.values_mut().for_each(Datagrams::step);
        any || more
    }

    /// What one socket has got.
    fn take(&mut self, number: u8) -> Option<(Vec<u8>, SocketAddr)> {
        let mut bytes = vec![0; 2048];
        let socket = self.sockets.get_mut(&address(number))?;
        let (one, rest) = bytes.split_at_mut(100);
        let received = socket.receive(&mut [one, rest], false).expect("no error")?;
        bytes.truncate(received.copied);
        assert_eq!(received.copied, received.len, "room for all");
        Some((bytes, received.from.expect("no end")))
    }
}

/// A datagram that tells its number, its sender, and each byte its place.
fn datagram(from: u8, number: u32, len: usize) -> Vec<u8> {
    let tail = (0..len).map(|at| (at as u32 * 31 + number) as u8);
    number.to_be_bytes().into_iter().chain([from]).chain(tail).collect()
}

/// Each host sends `most` datagrams to the others: how often each came, and messages of UDP. Where
/// there is UDP, so many of ten messages are lost.
fn run(seed: u64, faults: Faults, lost_in_ten: Option<u64>, most: u32) -> (BTreeMap<u32, u32>, usize) {
    let mut dice = Dice::new(seed);
    let mut network = Network::new(seed, faults, lost_in_ten.is_some());
    let (mut sent, mut came, mut by_udp) = (0, BTreeMap::new(), 0);
    loop {
        for from in 1..=HOSTS {
            let to = 1 + (from - 1 + 1 + dice.below(u64::from(HOSTS) - 1) as u8) % HOSTS;
            let bytes = datagram(from, sent, dice.below(2000) as usize);
            let socket = network.sockets.get_mut(&address(from)).expect("a host");
            if sent < most && socket.send(Some(address(to)), &[&bytes]).expect("a way").is_some() {
                sent += 1;
            }
        }
        let is_data = |mail: &&(SocketAddr, SocketAddr, Vec<u8>)| mail.2.len() > 16;
        by_udp += network.mail.lock().unwrap().iter().filter(is_data).count();
        let more = network.step(&mut dice, lost_in_ten.unwrap_or(0));
        for at in 1..=HOSTS {
            while let Some((bytes, sender)) = network.take(at) {
                let number = u32::from_be_bytes(*bytes.first_chunk().expect("a number"));
                assert_eq!(bytes, datagram(bytes[4], number, bytes.len() - 5), "seed {seed}");
                assert_eq!(sender, address(bytes[4]), "seed {seed}");
                *came.entry(number).or_default() += 1;
            }
        }
        if !more && sent == most {
            return (came, by_udp);
        }
    }
}

#[test]
fn all_datagrams_arrive_once_and_whole_and_only_the_first_go_by_udp() {
    let command = "cargo test -p verbena-rsocket --test datagrams once -- --nocapture";
    sim::each_seed_of(command, 10, |seed| {
        let (came, by_udp) = run(seed, Faults::none(), Some(0), 300);
        assert!(came.len() == 300 && came.values().all(|n| *n == 1), "seed {seed}: {} came", came.len());
        // Six ways, each asked for until the answer has come.
        assert!((6..60).contains(&by_udp), "seed {seed}: {by_udp} by UDP");
    });
}

#[test]
fn over_a_lossy_network_what_arrives_is_whole_and_its_sender_s() {
    let command = "cargo test -p verbena-rsocket --test datagrams lossy -- --nocapture";
    sim::each_seed_of(command, 10, |seed| {
        let (came, _) = run(seed, Faults::lossy(), Some(3), 300);
        assert!(came.len() > 100, "seed {seed}: {} came", came.len());
    });
}

#[test]
fn without_udp_the_connection_manager_finds_peers_and_all_datagrams_arrive_once() {
    let command = "cargo test -p verbena-rsocket --test datagrams without -- --nocapture";
    sim::each_seed_of(command, 10, |seed| {
        let (came, by_udp) = run(seed, Faults::none(), None, 300);
        assert!(came.len() == 300 && came.values().all(|n| *n == 1), "seed {seed}: {} came", came.len());
        assert_eq!(by_udp, 0, "seed {seed}");
        let (came, _) = run(seed, Faults::lossy(), None, 300);
        assert!(came.len() > 100, "seed {seed}: {} came", came.len());
    });
}

#[test]
fn a_peer_that_begins_anew_is_found_within_seconds() {
    for has_udp in [true, false] {
        let mut dice = Dice::new(1);
        let mut network = Network::new(1, Faults::none(), has_udp);
        let mut send = |network: &mut Network| {
            let socket = network.sockets.get_mut(&address(1)).expect("a host");
            // Without UDP there is no room until the peer is found.
            let sent = socket.send(Some(address(2)), &[b"hear me"]).expect("a way");
            assert!(sent == Some(7) || !has_udp);
            // First the message of UDP, if it was one, then its answer.
            for _ in 0..2 {
                network.step(&mut dice, 0);
                network.sim.run_for(Duration::from_millis(100));
                network.sockets.values_mut().for_each(Datagrams::step);
            }
            network.take(2).is_some()
        };
        assert!((0..5).any(|_| send(&mut network)) && send(&mut network));
        network.open(2);
        assert!((0..40).any(|_| send(&mut network)), "the new socket hears nothing");
    }
}

#[test]
fn without_udp_a_connected_socket_is_told_that_its_peer_has_no_socket() {
    let mut network = Network::new(1, Faults::none(), false);
    network.sockets.remove(&address(2));
    let mut dice = Dice::new(1);
    let connected =
        |network: &mut Network| network.sockets.get_mut(&address(1)).expect("a host").connect(address(2));
    connected(&mut network).expect("a way");
    let told = (0..100).find_map(|_| {
        let socket = network.sockets.get_mut(&address(1)).expect("a host");
        let sent = socket.send(None, &[b"lost"]);
        network.step(&mut dice, 0);
        sent.err()
    });
    assert_eq!(told, Some(Errno::ECONNREFUSED));
}

#[test]
fn a_peer_that_says_anything_is_counted_and_no_more_is_kept_than_may_be() {
    let mut dice = Dice::new(2);
    let mut network = Network::new(2, Faults::none(), true);
    let own = address(1);
    let mut refused = 0;
    for n in 0..10_000_u32 {
        // From any address, with any queue pair, cut and damaged.
        let from: SocketAddr = (IpAddr::from([10, 0, dice.below(40) as u8, 2]), n as u16 | 1).into();
        let op = if dice.below(4) == 0 { Op::Control } else { Op::Data };
        let service = Service { op, qpn: Qpn::new(dice.below(1 << 24) as u32), address: from.ip() };
        let mut bytes = [service.encode().as_slice(), &[7; 40][..]].concat();
        if dice.below(3) == 0 {
            let at = dice.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << dice.below(8);
            bytes.truncate(dice.below(60) as usize);
        }
        let socket = network.sockets.get_mut(&own).expect("a host");
        socket.input(from, &bytes);
        refused += socket.take_refused();
        network.mail.lock().unwrap().clear();
        if n % 100 == 0 {
            network.step(&mut dice, 0);
        }
    }
    assert!(refused > 9000, "{refused}");
    let kept = std::iter::from_fn(|| network.take(1)).count();
    assert!((1..=64).contains(&kept), "{kept}");
    // Whatever the others said, a peer gets through.
    let came = (0..200).find_map(|_| {
        let socket = network.sockets.get_mut(&address(2)).expect("a host");
        socket.send(Some(own), &[b"still here"]).expect("a way");
        network.step(&mut dice, 0);
        network.take(1)
    });
    assert_eq!(came, Some((b"still here".to_vec(), address(2))));
}
