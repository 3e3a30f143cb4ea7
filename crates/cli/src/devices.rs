//! `verbena devices`: what this machine offers, without opening a socket.

use std::process::ExitCode;
use std::sync::Arc;

use host::SameHost;
use host::process::{self, Instance, environment};
use nic::DeviceConfig;
use nic::device::Port;
use node::devices::DeviceSpec;

/// List the devices and their GIDs
///
/// By default there is one for each network interface that is up and has an address, named rxe_<interface>. VERBENA_DEVICES
/// chooses others: name=roce:interface, comma separated.
#[derive(clap::Args)]
pub struct Args {}

/// What VERBENA_DEVICES asks for, where it is set.
fn asked_for() -> Result<Option<Vec<DeviceSpec>>, String> {
    environment::devices().map_err(|e| e.to_string())
}

/// An error says what is wrong with VERBENA_DEVICES.
pub fn check_environment() -> Result<(), String> {
    asked_for().map(drop)
}

/// The devices that a program would find now, in its order, with nothing started.
///
/// # Errors
/// A message: VERBENA_DEVICES has no meaning, or the system does not tell its interfaces.
pub fn survey() -> Result<Vec<(DeviceConfig, Port)>, String> {
    let interfaces = host::interfaces().map_err(|e| format!("cannot list the interfaces: {e}"))?;
    Ok(node::devices::choose(asked_for()?.as_deref(), &interfaces, host::host_id()))
}

/// This process's instance, on the devices that VERBENA_DEVICES or the default has.
///
/// # Errors
/// A message: VERBENA_DEVICES has no meaning, or the system refused something.
pub fn start() -> Result<Arc<Instance>, String> {
    asked_for()?;
    process::get().map_err(|e| format!("cannot start: {e}"))
}

/// Prints a line a device, a line a GID, and a line about processes of this host.
pub fn run(_: &Args) -> Result<ExitCode, String> {
    for device in start()?.node().devices() {
        let (config, port) = (&device.config, device.port());
        println!(
            "{:<16} interface {:<10} {}  mtu {:<5} guid {:016x}",
            config.name,
            config.interface_name,
            if port.up { "active" } else { "down  " },
            port.mtu.bytes(),
            config.guid.0
        );
        for (index, entry) in port.gids.iter() {
            let note = if entry.borne { "" } else { "  (this host only: no interface bears it)" };
            println!("    gid {index:<3} {}{note}", entry.gid.ip());
        }
    }
    println!("same host        {}", way(&host::same_host(), host::arena::take(1).is_some()));
    let others = host::other_builds();
    if others > 0 {
        println!(
            "other builds     {others} here, with another protocol between processes than {}: packets \
             only, by the network",
            host::name_text::PROTOCOL
        );
    }
    Ok(ExitCode::SUCCESS)
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
