//! The devices as the kernel would show them in /sys/class
//! (Documentation/ABI/stable/sysfs-class-infiniband), in a view of the file system for one program.
//! What stands there is what the library answers, from the same devices and ports, as it is when
//! the program starts.
//!
//! | below /sys/class/infiniband/NAME | |
//! |---|---|
//! | node_type, node_guid, sys_image_guid, node_desc, fw_ver, hw_rev | `ibv_query_device` |
//! | hca_type, board_id | what the device is: drivers of adapters have them, rdma_rxe has not |
//! | parent, device/net/INTERFACE | the interface |
//! | ports/1/state, phys_state, rate, link_layer, cap_mask | `ibv_query_port` |
//! | ports/1/lid, lid_mask_count, sm_lid, sm_sl | 0: RoCE has none |
//! | ports/1/gids/N, gid_attrs/types/N, gid_attrs/ndevs/N | `ibv_query_gid_ex`; the last two for N in use only |
//! | ports/1/pkeys/0 | `ibv_query_pkey` |
//! | ports/1/counters, hw_counters | what the processes of the program have counted, live ([`linux::port_counters`]) |

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linux::mount_namespace::{self, View};
use linux::port_counters::{self, PortFiles};
use nic::device::port::{FIRMWARE, PhysState, PortState};
use nic::device::{Port, observed};
use nic::{DeviceConfig, Transport, device::port};

use crate::{dev, devices, object, ready};

const DEV: &str = "/dev";
const CLASS: &str = "/sys/class";
const INFINIBAND: &str = "infiniband";
const VERBS: &str = "infiniband_verbs";

/// IB_USER_VERBS_ABI_VERSION (rdma/ib_user_verbs.h) and RXE_UVERBS_ABI_VERSION
/// (rdma/rdma_user_rxe.h).
pub(crate) const VERBS_ABI: u32 = 6;
pub(crate) const DEVICE_ABI: u32 = 2;
/// IB_UVERBS_MAJOR and IB_UVERBS_BASE_MINOR of the kernel: the character devices that rdma-core
/// would open.
pub(crate) const UVERBS_MAJOR: u32 = 231;
pub(crate) const UVERBS_BASE_MINOR: u32 = 192;

/// A GUID as sysfs and iproute2 write it: four groups.
pub(crate) fn guid(guid: wire::Guid) -> String {
    let groups = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid.0 >> shift & 0xffff));
    groups.join(":")
}

/// Shows the devices to this process and to the program that it becomes. Names the directory of
/// devices to the program, where their ports have counters ([`port_counters::VARIABLE`]).
///
/// # Errors
/// What the kernel refused, or a message for what VERBENA_DEVICES says; nothing has changed then.
pub(crate) fn present(program: &mut Command, devices: Option<&str>) -> io::Result<()> {
    let devices = devices.map_or_else(devices::survey, devices::survey_as).map_err(io::Error::other)?;
    let class = Path::new(CLASS).join(INFINIBAND);
    let counters = Counters::of(&class, &devices);
    mount_namespace::enter(object::roster().as_deref(), |view| {
        let before = counters.before();
        // Only some programs look into /dev: the others have what they need without.
        let _ = view.attempt(|view| dev::build(view, Path::new(DEV), &dev::shown(&devices)));
        build(view, Path::new(CLASS), &devices)?;
        // A program without counters runs, too.
        let _ = view.attempt(|view| counters.show(view, &before));
        Ok(())
    })?;
    if counters.are_there() {
        program.env(port_counters::VARIABLE, class);
    }
    Ok(())
}

/// The counters of all devices.
struct Counters {
    ports: Vec<Counted>,
    /// A `verbena run` around this one has some, and counts what this one starts, too.
    is_within: bool,
}

/// The counters of a device.
struct Counted {
    files: PortFiles,
    interface: String,
}

/// The directories of a port that were there before.
type Before = Option<[File; 2]>;

impl Counters {
    fn of(class: &Path, devices: &[(DeviceConfig, Port)]) -> Self {
        let named = devices.iter().filter(|(config, _)| is_file_name(&config.name));
        let ports = named.map(|(config, _)| Counted {
            files: PortFiles::of(class, &config.name),
            interface: config.interface_name.clone(),
        });
        let is_within = env::var_os(port_counters::VARIABLE).is_some_and(|named| Path::new(&named) == class);
        Self { ports: ports.collect(), is_within }
    }

