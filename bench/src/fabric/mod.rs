//! A fabric on one machine: what subnets of 648 and 11,664 hosts take of time, processor and
//! memory, and what five switches cost a program of verbs.
//!
//! `daemon` has a fabric and its subnet manager, `page` writes what came out.

mod daemon;
mod page;

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::beside::{all_turns, median};
use crate::peers::program::{installed, pair};
use crate::peers::{Test, perftest};
use daemon::Fabric;
use page::Line;

/// Hosts of a fat tree, its name for `--fat-tree`, and how often it is swept by each manager.
const TREES: [(&str, &str, usize); 2] = [("648", "2,36", 5), ("11,664", "3,36", 1)];
/// A sweep of either may take so long.
const SWEEPS: Duration = Duration::from_secs(300);
/// Turns of perftest's figures.
const TURNS: usize = 9;
/// A fat tree of three levels, and two of its hosts with five switches between them.
const FIVE_SWITCHES: (&str, &str, &str) = ("3,4", "host0", "host15");
const LINKS: usize = 6;
const PORT: u16 = 17_553;
const WARM_UP: usize = 1;

/// The page.
///
/// # Errors
/// When a program fails.
pub(crate) fn page(verbena: &Path) -> io::Result<String> {
    let verbena = std::path::absolute(verbena)?;
    let mut lines = Vec::new();
    for (hosts, tree, turns) in TREES {
        lines.extend(subnet(&verbena, hosts, tree, turns)?);
    }
    if perftest::is_installed() {
        lines.extend(five_switches(&verbena)?);
    } else {
        eprintln!("left out: five switches (perftest is not installed)");
    }
    Ok(page::page(&lines))
}

/// What one sweep has taken.
struct Sweep {
    read: f64,
    wall: f64,
    processor: f64,
    /// MADs that agents of nodes have answered, a second of the process.
    rate: f64,
    resident: f64,
    plane: f64,
}

impl Sweep {
    /// Of the fabric that a manager has brought up in so many seconds, and which had taken so many
    /// of the processor before that.
    fn of(fabric: &Fabric, wall: f64, before: f64) -> io::Result<Self> {
        let processor = processor(fabric)? - before;
        let memory = fabric.memory()?;
        let rate = fabric.status("answered")? / processor;
        Ok(Self { read: fabric.read, wall, processor, rate, resident: memory.resident, plane: memory.plane })
    }
}

/// Seconds of the processor that a fabric has taken.
fn processor(fabric: &Fabric) -> io::Result<f64> {
    Ok(fabric.status("processor ms")? / 1e3)
}

/// The lines of one size.
fn subnet(verbena: &Path, hosts: &str, tree: &str, turns: usize) -> io::Result<Vec<Line>> {
    let file = std::env::temp_dir().join(format!("verbena-{}-{}.net", std::process::id(), &tree[..1]));
    let file = file.to_string_lossy().into_owned();
    Fabric::start(verbena, &["--fat-tree", tree])?.ask(&["write", &file])?;
    let measured = sweeps(verbena, &file, hosts, turns);
    // Nothing else refers to it.
    let _ = std::fs::remove_file(&file);
    measured
}

fn sweeps(verbena: &Path, file: &str, hosts: &str, turns: usize) -> io::Result<Vec<Line>> {
    let (mut builtin, mut opensm, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let has_opensm = installed("opensm") && installed("saquery");
    if !has_opensm {
        eprintln!("left out: OpenSM at {hosts} hosts (opensm and infiniband-diags are not installed)");
    }
    for _ in 0..turns {
        let fabric = Fabric::start(verbena, &[file, "--sm", "builtin"])?;
        let line = fabric.says("subnet up", SWEEPS)?;
        let wall = line.split_whitespace().rev().nth(1).and_then(|seconds| seconds.parse().ok());
        builtin.push(Sweep::of(&fabric, wall.ok_or_else(|| io::Error::other(line.clone()))?, 0.0)?);
        drop(fabric);
        if has_opensm {
            let fabric = Fabric::start(verbena, &[file])?;
            let before = processor(&fabric)?;
            let (_opensm, wall) = fabric.opensm(SWEEPS)?;
            opensm.push(Sweep::of(&fabric, wall, before)?);
            records.push(all_nodes(&fabric)?);
        }
    }
    Ok(page::subnet(hosts, &builtin, &opensm, records))
}

/// Seconds until a program has printed the records of all nodes.
fn all_nodes(fabric: &Fabric) -> io::Result<f64> {
    let began = Instant::now();
    let output = fabric.on("host1", &["saquery", "-t", "60000", "NR"]).output()?;
    let took = began.elapsed().as_secs_f64();
    let records = String::from_utf8_lossy(&output.stdout).matches("NodeRecord dump").count();
    let nodes = fabric.status("hosts")? + fabric.status("switches")?;
    if records as f64 == nodes { Ok(took) } else { Err(io::Error::other(format!("{records} records"))) }
}

/// What perftest says between two hosts, and on this machine without a fabric, by turns.
fn five_switches(verbena: &Path) -> io::Result<[Line; 2]> {
    let (tree, from, to) = FIVE_SWITCHES;
    let fabric = Fabric::start(verbena, &["--fat-tree", tree, "--sm", "builtin"])?;
    fabric.says("subnet up", SWEEPS)?;
    let way = fabric.ask(&["trace", from, to])?;
    if way.matches(" -> ").count() != LINKS {
        return Err(io::Error::other(format!("{from} is not as far from {to} as it was to be: {way}")));
    }
    let measure = |test: Test, size: usize| {
        let between = |at| match at {
            0 => run(|host| fabric.on(host, &[]), "mlx5_0", (to, from), test, size),
            _ => run(|_| without_fabric(verbena), "rxe_lo", (to, from), test, size),
        };
        let seen: [Vec<f64>; 2] = all_turns(TURNS + WARM_UP, between)?;
        Ok::<_, io::Error>(seen.map(|seen| seen[WARM_UP..].to_vec()))
    };
    Ok([
        page::latency(measure(Test::SendLatency, 8)?),
        page::bandwidth(measure(Test::WriteBandwidth, 64 << 10)?),
    ])
}

fn without_fabric(verbena: &Path) -> Command {
    let mut command = Command::new(verbena);
    command.args(["run", "--"]);
    command
}

/// A figure of perftest, of a server and a client on these hosts.
fn run(
    on: impl Fn(&str) -> Command,
    device: &str,
    (server, client): (&str, &str),
    test: Test,
    size: usize,
) -> io::Result<f64> {
    let command = |host: &str| {
        let mut command = on(host);
        command.args([perftest::program(test), "-F", "-d", device]);
        let numbers = [("-p", usize::from(PORT)), ("-s", size), ("-n", test.iterations(size))];
        numbers.iter().for_each(|(name, value)| _ = command.args([*name, &value.to_string()]));
        command
    };
    let to_server = || {
        let mut command = command(client);
        command.arg("127.0.0.1");
        command
    };
    pair(PORT, || command(server), to_server, |said| perftest::figure(test, size, said))
}

/// The median, and the least and the most.
fn spread(seen: &[f64]) -> [f64; 3] {
    let least = seen.iter().copied().fold(f64::INFINITY, f64::min);
    let most = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [median(seen.to_vec()), least, most]
}
