//! The plane: what programs of a fabric need for packets of their own, in memory that all of them
//! map. A sender follows the forwarding tables there by itself, so no packet passes the process
//! that has the fabric.
//!
//! That process writes nodes, ports and tables, then the generation. A program writes rows alone:
//! a row is a way, and how many packets and words went it. The process adds rows up to the counters
//! of ports when they are asked for. So no two senders write to one line of memory.
//!
//! | file | what |
//! |---|---|
//! | this one | where what lies: [`Layout`], and [`Plane`] over the words |
//! | `way` | the way of a packet through the tables |
//! | `rules` | what a link takes of some packets: dice, MTU, partitions |
//! | `rows` | the rows of programs |
//! | `passage` | what a sender keeps of a path: its way, its rows, and its dice |
//! | `groups` | the trees of multicast packets, and which programs are at their leaves |
//! | `mirror` | the fabric's own end: what it writes there, and what it adds up |
//!
//! Nothing of it is trusted by either side: each number is looked at before it is an index. A
//! program that scribbles there harms its own fabric.

mod groups;
mod mirror;
mod passage;
mod rows;
mod rules;
mod way;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub use groups::{Arrival, GroupPassage, Member};
pub use mirror::Words;
pub(crate) use mirror::{Block, ENFORCES_IN, ENFORCES_OUT, Mirror, WrittenBlock};
pub use passage::{Passage, Verdict};
pub use rules::PacketInfo;
use wire::Mtu;

use crate::subnet::{LINEAR_CAP, MULTICAST_CAP, NO_PORT};

/// The first word: a plane of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"VbPlane2");
/// Words of the head.
const HEAD: usize = 16;
/// The words of the head.
const GENERATION: usize = 1;
const NODES_AND_PORTS: usize = 2;
const SWITCHES_AND_ROWS: usize = 3;
const SEED: usize = 4;
/// Rows from this one on were never taken.
const USED_ROWS: usize = 8;
/// How often no row was free.
const REFUSED: usize = 9;
/// Members from this one on were never there.
const USED_MEMBERS: usize = 10;
/// Where the next search for a row begins.
const NEXT_ROW: usize = 11;
/// The bits of a share of a million.
const PPM_MASK: u32 = (1 << 20) - 1;
/// Words of a port.
const PORT_WORDS: usize = 3;
/// Words of a linear forwarding table, a byte a LID.
const LINEAR_WORDS: usize = (LINEAR_CAP as usize + 1) / 8;
/// Words of a LID in a multicast forwarding table, a bit a port.
const MULTICAST_WORDS: usize = 4;
/// Words of the tables of a switch.
const SWITCH_WORDS: usize = LINEAR_WORDS + MULTICAST_CAP as usize * MULTICAST_WORDS;
/// Rows of all programs together.
pub const MAX_ROWS: u32 = 65_536;
/// Bytes of a page; a plane is whole pages.
const PAGE: usize = 4096;
/// Bytes of the longest plane that a program maps. Pages that nothing was written to take no
/// memory.
pub const MAX_BYTES: usize = 8 << 30;

/// Where the parts of a plane lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    nodes: u32,
    ports: u32,
    switches: u32,
    rows: u32,
}

impl Layout {
    pub(crate) const fn new(nodes: u32, ports: u32, switches: u32) -> Self {
        Self { nodes, ports, switches, rows: MAX_ROWS }
    }

    /// A layout with fewer rows, for programs that have few paths.
    #[must_use]
    pub fn with_rows(self, rows: u32) -> Self {
        Self { rows: rows.min(MAX_ROWS), ..self }
    }

    /// The layout of a plane that another process has made; `None` where the words are none, or too
    /// few.
    pub fn of(words: &[AtomicU64]) -> Option<Self> {
        let word = |at: usize| words.get(at).map(|word| word.load(Acquire));
        let halves = |word: u64| (word as u32, (word >> 32) as u32);
        if word(0)? != MAGIC {
            return None;
        }
        let ((nodes, ports), (switches, rows)) =
            (halves(word(NODES_AND_PORTS)?), halves(word(SWITCHES_AND_ROWS)?));
        let layout = Self { nodes, ports, switches, rows };
        (layout.words()? <= words.len()).then_some(layout)
    }

    /// Bytes of the whole, in whole pages; `None` where that is more than [`MAX_BYTES`].
    pub fn bytes(&self) -> Option<usize> {
        let bytes = self.words()?.checked_mul(8)?.next_multiple_of(PAGE);
        (bytes <= MAX_BYTES).then_some(bytes)
    }

    fn words(&self) -> Option<usize> {
        self.row(0).checked_add((self.rows as usize).checked_mul(rows::ROW_WORDS)?)
    }

    const fn node(&self, node: u32) -> usize {
        HEAD + node as usize
    }

    const fn port(&self, port: u32) -> usize {
        self.node(self.nodes) + port as usize * PORT_WORDS
    }

    const fn pkeys(&self, port: u32) -> usize {
        self.port(self.ports) + port as usize * rules::PKEY_WORDS
    }

    const fn switch(&self, switch: u32) -> usize {
        self.pkeys(self.ports) + switch as usize * SWITCH_WORDS
    }

    const fn multicast(&self, switch: u32, index: u16) -> usize {
        self.switch(switch) + LINEAR_WORDS + index as usize * MULTICAST_WORDS
    }

    const fn member(&self, slot: u32) -> usize {
        self.switch(self.switches) + slot as usize
    }

