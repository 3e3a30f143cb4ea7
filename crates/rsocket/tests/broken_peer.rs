//! Peers that break the protocol, between simulated hosts: each is reset on its own socket. No
//! memory but that of its connection is reached, and other connections go on.

mod support;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nic::Errno;
use nic::rdma_cm::{ConnParam, EventKind};
use rsocket::conn_data::{ConnData, Sge};
use rsocket::message::Message;
use rsocket::verbs::{Mark, Payload, Place, Verbs};
use rsocket::{Owner, Phase, QueuePair, Settings, Socket, Stream};
use sim::{Faults, Sim, SimEnv};
use stack::{Config, EventChannel, Id, Node};
use wire::mad::PortSpace;

use support::Host;

const PORT: u16 = 7471;
const LONG: Duration = Duration::from_secs(300);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), PORT);

/// A client that has a queue pair and no protocol.
struct Peer {
    id: Arc<Id>,
    channel: Arc<EventChannel>,
    qp: Option<QueuePair>,
}

impl Peer {
    fn write(&mut self, to: Place, bytes: &[u8], message: Option<u32>) {
        let mark = Mark { control: false, bytes: 0 };
        let qp = self.qp.as_mut().expect("connected");
        qp.write(mark, to, Payload::Inline(bytes), message).expect("room for a request");
    }

    fn say(&mut self, word: u32) {
        self.write(Place { addr: 0, key: 0 }, &[], Some(word));
    }
}

/// A server with a connection to an rsocket, and the hosts of both.
struct World {
    sim: Sim,
    client: Arc<Node<SimEnv>>,
    server: Arc<Node<SimEnv>>,
    owners: [Arc<dyn Owner>; 2],
    listener: Socket<SimEnv>,
    honest: [Socket<SimEnv>; 2],
}

impl World {
    fn new() -> Self {
        let mut sim = Sim::new(1, Faults::none());
        let [client, server] = [1, 2].map(|number| {
            let host = sim.add_host(&[IpAddr::from([10, 0, 0, number])], 1500);
            let process = sim.start(host, &Config::default());
            sim.node(process).expect("it has just begun")
        });
        let owners = [&client, &server].map(|node| Arc::new(Host(node.clone())) as Arc<dyn Owner>);
        let mut listener = Socket::new(&server, owners[1].clone(), Settings::default());
        listener.bind(SERVER).expect("the port is free");
        listener.listen(4).expect("it is bound");
        let mut ours = Socket::new(&client, owners[0].clone(), Settings::default());
        ours.connect(SERVER).expect("there is a route");
        let mut theirs = None;
        while [Some(&ours), theirs.as_ref()].map(|end| end.map(Socket::phase)) != [Some(Phase::Connected); 2]
        {
            assert!(sim.step(LONG), "nothing more happens");
            if let Some(request) = listener.next_request() {
                let accepted = Socket::accept(&server, owners[1].clone(), Settings::default(), request);
                theirs = Some(accepted.expect("an rsocket asks"));
            }
            ours.step();
            theirs.iter_mut().for_each(Socket::step);
        }
        let honest = [ours, theirs.expect("connected")];
        Self { sim, client, server, owners, listener, honest }
    }

    fn step(&mut self, victim: Option<&mut Socket<SimEnv>>) -> bool {
        let more = self.sim.step(LONG);
        self.honest.iter_mut().chain(victim).for_each(Socket::step);
        more
    }

