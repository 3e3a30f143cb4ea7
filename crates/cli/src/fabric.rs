//! `verbena fabric`: an InfiniBand subnet on this machine. `run` has it; the others talk to the
//! process that does.
//!
//! | module | what |
//! |---|---|
//! | `source` | the net file of one, or the generator |
//! | `place` | where fabrics lie, and which runs |
//! | `daemon`, `commands` | the process that has one |
//! | `files`, `issm` | what programs of a host see in the file system |
//! | `call` | a question to that process |
//! | `on` | `verbena run --on` |

mod call;
mod commands;
mod daemon;
mod files;
mod issm;
mod on;
mod place;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::fabric::Fabric;
use ::fabric::net::{Dragonfly, FatTree, Torus};
use ::fabric::protocol::{Command, Reply, Request};

use crate::output;

use daemon::Daemon;
pub(crate) use on::On;
use place::Place;

/// A simulated InfiniBand subnet: switches, hosts and cables, for subnet managers and their tools
///
/// It is no model of performance. `verbena run --on HOST -- PROGRAM` runs a program on one of its
/// hosts: OpenSM, infiniband-diags and whatever else uses libibumad.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// The fabric, where several run. Same as VERBENA_FABRIC
    #[arg(long, global = true, value_name = "NAME")]
    fabric: Option<String>,
}

#[derive(clap::Subcommand)]
enum What {
    /// Have a fabric, until `verbena fabric stop` or a signal ends it
    Run(RunArgs),
    /// Show nodes, ports and cables
    Show {
        /// Only this node
        node: Option<String>,
    },
    /// Count nodes, ports, and what has become of MADs
    Status,
    /// Show the way of packets between two nodes, as the forwarding tables are now
    Trace {
        /// The sender
        from: String,
        /// The receiver
        to: String,
    },
    /// Cut the cable at a port
    Down(At),
    /// Mend the cable at a port
    Up(At),
    /// Set a counter of a port
    Set {
        #[command(flatten)]
        at: At,
        /// The counter, by the name that perfquery(8) prints
        counter: String,
        /// The new value
        value: u64,
    },
    /// Print the counters of a port
    Counters(At),
    /// Lose a share of the packets that leave a port
    Drop {
        #[command(flatten)]
        at: At,
        /// The share: 1%, 0.5%; 0 ends it
        #[arg(value_parser = rate)]
        rate: u32,
    },
    /// Damage a share of the packets that leave a port: the other end counts SymbolErrorCounter and
    /// PortRcvErrors
    Damage {
        #[command(flatten)]
        at: At,
        /// The share: 1%, 0.5%; 0 ends it
        #[arg(value_parser = rate)]
        rate: u32,
    },
    /// Train a link anew with another width and speed
    Rate {
        #[command(flatten)]
        at: At,
        /// What both ends can do: 4xEDR, 1xSDR
        rate: String,
    },
    /// Cut and mend the cable at a port again and again
    Flap {
        #[command(flatten)]
        at: At,
        /// How long it stays cut, and mended: 2s, 500ms; 0 ends it
        #[arg(value_parser = period)]
        period: u64,
    },
    /// Let a counter of a port grow
    Grow {
        #[command(flatten)]
        at: At,
        /// The counter, by the name that perfquery(8) prints
        counter: String,
        /// By so much each second; 0 ends it
        a_second: u64,
    },
    /// Freeze a node: its management is silent, packets pass
    Freeze {
        /// The node
        node: String,
    },
    /// Thaw a node
    Thaw {
        /// The node
        node: String,
    },
    /// Write the fabric as a net file, with the LIDs of now; - is standard output
    Write {
        /// The file
        file: PathBuf,
    },
    /// List the fabrics of this user that run
    List,
    /// End a fabric
    Stop,
}

