//! The measurements: what a process does, and how long it takes.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use verbena::prelude::*;
use verbena::{Connection, InFlight, Memory, Op, Part, RegBuf, RemoteMemory, RemoteWrite, op::kind};

use super::far_end::{ECHO, GOES_ON, HELLO, SINK, TCP, queues, to_bytes};
use super::report::{Figures, Latency};

/// How long the far end may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Operations before a measurement begins.
const WARM_UP: usize = 20;
/// Times that are kept, at most.
const MOST_TIMES: usize = 1 << 20;

type WritablePart = Part<RemoteWrite>;

/// The near end of a measurement.
pub(super) struct Client {
    stream: TcpStream,
    conn: Connection,
    theirs: RemoteMemory,
    ours: Memory<RemoteWrite>,
    depth: usize,
    /// What TCP sends and receives.
    room: Vec<u8>,
}

fn of_rdma(error: verbena::Error) -> String {
    error.to_string()
}

fn of_tcp(error: io::Error) -> String {
    format!("the other end: {error}")
}

/// Whether a measurement goes on, and the times that it took so far.
struct Clock {
    began: Instant,
    limit: Duration,
    skip: usize,
    times: Vec<Duration>,
}

impl Clock {
    fn new(limit: Duration) -> Self {
        Self { began: Instant::now(), limit, skip: WARM_UP, times: Vec::new() }
    }

    fn took(&mut self, time: Duration) {
        match self.skip {
            0 if self.times.len() < MOST_TIMES => self.times.push(time),
            0 => {}
            _ => self.skip -= 1,
        }
    }

    /// At least one operation is measured.
    fn goes_on(&self) -> bool {
        self.times.is_empty() || self.began.elapsed() < self.limit
    }

    fn latency(mut self) -> Latency {
        Latency::of(&mut self.times)
    }
}

