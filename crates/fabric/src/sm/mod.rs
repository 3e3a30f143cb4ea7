//! A subnet manager inside the process of the fabric (IBA 1.4 §14.4). It opens a umad port as a
//! program does, and speaks to nodes and programs by MADs alone.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | `Manager`: its role, its sweeps, and when it has something to do |
//! | `mads` | requests under way, and what comes in |
//! | `topology` | what it has found |
//! | `discovery` | answers of nodes become a topology |
//! | `configuration` | LIDs, states, tables |
//! | `routing` | forwarding tables |
//! | `election` | other subnet managers |
//! | `administration` | subnet administration: records for programs |
//! | `paths`, `groups` | path records; multicast groups and their tables |
//! | `partitions` | the P_Keys of ports |
//! | `services` | service records |
//! | `start` | which ports get a manager |

mod administration;
mod configuration;
mod discovery;
mod election;
mod groups;
mod mads;
mod partitions;
mod paths;
mod routing;
mod services;
mod start;
mod topology;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use wire::mad::{PortInfo, PortState, SmInfo, SmState};

use crate::fabric::{ClientId, Fabric};
use election::Watched;
use groups::Groups;
use mads::Job;
use partitions::Partitions;
use routing::{Graph, Router};
use services::Services;
pub use start::{MAX_LMC, MAX_MANAGERS, TooManySubnets};
use topology::{At, Topology};

/// The priority, the lowest: an OpenSM of any other takes over.
const PRIORITY: u8 = 0;
/// Requests under way at most.
const WINDOW: usize = 128;
/// Steps before programs and commands have their turn.
const SLICE: u32 = 2048;
/// Steps that one switch in the computation of tables counts as.
const ROUTING_STEPS: u32 = 128;
/// After a sweep that some node has not answered, and while there are no switches to send traps.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// Between two questions to another manager.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// What the manager says to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SmEvent {
    /// All that was found is configured.
    SubnetUp {
        /// Nodes.
        nodes: usize,
        /// Ports that are active, port 0 of switches not among them.
        ports: usize,
        /// When the manager began.
        since: Duration,
    },
    /// Another manager has the subnet.
    GaveWay {
        /// The GUID of its port.
        guid: u64,
        /// The priority of that manager.
        priority: u8,
    },
}

/// What the managers of a fabric have done, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmStatus {
    /// Managers that are master of their subnet.
    pub masters: u64,
    /// Sweeps that have ended.
    pub sweeps: u64,
    /// Requests to nodes.
    pub requests: u64,
    /// Requests that had no answer, or one that refuses.
    pub failed: u64,
    /// Requests of programs.
    pub queries: u64,
    /// Multicast groups with their broadcast groups.
    pub groups: u64,
}

/// What a sweep is doing.
#[derive(Debug)]
enum Phase {
    /// None: all is as it shall be.
    Idle,
    /// Nodes are asked what they are.
    Discover,
    /// Ports get LIDs and become armed.
    Configure,
    /// Tables are computed.
    Route(Box<Router>),
    /// Tables are written.
    Forward,
    /// Ports become active.
    Activate,
}

/// A table as the switch has it: what it has acknowledged.
#[derive(Debug, Default)]
struct Written {
    linear: Vec<u8>,
    multicast: BTreeMap<(u8, u16), [u16; 32]>,
}

/// The numbers of the manager's agents.
#[derive(Clone, Copy, Debug)]
struct Agents {
    directed: u32,
    by_lid: u32,
    administration: u32,
}

/// A subnet manager.
#[derive(Debug)]
pub(crate) struct Manager {
    client: ClientId,
    agents: Agents,
    guid: u64,
    lmc: u8,
    state: SmState,
    phase: Phase,
    /// As the last sweep left it; what a sweep finds is in `found` until it ends.
    known: Topology,
    found: Topology,
    own: At,
    /// The switches as the last tables have them.
    graph: Graph,
    /// The LIDs of each port that ever had some, by GUID.
    lids: BTreeMap<u64, Range<u16>>,
    written: BTreeMap<u64, Written>,
    groups: Groups,
    services: Services,
    partitions: Partitions,
    jobs: VecDeque<Job>,
    pending: BTreeMap<u32, Job>,
    last_tid: u32,
    /// Something has changed since the sweep began.
    is_dirty: bool,
    /// The manager has just become the master: everything is written, and clients register again.
    is_new: bool,
    has_failed: bool,
    began: Duration,
    next_sweep: Option<Duration>,
    next_poll: Option<Duration>,
    activity: u32,
    /// Other managers that discovery has found.
    heard: Vec<(At, SmInfo)>,
    /// Ports with other managers that are to be asked again.
    others: BTreeSet<At>,
    /// Of a standby.
    master: Option<Watched>,
    status: SmStatus,
    events: Vec<SmEvent>,
}

impl Manager {
    /// Whether there is something to do now.
    fn has_work(&self, fabric: &Fabric) -> bool {
        fabric.front(self.client).is_some()
            || self.can_send()
            || (self.pending.is_empty() && self.jobs.is_empty() && !matches!(self.phase, Phase::Idle))
    }

