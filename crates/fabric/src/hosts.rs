//! Which adapters are one host's: those whose descriptions begin with the same word. The second
//! word is the device's name, as in `host7 mlx5_0`. The net file may say otherwise.

use std::collections::BTreeMap;

use wire::mad::NodeType;

use crate::subnet::{NodeId, Subnet};

/// Bytes of a device's name at most: a `umad_ca_t` has room for 20 with the zero byte.
const MAX_DEVICE: usize = 19;
/// The prefix of devices that the file does not name.
const PREFIX: &str = "mlx5_";

/// A device of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) node: NodeId,
}

/// The hosts of a fabric by name. A switch is a host, too, with its port 0.
#[derive(Debug, Default)]
pub(crate) struct Hosts(BTreeMap<String, Vec<Device>>);

impl Hosts {
    pub(crate) fn of(subnet: &Subnet) -> Self {
        let mut hosts: BTreeMap<String, Vec<Device>> = BTreeMap::new();
        for (index, node) in subnet.nodes.iter().enumerate() {
            let told = if node.kind == NodeType::Switch {
                ""
            } else {
                let rest = node.description[host_of(&node.description).len()..].trim_start_matches(' ');
                rest.split(' ').next().unwrap_or("")
            };
            let device = node.settings.device.as_deref().unwrap_or(told);
            let devices = hosts.entry(node.host().to_owned()).or_default();
            let is_free = |name: &str| devices.iter().all(|device| device.name != name);
            let name = if is_device(device) && is_free(device) {
                device.to_owned()
            } else {
                let made = (0..).map(|number| format!("{PREFIX}{number}"));
                made.into_iter().find(|name| is_free(name)).unwrap_or_default()
            };
            devices.push(Device { name, node: NodeId(index as u32) });
        }
        Self(hosts)
    }

    pub(crate) fn devices(&self, host: &str) -> Option<&[Device]> {
        self.0.get(host).map(Vec::as_slice)
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// The host that an adapter's description names.
pub(crate) fn host_of(description: &str) -> &str {
    description.split(' ').next().unwrap_or_default()
}

/// Whether a word can be the name of a device and of a file.
pub(crate) fn is_device(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !word.is_empty() && word.len() <= MAX_DEVICE && word.chars().all(is_plain)
}
