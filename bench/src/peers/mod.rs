//! Processes of one host: Verbena, by memory and by the network, beside what else carries messages
//! between them. By turns, each server on one core and each client on the other, with the time that
//! a cache line takes between these beside it.
//!
//! `program` runs a pair of processes; `perftest` (Verbena), `ucx`, `libfabric` and `qperf` (TCP)
//! say how they are called and read what they print; `asleep` compares completion events with a
//! pipe; `page` writes the tables and draws the pictures; `calls` has Verbena beside the calls of
//! the kernel that it makes.

pub(crate) mod asleep;
pub(crate) mod calls;
mod libfabric;
pub(crate) mod page;
pub(crate) mod perftest;
pub(crate) mod program;
pub(crate) mod qperf;
pub(crate) mod ucx;

use std::io;
use std::path::Path;

use crate::hop;
use crate::picture::{Dash, Family};

const LOCALHOST: &str = "127.0.0.1";
/// What perftest and UCX call MB.
const MIB: f64 = 1_048_576.0;
/// Bytes of a message, for what is shown over them.
const SIZES: [usize; 12] =
    [2, 4, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Bytes that pass in one measurement, within the bounds that follow.
const LATENCY_BYTES: usize = 32 << 20;
const BANDWIDTH_BYTES: usize = 2 << 30;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Test {
    /// Half a round trip of messages, us.
    SendLatency,
    /// Half a round trip of writes to memory that the other side watches, us.
    WriteLatency,
    /// Messages, one behind the other, GB/s.
    SendBandwidth,
    /// Writes likewise.
    WriteBandwidth,
    /// Reads likewise.
    ReadBandwidth,
}

/// What is measured, and for messages of how many bytes.
const TESTS: [(Test, &[usize]); 5] = [
    (Test::SendLatency, &SIZES),
    (Test::WriteLatency, &[8]),
    (Test::SendBandwidth, &SIZES),
    (Test::WriteBandwidth, &[64 << 10, 1 << 20]),
    (Test::ReadBandwidth, &[64 << 10, 1 << 20]),
];

impl Test {
    /// A time, and no rate.
    pub(crate) fn is_latency(self) -> bool {
        matches!(self, Self::SendLatency | Self::WriteLatency)
    }

    /// Messages of a measurement: it lasts some tenths of a second, by the slowest peers some
    /// seconds, so that what a program's first messages take more weighs little.
    pub(crate) fn iterations(self, size: usize) -> usize {
        if self.is_latency() {
            (LATENCY_BYTES / size).clamp(64, 8_000)
        } else {
            (BANDWIDTH_BYTES / size).clamp(128, 20_000)
        }
    }
}

/// Who carries messages.
pub(crate) trait Peer {
    /// What tables and pictures call it.
    fn name(&self) -> &'static str;

    /// How pictures show it.
    fn look(&self) -> (Family, Dash);

    /// The figure of each size; `None` where it has nothing of the kind.
    ///
    /// # Errors
    /// When a program fails, again and again.
    fn measure(&self, test: Test, sizes: &[usize]) -> io::Result<Option<Vec<f64>>>;
}

/// All figures of one peer.
pub(crate) struct Line {
    name: &'static str,
    look: (Family, Dash),
    /// Of each of `TESTS` and each of its sizes; empty where there is none.
    figures: [Vec<f64>; TESTS.len()],
}

/// What came out.
pub(crate) struct Measured {
    /// The first is Verbena by memory, the second Verbena by the network.
    lines: Vec<Line>,
    /// Of a cache line, ns, before the first turn and after each; `None` where something else ran.
    hops: Vec<Option<f64>>,
    /// With both sides asleep, of each turn.
    asleep: Vec<[asleep::Figure; 3]>,
}

/// Who is there to be measured. Who is not is told on stderr.
fn peers(verbena: &Path) -> Vec<Box<dyn Peer>> {
    let mut found: Vec<Box<dyn Peer>> = Vec::new();
    for path in [perftest::Path::Memory, perftest::Path::Network] {
        found.push(Box::new(perftest::Perftest { verbena: verbena.to_owned(), path }));
    }
    if program::installed(ucx::PROGRAM) {
        for path in [ucx::Path::Posix, ucx::Path::Cma, ucx::Path::Tcp] {
            found.push(Box::new(ucx::Ucx(path)));
        }
    } else {
        eprintln!("left out: UCX ({} is not installed)", ucx::PROGRAM);
    }
    for provider in [libfabric::SHM, libfabric::TCP] {
        if !program::installed(libfabric::PROGRAM) {
            eprintln!("left out: {} ({} is not installed)", provider.name, libfabric::PROGRAM);
        } else if !libfabric::has(&provider) {
            eprintln!("left out: {} (fi_info has no such provider)", provider.name);
        } else {
            found.push(Box::new(provider));
        }
    }
    if program::installed(qperf::PROGRAM) {
        found.push(Box::new(qperf::Qperf));
    } else {
        eprintln!("left out: TCP ({} is not installed)", qperf::PROGRAM);
    }
    found
}

/// Measures them all, as often as `turns` says; `None` where perftest is missing, by which Verbena
/// is measured. What a peer fails in is told on stderr and left out.
///
/// # Errors
/// When the command's path cannot be told.
pub(crate) fn measure(verbena: &Path, turns: usize) -> io::Result<Option<Measured>> {
    if !perftest::is_installed() {
        eprintln!("left out: processes of one host (perftest is not installed)");
        return Ok(None);
    }
    let verbena = std::path::absolute(verbena)?;
    let peers = peers(&verbena);
    let mut seen: Vec<[Vec<Vec<f64>>; TESTS.len()]> = peers.iter().map(|_| Default::default()).collect();
    let mut hops = vec![cache_line()];
    let mut by_events = Vec::new();
    for _ in 0..turns {
        for (peer, seen) in peers.iter().zip(&mut seen) {
            for ((test, sizes), seen) in TESTS.iter().zip(seen) {
                match peer.measure(*test, sizes) {
                    Ok(figures) => seen.extend(figures),
                    Err(e) => eprintln!("left out: a turn of {}, {test:?} ({e})", peer.name()),
                }
            }
        }
        match asleep::measure(&verbena) {
            Ok(figures) => by_events.push(figures),
            Err(e) => eprintln!("left out: a turn of completion events ({e})"),
        }
        hops.push(cache_line());
    }
    let lines = peers.iter().zip(seen).map(|(peer, seen)| Line {
        name: peer.name(),
        look: peer.look(),
        figures: seen.map(|turns| medians(&turns)),
    });
    Ok(Some(Measured { lines: lines.collect(), hops, asleep: by_events }))
}

/// What a cache line takes from one core to the other now, in nanoseconds.
pub(crate) fn cache_line() -> Option<f64> {
    hop::half_round_trip().inspect_err(|e| eprintln!("left out: the time of a cache line ({e})")).ok()
}

/// Of each size the median of all turns; nothing where there was no turn.
fn medians(turns: &[Vec<f64>]) -> Vec<f64> {
    let sizes = turns.first().map_or(0, Vec::len);
    let of_size = |at: usize| {
        let mut values: Vec<f64> = turns.iter().map(|turn| turn[at]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (0..sizes).map(of_size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_those_of_each_size() {
        assert_eq!(medians(&[vec![3.0, 10.0], vec![1.0, 30.0], vec![2.0, 20.0]]), [2.0, 20.0]);
        assert!(medians(&[]).is_empty());
    }

    #[test]
    fn iterations_keep_a_measurement_short_and_a_mean_sound() {
        assert_eq!(Test::SendLatency.iterations(2), 8_000);
        assert_eq!(Test::SendLatency.iterations(4 << 20), 64);
        assert_eq!(Test::ReadBandwidth.iterations(1 << 20), 2048);
    }
}
