//! The files of a host: what `verbena run --on` shows in /sys/class, /dev/infiniband and
//! /var/cache to the programs of that host.
//!
//! | in the host's directory | shown as |
//! |---|---|
//! | class/infiniband, class/infiniband_mad, class/infiniband_verbs | below /sys/class, read-only; a file that changes is replaced by rename(2), which programs see at once. Counters do so once a second |
//! | dev/issmK | /dev/infiniband/issmK: a named pipe, which a subnet manager keeps open |
//! | cache | /var/cache/infiniband-diags and opensm: the last run's topology, LIDs given |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fabric::counters::SELECTION;
use fabric::describe::{DeviceDescription, PortDescription, physical_state_name, state_name};
use wire::mad::perf::PortCounters;

use crate::object;
use crate::sysfs::{DEVICE_ABI, UVERBS_BASE_MINOR, UVERBS_MAJOR, VERBS_ABI, groups, guid};

/// IB_USER_MAD_ABI_VERSION (rdma/ib_user_mad.h).
const MAD_ABI: u32 = 5;
/// NodeInfo's number of a channel adapter: what has verbs.
const CHANNEL_ADAPTER: u8 = 1;
/// The names that the kernel's files have for the counters of [`SELECTION`]
/// (Documentation/ABI/stable/sysfs-class-infiniband).
const COUNTER_FILES: [&str; SELECTION.len()] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
];

/// The files of one host.
pub(crate) struct HostFiles {
    pub(crate) dir: PathBuf,
    /// What each file of class/ says.
    written: BTreeMap<PathBuf, String>,
}

impl HostFiles {
    /// Makes the directory, with all that does not change.
    ///
    /// # Errors
    ///
    /// What the system refused.
    pub(crate) fn create(dir: PathBuf, devices: &[DeviceDescription]) -> io::Result<Self> {
        for sub in [
            "class/infiniband",
            "class/infiniband_mad",
            "class/infiniband_verbs",
            "dev",
            "cache/infiniband-diags",
            "cache/opensm",
        ] {
            fs::create_dir_all(dir.join(sub))?;
        }
        for port in devices.iter().flat_map(|device| &device.ports) {
            let at = issm(&dir, port.umad);
            linux::make_pipe(&at)?;
        }
        let mut files = Self { dir, written: BTreeMap::new() };
        files.update(devices)?;
        Ok(files)
    }

    /// Writes the files that say something else now.
    ///
    /// # Errors
    ///
    /// What the system refused.
    pub(crate) fn update(&mut self, devices: &[DeviceDescription]) -> io::Result<()> {
        self.write(tree(devices))
    }

    /// Writes the files of counters that say something else now.
    ///
    /// # Errors
    ///
    /// What the system refused.
    pub(crate) fn update_counters(&mut self, counters: &[(String, u8, PortCounters)]) -> io::Result<()> {
        let mut tree = Vec::new();
        for (device, number, counters) in counters {
            let at =
                Path::new("infiniband").join(device).join("ports").join(number.to_string()).join("counters");
            for (counter, name) in SELECTION.into_iter().zip(COUNTER_FILES) {
                tree.push(file(&at, name, counter.get(counters)));
            }
        }
        self.write(tree)
    }

    fn write(&mut self, tree: Vec<(PathBuf, String)>) -> io::Result<()> {
        let class = self.dir.join("class");
        for (path, text) in tree {
            if self.written.get(&path) == Some(&text) {
                continue;
            }
            let at = class.join(&path);
            if let Some(dir) = at.parent() {
                fs::create_dir_all(dir)?;
            }
            let new = self.dir.join(format!("new-{:x}", object::random()));
            fs::write(&new, &text)?;
            fs::rename(&new, &at)?;
            self.written.insert(path, text);
        }
        Ok(())
    }
}

/// The devices that have verbs, in the order of their uverbsN.
pub(crate) fn adapters(devices: &[DeviceDescription]) -> impl Iterator<Item = &DeviceDescription> {
    devices.iter().filter(|device| device.kind == CHANNEL_ADAPTER)
}

/// The named pipe of a port.
pub(crate) fn issm(dir: &Path, umad: u32) -> PathBuf {
    dir.join("dev").join(format!("issm{umad}"))
}

