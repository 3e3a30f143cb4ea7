//! Which devices there are: those that VERBENA_DEVICES names, or by default one for each network
//! interface; and which of them a packet, a route or an identifier means.
//!
//! A device is known by its [`DeviceId`], whatever interface it is on: an interface may have a
//! device of each transport. Only what arrives says no more than an interface
//! (`Node::device_of_arrival`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use nic::device::Port;
use nic::device::port::PortState;
use nic::{Device, DeviceConfig, DeviceId, GidTable, Transport};
use wire::{Gid, Guid, Mtu};

use crate::Node;
use crate::env::{Env, IbLink, Interface, Route};

/// Stands for each interface that is up and has an address, and in a device's name for its name.
const ANY: &str = "*";

/// A device that the configuration asks for, as [`parse`] gives it; or with `*` for the interface
/// one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceSpec {
    /// The device's name, 1 to 63 bytes.
    pub name: String,
    /// How its packets travel.
    pub transport: Transport,
    /// The name of its interface, which need not exist.
    pub interface: String,
}

impl DeviceSpec {
    /// Whether it stands for a device on each interface.
    pub fn is_of_each(&self) -> bool {
        self.interface == ANY
    }
}

/// Why a configuration string is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not of the form `name=transport:interface`.
    #[error("VERBENA_DEVICES: '{0}' is not of the form name=roce:interface or name=iwarp:interface")]
    Form(String),
    /// A transport that does not exist here.
    #[error("VERBENA_DEVICES: '{0}' is no transport (there are: roce, iwarp)")]
    Transport(String),
    /// A name given twice, empty, or longer than 63 bytes.
    #[error(
        "VERBENA_DEVICES: device name '{0}' is empty, too long or given twice, or has * where its interface is another \
         than *, or has none where that is *"
    )]
    Name(String),
    /// Two devices of one transport on one interface.
    #[error(
        "VERBENA_DEVICES: '{first}' and '{second}' are both {transport} devices on interface '{interface}': only one could \
         receive, because an address has one port for {transport}; leave one out, or give it an interface of its own"
    )]
    Shared {
        /// The device named first.
        first: String,
        /// The device named second.
        second: String,
        /// The transport of both devices.
        transport: Transport,
        /// The interface of both devices.
        interface: String,
    },
}

/// The connection manager's protocol of a device, by how its packets travel.
pub(crate) fn protocol_of(transport: Transport) -> cm::Protocol {
    match transport {
        Transport::Roce | Transport::Ib => cm::Protocol::Ib,
        Transport::Iwarp => cm::Protocol::Iw,
    }
}

/// Parses VERBENA_DEVICES: `name=roce:interface` or `name=iwarp:interface`, comma separated. Each
/// name, and each interface with a transport, may be there once. `siw_*=iwarp:*` stands for a
/// device on each interface that is up and has an address.
///
/// ```
/// let specs = stack::devices::parse("a=roce:lo,b=roce:eth0").unwrap();
/// assert_eq!(specs[1].name, "b");
/// assert!(stack::devices::parse("a=token_ring:lo").is_err());
/// assert!(stack::devices::parse("a=roce:lo,b=roce:lo").is_err());
/// ```
pub fn parse(text: &str) -> Result<Vec<DeviceSpec>, ConfigError> {
    let mut specs: Vec<DeviceSpec> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let form = || ConfigError::Form(item.to_owned());
        let (name, rest) = item.split_once('=').ok_or_else(form)?;
        let (transport, interface) = rest.split_once(':').ok_or_else(form)?;
        let transport = match transport {
            "roce" => Transport::Roce,
            "iwarp" => Transport::Iwarp,
            other => return Err(ConfigError::Transport(other.to_owned())),
        };
        let names_each = (interface == ANY) == name.contains(ANY);
        if name.is_empty() || name.len() > 63 || !names_each || specs.iter().any(|s| s.name == name) {
            return Err(ConfigError::Name(name.to_owned()));
        }
        let (name, interface) = (name.to_owned(), interface.to_owned());
        if let Some(first) = specs.iter().find(|s| s.transport == transport && s.interface == interface) {
            return Err(ConfigError::Shared {
                first: first.name.clone(),
                second: name,
                transport,
                interface,
            });
        }
        specs.push(DeviceSpec { name, transport, interface });
    }
    Ok(specs)
}