    /// The directories that are there before the view covers them, in the order of the ports. A
    /// directory can be bound in the namespace in which it was opened.
    fn before(&self) -> Vec<Before> {
        let opened = |port: &Counted| {
            let [first, second] = port_counters::DIRS.map(|dir| File::open(port.files.dir(dir)).ok());
            Some([first?, second?]).filter(|_| self.is_within)
        };
        self.ports.iter().map(opened).collect()
    }

    /// Has them below the directories of the ports, in memory that goes with the view; or as they
    /// were before.
    fn show(&self, view: &mut View, before: &[Before]) -> io::Result<()> {
        for (Counted { files, interface }, before) in self.ports.iter().zip(before) {
            let dirs = port_counters::DIRS.map(|dir| files.dir(dir));
            if let Some(before) = before {
                before.iter().zip(&dirs).try_for_each(|(dir, at)| view.share(dir, at))?;
                continue;
            }
            dirs.iter().try_for_each(|dir| view.cover(dir))?;
            files.create()?;
            files.add(&[], &port_counters::of_link(interface), Duration::ZERO)?;
        }
        Ok(())
    }

    fn are_there(&self) -> bool {
        let is_there = |port: &Counted| !port.files.read("counters", &["port_xmit_data"]).is_empty();
        !self.ports.is_empty() && self.ports.iter().all(is_there)
    }
}

/// Whether a device's name can be one of a file; else the library alone shows the device.
fn is_file_name(name: &str) -> bool {
    !name.contains('/') && name != "." && name != ".."
}

/// Covers the two directories, or where the kernel has none, makes the directory of classes one to
/// which they can be added. What they show lies [`ready`], or where that can not be had is written
/// for this program.
fn build(view: &mut View, class: &Path, devices: &[(DeviceConfig, Port)]) -> io::Result<()> {
    let names = [INFINIBAND, VERBS];
    let dirs = names.map(|name| class.join(name));
    let missing: Vec<_> = dirs.iter().filter(|dir| !dir.is_dir()).collect();
    if !missing.is_empty() {
        view.extend(class)?;
        missing.iter().try_for_each(fs::create_dir)?;
    }
    let tree = tree(devices);
    let show = |view: &mut View, ready: &Path| {
        names.iter().zip(&dirs).try_for_each(|(name, dir)| view.show_dir(&ready.join(name), dir))
    };
    let shown = ready::find(&names, &tree).and_then(|ready| view.attempt(|view| show(view, &ready)));
    if shown.is_err() {
        let covered: Vec<_> = dirs.iter().filter(|dir| !missing.contains(dir)).collect();
        covered.iter().try_for_each(|dir| view.cover(dir))?;
        write(class, &tree)?;
        covered.iter().try_for_each(|dir| view.seal(dir))?;
    }
    if missing.is_empty() { Ok(()) } else { view.seal(class) }
}

/// What stands at a path below the directory of classes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Entry {
    /// A file with this in it.
    File(String),
    /// A symbolic link to there.
    Link(PathBuf),
    /// An empty directory.
    Dir,
}

/// Puts the tree where it belongs. Files of one directory that say the same are one file under
/// several names: of the 256 GIDs of a port nearly all are zero, and each file costs time when it
/// is made, and again when it goes.
///
/// # Errors
/// What the kernel refused.
pub(crate) fn write(class: &Path, tree: &[(PathBuf, Entry)]) -> io::Result<()> {
    let mut last = PathBuf::new();
    let mut written: HashMap<&str, PathBuf> = HashMap::new();
    for (path, entry) in tree {
        let at = class.join(path);
        if let Some(dir) = at.parent().filter(|dir| *dir != last) {
            fs::create_dir_all(dir)?;
            last = dir.to_owned();
            written.clear();
        }
        match entry {
            Entry::File(text) => match written.get(text.as_str()) {
                Some(same) => fs::hard_link(same, &at)?,
                None => {
                    fs::write(&at, text)?;
                    written.insert(text, at);
                }
            },
            Entry::Link(to) => symlink(to, &at)?,
            Entry::Dir => fs::create_dir(&at)?,
        }
    }
    Ok(())
}

