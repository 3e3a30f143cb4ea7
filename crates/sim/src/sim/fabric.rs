//! Hosts of a simulated InfiniBand fabric ([`fabric::Fabric`]): packets take the way of its
//! forwarding tables, by the same plane as those of programs, and its subnet manager has virtual
//! time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fabric::net::Net;
use fabric::plane::{GroupPassage, Layout, PacketInfo, Passage, Plane};
use fabric::sm::TooManySubnets;
use fabric::{ClientId, Fabric, questions};
use stack::env::Interface;
use stack::fabric_ports;
use wire::LidAddress;
use wire::mad::MAD_LEN;

use super::{Sim, What};
use crate::by_lid::ByLid;
use crate::clock::nanos;
use crate::env::{HostId, INTERFACE, ProcessId};

/// Paths of all processes together at most.
const ROWS: u32 = 4096;
/// The subnet manager does all that there is to do at once, up to so long after it could.
const REACTION: Duration = Duration::from_millis(2);
/// Steps of a subnet manager that finds no end.
const MAX_ROUNDS: u32 = 1_000_000;

/// A fabric, and the hosts that are on it.
pub(super) struct LaidFabric {
    fabric: Fabric,
    words: Arc<Vec<AtomicU64>>,
    layout: Layout,
    /// By name, with the number of the port in the plane.
    hosts: BTreeMap<HostId, (String, u32)>,
    paths: BTreeMap<(ProcessId, u16), Passage>,
    groups: BTreeMap<(ProcessId, u16), GroupPassage>,
    /// The agents of processes that have asked the administration of the subnet.
    agents: BTreeMap<ProcessId, u32>,
    /// When it does what is due next.
    work_at: Option<u64>,
}

/// What has become of a packet.
pub(super) enum Passed {
    /// The hosts that a packet comes to.
    To(Vec<HostId>),
    /// A table, a port or a rule has lost the packet.
    Lost,
}

/// The number of a process with the fabric.
fn program(process: ProcessId) -> u32 {
    process.0 as u32 + 1
}

fn client(process: ProcessId) -> ClientId {
    ClientId(process.0 as u64 + 1)
}

impl LaidFabric {
    /// Brings the fabric up.
    fn new(net: &Net, seed: u64, now: Duration) -> Result<Self, TooManySubnets> {
        let mut fabric = Fabric::new(net, seed);
        let layout = fabric.plane_layout().with_rows(ROWS);
        let bytes = layout.bytes().unwrap_or_default();
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect());
        fabric.start_managers(now, 0)?;
        run_due(&mut fabric, now);
        fabric.map_plane_of(layout, words.clone());
        fabric.take_changed_hosts();
        let (hosts, paths, groups, agents) = Default::default();
        Ok(Self { fabric, words, layout, hosts, paths, groups, agents, work_at: None })
    }

    /// The interface of a host, and the number of its port: of several devices the first.
    fn interface(&self, name: &str) -> Option<(Interface, u32)> {
        fabric_ports::found(&self.fabric.describe(name)?).into_iter().next()
    }

    fn host_at(&self, port: u32) -> Option<HostId> {
        self.hosts.iter().find(|(_, (_, own))| *own == port).map(|(host, _)| *host)
    }

    /// A packet takes its way and is counted there.
    pub(super) fn pass(&mut self, from: ProcessId, source: HostId, packet: &ByLid) -> Passed {
        let Some(&(_, port)) = self.hosts.get(&source) else { return Passed::Lost };
        let lid = packet.dest.lid();
        let info = PacketInfo::of(&packet.bytes, packet.dest.has_grh());
        let plane = Plane::new(&self.words, self.layout);
        if packet.dest.is_multicast() {
            let group = self.groups.entry((from, lid));
            let group = group.or_insert_with(|| GroupPassage::new(program(from), port, lid));
            let arrivals = group.pass(plane, &[info]).into_iter();
            let arriving =
                arrivals.filter(|end| end.packets.as_ref().is_none_or(|arrives| arrives == &[true]));
            let ends = arriving.map(|end| end.port).chain([port]);
            return Passed::To(ends.filter_map(|end| self.host_at(end)).collect());
        }
        let path = self.paths.entry((from, lid));
        let path = path.or_insert_with(|| Passage::new(plane, program(from), port, lid));
        let arrives = path.pass(plane, &info);
        match path.end() {
            Some(end) if arrives => Passed::To(self.host_at(end).into_iter().collect()),
            _ => Passed::Lost,
        }
    }

    /// A process is gone: what it has sent is counted.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.paths.retain(|(owner, _), _| *owner != process);
        self.groups.retain(|(owner, _), _| *owner != process);
        self.fabric.end_program(program(process));
        if self.agents.remove(&process).is_some() {
            self.fabric.close(client(process));
        }
    }

    /// A process asks the administration of the subnet; false where its port takes no question.
    fn ask(
        &mut self,
        now: Duration,
        (from, host): (ProcessId, HostId),
        to: LidAddress,
        mad: &[u8; MAD_LEN],
    ) -> bool {
        let agent = match self.agents.get(&from) {
            Some(agent) => *agent,
            None => match self.open(from, host) {
                Some(agent) => agent,
                None => return false,
            },
        };
        self.fabric.write(now, client(from), &questions::question(agent, to, mad));
        true
    }

    fn open(&mut self, process: ProcessId, host: HostId) -> Option<u32> {
        let (name, _) = self.hosts.get(&host)?;
        let devices = self.fabric.describe(name)?;
        let (interface, _) = self.interface(name)?;
        let (device, number) = fabric_ports::device_and_port(&devices, &interface)?;
        let port = self.fabric.port_of_host(name, device, number)?;
        self.fabric.open(client(process), port);
        let agent = self.fabric.register(client(process), &questions::registration()).ok()?;
        self.agents.insert(process, agent);
        Some(agent)
    }

    /// The answers that processes have to read.
    fn take_answers(&mut self) -> Vec<(ProcessId, Box<[u8; MAD_LEN]>)> {
        let mut answers = Vec::new();
        self.fabric.take_ready();
        for process in self.agents.keys() {
            while let Some(message) = self.fabric.front(client(*process)) {
                answers.extend(questions::answer(message).map(|mad| (*process, mad)));
                self.fabric.pop(client(*process));
            }
        }
        answers
    }

    /// The hosts whose ports are others now.
    fn take_changed(&mut self) -> Vec<(HostId, Interface)> {
        let changed = self.fabric.take_changed_hosts();
        let ours = self.hosts.iter().filter(|(_, (name, _))| changed.contains(name));
        ours.filter_map(|(host, (name, _))| Some((*host, self.interface(name)?.0))).collect()
    }
}

