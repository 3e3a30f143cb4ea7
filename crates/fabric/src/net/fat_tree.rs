//! Fat trees of switches of one size, all links of the same rate: with radix `k`, two levels have
//! `k²/2` hosts, three levels `k³/4` (Al-Fares et al., SIGCOMM 2008).

use std::collections::BTreeMap;
use std::str::FromStr;

use wire::Guid;

use super::{MAX_NODES, MAX_PORTS, Net, NetLink, NetNode, NodeType, Speed, Width};

/// The size of a fat tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Levels of switches: 2 or 3.
    levels: u8,
    /// Ports of a switch, an even number.
    radix: u8,
}

/// Why two numbers are no fat tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FatTreeError {
    /// The text is not LEVELS,RADIX.
    #[error("a fat tree is LEVELS,RADIX: 2,36")]
    Text,
    /// Other numbers of levels.
    #[error("a fat tree has 2 or 3 levels, not {0}")]
    Levels(u8),
    /// An odd radix, or none that a switch has.
    #[error("a switch of a fat tree has an even number of ports from 2 to {MAX_PORTS}, not {0}")]
    Radix(u8),
    /// More nodes than a fabric has.
    #[error("{0} nodes are more than the {MAX_NODES} of a fabric")]
    Nodes(usize),
}

const VENDOR: u32 = 0x2c9;
const CA_DEVICE: u16 = 0x1011;
const SWITCH_DEVICE: u16 = 0xcb20;
const CA_GUIDS: u64 = 0x0002_c903_0010_0000;
const TOP_GUIDS: u64 = 0x0002_c903_0020_0000;
const LEAF_GUIDS: u64 = 0x0002_c903_0021_0000;
const MIDDLE_GUIDS: u64 = 0x0002_c903_0022_0000;

impl FromStr for FatTree {
    type Err = FatTreeError;

    fn from_str(text: &str) -> Result<Self, FatTreeError> {
        let (levels, radix) = text.split_once(',').ok_or(FatTreeError::Text)?;
        let number = |text: &str| text.trim().parse::<u8>().map_err(|_| FatTreeError::Text);
        Self::new(number(levels)?, number(radix)?)
    }
}

impl FatTree {
    /// A tree of so many levels of switches with so many ports.
    ///
    /// # Errors
    ///
    /// Numbers that make none.
    pub fn new(levels: u8, radix: u8) -> Result<Self, FatTreeError> {
        if !(2..=3).contains(&levels) {
            return Err(FatTreeError::Levels(levels));
        }
        if !radix.is_multiple_of(2) || !(2..=MAX_PORTS).contains(&radix) {
            return Err(FatTreeError::Radix(radix));
        }
        let tree = Self { levels, radix };
        let (half, whole) = (usize::from(radix) / 2, usize::from(radix));
        let nodes = match levels {
            2 => half + whole + half * whole,
            _ => half * half + 2 * half * whole + half * half * whole,
        };
        if nodes > MAX_NODES { Err(FatTreeError::Nodes(nodes)) } else { Ok(tree) }
    }

    /// The tree: hosts, then switches from the top.
    pub fn net(self) -> Net {
        let mut net = Builder::default();
        let (half, whole) = (usize::from(self.radix) / 2, usize::from(self.radix));
        if self.levels == 2 {
            let spines: Vec<_> =
                (0..half).map(|n| net.switch(self.radix, format!("spine{n}"), TOP_GUIDS)).collect();
            for leaf in 0..whole {
                let switch = net.switch(self.radix, format!("leaf{leaf}"), LEAF_GUIDS);
                for (n, spine) in spines.iter().enumerate() {
                    net.link((switch, half + 1 + n), (*spine, leaf + 1));
                }
                net.hosts(switch, half);
            }
            return net.finish();
        }
        let cores: Vec<_> =
            (0..half * half).map(|n| net.switch(self.radix, format!("core{n}"), TOP_GUIDS)).collect();
        for pod in 0..whole {
            let mut middles = Vec::new();
            for n in 0..half {
                let middle = net.switch(self.radix, format!("agg{pod}_{n}"), MIDDLE_GUIDS);
                for up in 0..half {
                    net.link((middle, half + 1 + up), (cores[n * half + up], pod + 1));
                }
                middles.push(middle);
            }
            for n in 0..half {
                let leaf = net.switch(self.radix, format!("leaf{pod}_{n}"), LEAF_GUIDS);
                for (up, middle) in middles.iter().enumerate() {
                    net.link((leaf, half + 1 + up), (*middle, n + 1));
                }
                net.hosts(leaf, half);
            }
        }
        net.finish()
    }
}

#[derive(Default)]
struct Builder {
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
        });
        self.nodes.len() - 1
    }

    fn switch(&mut self, ports: u8, name: String, range: u64) -> usize {
        self.node(NodeType::Switch, ports, name, range)
    }

    fn hosts(&mut self, leaf: usize, count: usize) {
        for port in 1..=count {
            let number = self.made.get(&CA_GUIDS).copied().unwrap_or(0);
            let host = self.node(NodeType::Ca, 1, format!("host{number} mlx5_0"), CA_GUIDS);
            self.link((host, 1), (leaf, port));
        }
    }

    fn link(&mut self, a: (usize, usize), b: (usize, usize)) {
        for ((node, port), (peer, peer_port)) in [(a, b), (b, a)] {
            let guid = (self.nodes[node].kind == NodeType::Ca).then_some(self.nodes[node].guid);
            // `FatTree::new` has bounded the radix.
            let (port, peer_port) = (port as u8, peer_port as u8);
            let link = NetLink { guid, peer, peer_port, width: Width::X4, speed: Speed::Edr };
            self.nodes[node].links.insert(port, link);
        }
    }

    fn finish(self) -> Net {
        Net { nodes: self.nodes }.sorted()
    }
}
