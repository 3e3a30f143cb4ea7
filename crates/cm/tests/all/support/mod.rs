//! Connection managers on virtual time, joined by a network that a test decides about packet by
//! packet. Every MAD goes over the wire as bytes.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cm::ib::{Cm, Config, Origin, Output};
use cm::{Accept, ConnId, Connect, Event, Parameters, PathRecord, PortSpace, Service, TransportService};
use wire::mad::{Mad, Message, REP_DATA, REQ_DATA};
use wire::{Address, CommId, Gid, Guid, LidAddress, Mtu, Psn, Qpn, ServiceId};

/// The service that is asked for, as messages name it.
pub(crate) const SERVICE: ServiceId = ServiceId(0x0106_1c06);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const DELAY: Duration = Duration::from_micros(50);

/// Splitmix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub(crate) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
}

/// One process.
pub(crate) struct Host {
    pub cm: Cm,
    pub gid: Gid,
    /// Where packets to it go, where that is no IP address.
    pub lid: Option<LidAddress>,
    pub guid: Guid,
    pub block: u32,
    /// Listens: REQs to the address come here.
    pub listens: bool,
    /// Accepts what comes and confirms replies by itself.
    pub willing: bool,
    pub events: Vec<(ConnId, Event)>,
    /// Communication ids of the peers that asked for connections.
    pub askers: BTreeMap<ConnId, CommId>,
    pub released: Vec<(ConnId, Qpn)>,
    pub next_qpn: u32,
}

impl Host {
    pub(crate) fn address(&self) -> Address {
        self.lid.map_or_else(|| self.gid.ip().into(), Address::from)
    }
}

/// A MAD that a host sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub at: Instant,
    pub from: usize,
    pub to: Gid,
    pub mad: Mad,
    pub attempt: u32,
}

struct Flight {
    from: Origin,
    bytes: [u8; 256],
}

/// Delays after which copies of a MAD arrive; none: it is lost.
pub(crate) type Network = Box<dyn FnMut(&Sent) -> Vec<Duration>>;

pub(crate) struct World {
    pub hosts: Vec<Host>,
    pub start: Instant,
    pub now: Instant,
    pub sent: Vec<Sent>,
    pub network: Network,
    flights: BTreeMap<(Instant, u64), Flight>,
    flown: u64,
}

/// The service that is asked for, as the rest of the house names it.
pub(crate) fn service() -> Service {
    Service { space: PortSpace::Tcp, port: 0x1c06 }
}

pub(crate) fn gid(last: u8) -> Gid {
    IpAddr::from([10, 77, 0, last]).into()
}

impl World {
    /// Hosts with the last byte of their address; those with the same share address and GUID. All
    /// listen and are willing.
    pub(crate) fn new(addresses: &[u8]) -> Self {
        Self::with(addresses, |config| config)
    }

    pub(crate) fn with(addresses: &[u8], change: impl Fn(Config) -> Config) -> Self {
        #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
        let start = Instant::now();
        let host = |(i, &last): (usize, &u8)| {
            let guid = Guid(0x5054_0012_3477_0000 + u64::from(last));
            let block = i as u32 + 1;
            let mut rng = Rng(u64::from(block));
            let comm_ids = move || CommId(block << 20 | (rng.next() & 0xf_ffff) as u32);
            let mut rng = Rng(!u64::from(block));
            let transaction_ids = move || rng.next();
            Host {
                cm: Cm::new(change(Config::new(guid)), comm_ids, transaction_ids),
                gid: gid(last),
                lid: None,
                guid,
                block,
                listens: true,
                willing: true,
                events: Vec::new(),
                askers: BTreeMap::new(),
                released: Vec::new(),
                next_qpn: 0x1_0000 * block,
            }
        };
        Self {
            hosts: addresses.iter().enumerate().map(host).collect(),
            start,
            now: start,
            sent: Vec::new(),
            network: Box::new(|_| vec![DELAY]),
            flights: BTreeMap::new(),
            flown: 0,
        }
    }

    /// Loses the MADs `lost` says.
    pub(crate) fn lose(&mut self, mut lost: impl FnMut(&Sent) -> bool + 'static) {
        self.network = Box::new(move |sent| if lost(sent) { vec![] } else { vec![DELAY] });
    }

    pub(crate) fn heal(&mut self) {
        self.network = Box::new(|_| vec![DELAY]);
    }

