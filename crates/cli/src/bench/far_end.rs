//! The process at the other end of a measurement. A TCP connection tells it what comes: TCP itself
//! is measured there, too.
//!
//! | from the near end | then |
//! |---|---|
//! | [`HELLO`], the largest size and the depth, 8 bytes each | 2 bytes come back: the port for rdma_connect, or 0 |
//! | [`ECHO`] and 16 bytes | each SEND is sent back |
//! | [`SINK`] and 16 bytes | each SEND is dropped; after the last one a byte comes back |
//! | [`TCP`] and two sizes, 8 bytes each | so many bytes come, and so many go back, again and again |
//!
//! A message begins with [`GOES_ON`], and the last one of a measurement does not. Numbers are
//! little-endian. Memory for WRITE and READ is lent when the connection is made.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use verbena::prelude::*;
use verbena::{Connection, Listener, Memory, QueueConfig, RemoteWrite, Request, time};

use super::{MOST, MOST_UNDER_WAY};
use crate::object;

/// The version of the protocol is in it.
pub(super) const HELLO: &[u8; 16] = b"verbena-bench 1\n";
pub(super) const ECHO: u8 = b'e';
pub(super) const SINK: u8 = b's';
pub(super) const TCP: u8 = b't';
/// The first byte of a message that is not the last one.
pub(super) const GOES_ON: u8 = 1;
/// The least bytes of a receive.
const LEAST: usize = 64;
/// How long the near end may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take between two measurements: each takes a minute at most.
const BETWEEN: Duration = Duration::from_secs(120);
/// How often the far end looks whether a near end that has not connected yet is still there.
const LOOK: Duration = Duration::from_millis(100);

/// The queues for messages of so many bytes, so many at a time.
pub(super) fn queues(largest: usize, depth: u32) -> QueueConfig {
    QueueConfig::default().send_depth(depth + 1).recv_depth(2 * depth).recv_size(largest.max(LEAST))
}

/// The other end on this host, a process of its own.
pub(super) struct Started(Child);

impl Started {
    /// Starts it; the port at which it waits.
    pub(super) fn start() -> Result<(Self, u16), String> {
        let exe = object::own_path().ok_or("cannot find this program's own file: is /proc mounted?")?;
        let mut child = Command::new(exe)
            .args(["bench", "--child"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the other end: {error}"))?;
        let out = child.stdout.take();
        let started = Self(child);
        let mut line = String::new();
        out.map(|out| BufReader::new(out).read_line(&mut line));
        let port = line.trim().parse().map_err(|_| "the other end did not start".to_owned())?;
        Ok((started, port))
    }

    /// Waits until it has ended, as it does when the near end leaves.
    pub(super) fn wait(&mut self) {
        let _ = self.0.wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // After a failure here it must not stay.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The other end on one host: says its port, and serves the process that started it.
pub(super) fn serve_one() -> Result<(), String> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        println!("{}", listener.local_addr()?.port());
        Ok(listener)
    });
    let listener = bound.map_err(|error| format!("a port for the measurement: {error}"))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return serve(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(Duration::from_millis(1));
            }
            // The process that started this one is gone.
            Err(error) => return Err(format!("no measurement begins: {error}")),
        }
    }
}

/// The other end of `--peer`: serves one after the other, until a signal ends it.
pub(super) fn listen(port: u16) -> Result<(), String> {
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listener = TcpListener::bind(all).or_else(|_| TcpListener::bind(v4));
    let bound = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) = bound.map_err(|error| format!("port {port}: {error}"))?;
    eprintln!("verbena bench: port {port} waits for `verbena bench --peer`; Ctrl-C ends it");
    loop {
        let (stream, from) = listener.accept().map_err(|error| format!("port {port}: {error}"))?;
        match serve(stream) {
            Ok(()) => eprintln!("verbena bench: measured from {}", from.ip().to_canonical()),
            Err(error) => eprintln!("verbena bench: {}: {error}", from.ip().to_canonical()),
        }
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "the connection ended early".to_owned(),
        ErrorKind::WouldBlock => "nothing came in time".to_owned(),
        _ => error.to_string(),
    }
}

/// Two numbers of 8 bytes.
fn numbers(bytes: [u8; 16]) -> (u64, u64) {
    let number = u128::from_le_bytes(bytes);
    (number as u64, (number >> 64) as u64)
}

/// The opposite.
pub(super) fn to_bytes(first: u64, second: u64) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

/// The size and depth that the near end asks for, as far as they are allowed.
fn allowed(largest: u64, depth: u64) -> Option<(usize, u32)> {
    let (largest, depth) = (usize::try_from(largest).ok()?, u32::try_from(depth).ok()?);
    let fits = (1..=MOST).contains(&largest) && (1..=1024).contains(&depth);
    (fits && largest.saturating_mul(depth as usize) <= MOST_UNDER_WAY).then_some((largest, depth))
}

