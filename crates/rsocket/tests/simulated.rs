//! Two rsockets on simulated hosts, over a network that loses, repeats and reorders packets, and
//! over streams of iWARP devices.

mod support;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nic::Errno;
use rsocket::{How, Owner, Phase, Settings, Socket};
use sim::{Dice, Faults, HostId, ProcessId, Sim, SimEnv};
use stack::{Config, devices};

use support::Host;

const PORT: u16 = 7471;
/// The longest that a connection of these sizes takes, on this network.
const LONG: Duration = Duration::from_secs(300);

/// One end, which writes bytes and reads the other's.
struct End {
    socket: Socket<SimEnv>,
    number: usize,
    written: usize,
    read: usize,
    most: [usize; 2],
    ended: bool,
}

fn byte(end: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ end) as u8
}

impl End {
    fn new(socket: Socket<SimEnv>, number: usize, most: [usize; 2]) -> Self {
        Self { socket, number, written: 0, read: 0, most, ended: false }
    }

    fn go_on(&mut self, dice: &mut Dice) -> Result<(), Errno> {
        self.socket.step();
        let left = self.most[self.number] - self.written;
        let Some((stream, qp)) = self.socket.stream() else { return Ok(()) };
        if left > 0 {
            let n = left.min(1 + dice.below(20_000) as usize);
            let bytes: Vec<u8> = (0..n).map(|i| byte(self.number, self.written + i)).collect();
            self.written += stream.write(qp, &[&bytes], false)?;
            if self.written == self.most[self.number] {
                stream.shutdown(How::Write);
            }
        }
        self.read(1 + dice.below(20_000) as usize)
    }

    fn read(&mut self, most: usize) -> Result<(), Errno> {
        let Some((stream, qp)) = self.socket.stream() else { return Ok(()) };
        let mut bytes = vec![0; most];
        match stream.read(qp, &mut [&mut bytes], false)? {
            Some(0) => self.ended = true,
            Some(n) => {
                let right = |(i, found): (usize, &u8)| *found == byte(1 - self.number, self.read + i);
                assert!(bytes[..n].iter().enumerate().all(right), "behind {}", self.read);
                self.read += n;
            }
            None => {}
        }
        stream.progress(qp);
        Ok(())
    }

    /// Bytes that have surely arrived, where a request that has completed says so.
    fn arrived(&mut self) -> usize {
        let written = self.written;
        self.socket.stream().map_or(0, |(stream, _)| written - stream.unsent_bytes() as usize)
    }
}

/// Two hosts, and the ends of a connection between them.
struct Network {
    sim: Sim,
    hosts: [HostId; 2],
    processes: [ProcessId; 2],
    ends: [End; 2],
    dice: Dice,
}

impl Network {
    fn new(seed: u64, config: &Config, faults: Faults, most: Option<[usize; 2]>) -> Self {
        let mut dice = Dice::new(seed);
        let mut sim = Sim::new(seed, faults);
        let address = |number: u8| IpAddr::from([10, 0, 0, number]);
        let hosts = [1, 2].map(|number| sim.add_host(&[address(number)], 1500));
        let processes = hosts.map(|host| sim.start(host, config));
        let [here, there] = processes.map(|process| sim.node(process).expect("it has just begun"));
        let [client, server] = [&here, &there].map(|node| Arc::new(Host(node.clone())) as Arc<dyn Owner>);
        let settings = Settings {
            send_buffer: 4096 + dice.below(60_000) as u32,
            receive_buffer: 4096 + dice.below(60_000) as u32,
            send_queue: 16 + dice.below(50) as u32,
            receive_queue: 16 + dice.below(50) as u32,
            ..Settings::default()
        };
        let mut listener = Socket::new(&there, server.clone(), settings);
        listener.bind((address(2), PORT).into()).expect("the port is free");
        listener.listen(4).expect("it is bound");
        let mut ours = Socket::new(&here, client, Settings::default());
        ours.connect((address(2), PORT).into()).expect("there is a route");
        let mut theirs = None;
        while [Some(&ours), theirs.as_ref()].map(|end| end.map(Socket::phase)) != [Some(Phase::Connected); 2]
        {
            assert!(sim.step(LONG), "seed {seed}: nothing more happens: {ours:?}, {theirs:?}");
            if let Some(request) = listener.next_request() {
                let accepted = Socket::accept(&there, server.clone(), settings, request);
                theirs = Some(accepted.expect("room for one"));
            }
            ours.step();
            theirs.iter_mut().for_each(Socket::step);
            assert_ne!(ours.phase(), Phase::Failed, "seed {seed}: {:?}", ours.take_error());
        }
        let most = most.unwrap_or_else(|| [(); 2].map(|()| dice.below(200_000) as usize + 1));
        let ends = [End::new(ours, 0, most), End::new(theirs.expect("connected"), 1, most)];
        Self { sim, hosts, processes, ends, dice }
    }
}