    fn can_send(&self) -> bool {
        !self.jobs.is_empty() && self.pending.len() < WINDOW
    }

    fn deadline(&self, fabric: &Fabric) -> Option<Duration> {
        if self.has_work(fabric) {
            return Some(Duration::ZERO);
        }
        [self.next_sweep, self.next_poll].into_iter().flatten().min()
    }

    /// Does what is to be done now, as much as a slice.
    fn run(&mut self, now: Duration, fabric: &mut Fabric) {
        if self.next_poll.is_some_and(|at| at <= now) {
            self.poll(now);
        }
        if self.next_sweep.is_some_and(|at| at <= now) {
            self.sweep(now);
        }
        let mut steps = 0;
        while steps < SLICE {
            steps += 1;
            if let Some(message) = fabric.front(self.client) {
                let message = message.to_vec();
                fabric.pop(self.client);
                self.on_message(now, fabric, &message);
            } else if self.can_send() {
                if let Some(job) = self.jobs.pop_front() {
                    self.send_job(now, fabric, job);
                }
            } else if !self.pending.is_empty() || matches!(self.phase, Phase::Idle) {
                return;
            } else {
                steps += self.advance(now);
            }
        }
    }

    /// Begins a sweep, now or when the one under way has ended.
    fn sweep(&mut self, now: Duration) {
        if !matches!(self.phase, Phase::Idle) {
            self.is_dirty = true;
            return;
        }
        self.found = Topology::new(self.lmc);
        (self.is_dirty, self.has_failed, self.began) = (false, false, now);
        self.heard.clear();
        self.next_sweep = None;
        self.phase = Phase::Discover;
        self.jobs.push_back(Job::FirstNode);
    }

    /// All requests of a phase are answered: the next one. How many steps that counts as.
    fn advance(&mut self, now: Duration) -> u32 {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Discover => self.discovered(now),
            Phase::Configure => self.phase = Phase::Route(Box::new(Router::new(self.found.graph()))),
            Phase::Route(mut router) => {
                if router.step() {
                    self.phase = Phase::Route(router);
                    return ROUTING_STEPS;
                }
                self.forward(*router);
                self.phase = Phase::Forward;
            }
            Phase::Forward => {
                self.activate();
                self.phase = Phase::Activate;
            }
            Phase::Activate => self.swept(now),
        }
        0
    }

    /// A sweep has ended.
    fn swept(&mut self, now: Duration) {
        self.known = std::mem::take(&mut self.found);
        // What switches have acknowledged is enough: of a large subnet each copy is tens of
        // megabytes.
        self.known.nodes.iter_mut().for_each(|node| node.linear = Vec::new());
        self.status.sweeps += 1;
        if std::mem::take(&mut self.is_new) {
            let is_active = |info: &PortInfo| info.state == PortState::Active;
            let ports = self.known.ports().filter(|(at, info)| !self.known.is_port_0(*at) && is_active(info));
            let (nodes, ports) = (self.known.nodes.len(), ports.count());
            self.say(SmEvent::SubnetUp { nodes, ports, since: self.began });
        }
        // Members whose ports are gone leave; the ways of the others may be new.
        self.groups.retain_ports(&self.known);
        self.write_groups();
        let has_switches = self.known.nodes.iter().any(|node| node.switch.is_some());
        if self.has_failed || !has_switches {
            self.next_sweep = Some(now + SWEEP_PERIOD);
        }
        self.watch_others(now);
        if self.is_dirty {
            self.sweep(now);
        }
    }

    fn fail(&mut self) {
        self.has_failed = true;
        self.status.failed += 1;
    }

    fn say(&mut self, event: SmEvent) {
        /// What the environment does not take.
        const MAX_EVENTS: usize = 64;
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        }
    }
}

impl Fabric {
    /// When a manager has something to do.
    pub(crate) fn managers_deadline(&self) -> Option<Duration> {
        self.managers.iter().filter_map(|manager| manager.deadline(self)).min()
    }

    /// Lets each manager do what is due.
    pub(crate) fn run_managers(&mut self, now: Duration) {
        let mut managers = std::mem::take(&mut self.managers);
        for manager in &mut managers {
            manager.run(now, self);
        }
        self.managers = managers;
    }

    /// What the managers have to say since the last call.
    pub fn take_sm_events(&mut self) -> Vec<SmEvent> {
        self.managers.iter_mut().flat_map(|manager| std::mem::take(&mut manager.events)).collect()
    }

    /// What the managers have done; `None` where there is none.
    pub fn sm_status(&self) -> Option<SmStatus> {
        let all = self.managers.iter().map(|manager| SmStatus {
            masters: u64::from(manager.state == SmState::Master),
            groups: manager.groups.len() as u64,
            ..manager.status
        });
        all.reduce(|sum, one| SmStatus {
            masters: sum.masters + one.masters,
            sweeps: sum.sweeps + one.sweeps,
            requests: sum.requests + one.requests,
            failed: sum.failed + one.failed,
            queries: sum.queries + one.queries,
            groups: sum.groups + one.groups,
        })
    }
}
