//! Which devices there are: one a network interface, named and configured by VERBENA_DEVICES or by default.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use nic::device::Port;
use nic::{DeviceConfig, GidTable};
use wire::{Gid, Guid, Mtu};

use crate::world::Interface;

/// A device that the configuration asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its name.
    pub name: String,
    /// Its interface.
    pub interface: String,
}

/// Why a configuration string is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not of the form `name=transport:interface`.
    #[error("VERBENA_DEVICES: '{0}' is not of the form name=roce:interface")]
    Form(String),
    /// A transport that does not exist here.
    #[error("VERBENA_DEVICES: '{0}' is no transport (there is: roce)")]
    Transport(String),
    /// A name given twice, empty, or longer than 63 bytes.
    #[error("VERBENA_DEVICES: device name '{0}' is empty, too long or given twice")]
    Name(String),
}

/// Parses VERBENA_DEVICES: `name=roce:interface`, comma separated.
///
/// ```
/// let specs = node::devices::parse("a=roce:lo,b=roce:eth0").unwrap();
/// assert_eq!(specs[1].name, "b");
/// assert!(node::devices::parse("a=token_ring:lo").is_err());
/// ```
pub fn parse(text: &str) -> Result<Vec<DeviceSpec>, ConfigError> {
    let mut specs: Vec<DeviceSpec> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let form = || ConfigError::Form(item.to_owned());
        let (name, rest) = item.split_once('=').ok_or_else(form)?;
        let (transport, interface) = rest.split_once(':').ok_or_else(form)?;
        if transport != "roce" {
            return Err(ConfigError::Transport(transport.to_owned()));
        }
        if name.is_empty() || name.len() > 63 || specs.iter().any(|s| s.name == name) {
            return Err(ConfigError::Name(name.to_owned()));
        }
        specs.push(DeviceSpec { name: name.to_owned(), interface: interface.to_owned() });
    }
    Ok(specs)
}

/// The devices of a host: those configured, in that order, or by default one for each interface that is up and has an address,
/// loopback last: programs take the first, and that shall reach others.
/// `host_id` makes the GUIDs, see [`guid`].
pub fn choose(
    specs: Option<&[DeviceSpec]>,
    interfaces: &[Interface],
    host_id: u64,
) -> Vec<(DeviceConfig, Port)> {
    let device = |name: String, i: &Interface| {
        let config = DeviceConfig {
            name,
            guid: guid(host_id, i.index),
            interface: i.index,
            interface_name: i.name.clone(),
            mac: i.mac,
        };
        (config, port(&GidTable::default(), i))
    };
    match specs {
        Some(specs) => specs
            .iter()
            .filter_map(|s| Some(device(s.name.clone(), interfaces.iter().find(|i| i.name == s.interface)?)))
            .collect(),
        None => {
            let mut usable: Vec<_> = interfaces.iter().filter(|i| i.up && !i.addresses.is_empty()).collect();
            usable.sort_by_key(|i| i.loopback);
            usable.into_iter().map(|i| device(format!("rxe_{}", i.name), i)).collect()
        }
    }
}

/// The port over an interface as it is now.
pub fn port(before: &GidTable, i: &Interface) -> Port {
    Port {
        up: i.up,
        mtu: Mtu::for_link(i.mtu).unwrap_or(Mtu::M256),
        speed_mbps: i.speed_mbps,
        gids: GidTable::updated(before, i.mac, &i.addresses),
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

/// Node GUID of the device over an interface.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | mark 0x0256 |
/// | 2 | version (4 bits), upper 4 bits of the interface's number |
/// | 3..8 | 40 bits of the host and namespace, mixed with the interface; byte 3 is never 0xff |
///
/// Connection managers key their tables on it, so it differs between hosts, namespaces and devices, and is the same in all
/// processes of one.
pub fn guid(host_id: u64, interface: u32) -> Guid {
    let mut low = (host_id ^ u64::from(interface).wrapping_mul(0x9e37_79b9_7f4a_7c15)) & 0xff_ffff_ffff;
    if low >> 32 == 0xff {
        // Bytes 3 and 4 must not be ff:fe, the mark of a GUID made from a hardware address.
        low &= 0x7f_ffff_ffff;
    }
    Guid(GUID_MARK | GUID_VERSION << 44 | u64::from(interface & 0xf) << 40 | low)
}

/// Whether a GUID is of this kind (which anybody can forge: a hint, to be confirmed).
pub fn is_ours(guid: Guid) -> bool {
    guid.0 & 0xffff_0000_0000_0000 == GUID_MARK
}

/// A port table shared by look-ups: interface index to GID table, for building [`aliases`].
pub(crate) fn shared_aliases(ports: &[Arc<Port>]) -> Arc<BTreeMap<Gid, IpAddr>> {
    Arc::new(aliases(ports.iter().map(|p| &**p)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_differ_by_interface_and_carry_no_fffe() {
        for host in [0, 1, 0xff_fe00_0000, 0xff_ffff_ffff, 0x12_3456_789a] {
            let guids: Vec<u64> = (0..64).map(|i| guid(host, i).0).collect();
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
        Interface { index, name, mac: [0; 6], mtu: 1500, up: true, loopback, speed_mbps: None, addresses }
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
    fn configuration_errors_name_what_is_wrong() {
        assert_eq!(parse("x"), Err(ConfigError::Form("x".into())));
        assert_eq!(parse("a=roce:lo,a=roce:lo"), Err(ConfigError::Name("a".into())));
    }
}
