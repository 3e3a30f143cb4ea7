//! `verbena bench`: what SEND, WRITE and READ take over Verbena between two processes, beside TCP
//! in the same run.
//!
//! | file | what |
//! |---|---|
//! | this one | arguments, and the order of the measurements |
//! | `far_end` | the process at the other end, and what is said to it |
//! | `near_end` | the measurements |
//! | `report` | figures as a table and as JSON |
//! | `chart` | figures as SVG |

mod chart;
mod far_end;
mod near_end;
mod report;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::{devices, output};
use far_end::Started;
use near_end::Client;
use report::{Figures, Point, Report};

/// Measure latency and bandwidth, beside TCP
///
/// SEND, WRITE and READ between two processes of this host, or with --peer between two hosts: then
/// `verbena bench --listen` must run on the other one. Latency is the median and the 99th
/// percentile: of a SEND half of the time there and back, of a WRITE or READ the time until it is
/// complete. TCP does the same by turns: the bytes there and back, the bytes there and one back, or
/// one there and the bytes back. 1 GB is 10^9 bytes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure to `verbena bench --listen` on this host
    #[arg(long, value_name = "HOST", conflicts_with = "listen")]
    peer: Option<String>,
    /// Be the other end of --peer, until a signal ends it
    #[arg(long)]
    listen: bool,
    /// The TCP port at which --listen waits, and --peer asks
    #[arg(long, value_name = "PORT", default_value_t = 18_590)]
    port: u16,
    /// Sizes of messages in bytes; k and M are understood, and 8..1M is each power of 4 between
    #[arg(long, value_name = "SIZES", default_value = "8..1M", value_parser = sizes)]
    sizes: Sizes,
    /// Operations
    #[arg(long, value_name = "OPS", default_value = "send,write,read", value_parser = operations)]
    ops: Operations,
    /// Operations under way at a time, for bandwidth
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// How long each measurement takes
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = seconds)]
    seconds: Duration,
    /// Write the figures to FILE as JSON; `-` is standard output, and the table is left out then
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    json: Option<PathBuf>,
    /// Write a picture of the figures to FILE, as SVG
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    svg: Option<PathBuf>,
    /// Be the other end of a measurement on one host (used by the command itself)
    #[arg(long, hide = true, conflicts_with_all = ["listen", "peer"])]
    child: bool,
}

/// Most bytes of a message, and of all messages under way.
const MOST: usize = 64 << 20;
const MOST_UNDER_WAY: usize = 256 << 20;

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Send, Self::Write, Self::Read];

    fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
        }
    }
}

/// Sizes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes(Vec<usize>);

/// Operations, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Operations(Vec<Operation>);

fn size(text: &str) -> Result<usize, String> {
    let (number, unit) = match (text.strip_suffix(['k', 'K']), text.strip_suffix('M')) {
        (Some(number), _) => (number, 1 << 10),
        (_, Some(number)) => (number, 1 << 20),
        _ => (text, 1),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| (1..=MOST).contains(bytes))
        .ok_or_else(|| format!("'{text}' is not a size from 1 to 64M"))
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (size(first)?, size(last)?);
                let powers = std::iter::successors(Some(first), |size| size.checked_mul(4));
                all.extend(powers.take_while(|size| *size < last).chain([last]));
            }
            None => all.push(size(part)?),
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(Sizes(all))
}

fn operations(text: &str) -> Result<Operations, String> {
    let named = |name: &str| {
        let found = Operation::ALL.into_iter().find(|op| op.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("'{name}' is not send, write or read"))
    };
    let mut all: Vec<Operation> = text.split(',').map(named).collect::<Result<_, _>>()?;
    all.sort_by_key(|op| *op as u8);
    all.dedup();
    Ok(Operations(all))
}

/// A time that `--seconds` takes.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it takes 0.001 to 60 seconds".to_owned()),
    }
}