    /// A peer asks to be connected with its connection data as `change` has made it: the peer, the
    /// server's socket and what that has told, or the error of accepting it.
    fn ask(&mut self, change: impl Fn(&mut [u8; 40])) -> Result<(Peer, Socket<SimEnv>, ConnData), Errno> {
        let settings = Settings::default().in_range();
        let channel = EventChannel::new(self.owners[0].signal());
        let id = self.client.create_id(&channel, PortSpace::Tcp);
        let mut peer = Peer { id, channel, qp: None };
        self.client.resolve_addr(&peer.id, None, SERVER, LONG).expect("there is a route");
        let (mut victim, mut refused) = (None, None);
        loop {
            if let Some(request) = self.listener.next_request() {
                match Socket::accept(&self.server, self.owners[1].clone(), settings, request) {
                    Ok(socket) => victim = Some(socket),
                    Err(error) => refused = Some(error),
                }
            }
            while let Some(event) = self.client.next_event(&peer.channel) {
                match event.kind {
                    EventKind::AddrResolved => self.client.resolve_route(&peer.id, LONG).expect("a route"),
                    EventKind::RouteResolved => {
                        let device = peer.id.lock().device.clone().expect("a device");
                        self.client.attach(&device).expect("a device of this host");
                        let mut qp = QueuePair::new(&self.owners[0], &device, &settings).expect("room");
                        self.client.set_qp(&peer.id, qp.qp()).expect("it has none");
                        qp.post_receives(&settings).expect("room for all");
                        let mut data = Stream::conn_data(&settings, &qp).encode();
                        change(&mut data);
                        let param = ConnParam {
                            flow_control: true,
                            retry_count: 7,
                            rnr_retry_count: 7,
                            ..ConnParam::default()
                        };
                        self.client.connect(&peer.id, &param, &data).expect("it is resolved");
                        peer.qp = Some(qp);
                    }
                    EventKind::Established => {
                        let told = ConnData::decode(&event.private_data).expect("an rsocket's");
                        let mut victim = victim.expect("accepted");
                        while victim.phase() != Phase::Connected {
                            assert!(self.step(Some(&mut victim)), "nothing more happens");
                        }
                        return Ok((peer, victim, told));
                    }
                    EventKind::Rejected => return Err(refused.expect("the server has refused it")),
                    kind => panic!("{kind:?}"),
                }
            }
            assert!(self.step(victim.as_mut()), "nothing more happens");
        }
    }

    /// What the program of the victim reads until there is an error or the end: bytes, and the
    /// error. A write of the program is part of it where `writes` is true.
    fn until_error(&mut self, victim: &mut Socket<SimEnv>, writes: bool) -> (Vec<u8>, Errno) {
        let mut all = Vec::new();
        loop {
            let (stream, qp) = victim.stream().expect("connected");
            let (mut bytes, told) = ([0; 100], stream.readiness());
            match stream.read(qp, &mut [&mut bytes], false) {
                Ok(Some(0)) => panic!("an end without an error behind {all:?}"),
                Ok(Some(n)) => all.extend_from_slice(&bytes[..n]),
                Ok(None) if writes => _ = stream.write(qp, &[b"an answer"], false).expect("no error"),
                Ok(None) => {}
                Err(error) => {
                    assert!(told.error && told.readable && told.hup, "poll(2) says {told:?}");
                    assert_eq!(stream.read(qp, &mut [&mut bytes], false), Ok(Some(0)), "once");
                    return (all, error);
                }
            }
            stream.progress(qp);
            let more = self.step(Some(&mut *victim));
            let is_over = victim.stream().is_none_or(|(stream, _)| stream.is_over());
            assert!(more || is_over, "the victim hears of nothing");
        }
    }

    /// The other connection of the same processes goes on, both ways.
    fn others_go_on(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let (stream, qp) = self.honest[from].stream().expect("connected");
            assert_eq!(stream.write(qp, &[b"still here"], false), Ok(10));
            let mut bytes = [0; 20];
            loop {
                let (stream, qp) = self.honest[to].stream().expect("connected");
                match stream.read(qp, &mut [&mut bytes], false).expect("no error") {
                    Some(n) => break assert_eq!(bytes[..n], *b"still here"),
                    None => assert!(self.step(None), "nothing comes"),
                }
            }
        }
    }
}

