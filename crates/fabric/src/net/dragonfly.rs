//! Dragonflies: groups of switches that are all linked with each other, and one link between each
//! two groups (Kim et al., ISCA 2008).

use std::str::FromStr;

use super::builder::Builder;
use super::{MAX_NODES, MAX_PORTS, Net};

/// The size of a dragonfly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dragonfly {
    /// Switches of a group.
    switches: usize,
    /// Hosts of a switch.
    hosts: usize,
    /// Links of a switch to other groups.
    global: usize,
}

/// Why numbers are no dragonfly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DragonflyError {
    /// The text is not SWITCHES,HOSTS,LINKS.
    #[error("a dragonfly is SWITCHES,HOSTS,LINKS, each 1 or more: 4,2,2")]
    Text,
    /// More ports than a switch has.
    #[error("a switch would have {0} ports, more than {MAX_PORTS}")]
    Ports(usize),
    /// More nodes than a fabric has.
    #[error("{0} nodes are more than the {MAX_NODES} of a fabric")]
    Nodes(usize),
}

const GUIDS: u64 = 0x0002_c903_0024_0000;

impl FromStr for Dragonfly {
    type Err = DragonflyError;

    fn from_str(text: &str) -> Result<Self, DragonflyError> {
        let numbers = text.split(',').map(|word| word.trim().parse::<u8>().ok().filter(|n| *n > 0));
        let numbers: Vec<usize> =
            numbers.map(|n| n.map(usize::from).ok_or(DragonflyError::Text)).collect::<Result<_, _>>()?;
        let [switches, hosts, global] = numbers[..] else { return Err(DragonflyError::Text) };
        let dragonfly = Self { switches, hosts, global };
        let ports = hosts + switches - 1 + global;
        if ports > usize::from(MAX_PORTS) {
            return Err(DragonflyError::Ports(ports));
        }
        let nodes = dragonfly.groups() * switches * (1 + hosts);
        if nodes > MAX_NODES { Err(DragonflyError::Nodes(nodes)) } else { Ok(dragonfly) }
    }
}

impl Dragonfly {
    /// As many as there are links of a group, and the group itself.
    fn groups(self) -> usize {
        self.switches * self.global + 1
    }

    /// The dragonfly: `sw2_1` is the second switch of the third group. Its first ports have hosts,
    /// the next ones the other switches of its group, the last ones other groups.
    pub fn net(self) -> Net {
        let Self { switches, hosts, global } = self;
        let (mut net, groups) = (Builder::default(), self.groups());
        let ports = hosts + switches - 1 + global;
        let mut all = Vec::new();
        for place in 0..groups * switches {
            // The number of ports is bounded.
            let switch =
                net.switch(ports as u8, format!("sw{}_{}", place / switches, place % switches), GUIDS);
            net.hosts(switch, hosts);
            all.push(switch);
        }
        for group in 0..groups {
            let own = &all[group * switches..][..switches];
            for (a, b) in (0..switches).flat_map(|b| (0..b).map(move |a| (a, b))) {
                net.link((own[a], hosts + b), (own[b], hosts + 1 + a));
            }
            // A group's link number n leads to the n-th group after it.
            for other in group + 1..groups {
                let end = |of: usize, link: usize| {
                    (all[of * switches + link / global], hosts + switches + link % global)
                };
                let (there, back) = (other - group - 1, groups - 1 - (other - group));
                net.link(end(group, there), end(other, back));
            }
        }
        net.finish()
    }
}