/// Measures, or is the other end.
///
/// # Errors
/// A message: no process answers there, the connection is lost, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    devices::check_environment()?;
    if args.child {
        return far_end::serve_one().map(|()| ExitCode::SUCCESS);
    }
    if args.listen {
        return far_end::listen(args.port).map(|()| ExitCode::SUCCESS);
    }
    let largest = args.sizes.0.last().copied().unwrap_or(1);
    if largest.saturating_mul(args.depth as usize) > MOST_UNDER_WAY {
        return Err(format!(
            "{} messages of {largest} bytes are more than 256 MiB: take a smaller --depth",
            args.depth
        ));
    }
    let (peer, name, mut child) = match &args.peer {
        Some(host) => (resolve(host, args.port)?, host.clone(), None),
        None => {
            let (child, port) = Started::start()?;
            (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), "this host".to_owned(), Some(child))
        }
    };
    let mut client = Client::connect(peer, largest, args.depth).map_err(|error| match args.peer {
        Some(_) => format!("{error}. Does `verbena bench --listen` run there, on port {}?", args.port),
        None => error,
    })?;
    let report = measure(args, &mut client, name)?;
    client.leave();
    if let Some(child) = &mut child {
        child.wait();
    }
    if let Some(file) = &args.svg {
        write(file, chart::draw(&report).as_bytes(), "--svg")?;
    }
    match &args.json {
        Some(file) if file == Path::new("-") => return output::write(report.json()),
        Some(file) => write(file, report.json().as_bytes(), "--json")?,
        None => {}
    }
    output::write(report.table())
}

fn write(file: &Path, bytes: &[u8], option: &str) -> Result<(), String> {
    fs::write(file, bytes).map_err(|error| format!("{option} {}: {error}", file.display()))
}

/// The address of a host; IPv4 before others.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let found = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?.collect(),
    };
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("{host} has no address"))
}

/// All measurements, each over Verbena and then over TCP.
fn measure(args: &Args, client: &mut Client, peer: String) -> Result<Report, String> {
    let (ops, sizes) = (&args.ops.0, &args.sizes.0);
    let mut progress = Progress::new(ops.len() * sizes.len());
    let mut report = Report { peer, depth: args.depth, seconds: args.seconds, points: Vec::new() };
    for op in ops {
        for bytes in sizes {
            progress.show(&format!("{} {bytes} B", op.name()));
            let (rdma, tcp) = match op {
                Operation::Send => (
                    Figures::new(
                        client.send_latency(*bytes, args.seconds)?,
                        client.send_rate(*bytes, args.seconds)?,
                    ),
                    client.tcp((*bytes, *bytes), (*bytes, 1), args.seconds)?.halved(),
                ),
                Operation::Write => (
                    Figures::new(
                        client.write_latency(*bytes, args.seconds)?,
                        client.write_rate(*bytes, args.seconds)?,
                    ),
                    client.tcp((*bytes, 1), (*bytes, 1), args.seconds)?,
                ),
                Operation::Read => (
                    Figures::new(
                        client.read_latency(*bytes, args.seconds)?,
                        client.read_rate(*bytes, args.seconds)?,
                    ),
                    client.tcp((1, *bytes), (1, *bytes), args.seconds)?,
                ),
            };
            report.points.push(Point { op: *op, bytes: *bytes, rdma, tcp });
        }
    }
    progress.clear();
    Ok(report)
}

/// A line on standard error, where that is a terminal.
struct Progress {
    is_shown: bool,
    done: usize,
    all: usize,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { is_shown: io::stderr().is_terminal(), done: 0, all }
    }

    fn show(&mut self, what: &str) {
        self.done += 1;
        if self.is_shown {
            let (filled, width) = (self.done * 30 / self.all.max(1), 30);
            let bar = format!("{}{}", "=".repeat(filled), " ".repeat(width - filled.min(width)));
            // A terminal that is gone is no reason to stop.
            let _ = write!(io::stderr(), "\r\x1b[K[{bar}] {}/{} {what}", self.done, self.all);
        }
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_units_and_ranges() {
        let of = |text| sizes(text).map(|sizes| sizes.0);
        assert_eq!(of("64,1k,64"), Ok(vec![64, 1024]));
        assert_eq!(of("8..1k"), Ok(vec![8, 32, 128, 512, 1024]));
        assert_eq!(of("4M"), Ok(vec![4 << 20]));
        for wrong in ["", "0", "x", "65M", "1..", "8,,9", "99999999999999999999k"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn operations_are_named_once_in_one_order() {
        assert_eq!(operations("read,SEND,read"), Ok(Operations(vec![Operation::Send, Operation::Read])));
        assert!(operations("send,atomic").is_err_and(|said| said.contains("'atomic'")));
    }
}
