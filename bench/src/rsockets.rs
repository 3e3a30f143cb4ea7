//! Programs of sockets on one host: by rsockets (`verbena run --rsockets`), beside loopback TCP, by
//! turns. Their own figures count. A program that is not installed is left out.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::beside::{by_turns, figure};
use crate::peers;
use crate::report::Figure;

const TURNS: usize = 3;
/// How long a server has to listen, and a client to end.
const LISTENS: Duration = Duration::from_secs(1);
const ENDS: Duration = Duration::from_secs(60);
const FLOOR: &str = "loopback TCP, the same programs";

/// A server and its client, and the figure that the client prints.
struct Work {
    what: &'static str,
    unit: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
    figure: fn(&str) -> Option<f64>,
}

const REDIS: &[&str] =
    &["redis-server", "--port", "7010", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];

macro_rules! redis {
    ($what:literal, $clients:literal, $size:literal) => {
        Work {
            what: $what,
            unit: "requests/s",
            server: REDIS,
            client: &[
                "redis-benchmark",
                "-h",
                "127.0.0.1",
                "-p",
                "7010",
                "-t",
                "set,get",
                "--csv",
                "-n",
                "20000",
                "-c",
                $clients,
                "-d",
                $size,
            ],
            figure: of_redis,
        }
    };
}

macro_rules! rstream {
    ($what:literal, $unit:literal, $column:literal, [$($shape:literal),*]) => {
        Work {
            what: $what,
            unit: $unit,
            server: &["rstream", "-p", "7011", "-T", "b", $($shape),*],
            client: &["rstream", "-p", "7011", "-s", "127.0.0.1", "-T", "b", $($shape),*],
            figure: |said| of_rstream(said, $column),
        }
    };
}

const ALL: [Work; 7] = [
    redis!("redis-benchmark, SET and GET of 64 B, one client", "1", "64"),
    redis!("redis-benchmark, SET and GET of 64 B, 50 clients", "50", "64"),
    redis!("redis-benchmark, SET and GET of 16 KiB, one client", "1", "16384"),
    redis!("redis-benchmark, SET and GET of 16 KiB, 50 clients", "50", "16384"),
    Work {
        what: "iperf3, one stream",
        unit: "GB/s",
        server: &["iperf3", "-s", "-1", "-p", "7012", "-B", "127.0.0.1"],
        client: &["iperf3", "-c", "127.0.0.1", "-p", "7012", "-t", "2", "-f", "k"],
        figure: of_iperf,
    },
    rstream!("rstream, 64 B there and back, half of it", "us", 7, ["-S", "64", "-C", "1", "-I", "10000"]),
    rstream!("rstream, 64 KiB each way in turn", "GB/s", 6, ["-S", "65536", "-C", "1000", "-I", "2"]),
];

/// The mean of the rates of SET and GET.
fn of_redis(said: &str) -> Option<f64> {
    let rates: Vec<f64> = said
        .lines()
        .filter(|line| line.starts_with("\"SET\"") || line.starts_with("\"GET\""))
        .filter_map(|line| line.split('"').nth(3)?.parse().ok())
        .collect();
    (rates.len() == 2).then(|| rates.iter().sum::<f64>() / 2.0)
}

/// What has come, of the line about the receiver, in kbit/s.
fn of_iperf(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.ends_with("receiver"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Kbits/sec")?;
    words.get(at.checked_sub(1)?)?.parse::<f64>().ok().map(|kbits| kbits / 8e6)
}

/// A column of the last line: Gbit/s as GB/s, or microseconds.
fn of_rstream(said: &str, column: usize) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("custom"))?;
    let value: f64 = line.split_whitespace().nth(column)?.trim_end_matches('s').parse().ok()?;
    Some(if column == 6 { value / 8.0 } else { value })
}

/// A program that is ended when this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(verbena: &Path, argv: &[&str], by_rdma: bool) -> io::Result<Running> {
    let is_rstream = argv[0] == "rstream";
    let mut command = if by_rdma {
        let mut command = Command::new(verbena);
        command.arg("run");
        // Its rsockets are its own.
        command.args((!is_rstream).then_some("--rsockets")).arg("--").args(argv);
        command
    } else {
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]).args(is_rstream.then_some(["-T", "s"]).into_iter().flatten());
        command
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map(Running)
}

fn once(verbena: &Path, work: &Work, by_rdma: bool) -> io::Result<f64> {
    let _server = start(verbena, work.server, by_rdma)?;
    sleep(LISTENS);
    let mut client = start(verbena, work.client, by_rdma)?;
    let mut out = client.0.stdout.take();
    let said = std::thread::spawn(move || out.as_mut().map_or(Ok(String::new()), io::read_to_string));
    let end = Instant::now() + ENDS;
    while client.0.try_wait()?.is_none() {
        if Instant::now() > end {
            return Err(io::Error::other(format!("{}: it does not end", work.what)));
        }
        sleep(Duration::from_millis(10));
    }
    let said = said.join().map_err(|_| io::Error::other("a thread ended"))??;
    (work.figure)(&said).ok_or_else(|| io::Error::other(format!("{}: no figure in {said:?}", work.what)))
}

/// The figures of what is installed.
pub(crate) fn figures(verbena: &Path) -> io::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for work in &ALL {
        if ![work.server[0], work.client[0]].iter().all(|program| peers::program::installed(program)) {
            eprintln!("left out: {} (not installed)", work.what);
            continue;
        }
        let [ours, floor] = by_turns(TURNS, |at| once(verbena, work, at == 0))?;
        figures.push(figure(work.what.to_owned(), work.unit, ours, floor, FLOOR));
    }
    Ok(figures)
}