/// Both ends write and read, until both have ended well.
fn run(seed: u64, config: &Config, faults: Faults) {
    let Network { mut sim, mut ends, mut dice, .. } = Network::new(seed, config, faults, None);
    while !ends.iter().all(|end| end.ended) {
        assert!(sim.step(LONG), "seed {seed}: nothing more happens: {:?}", ends[0].socket);
        for end in &mut ends {
            end.go_on(&mut dice).expect("no error");
            assert!(!end.ended || end.read == end.most[1 - end.number], "the end came before all bytes");
        }
    }
}

/// How a connection ends that no end has closed.
#[derive(Clone, Copy)]
enum Breaks {
    /// A process dies.
    Kill,
    /// The network carries nothing any more.
    Cut,
    /// The stream under an iWARP connection is reset.
    Reset,
}

/// Both ends write and read without end, until the connection breaks. Each that lives reads what
/// had arrived, the first bytes of what was written, and is told of one error.
fn break_off(seed: u64, config: &Config, faults: Faults, breaks: Breaks) {
    let mut network = Network::new(seed, config, faults, Some([usize::MAX; 2]));
    for _ in 0..network.dice.below(2000) {
        assert!(network.sim.step(LONG), "seed {seed}: nothing more happens");
        network.ends.iter_mut().for_each(|end| end.go_on(&mut network.dice).expect("no error"));
    }
    // What iWARP has sent may still be under way.
    let sure = network.ends.each_mut().map(|end| if config.devices.is_some() { 0 } else { end.arrived() });
    let Network { mut sim, hosts: [one, other], processes, mut ends, mut dice } = network;
    let living = match breaks {
        Breaks::Kill => {
            sim.kill(processes[1]);
            &mut ends[..1]
        }
        Breaks::Cut => {
            sim.partition(one, other, 10 * LONG);
            sim.partition(other, one, 10 * LONG);
            &mut ends[..]
        }
        Breaks::Reset => {
            assert_eq!(sim.reset_streams(processes[0], processes[1]), 1);
            &mut ends[..]
        }
    };
    // A stream that waits for its peer alone hears of nothing else.
    for (stream, qp) in living.iter_mut().filter_map(|end| end.socket.stream()) {
        stream.keep_alive(qp);
    }
    let mut errors = [None; 2];
    while errors.iter().take(living.len()).any(Option::is_none) {
        assert!(sim.step(LONG), "seed {seed}: the end is not noticed: {errors:?}");
        for (end, error) in living.iter_mut().zip(&mut errors).filter(|(_, error)| error.is_none()) {
            *error = end.go_on(&mut dice).err();
        }
    }
    for (end, error) in living.iter_mut().zip(errors.into_iter().flatten()) {
        assert!([Errno::ECONNRESET, Errno::ETIMEDOUT].contains(&error), "seed {seed}: {error:?}");
        while !end.ended {
            end.read(20_000).expect("an error is told once");
        }
        assert!(end.read >= sure[1 - end.number], "seed {seed}: {} of {sure:?} bytes", end.read);
    }
}

fn iwarp() -> Config {
    let devices = devices::parse("siw_eth0=iwarp:eth0").expect("an iWARP device");
    Config { devices: Some(devices), ..Config::default() }
}

#[test]
fn streams_over_a_lossy_network_arrive_in_order_once_and_before_the_end() {
    let command = "cargo test -p verbena-rsocket --test simulated lossy -- --nocapture";
    sim::each_seed_of(command, 20, |seed| run(seed, &Config::default(), Faults::lossy()));
}

#[test]
fn streams_over_iwarp_arrive_in_order_once_and_before_the_end() {
    let command = "cargo test -p verbena-rsocket --test simulated iwarp -- --nocapture";
    sim::each_seed_of(command, 20, |seed| run(seed, &iwarp(), Faults::none()));
}

#[test]
fn where_a_peer_is_killed_or_the_network_cut_what_arrived_comes_before_one_error() {
    let command = "cargo test -p verbena-rsocket --test simulated killed -- --nocapture";
    sim::each_seed_of(command, 20, |seed| {
        let breaks = [Breaks::Kill, Breaks::Cut][seed as usize % 2];
        break_off(seed, &Config::default(), Faults::lossy(), breaks);
    });
}

#[test]
fn where_an_iwarp_stream_breaks_what_arrived_comes_before_one_error() {
    let command = "cargo test -p verbena-rsocket --test simulated breaks -- --nocapture";
    sim::each_seed_of(command, 20, |seed| {
        break_off(seed, &iwarp(), Faults::none(), [Breaks::Kill, Breaks::Reset][seed as usize % 2]);
    });
}