impl Client {
    /// Connects, for messages of at most `largest` bytes.
    ///
    /// # Errors
    /// A message.
    pub(super) fn connect(peer: SocketAddr, largest: usize, depth: u32) -> Result<Self, String> {
        let unreachable = |error: io::Error| format!("{peer}: {error}");
        let mut stream = TcpStream::connect_timeout(&peer, PATIENCE).map_err(unreachable)?;
        let asked = [&HELLO[..], &to_bytes(largest as u64, depth.into())].concat();
        let mut port = [0; 2];
        let mut greet = || {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&asked)?;
            stream.read_exact(&mut port)?;
            stream.set_read_timeout(None)
        };
        greet().map_err(unreachable)?;
        let to = SocketAddr::new(peer.ip(), u16::from_le_bytes(port));
        if to.port() == 0 {
            return Err(format!("{}: Verbena does not listen at this address there", peer.ip()));
        }
        let connect = || {
            verbena::Provider::software()?;
            let conn = verbena::connect(to).queues(queues(largest, depth)).wait()?;
            let theirs = RemoteMemory::from_bytes(conn.private_data())?;
            let ours = Memory::<RemoteWrite>::zeroed(largest)?;
            Ok((conn, theirs, ours))
        };
        let (conn, theirs, ours) = connect().map_err(of_rdma)?;
        Ok(Self { stream, conn, theirs, ours, depth: depth as usize, room: vec![0; largest] })
    }

    /// Tells the far end that this is all.
    pub(super) fn leave(self) {
        drop(self.stream);
        // It may be faster.
        let _ = self.conn.blocking_close();
    }

    fn command(&mut self, kind: u8, first: u64, second: u64) -> Result<(), String> {
        let command = [&[kind][..], &to_bytes(first, second)].concat();
        self.stream.write_all(&command).map_err(of_tcp)
    }

    fn message(&self, bytes: usize, first: u8) -> verbena::Result<RegBuf> {
        let mut message = self.conn.buffer()?;
        message.set_len(bytes)?;
        message.iter_mut().take(1).for_each(|byte| *byte = first);
        Ok(message)
    }

    /// SENDs there and back: half of that.
    pub(super) fn send_latency(&mut self, bytes: usize, limit: Duration) -> Result<Latency, String> {
        self.command(ECHO, 0, 0)?;
        let measure = || {
            let (mut clock, mut message) = (Clock::new(limit), self.message(bytes, GOES_ON)?);
            while clock.goes_on() {
                let begin = Instant::now();
                message = self.conn.send(message).wait().buf()?;
                self.conn.blocking_recv()?;
                clock.took(begin.elapsed());
            }
            drop(message);
            self.conn.send(self.message(bytes, 0)?).wait().buf()?;
            self.conn.blocking_recv()?;
            Ok(clock.latency().halved())
        };
        measure().map_err(of_rdma)
    }

    /// SENDs, several under way: 10^9 bytes in a second.
    pub(super) fn send_rate(&mut self, bytes: usize, limit: Duration) -> Result<f64, String> {
        self.command(SINK, 0, 0)?;
        let measure = || {
            let (begin, mut done) = (Instant::now(), 0);
            let mut under_way: VecDeque<InFlight<kind::Send, RegBuf>> = VecDeque::new();
            let mut free = Vec::new();
            while begin.elapsed() < limit || done == 0 {
                while under_way.len() < self.depth {
                    let message = free.pop().map_or_else(|| self.message(bytes, GOES_ON), Ok)?;
                    under_way.push_back(self.conn.send(message).post()?);
                }
                if let Some(first) = under_way.pop_front() {
                    free.push(first.wait().buf()?);
                    done += 1;
                }
            }
            for message in under_way {
                free.push(message.wait().buf()?);
                done += 1;
            }
            let took = begin.elapsed();
            drop(free);
            self.conn.send(self.message(bytes, 0)?).wait().buf()?;
            Ok(rate(done, bytes, took))
        };
        let measured = measure().map_err(of_rdma)?;
        self.stream.read_exact(&mut [0]).map_err(of_tcp)?;
        Ok(measured)
    }

    /// WRITEs, one after the other, each until it is complete.
    pub(super) fn write_latency(&mut self, bytes: usize, limit: Duration) -> Result<Latency, String> {
        let to = self.theirs;
        self.one_by_one(bytes, limit, |part| Ok(self.conn.write(part, to))).map_err(of_rdma)
    }

    /// WRITEs, several under way.
    pub(super) fn write_rate(&mut self, bytes: usize, limit: Duration) -> Result<f64, String> {
        let to = self.theirs;
        self.stream_of(bytes, limit, |part| Ok(self.conn.write(part, to))).map_err(of_rdma)
    }

    /// READs, one after the other, each until it is complete.
    pub(super) fn read_latency(&mut self, bytes: usize, limit: Duration) -> Result<Latency, String> {
        let from = |client: &Self| client.theirs.slice(..bytes as u64);
        self.one_by_one(bytes, limit, |part| Ok(self.conn.read(part, from(self)?))).map_err(of_rdma)
    }

    /// READs, several under way.
    pub(super) fn read_rate(&mut self, bytes: usize, limit: Duration) -> Result<f64, String> {
        let from = |client: &Self| client.theirs.slice(..bytes as u64);
        self.stream_of(bytes, limit, |part| Ok(self.conn.read(part, from(self)?))).map_err(of_rdma)
    }

    fn one_by_one<'q, K>(
        &self,
        bytes: usize,
        limit: Duration,
        op: impl Fn(WritablePart) -> verbena::Result<Op<'q, K, WritablePart>>,
    ) -> verbena::Result<Latency>
    where
        K: kind::Kind<WritablePart, Output = (verbena::Result<verbena::Completion>, WritablePart)> + 'q,
    {
        let (mut clock, mut part) = (Clock::new(limit), self.ours.part(0..bytes)?);
        while clock.goes_on() {
            let begin = Instant::now();
            part = op(part)?.wait().buf()?;
            clock.took(begin.elapsed());
        }
        Ok(clock.latency())
    }

    fn stream_of<'q, K>(
        &self,
        bytes: usize,
        limit: Duration,
        op: impl Fn(WritablePart) -> verbena::Result<Op<'q, K, WritablePart>>,
    ) -> verbena::Result<f64>
    where
        K: kind::Kind<WritablePart, Output = (verbena::Result<verbena::Completion>, WritablePart)> + 'q,
    {
        let (begin, mut done) = (Instant::now(), 0);
        let mut under_way: VecDeque<InFlight<K, WritablePart>> = VecDeque::new();
        while begin.elapsed() < limit || !under_way.is_empty() || done == 0 {
            while under_way.len() < self.depth && (begin.elapsed() < limit || done == 0) {
                under_way.push_back(op(self.ours.part(0..bytes)?)?.post()?);
            }
            if let Some(first) = under_way.pop_front() {
                first.wait().buf()?;
                done += 1;
            }
        }
        Ok(rate(done, bytes, begin.elapsed()))
    }

    /// TCP: so many bytes there and so many back, one after the other for latency, and several
    /// under way for bandwidth, which is that of the larger number.
    pub(super) fn tcp(
        &mut self,
        latency: (usize, usize),
        bandwidth: (usize, usize),
        limit: Duration,
    ) -> Result<Figures, String> {
        let mut clock = Clock::new(limit);
        self.exchange(latency, 1, |took| {
            clock.took(took);
            clock.goes_on()
        })?;
        let (begin, mut done) = (Instant::now(), 0);
        self.exchange(bandwidth, self.depth, |_| {
            done += 1;
            begin.elapsed() < limit
        })?;
        let bytes = bandwidth.0.max(bandwidth.1);
        Ok(Figures::new(clock.latency(), rate(done, bytes, begin.elapsed())))
    }

    /// Exchanges messages, `depth` under way, until `goes_on` says no to the time that the last one
    /// took, as far as one alone is under way.
    fn exchange(
        &mut self,
        (there, back): (usize, usize),
        depth: usize,
        mut goes_on: impl FnMut(Duration) -> bool,
    ) -> Result<(), String> {
        self.command(TCP, there as u64, back as u64)?;
        let Self { stream, room, .. } = self;
        let send = |stream: &mut TcpStream, first: u8, room: &mut [u8]| {
            room[0] = first;
            stream.write_all(&room[..there]).map_err(of_tcp)
        };
        let (mut under_way, mut is_over) = (0, false);
        while !is_over || under_way > 0 {
            let begin = Instant::now();
            while !is_over && under_way < depth {
                send(stream, GOES_ON, room)?;
                under_way += 1;
            }
            stream.read_exact(&mut room[..back]).map_err(of_tcp)?;
            under_way -= 1;
            is_over |= !goes_on(begin.elapsed());
        }
        send(stream, 0, room)?;
        stream.read_exact(&mut room[..back]).map_err(of_tcp)
    }
}

/// 10^9 bytes in a second.
fn rate(done: usize, bytes: usize, took: Duration) -> f64 {
    done as f64 * bytes as f64 / took.as_secs_f64().max(1e-9) / 1e9
}
