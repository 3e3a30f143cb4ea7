//! `verbena ps`: the processes on Verbena, a line each.

use std::fmt::Write as _;
use std::process::ExitCode;

use inspect::{Device, Process, Qp};
use linux::inspector::{self, Answer, Asked};

use crate::output;

/// List the processes on Verbena
///
/// Those of this user, and as root those of all users, in this network namespace. QP, CQ, MR and
/// CM_ID are how many objects a process has. SENDS and RECVS are work requests posted and not
/// completed. IN_FLIGHT is packets of reliable connections that are sent and not acknowledged. A
/// process that is stopped does not answer.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Prints a line for each process.
///
/// # Errors
/// A message: the system refused to write.
pub(crate) fn run(_: &Args) -> Result<ExitCode, String> {
    output::write(table(&inspector::processes()))
}

fn table(processes: &[Asked]) -> String {
    let mut text =
        row("PID", "COMM", ["UPTIME", "QP", "CQ", "MR", "CM_ID", "SENDS", "RECVS", "IN_FLIGHT"], "DEVICES");
    for asked in processes {
        let pid = asked.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        match said(&asked.answer) {
            Ok(process) => text += &line(&pid, process),
            // Writing to a string does not fail.
            Err(said) => {
                let _ = writeln!(text, "{pid:<9}{:<17}{said}", comm(asked));
            }
        }
    }
    text
}

/// The process that answered, or the words for one that did not.
pub(crate) fn said(answer: &Answer) -> Result<&Process, &'static str> {
    match answer {
        Answer::Process(process) => Ok(process),
        Answer::Silent => Err("does not answer"),
        Answer::OtherBuild => Err("another build of Verbena"),
        Answer::OtherUser => Err("does not know root"),
    }
}

/// The program's name, as the process says it, or else as the kernel does.
pub(crate) fn comm(asked: &Asked) -> String {
    if let Answer::Process(process) = &asked.answer {
        return output::printable(&process.comm);
    }
    let comm = asked.pid.map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default());
    output::printable(comm.unwrap_or_default().trim_end())
}

fn row(pid: &str, comm: &str, numbers: [&str; 8], devices: &str) -> String {
    let [uptime, qps, cqs, mrs, cm_ids, sends, recvs, in_flight] = numbers;
    format!(
        "{pid:<9}{comm:<17}{uptime:<9}{qps:<7}{cqs:<6}{mrs:<6}{cm_ids:<7}{sends:<8}{recvs:<8}{in_flight:<11}{devices}\n"
    )
}

fn line(pid: &str, process: &Process) -> String {
    let [qps, cqs, mrs, cm_ids, sends, recvs, in_flight] = numbers(process).map(|number| number.to_string());
    let uptime = uptime(process.uptime_ms / 1000);
    let numbers = [&uptime, &qps, &cqs, &mrs, &cm_ids, &sends, &recvs, &in_flight];
    row(pid, &output::printable(&process.comm), numbers.map(String::as_str), &devices(process))
}

/// The columns QP to IN_FLIGHT.
pub(crate) fn numbers(process: &Process) -> [u64; 7] {
    let count = |of: fn(&Device) -> usize| process.devices.iter().map(of).sum::<usize>() as u64;
    let sum = |of: fn(&Qp) -> u32| {
        let qps = process.devices.iter().flat_map(|device| &device.qps);
        qps.map(|qp| u64::from(of(qp))).sum::<u64>()
    };
    [
        count(|device| device.qps.len()),
        count(|device| device.cqs.len()),
        count(|device| device.mrs.len()),
        process.cm_ids.len() as u64,
        sum(|qp| qp.sends),
        sum(|qp| qp.recvs),
        sum(|qp| qp.reliable.as_ref().map_or(0, |reliable| reliable.in_flight)),
    ]
}

/// The names of the devices that the process uses, with commas; `-` where it uses none.
pub(crate) fn devices(process: &Process) -> String {
    let used = process.devices.iter().filter(|device| device.is_used());
    let names: Vec<_> = used.map(|device| output::printable(&device.ifname)).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(",") }
}

/// A time in seconds, in its two largest units.
pub(crate) fn uptime(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use inspect::{CmId, Mr, Reliable};

    use super::*;

    #[test]
    fn a_process_is_a_line_with_what_it_has_and_what_is_under_way() {
        let reliable = Reliable { in_flight: 3, ..Reliable::default() };
        let qp = Qp { sends: 5, recvs: 16, reliable: Some(reliable), ..Qp::default() };
        let mrs = vec![Mr::default(); 3];
        let used = Device { ifname: "rxe_eth0".into(), qps: vec![qp.clone(), qp], mrs, ..Device::default() };
        let unused = Device { ifname: "rxe_lo".into(), ..Device::default() };
        let process = Process {
            comm: "rping\u{1b}[2J".into(),
            uptime_ms: 75_000,
            devices: vec![unused, used],
            cm_ids: vec![CmId::default()],
            ..Process::default()
        };
        let asked = |pid, answer| Asked { name: String::new(), pid, answer };
        let text = table(&[
            asked(Some(4711), Answer::Process(process.into())),
            asked(Some(u32::MAX), Answer::Silent),
            asked(None, Answer::OtherBuild),
        ]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["4711", "rping?[2J", "1m15s", "2", "0", "3", "1", "10", "32", "6", "rxe_eth0"]);
        assert_eq!(lines[0].len(), lines[1].len());
        assert_eq!(lines[2], ["4294967295", "does", "not", "answer"]);
        assert_eq!(lines[3], ["-", "another", "build", "of", "Verbena"]);
    }

    #[test]
    fn a_time_has_its_two_largest_units() {
        let said = [0, 59, 60, 3599, 3600, 86_399, 86_400, 1_000_000].map(uptime);
        assert_eq!(said, ["0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "11d13h"]);
    }
}
