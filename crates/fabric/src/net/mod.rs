//! Net files: what a fabric consists of, as ibnetdiscover(8) prints it and ibsim reads it.
//!
//! | module | what |
//! |---|---|
//! | this one | [`Net`]: nodes and the ends of their links, checked against each other |
//! | `cursor` | a line with the column of each word |
//! | `source` | the lines of a file and of those that it includes |
//! | `parse`, `join` | lines to [`Net`]; what lines say of each other |
//! | `settings`, `ibsim` | lines `#verbena` and `do` |
//! | [`NetFile`] | the whole of what a file says |
//! | `write` | [`Net`] to text, as ibnetdiscover prints it |
//! | `fat_tree`, `torus`, `dragonfly`, `builder` | generators, and what they have in common |
//! | `lids` | the LIDs that a file tells of |

mod builder;
mod cursor;
mod dragonfly;
mod fat_tree;
mod file;
mod ibsim;
mod join;
mod lids;
mod parse;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod torus;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

pub use dragonfly::{Dragonfly, DragonflyError};
pub use fat_tree::{FatTree, FatTreeError};
pub use file::{NetFile, Preset};
pub use parse::rate_of;
pub(crate) use settings::MILLION;
pub use settings::{NodeSettings, PortSettings};
pub use source::{Include, Place};
pub use torus::{Torus, TorusError};
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
    /// What `#verbena` lines say of the node.
    pub settings: NodeSettings,
    /// What they say of its ports that have a link.
    pub port_settings: BTreeMap<u8, PortSettings>,
}

impl NetNode {
    pub(crate) fn settings_of(&mut self, port: u8) -> &mut PortSettings {
        self.port_settings.entry(port).or_default()
    }

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// A rate as ibnetdiscover(8) writes it: `4xEDR`.
fn rate_name((width, speed): (Width, Speed)) -> String {
    let width = Width::ALL.into_iter().find(|(other, _)| *other == width);
    let speed = Speed::ALL.into_iter().find(|(other, _)| *other == speed);
    format!("{}{}", width.map_or("", |(_, name)| name), speed.map_or("", |(_, name)| name))
}

/// What is wrong with a net file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}line {line}, column {column}: {problem}", file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default())]
pub struct NetError {
    /// The file, where it is one that is included.
    pub file: Option<String>,
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
    #[error("{file} is not included: {why}")]
    NotIncluded { file: Excerpt, why: String },
    #[error("more than nine files include one another")]
    TooDeep,
    #[error("the included files are too many, or too long")]
    TooManyFiles,
    #[error("of ibsim's commands a file has Link, Unlink, ReLink, Error and PerformanceSet, not {0}")]
    NoCommand(Excerpt),
    #[error("settings before any node")]
    SettingsOfNothing,
    #[error("{key} does not have such a value")]
    Value { key: Excerpt },
    #[error("a node has the settings host, device, mtu, grh and frozen, not {0}")]
    NoNodeSetting(Excerpt),
    #[error("a port has ip, down, drop, damage, supported, pkeys and its counters, not {0}")]
    NoPortSetting(Excerpt),
    #[error("the port has no cable")]
    NoCable,
    #[error("address {address} stands in {other} already")]
    AddressTwice { address: Ipv4Addr, other: Place },
    #[error("ports of adapters alone have addresses and P_Keys")]
    NoAddress,
    #[error("the port supports less than its link does")]
    LessThanLink,
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("{0} is not a hexadecimal number that fits")]
    NotHex(Excerpt),
    #[error("a node has 1 to {MAX_PORTS} ports, not {0}")]
    PortCount(Excerpt),
    #[error("there is no port {port}: the node has 1 to {ports}")]
    NoPort { port: Excerpt, ports: u8 },
    #[error("port {port} stands in {other} already")]
    PortTwice { port: u8, other: Place },
    #[error("the name stands in {other} already")]
    NameTwice { other: Place },
    #[error("GUID {guid:#x} stands in {other} already")]
    GuidTwice { guid: u64, other: Place },
    #[error("the name or description is longer than {MAX_NAME} bytes")]
    TooLong,
    #[error("the name or description holds a control character")]
    Control,
    #[error("a port before any node")]
    PortWithoutNode,
    #[error("there is no node {0}")]
    NoNode(Excerpt),
    #[error("the other end, in {other}, tells another {what}")]
    EndsDiffer { other: Place, what: &'static str },
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