/// Puts a field into connection data.
fn put(data: &mut [u8; 40], at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn a_peer_whose_connection_data_is_wrong_is_refused_and_the_listener_goes_on() {
    let wrong: [fn(&mut [u8; 40]); 6] = [
        |data| data.fill(0),
        |data| data[0] = 2,
        |data| put(data, 20, &0_u32.to_be_bytes()),
        |data| put(data, 20, &1025_u32.to_be_bytes()),
        // A target list, and a ring, that end beyond the address space.
        |data| put(data, 8, &u64::MAX.to_be_bytes()),
        |data| put(data, 24, &u64::MAX.to_be_bytes()),
    ];
    let mut world = World::new();
    for change in wrong {
        assert_eq!(world.ask(change).map(drop), Err(Errno::EPROTO));
        world.others_go_on();
    }
    assert!(world.ask(|_| {}).is_ok());
}

#[test]
fn a_peer_that_says_too_much_is_reset_after_all_that_came_and_others_go_on() {
    let settings = Settings::default().in_range();
    let credits = settings.receive_queue as u16;
    let words = [
        Message::Data(settings.receive_buffer).encode(),
        Message::Credits(credits.wrapping_add(1)).encode(),
        Message::Credits(u16::MAX).encode(),
        Message::Mapping(0).encode(),
        // Messages that there are not.
        1 << 29,
        5 << 29,
        7 << 29 | 9,
    ];
    let mut world = World::new();
    for word in words {
        let (mut peer, mut victim, told) = world.ask(|_| {}).expect("its data is right");
        peer.write(
            Place { addr: told.ring.addr, key: told.ring.key },
            b"before",
            Some(Message::Data(6).encode()),
        );
        peer.say(word);
        peer.say(Message::Data(1).encode());
        assert_eq!(
            world.until_error(&mut victim, false),
            (b"before".to_vec(), Errno::ECONNRESET),
            "{word:#x}"
        );
        world.others_go_on();
    }
}

#[test]
fn a_peer_that_writes_beyond_what_its_connection_has_offered_changes_nothing_and_is_reset() {
    let mut world = World::new();
    let ring = |told: &ConnData| Place { addr: told.ring.addr, key: told.ring.key };
    let beyond: [fn(&ConnData) -> Place; 3] = [
        |told| Place { addr: told.ring.addr - 1, key: told.ring.key },
        // The peer is told of the ring's first half.
        |told| Place { addr: told.ring.addr + 2 * u64::from(told.ring.length) - 1, key: told.ring.key },
        |told| Place { addr: told.target_list.addr + 2 * 16 - 1, key: told.target_list.key },
    ];
    // The ring of another connection of the same process, by the key that it has there.
    let (_other, _socket, others) = world.ask(|_| {}).expect("its data is right");
    for place in beyond.map(Some).into_iter().chain([None]) {
        let (mut peer, mut victim, told) = world.ask(|_| {}).expect("its data is right");
        peer.write(ring(&told), b"before", Some(Message::Data(6).encode()));
        let to = place.map_or(ring(&others), |place| place(&told));
        peer.write(to, b"elsewhere", Some(Message::Data(9).encode()));
        assert_eq!(world.until_error(&mut victim, false), (b"before".to_vec(), Errno::ECONNRESET), "{to:?}");
        world.others_go_on();
    }
}

#[test]
fn a_peer_whose_target_list_leads_nowhere_is_reset_by_what_is_written_there() {
    let mut world = World::new();
    for target in [
        Sge { addr: u64::MAX - 3, key: u32::MAX, length: 8 },
        Sge { addr: 0, key: 0, length: 8 },
        Sge { addr: 1 << 40, key: 77, length: 8 },
    ] {
        // Pieces of the ring are so short that an answer goes by the list, too.
        let data = |data: &mut [u8; 40]| put(data, 36, &8_u32.to_be_bytes());
        let (mut peer, mut victim, told) = world.ask(data).expect("its data is right");
        // The first entry is told of by the connection data.
        let list = Place { addr: told.target_list.addr + 16, key: told.target_list.key };
        let credits = Settings::default().in_range().receive_queue as u16;
        peer.write(list, &target.memory(false), Some(Message::Credits(credits).encode()));
        assert_eq!(world.until_error(&mut victim, true), (vec![], Errno::ECONNRESET), "{target:?}");
        world.others_go_on();
    }
}
