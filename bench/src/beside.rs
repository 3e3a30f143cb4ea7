//! The Rust crate beside the C functions of the same stack, and its byte stream beside TCP: each by
//! turns, in the same run.

use std::io;
use std::process::Command;

use crate::peers::{self, Test, perftest};
use crate::rdma::{Program, Running, measured};
use crate::report::{Better, Figure};
use crate::rust::SLICES;

/// Turns of what lasts two seconds.
const TURNS: usize = 3;
/// Turns of what lasts a tenth of that, while the machine's state lasts for seconds.
const SHORT_TURNS: usize = 9;
/// Of the processes whose processor time is measured.
const LIVES: usize = 7;
/// Slices of processor time in which caches and memory are not yet what they are later.
const WARM_UP: usize = 10;

/// A process of this program: see `rust`.
fn crate_process(role: &str, what: &str, size: usize) -> io::Result<Running> {
    Running::start(Command::new(std::env::current_exe()?).args(["crate", role, what, &size.to_string()]))
}

/// Both ends by the crate.
fn by_crate(what: &str, size: usize) -> io::Result<f64> {
    measured(crate_process("server", what, size)?, || crate_process("client", what, size))
}

/// What is measured by turns.
pub(crate) fn all_turns<const N: usize>(
    turns: usize,
    mut measure: impl FnMut(usize) -> io::Result<f64>,
) -> io::Result<[Vec<f64>; N]> {
    let mut seen = [const { Vec::new() }; N];
    for _ in 0..turns {
        for (at, seen) in seen.iter_mut().enumerate() {
            seen.push(measure(at)?);
        }
    }
    Ok(seen)
}

/// Medians of what is measured by turns.
pub(crate) fn by_turns<const N: usize>(
    turns: usize,
    measure: impl FnMut(usize) -> io::Result<f64>,
) -> io::Result<[f64; N]> {
    Ok(all_turns(turns, measure)?.map(median))
}

/// Like [`by_turns`], and of each the median of its ratios to the last one in its turn, which meets
/// the same state of the machine.
pub(crate) fn by_turns_beside_last<const N: usize>(
    turns: usize,
    measure: impl FnMut(usize) -> io::Result<f64>,
) -> io::Result<([f64; N], [f64; N])> {
    let seen: [Vec<f64>; N] = all_turns(turns, measure)?;
    let ratios = seen.each_ref().map(|ours| {
        let last = seen.last().into_iter().flatten();
        median(ours.iter().zip(last).map(|(ours, last)| ours / last).collect())
    });
    Ok((seen.map(median), ratios))
}

/// A line of a table of what is beside what.
pub(crate) fn figure(
    what: String,
    unit: &'static str,
    ours: f64,
    floor: f64,
    floor_is: &'static str,
) -> Figure {
    let better = if matches!(unit, "us" | "s/GB") { Better::Lower } else { Better::Higher };
    Figure { what, unit, better, floor, floor_is, ours: Some(ours), of_pairs: None, line: None }
}

/// Microseconds of the processor a SEND, of the calling thread and of all threads, of the C
/// program, `Connection` and `PolledConnection`.
type Turn = [[f64; 2]; 3];

