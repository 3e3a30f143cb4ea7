//! What discovery has found: nodes, ports, links, and the directed route to each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use wire::mad::smp::Data;
use wire::mad::{NodeInfo, NodeType, PortInfo, PortState, SwitchInfo, capability};

use super::routing::Graph;

/// The highest unicast LID (IBA 1.4 §4.1.3).
const MAX_UNICAST: u16 = 0xbfff;

/// A port by its node, as a number in [`Topology::nodes`], and its own number.
pub(super) type At = (u32, u8);

/// A node that discovery has found.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) description: Data,
    pub(super) switch: Option<SwitchInfo>,
    /// The way to each port with a LID by which the node was found.
    pub(super) paths: BTreeMap<u8, Vec<u8>>,
    /// By number.
    pub(super) ports: Vec<Port>,
    /// The linear forwarding table that the switch is to have; empty once the sweep has ended.
    pub(super) linear: Vec<u8>,
}

/// A port of such a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    pub(super) guid: u64,
    /// The LID that the port is to have.
    pub(super) lid: u16,
    /// `None` until its agent has answered.
    pub(super) info: Option<PortInfo>,
    pub(super) peer: Option<At>,
}

/// A subnet.
#[derive(Debug, Default)]
pub(super) struct Topology {
    pub(super) nodes: Vec<Node>,
    /// Adapters have two to the power of it LIDs.
    lmc: u8,
    by_guid: BTreeMap<u64, u32>,
    by_lid: BTreeMap<u16, At>,
    by_port_guid: BTreeMap<u64, At>,
}

impl Topology {
    /// Nothing yet, of a subnet with this LMC.
    pub(super) fn new(lmc: u8) -> Self {
        Self { lmc, ..Self::default() }
    }

    /// Takes a node's answer, which came along this way. True where the node was not known.
    pub(super) fn add(&mut self, info: NodeInfo, path: Vec<u8>) -> (u32, bool) {
        let is_switch = info.kind == NodeType::Switch;
        let (index, is_new) = match self.by_guid.get(&info.node.0) {
            Some(index) => (*index, false),
            None => {
                let index = self.nodes.len() as u32;
                self.by_guid.insert(info.node.0, index);
                self.nodes.push(Node {
                    info,
                    description: [0; 64],
                    switch: None,
                    paths: BTreeMap::new(),
                    ports: vec![Port::default(); usize::from(info.ports) + 1],
                    linear: Vec::new(),
                });
                (index, true)
            }
        };
        let node = &mut self.nodes[index as usize];
        let end = if is_switch { 0 } else { info.local_port };
        if let Some(port) = node.ports.get_mut(usize::from(end)) {
            port.guid = info.port.0;
            node.paths.entry(end).or_insert(path);
        }
        (index, is_new)
    }

    /// Notes a link at both ends.
    pub(super) fn link(&mut self, a: At, b: At) {
        for (at, peer) in [(a, b), (b, a)] {
            if let Some(port) = self.port_mut(at) {
                port.peer = Some(peer);
            }
        }
    }

    pub(super) fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    pub(super) fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    pub(super) fn port(&self, (node, number): At) -> Option<&Port> {
        self.node(node)?.ports.get(usize::from(number))
    }

    pub(super) fn port_mut(&mut self, (node, number): At) -> Option<&mut Port> {
        self.node_mut(node)?.ports.get_mut(usize::from(number))
    }

    pub(super) fn info(&self, at: At) -> Option<&PortInfo> {
        self.port(at)?.info.as_ref()
    }

    /// The directed route by which a port's agent is asked: of a switch that of port 0.
    pub(super) fn path(&self, (node, number): At) -> Option<&[u8]> {
        let node = self.node(node)?;
        let path = node.paths.get(&number).or_else(|| node.paths.values().next())?;
        Some(path)
    }

    /// All ports that have a LID, or are to have one.
    pub(super) fn ends(&self) -> impl Iterator<Item = At> {
        let nodes = self.nodes.iter().enumerate();
        nodes.flat_map(|(index, node)| node.paths.keys().map(move |number| (index as u32, *number)))
    }

    /// All ports that have answered.
    pub(super) fn ports(&self) -> impl Iterator<Item = (At, &PortInfo)> {
        self.nodes.iter().enumerate().flat_map(|(index, node)| {
            let ports = (0u8..).zip(&node.ports);
            ports.filter_map(move |(number, port)| Some(((index as u32, number), port.info.as_ref()?)))
        })
    }

    /// Whether a port is a switch's own port 0.
    pub(super) fn is_port_0(&self, (node, number): At) -> bool {
        number == 0 && self.node(node).is_some_and(|node| node.info.kind == NodeType::Switch)
    }

    /// The port that has a LID.
    pub(super) fn at_lid(&self, lid: u16) -> Option<At> {
        self.by_lid.get(&lid).copied()
    }

    /// The port of a GUID that has a LID.
    pub(super) fn at_guid(&self, guid: u64) -> Option<At> {
        self.by_port_guid.get(&guid).copied()
    }

    /// The first LID that a port is to have.
    pub(super) fn lid(&self, at: At) -> u16 {
        self.port(at).map_or(0, |port| port.lid)
    }

