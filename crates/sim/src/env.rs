//! What a node sees of the simulated environment: its host's names, routes and neighbours, the
//! clock, the way out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nic::peer_memory::Copy;
use nic::{Errno, Frames, Link, LocalLink, Path, Persist, Platform, Stream};
use stack::env::{Claim, ClaimError, Datagram, Env, HandedOver, Interface, Name, Route, RouteQuery, Watch};
use transport::{Short, TxBatch};
use wire::icrc::{self, Flow};
use wire::mad::{MAD_LEN, PortSpace};
use wire::{Address, Gid, LidAddress, Qpn};

use crate::Dice;
use crate::by_lid::ByLid;
use crate::clock::Clock;
use crate::same_host::{SameHost, block};
use crate::storage::Storage;
use crate::streams::Streams;

/// A host of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) usize);

/// A process on a host. Never used twice in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub(crate) usize);

impl ProcessId {
    /// What tells it from those that bear its names before and after it.
    pub(crate) fn watch(self) -> Watch {
        Watch(self.0 as u64 + 1)
    }
}

/// Index of the one interface of every host.
pub(crate) const INTERFACE: u32 = 2;
/// The UDP port of RoCEv2.
pub(crate) const PORT: u16 = 4791;
/// Source ports of a process: so many from here on, one a detour.
const DETOURS: u32 = 32;
const FIRST_SOURCE_PORT: u32 = 32_768;

/// What all processes of a host share.
#[derive(Debug)]
pub(crate) struct Host {
    pub interface: Interface,
    pub names: BTreeMap<Name, ProcessId>,
    /// Which process watches which one, under which name.
    pub watchers: BTreeSet<(ProcessId, ProcessId, Name)>,
    /// Living processes.
    pub processes: BTreeSet<ProcessId>,
    /// Processes with the UDP port open.
    pub attached: BTreeSet<ProcessId>,
    /// Which process joined which multicast group.
    pub groups: BTreeSet<(IpAddr, ProcessId)>,
    pub dice: Dice,
    pub storage: Storage,
    /// What the processes are to each other.
    pub same_host: SameHost,
    /// Processes that died in the midst of a call.
    pub died: Vec<ProcessId>,
}

impl Host {
    /// Whether packets to an address come to this host.
    pub(crate) fn bears(&self, address: Address) -> bool {
        address.ip().is_some_and(|ip| self.interface.addresses.contains(&ip))
    }
    /// The process that bears a block of queue pair numbers.
    pub(crate) fn owner(&self, block: u16) -> Option<ProcessId> {
        self.names.get(&Name::Block(block)).copied()
    }

    /// Whether a process lives after a step of its own, or of another with it: it may die of that.
    pub(crate) fn goes_on(&mut self, now: u64, process: ProcessId) -> bool {
        let lives = self.processes.contains(&process);
        if lives && self.same_host.burn(process) {
            self.bury(now, process);
            self.died.push(process);
            return false;
        }
        lives
    }

    /// A process is dead: it has no name any more, and nothing of it is reached.
    pub(crate) fn bury(&mut self, now: u64, process: ProcessId) {
        self.processes.remove(&process);
        self.attached.remove(&process);
        self.groups.retain(|(_, member)| *member != process);
        self.names.retain(|_, p| *p != process);
        self.same_host.bury(now, process);
    }
}

/// What a node did that takes effect when its call is over.
#[derive(Debug)]
pub(crate) enum Action {
    /// With `quiet` this host gets nothing of what goes to a group.
    Send {
        flow: Flow,
        bytes: Vec<u8>,
        quiet: bool,
    },
    /// A packet from a LID to another.
    SendByLid(ByLid),
    /// A question to the administration of the subnet.
    Mad(LidAddress, Box<[u8; MAD_LEN]>),
    LocalLink {
        ticket: u64,
        route: Route,
    },
    Forward {
        to: ProcessId,
        flow: Flow,
        bytes: Vec<u8>,
    },
    /// By the channel to the owner of a block.
    Put {
        block: u16,
        record: Record,
    },
    /// By the channel of a way that is cut.
    Cut(Record),
    /// Bytes were copied to or from another process's memory, or not all of them.
    Copied {
        to: ProcessId,
        what: Copy,
        len: u64,
        whole: bool,
    },
    Persist(Persist),
    /// A stream is to be connected.
    Connect(u64),
    /// Something was done with a stream.
    Stream(u64),
}