/// Serves one near end until it leaves.
fn serve(mut stream: TcpStream) -> Result<(), String> {
    let (largest, depth) = hello(&mut stream).map_err(|error| said(&error))?;
    let (conn, _lent) = accept(&mut stream, largest, depth)?;
    let mut at_tcp = vec![0; largest];
    loop {
        let mut command = [0; 17];
        match stream.read_exact(&mut command) {
            // It leaves between two measurements.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            read => read.map_err(|error| said(&error))?,
        }
        let [kind, rest @ ..] = command;
        match kind {
            ECHO => echo(&conn).map_err(|error| error.to_string())?,
            SINK => {
                sink(&conn).map_err(|error| error.to_string())?;
                stream.write_all(&[GOES_ON]).map_err(|error| said(&error))?;
            }
            TCP => tcp(&mut stream, numbers(rest), &mut at_tcp).map_err(|error| said(&error))?,
            _ => return Err("the other end is of another build".to_owned()),
        }
    }
    conn.blocking_close().map_err(|error| error.to_string())
}

fn hello(stream: &mut TcpStream) -> io::Result<(usize, u32)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut hello, mut asked) = ([0; HELLO.len()], [0; 16]);
    stream.read_exact(&mut hello)?;
    stream.read_exact(&mut asked)?;
    stream.set_read_timeout(Some(BETWEEN))?;
    stream.set_write_timeout(Some(BETWEEN))?;
    let (largest, depth) = numbers(asked);
    let is_known = &hello == HELLO;
    allowed(largest, depth)
        .filter(|_| is_known)
        .ok_or_else(|| io::Error::other("it is no `verbena bench` of this build"))
}

/// Waits for rdma_connect from the same host, and lends it memory.
fn accept(
    stream: &mut TcpStream,
    largest: usize,
    depth: u32,
) -> Result<(Connection, Memory<RemoteWrite>), String> {
    let ours = stream.local_addr().map_err(|error| said(&error))?;
    let listening = verbena::listen(SocketAddr::new(ours.ip().to_canonical(), 0)).wait();
    let port = listening.as_ref().map_or(0, |listener| listener.local_addr().port());
    stream.write_all(&port.to_le_bytes()).map_err(|error| said(&error))?;
    let listener = listening.map_err(|error| error.to_string())?;
    let request = requested(stream, &listener)?;
    let accept = || {
        let memory = Memory::<RemoteWrite>::zeroed(largest)?;
        let mr = memory.mr(request.pd())?;
        request
            .accept()
            .queues(queues(largest, depth))
            .private_data(mr.remote().to_bytes())
            .wait()
            .map(|conn| (conn, memory))
    };
    accept().map_err(|error: verbena::Error| error.to_string())
}

/// Waits for the near end's rdma_connect, as long as its TCP connection stands and for
/// [`PATIENCE`] at most.
fn requested(stream: &TcpStream, listener: &Listener) -> Result<Request, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(request) = verbena::block_on(time::timeout(LOOK, listener.request())) {
            return request.map_err(|error| error.to_string());
        }
        if has_left(stream).map_err(|error| said(&error))? {
            return Err(said(&ErrorKind::UnexpectedEof.into()));
        }
        if Instant::now() >= until {
            return Err(said(&ErrorKind::WouldBlock.into()));
        }
    }
}

/// Whether the peer of a TCP connection has closed it.
fn has_left(stream: &TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        peeked => Ok(peeked? == 0),
    }
}

/// Sends each message back, until one says that it is the last.
fn echo(conn: &Connection) -> verbena::Result<()> {
    while let Some(message) = conn.blocking_recv()? {
        let goes_on = message.first() == Some(&GOES_ON);
        conn.send(message).wait().buf()?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// Drops each message, until one says that it is the last.
fn sink(conn: &Connection) -> verbena::Result<()> {
    while let Some(message) = conn.blocking_recv()? {
        if message.first() != Some(&GOES_ON) {
            break;
        }
    }
    Ok(())
}

/// So many bytes come, and so many go back, until what comes says that it is the last.
fn tcp(stream: &mut TcpStream, (there, back): (u64, u64), room: &mut [u8]) -> io::Result<()> {
    let size = |bytes: u64| usize::try_from(bytes).ok().filter(|bytes| (1..=room.len()).contains(bytes));
    let (Some(there), Some(back)) = (size(there), size(back)) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    loop {
        stream.read_exact(&mut room[..there])?;
        let goes_on = room.first() == Some(&GOES_ON);
        stream.write_all(&room[..back])?;
        if !goes_on {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_within_bounds() {
        assert_eq!(allowed(64 << 20, 4), Some((64 << 20, 4)));
        for (largest, depth) in
            [(0, 1), (1, 0), (1, 1025), ((64 << 20) + 1, 1), (64 << 20, 5), (u64::MAX, u64::MAX)]
        {
            assert_eq!(allowed(largest, depth), None, "{largest} {depth}");
        }
        assert_eq!(numbers(to_bytes(7, u64::MAX)), (7, u64::MAX));
    }
}