    pub(crate) fn connect_params(&mut self, from: usize, to: usize) -> Connect {
        let path = PathRecord::new(self.hosts[from].gid, self.hosts[to].gid, 7, Mtu::M1024);
        let lids = self.hosts[from].lid.zip(self.hosts[to].lid).map(<[_; 2]>::from);
        let ips = lids.map(|_| [path.local_ip(), path.remote_ip()]);
        let path = PathRecord { lids, ips, ..path };
        let host = &mut self.hosts[from];
        host.next_qpn += 1;
        Connect {
            service: service(),
            source_port: 0xc983,
            path,
            transport_service: TransportService::Rc,
            parameters: Parameters {
                qpn: Qpn::new(host.next_qpn),
                starting_psn: Psn::new(0x4e_b0ef),
                responder_resources: 4,
                initiator_depth: 3,
                retry_count: 6,
                rnr_retry_count: 5,
                ..Parameters::default()
            },
            private_data: vec![0x11; REQ_DATA],
        }
    }

    /// Starts a connection and lets its REQ leave.
    pub(crate) fn connect(&mut self, from: usize, to: usize) -> ConnId {
        let connect = self.connect_params(from, to);
        let id = self.hosts[from].cm.connect(self.now, &connect).expect("room for a connection");
        self.pump();
        id
    }

    /// A connection from host 0 to host 1, established on both.
    pub(crate) fn connected(&mut self) -> (ConnId, ConnId) {
        let active = self.connect(0, 1);
        self.run_for(10 * MS);
        let passive = self.request(1);
        assert!(self.saw(1, passive, |e| *e == Event::Established), "{:?}", self.hosts[1].events);
        (active, passive)
    }

    pub(crate) fn accept_params(&mut self, host: usize) -> Accept {
        let host = &mut self.hosts[host];
        host.next_qpn += 1;
        Accept {
            parameters: Parameters {
                qpn: Qpn::new(host.next_qpn),
                starting_psn: Psn::new(0xbd_5bc6),
                responder_resources: 2,
                initiator_depth: 9,
                rnr_retry_count: 7,
                ..Parameters::default()
            },
            private_data: vec![0x22; REP_DATA],
        }
    }

    /// The connection of the last request `host` has seen.
    pub(crate) fn request(&self, host: usize) -> ConnId {
        let requests = self.hosts[host].events.iter().rev();
        requests
            .filter(|(_, e)| matches!(e, Event::Request(_) | Event::SidrRequest(_)))
            .map(|&(id, _)| id)
            .next()
            .expect("a request")
    }

    pub(crate) fn saw(&self, host: usize, id: ConnId, what: impl Fn(&Event) -> bool) -> bool {
        self.count(host, id, what) > 0
    }

    pub(crate) fn count(&self, host: usize, id: ConnId, what: impl Fn(&Event) -> bool) -> usize {
        self.hosts[host].events.iter().filter(|(of, e)| *of == id && what(e)).count()
    }

    /// MADs sent so far by `host` that have the attribute of `name`.
    pub(crate) fn sent_by(&self, host: usize, name: &str) -> Vec<&Sent> {
        self.sent.iter().filter(|s| s.from == host && kind(&s.mad) == name).collect()
    }

    /// Hands a MAD to a host as if it came from `source`, past the network.
    pub(crate) fn inject(&mut self, to: usize, source: Gid, mad: &Mad) {
        let host = &mut self.hosts[to];
        host.cm.input(
            self.now,
            Origin { source: source.ip().into(), dest: host.gid.ip().into(), link: 7 },
            mad,
        );
        self.pump();
    }

    /// Takes out what all hosts have to say.
    pub(crate) fn pump(&mut self) {
        loop {
            let mut quiet = true;
            for i in 0..self.hosts.len() {
                while let Some(output) = self.hosts[i].cm.poll() {
                    quiet = false;
                    self.output(i, output);
                }
            }
            if quiet {
                break;
            }
        }
    }

    fn output(&mut self, i: usize, output: Output) {
        match output {
            Output::Transmit { path, mad, attempt, .. } => {
                let sent = Sent { at: self.now, from: i, to: path.remote_gid, mad: *mad, attempt };
                assert_eq!(path.local_gid, self.hosts[i].gid);
                for delay in (self.network)(&sent) {
                    self.flown += 1;
                    let from = Origin { source: path.source(), dest: path.dest(), link: path.link };
                    let flight = Flight { from, bytes: sent.mad.emit() };
                    self.flights.insert((self.now + delay, self.flown), flight);
                }
                self.sent.push(sent);
            }
            Output::Event { conn, event } => {
                let host = &mut self.hosts[i];
                if let (Event::Request(_), Some((_, Some(asker)))) = (&event, host.cm.comm_ids(conn)) {
                    host.askers.insert(conn, asker);
                }
                host.events.push((conn, event.clone()));
                if self.hosts[i].willing {
                    self.will(i, conn, &event);
                }
            }
            Output::Released { conn, qpn } => self.hosts[i].released.push((conn, qpn)),
            Output::Stream { .. } => unreachable!("MADs go by no stream"),
        }
    }

