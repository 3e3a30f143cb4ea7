//! Nodes, ports and links: what a fabric is, without the programs that talk to it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use wire::Guid;
use wire::mad::perf::PortCounters;
use wire::mad::smp::{Data, attribute};
use wire::mad::{NodeType, PhysicalState, PortInfo, PortState, SwitchInfo, Trap, capability};

use crate::dice::Dice;
use crate::hosts::host_of;
use crate::ipoib::{Source, give_addresses};
use crate::net::{Net, NetLink, NetNode, NodeSettings, PortSettings, Speed, Width};
use crate::plane::WrittenBlock;

/// The number of a port in its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub(crate) u32);

/// The number of a node in its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u32);

/// Entries of the linear forwarding table of a switch: all unicast LIDs.
pub(crate) const LINEAR_CAP: u16 = 0xbfff;
/// Entries of the multicast forwarding table of a switch.
pub(crate) const MULTICAST_CAP: u16 = 1024;
/// P_Keys of a port.
pub(crate) const PARTITION_CAP: u16 = 32;
/// The entry of a forwarding table that leads nowhere.
pub(crate) const NO_PORT: u8 = 255;
/// The GID prefix of a subnet without a manager (IBA 1.4 §4.1.1).
const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// A node of a fabric.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeType,
    /// The name in the net file.
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) guid: Guid,
    pub(crate) system: Guid,
    pub(crate) vendor: u32,
    pub(crate) device: u16,
    /// External ports.
    pub(crate) ports: u8,
    /// The number of port 0; the others follow. An adapter's is not used.
    pub(crate) first: u32,
    pub(crate) switch: Option<Box<Switch>>,
    /// Blocks of tables that a subnet manager has written, by attribute and modifier.
    pub(crate) tables: BTreeMap<(u16, u32), Data>,
    /// A node that is frozen answers no management; packets pass.
    pub(crate) frozen: bool,
    /// What the net file says of it.
    pub(crate) settings: NodeSettings,
}

impl Node {
    /// The host that has the node: of a switch the switch itself.
    pub(crate) fn host(&self) -> &str {
        let own = if self.kind == NodeType::Switch { &self.description } else { host_of(&self.description) };
        self.settings.host.as_deref().unwrap_or(own)
    }
}

/// What only switches have.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) info: SwitchInfo,
    /// As far as it was written.
    pub(crate) linear: Vec<u8>,
    /// By modifier.
    pub(crate) multicast: BTreeMap<u32, Data>,
}

/// A port of a node.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) node: NodeId,
    pub(crate) number: u8,
    pub(crate) guid: Guid,
    pub(crate) peer: Option<PortId>,
    /// Whether the user has cut the cable.
    pub(crate) cut: bool,
    pub(crate) info: PortInfo,
    pub(crate) counters: PortCounters,
    /// Of a million packets that leave, so many are lost.
    pub(crate) drop_ppm: u32,
    /// How often the subnet manager has asked for clients to register again.
    pub(crate) reregisters: u32,
    /// Of a million packets that leave, so many arrive damaged.
    pub(crate) damage_ppm: u32,
    /// When the lease of the M_Key ends, if a wrong key has started it.
    pub(crate) lease_ends: Option<Duration>,
    /// The address of IPoIB.
    pub(crate) address: Option<(Ipv4Addr, Source)>,
}

/// The nodes of a fabric and all that they know.
#[derive(Debug)]
pub(crate) struct Subnet {
    pub(crate) nodes: Vec<Node>,
    pub(crate) ports: Vec<Port>,
    /// Traps to raise, by the port that raises them.
    pub(crate) traps: Vec<(PortId, Trap)>,
    /// Ports whose PortInfo has changed since the environment asked.
    pub(crate) changed: Vec<PortId>,
    /// Blocks of linear tables that were written since the plane was told.
    pub(crate) written: Vec<WrittenBlock>,
    /// P_Keys that the net file gives to ports.
    pub(crate) partitions: BTreeMap<PortId, Vec<u16>>,
    dice: Dice,
}

impl Subnet {
    pub(crate) fn new(net: &Net, seed: u64) -> Self {
        let mut subnet = Self {
            nodes: Vec::new(),
            ports: Vec::new(),
            traps: Vec::new(),
            changed: Vec::new(),
            written: Vec::new(),
            partitions: BTreeMap::new(),
            dice: Dice::new(seed),
        };
        for node in &net.nodes {
            subnet.add(node);
        }
        for (index, node) in net.nodes.iter().enumerate() {
            for (number, link) in &node.links {
                let at = subnet.port_of(NodeId(index as u32), *number);
                let peer = subnet.port_of(NodeId(link.peer as u32), link.peer_port);
                let port = subnet.port_mut(at);
                port.peer = Some(peer);
                set_up(port, link, node);
                let settings = node.port_settings.get(number);
                if let Some(settings) = settings.filter(|settings| !settings.pkeys.is_empty()) {
                    subnet.partitions.insert(at, settings.pkeys.clone());
                }
            }
        }
        give_addresses(&mut subnet);
        let linked: Vec<PortId> = subnet.all_ports().filter(|at| subnet.port(*at).peer.is_some()).collect();
        linked.into_iter().for_each(|at| subnet.train(at));
        subnet.traps.clear();
        subnet.changed.clear();
        subnet.nodes.iter_mut().filter_map(|node| node.switch.as_mut()).for_each(|switch| {
            switch.info.port_state_change = false;
        });
        subnet
    }