/// Does all that is due, a subnet manager's sweep as a whole.
fn run_due(fabric: &mut Fabric, now: Duration) {
    for _ in 0..MAX_ROUNDS {
        if fabric.deadline().is_none_or(|at| at > now) {
            break;
        }
        fabric.on_deadline(now);
    }
    fabric.settle(now);
}

impl Sim {
    /// Lays the fabric of a net file, with a subnet manager in each of its subnets that has brought
    /// it up. [`Sim::add_fabric_host`] adds hosts of it.
    ///
    /// # Errors
    ///
    /// The net has too many subnets that no link joins.
    pub fn lay_fabric(&mut self, net: &Net, seed: u64) -> Result<(), TooManySubnets> {
        let laid = LaidFabric::new(net, seed, self.elapsed())?;
        self.fabric = Some(Box::new(laid));
        self.follow_fabric();
        Ok(())
    }

    /// A host of the fabric by its name there, with the first port of it, whose interface bears
    /// `addresses`; `None` where the fabric has no adapter of that name.
    pub fn add_fabric_host(&mut self, name: &str, addresses: &[IpAddr]) -> Option<HostId> {
        let (interface, port) = self.fabric.as_ref()?.interface(name)?;
        let addresses = addresses.to_vec();
        let host = self.add_host_with(|_| Interface { index: INTERFACE, addresses, ..interface });
        self.fabric.as_mut()?.hosts.insert(host, (name.to_owned(), port));
        Some(host)
    }

    /// Does something to the fabric, or asks it; `None` where there is none.
    pub fn with_fabric<T>(&mut self, act: impl FnOnce(&mut Fabric, Duration) -> T) -> Option<T> {
        let now = self.elapsed();
        let done = act(&mut self.fabric.as_mut()?.fabric, now);
        self.follow_fabric();
        Some(done)
    }

    /// The fabric does what is due, unless that was done earlier.
    pub(super) fn work_of_fabric(&mut self) {
        let (at, now) = (self.shared.clock.nanos(), self.elapsed());
        let Some(laid) = self.fabric.as_mut().filter(|laid| laid.work_at == Some(at)) else { return };
        laid.work_at = None;
        run_due(&mut laid.fabric, now);
        self.note("fabric", &[]);
        self.follow_fabric();
    }

    /// What follows from what was done to the fabric: processes are told, and its next work has its
    /// time.
    fn follow_fabric(&mut self) {
        let now = self.elapsed();
        let Some(mut laid) = self.fabric.take() else { return };
        laid.fabric.settle(now);
        for (to, mad) in laid.take_answers() {
            let time = 2 * self.network.faults.delay;
            self.schedule(time, What::Mad { to, mad });
        }
        for (host, interface) in laid.take_changed() {
            self.change_interface(host, |own| {
                (own.up, own.infiniband) = (interface.up, interface.infiniband)
            });
        }
        if let Some(at) = laid.fabric.deadline() {
            let at = if at > now { at } else { now + self.dice.duration(REACTION) };
            let at = nanos(at).max(self.shared.clock.nanos());
            if laid.work_at.is_none_or(|before| at < before) {
                laid.work_at = Some(at);
                self.schedule_at(at, What::Fabric);
            }
        }
        self.fabric = Some(laid);
    }

    /// Whether a process of a fabric's host has asked the administration of the subnet.
    pub(super) fn ask_fabric(&mut self, from: ProcessId, to: LidAddress, mad: &[u8; MAD_LEN]) -> bool {
        let now = self.elapsed();
        let Some(host) = self.node(from).map(|node| node.env().host()) else { return false };
        let asked = self.fabric.as_mut().is_some_and(|laid| laid.ask(now, (from, host), to, mad));
        self.follow_fabric();
        asked
    }
}
