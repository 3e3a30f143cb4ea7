//! What a user does to a fabric, and asks of it, by the names of nodes.

use std::fmt::Write as _;

use wire::mad::perf::PortCounters;
use wire::mad::{NodeType, PhysicalState, PortState};

use crate::counters::Counter;
use crate::fabric::Fabric;
use crate::hosts::host_of;
use crate::net::{MILLION, rate_of};
use crate::route::{Lost, TRACE};
use crate::subnet::{NodeId, PortId};

/// Why a fault is not brought about, or a question not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each says what it is")]
pub enum FaultError {
    #[error("there is no node {0:?}")]
    NoNode(String),
    #[error("{0:?} are several nodes: name one by its GUID, as 0x2c9...")]
    SeveralNodes(String),
    #[error("{node:?} has no port {port}")]
    NoPort { node: String, port: u8 },
    #[error("port {port} of {node:?} has no cable")]
    NoCable { node: String, port: u8 },
    #[error("there is no counter {0:?}; perfquery(8) prints their names")]
    NoCounter(String),
    #[error("the ends of the link cannot do {0:?}; a rate is 4xEDR, 1xSDR")]
    NoRate(String),
    #[error("{0:?} has no LID: no subnet manager has given it one")]
    NoLid(String),
}

/// A step of a way: out of a port, into the next node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node that the packet leaves, and by which port.
    pub from: (String, u8),
    /// The node that it comes to, and by which port.
    pub to: (String, u8),
}

/// How many nodes, links and ports there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Nodes.
    pub nodes: usize,
    /// Of them switches.
    pub switches: usize,
    /// Cables.
    pub links: usize,
    /// Ports with a cable.
    pub linked_ports: usize,
    /// Of them those whose state is active.
    pub active_ports: usize,
}

impl Fabric {
    /// A node by its description, the first word of one, its name in the net file, or its GUID.
    ///
    /// # Errors
    ///
    /// None, or several.
    pub fn find(&self, name: &str) -> Result<NodeId, FaultError> {
        let guid = name.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let nodes = || self.subnet.nodes.iter().enumerate();
        let exact = nodes().filter(|(_, node)| {
            node.description == name || node.name == name || guid.is_some_and(|guid| node.guid.0 == guid)
        });
        let host = nodes().filter(|(_, node)| host_of(&node.description) == name || node.host() == name);
        for mut found in [exact.collect::<Vec<_>>(), host.collect()] {
            match (found.pop(), found.is_empty()) {
                (Some((index, _)), true) => return Ok(NodeId(index as u32)),
                (Some(_), false) => return Err(FaultError::SeveralNodes(name.to_owned())),
                (None, _) => {}
            }
        }
        Err(FaultError::NoNode(name.to_owned()))
    }

    pub(crate) fn find_port(&self, node: &str, port: u8) -> Result<PortId, FaultError> {
        let id = self.find(node)?;
        if port > self.subnet.node(id).ports {
            return Err(FaultError::NoPort { node: node.to_owned(), port });
        }
        Ok(self.subnet.port_of(id, port))
    }

