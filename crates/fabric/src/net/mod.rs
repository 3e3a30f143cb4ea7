//! Net files: what a fabric consists of, as ibnetdiscover(8) prints it and ibsim reads it.
//!
//! | module | what |
//! |---|---|
//! | this one | [`Net`]: nodes and the ends of their links, checked against each other |
//! | `cursor` | a line with the column of each word |
//! | `parse` | text to [`Net`] |
//! | `write` | [`Net`] to text, as ibnetdiscover prints it |
//! | `fat_tree` | fat trees of switches of one size |

mod cursor;
mod fat_tree;
mod parse;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::fmt;

pub use fat_tree::{FatTree, FatTreeError};
use wire::Guid;
pub use wire::mad::NodeType;
pub use write::Lids;

/// Nodes of a fabric at most: more than LIDs of one subnet.
pub const MAX_NODES: usize = 65_536;
/// Bytes of a name or description at most: those of the attribute NodeDescription.
pub const MAX_NAME: usize = 64;
/// Ports of a node at most: 255 means all of them.
pub const MAX_PORTS: u8 = 254;

/// The nodes of a fabric and their links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// In the order of the file.
    pub nodes: Vec<NetNode>,
}

/// A node of a net file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetNode {
    /// Channel adapter, switch or router.
    pub kind: NodeType,
    /// The name that other nodes' lines have for it.
    pub name: String,
    /// What the node answers as NodeDescription.
    pub description: String,
    /// External ports.
    pub ports: u8,
    /// The node's GUID.
    pub guid: Guid,
    /// The GUID of the system that it is part of.
    pub system: Guid,
    /// The vendor, 24 bits.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub device: u16,
    /// Whether port 0 of a switch is enhanced.
    pub enhanced_port_0: bool,
    /// The links of each port that has one.
    pub links: BTreeMap<u8, NetLink>,
}

impl NetNode {
    /// The GUID of a port of an adapter, where no other is known: behind the node's.
    pub fn port_guid(&self, number: u8) -> Guid {
        Guid(self.guid.0.wrapping_add(number.into()))
    }
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetLink {
    /// The GUID of this port, where the file says it; a switch has none for its external ports.
    pub guid: Option<Guid>,
    /// The number of the node at the other end, in [`Net::nodes`].
    pub peer: usize,
    /// The port of the node at the other end.
    pub peer_port: u8,
    /// Lanes of the link.
    pub width: Width,
    /// The speed of a lane.
    pub speed: Speed,
}

/// Lanes of a link, with the number of PortInfo (IBA 1.4 table 146).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after their lanes")]
pub enum Width {
    X1 = 1,
    X2 = 16,
    X4 = 2,
    X8 = 4,
    X12 = 8,
}

impl Width {
    /// All of them, with ibnetdiscover's name.
    pub const ALL: [(Self, &str); 5] =
        [(Self::X1, "1x"), (Self::X2, "2x"), (Self::X4, "4x"), (Self::X8, "8x"), (Self::X12, "12x")];

    /// How many lanes.
    pub const fn lanes(self) -> u32 {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
        }
    }
}

/// The speed of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the field names them")]
pub enum Speed {
    Sdr,
    Ddr,
    Qdr,
    Fdr,
    Edr,
    Hdr,
    Ndr,
}

impl Speed {
    /// All of them, with ibnetdiscover's name.
    pub const ALL: [(Self, &str); 7] = [
        (Self::Sdr, "SDR"),
        (Self::Ddr, "DDR"),
        (Self::Qdr, "QDR"),
        (Self::Fdr, "FDR"),
        (Self::Edr, "EDR"),
        (Self::Hdr, "HDR"),
        (Self::Ndr, "NDR"),
    ];

    /// PortInfo's LinkSpeedActive and LinkSpeedExtActive (IBA 1.4 table 146).
    pub const fn codes(self) -> (u8, u8) {
        match self {
            Self::Sdr => (1, 0),
            Self::Ddr => (2, 0),
            Self::Qdr => (4, 0),
            Self::Fdr => (4, 1),
            Self::Edr => (4, 2),
            Self::Hdr => (4, 4),
            Self::Ndr => (4, 8),
        }
    }

    /// Gbit/s of a lane, in tenths, as the kernel's sysfs has them.
    pub const fn tenths(self) -> u32 {
        match self {
            Self::Sdr => 25,
            Self::Ddr => 50,
            Self::Qdr => 100,
            Self::Fdr => 140,
            Self::Edr => 250,
            Self::Hdr => 500,
            Self::Ndr => 1000,
        }
    }
}

/// What is wrong with a net file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct NetError {
    /// The line, from 1 on.
    pub line: usize,
    /// The column, from 1 on, in bytes.
    pub column: usize,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a net file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each says what it is")]
pub enum Problem {
    #[error("neither a node, a port nor KEY=VALUE")]
    NotALine,
    #[error("{0} of ibsim is not supported: write its text into the file")]
    Directive(&'static str),
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("{0} is not a hexadecimal number that fits")]
    NotHex(Excerpt),
    #[error("a node has 1 to {MAX_PORTS} ports, not {0}")]
    PortCount(Excerpt),
    #[error("there is no port {port}: the node has 1 to {ports}")]
    NoPort { port: Excerpt, ports: u8 },
    #[error("port {port} stands in line {other} already")]
    PortTwice { port: u8, other: usize },
    #[error("the name stands in line {other} already")]
    NameTwice { other: usize },
    #[error("GUID {guid:#x} stands in line {other} already")]
    GuidTwice { guid: u64, other: usize },
    #[error("the name or description is longer than {MAX_NAME} bytes")]
    TooLong,
    #[error("the name or description holds a control character")]
    Control,
    #[error("a port before any node")]
    PortWithoutNode,
    #[error("there is no node {0}")]
    NoNode(Excerpt),
    #[error("the other end, in line {other}, tells another {what}")]
    EndsDiffer { other: usize, what: &'static str },
    #[error("a port cannot be linked to itself")]
    ToItself,
    #[error("a fabric has {MAX_NODES} nodes at most")]
    TooManyNodes,
    #[error("the file has no node")]
    NoNodes,
}

/// The beginning of a word, for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt(String);

impl Excerpt {
    const MAX: usize = 40;

    fn of(text: &str) -> Self {
        Self(text.chars().take(Self::MAX).collect())
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Net {
    /// The nodes in the order in which `write` has them: adapters, then switches, then routers, by
    /// GUID.
    pub fn sorted(&self) -> Self {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|index| (self.nodes[*index].kind, self.nodes[*index].guid));
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, index)| places[*index] = place);
        let mut nodes: Vec<NetNode> = order.iter().map(|index| self.nodes[*index].clone()).collect();
        for link in nodes.iter_mut().flat_map(|node| node.links.values_mut()) {
            link.peer = places[link.peer];
        }
        Self { nodes }
    }

    /// Links between two ports.
    pub fn links(&self) -> usize {
        self.nodes.iter().map(|node| node.links.len()).sum::<usize>() / 2
    }
}