/// What goes by a channel at once: packets of `size` bytes but for the last, which may be shorter,
/// unsealed.
#[derive(Debug)]
pub(crate) struct Record {
    pub source: SocketAddr,
    pub dest: SocketAddr,
    pub size: usize,
    /// In place of packets: a message, whose bytes these are.
    pub short: Option<Short>,
    /// In place of packets: their headers, where they are one piece, of which the bytes are the
    /// payload.
    pub headers: Option<Vec<u8>>,
    pub bytes: Vec<u8>,
}

/// What all worlds of a simulation share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub clock: Clock,
    hosts: Mutex<Vec<Host>>,
    outbox: Mutex<VecDeque<(ProcessId, Action)>>,
    /// When each process wants to be woken.
    alarms: Mutex<Vec<Option<u64>>>,
    streams: Mutex<Streams>,
}

impl Shared {
    pub(crate) fn new(streams: Dice) -> Arc<Self> {
        Arc::new(Self {
            clock: Clock::new(),
            hosts: Mutex::default(),
            outbox: Mutex::default(),
            alarms: Mutex::default(),
            streams: Mutex::new(Streams::new(streams)),
        })
    }
    pub(crate) fn hosts(&self) -> MutexGuard<'_, Vec<Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn outbox(&self) -> MutexGuard<'_, VecDeque<(ProcessId, Action)>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn alarms(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The hosts that get what is sent to an address: those with members of a multicast group, or
    /// the one that bears it.
    pub(crate) fn hosts_of(&self, address: IpAddr) -> Vec<HostId> {
        if !address.is_multicast() {
            return self.host_of(address).into_iter().collect();
        }
        let joined = |h: &Host| h.groups.iter().any(|(group, _)| *group == address);
        let hosts = self.hosts();
        (0..hosts.len()).filter(|&i| joined(&hosts[i])).map(HostId).collect()
    }
    /// The host that bears an address.
    pub(crate) fn host_of(&self, address: IpAddr) -> Option<HostId> {
        self.hosts().iter().position(|h| h.interface.addresses.contains(&address)).map(HostId)
    }
}

/// The environment of one process.
#[derive(Debug)]
pub struct SimEnv {
    pub(crate) shared: Arc<Shared>,
    pub(crate) host: HostId,
    pub(crate) process: ProcessId,
    /// Whether it reaches other processes of its host without the network.
    pub(crate) same_host: bool,
}

impl SimEnv {
    /// The host it runs on.
    pub fn host(&self) -> HostId {
        self.host
    }
    /// Runs `f` on what the host's processes share.
    pub(crate) fn with_host<T>(&self, f: impl FnOnce(&mut Host) -> T) -> T {
        f(&mut self.shared.hosts()[self.host.0])
    }
    /// Like [`SimEnv::with_host`], as one step of the process, which may die of it. A dead one
    /// does nothing.
    pub(crate) fn step<T>(&self, f: impl FnOnce(&mut Host, ProcessId) -> T) -> Option<T> {
        let now = self.shared.clock.nanos();
        self.with_host(|host| host.goes_on(now, self.process).then(|| f(host, self.process)))
    }
    /// What takes effect when the call is over, if the process lives.
    pub(crate) fn act(&self, action: Action) {
        if self.with_host(|host| host.processes.contains(&self.process)) {
            self.shared.outbox().push_back((self.process, action));
        }
    }
    /// Sends a batch by a channel; false where there is no way but the network.
    fn put(&self, block: u16, path: &Path, batch: &TxBatch) -> bool {
        if !self.goes_by_channel(block, path) {
            return false;
        }
        let Some([source, dest]) = ends(path) else { return false };
        for (run, bytes) in batch.runs() {
            let (size, bytes) = (run.size, bytes.to_vec());
            if self.step(|_, _| ()).is_some() {
                let record = Record { source, dest, size, short: None, headers: None, bytes };
                let is_cut = self.is_cut(path);
                self.act(if is_cut { Action::Cut(record) } else { Action::Put { block, record } });
            }
        }
        true
    }
    fn port(&self, source_port_epoch: u32) -> u16 {
        let span = u32::from(u16::MAX) - FIRST_SOURCE_PORT;
        (FIRST_SOURCE_PORT + (self.process.0 as u32 * DETOURS + source_port_epoch % DETOURS) % span) as u16
    }
}

/// The ends of a path, each with the port of RoCE; `None` where the path is not one of IP.
pub(crate) fn ends(path: &Path) -> Option<[SocketAddr; 2]> {
    Some([SocketAddr::new(path.source.ip()?, PORT), SocketAddr::new(path.dest.ip()?, PORT)])
}

impl Link for SimEnv {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        if let Some(source) = path.source.lid() {
            return self.send_by_lid(source, path, batch);
        }
        if path.dest_qpn != Qpn::GSI && self.put(block(path.dest_qpn), path, batch) {
            return;
        }
        let Some([mut source, dest]) = ends(path) else { return };
        source.set_port(self.port(path.source_port_epoch));
        let flow = Flow { source, dest };
        let (mut rest, runs) = batch.parts_mut();
        // One segmented send: identifications count from 0.
        let mut ids = 0..;
        for run in runs {
            let (packets, after) = rest.split_at_mut(run.len);
            rest = after;
            for (packet, ip_id) in packets.chunks_mut(run.size).zip(&mut ids) {
                icrc::seal(&flow, ip_id, packet);
                if self.step(|_, _| ()).is_some() {
                    let bytes = packet.to_vec();
                    self.act(Action::Send { flow, bytes, quiet: path.no_multicast_loop });
                }
            }
        }
    }

