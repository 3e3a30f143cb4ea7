//! Measures Verbena and, in the same run on the same two cores, what plain sockets give, the floor,
//! and what others do who carry messages: its peers. `bench/run` calls it.
//!
//! `floor` holds the sockets, `rdma` runs `rdma_bench.c` (an ordinary RDMA program) on Verbena,
//! `network` compares the two, `connections` makes many of them by `rdma_connections.c`, `beside`
//! compares the Rust crate with it and with TCP by the programs of `rust`, `persist` librpma's two
//! libraries by `rpma_bench.c`, `peers` what carries messages between processes of one host, with
//! `hop`, the time of a cache line, `copies`, the kernel's calls, `refused`, programs that may not
//! make them, and `picture`, `hosts` compares two hosts with sockets,
//! `rsockets` programs of sockets with loopback TCP, `streams` iWARP with TCP,
//! `guests` with the kernel's rdma_rxe, `fabric` measures a simulated subnet; `report` writes the
//! tables.

mod beside;
mod connections;
mod copies;
mod fabric;
mod floor;
mod guests;
mod hop;
mod hosts;
mod network;
mod peers;
mod persist;
mod picture;
mod pin;
mod rdma;
mod refused;
mod report;
mod rsockets;
mod rust;
mod streams;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

/// Verbena beside the floor it stands on, and beside its peers.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Measure the sockets only.
    #[arg(long)]
    floors: bool,
    /// Measure connections only.
    #[arg(long = "connections")]
    of_connections: bool,
    /// Measure the Rust crate only.
    #[arg(long = "crate")]
    of_crate: bool,
    /// Measure librpma only.
    #[arg(long = "rpma")]
    of_rpma: bool,
    /// Measure processes of one host only.
    #[arg(long = "peers")]
    of_peers: bool,
    /// Measure processes of one host beside the kernel's calls only.
    #[arg(long = "calls")]
    of_calls: bool,
    /// Measure a blocked receiver beside a pipe only.
    #[arg(long = "asleep")]
    of_asleep: bool,
    /// How often processes of one host are measured: the figures are medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    turns: u8,
    /// Measure between two hosts, network namespaces that a veth joins, only; needs root.
    #[arg(long = "hosts")]
    of_hosts: bool,
    /// Measure iWARP only: between two hosts, likewise, or with `--kernel` between two guests; it
    /// needs root.
    #[arg(long = "iwarp")]
    of_streams: bool,
    /// Measure programs of sockets by rsockets, beside loopback TCP, only.
    #[arg(long = "rsockets")]
    of_rsockets: bool,
    /// Measure a fabric only: its subnet managers, its memory, and two hosts with switches between.
    #[arg(long = "fabric")]
    of_fabric: bool,
    /// Measure between two guests, beside the kernel's rdma_rxe, only; needs root.
    #[arg(long = "kernel")]
    of_kernel: bool,
    /// What boots these guests.
    #[arg(long, default_value = "conformance/kernel-peer/kernel-peer")]
    kernel_peer: PathBuf,
    /// The `verbena` command to measure.
    #[arg(long, default_value = "target/release/verbena")]
    verbena: PathBuf,
    /// Where `rdma_bench.c` is.
    #[arg(long, default_value = "bench")]
    sources: PathBuf,
    /// Write the table to this file, and not only to the terminal.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Write the pictures of processes of one host into this folder.
    #[arg(long)]
    pictures: Option<PathBuf>,
}

