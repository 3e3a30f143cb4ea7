//! The simulation: hosts and processes, what is on its way to them, and the loop that moves time.

mod channels;
mod due;
mod fabric;
mod packets;
mod power;
mod streams;
mod subnet;
mod subnet_administration;
mod trace;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nic::{Errno, Link};
use stack::env::{Input, InputHandler, Interface, Name};
use stack::{Config, Node};

use crate::clock::nanos;
use crate::env::{Action, Host, HostId, INTERFACE, ProcessId, Shared, SimEnv};
use crate::network::Network;
use crate::same_host::{NEWS, SameHost};
use crate::storage::Storage;
use crate::{Dice, Faults};
use due::{Due, What};
pub use power::Power;

/// Until a known neighbour is found.
const ARP: Duration = Duration::from_micros(50);
/// Until a neighbour that does not answer is given up.
const ARP_TIMEOUT: Duration = Duration::from_secs(3);
/// Labels of the dice of storages, beyond those of hosts, and of those of what processes of a host
/// are to each other, and of streams.
const STORAGE: u64 = 1 << 32;
const SAME_HOST: u64 = 2 << 32;
const STREAMS: u64 = 3 << 32;
/// A node that wants to be woken so often without time passing will never stop.
const MAX_WAKES: u32 = 100_000;

/// What happened in a simulation so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that nodes sent.
    pub sent: u64,
    /// Packets, copies included, that reached a process.
    pub delivered: u64,
    /// Packets lost on a link.
    pub lost: u64,
    /// Packets of which more than one copy arrives.
    pub repeated: u64,
    /// Packets with a byte changed.
    pub corrupted: u64,
    /// Packets handed from one process of a host to another.
    pub forwarded: u64,
    /// Packets that went from one process of a host to another by their channel.
    pub by_channel: u64,
    /// WRITEs and READs that were done in the memory of another process, and pieces of messages
    /// that were copied from there, or to there.
    pub copied: u64,
    /// WRITEs, READs and pieces whose copy was begun and did not come about.
    pub not_copied: u64,
    /// Packets to a host on which no process has the port open or the queue pair, or to no host.
    pub refused: u64,
    /// Pieces of streams that arrived.
    pub pieces: u64,
    /// Streams whose connection was reset.
    pub resets: u64,
    /// Times a node was woken.
    pub wakes: u64,
}

/// Hosts on a virtual clock. Programs call the nodes ([`Sim::node`]) between steps; all that
/// follows happens in [`Sim::step`] and the methods built on it.
pub struct Sim {
    shared: Arc<Shared>,
    network: Network,
    dice: Dice,
    nodes: Vec<Option<Arc<Node<SimEnv>>>>,
    due: BinaryHeap<Reverse<Due>>,
    numbers: u64,
    trace: u64,
    log: bool,
    counters: Counters,
    /// Wakes since time last passed.
    wakes: u32,
    power: Vec<Power>,
    /// The administration of the InfiniBand subnet answers.
    administers: bool,
    /// In place of a subnet of neighbours.
    fabric: Option<Box<fabric::LaidFabric>>,
    groups: subnet_administration::Groups,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim")
            .field("elapsed", &self.elapsed())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Sim {
    /// An environment without hosts, at time 0.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let dice = Dice::new(seed);
        Self {
            shared: Shared::new(dice.fork(STREAMS)),
            network: Network::new(faults, dice.fork(0)),
            dice,
            nodes: Vec::new(),
            due: BinaryHeap::new(),
            numbers: 0,
            // The offset basis of FNV-1a.
            trace: 0xcbf2_9ce4_8422_2325,
            log: false,
            counters: Counters::default(),
            wakes: 0,
            power: Vec::new(),
            administers: true,
            fabric: None,
            groups: subnet_administration::Groups::default(),
        }
    }

    /// Writes every packet and its fate to standard error from now on.
    pub fn log(&mut self) {
        self.log = true;
    }

    /// A host with one interface, `eth0`, that bears `addresses`; `mtu` is the link's, in bytes.
    pub fn add_host(&mut self, addresses: &[IpAddr], mtu: u32) -> HostId {
        self.add_host_with(|n| Interface {
            index: INTERFACE,
            name: "eth0".to_owned(),
            mac: [2, 0, 0, 0, (n >> 8) as u8, n as u8],
            mtu,
            up: true,
            loopback: false,
            speed_mbps: None,
            addresses: addresses.to_vec(),
            infiniband: None,
        })
    }