    fn source_port(&self, path: &Path) -> Option<u16> {
        Some(self.port(path.source_port_epoch))
    }

    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        // A wrong LID is found out by packets that are lost.
        let has_lids = self.with_host(|h| h.interface.infiniband.is_some());
        if dest.lid().is_some() == has_lids { Ok(()) } else { Err(Errno::ENETUNREACH) }
    }

    fn has_unread(&self, path: &Path) -> bool {
        self.is_unread(path)
    }

    fn local(&self) -> Option<&dyn LocalLink> {
        self.same_host.then_some(self)
    }

    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno> {
        self.with_host(|h| {
            if interface != INTERFACE || !h.processes.contains(&self.process) {
                return Err(Errno::ENODEV);
            }
            h.groups.insert((group, self.process));
            Ok(())
        })
    }

    fn leave(&self, _interface: u32, group: IpAddr) {
        self.with_host(|h| h.groups.remove(&(group, self.process)));
    }
}

/// Simulated hosts have no frames.
impl Frames for SimEnv {}

impl Platform for SimEnv {
    fn persist(&self, work: Persist) {
        self.act(Action::Persist(work));
    }

    fn storage(&self) -> Option<&dyn nic::Storage> {
        Some(self)
    }

    fn wake_at(&self, at: Instant) {
        let at = self.shared.clock.nanos_of(at);
        if let Some(alarm) = self.shared.alarms().get_mut(self.process.0) {
            *alarm = Some(alarm.map_or(at, |old| old.min(at)));
        }
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.with_host(|h| h.dice.fill(bytes));
    }
}

impl ::faults::Surroundings for SimEnv {
    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    fn wake_at(&self, at: Instant) {
        Platform::wake_at(self, at);
    }
}

impl nic::Storage for SimEnv {
    fn keeps(&self, addr: u64, len: u64) -> bool {
        self.with_host(|h| h.storage.keeps(addr, len))
    }

    fn persist(&self, addr: u64, len: u64) -> Result<(), Errno> {
        self.with_host(|h| h.storage.persist(addr, len))
    }
}

impl Env for SimEnv {
    fn attach(&self, interface: u32) -> Result<(), Errno> {
        self.with_host(|h| {
            if interface != INTERFACE || !h.processes.contains(&self.process) {
                return Err(Errno::ENODEV);
            }
            h.attached.insert(self.process);
            Ok(())
        })
    }