/// Turns of several lives of three processes, which work one after the other, ten milliseconds
/// each: so each meets what the others meet.
fn post_and_poll(c: &Program) -> io::Result<Vec<Turn>> {
    let mut turns = Vec::new();
    for _ in 0..LIVES {
        let mut server = c.start(&["server", "post", "64", "3"])?;
        server.expect("listening")?;
        let ready = |mut client: Running| client.expect("ready").map(|()| client);
        // One after the other: the server takes one request at a time.
        let mut clients = [
            ready(c.start(&["client", "post", "64", "3"])?)?,
            ready(crate_process("client", "post", 64)?)?,
            ready(crate_process("client", "polled-post", 64)?)?,
        ];
        for slice in 0..SLICES {
            let mut turn = Turn::default();
            for (client, numbers) in clients.iter_mut().zip(&mut turn) {
                client.go()?;
                *numbers = client.numbers()?;
            }
            if slice >= WARM_UP {
                turns.push(turn);
            }
        }
        clients.iter_mut().try_for_each(|client| client.end().map(drop))?;
        server.end()?;
    }
    Ok(turns)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The lines of the table.
///
/// # Errors
/// When a process fails.
pub(crate) fn figures(c: &Program) -> io::Result<Vec<Figure>> {
    let mut figures = processor_times(&post_and_poll(c)?);
    figures.extend(sends(c)?);
    if perftest::is_installed() {
        figures.push(writes_beside_perftest(c)?);
    }
    if peers::program::installed(peers::ucx::PROGRAM) {
        figures.extend(writes_beside_ucx(c)?);
    }
    figures.extend(streams()?);
    Ok(figures)
}

/// Processor time of a SEND by the crate, beside the C program.
fn processor_times(turns: &[Turn]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let calls = "ibv_post_send and ibv_poll_cq, to the same C program";
    for (time, of) in [(0, "of the calling thread"), (1, "of all threads")] {
        for (who, how) in [(1, "Connection"), (2, "PolledConnection")] {
            let what = format!("processor time {of}, a 64-byte SEND and its completion, {how}");
            let of_turns = |number: &dyn Fn(&Turn) -> f64| median(turns.iter().map(number).collect());
            let [ours, by_c] = [who, 0].map(|who| of_turns(&|turn| turn[who][time]));
            let ratio = of_turns(&|turn| turn[who][time] / turn[0][time]);
            figures.push(Figure { of_pairs: Some(ratio), ..figure(what, "us", ours, by_c, calls) });
        }
    }
    figures
}

/// Half round trips of SENDs by the crate, beside the C program.
fn sends(c: &Program) -> io::Result<[Figure; 3]> {
    let [polling, sleeping, normal, polled] = by_turns(TURNS, |at| match at {
        0 => c.measure(&["lat", "64", "1"]),
        1 => c.measure(&["sleep", "64", "1"]),
        2 => by_crate("lat", 64),
        _ => by_crate("polled-lat", 64),
    })?;
    let half = |how: &str| format!("64-byte SEND, half round trip, {how}");
    let by_polling = "the C program at both ends, polling";
    let by_sleeping = "the C program at both ends, blocking in ibv_get_cq_event";
    Ok([
        figure(half("Connection"), "us", normal, polling, by_polling),
        figure(half("Connection"), "us", normal, sleeping, by_sleeping),
        figure(half("PolledConnection"), "us", polled, polling, by_polling),
    ])
}

/// Half round trips of WRITEs by the crate, beside perftest on the same stack.
fn writes_beside_perftest(c: &Program) -> io::Result<Figure> {
    let perftest = perftest::Perftest { verbena: c.verbena().to_owned(), path: perftest::Path::Memory };
    let [theirs, ours] = by_turns(TURNS, |at| match at {
        0 => peers::calls::one(&perftest, Test::WriteLatency, 64),
        _ => by_crate("write-lat", 64),
    })?;
    let what = "64-byte WRITE, half round trip, the targets watch their memory, PolledConnection".to_owned();
    let called = "ib_write_lat at both ends, to whose memory the system copies";
    Ok(figure(what, "us", ours, theirs, called))
}

/// WRITEs by the crate and by the C program, beside UCX.
fn writes_beside_ucx(c: &Program) -> io::Result<[Figure; 3]> {
    let posix = peers::ucx::Ucx(peers::ucx::Path::Posix);
    let ([ours, by_c, theirs], [of_ours, of_c, _]) = by_turns_beside_last(SHORT_TURNS, |at| match at {
        0 => by_crate("write-lat", 8),
        1 => c.measure(&["watch", "8", "1"]),
        _ => posix.mean(Test::WriteLatency, 8),
    })?;
    let put = "UCX posix, whose put is a store to memory that both map: the mean";
    let latency = |ours, ratio, how: &str| {
        let what = format!("8-byte WRITE, half round trip, the targets watch their memory, {how}");
        Figure { of_pairs: Some(ratio), ..figure(what, "us", ours, theirs, put) }
    };
    let latencies = [
        latency(ours, of_ours, "PolledConnection"),
        latency(by_c, of_c, "ibv_post_send and memory of ibv_alloc_buf"),
    ];
    let [theirs, ours] = by_turns(TURNS, |at| match at {
        0 => peers::calls::one(&posix, Test::WriteBandwidth, 1 << 20),
        _ => by_crate("write-bw", 1 << 20),
    })?;
    let what = "1 MiB WRITEs between memory of the crate, PolledConnection".to_owned();
    let mapped = "UCX posix, whose WRITEs are copies to memory that both map";
    let [polled, by_c] = latencies;
    Ok([polled, by_c, figure(what, "GB/s", ours, theirs, mapped)])
}

/// The crate's byte stream, beside TCP.
fn streams() -> io::Result<Vec<Figure>> {
    let [tcp, rdma, spinning] =
        by_turns(TURNS, |at| by_crate(["tcp-echo", "rdma-echo", "spin-echo"][at], 64))?;
    let echo = |how: &str| format!("64 bytes of RdmaStream, half round trip, {how}");
    let mut figures = vec![
        figure(echo("in tokio's runtime"), "us", rdma, tcp, "tokio's TcpStream"),
        figure(echo("by block_on, which polls"), "us", spinning, tcp, "tokio's TcpStream"),
    ];
    for size in [64 << 10, 1 << 20] {
        let [tcp, rdma] = by_turns(TURNS, |at| by_crate(["tcp-write", "rdma-write"][at], size))?;
        let what = format!("writes of {} to RdmaStream", crate::report::bytes(size));
        figures.push(figure(what, "GB/s", rdma, tcp, "tokio's TcpStream"));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_most_turns_and_not_of_the_medians() {
        let mut seen = [[1.0, 1.0], [4.0, 2.0], [9.0, 9.0]].into_iter().flatten();
        let measured = by_turns_beside_last(3, |_| Ok(seen.next().unwrap_or_default()));
        assert_eq!(measured.unwrap(), ([4.0, 2.0], [1.0, 1.0]));
    }
}