    /// Whether a port has a LID of its own, and was found.
    pub(super) fn is_end(&self, (node, number): At) -> bool {
        self.node(node).is_some_and(|node| node.paths.contains_key(&number))
    }

    /// How many LIDs a port has: those of the LMC, but port 0 of a switch has one.
    fn lid_count(&self, at: At) -> u16 {
        if self.is_port_0(at) { 1 } else { 1 << self.lmc }
    }

    /// The LIDs of a port; none where it has none.
    pub(super) fn lids(&self, at: At) -> Range<u16> {
        let first = self.lid(at);
        let count = if first == 0 { 0 } else { self.lid_count(at) };
        first..first.saturating_add(count)
    }

    /// The LIDs of a port whose first one this is; `None` where they cannot be.
    fn lids_from(&self, at: At, first: u16) -> Option<Range<u16>> {
        let count = self.lid_count(at);
        let end = first.checked_add(count).filter(|end| *end <= MAX_UNICAST + 1)?;
        (first != 0 && first.is_multiple_of(count)).then_some(first..end)
    }

    /// Gives each end its LIDs: those that it has, if no other has them, those that it had, or the
    /// lowest that are free. Ends that no LID is left for are counted.
    pub(super) fn assign_lids(&mut self, remembered: &mut BTreeMap<u64, Range<u16>>) -> usize {
        let ends: Vec<(At, u64)> = self.ends().filter_map(|at| Some((at, self.port(at)?.guid))).collect();
        let mut taken: BTreeMap<u16, At> = BTreeMap::new();
        let is_free =
            |taken: &BTreeMap<u16, At>, lids: &Range<u16>| lids.clone().all(|lid| !taken.contains_key(&lid));
        for (at, _) in &ends {
            let own = self.info(*at).and_then(|info| self.lids_from(*at, info.lid));
            if let Some(own) = own.filter(|own| is_free(&taken, own)) {
                taken.extend(own.map(|lid| (lid, *at)));
            }
        }
        let mut reserved: BTreeSet<u16> = remembered.values().cloned().flatten().collect();
        // Of ports with one LID, and of those with several.
        let mut firsts = [1, 1 << self.lmc].map(|count| (count..=MAX_UNICAST).step_by(count.into()));
        let mut without = 0;
        for (at, guid) in &ends {
            let own = self.info(*at).and_then(|info| self.lids_from(*at, info.lid));
            let own = own.filter(|own| taken.get(&own.start) == Some(at));
            let old = || remembered.get(guid).cloned().filter(|old| is_free(&taken, old));
            let firsts = &mut firsts[usize::from(self.lid_count(*at) > 1)];
            let is_new =
                |lids: &Range<u16>| is_free(&taken, lids) && lids.clone().all(|lid| !reserved.contains(&lid));
            let mut new = || firsts.find_map(|first| self.lids_from(*at, first).filter(is_new));
            let Some(lids) = own.or_else(old).or_else(&mut new) else {
                without += 1;
                continue;
            };
            taken.extend(lids.clone().map(|lid| (lid, *at)));
            reserved.extend(lids.clone());
            if let Some(port) = self.port_mut(*at) {
                port.lid = lids.start;
            }
            remembered.insert(*guid, lids);
        }
        self.by_lid = taken;
        self.by_port_guid = ends.into_iter().map(|(at, guid)| (guid, at)).collect();
        without
    }

    /// Ports but this one whose capabilities say that they have a subnet manager.
    pub(super) fn managers(&self, own: At) -> Vec<At> {
        let is_sm = |at: &At| self.info(*at).is_some_and(|info| info.capabilities & capability::IS_SM != 0);
        self.ends().filter(|at| *at != own && is_sm(at)).collect()
    }

    /// The switches, and what hangs at them, for [`super::routing`].
    pub(super) fn graph(&self) -> Graph {
        let mut place = vec![u32::MAX; self.nodes.len()];
        let is_switch = |node: &Node| node.info.kind == NodeType::Switch;
        let switches: Vec<u32> =
            (0..self.nodes.len() as u32).filter(|index| is_switch(&self.nodes[*index as usize])).collect();
        switches.iter().enumerate().for_each(|(at, node)| place[*node as usize] = at as u32);
        let mut graph = Graph {
            guids: switches.iter().map(|node| self.nodes[*node as usize].info.node.0).collect(),
            links: vec![Vec::new(); switches.len()],
            ends: vec![Vec::new(); switches.len()],
            nodes: switches,
            places: place,
        };
        for (own, node) in graph.nodes.iter().enumerate() {
            graph.ends[own].push((self.lid((*node, 0)), 0));
            for (number, port) in (0u8..).zip(&self.nodes[*node as usize].ports).skip(1) {
                let (Some(info), Some(peer)) = (&port.info, port.peer) else { continue };
                if info.state <= PortState::Down {
                    continue;
                }
                match graph.places.get(peer.0 as usize) {
                    Some(other) if *other == own as u32 => {}
                    Some(other) if *other != u32::MAX => graph.links[own].push((*other, number)),
                    Some(_) => graph.ends[own].extend(self.lids(peer).map(|lid| (lid, number))),
                    None => {}
                }
            }
            graph.ends[own].retain(|(lid, _)| *lid != 0);
        }
        graph
    }
}
