//! `cmd_fd` of a context: a file in memory that holds the device's name. So a process that is given
//! a duplicate can open the device by it (ibv_import_device(3)).

use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::ffi_guard::Errno;

/// Where a command descriptor leads.
const LINK: &str = "/memfd:verbena-device (deleted)";
/// Longest name of a device.
const NAME: usize = 64;

/// A command descriptor for a device. Where the system refuses such files, or lets none grow
/// (RLIMIT_FSIZE), it is one that leads to no device.
///
/// # Errors
///
/// EMFILE, ENFILE, ENOMEM.
pub(crate) fn make(device: &nic::Device) -> Result<OwnedFd, Errno> {
    linux::without_file_size_signal(|| named(device)).or_else(|error| match error.0 {
        libc::EMFILE | libc::ENFILE | libc::ENOMEM => Err(error),
        _ => unnamed(),
    })
}

/// Programs only give it back, or to others that shall import the device: these are told EBADF.
fn unnamed() -> Result<OwnedFd, Errno> {
    // SAFETY: no pointer; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor just made, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn named(device: &nic::Device) -> Result<OwnedFd, Errno> {
    // SAFETY: a string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"verbena-device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor just made, owned by no other code.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(device.config.name.as_bytes())?;
    Ok(file.into())
}

/// The name of the device behind a command descriptor; `None` for any other descriptor.
pub(crate) fn name_behind(fd: c_int) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    if link.as_os_str() != LINK {
        return None;
    }
    // SAFETY: open, as its link was just read; it is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut name = [0; NAME];
    let len = file.read_at(&mut name, 0).ok()?;
    String::from_utf8(name[..len].to_vec()).ok()
}
