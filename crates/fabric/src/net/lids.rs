//! The LIDs in a net file: of a switch behind `port 0`, of an adapter before the description of the
//! other end, as ibnetdiscover(8) prints them.

use std::collections::BTreeMap;

use super::{Net, NodeType};

/// The highest unicast LID (IBA 1.4 §4.1.3).
const MAX_UNICAST: u16 = 0xbfff;

impl Net {
    /// The LID of each port for which the lines that the net was read from tell one that no other
    /// port has; by the number of the node and of the port, 0 of a switch.
    pub(super) fn lids<'a>(&self, lines: impl Iterator<Item = &'a str>) -> BTreeMap<(usize, u8), u16> {
        let names: BTreeMap<&str, usize> =
            self.nodes.iter().enumerate().map(|(index, node)| (&*node.name, index)).collect();
        let (mut lids, mut taken) = (BTreeMap::new(), BTreeMap::new());
        let mut at = None;
        for line in lines {
            let quoted = line.split('"').nth(1);
            let found = if let Some(port) = line.strip_prefix('[') {
                let port = port.split(']').next().and_then(|port| port.parse().ok());
                at.zip(port).filter(|(node, _)| self.is_adapter(*node)).zip(comment_lid(line))
            } else {
                let is_node = ["Switch", "Ca", "Hca", "Rt"].iter().any(|kind| line.starts_with(kind));
                if is_node {
                    at = quoted.and_then(|name| names.get(name).copied());
                }
                let port_0 = line.rsplit_once(" port 0 ").and_then(|(_, rest)| lid(rest));
                at.filter(|node| is_node && !self.is_adapter(*node)).map(|node| (node, 0)).zip(port_0)
            };
            if let Some((port, lid)) = found
                && *taken.entry(lid).or_insert(port) == port
            {
                lids.insert(port, lid);
            }
        }
        lids
    }

    fn is_adapter(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.kind != NodeType::Switch)
    }
}

/// The LID with which a comment begins.
fn comment_lid(line: &str) -> Option<u16> {
    lid(line.split_once('#')?.1.trim_start())
}

/// `lid 5 ...`
fn lid(text: &str) -> Option<u16> {
    let number = text.strip_prefix("lid ")?.split_whitespace().next()?.parse().ok()?;
    (1..=MAX_UNICAST).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_are_those_of_the_file_and_none_twice() {
        let text = "Switch 2 \"s\" # \"leaf # 0\" base port 0 lid 7 lmc 0\n[1] \"a\"[1] # \"a\" lid 9 4xEDR\n\
                    Ca 1 \"a\" # \"a\"\n[1](1) \"s\"[1] # lid 9 lmc 0 \"leaf # 0\" lid 7 4xEDR\n\
                    Ca 1 \"b\" # \"b\"\n[1](2) \"s\"[2] # lid 9 lmc 0 \"leaf # 0\" lid 7 4xEDR\n";
        let net = Net::parse(text).unwrap();
        assert_eq!(net.lids(text.lines()), BTreeMap::from([((0, 0), 7), ((1, 1), 9)]));
    }
}
