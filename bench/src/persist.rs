//! librpma: ours beside Debian's on the same stack, beside what the file system does by itself, and
//! beside a TCP request that does the same.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::beside::{by_turns, figure};
use crate::pin;
use crate::rdma::{Program, measured};
use crate::report::Figure;

const TURNS: usize = 3;
const BLOCK: usize = 4096;
/// Blocks of the file; each operation takes the next one.
const BLOCKS: u64 = 16;
/// How long one TCP measurement lasts.
const LASTS: Duration = Duration::from_secs(1);

/// What a TCP request asks for.
#[derive(Clone, Copy, PartialEq)]
enum Request {
    Write,
    Read,
}

/// An address of this machine's that is not 127.0.0.1: rdma_bind_addr(3) gives that no device, and
/// Debian's library wants one. `None` on a machine that has no other.
fn address() -> Option<IpAddr> {
    let towards = |socket: UdpSocket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    };
    UdpSocket::bind("0.0.0.0:0").and_then(towards).ok().map(|found| found.ip())
}

/// Answers requests for blocks of a file until the client is gone.
fn serve_tcp(listener: &TcpListener, path: &Path, what: Request) -> io::Result<()> {
    pin::to_core(1)?;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.set_len(BLOCKS * BLOCK as u64)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut at, mut block) = ([0; 8], vec![0; BLOCK]);
    while stream.read_exact(&mut at).is_ok() {
        let at = u64::from_le_bytes(at) % BLOCKS * BLOCK as u64;
        if what == Request::Write {
            stream.read_exact(&mut block)?;
            file.write_all_at(&block, at)?;
            file.sync_data()?;
            stream.write_all(&[1])?;
        } else {
            file.read_exact_at(&mut block, at)?;
            stream.write_all(&block)?;
        }
    }
    Ok(())
}

/// Microseconds of a request, the median.
fn by_tcp(path: &Path, what: Request) -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve_tcp(&listener, path, what));
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        let mut block = vec![0; 8 + BLOCK];
        let mut took = Vec::new();
        let begin = Instant::now();
        for n in 0.. {
            let before = Instant::now();
            block[..8].copy_from_slice(&u64::to_le_bytes(n));
            if what == Request::Write {
                stream.write_all(&block)?;
                stream.read_exact(&mut block[..1])?;
            } else {
                stream.write_all(&block[..8])?;
                stream.read_exact(&mut block[8..])?;
            }
            took.push(before.elapsed().as_secs_f64() * 1e6);
            if begin.elapsed() > LASTS {
                break;
            }
        }
        drop(stream);
        server.join().map_err(|_| io::Error::other("the server of TCP requests panicked"))??;
        took.sort_by(f64::total_cmp);
        Ok(took[took.len() / 2])
    })
}

/// The lines of the table, none on a machine with no address but 127.0.0.1; files are made in these
/// two folders, the second one in memory.
///
/// # Errors
/// When a process fails.
pub(crate) fn figures(program: &Program, disk: &Path, memory: &Path) -> io::Result<Vec<Figure>> {
    let Some(address) = address().map(|address| address.to_string()) else {
        eprintln!("left out: librpma (no address but 127.0.0.1)");
        return Ok(Vec::new());
    };
    let name = format!("verbena-rpma-bench-{}", std::process::id());
    let (on_disk, in_memory) = (disk.join(&name), memory.join(&name));
    let rpma = |options: &[&str], what: &str, file: &Path| {
        let file = file.to_string_lossy();
        let server = program.start_with(options, &["server", what, &address, &file])?;
        measured(server, || program.start_with(options, &["client", what, &address, &file]))
    };
    let debians: &[&str] = &["--system-librpma"];
    let local = |file: &Path| program.start_with(&[], &["local", &file.to_string_lossy()])?.number();
    let mut figures = Vec::new();
    let mut beside = |what: &str, ours: f64, other: f64, which: &'static str| {
        figures.push(figure(what.to_owned(), "us", ours, other, which));
    };

    let what = "4 KiB written and flushed to persistence, a file on a disk";
    let [ours, alone, tcp] = by_turns(TURNS, |at| match at {
        0 => rpma(&[], "persist", &on_disk),
        1 => local(&on_disk),
        _ => by_tcp(&on_disk, Request::Write),
    })?;
    beside(what, ours, alone, "pwrite and fdatasync, with no process in between");
    beside(what, ours, tcp, "a TCP request whose server does these two");
    let compared = [
        ("persist", "4 KiB written and flushed to persistence, a file in memory (tmpfs)", &in_memory),
        ("visible", "4 KiB written and flushed to visibility", &in_memory),
        ("read", "4 KiB read", &in_memory),
        ("gpspm", "4 KiB written, and made persistent by request and answer, a file in memory", &in_memory),
        ("gpspm", "the same, a file on a disk", &on_disk),
    ];
    for (mode, what, file) in compared {
        let [ours, theirs] = by_turns(TURNS, |at| rpma([&[], debians][at], mode, file))?;
        beside(what, ours, theirs, "Debian's librpma on Verbena");
        if mode == "read" {
            beside(what, ours, by_tcp(file, Request::Read)?, "a TCP request for 4 KiB of the file");
        }
    }
    for file in [on_disk, in_memory] {
        std::fs::remove_file(file)?;
    }
    Ok(figures)
}
