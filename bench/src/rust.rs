//! Programs of the Rust crate: what `rdma_bench.c` does by C calls, and a byte stream beside TCP's.
//! Each is a process of its own, as the C programs are: `verbena-bench crate server|client WHAT
//! SIZE`.
//!
//! | WHAT | client's number |
//! |---|---|
//! | `post`, `polled-post` | us of the processor, a SEND with its completion, of the calling thread and of all, as `rdma_bench post` says them, whose server this is for |
//! | `lat`, `polled-lat` | us, half a round trip of SENDs, both sides polling; a message is dropped, and so its receive posted again, behind the next SEND, as in `rdma_bench.c` |
//! | `write-lat` | us, half a round trip of WRITEs, each side polling its memory: the crate's example `latency` |
//! | `write-bw` | GB/s of WRITEs, one at a time |
//! | `tcp-echo`, `rdma-echo` | us, half a round trip of a stream, both sides in tokio's runtime of one thread |
//! | `spin-echo` | the same by `verbena::block_on` |
//! | `tcp-write`, `rdma-write` | GB/s of writes of SIZE bytes, likewise in tokio's runtime |

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use verbena::{
    Connection, Memory, PolledConnection, Prepared, QueueConfig, RdmaListener, RdmaStream, RegBuf,
    RemoteMemory, RemoteWrite,
};

use crate::pin;

