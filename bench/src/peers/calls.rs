//! Verbena by memory beside what it stands on, and where the system refuses copies between
//! processes' memory.

use std::io;
use std::path::Path;

use super::perftest::{self, Perftest};
use super::program::installed;
use super::{Peer, Test, cache_line, ucx};
use crate::beside::{by_turns_beside_last, figure};
use crate::copies::{self, Way};
use crate::floor;
use crate::rdma::Program;
use crate::report::Figure;

const SMALL: usize = 8;
const LARGE: usize = 1 << 20;
/// Turns of what takes little time, for each of what takes more.
const MORE: usize = 3;
/// Queue pairs, enough for perftest's memory, two messages for each, to fill large pages.
const MANY: usize = 4;

/// One figure of a peer.
pub(crate) fn one(peer: &dyn Peer, test: Test, size: usize) -> io::Result<f64> {
    let figures = peer.measure(test, &[size])?.unwrap_or_default();
    figures.first().copied().ok_or_else(|| io::Error::other(format!("{} has none", peer.name())))
}

/// Medians; that of the ratios of neighbouring turns; and how long a cache line took before each
/// measurement and behind the last one, at least and at most.
type Seen = ([f64; 2], f64, Option<[f64; 2]>);

/// What is measured by turns.
fn by_turns_and_hops(turns: usize, measure: Measure<'_>) -> io::Result<Seen> {
    let mut hops = Vec::new();
    let (medians, [ratio, _]) = by_turns_beside_last(turns, |at| {
        hops.extend(cache_line());
        measure(at)
    })?;
    hops.extend(cache_line());
    hops.sort_by(f64::total_cmp);
    Ok((medians, ratio, hops.first().zip(hops.last()).map(|(least, most)| [*least, *most])))
}

/// What is measured: ours where it is asked for 0, else what is beside it.
type Measure<'a> = &'a mut dyn FnMut(usize) -> io::Result<f64>;

/// The lines of the table.
struct Table {
    figures: Vec<Figure>,
    turns: usize,
}

impl Table {
    /// Measures one line by turns. What fails is told on stderr and left out.
    fn line(&mut self, what: &str, unit: &'static str, floor_is: &'static str, measure: Measure<'_>) {
        // A time is measured within a tenth of a second, and the machine's state lasts for seconds.
        let turns = if unit == "us" { MORE * self.turns } else { self.turns };
        match by_turns_and_hops(turns, measure) {
            Ok(([ours, floor], ratio, line)) => {
                let figure = figure(what.to_owned(), unit, ours, floor, floor_is);
                self.figures.push(Figure { line, of_pairs: Some(ratio), ..figure });
            }
            Err(e) => eprintln!("left out: {what} ({e})"),
        }
    }

    /// Verbena beside the calls of the system that it stands on.
    fn beside_calls(&mut self, program: &Program, memory: &Perftest) {
        for list in [1, 32] {
            let what = format!("64-byte SENDs, 128 outstanding, posted in lists of {list}");
            let datagrams = "UDP, datagrams of 80 bytes, a call for each list";
            self.line(&what, "M/s", datagrams, &mut |at| match at {
                0 => Ok(program.measure(&["rate", "64", &list.to_string()])? / 1e6),
                _ => Ok(floor::rate(list)? / 1e6),
            });
        }
        let calls = "process_vm_writev of 8 bytes and, before them, 8 to a page that proves who it is";
        self.line("8-byte WRITE, half round trip", "us", calls, &mut |at| match at {
            0 => one(memory, Test::WriteLatency, SMALL),
            _ => copies::ping_pong(),
        });
        for (what, test, way, call) in [
            ("1 MiB WRITEs", Test::WriteBandwidth, Way::To, "process_vm_writev of 1 MiB by one thread"),
            ("1 MiB READs", Test::ReadBandwidth, Way::From, "process_vm_readv of 1 MiB by one thread"),
        ] {
            self.line(what, "GB/s", call, &mut |at| match at {
                0 => one(memory, test, LARGE),
                _ => copies::bandwidth(way),
            });
        }
    }

    /// Verbena beside UCX, where both may copy from one process's memory to another's.
    fn beside_ucx(&mut self, program: &Program, memory: &Perftest) {
        let posix = ucx::Ucx(ucx::Path::Posix);
        let mean = "UCX posix, the mean of its messages";
        let half = "64-byte SEND, half round trip";
        self.line(&format!("{half}, rdma_bench"), "us", mean, &mut |at| match at {
            0 => program.measure(&["lat", "64", "1"]),
            _ => posix.mean(Test::SendLatency, 64),
        });
        self.line(&format!("{half}, ib_send_lat"), "us", posix.name(), &mut |at| match at {
            0 => one(memory, Test::SendLatency, 64),
            _ => one(&posix, Test::SendLatency, 64),
        });
        let cma = ucx::Ucx(ucx::Path::Cma);
        for (what, test) in [
            ("1 MiB WRITEs", Test::WriteBandwidth),
            ("1 MiB READs", Test::ReadBandwidth),
            ("1 MiB SENDs", Test::SendBandwidth),
        ] {
            self.line(what, "GB/s", "UCX cma", &mut |at| one([memory as &dyn Peer, &cma][at], test, LARGE));
            self.line(&format!("{what} by {MANY} queue pairs"), "GB/s", "UCX cma", &mut |at| match at {
                0 => memory.by_queue_pairs(test, LARGE, MANY),
                _ => one(&cma, test, LARGE),
            });
        }
    }

    /// Verbena beside UCX, where the system refuses copies between processes' memory.
    fn copies_refused(&mut self, refused: &Perftest) {
        let (posix, heap) = (ucx::Ucx(ucx::Path::Posix), ucx::Ucx(ucx::Path::Heap));
        let mapped = "UCX posix, memory that both map";
        for (what, test, peer, peer_is) in [
            ("1 MiB SENDs, copies refused", Test::SendBandwidth, &posix, posix.name()),
            ("1 MiB WRITEs, copies refused", Test::WriteBandwidth, &heap, heap.name()),
            ("1 MiB READs, copies refused", Test::ReadBandwidth, &heap, heap.name()),
            ("1 MiB WRITEs, copies refused", Test::WriteBandwidth, &posix, mapped),
            ("1 MiB READs, copies refused", Test::ReadBandwidth, &posix, mapped),
        ] {
            self.line(what, "GB/s", peer_is, &mut |at| one([refused as &dyn Peer, peer][at], test, LARGE));
        }
    }
}

/// The lines of the table; what fails is told on stderr and left out.
pub(crate) fn figures(program: &Program, verbena: &Path, turns: usize) -> io::Result<Vec<Figure>> {
    let verbena = std::path::absolute(verbena)?;
    let by = |path| Perftest { verbena: verbena.clone(), path };
    let (memory, refused) = (by(perftest::Path::Memory), by(perftest::Path::Refused));
    let mut table = Table { figures: Vec::new(), turns };
    table.beside_calls(program, &memory);
    if installed(ucx::PROGRAM) {
        table.beside_ucx(program, &memory);
        table.copies_refused(&refused);
    }
    Ok(table.figures)
}