    /// A host with the interface that `interface` makes for its number.
    fn add_host_with(&mut self, interface: impl FnOnce(usize) -> Interface) -> HostId {
        let mut hosts = self.shared.hosts();
        let n = hosts.len();
        hosts.push(Host {
            interface: interface(n),
            names: Default::default(),
            watchers: BTreeSet::new(),
            processes: BTreeSet::new(),
            attached: BTreeSet::new(),
            groups: BTreeSet::new(),
            dice: self.dice.fork(1 + n as u64),
            storage: Storage::new(self.dice.fork(STORAGE + n as u64)),
            same_host: SameHost::new(self.dice.fork(SAME_HOST + n as u64), &self.network.faults),
            died: Vec::new(),
        });
        HostId(n)
    }

    /// Starts a process: a node that shares the host's addresses and names with those started
    /// before.
    pub fn start(&mut self, host: HostId, config: &Config) -> ProcessId {
        self.start_on(host, config, |env| env)
    }

    /// Like [`Sim::start`], on the link that `decorate` puts over the host's own.
    pub fn start_on(
        &mut self,
        host: HostId,
        config: &Config,
        decorate: impl FnOnce(Arc<SimEnv>) -> Arc<dyn Link>,
    ) -> ProcessId {
        let process = ProcessId(self.nodes.len());
        let (interface, same_host) = {
            let host = &mut self.shared.hosts()[host.0];
            host.processes.insert(process);
            (host.interface.clone(), host.same_host.on)
        };
        self.shared.alarms().push(None);
        let env = Arc::new(SimEnv { shared: self.shared.clone(), host, process, same_host });
        let link = decorate(env.clone());
        self.nodes.push(Some(Node::on_link(env, link, config, &[interface])));
        process
    }

    /// The node of a process; `None` once it was killed.
    pub fn node(&self, process: ProcessId) -> Option<Arc<Node<SimEnv>>> {
        self.nodes.get(process.0)?.clone()
    }

    /// Kills a process: it says nothing more, its names are gone, those that watch them are told.
    /// What it had sent is still on its way.
    pub fn kill(&mut self, process: ProcessId) {
        self.flush();
        let Some(node) = self.nodes.get_mut(process.0).and_then(Option::take) else { return };
        let now = self.shared.clock.nanos();
        let (told, last): (Vec<_>, u64) = {
            let host = &mut self.shared.hosts()[node.env().host().0];
            host.bury(now, process);
            let last = host.same_host.leave(process);
            let all = std::mem::take(&mut host.watchers);
            let (told, kept): (BTreeSet<_>, BTreeSet<_>) =
                all.into_iter().partition(|(_, whose, _)| *whose == process);
            host.watchers = kept.into_iter().filter(|(who, ..)| *who != process).collect();
            (told.into_iter().filter(|(who, ..)| host.processes.contains(who)).collect(), last)
        };
        self.shared.alarms()[process.0] = None;
        self.note("killed", &[process.0 as u64]);
        for (to, _, name) in told {
            // What it had sent comes before the news of its end.
            self.schedule_at(
                last.max(now.saturating_add(nanos(NEWS))),
                What::Gone { to, name, watch: process.watch() },
            );
        }
        self.leave_streams(process);
        self.fabric.iter_mut().for_each(|fabric| fabric.forget(process));
        // Queue pairs and their device hold each other: all memory of a process goes with it.
        node.devices().iter().flat_map(|d| d.qps()).for_each(|qp| qp.destroy());
        // Names it still holds are dropped here, without the hosts' lock.
        drop(node);
    }

    /// The faults as they are.
    pub fn faults(&self) -> Faults {
        self.network.faults
    }

