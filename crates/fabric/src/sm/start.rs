//! Which ports get a manager: one in each subnet of the net file. Subnets are apart where no link
//! and no switch joins them; adapters do not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wire::mad::{SmState, class, method, sa};

use super::groups::Groups;
use super::partitions::Partitions;
use super::routing::Graph;
use super::services::Services;
use super::topology::Topology;
use super::{Agents, Manager, Phase, SmStatus};
use crate::agents::{Refusal, Registration};
use crate::fabric::{ClientId, Fabric};
use crate::subnet::{PortId, Subnet};

/// Managers of a fabric at most.
pub const MAX_MANAGERS: usize = 64;
/// The highest LMC (IBA 1.4 §4.1.3).
pub const MAX_LMC: u8 = 7;

/// Why a fabric gets no manager of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooManySubnets {
    /// More subnets than there are managers.
    #[error("the fabric has more than {MAX_MANAGERS} subnets that no link joins")]
    Subnets,
    /// A port takes no agent.
    #[error("a port takes no subnet manager: {0}")]
    Refused(Refusal),
}

impl Fabric {
    /// Starts a subnet manager in each subnet: at the first switch, or where there is none, at the
    /// first adapter. Adapters get two to the power of `lmc` LIDs, of which 7 is the most.
    ///
    /// # Errors
    ///
    /// There are too many subnets.
    pub fn start_managers(&mut self, now: Duration, lmc: u8) -> Result<(), TooManySubnets> {
        let ports = places(&self.subnet);
        if ports.len() > MAX_MANAGERS {
            return Err(TooManySubnets::Subnets);
        }
        let partitions = Partitions::of(&self.subnet);
        for (port, number) in ports.into_iter().zip(0u64..) {
            // Programs are numbered from the other end.
            let client = ClientId(u64::MAX - number);
            self.open(client, port);
            let mut register = |wanted| self.register(client, &wanted).map_err(TooManySubnets::Refused);
            let agents = Agents {
                directed: register(agent(class::SUBN_DIRECTED_ROUTE, &[method::GET, method::SET]))?,
                by_lid: register(agent(class::SUBN_LID_ROUTED, &[method::GET, method::SET, method::TRAP]))?,
                administration: register(agent(
                    class::SUBN_ADM,
                    &[method::GET, method::SET, sa::method::GET_TABLE, sa::method::DELETE],
                ))?,
            };
            self.set_is_sm(port, true);
            let guid = self.subnet.port(port).guid.0;
            self.managers.push(Manager::new(
                now,
                client,
                (agents, guid),
                (lmc.min(MAX_LMC), partitions.clone()),
            ));
        }
        Ok(())
    }
}

/// An agent for these methods of a class.
fn agent(class: u8, methods: &[u8]) -> Registration {
    let mut mask = [0; 2];
    methods.iter().for_each(|method| mask[usize::from(method >> 6 & 1)] |= 1 << (method & 63));
    let is_administration = class == class::SUBN_ADM;
    Registration {
        qpn: u32::from(is_administration),
        class,
        version: if is_administration { sa::VERSION } else { 1 },
        methods: mask,
        rmpp_version: u8::from(is_administration),
        ..Registration::default()
    }
}

/// The port of each subnet that gets a manager.
fn places(subnet: &Subnet) -> Vec<PortId> {
    let mut places = Vec::new();
    let mut seen: BTreeSet<PortId> = BTreeSet::new();
    let all = subnet.all_ports().filter(|at| subnet.port(*at).peer.is_some());
    // Switches first: their port 0 is a manager's place.
    let (switches, adapters): (Vec<_>, Vec<_>) = all.partition(|at| subnet.node_at(*at).switch.is_some());
    for first in switches.into_iter().chain(adapters) {
        if !seen.insert(first) {
            continue;
        }
        places.push(subnet.end_port(first));
        let mut queue = VecDeque::from([first]);
        while let Some(at) = queue.pop_front() {
            let node = subnet.node_at(at);
            let siblings = if node.switch.is_some() { 1..=u32::from(node.ports) } else { 0..=0 };
            let siblings = siblings.filter_map(|number| match number {
                0 => Some(at),
                number => Some(PortId(node.first + number)).filter(|at| subnet.port(*at).peer.is_some()),
            });
            for sibling in siblings {
                seen.insert(sibling);
                if let Some(peer) = subnet.port(sibling).peer
                    && seen.insert(peer)
                {
                    queue.push_back(peer);
                }
            }
        }
    }
    places
}

impl Manager {
    fn new(
        now: Duration,
        client: ClientId,
        (agents, guid): (Agents, u64),
        (lmc, partitions): (u8, Partitions),
    ) -> Self {
        let mut manager = Self {
            client,
            agents,
            guid,
            lmc,
            state: SmState::Discovering,
            phase: Phase::Idle,
            known: Topology::default(),
            found: Topology::default(),
            own: (0, 0),
            graph: Graph::default(),
            lids: BTreeMap::new(),
            written: BTreeMap::new(),
            groups: Groups::default(),
            services: Services::default(),
            partitions,
            jobs: VecDeque::new(),
            pending: BTreeMap::new(),
            last_tid: 0,
            is_dirty: false,
            is_new: false,
            has_failed: false,
            began: now,
            next_sweep: None,
            next_poll: None,
            activity: 0,
            heard: Vec::new(),
            others: BTreeSet::new(),
            master: None,
            status: SmStatus::default(),
            events: Vec::new(),
        };
        manager.sweep(now);
        manager
    }
}