    /// Rows begin at a line of the cache.
    const fn row(&self, row: u32) -> usize {
        self.member(groups::MAX_MEMBERS).next_multiple_of(8) + row as usize * rows::ROW_WORDS
    }
}

/// A node, as the plane says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeWord {
    /// The number of its port 0.
    first: u32,
    /// External ports.
    ports: u8,
    /// The number of its tables, if it is a switch.
    switch: Option<u32>,
}

/// A port, as the plane says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortWord {
    node: u32,
    peer: Option<u32>,
    lid: u16,
    lmc: u8,
    /// Whether both ends of the link found each other.
    is_linked: bool,
    /// Whether packets of data pass.
    is_active: bool,
    /// Of a million packets that leave, so many are lost.
    drop_ppm: u32,
    /// Of a million packets that leave, so many arrive damaged.
    damage_ppm: u32,
    /// The largest payload that the link takes.
    mtu: Mtu,
    /// A port of a switch that lets in what is of its partitions alone, and out.
    enforces_in: bool,
    enforces_out: bool,
}

impl PortWord {
    /// Whether a LID is one of the port's.
    const fn has_lid(&self, lid: u16) -> bool {
        self.lid != 0 && lid & !((1 << self.lmc) - 1) == self.lid
    }
}

/// A plane over its words.
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    words: &'a [AtomicU64],
    layout: Layout,
}

impl<'a> Plane<'a> {
    /// The plane of these words, whose layout was found before.
    pub const fn new(words: &'a [AtomicU64], layout: Layout) -> Self {
        Self { words, layout }
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Relaxed))
    }

    #[inline]
    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Relaxed);
        }
    }

    /// A number that is another one when a table or a port has changed.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.words.get(GENERATION).map_or(0, |word| word.load(Acquire))
    }

    /// How often a path had no row, as all were taken.
    pub fn refused_rows(&self) -> u64 {
        self.load(REFUSED)
    }

    /// All that was written so far is of the next generation.
    fn publish(&self) {
        if let Some(word) = self.words.get(GENERATION) {
            word.fetch_add(1, Release);
        }
    }

    fn node(&self, node: u32) -> Option<NodeWord> {
        let word = (node < self.layout.nodes).then(|| self.load(self.layout.node(node)))?;
        let switch = ((word >> 40) as u32).checked_sub(1).filter(|switch| *switch < self.layout.switches);
        Some(NodeWord { first: word as u32, ports: (word >> 32) as u8, switch })
    }

    fn set_node(&self, node: u32, says: NodeWord) {
        let switch = says.switch.map_or(0, |switch| u64::from(switch) + 1);
        self.store(
            self.layout.node(node),
            u64::from(says.first) | u64::from(says.ports) << 32 | switch << 40,
        );
    }

    fn port(&self, port: u32) -> Option<PortWord> {
        let at = (port < self.layout.ports).then(|| self.layout.port(port))?;
        let [ends, state, limits] = std::array::from_fn(|n| self.load(at + n));
        Some(PortWord {
            node: ends as u32,
            peer: ((ends >> 32) as u32).checked_sub(1),
            lid: state as u16,
            lmc: (state >> 16 & 7) as u8,
            is_linked: state >> 20 & 1 != 0,
            is_active: state >> 21 & 1 != 0,
            drop_ppm: (state >> 24) as u32 & PPM_MASK,
            damage_ppm: (state >> 44) as u32,
            mtu: Mtu::from_code(limits as u8 & 7).unwrap_or(Mtu::M4096),
            enforces_in: limits >> 3 & 1 != 0,
            enforces_out: limits >> 4 & 1 != 0,
        })
    }

    fn set_port(&self, port: u32, says: PortWord) {
        let at = self.layout.port(port);
        let peer = says.peer.map_or(0, |peer| u64::from(peer) + 1);
        let flags = u64::from(says.is_linked) << 20 | u64::from(says.is_active) << 21;
        let rules = u64::from(says.drop_ppm & PPM_MASK) << 24 | u64::from(says.damage_ppm & PPM_MASK) << 44;
        let state = u64::from(says.lid) | u64::from(says.lmc) << 16 | flags | rules;
        self.store(at, u64::from(says.node) | peer << 32);
        self.store(at + 1, state);
        let limits = u64::from(says.enforces_in) << 3 | u64::from(says.enforces_out) << 4;
        self.store(at + 2, u64::from(says.mtu.code()) | limits);
    }

    /// The port out of a switch to a LID; [`NO_PORT`] where there is none.
    fn linear(&self, switch: u32, lid: u16) -> u8 {
        if lid > LINEAR_CAP {
            return NO_PORT;
        }
        let word = self.load(self.layout.switch(switch) + usize::from(lid) / 8);
        // Memory that nothing was written to is zero, and leads nowhere.
        word.to_le_bytes()[usize::from(lid) % 8].wrapping_sub(1)
    }

    /// Writes ports out of a switch, from a LID on that is a multiple of eight.
    fn set_linear(&self, switch: u32, lid: usize, ports: &[u8]) {
        let at = self.layout.switch(switch) + lid / 8;
        for (n, eight) in ports.as_chunks::<8>().0.iter().enumerate() {
            if lid / 8 + n < LINEAR_WORDS {
                self.store(at + n, u64::from_le_bytes(eight.map(|port| port.wrapping_add(1))));
            }
        }
    }
}