    fn route(&self, query: RouteQuery) -> Result<Route, Errno> {
        self.with_host(|h| {
            let ours = &h.interface.addresses;
            let local = ours.contains(&query.dest);
            let source = match query.source {
                Some(s) if s.is_ipv4() != query.dest.is_ipv4() => return Err(Errno::EAFNOSUPPORT),
                Some(s) if !ours.contains(&s) => return Err(Errno::EADDRNOTAVAIL),
                Some(s) => s,
                None if local => query.dest,
                None => {
                    *ours.iter().find(|a| a.is_ipv4() == query.dest.is_ipv4()).ok_or(Errno::ENETUNREACH)?
                }
            };
            let (dest, mtu) = (query.dest, h.interface.mtu);
            Ok(Route { source, dest, interface: INTERFACE, next_hop: dest, local, mtu })
        })
    }

    fn resolve_neighbour(&self, ticket: u64, route: &Route) {
        self.act(Action::LocalLink { ticket, route: *route });
    }

    fn gid_of(&self, _interface: u32, address: IpAddr) -> Option<Gid> {
        let host = self.shared.host_of(address)?;
        self.shared.hosts()[host.0].interface.infiniband.as_ref()?.port.gid(0)
    }

    fn send_mad(&self, _interface: u32, to: LidAddress, mad: &[u8; MAD_LEN]) {
        self.act(Action::Mad(to, Box::new(*mad)));
    }

    fn claim(&self, name: Name) -> Result<Box<dyn Claim>, ClaimError> {
        self.with_host(|h| {
            if !h.processes.contains(&self.process) {
                return Err(ClaimError::System(Errno::ENODEV));
            }
            if h.names.contains_key(&name) {
                return Err(ClaimError::InUse);
            }
            h.names.insert(name, self.process);
            Ok(())
        })?;
        let (shared, host, process) = (self.shared.clone(), self.host, self.process);
        Ok(Box::new(Held { shared, host, process, name }))
    }

    fn port_names(&self, space: PortSpace, port: u16) -> Vec<Name> {
        self.with_host(|h| h.names.keys().copied().filter(|n| n.is_of_port(space, port)).collect())
    }

    fn forward(&self, name: Name, datagram: &Datagram<'_>) -> bool {
        let Some(to) = self.with_host(|h| h.names.get(&name).copied()).filter(|p| *p != self.process) else {
            return false;
        };
        let Some(flow) = Flow::between(&datagram.source, &datagram.dest) else { return false };
        self.act(Action::Forward { to, flow, bytes: datagram.bytes.to_vec() });
        true
    }

    fn hand_over(&self, names: &[Name], path: &Path, batch: &mut TxBatch) -> HandedOver {
        let is_taken = names.iter().any(|name| match name {
            Name::Block(block) => self.put(*block, path, batch),
            _ => false,
        });
        if is_taken { HandedOver::Done } else { HandedOver::NotHere }
    }

    fn is_known(&self, name: Name) -> bool {
        self.with_host(|h| h.names.contains_key(&name))
    }

    fn watch(&self, name: Name) -> Option<Watch> {
        self.with_host(|h| {
            let whose = *h.names.get(&name)?;
            h.watchers.insert((self.process, whose, name));
            Some(whose.watch())
        })
    }

    fn open_stream(&self, from: SocketAddr, to: SocketAddr) -> Result<(u64, Arc<dyn Stream>), Errno> {
        self.open(from, to)
    }

    fn listen_streams(&self, at: SocketAddr, v6_only: bool) -> Result<Box<dyn Claim>, Errno> {
        self.listen(at, v6_only)
    }

    fn host_id(&self) -> u64 {
        // Spread, because the lower 40 bits are what tells hosts apart.
        (self.host.0 as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xff_ffff_ffff
    }

    fn now(&self) -> Instant {
        self.shared.clock.now()
    }
}

/// A name held by a process. What a killed process held is gone already when this is dropped, and
/// may be another's.
struct Held {
    shared: Arc<Shared>,
    host: HostId,
    process: ProcessId,
    name: Name,
}

impl Claim for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let names = &mut self.shared.hosts()[self.host.0].names;
        if names.get(&self.name) == Some(&self.process) {
            names.remove(&self.name);
        }
    }
}