const PORT: u16 = 7555;
const DEPTH: usize = 128;
/// As `rdma_bench post`: so many are posted, then it sleeps.
const POSTS: usize = 64;
const SLICE_ROUNDS: usize = 8;
/// Slices, each begun by a line.
pub(crate) const SLICES: usize = 50;
const SLEEP: Duration = Duration::from_millis(1);
const ROUNDS: usize = 9;
const PINGS: usize = 20_000;
/// Of a stream: both sides sleep, which takes far longer than a message does.
const ECHOES: usize = 2_000;
/// As long as a large page, so that it lies in one; bytes of a round of WRITEs.
const LARGE_PAGE: usize = 2 << 20;
const WRITTEN: usize = 256 << 20;
const STREAM_BYTES: usize = 1 << 30;

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// One process of a measurement.
///
/// # Errors
/// What the crate or the sockets say; `InvalidInput` for other arguments than those of the table.
pub(crate) fn run(args: &[String]) -> io::Result<()> {
    let [role, what, size] = args else { return Err(io::ErrorKind::InvalidInput.into()) };
    let is_client = role == "client";
    let size = size.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    pin::to_core(usize::from(!is_client))?;
    let number = match (what.as_str(), is_client) {
        ("post", true) => post(&connect(size)?, size)?,
        ("polled-post", true) => polled_post(&mut polled(connect(size)?)?, size)?,
        ("lat", true) => Some(latency(&connect(size)?, size)?),
        ("lat", false) => answer(&accept(size)?, size)?,
        ("polled-lat", true) => Some(polled_latency(&mut polled(connect(size)?)?, size)?),
        ("polled-lat", false) => polled_answer(&mut polled(accept(size)?)?, size)?,
        ("write-lat", _) => write_latency(is_client, size)?,
        ("write-bw", _) => write_bandwidth(is_client, size)?,
        ("tcp-echo" | "tcp-write", _) => in_tokio(tcp(is_client, what, size))?,
        ("rdma-echo" | "rdma-write", _) => in_tokio(rdma(is_client, what, size))?,
        ("spin-echo", _) => verbena::block_on(rdma(is_client, what, size))?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    if let Some(number) = number {
        println!("{number:.4}");
    }
    Ok(())
}

// ---- messages ----

fn queues(size: usize) -> QueueConfig {
    QueueConfig::default().send_depth(DEPTH as u32).recv_depth(512).recv_size(size).max_send_sge(1)
}

fn connect(size: usize) -> io::Result<Connection> {
    Ok(verbena::connect(address()).queues(queues(size)).wait()?)
}

fn accept(size: usize) -> io::Result<Connection> {
    let listener = verbena::listen(address()).wait()?;
    println!("listening");
    Ok(listener.blocking_request()?.accept().queues(queues(size)).wait()?)
}

fn polled(conn: Connection) -> io::Result<PolledConnection> {
    conn.into_polled().map_err(|_| io::Error::other("a connection with clones"))
}

/// Sums up what the calling thread takes of the processor.
struct Clock {
    begun: Duration,
    sum: Duration,
}

impl Clock {
    /// Sleeps, which does not count.
    fn pause(&mut self) {
        self.sum += pin::time_of_thread().saturating_sub(self.begun);
        std::thread::sleep(SLEEP);
        self.begun = pin::time_of_thread();
    }
}

/// Slices of rounds, each of which posts, pauses and completes what it posted.
fn slices(mut round: impl FnMut(&mut Clock) -> io::Result<()>) -> io::Result<Option<f64>> {
    println!("ready");
    for _ in 0..SLICES {
        if io::stdin().read_line(&mut String::new())? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let all = pin::time_of_all();
        let mut thread = Duration::ZERO;
        for _ in 0..SLICE_ROUNDS {
            let mut clock = Clock { begun: pin::time_of_thread(), sum: Duration::ZERO };
            round(&mut clock)?;
            thread += clock.sum + pin::time_of_thread().saturating_sub(clock.begun);
        }
        let all = pin::time_of_all().saturating_sub(all);
        let [thread, all] =
            [thread, all].map(|time| time.as_secs_f64() * 1e6 / (SLICE_ROUNDS * POSTS) as f64);
        println!("{thread:.6} {all:.6}");
    }
    Ok(None)
}

fn post(conn: &Connection, size: usize) -> io::Result<Option<f64>> {
    let mut buffers = (0..POSTS).map(|_| conn.buffer()?.sized(size)).collect::<verbena::Result<Vec<_>>>()?;
    let mut sendings = Vec::with_capacity(POSTS);
    slices(|clock| {
        for buffer in buffers.drain(..) {
            sendings.push(conn.send(buffer).post()?);
        }
        clock.pause();
        for sending in sendings.drain(..) {
            let (result, buffer) = sending.wait();
            result?;
            buffers.push(buffer);
        }
        Ok(())
    })
}

fn polled_post(conn: &mut PolledConnection, size: usize) -> io::Result<Option<f64>> {
    let mut sends = Vec::new();
    for _ in 0..POSTS {
        let buffer = conn.buffer()?.sized(size)?;
        sends.push(conn.prepare_send(buffer)?);
    }
    slices(|clock| {
        sends.iter_mut().try_for_each(|send| conn.post(send))?;
        clock.pause();
        for send in &mut sends {
            while conn.take(send).transpose()?.is_none() {
                conn.poll();
            }
        }
        Ok(())
    })
}

/// The median of the rounds after the first, in microseconds of half a round trip.
fn median(mut ping: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        let begin = Instant::now();
        (0..PINGS).try_for_each(|_| ping())?;
        rounds.push(begin.elapsed().as_secs_f64() * 1e6 / PINGS as f64 / 2.0);
    }
    rounds.remove(0); // warming up
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

const GONE: io::ErrorKind = io::ErrorKind::ConnectionReset;

fn latency(conn: &Connection, size: usize) -> io::Result<f64> {
    let bytes = vec![0x5a; size];
    let mut answer = None;
    median(|| {
        let sending = conn.send_copy(&bytes)?.post()?;
        drop(answer.take());
        answer = Some(conn.blocking_recv()?.ok_or(GONE)?);
        sending.wait()?;
        Ok(())
    })
}

fn answer(conn: &Connection, size: usize) -> io::Result<Option<f64>> {
    let bytes = vec![0x5a; size];
    while let Some(message) = conn.blocking_recv()? {
        // Its completion frees the buffer, whatever waits for it.
        drop(conn.send_copy(&bytes)?.post()?);
        drop(message);
    }
    Ok(None)
}

/// SENDs that are posted by turns: the completion of the one before is taken while the peer's
/// answer is under way.
struct ByTurns([Prepared<RegBuf>; 2]);

impl ByTurns {
    fn new(conn: &mut PolledConnection, size: usize) -> verbena::Result<Self> {
        let mut one = || {
            let buffer = conn.buffer()?.sized(size)?;
            conn.prepare_send(buffer)
        };
        Ok(Self([one()?, one()?]))
    }
    fn post(&mut self, conn: &mut PolledConnection) -> verbena::Result<()> {
        let Self([now, before]) = self;
        conn.post(now)?;
        while before.is_in_flight() && conn.take(before).transpose()?.is_none() {
            conn.poll();
        }
        self.0.swap(0, 1);
        Ok(())
    }
}

fn polled_latency(conn: &mut PolledConnection, size: usize) -> io::Result<f64> {
    let mut sends = ByTurns::new(conn, size)?;
    let mut answer = None;
    median(|| {
        sends.post(conn)?;
        drop(answer.take());
        answer = Some(conn.spin_recv()?.ok_or(GONE)?);
        Ok(())
    })
}

fn polled_answer(conn: &mut PolledConnection, size: usize) -> io::Result<Option<f64>> {
    let mut sends = ByTurns::new(conn, size)?;
    while let Some(message) = conn.spin_recv()? {
        sends.post(conn)?;
        drop(message);
    }
    Ok(None)
}

/// A connection, both of whose sides have told where the peer may write. Buffers of its pool have
/// `size` bytes.
fn between(
    is_client: bool,
    mailbox: &Memory<RemoteWrite>,
    size: usize,
) -> io::Result<(PolledConnection, RemoteMemory)> {
    let queues = QueueConfig::default().send_depth(8).recv_depth(8).recv_size(size);
    let conn = if is_client {
        let route = verbena::resolve(address()).wait()?;
        let mine = mailbox.mr(route.pd())?.remote();
        route.connect().queues(queues).private_data(mine.to_bytes()).wait()?
    } else {
        let listener = verbena::listen(address()).wait()?;
        println!("listening");
        let request = listener.blocking_request()?;
        let mine = mailbox.mr(request.pd())?.remote();
        request.accept().queues(queues).private_data(mine.to_bytes()).wait()?
    };
    let theirs = RemoteMemory::from_bytes(conn.private_data())?;
    Ok((polled(conn)?, theirs))
}

/// GB/s of WRITEs from memory of the crate to such of the peer, which polls; the median of the
/// rounds after the first.
fn write_bandwidth(is_client: bool, size: usize) -> io::Result<Option<f64>> {
    let mailbox = Memory::<RemoteWrite>::zeroed(size.max(LARGE_PAGE))?;
    let (mut conn, theirs) = between(is_client, &mailbox, size)?;
    if !is_client {
        return Ok(conn.spin_recv()?.and(None));
    }
    let theirs = theirs.slice(..size as u64)?;
    let buffer = conn.buffer()?.sized(size)?;
    let mut write = conn.prepare_write(buffer, theirs)?;
    let writes = WRITTEN / size;
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        let begin = Instant::now();
        (0..writes).try_for_each(|_| conn.spin(&mut write).map(drop))?;
        rounds.push((writes * size) as f64 / begin.elapsed().as_secs_f64() / 1e9);
    }
    rounds.remove(0); // warming up
    rounds.sort_by(f64::total_cmp);
    Ok(Some(rounds[rounds.len() / 2]))
}