/// The devices of a host: those of its InfiniBand ports, under the names that these have, then
/// those configured, in that order. By default that is one for each other interface that is up and
/// has an address, loopback last: programs take the first, and that shall reach others. `host_id`
/// makes the GUIDs, see [`guid`].
pub fn choose(
    specs: Option<&[DeviceSpec]>,
    interfaces: &[Interface],
    host_id: u64,
) -> Vec<(DeviceConfig, Port)> {
    let every =
        [DeviceSpec { name: format!("rxe_{ANY}"), transport: Transport::Roce, interface: ANY.into() }];
    let is_usable = |i: &&Interface| i.up && !i.addresses.is_empty() && is_ethernet(i);
    let mut usable: Vec<_> = interfaces.iter().filter(is_usable).collect();
    usable.sort_by_key(|i| i.loopback);
    let mut chosen: Vec<(String, Transport, &Interface)> = Vec::new();
    for spec in specs.unwrap_or(&every) {
        let meant: Vec<&Interface> = match spec.is_of_each() {
            true => usable.clone(),
            false => interfaces.iter().filter(|i| i.name == spec.interface && is_ethernet(i)).collect(),
        };
        for i in meant {
            let name = spec.name.replace(ANY, &i.name);
            let is_there = |(other, transport, at): &(String, Transport, &Interface)| {
                *other == name || (*transport, at.index) == (spec.transport, i.index)
            };
            if !chosen.iter().any(is_there) {
                chosen.push((name, spec.transport, i));
            }
        }
    }
    let of_ports = interfaces.iter().filter_map(|i| Some((i.infiniband.as_ref()?, i)));
    let mut all: Vec<_> = of_ports.map(|(ib, i)| (ib.device.clone(), Transport::Ib, i)).collect();
    chosen.retain(|(name, ..)| !all.iter().any(|(other, ..)| other == name));
    all.append(&mut chosen);
    let device = |(id, (name, transport, i)): (u32, (String, Transport, &Interface))| {
        let config = DeviceConfig {
            id: DeviceId(id),
            name,
            transport,
            guid: i.infiniband.as_ref().map_or(guid(host_id, transport, i.index), |ib| ib.port.node_guid),
            interface: i.index,
            interface_name: i.name.clone(),
            mac: i.mac,
        };
        (config, port(&GidTable::default(), i))
    };
    (0..).zip(all).map(device).collect()
}

/// Whether UDP and TCP go by an interface: a port of InfiniBand has a device of its own only.
fn is_ethernet(i: &Interface) -> bool {
    i.infiniband.is_none()
}

/// The port over an interface as it is now.
pub fn port(before: &GidTable, i: &Interface) -> Port {
    if let Some(IbLink { port, .. }) = &i.infiniband {
        return Port {
            up: i.up && port.state == PortState::Active,
            mtu: port.mtu_active,
            speed_mbps: None,
            gids: GidTable::of_infiniband(port, &i.addresses),
            ib: Some(Box::new(port.clone())),
        };
    }
    Port {
        up: i.up,
        mtu: Mtu::for_link(i.mtu).unwrap_or(Mtu::M256),
        speed_mbps: i.speed_mbps,
        gids: GidTable::updated(before, i.mac, &i.addresses),
        ib: None,
    }
}

/// The default GIDs that no interface of this host bears, and the addresses that stand in for them.
pub fn aliases<'a>(ports: impl Iterator<Item = &'a Port>) -> BTreeMap<Gid, IpAddr> {
    ports.filter_map(|p| p.gids.get(0).filter(|e| !e.borne).and_then(|e| Some((e.gid, e.address?)))).collect()
}

/// Marks a GUID as one of ours, in bytes 0 and 1: locally administered, then the letter V.
const GUID_MARK: u64 = 0x0256_0000_0000_0000;
/// Version of what Verbenas may say to each other beyond the standard, in byte 2's upper half.
const GUID_VERSION: u64 = 1;

/// Node GUID of the device of a transport over an interface.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | mark 0x0256 |
/// | 2 | version (4 bits), upper 4 bits of the interface's number |
/// | 3..8 | 40 bits of the host and namespace, mixed with the interface and the transport; byte 3 is never 0xff |
///
/// Connection managers key their tables on it, so it differs between hosts, namespaces and devices,
/// and is the same in all processes of one, whatever devices they configure: it does not depend on
/// the [`DeviceId`].
pub fn guid(host_id: u64, transport: Transport, interface: u32) -> Guid {
    // RoCE's code is 0: a GUID is what it was before there were other transports.
    let device = u64::from(interface) | (transport as u64) << 32;
    let mut low = (host_id ^ device.wrapping_mul(0x9e37_79b9_7f4a_7c15)) & 0xff_ffff_ffff;
    if low >> 32 == 0xff {
        // Bytes 3 and 4 must not be ff:fe, the mark of a GUID made from a hardware address.
        low &= 0x7f_ffff_ffff;
    }
    Guid(GUID_MARK | GUID_VERSION << 44 | u64::from(interface & 0xf) << 40 | low)
}

/// Whether a GUID is of this kind (which any host can forge: a hint, to be confirmed).
pub fn is_ours(guid: Guid) -> bool {
    guid.0 & 0xffff_0000_0000_0000 == GUID_MARK
}

