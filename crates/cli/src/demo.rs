//! `verbena demo`: a server and a client, two processes, over the loopback device: every step of connecting as it happens, then
//! what the operations cost.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use transport::op::SendOp;
use wire::Rkey;
use wire::roce::SendTail;

use crate::object;
use crate::side::{BUFFER, Side};

/// Show Verbena at work
///
/// Starts a server process and connects to it through the RDMA connection manager, shows each event, then measures SEND, READ and
/// WRITE.
#[derive(clap::Args)]
pub struct Args {
    /// Be the server (used by the demonstration itself)
    #[arg(long, hide = true)]
    server: bool,
}

/// How long each measurement runs at least.
const MEASURE: Duration = Duration::from_millis(200);
/// Requests under way in a throughput measurement.
const DEPTH: usize = 16;

/// Runs the demonstration, or its server.
pub fn run(args: &Args) -> Result<ExitCode, String> {
    if args.server { serve() } else { show() }
}

/// The server: tells its port, takes one connection, answers each message with one of the same size, until the client leaves.
fn serve() -> Result<ExitCode, String> {
    let mut side = Side::start()?;
    let listener = side.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    println!("{}", listener.lock().source.map_or(0, |a| a.port()));
    side.accept()?;
    while !side.ended() {
        for completion in side.poll() {
            if completion.opcode == transport::op::Completed::Receive && completion.byte_len > 0 {
                side.receive()?;
                side.post(SendOp::Send(SendTail::None), completion.byte_len)?;
            }
        }
    }
    side.finish();
    Ok(ExitCode::SUCCESS)
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends by itself when the connection does; after a failure here it must not stay.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn show() -> Result<ExitCode, String> {
    let (mut server, port) = start_server()?;
    println!("server: process {}, listening on 127.0.0.1:{port}", server.0.id());
    let mut side = Side::start()?;
    side.narrate = true;
    let (addr, rkey) = side.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    println!("\n{:<12} {:>9}  {:>14}  {:>12}", "operation", "bytes", "round trip", "throughput");
    ping_pong(&mut side, 64)?;
    let read = SendOp::Read { addr, rkey: Rkey(rkey) };
    let write = SendOp::Write { addr, rkey: Rkey(rkey), immediate: None };
    one_by_one(&mut side, "READ", &read, 64)?;
    one_by_one(&mut side, "WRITE", &write, 64)?;
    for bytes in [64 << 10, BUFFER] {
        stream(&mut side, "READ", &read, bytes)?;
        stream(&mut side, "WRITE", &write, bytes)?;
    }
    println!();
    side.disconnect()?;
    server.0.wait().map_err(|e| format!("the server process: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

fn start_server() -> Result<(Server, u16), String> {
    let exe = object::own_path().ok_or("cannot find this program's own file: is /proc mounted?")?;
    let mut child = Command::new(exe)
        .args(["demo", "--server"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start the server process: {e}"))?;
    let out = child.stdout.take();
    let server = Server(child);
    let mut line = String::new();
    out.map(|out| BufReader::new(out).read_line(&mut line));
    let port = line.trim().parse().map_err(|_| "the server process did not start".to_owned())?;
    Ok((server, port))
}

fn row(name: &str, bytes: u32, round_trip: Option<Duration>, rate: Option<f64>) {
    let trip = round_trip.map_or_else(String::new, |t| format!("{:.1} us", t.as_secs_f64() * 1e6));
    let rate = rate.map_or_else(String::new, |r| format!("{:.2} GB/s", r / 1e9));
    println!("{name:<12} {bytes:>9}  {trip:>14}  {rate:>12}");
}

/// SENDs there and back.
fn ping_pong(side: &mut Side, bytes: u32) -> Result<(), String> {
    let (begin, mut n) = (Instant::now(), 0);
    while begin.elapsed() < MEASURE {
        side.post(SendOp::Send(SendTail::None), bytes)?;
        side.wait_for(2)?;
        side.receive()?;
        n += 1;
    }
    row("SEND", bytes, Some(begin.elapsed() / n), None);
    Ok(())
}

/// Requests one after the other.
fn one_by_one(side: &mut Side, name: &str, op: &SendOp, bytes: u32) -> Result<(), String> {
    let (begin, mut n) = (Instant::now(), 0);
    while begin.elapsed() < MEASURE {
        side.post(op.clone(), bytes)?;
        side.wait_for(1)?;
        n += 1;
    }
    row(name, bytes, Some(begin.elapsed() / n), None);
    Ok(())
}

/// Several requests under way.
fn stream(side: &mut Side, name: &str, op: &SendOp, bytes: u32) -> Result<(), String> {
    let (begin, mut posted, mut done) = (Instant::now(), 0, 0);
    while begin.elapsed() < MEASURE || done < posted {
        while posted - done < DEPTH && begin.elapsed() < MEASURE {
            side.post(op.clone(), bytes)?;
            posted += 1;
        }
        done += side.wait_for(1)?;
    }
    row(name, bytes, None, Some(done as f64 * f64::from(bytes) / begin.elapsed().as_secs_f64()));
    Ok(())
}
