//! The devices in /dev/infiniband, in a view of the file system for one program: UCX leaves out what has no character device there
//! that it may read and write (`uct_ib_device_is_accessible`). The library needs none, so nobody answers behind them: each is
//! /dev/full under another name, which refuses what is written and knows no ioctl. Without root's mknod(2) a number of the
//! kernel's uverbs devices cannot be had, and with it an adapter's could be meant.
//!
//! `issm`, `umad` and `rdma_cm` are not shown: programs open those themselves.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use host::view::View;

const INFINIBAND: &str = "infiniband";

/// What can stand for a device, best first; every /dev has the second.
const MODELS: [&str; 2] = ["full", "null"];

/// Shows `uverbs0` and on, so many, in the directory of this name below `dev`: it is covered, or where there is none, `dev` itself
/// with all its entries, to which it can be added.
///
/// # Errors
/// What the kernel refused.
pub fn build(view: &mut View, dev: &Path, devices: usize) -> io::Result<()> {
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
    (0..devices).try_for_each(|index| view.show(&model, &dir.join(format!("uverbs{index}"))))?;
    view.seal(covered)
}
