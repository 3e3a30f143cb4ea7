//! Measures Verbena and, in the same run on the same two cores, what plain sockets give: the floor. `bench/run` calls it.
//!
//! `floor` holds the sockets, `rdma` runs `rdma_bench.c` (an ordinary RDMA program) on Verbena, `report` writes the table.

mod floor;
mod pin;
mod rdma;
mod report;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use report::{Better, Figure};

/// Verbena beside the floor it stands on.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Measure the sockets only.
    #[arg(long)]
    floors: bool,
    /// The `verbena` command to measure.
    #[arg(long, default_value = "target/release/verbena")]
    verbena: PathBuf,
    /// Where `rdma_bench.c` is.
    #[arg(long, default_value = "bench")]
    sources: PathBuf,
    /// Write the table to this file, and not only to the terminal.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("verbena-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<()> {
    let program =
        if args.floors { None } else { Some(rdma::Program::compile(&args.verbena, &args.sources)?) };
    let ours = |what: &[&str]| program.as_ref().map(|p| p.measure(what)).transpose();
    let mut figures = Vec::new();
    // Each floor is measured right before its figure: the machine's mood is then the same for both.
    let same = floor::ping_pong(floor::Acks::Sent)?;
    figures.push(Figure {
        what: "64-byte SEND, half round trip",
        unit: "us",
        better: Better::Lower,
        floor: same,
        floor_is: "UDP, the same datagrams (80 bytes, and 20 for the ACK)",
        ours: ours(&["lat", "64"])?,
    });
    figures.push(Figure {
        what: "the same, beside UDP without the ACKs",
        unit: "us",
        better: Better::Lower,
        floor: floor::ping_pong(floor::Acks::None)?,
        floor_is: "UDP, 80 bytes",
        ours: figures[0].ours,
    });
    for (what, size) in [("64 KiB WRITEs", 64 << 10), ("1 MiB WRITEs", 1 << 20)] {
        figures.push(Figure {
            what,
            unit: "GB/s",
            better: Better::Higher,
            floor: floor::stream(size)?,
            floor_is: "UDP with GSO and GRO, datagrams of 4112 bytes, without loss",
            ours: ours(&["bw", &size.to_string()])?,
        });
    }
    figures.push(Figure {
        what: "connections, one after the other",
        unit: "1/s",
        better: Better::Higher,
        floor: floor::connects()?,
        floor_is: "TCP: connect, accept, one byte, close",
        ours: ours(&["conn", "1000"])?,
    });
    let table = report::table(&figures);
    print!("{table}");
    if let Some(path) = &args.write {
        std::fs::write(path, table)?;
    }
    Ok(())
}
