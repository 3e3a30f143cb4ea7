//! What a sweep sets: LIDs, MTUs and lanes, partitions, forwarding tables, states. Only what
//! differs from what a node has said or acknowledged is sent.

use wire::mad::smp::{Data, attribute};
use wire::mad::{NodeType, PhysicalState, PortInfo, PortState, SwitchInfo, method};

use super::Manager;
use super::mads::Job;
use super::routing::Router;
use super::topology::At;
use crate::plane::{ENFORCES_IN, ENFORCES_OUT};

/// Life times and timeouts: 4.096 µs times two to the power of it.
const TIMEOUT: u8 = 18;
/// LIDs of a block of a linear forwarding table.
const BLOCK: usize = 64;
const NO_PORT: u8 = 255;

impl Manager {
    /// LIDs for all, and what follows from them.
    pub(super) fn configure(&mut self) {
        for _ in 0..self.found.assign_lids(&mut self.lids) {
            self.fail();
        }
        let is_unknown =
            |at: &At| self.found.port(*at).is_some_and(|port| self.known.at_guid(port.guid).is_none());
        let ends = self.found.ends().filter(|at| self.is_new || is_unknown(at));
        // Tables first: what a switch's port enforces is there before it enforces it.
        let tables: Vec<At> = ends.flat_map(|at| [Some(at), self.enforcer(at)]).flatten().collect();
        self.jobs.extend(tables.into_iter().map(Job::PartitionTable));
        let ports = self.found.ports().map(|(at, _)| at);
        let changed: Vec<At> = ports.filter(|at| self.wanted(*at).is_some()).collect();
        self.jobs.extend(changed.into_iter().map(Job::Configure));
    }

    /// The port of a switch that keeps a port to its partitions: the one that the cable leads to,
    /// if the file gives that port P_Keys.
    fn enforcer(&self, end: At) -> Option<At> {
        let port = self.found.port(end).filter(|port| self.partitions.has_own(port.guid))?;
        port.peer.filter(|peer| !self.found.is_end(*peer))
    }

    /// What a port enforces: partitions, where it is a switch's and leads to an adapter that has
    /// P_Keys of the file. A port between switches stays as it is.
    fn enforcement(&self, at: At, peer: At, old: u8) -> u8 {
        if self.found.is_end(at) || !self.found.is_end(peer) {
            return old;
        }
        let bits = ENFORCES_IN | ENFORCES_OUT;
        if self.enforcer(peer) == Some(at) { old | bits } else { old & !bits }
    }

    /// How a port shall be, where that differs from how it is.
    fn wanted(&self, at: At) -> Option<PortInfo> {
        let port = self.found.port(at)?;
        let old = port.info?;
        let mut new = old;
        if self.found.is_end(at) {
            (new.lid, new.sm_lid) = (port.lid, self.found.lid(self.own));
            let lmc = if self.found.is_port_0(at) { 0 } else { self.lmc };
            (new.lmc, new.sm_sl, new.subnet_timeout) = (lmc, 0, TIMEOUT);
        }
        if let Some((end, peer)) = port.peer.and_then(|peer| Some((peer, self.found.info(peer)?))) {
            new.enforcement = self.enforcement(at, end, old.enforcement);
            new.neighbour_mtu = old.mtu_cap.min(peer.mtu_cap);
            new.operational_vls = old.vl_cap.min(peer.vl_cap);
            if old.state == PortState::Init {
                new.state = PortState::Armed;
            }
        }
        (new != old || self.is_to_reregister(at)).then_some(new)
    }

    /// Whether clients of a port have to register again: another manager was the master before.
    fn is_to_reregister(&self, at: At) -> bool {
        let is_adapter = self.found.node(at.0).is_some_and(|node| node.info.kind == NodeType::Ca);
        let had_other = self.found.info(at).is_some_and(|info| info.sm_lid != 0);
        self.is_new && is_adapter && had_other
    }

