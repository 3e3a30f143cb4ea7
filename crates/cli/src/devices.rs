//! `verbena devices`: what this machine offers, without opening a socket.

use std::process::ExitCode;
use std::sync::Arc;

use linux::process::{self, Instance, environment};
use local::SameHost;
use nic::DeviceConfig;
use nic::device::Port;
use stack::devices::DeviceSpec;

use crate::output;

/// List the devices and their GIDs
///
/// By default there is one for each network interface that is up and has an address, named
/// rxe_<interface>. VERBENA_DEVICES chooses others: name=roce:interface or name=iwarp:interface,
/// comma separated. On a host of a fabric they are the host's ports.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// What VERBENA_DEVICES asks for, where it is set.
fn asked_for() -> Result<Option<Vec<DeviceSpec>>, String> {
    environment::devices().map_err(|e| e.to_string())
}

/// An error says what is wrong with VERBENA_DEVICES.
pub(crate) fn check_environment() -> Result<(), String> {
    asked_for().map(drop)
}

/// The devices that a program would find now, in its order, with nothing started.
///
/// # Errors
/// A message: VERBENA_DEVICES has no meaning, or the system does not tell its interfaces.
pub(crate) fn survey() -> Result<Vec<(DeviceConfig, Port)>, String> {
    survey_of(asked_for()?.as_deref())
}

/// The devices that a program would find where VERBENA_DEVICES is set to this.
///
/// # Errors
/// As of [`survey`].
pub(crate) fn survey_as(devices: &str) -> Result<Vec<(DeviceConfig, Port)>, String> {
    survey_of(Some(&stack::devices::parse(devices).map_err(|e| e.to_string())?))
}

fn survey_of(devices: Option<&[DeviceSpec]>) -> Result<Vec<(DeviceConfig, Port)>, String> {
    let interfaces = linux::interfaces().map_err(|e| format!("cannot list the interfaces: {e}"))?;
    Ok(stack::devices::choose(devices, &interfaces, linux::host_id()))
}

/// This process's instance, on the devices that VERBENA_DEVICES or the default has.
///
/// # Errors
/// A message: VERBENA_DEVICES has no meaning, or the system refused something.
pub(crate) fn start() -> Result<Arc<Instance>, String> {
    asked_for()?;
    process::get().map_err(|e| format!("cannot start: {e}"))
}

/// Prints a line a device, a line a GID, and a line about processes of this host.
///
/// # Errors
/// A message: see [`start`]; or the system refused to write.
pub(crate) fn run(_: &Args) -> Result<ExitCode, String> {
    let instance = start()?;
    let mut text = String::new();
    for device in instance.node().devices() {
        describe(&device.config, &device.port(), &mut text);
    }
    if text.is_empty() {
        text.push_str(
            "no device        no network interface is up and has an address (`ip link set lo up`)\n",
        );
    }
    let way = way(&local::same_host(), local::arena::take(1).is_some());
    text.push_str(&format!("same host        {way}\n"));
    let others = linux::other_builds();
    if others > 0 {
        text.push_str(&format!(
            "other builds     {others} here, with another protocol between processes than {}: packets \
             only, by the network\n",
            linux::name_text::PROTOCOL
        ));
    }
    output::write(text)
}

fn describe(config: &DeviceConfig, port: &Port, text: &mut String) {
    text.push_str(&format!(
        "{:<16} interface {:<10} {}  mtu {:<5} guid {:016x}\n",
        config.name,
        config.interface_name,
        if port.up { "active" } else { "down  " },
        port.mtu.bytes(),
        config.guid.0
    ));
    if let Some(ib) = &port.ib {
        text.push_str(&format!("    lid {:<3} subnet manager {}\n", ib.lid, ib.sm_lid));
    }
    for (index, entry) in port.gids.iter() {
        let note = if entry.borne { "" } else { "  (this host only: no interface bears it)" };
        text.push_str(&format!("    gid {index:<3} {}{note}\n", entry.gid.ip()));
    }
}

/// How what is for other processes of this host travels, and why not faster. `buffers`: memory of
/// ibv_alloc_buf is such that others map it.
fn way(way: &SameHost, buffers: bool) -> String {
    match (way, buffers) {
        (SameHost::Network, _) => "by the network (VERBENA_SAME_HOST=off)".to_owned(),
        (SameHost::NoMemory(why), _) => format!("by the network ({why})"),
        (SameHost::Packets(why), true) => {
            format!(
                "by shared memory; WRITE and READ in packets, but those of memory of ibv_alloc_buf ({why})"
            )
        }
        (SameHost::Packets(why), false) => format!("by shared memory; WRITE and READ in packets ({why})"),
        (SameHost::Memory, true) => {
            "by shared memory; WRITE and READ straight to memory, of ibv_alloc_buf without a system call"
                .to_owned()
        }
        (SameHost::Memory, false) => "by shared memory; WRITE and READ straight to memory".to_owned(),
    }
}