    fn add(&mut self, node: &NetNode) {
        let (id, first) = (NodeId(self.nodes.len() as u32), self.ports.len() as u32);
        let is_switch = node.kind == NodeType::Switch;
        for number in 0..=node.ports {
            let own = node.links.get(&number).and_then(|link| link.guid);
            let guid = if is_switch { node.guid } else { own.unwrap_or_else(|| node.port_guid(number)) };
            let mut info = initial(is_switch, number);
            if let Some(mtu) = node.settings.mtu {
                (info.mtu_cap, info.neighbour_mtu) = (mtu, mtu);
            }
            self.ports.push(Port {
                node: id,
                number,
                guid,
                peer: None,
                cut: false,
                info,
                counters: PortCounters::default(),
                drop_ppm: 0,
                reregisters: 0,
                damage_ppm: 0,
                lease_ends: None,
                address: None,
            });
        }
        let switch = is_switch.then(|| {
            let flags = 0xf0 | if node.enhanced_port_0 { SwitchInfo::ENHANCED_PORT_0 } else { 0 };
            let info = SwitchInfo {
                linear_cap: LINEAR_CAP,
                multicast_cap: MULTICAST_CAP,
                default_ports: [NO_PORT, 0, 0],
                life_time: 18,
                enforcement_cap: PARTITION_CAP,
                flags,
                ..SwitchInfo::default()
            };
            Box::new(Switch { info, linear: Vec::new(), multicast: BTreeMap::new() })
        });
        self.nodes.push(Node {
            kind: node.kind,
            name: node.name.clone(),
            description: node.description.clone(),
            guid: node.guid,
            system: node.system,
            vendor: node.vendor,
            device: node.device,
            ports: node.ports,
            first,
            switch,
            tables: BTreeMap::new(),
            frozen: node.settings.frozen,
            settings: node.settings.clone(),
        });
    }

    pub(crate) fn all_ports(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.ports.len() as u32).map(PortId)
    }

    pub(crate) fn port(&self, at: PortId) -> &Port {
        &self.ports[at.0 as usize]
    }

    pub(crate) fn port_mut(&mut self, at: PortId) -> &mut Port {
        &mut self.ports[at.0 as usize]
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    pub(crate) fn node_at(&self, at: PortId) -> &Node {
        self.node(self.port(at).node)
    }

    /// A port by its number, which the node must have.
    pub(crate) fn port_of(&self, node: NodeId, number: u8) -> PortId {
        let node = self.node(node);
        debug_assert!(number <= node.ports, "{number} of {}", node.ports);
        PortId(node.first + u32::from(number.min(node.ports)))
    }

    /// The port whose LID a packet to this port has: of a switch port 0.
    pub(crate) fn end_port(&self, at: PortId) -> PortId {
        let node = self.node_at(at);
        if node.switch.is_some() { PortId(node.first) } else { at }
    }

    /// Brings a link up at both ends, where nothing keeps it down.
    pub(crate) fn train(&mut self, at: PortId) {
        let Some(peer) = self.port(at).peer else { return };
        let is_off = |port: &Port| port.cut || port.info.physical_state == PhysicalState::Disabled;
        if is_off(self.port(at)) || is_off(self.port(peer)) {
            return;
        }
        for at in [at, peer] {
            if self.port(at).info.physical_state != PhysicalState::LinkUp {
                let info = &mut self.port_mut(at).info;
                (info.physical_state, info.state) = (PhysicalState::LinkUp, PortState::Init);
                self.state_changed(at);
            }
        }
    }

    /// Takes a link down at both ends. The ports look for it again.
    pub(crate) fn take_down(&mut self, at: PortId) {
        let Some(peer) = self.port(at).peer else { return };
        for at in [at, peer] {
            let port = self.port_mut(at);
            if port.info.physical_state == PhysicalState::LinkUp {
                (port.info.physical_state, port.info.state) = (PhysicalState::Polling, PortState::Down);
                port.counters.link_downed = port.counters.link_downed.saturating_add(1);
                self.state_changed(at);
            }
        }
    }

    /// Cuts the cable of a port that has one, or mends it.
    pub(crate) fn set_cut(&mut self, at: PortId, cut: bool) {
        for at in [Some(at), self.port(at).peer].into_iter().flatten() {
            self.port_mut(at).cut = cut;
        }
        if cut {
            self.take_down(at);
        } else {
            self.train(at);
        }
    }

    /// A switch tells its subnet manager (IBA 1.4 §14.2.5.1, trap 128).
    pub(crate) fn state_changed(&mut self, at: PortId) {
        self.changed.push(at);
        let id = self.port(at).node;
        let node = self.node_mut(id);
        let first = PortId(node.first);
        if let Some(switch) = &mut node.switch {
            switch.info.port_state_change = true;
            self.traps.push((first, Trap::LinkStateChange));
        }
    }

    /// The P_Keys of a port, with entries that are empty. A table that was never written has the
    /// default partition (IBA 1.4 §10.9.1.2).
    pub(crate) fn pkeys_of(&self, at: PortId) -> Vec<u16> {
        let port = self.port(at);
        let key = (attribute::PKEY_TABLE, u32::from(port.number) << 16);
        let Some(block) = self.node(port.node).tables.get(&key) else { return vec![0xffff] };
        block.as_chunks::<2>().0.iter().map(|key| u16::from_be_bytes(*key)).collect()
    }

    /// Whether a packet through a port with this rule is lost.
    pub(crate) fn is_dropped(&mut self, ppm: u32) -> bool {
        self.dice.is_below(ppm)
    }

    /// Whether a LID is one of the port's: its own and those that its LMC adds.
    pub(crate) fn has_lid(&self, at: PortId, lid: u16) -> bool {
        let info = &self.port(at).info;
        info.lid != 0 && lid & !((1 << info.lmc) - 1) == info.lid
    }
}