    /// The request of a job that changes something.
    pub(super) fn set_request(&self, job: Job) -> Option<(Vec<u8>, u8, u16, u32, Data)> {
        let set = |at: At, attribute: u16, modifier: u32, data: Data| {
            Some((self.found.path(at)?.to_vec(), method::SET, attribute, modifier, data))
        };
        match job {
            Job::Configure(at) => {
                let (old, new) = (self.found.info(at)?, self.wanted(at)?);
                let state = if new.state == old.state { PortState::NoChange } else { new.state };
                let client_reregister = self.is_to_reregister(at);
                let data = change(PortInfo { state, client_reregister, ..new });
                set(at, attribute::PORT_INFO, at.1.into(), data)
            }
            Job::Activate(at) => {
                let data = change(PortInfo { state: PortState::Active, ..*self.found.info(at)? });
                set(at, attribute::PORT_INFO, at.1.into(), data)
            }
            Job::PartitionTable(at) => {
                let port = self.found.port(at)?;
                let (guid, modifier) = match port.peer.filter(|_| !self.found.is_end(at)) {
                    Some(peer) => (self.found.port(peer)?.guid, u32::from(at.1) << 16),
                    None => (port.guid, 0),
                };
                set(at, attribute::PKEY_TABLE, modifier, self.partitions.block(guid))
            }
            Job::SetSwitch(node) => {
                set((node, 0), attribute::SWITCH_INFO, 0, self.wanted_switch(node)?.emit())
            }
            Job::Linear(node, block) => {
                let table = self.found.node(node)?.linear.as_chunks::<BLOCK>().0;
                let data = *table.get(usize::from(block))?;
                set((node, 0), attribute::LINEAR_FORWARDING, block.into(), data)
            }
            Job::Multicast(node, position, block) => {
                let guid = self.known.node(node)?.info.node.0;
                let path = self.known.path((node, 0))?.to_vec();
                let modifier = u32::from(position) << 28 | u32::from(block);
                let data = self.groups.block(guid, position, block);
                Some((path, method::SET, attribute::MULTICAST_FORWARDING, modifier, data))
            }
            _ => None,
        }
    }

    fn wanted_switch(&self, node: u32) -> Option<SwitchInfo> {
        let node = self.found.node(node)?;
        let top = node.linear.iter().rposition(|port| *port != NO_PORT).unwrap_or(0);
        // PortStateChange is cleared by writing 1.
        Some(SwitchInfo { linear_top: top as u16, life_time: TIMEOUT, ..node.switch? })
    }

    /// Tables are computed: what differs is written.
    pub(super) fn forward(&mut self, router: Router) {
        self.graph = router.graph;
        for (node, mut table) in self.graph.nodes.clone().into_iter().zip(router.tables) {
            let Some(found) = self.found.node_mut(node) else { continue };
            let written = self.written.entry(found.info.node.0).or_default();
            // A block that no LID is in any more leads nowhere.
            table.resize(table.len().max(written.linear.len()), NO_PORT);
            found.linear = table;
            let (new, old) = (found.linear.as_chunks::<BLOCK>().0, written.linear.as_chunks::<BLOCK>().0);
            let blocks = new.iter().enumerate().filter(|(block, data)| old.get(*block) != Some(*data));
            let blocks: Vec<u16> = blocks.map(|(block, _)| block as u16).collect();
            self.jobs.extend(blocks.into_iter().map(|block| Job::Linear(node, block)));
            let old = self.found.node(node).and_then(|node| node.switch);
            if self.wanted_switch(node) != old || old.is_some_and(|old| old.port_state_change) {
                self.jobs.push_back(Job::SetSwitch(node));
            }
        }
    }

    /// A switch has acknowledged a block of its table.
    pub(super) fn linear_written(&mut self, node: u32, block: u16) {
        let Some(node) = self.found.node(node) else { return };
        let begin = usize::from(block) * BLOCK;
        let Some(data) = node.linear.get(begin..begin + BLOCK) else { return };
        let table = &mut self.written.entry(node.info.node.0).or_default().linear;
        if table.len() < begin + BLOCK {
            table.resize(begin + BLOCK, NO_PORT);
        }
        table[begin..begin + BLOCK].copy_from_slice(data);
    }

    /// Tables are written: packets may pass.
    pub(super) fn activate(&mut self) {
        let armed = self.found.ports().filter(|(at, info)| {
            info.state == PortState::Armed && self.found.port(*at).is_some_and(|port| port.peer.is_some())
        });
        self.jobs.extend(armed.map(|(at, _)| Job::Activate(at)));
    }
}

/// A Set that changes nothing of the physical layer.
fn change(info: PortInfo) -> Data {
    PortInfo {
        physical_state: PhysicalState::NoChange,
        down_default: 0,
        width_enabled: 0,
        speed_enabled: 0,
        extended_speed_enabled: 0,
        ..info
    }
    .emit()
}
