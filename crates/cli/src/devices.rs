//! `verbena devices`: what this machine offers, without opening a socket.

use std::process::ExitCode;
use std::sync::Arc;

use host::{Host, RealWorld};
use node::Node;

/// List the devices and their GIDs
///
/// By default there is one for each network interface that is up and has an address, named rxe_<interface>. VERBENA_DEVICES
/// chooses others: name=roce:interface, comma separated.
#[derive(clap::Args)]
pub struct Args {}

/// A host of this machine's devices, as VERBENA_DEVICES or the default has them.
pub fn start() -> Result<Arc<Host<Node<RealWorld>>>, String> {
    let devices = match std::env::var("VERBENA_DEVICES") {
        Ok(text) => Some(node::devices::parse(&text).map_err(|e| e.to_string())?),
        Err(_) => None,
    };
    let config = node::Config { devices, ..node::Config::default() };
    let make = |world: Arc<RealWorld>| {
        let interfaces = world.interfaces();
        Node::new(world, &config, &interfaces)
    };
    Host::start(make, host::Config::default()).map_err(|e| format!("cannot start: {e}"))
}

/// Prints a line a device and a line a GID.
pub fn run(_: &Args) -> Result<ExitCode, String> {
    let host = start()?;
    for device in host.guest().devices() {
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
    Ok(ExitCode::SUCCESS)
}