/// All entries, those of one directory together.
fn tree(devices: &[(DeviceConfig, Port)]) -> Vec<(PathBuf, Entry)> {
    let mut tree = vec![file(Path::new(VERBS), "abi_version", VERBS_ABI)];
    for (index, (config, port)) in devices.iter().enumerate() {
        if !is_file_name(&config.name) {
            continue;
        }
        let at = Path::new(INFINIBAND).join(&config.name);
        device(&mut tree, &at, config);
        port_entries(&mut tree, &at.join("ports/1"), config, port);
        let at = Path::new(VERBS).join(format!("uverbs{index}"));
        let minor = UVERBS_BASE_MINOR as usize + index;
        tree.push(file(&at, "ibdev", &config.name));
        tree.push(file(&at, "abi_version", DEVICE_ABI));
        tree.push(file(&at, "dev", format!("{UVERBS_MAJOR}:{minor}")));
        tree.push((
            at.join("device"),
            Entry::Link(format!("../../{INFINIBAND}/{}/device", config.name).into()),
        ));
    }
    tree
}

/// A file of one line.
fn file(dir: &Path, name: &str, value: impl std::fmt::Display) -> (PathBuf, Entry) {
    (dir.join(name), Entry::File(format!("{value}\n")))
}

fn device(tree: &mut Vec<(PathBuf, Entry)>, at: &Path, config: &DeviceConfig) {
    let interface = &config.interface_name;
    let (node_type, board) = match config.transport {
        Transport::Roce => ("1: CA", "Verbena_RoCEv2"),
        Transport::Ib => ("1: CA", "Verbena_IB"),
        Transport::Iwarp => ("4: RNIC", "Verbena_iWARP"),
    };
    tree.push(file(at, "node_type", node_type));
    tree.push(file(at, "node_guid", guid(config.guid)));
    tree.push(file(at, "sys_image_guid", guid(config.guid)));
    tree.push(file(at, "node_desc", "verbena"));
    tree.push(file(at, "fw_ver", FIRMWARE));
    // ibstat prints empty lines without these, and procfs up to 0.8 takes the device for broken.
    for (name, value) in [("hw_rev", "0"), ("hca_type", "Verbena"), ("board_id", board)] {
        tree.push(file(at, name, value));
    }
    tree.push(file(at, "parent", interface));
    let net = at.join("device/net");
    tree.push((net.join(interface), Entry::Link(Path::new("../../../../net").join(interface))));
}

fn port_entries(tree: &mut Vec<(PathBuf, Entry)>, at: &Path, config: &DeviceConfig, port: &Port) {
    let state = match port.state() {
        PortState::Down => "DOWN",
        PortState::Init => "INIT",
        PortState::Armed => "ARMED",
        PortState::Active => "ACTIVE",
    };
    let phys = match port.phys_state() {
        PhysState::Sleep => "Sleep",
        PhysState::Polling => "Polling",
        PhysState::Disabled => "Disabled",
        PhysState::Training => "PortConfigurationTraining",
        PhysState::LinkUp => "LinkUp",
        PhysState::LinkErrorRecovery => "LinkErrorRecovery",
    };
    tree.push(file(at, "state", format_args!("{}: {state}", port.state() as u8)));
    tree.push(file(at, "phys_state", format_args!("{}: {phys}", port.phys_state() as u8)));
    tree.push(file(at, "rate", rate(port)));
    tree.push(file(at, "link_layer", "Ethernet"));
    tree.push(file(at, "cap_mask", format_args!("{:#010x}", port::CAPABILITIES)));
    for (name, none) in [("lid", "0x0"), ("sm_lid", "0x0"), ("lid_mask_count", "0"), ("sm_sl", "0")] {
        tree.push(file(at, name, none));
    }
    tree.push(file(&at.join("pkeys"), "0", format_args!("{:#06x}", wire::Pkey::default().0)));
    let gids = at.join("gids");
    let reported = observed::reported_gids(config, port);
    for index in 0..observed::gid_table_len(config.transport) {
        let found = reported.iter().find(|(at, _)| *at == index);
        tree.push(file(&gids, &index.to_string(), groups(found.map_or([0; 16], |(_, gid)| gid.0))));
    }
    let kind = match config.transport {
        Transport::Roce => "RoCE v2",
        // The kernel's word for all that is not RoCE v2.
        Transport::Iwarp | Transport::Ib => "IB/RoCE v1",
    };
    for (name, value) in [("types", kind), ("ndevs", &config.interface_name)] {
        let dir = at.join("gid_attrs").join(name);
        tree.extend(reported.iter().map(|(index, _)| file(&dir, &index.to_string(), value)));
    }
    tree.extend(port_counters::DIRS.map(|dir| (at.join(dir), Entry::Dir)));
}

