//! Verbena's iWARP between two hosts beside TCP: perftest's programs under `verbena run --iwarp`,
//! the same over RoCE, and plain sockets, by turns.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::beside::{by_turns_beside_last, figure};
use crate::floor::{self, PINGS, join};
use crate::hosts::{Hosts, INTERFACE};
use crate::peers::{Test, perftest};
use crate::pin;
use crate::rdma::Program;
use crate::report::{self, Figure};

/// Runs of each: the figures are medians.
const TURNS: usize = 5;
const MTUS: [u32; 2] = [1500, 9000];
const SMALL: usize = 64;
/// Bytes around a SEND of so many: header, length and CRC field.
const AROUND: usize = 24;
const MIB: usize = 1 << 20;
/// Messages whose processor time is measured, and those of a run that is subtracted from it, for
/// what programs take to begin and end.
const LONG: usize = 4096;
const SHORT: usize = 512;
/// Connections, one after the other.
const CONNECTIONS: usize = 1000;

/// The lines of the table.
///
/// # Errors
/// When the system refuses namespaces, or a program fails again and again.
pub(crate) fn figures(verbena: &Path, sources: &Path) -> io::Result<Vec<Figure>> {
    let connector = Program::compile(verbena, sources, "rdma_connections", &[])?;
    let verbena = std::path::absolute(verbena)?;
    let hosts = Hosts::new()?;
    hosts.set_congestion_control()?;
    let device = format!("siw_{INTERFACE}");
    let run = |test, size, count, more: &[&str]| {
        hosts.perftest(&verbena, &["--iwarp"], &device, (test, size, count), &[&["-R"], more].concat())
    };
    let ours = |test: Test, size| run(test, size, test.iterations(size), &[]);
    let mut figures = Vec::new();
    for mtu in MTUS {
        hosts.set_mtu(mtu)?;
        let mut line = |what: &str, unit, [ours, floor]: [f64; 2], ratio, floor_is| {
            let what = format!("MTU {mtu}: {what}");
            figures.push(Figure { of_pairs: Some(ratio), ..figure(what, unit, ours, floor, floor_is) });
        };
        for test in [Test::WriteBandwidth, Test::SendBandwidth, Test::ReadBandwidth] {
            for size in [64 << 10, 1 << 20] {
                let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
                    0 => ours(test, size),
                    _ => tcp_bandwidth(hosts.tcp()?, size, test.iterations(size)),
                })?;
                let what = format!("{} ({})", report::bytes(size), perftest::program(test));
                line(&what, "GB/s", medians, ratio, "TCP, writes of as many bytes, the reader spins");
            }
        }
        let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
            0 => ours(Test::SendLatency, SMALL),
            _ => tcp_ping_pong_awake(hosts.tcp()?, SMALL + AROUND),
        })?;
        let what = "64-byte SEND, half round trip, both ends spin (ib_send_lat)";
        line(what, "us", medians, ratio, "TCP, as many bytes as the FPDU has, both ends spin");
        // Only SENDs of perftest's sleep.
        let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| {
            processor_time(|count| match at {
                0 => {
                    let before = pin::time_of_children();
                    run(Test::SendBandwidth, MIB, count, &["-e"])?;
                    Ok(pin::time_of_children() - before)
                }
                _ => tcp_asleep(hosts.tcp()?, MIB, count),
            })
        })?;
        let what = "processor time of both ends, 1 MiB (ib_send_bw -e)";
        line(what, "s/GB", medians, ratio, "TCP, writes of as many bytes, the reader sleeps");
    }
    figures.push(connections(&connector)?);
    Ok(figures)
}

/// Connections on one host, which two programs make one after the other.
fn connections(connector: &Program) -> io::Result<Figure> {
    let ([ours, floor], [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
        0 => connector.connects(&["--iwarp"], 1, CONNECTIONS),
        _ => floor::connects(1, CONNECTIONS),
    })?;
    let floor_is = "TCP from a thread: connect, accept, one byte, close";
    let what = "connections on one host, one after the other".to_owned();
    Ok(Figure { of_pairs: Some(ratio), ..figure(what, "1/s", ours, floor, floor_is) })
}

/// Seconds of the processor that a GB takes, without what programs take to begin and end. `run`
/// says what so many MiB take in all.
fn processor_time(run: impl Fn(usize) -> io::Result<Duration>) -> io::Result<f64> {
    let (short, long) = (run(SHORT)?, run(LONG)?);
    Ok(long.saturating_sub(short).as_secs_f64() * 1e9 / ((LONG - SHORT) * MIB) as f64)
}

/// What `count` writes of `len` bytes by TCP take of the processor, where the reader sleeps while
/// there is nothing.
fn tcp_asleep(
    (mut here, mut there): (TcpStream, TcpStream),
    len: usize,
    count: usize,
) -> io::Result<Duration> {
    let before = pin::time_of_all();
    let reading = thread::spawn(move || -> io::Result<()> {
        pin::to_core(1)?;
        let mut bytes = vec![0; len];
        (0..count).try_for_each(|_| there.read_exact(&mut bytes))
    });
    let writing = thread::spawn(move || -> io::Result<()> {
        pin::to_core(0)?;
        here.set_nodelay(true)?;
        let bytes = vec![1; len];
        (0..count).try_for_each(|_| here.write_all(&bytes))
    });
    join(writing)?;
    join(reading)?;
    Ok(pin::time_of_all() - before)
}

/// Half a round trip of `len` bytes by TCP, us, where both sides spin.
fn tcp_ping_pong_awake((mut here, mut there): (TcpStream, TcpStream), len: usize) -> io::Result<f64> {
    let answering = thread::spawn(move || -> io::Result<()> {
        pin::to_core(1)?;
        let mut bytes = vec![0; len];
        set_up_awake(&there)?;
        for _ in 0..PINGS {
            read_awake(&mut there, &mut bytes)?;
            there.write_all(&bytes)?;
        }
        Ok(())
    });
    let asking = thread::spawn(move || -> io::Result<f64> {
        pin::to_core(0)?;
        let mut bytes = vec![0; len];
        set_up_awake(&here)?;
        let begin = Instant::now();
        for _ in 0..PINGS {
            here.write_all(&bytes)?;
            read_awake(&mut here, &mut bytes)?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / PINGS as f64 / 2.0)
    });
    let half = join(asking)?;
    join(answering)?;
    Ok(half)
}

/// GB/s of `count` writes of `len` bytes by TCP, read by a thread that spins.
fn tcp_bandwidth((mut here, mut there): (TcpStream, TcpStream), len: usize, count: usize) -> io::Result<f64> {
    let reading = thread::spawn(move || -> io::Result<f64> {
        pin::to_core(1)?;
        let mut bytes = vec![0; len];
        set_up_awake(&there)?;
        read_awake(&mut there, &mut bytes)?;
        let begin = Instant::now();
        for _ in 1..count {
            read_awake(&mut there, &mut bytes)?;
        }
        Ok(((count - 1) * len) as f64 / begin.elapsed().as_secs_f64() / 1e9)
    });
    let writing = thread::spawn(move || -> io::Result<()> {
        pin::to_core(0)?;
        here.set_nodelay(true)?;
        let bytes = vec![1; len];
        for _ in 0..count {
            here.write_all(&bytes)?;
        }
        Ok(())
    });
    join(writing)?;
    join(reading)
}

fn set_up_awake(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Fills `bytes`; the thread spins.
fn read_awake(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => at += len,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