/// A port table shared by look-ups: interface index to GID table, for building [`aliases`].
pub(crate) fn shared_aliases(ports: &[Arc<Port>]) -> Arc<BTreeMap<Gid, IpAddr>> {
    Arc::new(aliases(ports.iter().map(|p| &**p)))
}

impl<W: Env> Node<W> {
    /// The device of an id.
    pub(crate) fn device(&self, id: DeviceId) -> Option<Arc<Device>> {
        self.devices.get(usize::try_from(id.0).ok()?).cloned()
    }

    /// The device that a packet or a frame is for, which came by an interface. All that arrives so
    /// is of RoCE or InfiniBand, or a frame for a raw packet queue pair of the same device.
    #[inline]
    pub(crate) fn device_of_arrival(&self, interface: u32) -> Option<&Arc<Device>> {
        let is_it =
            |d: &&Arc<Device>| d.config.interface == interface && d.config.transport != Transport::Iwarp;
        self.devices.iter().find(is_it)
    }

    /// The device that sends by a route: the first on the route's interface that bears its source
    /// address. There is none where the source is in no GID table (127.0.0.2, say).
    pub(crate) fn device_of_route(&self, route: &Route) -> Option<Arc<Device>> {
        let sends = |d: &&Arc<Device>| {
            d.config.interface == route.interface && d.port().gids.index_of(route.source).is_some()
        };
        self.devices.iter().find(sends).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_differ_by_interface_and_carry_no_fffe() {
        for host in [0, 1, 0xff_fe00_0000, 0xff_ffff_ffff, 0x12_3456_789a] {
            let guids: Vec<u64> = (0..64).map(|i| guid(host, Transport::Roce, i).0).collect();
            for (n, g) in guids.iter().enumerate() {
                assert!(is_ours(Guid(*g)));
                assert_ne!(g >> 24 & 0xffff, 0xfffe);
                assert!(!guids[..n].contains(g));
            }
        }
    }

    fn interface(index: u32, name: &str, loopback: bool) -> Interface {
        let addresses = vec![IpAddr::from([10, 0, 0, index as u8])];
        let name = name.to_owned();
        Interface {
            index,
            name,
            mac: [0; 6],
            mtu: 1500,
            up: true,
            loopback,
            speed_mbps: None,
            addresses,
            infiniband: None,
        }
    }

    #[test]
    fn the_loopback_device_is_the_last_unless_an_order_is_asked_for() {
        let interfaces = [interface(1, "lo", true), interface(3, "eth1", false), interface(2, "eth0", false)];
        let names = |specs: Option<&[DeviceSpec]>| -> Vec<String> {
            choose(specs, &interfaces, 7).into_iter().map(|(config, _)| config.name).collect()
        };
        assert_eq!(names(None), ["rxe_eth1", "rxe_eth0", "rxe_lo"]);
        assert_eq!(names(Some(&parse("a=roce:lo,b=roce:eth0").unwrap())), ["a", "b"]);
    }

    #[test]
    fn a_second_device_on_one_interface_is_refused_and_the_error_names_both() {
        let Err(error) = parse("a=roce:lo,b=roce:eth0,c=roce:lo") else { panic!("c never receives") };
        let said = error.to_string();
        for word in ["'a'", "'c'", "'lo'", "RoCE"] {
            assert!(said.contains(word), "{word} is missing: {said}");
        }
    }

    #[test]
    fn a_star_stands_for_each_interface_once() {
        let interfaces = [interface(1, "lo", true), interface(3, "eth1", false), interface(2, "eth0", false)];
        let specs = parse("mine=iwarp:eth0,siw_*=iwarp:*,rxe_*=roce:*").unwrap();
        let names: Vec<_> = choose(Some(&specs), &interfaces, 7).into_iter().map(|(c, _)| c.name).collect();
        assert_eq!(names, ["mine", "siw_eth1", "siw_lo", "rxe_eth1", "rxe_eth0", "rxe_lo"]);
        assert_eq!(parse("a=iwarp:*"), Err(ConfigError::Name("a".into())));
        assert_eq!(parse("a*=iwarp:lo"), Err(ConfigError::Name("a*".into())));
    }

    #[test]
    fn ids_count_the_devices_that_are_there() {
        let interfaces = [interface(5, "eth0", false), interface(1, "lo", true)];
        let devices = choose(Some(&parse("a=roce:lo,b=roce:gone,c=roce:eth0").unwrap()), &interfaces, 7);
        let said: Vec<_> = devices.iter().map(|(c, _)| (c.id.0, &*c.name, c.interface)).collect();
        assert_eq!(said, [(0, "a", 1), (1, "c", 5)]);
        assert_ne!(devices[0].0.guid, devices[1].0.guid);
    }

    #[test]
    fn configuration_errors_name_what_is_wrong() {
        assert_eq!(parse("x"), Err(ConfigError::Form("x".into())));
        assert_eq!(parse("a=roce:lo,a=roce:lo"), Err(ConfigError::Name("a".into())));
    }
}