/// Connections that stand at once.
const HELD: usize = 10_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.split_first() {
        Some((first, rest)) if first == "crate" => rust::run(rest),
        Some((first, rest)) if first == "copies" => copies::run(rest),
        Some((first, rest)) if first == "refused" => refused::run(rest),
        Some((first, rest)) if first == "pipe" => peers::asleep::run(rest),
        _ => {
            let args = Args::parse();
            if args.of_rsockets {
                of_rsockets(&args)
            } else if args.of_fabric {
                fabric::page(&args.verbena).and_then(|page| publish(&args, &page))
            } else {
                measure(&args)
            }
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("verbena-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The tables of processes of one host; their pictures are written.
fn of_peers(args: &Args, program: Option<&rdma::Program>) -> io::Result<String> {
    let turns = args.turns.into();
    let Some(measured) = peers::measure(&args.verbena, turns)? else { return Ok(String::new()) };
    if let Some(folder) = &args.pictures {
        for (name, picture) in measured.pictures() {
            std::fs::write(folder.join(name), picture)?;
        }
    }
    let calls = program.map(|program| peers::calls::figures(program, &args.verbena, turns)).transpose()?;
    Ok(measured.page() + &calls.map_or_else(String::new, |figures| report::calls_table(&figures)))
}

/// The table of two hosts, where there can be any.
fn between_hosts(args: &Args) -> String {
    if args.floors {
        return String::new();
    }
    hosts::figures(&args.verbena).map_or_else(
        |e| {
            eprintln!("left out: between hosts ({e})");
            String::new()
        },
        |figures| {
            let of_streams = streams::figures(&args.verbena, &args.sources).map_or_else(
                |e| {
                    eprintln!("left out: iWARP between hosts ({e})");
                    String::new()
                },
                |figures| report::streams_table(&figures),
            );
            report::hosts_table(&figures) + &of_streams
        },
    )
}

/// The page of programs of sockets.
fn of_rsockets(args: &Args) -> io::Result<()> {
    publish(args, &report::rsockets_page(&rsockets::figures(&args.verbena)?))
}

fn publish(args: &Args, page: &str) -> io::Result<()> {
    print!("{page}");
    args.write.as_ref().map_or(Ok(()), |path| std::fs::write(path, page))
}

/// The one table that is wanted, where it is measured without `rdma_bench.c`.
fn alone(args: &Args) -> io::Result<Option<String>> {
    Ok(if args.of_asleep {
        let turn = |_| peers::asleep::measure(&std::path::absolute(&args.verbena)?);
        Some(peers::asleep::table(&(0..args.turns).map(turn).collect::<io::Result<Vec<_>>>()?))
    } else if args.of_hosts {
        Some(report::hosts_table(&hosts::figures(&args.verbena)?))
    } else if args.of_streams {
        Some(report::streams_table(&streams::figures(&args.verbena, &args.sources)?))
    } else {
        None
    })
}

fn measure(args: &Args) -> io::Result<()> {
    let compiled =
        |name, libraries: &[&str]| rdma::Program::compile(&args.verbena, &args.sources, name, libraries);
    if args.of_kernel {
        let connector = compiled("rdma_connections", &[])?;
        if args.of_streams {
            print!("{}", report::guests_iwarp(&guests::iwarp_figures(&args.kernel_peer, &connector)?));
            return Ok(());
        }
        return publish(args, &report::guests_page(&guests::figures(&args.kernel_peer, &connector)?));
    }
    if let Some(table) = alone(args)? {
        print!("{table}");
        return Ok(());
    }
    let compile = |name, libraries: &[&str]| (!args.floors).then(|| compiled(name, libraries)).transpose();
    let (program, connections) = (compile("rdma_bench", &[])?, compile("rdma_connections", &[])?);
    if args.of_connections {
        print!("{}", report::table(&connections::figures(connections.as_ref())?));
        return Ok(());
    }
    if args.of_peers {
        print!("{}", of_peers(args, program.as_ref())?);
        return Ok(());
    }
    if let Some(program) = program.as_ref().filter(|_| args.of_calls) {
        let figures = peers::calls::figures(program, &args.verbena, args.turns.into())?;
        print!("{}", report::calls_table(&figures));
        return Ok(());
    }
    let rpma = compile("rpma_bench", &["-lrpma"]).unwrap_or_else(|e| {
        eprintln!("left out: librpma ({e})");
        None
    });
    if let Some(program) = program.as_ref().filter(|_| args.of_crate) {
        print!("{}", report::crate_table(&beside::figures(program)?));
        return Ok(());
    }
    let of_rpma = |program| persist::figures(program, &std::env::temp_dir(), Path::new("/dev/shm"));
    if let Some(program) = rpma.as_ref().filter(|_| args.of_rpma) {
        print!("{}", report::rpma_table(&of_rpma(program)?));
        return Ok(());
    }
    let mut figures = network::figures(program.as_ref())?;
    figures.extend(connections::figures(connections.as_ref())?);
    let held = connections.as_ref().map(|p| p.held(HELD)).transpose()?;
    let mut table = report::table(&figures);
    if let Some((client, server)) = held {
        table += &report::memory(HELD, client, server);
    }
    if !args.floors {
        table += &of_peers(args, program.as_ref())?;
    }
    if let Some(program) = &program {
        table += &report::crate_table(&beside::figures(program)?);
    }
    if let Some(program) = &rpma {
        table += &report::rpma_table(&of_rpma(program)?);
    }
    // Last: it takes this process away from the network that it was in.
    table += &between_hosts(args);
    publish(args, &table)
}
