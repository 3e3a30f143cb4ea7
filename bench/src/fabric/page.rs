//! The table of a fabric's figures, each with what it is to hold and the command that gives it.

use std::fmt::Write as _;

use super::{Sweep, spread};
use crate::report::{machine, number};

/// A figure.
pub(super) struct Line {
    what: String,
    unit: &'static str,
    /// Of each turn.
    seen: Vec<f64>,
    /// What it is to hold, if anything.
    aim: Option<Aim>,
    command: String,
}

/// What a figure is to hold.
#[derive(Clone, Copy)]
pub(super) enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

/// The aims of a size.
struct Aims {
    read: Aim,
    sweep: Aim,
    processor: Option<Aim>,
    rate: Option<Aim>,
    memory: Option<Aim>,
}

const SMALL: Aims =
    Aims { read: Aim::AtMost(1.0), sweep: Aim::AtMost(0.5), processor: None, rate: None, memory: None };
const LARGE: Aims = Aims {
    read: Aim::AtMost(1.0),
    sweep: Aim::AtMost(90.0),
    processor: Some(Aim::AtMost(5.0)),
    rate: Some(Aim::AtLeast(150_000.0)),
    memory: Some(Aim::AtMost(130.0)),
};
/// Hosts from which on a subnet is large.
const MANY: &str = "11,664";

/// The lines of a size: of both managers, where OpenSM was there.
pub(super) fn subnet(hosts: &str, builtin: &[Sweep], opensm: &[Sweep], records: Vec<f64>) -> Vec<Line> {
    let aims = if hosts == MANY { LARGE } else { SMALL };
    let run = "verbena fabric run FILE";
    let line = |what: &str, unit, seen, aim, command: &str| Line {
        what: format!("{hosts} hosts: {what}"),
        unit,
        seen,
        aim,
        command: command.to_owned(),
    };
    let read = builtin.iter().chain(opensm).map(|sweep| sweep.read).collect();
    let mut lines = vec![line("the file is read", "s", read, Some(aims.read), run)];
    let by_builtin = format!("{run} --sm builtin");
    for (name, sweeps, command) in
        [("the built-in manager", builtin, by_builtin.as_str()), ("OpenSM", opensm, "opensm -s 0")]
    {
        if sweeps.is_empty() {
            continue;
        }
        let of = |figure: fn(&Sweep) -> f64| sweeps.iter().map(figure).collect::<Vec<f64>>();
        let status = "verbena fabric status";
        // The process of the built-in manager is the manager, too.
        let (processor, rate) = if name == "OpenSM" { (aims.processor, aims.rate) } else { (None, None) };
        let about = |what: &str| format!("{name}, {what}");
        lines.extend([
            line(&about("the first sweep"), "s", of(|s| s.wall), Some(aims.sweep), command),
            line(&about("processor time of the fabric"), "s", of(|s| s.processor), processor, status),
            line(&about("MADs a second of it"), "1/s", of(|s| s.rate), rate, status),
            line(&about("memory"), "MB", of(|s| s.resident), aims.memory, "VmRSS in /proc/PID/status"),
            line(&about("pages of the plane in it"), "MB", of(|s| s.plane), None, "RssShmem"),
        ]);
    }
    if !records.is_empty() {
        lines.push(line("OpenSM, all records of nodes in one answer", "s", records, None, "saquery NR"));
    }
    lines
}

/// Half a round trip between two hosts, and the same without a fabric.
pub(super) fn latency([fabric, without]: [Vec<f64>; 2]) -> Line {
    /// What a packet may take more, in microseconds.
    const MORE: f64 = 0.02;
    let [beside, ..] = spread(&without);
    Line {
        what: format!("8 B by way of five switches; {} us without a fabric", number(beside)),
        unit: "us",
        seen: fabric,
        aim: Some(Aim::AtMost(beside + MORE)),
        command: "ib_send_lat -s 8".to_owned(),
    }
}

/// The bandwidth between two hosts, and the same without a fabric.
pub(super) fn bandwidth([fabric, without]: [Vec<f64>; 2]) -> Line {
    /// The share of it that is to be left.
    const SHARE: f64 = 0.85;
    let [beside, ..] = spread(&without);
    Line {
        what: format!("64 KiB by way of five switches; {} GB/s without a fabric", number(beside)),
        unit: "GB/s",
        seen: fabric,
        aim: Some(Aim::AtLeast(beside * SHARE)),
        command: "ib_write_bw -s 65536".to_owned(),
    }
}

/// The page.
pub(super) fn page(lines: &[Line]) -> String {
    let mut text = format!(
        "# A fabric on one machine\n\n\
         Written by `bench/run --fabric` ({}). FILE has a fat tree of two or of three levels, as `verbena fabric write` wrote it. \
         A sweep is the first one of a manager: of the built-in one from its start, of OpenSM from the start of its process, until the subnet is up. \
         Processor time is that of `verbena fabric run` meanwhile; with the built-in manager the manager's own and the reading of the file, too. MADs are those that agents of nodes have answered. \
         Five switches: two hosts of `--fat-tree 3,4`, beside two programs of this machine without a fabric, by turns.\n\n\
         | figure | median | least to most | turns | to hold | command |\n|---|---|---|---|---|---|\n",
        machine()
    );
    for line in lines {
        let [median, least, most] = spread(&line.seen).map(number);
        let (unit, turns) = (line.unit, line.seen.len());
        let aim = line.aim.map_or_else(|| "-".to_owned(), Aim::text);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {median} {unit} | {least} to {most} | {turns} | {aim} | `{}` |",
            line.what, line.command
        );
    }
    text
}

impl Aim {
    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("at most {}", number(most)),
            Self::AtLeast(least) => format!("at least {}", number(least)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_median_the_spread_and_what_it_is_to_hold() {
        let text = page(&[latency([vec![0.5, 0.3, 0.4], vec![0.3, 0.31, 0.2]])]);
        let line = "| 8 B by way of five switches; 0.300 us without a fabric | 0.400 us | 0.300 to 0.500 | 3 \
                    | at most 0.320 | `ib_send_lat -s 8` |\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn without_opensm_its_lines_are_left_out() {
        let sweep = || Sweep { read: 0.1, wall: 1.0, processor: 2.0, rate: 3.0, resident: 4.0, plane: 5.0 };
        assert_eq!(subnet(MANY, &[sweep()], &[], Vec::new()).len(), 6);
        let lines = subnet(MANY, &[sweep()], &[sweep(), sweep()], vec![1.0]);
        assert_eq!((lines.len(), lines[0].seen.len()), (12, 3));
    }
}
