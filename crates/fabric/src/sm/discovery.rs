//! Discovery: each answer of a node leads to further questions, until all that is linked is found.

use std::time::Duration;

use wire::mad::smp::Smp;
use wire::mad::{NodeInfo, NodeType, PortInfo, PortState, capability};

use super::mads::Job;
use super::topology::At;
use super::{Manager, Phase};
use crate::net::MAX_NODES;

impl Manager {
    /// A node has said what it is.
    pub(super) fn on_node(&mut self, job: Job, info: NodeInfo, smp: &Smp) {
        let hops = usize::from(smp.hop_count());
        let path = smp.initial_path.get(1..=hops).unwrap_or_default().to_vec();
        let is_switch = info.kind == NodeType::Switch;
        let arrived = info.local_port;
        if self.found.nodes.len() >= MAX_NODES || arrived > info.ports {
            return self.fail();
        }
        let (node, is_new) = self.found.add(info, path);
        let here = (node, arrived);
        match job {
            Job::NextNode(from) => self.found.link(from, here),
            _ => self.own = (node, if is_switch { 0 } else { arrived }),
        }
        if is_new {
            self.jobs.push_back(Job::Description(node));
        }
        if !is_switch {
            self.jobs.push_back(Job::PortInfo(here));
        } else if is_new {
            self.jobs.push_back(Job::SwitchInfo(node));
            self.jobs.extend((0..=info.ports).map(|number| Job::PortInfo((node, number))));
        }
    }

    /// A port has said how it is, when asked or after a change.
    pub(super) fn on_port(&mut self, job: Job, at: At, info: PortInfo) {
        let is_end = self.found.is_end(at);
        let is_switch = self.found.node(at.0).is_some_and(|node| node.info.kind == NodeType::Switch);
        let is_port_0 = is_switch && at.1 == 0;
        let Some(port) = self.found.port_mut(at) else { return };
        port.info = Some(info);
        if !matches!(job, Job::PortInfo(_)) {
            return;
        }
        let has_link = info.state > PortState::Down && !is_port_0 && port.peer.is_none();
        if has_link && (is_switch || at == self.own) {
            self.jobs.push_back(Job::NextNode(at));
        }
        if is_end && at != self.own && info.capabilities & capability::IS_SM != 0 {
            self.jobs.push_back(Job::SmInfo(at));
        }
    }

    /// All is found: it is configured, if no other manager has the subnet.
    pub(super) fn discovered(&mut self, now: Duration) {
        if self.is_to_configure(now) {
            self.configure();
            self.phase = Phase::Configure;
        }
    }
}
