//! The Rust crate beside the C functions of the same stack, and its byte stream beside TCP: each by turns, in the same run.

use std::io;
use std::process::Command;

use crate::rdma::{Program, Running, measured};
use crate::report::{Better, Figure};

/// Turns of what lasts two seconds.
const TURNS: usize = 3;
/// Of processor time, to which each turn adds what the engine threads of both ends happen to do.
const POST_TURNS: usize = 9;

/// A process of this program: see `rust`.
fn crate_process(role: &str, what: &str, size: usize) -> io::Result<Running> {
    Running::start(Command::new(std::env::current_exe()?).args(["crate", role, what, &size.to_string()]))
}

/// Both ends by the crate.
fn by_crate(what: &str, size: usize) -> io::Result<f64> {
    measured(crate_process("server", what, size)?, || crate_process("client", what, size))
}

/// Medians of what is measured by turns.
pub fn by_turns<const N: usize>(
    turns: usize,
    mut measure: impl FnMut(usize) -> io::Result<f64>,
) -> io::Result<[f64; N]> {
    let mut seen = [const { Vec::new() }; N];
    for _ in 0..turns {
        for (at, seen) in seen.iter_mut().enumerate() {
            seen.push(measure(at)?);
        }
    }
    Ok(seen.map(|mut values| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }))
}

/// A line of a table of what is beside what.
pub fn figure(what: String, unit: &'static str, ours: f64, floor: f64, floor_is: &'static str) -> Figure {
    let better = if unit == "us" { Better::Lower } else { Better::Higher };
    Figure { what, unit, better, floor, floor_is, ours: Some(ours) }
}

/// The lines of the table.
///
/// # Errors
/// When a process fails.
pub fn figures(c: &Program) -> io::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let [by_c, normal, polled] = by_turns(POST_TURNS, |at| match at {
        0 => c.measure(&["post", "64", "1"]),
        1 => measured(c.start(&["server", "post", "64", "1"])?, || crate_process("client", "post", 64)),
        _ => {
            measured(c.start(&["server", "post", "64", "1"])?, || crate_process("client", "polled-post", 64))
        }
    })?;
    let calls = "ibv_post_send and ibv_poll_cq, to the same C program";
    let post = |how: &str| format!("processor time of a 64-byte SEND and its completion, {how}");
    figures.push(figure(post("Connection"), "us", normal, by_c, calls));
    figures.push(figure(post("PolledConnection"), "us", polled, by_c, calls));
    let [polling, sleeping, normal, polled] = by_turns(TURNS, |at| match at {
        0 => c.measure(&["lat", "64", "1"]),
        1 => c.measure(&["sleep", "64", "1"]),
        2 => by_crate("lat", 64),
        _ => by_crate("polled-lat", 64),
    })?;
    let half = |how: &str| format!("64-byte SEND, half round trip, {how}");
    let by_polling = "the C program at both ends, polling";
    figures.push(figure(half("Connection"), "us", normal, polling, by_polling));
    let by_sleeping = "the C program at both ends, blocking in ibv_get_cq_event";
    figures.push(figure(half("Connection"), "us", normal, sleeping, by_sleeping));
    figures.push(figure(half("PolledConnection"), "us", polled, polling, by_polling));
    let [tcp, rdma, spinning] =
        by_turns(TURNS, |at| by_crate(["tcp-echo", "rdma-echo", "spin-echo"][at], 64))?;
    let echo = |how: &str| format!("64 bytes of RdmaStream, half round trip, {how}");
    figures.push(figure(echo("in tokio's runtime"), "us", rdma, tcp, "tokio's TcpStream"));
    figures.push(figure(echo("by block_on, which polls"), "us", spinning, tcp, "tokio's TcpStream"));
    for size in [64 << 10, 1 << 20] {
        let [tcp, rdma] = by_turns(TURNS, |at| by_crate(["tcp-write", "rdma-write"][at], size))?;
        let what = format!("writes of {} to RdmaStream", crate::report::bytes(size));
        figures.push(figure(what, "GB/s", rdma, tcp, "tokio's TcpStream"));
    }
    Ok(figures)
}