    /// Cuts the cable at a port, or mends it.
    ///
    /// # Errors
    ///
    /// No such port, or one without a cable.
    pub fn set_cut(&mut self, node: &str, port: u8, cut: bool) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        let no_cable = || FaultError::NoCable { node: node.to_owned(), port };
        self.subnet.port(at).peer.ok_or_else(no_cable)?;
        self.subnet.set_cut(at, cut);
        Ok(())
    }

    /// Sets a counter of a port.
    ///
    /// # Errors
    ///
    /// No such port or counter.
    pub fn set_counter(&mut self, node: &str, port: u8, name: &str, value: u64) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        let counter = Counter::named(name).ok_or_else(|| FaultError::NoCounter(name.to_owned()))?;
        self.fold_plane();
        counter.set(&mut self.subnet.port_mut(at).counters, value);
        Ok(())
    }

    /// The counters of a port, with what programs have sent so far.
    ///
    /// # Errors
    ///
    /// No such port.
    pub fn counters_of(&mut self, node: &str, port: u8) -> Result<PortCounters, FaultError> {
        let at = self.find_port(node, port)?;
        self.fold_plane();
        Ok(self.subnet.port(at).counters)
    }

    /// Loses so many of a million packets that leave a port, at most all.
    ///
    /// # Errors
    ///
    /// No such port.
    pub fn set_drop(&mut self, node: &str, port: u8, ppm: u32) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        self.subnet.port_mut(at).drop_ppm = ppm.min(MILLION);
        self.subnet.changed.push(at);
        Ok(())
    }

    /// Damages so many of a million packets that leave a port: the other end counts symbol errors
    /// and throws them away.
    ///
    /// # Errors
    ///
    /// No such port.
    pub fn set_damage(&mut self, node: &str, port: u8, ppm: u32) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        self.subnet.port_mut(at).damage_ppm = ppm.min(MILLION);
        self.subnet.changed.push(at);
        Ok(())
    }

    /// Trains a link anew, with fewer lanes or a lower speed, or with all that both ends can do.
    ///
    /// # Errors
    ///
    /// No such port, no cable, or a rate that the ends cannot do.
    pub fn set_rate(&mut self, node: &str, port: u8, rate: &str) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        let no_cable = || FaultError::NoCable { node: node.to_owned(), port };
        let peer = self.subnet.port(at).peer.ok_or_else(no_cable)?;
        let no_rate = || FaultError::NoRate(rate.to_owned());
        let (width, speed) = rate_of(rate).ok_or_else(no_rate)?;
        let (plain, extended) = speed.codes();
        for at in [at, peer] {
            let info = &self.subnet.port(at).info;
            let has = width as u8 & info.width_supported != 0
                && plain & info.speed_supported != 0
                && (extended == 0 || extended & info.extended_speed_supported != 0);
            if !has {
                return Err(no_rate());
            }
        }
        self.subnet.take_down(at);
        for at in [at, peer] {
            let info = &mut self.subnet.port_mut(at).info;
            info.width_active = width as u8;
            (info.speed_active, info.extended_speed_active) = (plain, extended);
        }
        self.subnet.train(at);
        Ok(())
    }

    /// Freezes a node: its management agents are silent, packets pass. Or ends that.
    ///
    /// # Errors
    ///
    /// No such node.
    pub fn set_frozen(&mut self, node: &str, frozen: bool) -> Result<(), FaultError> {
        let id = self.find(node)?;
        self.subnet.node_mut(id).frozen = frozen;
        Ok(())
    }

    /// The way that packets take now from one node's first linked port to another's, as far as it
    /// goes, and why it ends early.
    ///
    /// # Errors
    ///
    /// No such node, or one without a LID.
    pub fn trace(&mut self, from: &str, to: &str) -> Result<(Vec<Hop>, Option<Lost>), FaultError> {
        let [start, end] = [self.end(from)?, self.end(to)?];
        let lid = self.subnet.port(end).info.lid;
        if lid == 0 {
            return Err(FaultError::NoLid(to.to_owned()));
        }
        let mut ports = Vec::new();
        let lost = match self.subnet.route(start, lid, TRACE, |out, next| ports.push((out, next))) {
            Ok(at) if at == end => None,
            Ok(_) => Some(Lost::OtherSubnet),
            Err(lost) => Some(lost),
        };
        let named = |at: PortId| (self.subnet.node_at(at).description.clone(), self.subnet.port(at).number);
        let hops = ports.into_iter().map(|(out, next)| Hop { from: named(out), to: named(next) });
        Ok((hops.collect(), lost))
    }

    /// The port by which a node is reached: port 0 of a switch, the first linked one of an adapter.
    fn end(&self, name: &str) -> Result<PortId, FaultError> {
        let id = self.find(name)?;
        let node = self.subnet.node(id);
        if node.switch.is_some() {
            return Ok(self.subnet.port_of(id, 0));
        }
        let ports = (1..=node.ports).map(|number| self.subnet.port_of(id, number));
        let linked = ports.into_iter().find(|at| self.subnet.port(*at).peer.is_some());
        linked.ok_or_else(|| FaultError::NoCable { node: name.to_owned(), port: 1 })
    }

    /// Counts what there is.
    pub fn census(&self) -> Census {
        let linked = self.subnet.ports.iter().filter(|port| port.peer.is_some());
        let active = linked.clone().filter(|port| port.info.state == PortState::Active);
        let switches = self.subnet.nodes.iter().filter(|node| node.switch.is_some());
        Census {
            nodes: self.subnet.nodes.len(),
            switches: switches.count(),
            links: linked.clone().count() / 2,
            linked_ports: linked.count(),
            active_ports: active.count(),
        }
    }

    /// The ports of a node, a line each; of all nodes without a name.
    ///
    /// # Errors
    ///
    /// No such node.
    pub fn show(&self, name: Option<&str>) -> Result<String, FaultError> {
        let mut text = String::new();
        let all = match name {
            Some(name) => vec![self.find(name)?],
            None => (0..self.subnet.nodes.len() as u32).map(NodeId).collect(),
        };
        for id in all {
            // Writing to a string does not fail.
            let _ = self.show_node(&mut text, id);
        }
        let refused = self.refused_rows();
        if name.is_none() && refused != 0 {
            let _ = writeln!(text, "paths without a row, whose packets are lost: {refused}");
        }
        Ok(text)
    }

    fn show_node(&self, text: &mut String, id: NodeId) -> std::fmt::Result {
        let node = self.subnet.node(id);
        let frozen = if node.frozen { ", frozen" } else { "" };
        let kind = match node.kind {
            NodeType::Ca => "adapter",
            NodeType::Switch => "switch",
            NodeType::Router => "router",
        };
        writeln!(text, "{} ({kind} {:#018x}{frozen})", node.description, node.guid.0)?;
        for number in u8::from(node.switch.is_none())..=node.ports {
            let port = self.subnet.port(self.subnet.port_of(id, number));
            if port.peer.is_none() && number != 0 {
                continue;
            }
            let lid = if port.info.lid == 0 { String::new() } else { format!(" lid {}", port.info.lid) };
            let state = state(port.cut, port.info.state, port.info.physical_state);
            write!(text, "  {number:>3} {state:<8}{lid}")?;
            if let Some(peer) = port.peer {
                let (there, peer) = (self.subnet.node_at(peer), self.subnet.port(peer));
                write!(text, " -> {} {}", there.description, peer.number)?;
            }
            if let Some(address) = self.ipoib_address(self.subnet.port_of(id, number)) {
                write!(text, " ip {address}")?;
            }
            for (name, ppm) in [("drop", port.drop_ppm), ("damage", port.damage_ppm)] {
                if ppm != 0 {
                    write!(text, " {name} {}%", f64::from(ppm) / 10_000.0)?;
                }
            }
            writeln!(text)?;
        }
        Ok(())
    }
}

fn state(cut: bool, state: PortState, physical: PhysicalState) -> &'static str {
    match (cut, state) {
        (true, _) => "cut",
        (_, PortState::Down | PortState::NoChange) if physical == PhysicalState::Disabled => "disabled",
        (_, PortState::Down | PortState::NoChange) => "down",
        (_, PortState::Init) => "init",
        (_, PortState::Armed) => "armed",
        (_, PortState::Active) => "active",
    }
}
