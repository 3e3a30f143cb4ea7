//! `verbena demo`: a server and a client, two processes, over the loopback device: every step of
//! connecting as it happens, then what the operations cost.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use verbena::prelude::*;
use verbena::{Connection, InFlight, Memory, Op, Part, RemoteMemory, RemoteWrite, op::kind};

use crate::{devices, object};

/// Show Verbena at work
///
/// Starts a server process and connects to it through the RDMA connection manager, shows each step,
/// then measures SEND, READ and WRITE.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Be the server (used by the demonstration itself)
    #[arg(long, hide = true)]
    server: bool,
}

/// Bytes of the memory that the server lends, and of the client's own.
const BUFFER: usize = 1 << 20;
/// How long each measurement runs at least.
const MEASURE: Duration = Duration::from_millis(200);
/// Requests under way in a throughput measurement.
const DEPTH: usize = 16;

type WritablePart = Part<RemoteWrite>;

/// Runs the demonstration, or its server.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    devices::check_environment()?;
    let done = if args.server { serve().map_err(|e| e.to_string()) } else { show() };
    done.map(|()| ExitCode::SUCCESS)
}

/// The server: tells its port, takes one connection, lends it memory, answers each message with the
/// same, until the client leaves.
fn serve() -> verbena::Result<()> {
    let memory = Memory::<RemoteWrite>::zeroed(BUFFER)?;
    let listener = verbena::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).wait()?;
    println!("{}", listener.local_addr().port());
    let request = listener.blocking_request()?;
    let mr = memory.mr(request.pd())?;
    let conn = request.accept().private_data(mr.remote().to_bytes()).wait()?;
    while let Some(message) = conn.blocking_recv()? {
        conn.send(message).wait().buf()?;
    }
    conn.blocking_close()
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends by itself when the connection does; after a failure here it must not stay.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn show() -> Result<(), String> {
    let (mut server, port) = start_server()?;
    println!("server: process {}, listening on 127.0.0.1:{port}", server.0.id());
    ask(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).map_err(|e| e.to_string())?;
    server.0.wait().map_err(|e| format!("the server process: {e}"))?;
    Ok(())
}

/// The client.
fn ask(server: SocketAddr) -> verbena::Result<()> {
    verbena::Provider::software()?;
    let begin = Instant::now();
    let say = |what: String| println!("client: {:8.3} ms  {what}", begin.elapsed().as_secs_f64() * 1e3);
    let route = verbena::resolve(server).wait()?;
    say(format!("device {} leads there, {} bytes a packet", route.pd().device().name(), route.mtu()));
    let conn = route.connect().wait()?;
    say(format!("connected: queue pair {:#08x}, from {}", conn.number(), conn.local_addr()));
    let theirs = RemoteMemory::from_bytes(conn.private_data())?;
    say(format!("the server lends {} bytes, key {:#010x}", theirs.len(), theirs.rkey()));
    let ours = Memory::<RemoteWrite>::zeroed(BUFFER)?;
    println!("\n{:<12} {:>9}  {:>14}  {:>12}", "operation", "bytes", "round trip", "throughput");
    ping_pong(&conn, 64)?;
    one_by_one("READ", 64, &ours, |part| Ok(conn.read(part, theirs.slice(..64)?)))?;
    one_by_one("WRITE", 64, &ours, |part| Ok(conn.write(part, theirs)))?;
    for bytes in [64 << 10, BUFFER] {
        let from = theirs.slice(..bytes as u64)?;
        stream("READ", bytes, &ours, |part| conn.read(part, from))?;
        stream("WRITE", bytes, &ours, |part| conn.write(part, theirs))?;
    }
    println!();
    conn.blocking_close()?;
    say("disconnected".to_owned());
    Ok(())
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

fn row(name: &str, bytes: usize, round_trip: Option<Duration>, rate: Option<f64>) {
    let trip = round_trip.map_or_else(String::new, |t| format!("{:.1} us", t.as_secs_f64() * 1e6));
    let rate = rate.map_or_else(String::new, |r| format!("{:.2} GB/s", r / 1e9));
    println!("{name:<12} {bytes:>9}  {trip:>14}  {rate:>12}");
}

/// SENDs there and back.
fn ping_pong(conn: &Connection, bytes: usize) -> verbena::Result<()> {
    let (begin, mut n) = (Instant::now(), 0);
    let mut message = conn.buffer()?;
    message.set_len(bytes)?;
    while begin.elapsed() < MEASURE {
        message = conn.send(message).wait().buf()?;
        conn.blocking_recv()?;
        n += 1;
    }
    row("SEND", bytes, Some(begin.elapsed() / n), None);
    Ok(())
}

/// Requests one after the other.
fn one_by_one<'q, K>(
    name: &str,
    bytes: usize,
    ours: &Memory<RemoteWrite>,
    op: impl Fn(WritablePart) -> verbena::Result<Op<'q, K, WritablePart>>,
) -> verbena::Result<()>
where
    K: kind::Kind<WritablePart, Output = (verbena::Result<verbena::Completion>, WritablePart)> + 'q,
{
    let (begin, mut n) = (Instant::now(), 0);
    let mut part = ours.part(0..bytes)?;
    while begin.elapsed() < MEASURE {
        part = op(part)?.wait().buf()?;
        n += 1;
    }
    row(name, bytes, Some(begin.elapsed() / n), None);
    Ok(())
}

/// Several requests under way.
fn stream<'q, K>(
    name: &str,
    bytes: usize,
    ours: &Memory<RemoteWrite>,
    op: impl Fn(WritablePart) -> Op<'q, K, WritablePart>,
) -> verbena::Result<()>
where
    K: kind::Kind<WritablePart, Output = (verbena::Result<verbena::Completion>, WritablePart)> + 'q,
{
    let (begin, mut done) = (Instant::now(), 0);
    let mut under_way: VecDeque<InFlight<K, WritablePart>> = VecDeque::new();
    while begin.elapsed() < MEASURE || !under_way.is_empty() {
        while under_way.len() < DEPTH && begin.elapsed() < MEASURE {
            under_way.push_back(op(ours.part(0..bytes)?).post()?);
        }
        if let Some(first) = under_way.pop_front() {
            first.wait().buf()?;
            done += 1;
        }
    }
    row(name, bytes, None, Some(done as f64 * bytes as f64 / begin.elapsed().as_secs_f64()));
    Ok(())
}
