//! The ports of a host of a simulated fabric as interfaces of a node.

use std::net::IpAddr;

use ::fabric::describe::{DeviceDescription, PortDescription};
use nic::device::IbPort;
use nic::device::port::{LinkRate, PhysState, PortState};
use wire::{Guid, Mtu, Pkey};

use crate::env::{IbLink, Interface};

/// The first index: none that the system gives one of its own.
const FIRST_INDEX: u32 = 1 << 24;
/// NodeInfo's number of a channel adapter.
const CHANNEL_ADAPTER: u8 = 1;
/// Bytes that IPoIB takes of a packet: its header.
const IPOIB_HEADER: u32 = 4;

/// The interfaces, each with the number of its port in the plane. A device has one port here: of
/// several the first with a cable.
pub fn found(devices: &[DeviceDescription]) -> Vec<(Interface, u32)> {
    let adapters = devices.iter().filter(|device| device.kind == CHANNEL_ADAPTER);
    let ports = adapters.filter_map(|device| Some((device, port_of(device)?)));
    let made =
        ports.enumerate().map(|(n, (device, port))| (interface(n as u32, device, port), port.plane_port));
    made.collect()
}

/// The device of an interface, and the number of its port there.
pub fn device_and_port<'a>(devices: &'a [DeviceDescription], interface: &Interface) -> Option<(&'a str, u8)> {
    let name = &interface.infiniband.as_ref()?.device;
    let device = devices.iter().find(|device| device.name == *name)?;
    Some((&device.name, port_of(device)?.number))
}

/// The port of a device that verbs have.
fn port_of(device: &DeviceDescription) -> Option<&PortDescription> {
    device.ports.iter().find(|port| port.has_cable).or(device.ports.first())
}

fn interface(n: u32, device: &DeviceDescription, port: &PortDescription) -> Interface {
    let ib = ib_port(device, port);
    let is_large = ib.mtu_active == Mtu::M4096;
    let rate = port.lanes * port.lane_tenths * 100;
    Interface {
        index: FIRST_INDEX + n,
        name: format!("ib{n}"),
        mac: [0; 6],
        mtu: if is_large { 4096 - IPOIB_HEADER } else { 2048 - IPOIB_HEADER },
        up: ib.state == PortState::Active,
        loopback: false,
        speed_mbps: Some(rate),
        addresses: port.ipoib.into_iter().map(IpAddr::V4).collect(),
        infiniband: Some(IbLink { device: device.name.clone(), port: ib }),
    }
}

fn ib_port(device: &DeviceDescription, port: &PortDescription) -> IbPort {
    let mtu = |code: u8| Mtu::from_code(code).unwrap_or(Mtu::M256);
    IbPort {
        state: match port.state {
            2 => PortState::Init,
            3 => PortState::Armed,
            4 => PortState::Active,
            _ => PortState::Down,
        },
        phys_state: match port.physical_state {
            1 => PhysState::Sleep,
            3 => PhysState::Disabled,
            4 => PhysState::Training,
            5 => PhysState::LinkUp,
            6 => PhysState::LinkErrorRecovery,
            _ => PhysState::Polling,
        },
        lid: port.lid,
        lmc: port.lmc & 7,
        sm_lid: port.sm_lid,
        sm_sl: port.sm_sl,
        subnet_timeout: port.subnet_timeout,
        init_type_reply: port.init_type_reply,
        max_vl: port.max_vl,
        capabilities: port.capabilities,
        rate: rate(port),
        mtu_max: mtu(port.mtu.0),
        mtu_active: mtu(port.mtu.1),
        subnet_prefix: port.gid_prefix,
        guids: port.guids.iter().copied().map(Guid).collect(),
        pkeys: port.pkeys.iter().copied().map(Pkey).collect(),
        grh_required: port.grh_required,
        node_guid: Guid(device.node_guid),
        system_image_guid: Guid(device.system_guid),
        vendor_id: device.vendor,
        device_id: device.device,
        client_reregister: port.reregisters,
    }
}

/// Lanes and speed in the codes of verbs.
fn rate(port: &PortDescription) -> LinkRate {
    let width = match port.lanes {
        2 => 16,
        4 => 2,
        8 => 4,
        12 => 8,
        _ => 1,
    };
    let speed = match &*port.speed {
        "DDR" => 2,
        "QDR" => 4,
        "FDR10" => 8,
        "FDR" => 16,
        "EDR" => 32,
        "HDR" => 64,
        "NDR" => 128,
        "XDR" => 256,
        _ => 1,
    };
    LinkRate { width, speed }
}

#[cfg(test)]
mod tests {
    use ::fabric::Fabric;
    use ::fabric::net::FatTree;

    use super::*;

    #[test]
    fn a_port_that_has_an_address_is_one_device_and_none_of_ethernet() {
        let fabric = Fabric::new(&FatTree::new(2, 4).unwrap().net(), 1);
        let mut interfaces: Vec<Interface> =
            found(&fabric.describe("host5").unwrap()).into_iter().map(|(interface, _)| interface).collect();
        interfaces[0].up = true;
        for specs in [None, Some("a_*=roce:*,b=iwarp:ib0")] {
            let specs = specs.map(|specs| crate::devices::parse(specs).unwrap());
            let chosen = crate::devices::choose(specs.as_deref(), &interfaces, 7);
            assert_eq!(chosen.iter().map(|(config, _)| &*config.name).collect::<Vec<_>>(), ["mlx5_0"]);
        }
    }

    #[test]
    fn a_port_of_a_host_is_an_interface_with_the_name_of_its_device() {
        let fabric = Fabric::new(&FatTree::new(2, 4).unwrap().net(), 1);
        let devices = fabric.describe("host5").unwrap();
        let [(interface, number)] = &found(&devices)[..] else { panic!("not one interface") };
        assert_eq!((&*interface.name, interface.mtu, interface.up), ("ib0", 4092, false));
        let ib = interface.infiniband.as_ref().unwrap();
        assert_eq!((&*ib.device, ib.port.state), ("mlx5_0", PortState::Init));
        assert_eq!(ib.port.rate, LinkRate { width: 2, speed: 32 }, "4X EDR");
        assert_eq!((ib.port.mtu_active, &ib.port.pkeys[..]), (Mtu::M4096, &[Pkey(0xffff)][..]));
        assert_eq!(*number, devices[0].ports[0].plane_port);
        assert_eq!(found(&fabric.describe("leaf0").unwrap()), [], "a switch has no verbs");
    }
}