/// All files below class/.
fn tree(devices: &[DeviceDescription]) -> Vec<(PathBuf, String)> {
    let mut tree = vec![file(Path::new("infiniband_mad"), "abi_version", MAD_ABI)];
    for device in devices {
        let at = Path::new("infiniband").join(&device.name);
        let kind = match device.kind {
            1 => "1: CA",
            2 => "2: switch",
            _ => "3: router",
        };
        tree.push(file(&at, "node_type", kind));
        tree.push(file(&at, "node_guid", guid(wire::Guid(device.node_guid))));
        tree.push(file(&at, "sys_image_guid", guid(wire::Guid(device.system_guid))));
        tree.push(file(&at, "node_desc", &device.description));
        for (name, value) in [
            ("fw_ver", env!("CARGO_PKG_VERSION")),
            ("hw_rev", "0"),
            ("hca_type", "Verbena"),
            ("board_id", "Verbena_IB"),
        ] {
            tree.push(file(&at, name, value));
        }
        for port in &device.ports {
            port_files(&mut tree, &at.join("ports").join(port.number.to_string()), port);
            let umad = Path::new("infiniband_mad").join(format!("umad{}", port.umad));
            tree.push(file(&umad, "ibdev", &device.name));
            tree.push(file(&umad, "port", port.number));
        }
    }
    let verbs = Path::new("infiniband_verbs");
    tree.push(file(verbs, "abi_version", VERBS_ABI));
    for (index, device) in adapters(devices).enumerate() {
        let at = verbs.join(format!("uverbs{index}"));
        tree.push(file(&at, "ibdev", &device.name));
        tree.push(file(&at, "abi_version", DEVICE_ABI));
        tree.push(file(&at, "dev", format_args!("{UVERBS_MAJOR}:{}", UVERBS_BASE_MINOR as usize + index)));
    }
    tree
}

fn file(dir: &Path, name: &str, value: impl std::fmt::Display) -> (PathBuf, String) {
    (dir.join(name), format!("{value}\n"))
}

fn port_files(tree: &mut Vec<(PathBuf, String)>, at: &Path, port: &PortDescription) {
    let state = format_args!("{}: {}", port.state, state_name(port.state)).to_string();
    let physical = format!("{}: {}", port.physical_state, physical_state_name(port.physical_state));
    tree.push(file(at, "state", state));
    tree.push(file(at, "phys_state", physical));
    tree.push(file(at, "lid", format_args!("{:#x}", port.lid)));
    tree.push(file(at, "lid_mask_count", port.lmc));
    tree.push(file(at, "sm_lid", format_args!("{:#x}", port.sm_lid)));
    tree.push(file(at, "sm_sl", port.sm_sl));
    tree.push(file(at, "cap_mask", format_args!("{:#010x}", port.capabilities)));
    tree.push(file(at, "link_layer", "InfiniBand"));
    tree.push(file(at, "rate", rate(port)));
    let gid = u128::from(port.gid_prefix) << 64 | u128::from(port.guid);
    tree.push(file(&at.join("gids"), "0", groups(gid.to_be_bytes())));
    // The kernel's word for all that is not RoCE v2.
    tree.push(file(&at.join("gid_attrs/types"), "0", "IB/RoCE v1"));
    for (index, key) in port.pkeys.iter().enumerate() {
        tree.push(file(&at.join("pkeys"), &index.to_string(), format_args!("{key:#06x}")));
    }
}

/// `100 Gb/sec (4X EDR)`.
pub(crate) fn rate(port: &PortDescription) -> String {
    let tenths = port.lanes * port.lane_tenths;
    let half = if tenths.is_multiple_of(10) { "" } else { ".5" };
    format!("{}{half} Gb/sec ({}X {})", tenths / 10, port.lanes, port.speed)
}

#[cfg(test)]
mod tests {
    use ::fabric::Fabric;
    use ::fabric::net::FatTree;

    use super::*;

    #[test]
    fn the_files_of_a_host_say_what_its_port_says_and_change_in_their_place() {
        let mut fabric = Fabric::new(&FatTree::new(2, 4).unwrap().net(), 1);
        let dir = std::env::temp_dir().join(format!("verbena-host-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let mut files = HostFiles::create(dir.clone(), &fabric.describe("host5").unwrap()).unwrap();
        let read = |path: &str| fs::read_to_string(dir.join("class").join(path)).unwrap();
        for (path, text) in [
            ("infiniband/mlx5_0/node_type", "1: CA\n"),
            ("infiniband/mlx5_0/node_guid", "0002:c903:0010:0005\n"),
            ("infiniband/mlx5_0/ports/1/state", "2: INIT\n"),
            ("infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp\n"),
            ("infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("infiniband/mlx5_0/ports/1/lid", "0x0\n"),
            ("infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:0010:0005\n"),
            ("infiniband/mlx5_0/ports/1/pkeys/0", "0xffff\n"),
            ("infiniband_mad/abi_version", "5\n"),
            ("infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
            ("infiniband_mad/umad0/ibdev", "mlx5_0\n"),
            ("infiniband_mad/umad0/port", "1\n"),
        ] {
            assert_eq!(read(path), text, "{path}");
        }
        let at = fabric.port_of_host("host5", "mlx5_0", 1).unwrap();
        fabric.set_is_sm(at, true);
        files.update(&fabric.describe("host5").unwrap()).unwrap();
        assert_eq!(read("infiniband/mlx5_0/ports/1/cap_mask"), "0x0010c84a\n");
        files.update_counters(&fabric.host_counters("host5")).unwrap();
        assert_eq!(read("infiniband/mlx5_0/ports/1/counters/port_xmit_data"), "0\n");
        let left = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["cache", "class", "dev"], "no file that was renamed stays");
        fs::remove_dir_all(dir).unwrap();
    }
}
