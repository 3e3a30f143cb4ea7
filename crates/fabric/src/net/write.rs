//! Writes a net file as ibnetdiscover(8) prints it, sorted by kind and GUID, so that two fabrics
//! that are equal give equal text.

use std::fmt::Write as _;

use super::{Net, NetLink, NetNode, NodeType, rate_name};

/// LID and LMC of a port, for the text: of a node (as its number in [`Net::nodes`]) the port's, of
/// a switch always port 0's.
pub type Lids<'a> = &'a dyn Fn(usize, u8) -> (u16, u8);

impl Net {
    /// The text of the file, with LID 0 everywhere.
    pub fn write(&self) -> String {
        self.write_with(&|_, _| (0, 0))
    }

    /// The text of the file, with the LIDs that ports have now.
    pub fn write_with(&self, lids: Lids<'_>) -> String {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|index| (self.nodes[*index].kind, self.nodes[*index].guid));
        let mut text = String::new();
        for index in order {
            // Writing to a string does not fail.
            let _ = self.node(&mut text, index, lids);
        }
        text
    }

    fn node(&self, text: &mut String, index: usize, lids: Lids<'_>) -> std::fmt::Result {
        let node = &self.nodes[index];
        let NetNode { vendor, device, system, guid, ports, .. } = node;
        writeln!(text, "vendid=0x{vendor:x}\ndevid=0x{device:x}\nsysimgguid=0x{:x}", system.0)?;
        let (name, description) = (&node.name, &node.description);
        match node.kind {
            NodeType::Switch => {
                let base = if node.enhanced_port_0 { "enhanced" } else { "base" };
                let (lid, lmc) = lids(index, 0);
                writeln!(text, "switchguid=0x{0:x}({0:x})", guid.0)?;
                writeln!(
                    text,
                    "Switch\t{ports} \"{name}\"\t\t# \"{description}\" {base} port 0 lid {lid} lmc {lmc}"
                )?;
            }
            NodeType::Ca => {
                writeln!(text, "caguid=0x{:x}\nCa\t{ports} \"{name}\"\t\t# \"{description}\"", guid.0)?;
            }
            NodeType::Router => {
                writeln!(text, "rtguid=0x{:x}\nRt\t{ports} \"{name}\"\t\t# \"{description}\"", guid.0)?;
            }
        }
        node.settings.write(text)?;
        for (number, link) in &node.links {
            self.port(text, index, *number, link, lids)?;
            node.port_settings.get(number).map_or(Ok(()), |settings| settings.write(text))?;
        }
        writeln!(text)
    }

    fn port(
        &self,
        text: &mut String,
        index: usize,
        number: u8,
        link: &NetLink,
        lids: Lids<'_>,
    ) -> std::fmt::Result {
        let peer = &self.nodes[link.peer];
        let rate = rate_name((link.width, link.speed));
        let peer_lid = lids(link.peer, if peer.kind == NodeType::Switch { 0 } else { link.peer_port }).0;
        let (name, peer_port, description) = (&peer.name, link.peer_port, &peer.description);
        if self.nodes[index].kind == NodeType::Switch {
            write!(text, "[{number}]\t\"{name}\"[{peer_port}]")?;
            if peer.kind != NodeType::Switch {
                let guid = peer.links.get(&peer_port).and_then(|end| end.guid).unwrap_or(peer.guid);
                write!(text, "({:x}) ", guid.0)?;
            }
            writeln!(text, "\t\t# \"{description}\" lid {peer_lid} {rate}")
        } else {
            let (lid, lmc) = lids(index, number);
            let guid = link.guid.unwrap_or(self.nodes[index].guid);
            write!(text, "[{number}]({:x}) \t\"{name}\"[{peer_port}]", guid.0)?;
            if peer.kind != NodeType::Switch {
                let guid = peer.links.get(&peer_port).and_then(|end| end.guid).unwrap_or(peer.guid);
                write!(text, " ({:x}) ", guid.0)?;
            }
            writeln!(text, "\t\t# lid {lid} lmc {lmc} \"{description}\" lid {peer_lid} {rate}")
        }
    }
}