    /// What an application does that says yes to everything.
    fn will(&mut self, i: usize, conn: ConnId, event: &Event) {
        let now = self.now;
        match event {
            Event::Request(_) => {
                let accept = self.accept_params(i);
                self.hosts[i].cm.accept(now, conn, &accept).expect("the request stands");
            }
            Event::Reply(_) => self.hosts[i].cm.established(now, conn).expect("the reply stands"),
            _ => {}
        }
    }

    /// Lets time pass, and everything happen that happens meanwhile.
    pub(crate) fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    /// The next thing before `end`.
    fn step(&mut self, end: Instant) -> bool {
        self.pump();
        let flight = self.flights.first_key_value().map(|(&(at, _), _)| at);
        let timer = self.hosts.iter().filter_map(|h| h.cm.deadline()).min();
        let Some(at) = flight.into_iter().chain(timer).min().filter(|&at| at <= end) else {
            return false;
        };
        self.now = self.now.max(at);
        while let Some(entry) = self.flights.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let flight = entry.remove();
            self.deliver(&flight);
        }
        for host in &mut self.hosts {
            host.cm.expire(self.now);
            assert!(host.cm.deadline().is_none_or(|at| at > self.now), "expire leaves nothing due");
        }
        self.pump();
        true
    }

    fn deliver(&mut self, flight: &Flight) {
        let mad = Mad::parse(&flight.bytes).expect("what we send parses");
        let Some(to) = self.owner(flight.from, &mad) else { return };
        self.hosts[to].cm.input(self.now, flight.from, &mad);
    }

    /// The process at an address that a MAD belongs to: by the block of the communication id.
    fn owner(&self, from: Origin, mad: &Mad) -> Option<usize> {
        let at = |h: &&Host| h.address() == from.dest;
        let block = receiver(mad).0 >> 20;
        let position = |f: &dyn Fn(&Host) -> bool| self.hosts.iter().position(|h| at(&h) && f(h));
        if block != 0 {
            return position(&|h| h.block == block);
        }
        match &mad.message {
            Message::Rej(rej) => {
                let guid = Guid(u64::from_be_bytes(*rej.info.first_chunk().unwrap()));
                position(&|h| h.cm.has_peer(guid, from.source, rej.local_comm_id))
            }
            _ => position(&|h| h.listens),
        }
    }
}

/// The receiver's communication id; 0 where the message names none.
pub(crate) fn receiver(mad: &Mad) -> CommId {
    match &mad.message {
        Message::Req(_) | Message::SidrReq(_) => CommId(0),
        Message::Mra(m) => m.remote_comm_id,
        Message::Rej(m) => m.remote_comm_id,
        Message::Rep(m) => m.remote_comm_id,
        Message::Rtu(m) => m.remote_comm_id,
        Message::Dreq(m) => m.remote_comm_id,
        Message::Drep(m) => m.remote_comm_id,
        Message::SidrRep(m) => m.request_id,
        Message::Lap(m) => m.remote_comm_id,
        Message::Apr(m) => m.remote_comm_id,
    }
}

pub(crate) fn kind(mad: &Mad) -> &'static str {
    match &mad.message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
        Message::Lap(_) => "LAP",
        Message::Apr(_) => "APR",
    }
}

pub(crate) fn rejected(why: u16) -> impl Fn(&Event) -> bool {
    move |e| matches!(e, Event::Rejected { reason, .. } if *reason == i32::from(why))
}

pub(crate) fn unreachable(e: &Event) -> bool {
    *e == Event::Unreachable { status: -110 }
}

pub(crate) fn disconnected(e: &Event) -> bool {
    *e == Event::Disconnected { status: 0 }
}

pub(crate) fn rej_reason(mad: &Mad) -> u16 {
    match &mad.message {
        Message::Rej(rej) => rej.reason,
        other => panic!("no REJ: {other:?}"),
    }
}