/// A GID: eight groups, none of them shortened.
pub(crate) fn groups(gid: [u8; 16]) -> String {
    let (pairs, _) = gid.as_chunks::<2>();
    let groups: Vec<_> = pairs.iter().map(|pair| format!("{:04x}", u16::from_be_bytes(*pair))).collect();
    groups.join(":")
}

/// `2.5 Gb/sec (1X SDR)`.
fn rate(port: &Port) -> String {
    let rate = port.rate();
    let (lane, generation) = rate.lane();
    let tenths = lane * rate.lanes();
    let half = if tenths.is_multiple_of(10) { "" } else { ".5" };
    format!("{}{half} Gb/sec ({}X {generation})", tenths / 10, rate.lanes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::GidTable;

    fn one_device(name: &str) -> Vec<(DeviceConfig, Port)> {
        let config = DeviceConfig {
            id: nic::DeviceId(0),
            name: name.to_owned(),
            transport: Transport::Roce,
            guid: wire::Guid(0x0256_1012_3456_789a),
            interface: 1,
            interface_name: "lo".to_owned(),
            mac: [0; 6],
        };
        let gids = GidTable::updated(&GidTable::default(), [0; 6], &["127.0.0.1".parse().unwrap()]);
        vec![(config, Port { up: true, mtu: wire::Mtu::M4096, speed_mbps: Some(10_000), gids, ib: None })]
    }

    fn text(tree: &[(PathBuf, Entry)], path: &str) -> String {
        match tree.iter().find(|(p, _)| p == Path::new(path)) {
            Some((_, Entry::File(text))) => text.clone(),
            Some((_, Entry::Link(to))) => format!("-> {}", to.display()),
            Some((_, Entry::Dir)) => "directory".to_owned(),
            None => String::new(),
        }
    }

    #[test]
    fn a_device_reads_as_the_kernel_would_write_it() {
        let tree = tree(&one_device("rxe_lo"));
        for (path, wanted) in [
            ("node_type", "1: CA\n"),
            ("node_guid", "0256:1012:3456:789a\n"),
            ("parent", "lo\n"),
            ("hw_rev", "0\n"),
            ("device/net/lo", "-> ../../../../net/lo"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("ports/1/rate", "10 Gb/sec (1X FDR10)\n"),
            ("ports/1/cap_mask", "0x04010000\n"),
            ("ports/1/lid", "0x0\n"),
            ("ports/1/pkeys/0", "0xffff\n"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:0200:00ff:fe00:0000\n"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:7f00:0001\n"),
            ("ports/1/gids/255", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("ports/1/gid_attrs/ndevs/1", "lo\n"),
            ("ports/1/gid_attrs/types/2", ""),
            ("ports/1/counters", "directory"),
            ("ports/1/hw_counters", "directory"),
        ] {
            assert_eq!(text(&tree, &format!("infiniband/rxe_lo/{path}")), wanted, "{path}");
        }
        assert_eq!(text(&tree, "infiniband_verbs/abi_version"), "6\n");
        assert_eq!(text(&tree, "infiniband_verbs/uverbs0/dev"), "231:192\n");
        assert_eq!(text(&tree, "infiniband_verbs/uverbs0/ibdev"), "rxe_lo\n");
    }

    /// Files without which github.com/prometheus/procfs (sysfs/class_infiniband.go) takes no
    /// device, in old versions or new ones, and what it parses of each.
    #[test]
    fn node_exporter_finds_all_files_that_it_reads_of_a_device() {
        let tree = tree(&one_device("rxe_lo"));
        let read = |path: &str| text(&tree, &format!("infiniband/rxe_lo/{path}"));
        for name in ["board_id", "fw_ver", "hca_type"] {
            assert!(!read(name).trim().is_empty(), "{name}");
        }
        for name in ["state", "phys_state"] {
            let read = read(&format!("ports/1/{name}"));
            let (id, name) = read.split_once(": ").expect("a number and a name");
            assert!(id.parse::<u32>().is_ok() && !name.trim().is_empty(), "{read}");
        }
        let rate = read("ports/1/rate");
        assert!(rate.split_once(' ').is_some_and(|(gb, _)| gb.parse::<f32>().is_ok()), "{rate}");
        assert_eq!(read("ports/1/counters"), "directory", "one that can be listed");
    }

    #[test]
    fn a_name_that_would_leave_the_directory_is_not_shown() {
        for name in ["..", ".", "../../etc", "a/b"] {
            let tree = tree(&one_device(name));
            assert_eq!(tree.len(), 1, "{name}: {tree:?}");
        }
    }
}
