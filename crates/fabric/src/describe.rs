//! What a program sees of its host's devices and ports, and sysfs shows of them.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use wire::mad::perf::PortCounters;
use wire::mad::smp::attribute;
use wire::mad::{NodeType, PhysicalState, PortState, Trap, capability};

use crate::fabric::Fabric;
use crate::net::{Speed, Width};
use crate::subnet::{NodeId, PortId};

/// Ports of a device that a program sees at most: a `umad_ca_t` has room for ports 0 to 9.
pub const MAX_DEVICE_PORTS: u8 = 9;

/// A device of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// The name, as in /sys/class/infiniband.
    pub name: String,
    /// NodeDescription.
    pub description: String,
    /// The number of NodeInfo: 1 channel adapter, 2 switch, 3 router.
    pub kind: u8,
    /// The node's GUID.
    pub node_guid: u64,
    /// The system image GUID.
    pub system_guid: u64,
    /// The vendor, 24 bits.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub device: u16,
    /// The ports, of a switch port 0 alone.
    pub ports: Vec<PortDescription>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDescription {
    /// The number.
    pub number: u8,
    /// The number K of its umadK and issmK.
    pub umad: u32,
    /// The GUID.
    pub guid: u64,
    /// The upper half of its GIDs.
    pub gid_prefix: u64,
    /// The LID.
    pub lid: u16,
    /// How many low bits of the LID are ignored.
    pub lmc: u8,
    /// The LID of the master subnet manager.
    pub sm_lid: u16,
    /// The service level to it.
    pub sm_sl: u8,
    /// The number of PortInfo.
    pub state: u8,
    /// The number of PortInfo.
    pub physical_state: u8,
    /// Lanes.
    pub lanes: u32,
    /// Tenths of a Gbit/s of a lane.
    pub lane_tenths: u32,
    /// The name of the speed of a lane.
    pub speed: String,
    /// PortInfo's capabilities.
    pub capabilities: u32,
    /// The P_Key table, as far as it is used.
    pub pkeys: Vec<u16>,
    /// The GUIDs of GUIDInfo, as far as they are used; the first is the port's.
    pub guids: Vec<u64>,
    /// Whether a cable is plugged in, cut or not.
    pub has_cable: bool,
    /// The number of the port in the plane.
    pub plane_port: u32,
    /// PortInfo's codes of the largest MTU of the port, and of its link.
    pub mtu: (u8, u8),
    /// PortInfo's VLCap.
    pub max_vl: u8,
    /// PortInfo's SubnetTimeOut.
    pub subnet_timeout: u8,
    /// PortInfo's InitTypeReply.
    pub init_type_reply: u8,
    /// How often the subnet manager has asked for clients to register again.
    pub reregisters: u32,
    /// The address of IPoIB.
    pub ipoib: Option<Ipv4Addr>,
    /// Whether each path needs a global routing header.
    pub grh_required: bool,
}

impl Fabric {
    /// The devices of a host; `None` where no node's description begins with this word.
    pub fn describe(&self, host: &str) -> Option<Vec<DeviceDescription>> {
        let devices = self.hosts.devices(host)?;
        let mut umad = 0;
        let described = devices.iter().map(|device| {
            let node = self.subnet.node(device.node);
            let numbers = match node.kind {
                NodeType::Switch => 0..=0,
                _ => 1..=node.ports.min(MAX_DEVICE_PORTS),
            };
            let mut ports = Vec::new();
            for number in numbers {
                ports.push(self.describe_port(device.node, number, umad));
                umad += 1;
            }
            DeviceDescription {
                name: device.name.clone(),
                description: node.description.clone(),
                kind: node.kind as u8,
                node_guid: node.guid.0,
                system_guid: node.system.0,
                vendor: node.vendor,
                device: node.device,
                ports,
            }
        });
        Some(described.collect())
    }

    fn describe_port(&self, node: NodeId, number: u8, umad: u32) -> PortDescription {
        let port = self.subnet.port(self.subnet.port_of(node, number));
        let info = &port.info;
        let codes = (info.speed_active, info.extended_speed_active);
        let speed = Speed::ALL.into_iter().find(|(speed, _)| speed.codes() == codes);
        let (speed, speed_name) = speed.unwrap_or((Speed::Sdr, "SDR"));
        let width = Width::ALL.into_iter().find(|(width, _)| *width as u8 == info.width_active);
        PortDescription {
            number,
            umad,
            guid: port.guid.0,
            gid_prefix: info.gid_prefix,
            lid: info.lid,
            lmc: info.lmc,
            sm_lid: info.sm_lid,
            sm_sl: info.sm_sl,
            state: info.state as u8,
            physical_state: info.physical_state as u8,
            lanes: width.map_or(1, |(width, _)| width.lanes()),
            lane_tenths: speed.tenths(),
            speed: speed_name.to_owned(),
            capabilities: info.capabilities,
            pkeys: self.pkeys(node, number),
            guids: self.guids(node, number),
            has_cable: port.peer.is_some(),
            plane_port: self.subnet.port_of(node, number).0,
            mtu: (info.mtu_cap, info.neighbour_mtu),
            max_vl: info.vl_cap,
            subnet_timeout: info.subnet_timeout,
            init_type_reply: info.init_type_reply,
            reregisters: port.reregisters,
            ipoib: self.ipoib_address(self.subnet.port_of(node, number)),
            grh_required: self.subnet.node(node).settings.grh_required,
        }
    }

