//! What generators make: switches of one size with hosts, all links of 4x EDR.

use std::collections::BTreeMap;

use wire::Guid;

use super::{Net, NetLink, NetNode, NodeSettings, NodeType, Speed, Width};

const VENDOR: u32 = 0x2c9;
const CA_DEVICE: u16 = 0x1011;
const SWITCH_DEVICE: u16 = 0xcb20;
const CA_GUIDS: u64 = 0x0002_c903_0010_0000;

/// A net under work.
#[derive(Default)]
pub(super) struct Builder {
    nodes: Vec<NetNode>,
    made: BTreeMap<u64, u64>,
}

impl Builder {
    /// A node with the next GUID of its range.
    fn node(&mut self, kind: NodeType, ports: u8, description: String, range: u64) -> usize {
        let count = self.made.entry(range).or_default();
        let guid = Guid(range + *count);
        *count += 1;
        let (letter, device) = if kind == NodeType::Ca { ('H', CA_DEVICE) } else { ('S', SWITCH_DEVICE) };
        self.nodes.push(NetNode {
            kind,
            name: format!("{letter}-{:016x}", guid.0),
            description,
            ports,
            guid,
            system: guid,
            vendor: VENDOR,
            device,
            enhanced_port_0: false,
            links: BTreeMap::new(),
            settings: NodeSettings::default(),
            port_settings: BTreeMap::new(),
        });
        self.nodes.len() - 1
    }

    pub(super) fn switch(&mut self, ports: u8, name: String, range: u64) -> usize {
        self.node(NodeType::Switch, ports, name, range)
    }

    /// Hosts with one port at the first ports of a switch.
    pub(super) fn hosts(&mut self, leaf: usize, count: usize) {
        for port in 1..=count {
            let number = self.made.get(&CA_GUIDS).copied().unwrap_or(0);
            let host = self.node(NodeType::Ca, 1, format!("host{number} mlx5_0"), CA_GUIDS);
            self.link((host, 1), (leaf, port));
        }
    }

    pub(super) fn link(&mut self, a: (usize, usize), b: (usize, usize)) {
        for ((node, port), (peer, peer_port)) in [(a, b), (b, a)] {
            let guid = (self.nodes[node].kind == NodeType::Ca).then_some(self.nodes[node].guid);
            // Each generator has bounded the number of ports.
            let (port, peer_port) = (port as u8, peer_port as u8);
            let link = NetLink { guid, peer, peer_port, width: Width::X4, speed: Speed::Edr };
            self.nodes[node].links.insert(port, link);
        }
    }

    pub(super) fn finish(self) -> Net {
        Net { nodes: self.nodes }.sorted()
    }
}
