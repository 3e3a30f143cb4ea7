//! Both sides asleep while nothing is there: Verbena's completion events beside a pipe between two
//! processes on the same two cores, which is woken once for each message. Also how often threads of
//! the two processes went to sleep a message, which does not depend on what else runs.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::perftest::{self, Perftest};
use crate::pin;
use crate::report::number;

/// Bytes of a message.
const SIZE: usize = 64;
/// Round trips.
const PINGS: usize = 8_000;

/// Of one way that a message goes: half a round trip, us, the median, and how often a thread slept
/// a message.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    us: f64,
    sleeps: f64,
}

/// Who stands in the table; the last is what all stand beside.
const LINES: [&str; 3] =
    ["Verbena's completion events, memory", "Verbena's completion events, network", "a pipe"];

/// One turn.
///
/// # Errors
/// When a program fails, again and again.
pub(crate) fn measure(verbena: &Path) -> io::Result<[Figure; 3]> {
    let events = |path| with_sleeps(|| Perftest { verbena: verbena.to_owned(), path }.by_events(SIZE, PINGS));
    Ok([events(perftest::Path::Memory)?, events(perftest::Path::Network)?, with_sleeps(pipe)?])
}

/// The table; nothing where there was no turn.
pub(crate) fn table(turns: &[[Figure; 3]]) -> String {
    let median = |of: &dyn Fn(&[Figure; 3]) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let Some(floor) = median(&|turn| turn[2].us) else { return String::new() };
    let mut text = format!(
        "\nA blocked receiver beside a pipe, {SIZE} bytes: both sides sleep while nothing is there (`ib_send_lat -e`; read(2) of a pipe). How often a thread of the two \
         processes went to sleep a message does not depend on what else runs.\n\n\
         | figure | half round trip | beside the pipe | sleeps a message |\n|---|---|---|---|\n"
    );
    for (line, what) in LINES.into_iter().enumerate() {
        let (us, sleeps) = (median(&|turn| turn[line].us), median(&|turn| turn[line].sleeps));
        let (Some(us), Some(sleeps)) = (us, sleeps) else { continue };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {what} | {} us | {:.2} | {sleeps:.2} |", number(us), us / floor);
    }
    text
}

/// A figure, and how often threads slept meanwhile in the processes that it took, which have ended.
fn with_sleeps(measure: impl FnOnce() -> io::Result<f64>) -> io::Result<Figure> {
    let before = pin::sleeps_of_children();
    let us = measure()?;
    Ok(Figure { us, sleeps: (pin::sleeps_of_children() - before) as f64 / (2 * PINGS) as f64 })
}

/// Half a round trip by two pipes between two processes of ours.
fn pipe() -> io::Result<f64> {
    let this = std::env::current_exe()?;
    let process = |what| {
        let mut command = Command::new(&this);
        command.args(["pipe", what]).stderr(Stdio::piped());
        command
    };
    let mut answers = process("answer").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(to), Some(from)) = (answers.stdin.take(), answers.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let said = ends(process("ask").stdin(from).stdout(to).spawn()?)?;
    ends(answers)?;
    said.trim().parse().map_err(io::Error::other)
}

/// What a process said on standard error, when it has ended well.
fn ends(child: Child) -> io::Result<String> {
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(said) } else { Err(io::Error::other(said)) }
}

/// One of the two processes: `verbena-bench pipe ask|answer`. Messages come by standard input and
/// go by standard output; the one that asks says the figure on standard error.
///
/// # Errors
/// What the pipes say; `InvalidInput` for other arguments.
pub(crate) fn run(args: &[String]) -> io::Result<()> {
    let (mut from, mut to) = (io::stdin().lock(), io::stdout().lock());
    let mut message = [0; SIZE];
    match args {
        [what] if what == "answer" => {
            pin::to_core(1)?;
            while from.read_exact(&mut message).is_ok() {
                to.write_all(&message)?;
                to.flush()?;
            }
        }
        [what] if what == "ask" => {
            pin::to_core(0)?;
            let mut times = Vec::with_capacity(PINGS);
            for _ in 0..PINGS {
                let begin = Instant::now();
                to.write_all(&message)?;
                to.flush()?;
                from.read_exact(&mut message)?;
                times.push(begin.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
            times.sort_by(f64::total_cmp);
            eprintln!("{}", times[PINGS / 2]);
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_medians_beside_the_pipe() {
        let turn = |us: f64| [us * 2.0, us * 4.0, us].map(|us| Figure { us, sleeps: 1.5 });
        let text = table(&[turn(30.0), turn(10.0), turn(20.0)]);
        assert!(text.contains("| Verbena's completion events, memory | 40.00 us | 2.00 | 1.50 |"), "{text}");
        assert!(text.contains("| a pipe | 20.00 us | 1.00 | 1.50 |"), "{text}");
        assert_eq!(table(&[]), "");
    }
}