    fn pkeys(&self, node: NodeId, number: u8) -> Vec<u16> {
        let mut keys = self.subnet.pkeys_of(self.subnet.port_of(node, number));
        let used = keys.iter().rposition(|key| *key != 0).map_or(1, |last| last + 1);
        keys.truncate(used);
        keys
    }

    fn guids(&self, node: NodeId, number: u8) -> Vec<u64> {
        let own = self.subnet.port(self.subnet.port_of(node, number)).guid.0;
        let block = self.subnet.node(node).tables.get(&(attribute::GUID_INFO, u32::from(number)));
        let more = block.into_iter().flat_map(|block| block.as_chunks::<8>().0.iter().skip(1));
        let mut guids: Vec<u64> = more.map(|guid| u64::from_be_bytes(*guid)).collect();
        guids.insert(0, own);
        let used = guids.iter().rposition(|guid| *guid != 0).map_or(1, |last| last + 1);
        guids.truncate(used);
        guids
    }

    /// The counters of each port of a host's devices, with what programs have sent so far.
    pub fn host_counters(&mut self, host: &str) -> Vec<(String, u8, PortCounters)> {
        self.fold_plane();
        let described = self.describe(host).unwrap_or_default();
        let ports = described.into_iter().flat_map(|device| {
            let name = device.name;
            device.ports.into_iter().map(move |port| (name.clone(), port.number, PortId(port.plane_port)))
        });
        ports.map(|(name, number, at)| (name, number, self.subnet.port(at).counters)).collect()
    }

    /// A port of a host's device; without a name of the first one, port 0 of any is the first one
    /// that is linked.
    pub fn port_of_host(&self, host: &str, device: &str, number: u8) -> Option<PortId> {
        let devices = self.hosts.devices(host)?;
        let mut named = devices.iter().filter(|known| device.is_empty() || known.name == device);
        let device = named.next()?;
        let node = self.subnet.node(device.node);
        if node.switch.is_some() {
            return (number == 0).then(|| self.subnet.port_of(device.node, 0));
        }
        let is_there = (1..=node.ports.min(MAX_DEVICE_PORTS)).contains(&number);
        is_there.then(|| self.subnet.port_of(device.node, number))
    }

    /// The names of all hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.hosts.names()
    }

    /// Whether a subnet manager runs at a port. The port tells the master by trap 144.
    pub fn set_is_sm(&mut self, at: PortId, is_sm: bool) {
        let info = &mut self.subnet.port_mut(at).info;
        let before = info.capabilities;
        info.capabilities = if is_sm { before | capability::IS_SM } else { before & !capability::IS_SM };
        if info.capabilities != before {
            self.subnet.changed.push(at);
            let now = self.subnet.port(at).info.capabilities;
            self.subnet.traps.push((at, Trap::CapabilityChange(now)));
        }
    }

    /// The hosts whose ports have changed since the last call.
    pub fn take_changed_hosts(&mut self) -> Vec<String> {
        let mut changed = std::mem::take(&mut self.subnet.changed);
        changed.sort_unstable();
        changed.dedup();
        let nodes = changed.into_iter().map(|at| self.subnet.node_at(at));
        let mut hosts: Vec<String> = nodes.map(|node| node.host().to_owned()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

/// The name of a port's state in sysfs.
pub const fn state_name(state: u8) -> &'static str {
    const INIT: u8 = PortState::Init as u8;
    const ARMED: u8 = PortState::Armed as u8;
    const ACTIVE: u8 = PortState::Active as u8;
    match state {
        INIT => "INIT",
        ARMED => "ARMED",
        ACTIVE => "ACTIVE",
        _ => "DOWN",
    }
}

/// The name of a port's physical state in sysfs.
pub const fn physical_state_name(state: u8) -> &'static str {
    const DISABLED: u8 = PhysicalState::Disabled as u8;
    const LINK_UP: u8 = PhysicalState::LinkUp as u8;
    match state {
        DISABLED => "Disabled",
        LINK_UP => "LinkUp",
        _ => "Polling",
    }
}
