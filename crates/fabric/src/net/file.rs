//! All that a net file says: the net, the LIDs of its comments, and what counters begin with.

use std::collections::BTreeMap;

use super::source::Sources;
use super::{Include, Net, NetError};
use crate::counters::Counter;

/// A net file as it was read.
#[derive(Clone, Debug, Default)]
pub struct NetFile {
    /// The nodes and their links.
    pub net: Net,
    /// The LID of each port that no other port has; by the number of the node and of the port, 0 of
    /// a switch.
    pub lids: BTreeMap<(usize, u8), u16>,
    /// What counters begin with.
    pub counters: Vec<Preset>,
}

/// The value that a counter begins with.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The number of the node in [`Net::nodes`].
    pub node: usize,
    /// The port.
    pub port: u8,
    /// The counter.
    pub counter: Counter,
    /// The value that it begins with.
    pub value: u64,
}

impl NetFile {
    /// Reads a net file: what ibnetdiscover(8) prints, with or without grouping, or ibsim's. GUIDs
    /// that are missing are made; a link that one end tells of is there.
    ///
    /// # Errors
    ///
    /// The first line that is wrong, with its column; or a file that cannot be included.
    pub fn parse(text: &str, include: Include<'_>) -> Result<Self, NetError> {
        let sources = Sources::read(text, include)?;
        let lines = sources.lines();
        let (net, counters) = super::parse::parse(&lines)?;
        let lids = net.lids(lines.iter().map(|line| line.text));
        Ok(Self { net, lids, counters })
    }
}

impl Net {
    /// Reads a net file that includes no other one.
    ///
    /// # Errors
    ///
    /// As of [`NetFile::parse`].
    pub fn parse(text: &str) -> Result<Self, NetError> {
        let mut refuse = |_: Option<&str>, _: &str| Err("it is not read from a file".to_owned());
        NetFile::parse(text, &mut refuse).map(|file| file.net)
    }
}

impl From<Net> for NetFile {
    fn from(net: Net) -> Self {
        Self { net, ..Self::default() }
    }
}