    /// The faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.network.faults = faults;
        self.shared.hosts().iter_mut().for_each(|host| host.same_host.set_faults(&faults));
    }

    /// Loses what `from` sends to `to` for a while; the other direction works.
    pub fn partition(&mut self, from: HostId, to: HostId, time: Duration) {
        let until = self.shared.clock.nanos().saturating_add(nanos(time));
        self.network.cut(from, to, until);
    }

    /// Holds up what `from` sends to `to` for a while.
    pub fn clog(&mut self, from: HostId, to: HostId, time: Duration) {
        let until = self.shared.clock.nanos().saturating_add(nanos(time));
        self.network.clog(from, to, until);
    }

    /// Ends all partitions and clogs.
    pub fn heal(&mut self) {
        self.network.heal();
    }

    /// Gives a host other addresses; its processes are told.
    pub fn set_addresses(&mut self, host: HostId, addresses: &[IpAddr]) {
        self.change_interface(host, |i| i.addresses = addresses.to_vec());
    }

    /// Gives a host's interface another hardware address; its processes are told.
    pub fn set_mac(&mut self, host: HostId, mac: [u8; 6]) {
        self.change_interface(host, |i| i.mac = mac);
    }

    /// Takes a host's interface away, for good; its processes are told.
    pub fn remove_interface(&mut self, host: HostId) {
        self.shared.hosts()[host.0].interface.addresses.clear();
        self.tell_interfaces(host, &[]);
    }

    fn change_interface(&mut self, host: HostId, change: impl FnOnce(&mut Interface)) {
        let interface = {
            let interface = &mut self.shared.hosts()[host.0].interface;
            change(interface);
            interface.clone()
        };
        self.tell_interfaces(host, &[interface]);
    }

    fn tell_interfaces(&mut self, host: HostId, interfaces: &[Interface]) {
        let processes = self.shared.hosts()[host.0].processes.clone();
        for to in processes {
            self.schedule(ARP, What::Interfaces { to, interfaces: interfaces.to_vec() });
        }
    }

    /// The names that processes of a host hold now.
    pub fn names(&self, host: HostId) -> Vec<Name> {
        self.shared.hosts()[host.0].names.keys().copied().collect()
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.shared.clock.nanos())
    }

    /// Virtual time as nodes know it.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// A hash over everything that happened, and when: equal in two runs where all was equal.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nothing is on its way and no node waits for anything.
    pub fn is_idle(&mut self) -> bool {
        self.next().is_none()
    }

    /// Does the next thing that happens: one packet reaches one node, or one node is woken. `false`
    /// where nothing ever will, or not before `limit` (time since the beginning), which is then
    /// the time.
    ///
    /// # Panics
    ///
    /// Where a node wants to be woken again and again at the same time.
    pub fn step(&mut self, limit: Duration) -> bool {
        let limit = nanos(limit);
        match self.next() {
            Some((at, who)) if at <= limit => {
                if at > self.shared.clock.nanos() {
                    self.wakes = 0;
                }
                self.shared.clock.advance(at);
                match who {
                    Some(process) => self.wake(process),
                    None => {
                        if let Some(Reverse(due)) = self.due.pop() {
                            self.happen(due.what);
                        }
                    }
                }
                self.flush();
                true
            }
            _ => {
                self.shared.clock.advance(limit);
                false
            }
        }
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) {
        let limit = self.elapsed() + time;
        while self.step(limit) {}
    }

    /// Runs until `done`, asked before every step, says so; `false` where it still does not after
    /// `time` or when nothing more will happen.
    pub fn run_until(&mut self, time: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let limit = self.elapsed() + time;
        loop {
            if done(self) {
                return true;
            }
            if !self.step(limit) {
                return done(self);
            }
        }
    }
}