/// As `ib_write_lat`: the number of the round there and back, in the last eight bytes of each
/// WRITE.
fn write_latency(is_client: bool, size: usize) -> io::Result<Option<f64>> {
    let mailbox = Memory::<RemoteWrite>::zeroed(size)?;
    let (mut conn, theirs) = between(is_client, &mailbox, size)?;
    let buffer = conn.buffer()?.sized(size)?;
    let mut write = conn.prepare_write(buffer, theirs)?;
    let (last, mut round) = (size - 8, 0_u64);
    let mut say = |conn: &mut PolledConnection, round: u64| {
        if let Some(bytes) = write.bytes_mut() {
            bytes[last..].copy_from_slice(&round.to_ne_bytes());
        }
        conn.spin(&mut write)
    };
    if is_client {
        return median(|| {
            round += 1;
            say(&mut conn, round)?;
            conn.spin_until(mailbox.shared(), last, |said| said == round)?;
            Ok(())
        })
        .map(Some);
    }
    loop {
        round += 1;
        if conn.spin_until(mailbox.shared(), last, |said| said == round).is_err() {
            return Ok(None);
        }
        say(&mut conn, round)?;
    }
}

// ---- bytes ----

fn in_tokio<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(future)
}

async fn tcp(is_client: bool, what: &str, size: usize) -> io::Result<Option<f64>> {
    let stream = if is_client {
        TcpStream::connect(address()).await?
    } else {
        let listener = TcpListener::bind(address()).await?;
        println!("listening");
        listener.accept().await?.0
    };
    stream.set_nodelay(true)?;
    of_stream(stream, is_client, what, size).await
}

