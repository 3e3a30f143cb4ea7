//! The fabric of now as a net file: with its LIDs, cut cables, rules and what `#verbena` lines say.

use wire::mad::{PortInfo, SwitchInfo};

use crate::fabric::Fabric;
use crate::ipoib::Source;
use crate::net::{MAX_PORTS, Net, NetLink, NetNode, NodeSettings, PortSettings, Speed, Width};
use crate::subnet::{NodeId, PortId, Subnet};

impl Fabric {
    /// The fabric as a net file, with the LIDs of now. A link that is down stands in it, too.
    pub fn write_net(&self) -> String {
        net(&self.subnet).write_with(&|node, port| {
            let info = &self.subnet.port(self.subnet.port_of(NodeId(node as u32), port)).info;
            (info.lid, info.lmc)
        })
    }
}

/// The net file that a fabric would be made from now.
fn net(subnet: &Subnet) -> Net {
    let nodes = subnet.nodes.iter().enumerate().map(|(index, node)| {
        let ports = (1..=node.ports.min(MAX_PORTS)).filter_map(|number| {
            let at = subnet.port_of(NodeId(index as u32), number);
            Some((number, at, link(subnet, at)?))
        });
        let ports: Vec<(u8, PortId, NetLink)> = ports.collect();
        let settings = ports.iter().map(|(number, at, link)| (*number, settings(subnet, *at, link)));
        NetNode {
            kind: node.kind,
            name: node.name.clone(),
            description: node.description.clone(),
            ports: node.ports,
            guid: node.guid,
            system: node.system,
            vendor: node.vendor,
            device: node.device,
            enhanced_port_0: node
                .switch
                .as_ref()
                .is_some_and(|switch| switch.info.flags & SwitchInfo::ENHANCED_PORT_0 != 0),
            settings: NodeSettings { frozen: node.frozen, ..node.settings.clone() },
            port_settings: settings.filter(|(_, own)| *own != PortSettings::default()).collect(),
            links: ports.iter().map(|(number, _, link)| (*number, *link)).collect(),
        }
    });
    Net { nodes: nodes.collect() }
}

fn link(subnet: &Subnet, at: PortId) -> Option<NetLink> {
    let port = subnet.port(at);
    let peer = subnet.port(port.peer?);
    let width = Width::ALL.into_iter().find(|(width, _)| *width as u8 == port.info.width_active)?.0;
    let codes = (port.info.speed_active, port.info.extended_speed_active);
    let speed = Speed::ALL.into_iter().find(|(speed, _)| speed.codes() == codes)?.0;
    let has_guid = subnet.node_at(at).switch.is_none();
    let guid = has_guid.then_some(port.guid);
    Some(NetLink { guid, peer: peer.node.0 as usize, peer_port: peer.number, width, speed })
}

fn settings(subnet: &Subnet, at: PortId, link: &NetLink) -> PortSettings {
    let port = subnet.port(at);
    PortSettings {
        address: port.address.filter(|(_, source)| *source == Source::File).map(|(address, _)| address),
        cut: port.cut,
        drop_ppm: port.drop_ppm,
        damage_ppm: port.damage_ppm,
        pkeys: subnet.partitions.get(&at).cloned().unwrap_or_default(),
        supported: supported(&port.info).filter(|rate| *rate != (link.width, link.speed)),
    }
}

/// The most that a port can do.
fn supported(info: &PortInfo) -> Option<(Width, Speed)> {
    let widths = Width::ALL.into_iter().map(|(width, _)| width);
    let width = widths.filter(|width| *width as u8 & info.width_supported != 0).max_by_key(|w| w.lanes())?;
    let has = |speed: &Speed| match speed.codes() {
        (plain, 0) => plain & info.speed_supported != 0,
        (_, extended) => extended & info.extended_speed_supported != 0,
    };
    Some((width, Speed::ALL.into_iter().map(|(speed, _)| speed).filter(has).max()?))
}