#[derive(clap::Args)]
struct RunArgs {
    /// What ibnetdiscover(8) has printed, or a net file of ibsim; - is standard input
    #[arg(required_unless_present_any = ["fat_tree", "torus", "dragonfly"])]
    file: Option<PathBuf>,
    /// A fat tree in place of a file: 2,36 has 648 hosts, 3,36 has 11664
    #[arg(long, value_name = "LEVELS,RADIX", conflicts_with = "file")]
    fat_tree: Option<FatTree>,
    /// A torus in place of a file, with a host at each switch: 4x4, 4x4x4
    #[arg(long, value_name = "XxYxZ", conflicts_with_all = ["file", "fat_tree"])]
    torus: Option<Torus>,
    /// A dragonfly in place of a file, by the switches of a group, the hosts of a switch and its
    /// links to other groups: 4,2,2 has 9 groups and 72 hosts
    #[arg(long, value_name = "SWITCHES,HOSTS,LINKS", conflicts_with_all = ["file", "fat_tree", "torus"])]
    dragonfly: Option<Dragonfly>,
    /// Let ports begin with the LIDs of the file, which subnet managers keep
    #[arg(long)]
    keep_lids: bool,
    /// The fabric's name, for --fabric; without it that of the file
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Which packets `drop` loses follows from this number
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The subnet manager that configures the fabric
    #[arg(long, value_name = "SM", default_value = "none")]
    sm: SubnetManager,
    /// With --sm builtin: adapters have 2 to the power of LMC LIDs
    #[arg(long, value_name = "LMC", value_parser = clap::value_parser!(u8).range(..=i64::from(::fabric::sm::MAX_LMC)))]
    lmc: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SubnetManager {
    /// That of a program, as OpenSM
    None,
    /// Verbena's own, until another one of a higher priority comes
    Builtin,
}

#[derive(clap::Args)]
struct At {
    /// The node: its description or the first word of that, its name in the file, or its GUID
    node: String,
    /// The number of the port
    port: u8,
}

/// Has a fabric, or asks one.
///
/// # Errors
/// A message for the user.
pub(crate) fn run(args: Args) -> Result<ExitCode, String> {
    let name = args.fabric;
    let command = match args.what {
        What::Run(args) => return serve(args, name),
        What::List => {
            let names = place::running().into_iter().map(|place| place.name + "\n");
            return output::write(names.collect::<String>());
        }
        What::Write { file } => return write(name.as_deref(), file),
        What::Show { node } => Command::Show { node },
        What::Status => Command::Status,
        What::Trace { from, to } => Command::Trace { from, to },
        What::Down(At { node, port }) => Command::Cut { node, port, cut: true },
        What::Up(At { node, port }) => Command::Cut { node, port, cut: false },
        What::Set { at: At { node, port }, counter, value } => Command::Set { node, port, counter, value },
        What::Counters(At { node, port }) => Command::Counters { node, port },
        What::Drop { at: At { node, port }, rate } => Command::Drop { node, port, ppm: rate },
        What::Damage { at: At { node, port }, rate } => Command::Damage { node, port, ppm: rate },
        What::Rate { at: At { node, port }, rate } => Command::Rate { node, port, rate },
        What::Flap { at: At { node, port }, period } => Command::Flap { node, port, period_ms: period },
        What::Grow { at: At { node, port }, counter, a_second } => {
            Command::Grow { node, port, counter, a_second }
        }
        What::Freeze { node } => Command::Freeze { node, frozen: true },
        What::Thaw { node } => Command::Freeze { node, frozen: false },
        What::Stop => Command::Stop,
    };
    output::write(ask(name.as_deref(), command)?)
}

fn ask(name: Option<&str>, command: Command) -> Result<String, String> {
    let place = Place::find(name)?;
    match call::call(&place, &Request::Command(command))? {
        Reply::Text(text) => Ok(text),
        other => Err(format!("fabric {}: not an answer: {other:?}", place.name)),
    }
}

fn write(name: Option<&str>, file: PathBuf) -> Result<ExitCode, String> {
    let text = ask(name, Command::Write)?;
    if file.as_os_str() == "-" {
        return output::write(text);
    }
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn serve(args: RunArgs, fabric: Option<String>) -> Result<ExitCode, String> {
    if args.lmc.is_some() && args.sm != SubnetManager::Builtin {
        return Err("--lmc is of the built-in subnet manager: --sm builtin".into());
    }
    let (file, own_name) = source::read(&args)?;
    let (place, _lock) = Place::take(args.name.or(fabric).as_deref().unwrap_or(&own_name))?;
    let (name, links, nodes) = (place.name.clone(), file.net.links(), file.net.nodes.len());
    let failed = |error: std::io::Error| format!("fabric {name}: {error}");
    let mut fabric = Fabric::new(&file.net, args.seed);
    fabric.set_counters(&file.counters);
    if args.keep_lids {
        fabric.set_lids(&file.lids);
    }
    // Of a large fabric as much memory as its ports have.
    drop(file);
    if args.sm == SubnetManager::Builtin {
        let lmc = args.lmc.unwrap_or_default();
        fabric.start_managers(Duration::ZERO, lmc).map_err(|error| format!("fabric {name}: {error}"))?;
    }
    let mut daemon = Daemon::new(fabric, place).map_err(failed)?;
    let programs = "Programs: verbena run --on HOST -- PROGRAM";
    output::write(format!("fabric {name}: {nodes} nodes, {links} links. {programs}\n"))?;
    daemon.run().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// A share of packets, in millionths.
fn rate(text: &str) -> Result<u32, String> {
    let percent: Option<f64> = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    match percent {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok((percent * 10_000.0).round() as u32),
        _ => Err("a share of packets is a number from 0% to 100%".into()),
    }
}

/// A time, in milliseconds.
fn period(text: &str) -> Result<u64, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1.0),
        (None, Some(number)) => (number, 1000.0),
        (None, None) => (text, 1000.0),
    };
    match number.trim().parse::<f64>() {
        Ok(number) if (0.0..=86_400.0).contains(&number) => Ok((number * unit).round() as u64),
        _ => Err("a time is a number of seconds or milliseconds, up to 86400: 2s, 500ms".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_is_seconds() {
        assert_eq!(["0", "2", "0.5s", "250ms"].map(period), [0, 2000, 500, 250].map(Ok));
        for bad in ["", "s", "-1s", "1h", "NaN", "1e9s"] {
            assert!(period(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_share_is_a_percentage_and_nothing_else() {
        assert_eq!(["0", "1%", "0.5%", "100"].map(rate), [0, 10_000, 5_000, 1_000_000].map(Ok));
        for bad in ["", "-1%", "101%", "1%%", "NaN", "inf"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