async fn rdma(is_client: bool, what: &str, size: usize) -> io::Result<Option<f64>> {
    let stream = if is_client {
        RdmaStream::connect(address()).await?
    } else {
        let mut listener = RdmaListener::bind(address()).await?;
        println!("listening");
        listener.accept().await?
    };
    of_stream(stream, is_client, what, size).await
}

async fn of_stream<S>(mut stream: S, is_client: bool, what: &str, size: usize) -> io::Result<Option<f64>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match (what.ends_with("echo"), is_client) {
        (true, true) => echo(&mut stream, size).await.map(Some),
        (true, false) => {
            let mut bytes = vec![0; size];
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await?;
            }
            stream.shutdown().await?;
            Ok(None)
        }
        (false, true) => pour(&mut stream, size).await.map(Some),
        (false, false) => {
            let (mut bytes, mut total) = (vec![0; 256 << 10], 0);
            loop {
                match stream.read(&mut bytes).await? {
                    0 => break,
                    n => total += n,
                }
            }
            stream.write_all(&(total as u64).to_ne_bytes()).await?;
            stream.shutdown().await?;
            // The other side leaves first, or what it has not read would be lost with us.
            _ = stream.read(&mut bytes).await;
            Ok(None)
        }
    }
}

async fn echo<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, size: usize) -> io::Result<f64> {
    let mut bytes = vec![0x5a; size];
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        let begin = Instant::now();
        for _ in 0..ECHOES {
            stream.write_all(&bytes).await?;
            stream.read_exact(&mut bytes).await?;
        }
        rounds.push(begin.elapsed().as_secs_f64() * 1e6 / ECHOES as f64 / 2.0);
    }
    stream.shutdown().await?;
    if stream.read(&mut bytes).await? > 0 {
        return Err(io::Error::other("bytes behind the end"));
    }
    rounds.remove(0); // warming up
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

async fn pour<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, size: usize) -> io::Result<f64> {
    let bytes = vec![0x5a; size];
    let begin = Instant::now();
    for _ in 0..STREAM_BYTES / size {
        stream.write_all(&bytes).await?;
    }
    stream.shutdown().await?;
    // How much the other side has read, in eight bytes.
    let mut total = [0; 8];
    stream.read_exact(&mut total).await?;
    let took = begin.elapsed();
    match u64::from_ne_bytes(total) as usize == STREAM_BYTES / size * size {
        true => Ok(STREAM_BYTES as f64 / took.as_secs_f64() / 1e9),
        false => Err(io::Error::other("bytes are missing")),
    }
}
