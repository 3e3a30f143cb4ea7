//! The devices in /dev/infiniband, in a view of the file system for one program. UCX leaves out
//! what has no character device there that it may read and write (`uct_ib_device_is_accessible`).
//! The library needs none, so no driver answers behind them: each is /dev/full under another name,
//! which refuses what is written and knows no ioctl. Without root's mknod(2) a number of the
//! kernel's uverbs devices cannot be had, and with it an adapter's could be meant.
//!
//! `rdma_cm` is not shown: programs open it themselves. `issm` and `umad` are shown to programs of
//! a simulated host alone (`crate::fabric`).

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use linux::mount_namespace::View;
use nic::DeviceConfig;
use nic::device::Port;

/// The interface of this name reaches only its host.
const LOOPBACK: &str = "lo";

const INFINIBAND: &str = "infiniband";

/// What can stand for a device, best first; every /dev has the second.
const MODELS: [&str; 2] = ["full", "null"];

/// The numbers of the devices to show. UCX takes every RoCE device for one that reaches all others
/// and spreads long messages over two of them: that on the loopback interface is shown where there
/// is no other with a port that is up.
pub(crate) fn shown(devices: &[(DeviceConfig, Port)]) -> Vec<usize> {
    let is_loopback = |config: &DeviceConfig| config.interface_name == LOOPBACK;
    let reached = devices.iter().any(|(config, port)| !is_loopback(config) && port.up);
    let numbered = devices.iter().enumerate();
    numbered.filter(|(_, (config, _))| !(reached && is_loopback(config))).map(|(index, _)| index).collect()
}

/// Shows `uverbsN` for each of these numbers.
///
/// # Errors
/// What the kernel refused.
pub(crate) fn build(view: &mut View, dev: &Path, devices: &[usize]) -> io::Result<()> {
    show(view, dev, |view, dir, model| {
        devices.iter().try_for_each(|index| view.show(model, &dir.join(format!("uverbs{index}"))))
    })
}

/// Has `add` show devices in the directory of this name below `dev`: it is covered, or where there
/// is none, `dev` itself with all its entries, to which it can be added. `add` is given the
/// directory, and a device that can stand for others.
///
/// # Errors
/// What the kernel or `add` refused.
pub(crate) fn show(
    view: &mut View,
    dev: &Path,
    add: impl FnOnce(&mut View, &Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let dir = dev.join(INFINIBAND);
    let covered = if dir.is_dir() {
        view.cover(&dir)?;
        &dir
    } else {
        view.extend(dev)?;
        fs::create_dir(&dir)?;
        dev
    };
    let is_device = |path: &Path| fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
    let model = MODELS.map(|name| dev.join(name)).into_iter().find(|path| is_device(path));
    let model = model.ok_or(io::ErrorKind::NotFound)?;
    add(view, &dir, &model)?;
    view.seal(covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::GidTable;

    fn device(interface: &str, up: bool) -> (DeviceConfig, Port) {
        let (name, interface_name) = (format!("rxe_{interface}"), interface.to_owned());
        let config = DeviceConfig {
            id: nic::DeviceId(0),
            name,
            transport: nic::Transport::Roce,
            guid: wire::Guid(1),
            interface: 1,
            interface_name,
            mac: [0; 6],
        };
        (config, Port { up, mtu: wire::Mtu::M1024, speed_mbps: None, gids: GidTable::default(), ib: None })
    }

    #[test]
    fn the_loopback_device_is_shown_where_no_other_is_up() {
        assert_eq!(shown(&[device("lo", true)]), [0]);
        assert_eq!(shown(&[device("eth0", false), device("lo", true)]), [0, 1]);
        assert_eq!(shown(&[device("eth0", true), device("eth1", false), device("lo", true)]), [0, 1]);
    }
}