impl Sim {
    /// When something happens next; to a process whose alarm it is, or to the oldest thing on its
    /// way.
    fn next(&mut self) -> Option<(u64, Option<ProcessId>)> {
        self.flush();
        let alarm = {
            let alarms = self.shared.alarms();
            alarms.iter().enumerate().filter_map(|(p, at)| Some(((*at)?, Some(ProcessId(p))))).min()
        };
        let due = self.due.peek().map(|Reverse(d)| (d.at, None));
        [alarm, due].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Wakes a process as the real environment does. An alarm is set by the node's calls, and after
    /// it rang by what the node still waits for.
    fn wake(&mut self, process: ProcessId) {
        self.wakes += 1;
        assert!(self.wakes < MAX_WAKES, "process {} is woken for ever at {:?}", process.0, self.elapsed());
        self.counters.wakes += 1;
        self.shared.alarms()[process.0] = None;
        let Some(node) = self.node(process) else { return };
        node.expire(self.shared.clock.now());
        if let Some(at) = node.deadline() {
            assert!(at > self.shared.clock.now(), "process {} wants what was just done", process.0);
            nic::Platform::wake_at(&**node.env(), at);
        }
    }

    fn schedule(&mut self, after: Duration, what: What) {
        self.schedule_at(self.shared.clock.nanos().saturating_add(nanos(after)), what);
    }

    fn schedule_at(&mut self, at: u64, what: What) {
        self.numbers += 1;
        self.due.push(Reverse(Due { at, number: self.numbers, what }));
    }

    /// Lets what nodes did take effect.
    fn flush(&mut self) {
        loop {
            let next = self.shared.outbox().pop_front();
            let Some((process, action)) = next else { break };
            if self.nodes.get(process.0).is_none_or(Option::is_none) {
                continue;
            }
            match action {
                Action::Send { flow, bytes, quiet } => self.send(process, flow, bytes, quiet),
                Action::SendByLid(packet) => self.send_by_lid(process, &packet),
                Action::Mad(to, mad) => self.ask_administration(process, to, &mad),
                Action::LocalLink { ticket, route } => {
                    let found = self.shared.host_of(route.next_hop).is_some();
                    let (after, result) =
                        if found { (ARP, Ok(())) } else { (ARP_TIMEOUT, Err(Errno::EHOSTUNREACH)) };
                    self.schedule(after, What::Resolved { to: process, ticket, result });
                }
                Action::Connect(token) => self.connect_stream(token),
                Action::Stream(token) => self.look_at_stream(token),
                Action::Persist(work) => self.persist(process, work),
                Action::Put { block, record } => self.put(process, block, record),
                Action::Cut(record) => self.cut(&record),
                Action::Copied { to, what, len, whole } => self.copied(process, to, what, len, whole),
                Action::Forward { to, flow, bytes } => {
                    self.counters.forwarded += 1;
                    self.schedule(ARP, What::Forwarded { to, flow, bytes });
                }
            }
        }
        self.bury();
    }

    fn happen(&mut self, what: What) {
        let now = self.shared.clock.now();
        match what {
            What::Arrival { at, flow, bytes, .. } if flow.dest.ip().is_multicast() => {
                self.arrive_at_group(at, &flow, &bytes);
            }
            What::Arrival { from, flow, bytes, .. } => self.arrive(from, flow, bytes),
            What::ByLid { to, packet } => self.arrive_by_lid(to, &packet),
            What::Fabric => self.work_of_fabric(),
            What::Mad { to, mad } => {
                self.note("mad", &[to.0 as u64]);
                self.tell(to, Input::Mad { interface: INTERFACE, bytes: &mad[..] });
            }
            What::Forwarded { to, flow, bytes } => self.deliver(to, &flow, &bytes, bytes.len(), true),
            What::ByChannel { from, to, record } => self.arrive_by_channel(from, to, &record),
            What::Resolved { to, ticket, result } => {
                self.note("resolved", &[to.0 as u64, ticket, u64::from(result.is_ok())]);
                self.tell(to, Input::Resolved { ticket, result });
            }
            What::Refused { to, flow, bytes } => {
                self.note_packet("unreachable", &flow, &bytes);
                let (dest, source) = (flow.dest.ip().into(), flow.source.ip().into());
                self.tell(to, Input::Unreachable { dest, source, errno: Errno::ECONNREFUSED, sent: &bytes });
            }
            What::Gone { to, name, watch } => {
                self.note("gone", &[to.0 as u64]);
                self.tell(to, Input::Gone(name, watch));
            }
            What::Stream(due) => self.stream_due(due),
            What::Flushed { process, work } => self.flushed(process, work),
            What::PowerFails(host) => self.power_fails(host),
            What::PowerIsBack(host) => self.power.push(Power::Back(host)),
            What::Interfaces { to, interfaces } => {
                self.note("interfaces", &[to.0 as u64]);
                if let Some(node) = self.node(to) {
                    node.input(now, Input::Interfaces(&interfaces));
                }
            }
        }
    }

    fn tell(&mut self, to: ProcessId, input: Input<'_>) {
        if let Some(node) = self.node(to) {
            node.input(self.shared.clock.now(), input);
        }
    }
}