/// Gives a port its link, and what the net file says beside it.
fn set_up(port: &mut Port, link: &NetLink, node: &NetNode) {
    let default = PortSettings::default();
    let settings = node.port_settings.get(&port.number).unwrap_or(&default);
    let (width, speed) = settings.supported.unwrap_or((link.width, link.speed));
    set_rate(&mut port.info, width, speed);
    port.info.width_active = link.width as u8;
    (port.info.speed_active, port.info.extended_speed_active) = link.speed.codes();
    (port.drop_ppm, port.damage_ppm) = (settings.drop_ppm, settings.damage_ppm);
    (port.cut, port.address) = (settings.cut, settings.address.map(|address| (address, Source::File)));
}

/// Sets what a link is, and that its port can do that and less, so that no tool finds it degraded.
fn set_rate(info: &mut PortInfo, width: Width, speed: Speed) {
    let lanes = Width::ALL.into_iter().filter(|(other, _)| other.lanes() <= width.lanes());
    let widths = lanes.fold(0, |all, (other, _)| all | other as u8);
    (info.width_active, info.width_supported, info.width_enabled) = (width as u8, widths, widths);
    let (plain, extended) = speed.codes();
    let up_to = |code: u8| if code == 0 { 0 } else { (code << 1) - 1 };
    (info.speed_active, info.speed_supported, info.speed_enabled) = (plain, up_to(plain), up_to(plain));
    (info.extended_speed_active, info.extended_speed_supported) = (extended, up_to(extended));
    info.extended_speed_enabled = up_to(extended);
}

/// PortInfo of a port before any subnet manager.
fn initial(is_switch: bool, number: u8) -> PortInfo {
    const MTU_4096: u8 = 5;
    const VL_0_TO_3: u8 = 3;
    let is_port_0 = is_switch && number == 0;
    let has_lid = is_port_0 || !is_switch;
    let capabilities = match (is_port_0, is_switch) {
        (true, _) => {
            capability::TRAP
                | capability::SL_MAPPING
                | capability::EXTENDED_SPEEDS
                | capability::CAPABILITY_CHANGE
        }
        (false, true) => 0,
        (false, false) => {
            capability::TRAP
                | capability::SL_MAPPING
                | capability::SYSTEM_GUID
                | capability::EXTENDED_SPEEDS
                | capability::CAPABILITIES_2
                | capability::VENDOR_CLASS
        }
    };
    let (state, physical_state) = if is_port_0 {
        (PortState::Active, PhysicalState::LinkUp)
    } else {
        (PortState::Down, PhysicalState::Polling)
    };
    let mut info = PortInfo {
        gid_prefix: if has_lid { DEFAULT_PREFIX } else { 0 },
        capabilities,
        state,
        physical_state,
        down_default: 2,
        neighbour_mtu: MTU_4096,
        vl_cap: VL_0_TO_3,
        vl_arbitration_high_cap: 8,
        vl_arbitration_low_cap: 8,
        mtu_cap: MTU_4096,
        operational_vls: VL_0_TO_3,
        guid_cap: if has_lid { 8 } else { 0 },
        response_time: 16,
        error_thresholds: 0x88,
        ..PortInfo::default()
    };
    set_rate(&mut info, Width::X4, Speed::Edr);
    info
}
