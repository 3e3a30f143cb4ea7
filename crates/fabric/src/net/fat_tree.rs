//! Fat trees of switches of one size, all links of the same rate: with radix `k`, two levels have
//! `k²/2` hosts, three levels `k³/4` (Al-Fares et al., SIGCOMM 2008).

use std::str::FromStr;

use super::builder::Builder;
use super::{MAX_NODES, MAX_PORTS, Net};

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
