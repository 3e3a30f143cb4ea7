//! Files that a server maps for its peers: what was flushed is there, whatever becomes of the
//! server. Real files, real processes, SIGKILL.
#![cfg(feature = "software")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use verbena::{ErrorKind, Memory, Placement, RemoteMemory, RemoteWrite, Result, block_on};

const LEN: usize = 64 << 10;
const ENTRY: usize = 64;

/// A place of this test's own, on a disk.
fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    _ = std::fs::remove_file(&path);
    path
}

/// The server: run by the test below, in a process of its own.
#[test]
#[ignore = "run by another test"]
fn serve() {
    let path = std::env::var_os("VERBENA_TEST_FILE").expect("a file");
    let served: Result<()> = block_on(async {
        let log = Memory::<RemoteWrite>::open(path, LEN)?;
        let listener = verbena::listen("127.0.0.1:0").await?;
        println!("\nlistening on {}", listener.local_addr());
        let mut clients = Vec::new();
        loop {
            let request = listener.request().await?;
            let mr = log.mr(request.pd())?;
            clients.push(request.accept().private_data(mr.remote().to_bytes()).await?);
        }
    });
    served.unwrap();
}

/// A server, and where it listens.
fn start(path: &Path) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["serve", "--exact", "--ignored", "--nocapture"]).env("VERBENA_TEST_FILE", path);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(std::io::Result::ok);
    let address = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
    (server, address.expect("it listens"))
}

fn entry(n: usize) -> [u8; ENTRY] {
    std::array::from_fn(|at| (n * 31 + at) as u8)
}

/// Writes and flushes entries from `next` on, until the server is gone, for which `enough` is
/// called after so many; how many were flushed.
fn append(address: &str, next: usize, few: usize, enough: impl Fn()) -> usize {
    let conn = verbena::connect(address).wait().unwrap();
    let log = RemoteMemory::from_bytes(conn.private_data()).unwrap();
    let pool = verbena::Pool::new(conn.pd(), ENTRY, 1).unwrap();
    let mut flushed = next;
    while (flushed + 1) * ENTRY <= LEN {
        let at = (flushed * ENTRY) as u64;
        let to = log.slice(at..at + ENTRY as u64).unwrap();
        let mut buf = pool.get().unwrap();
        buf.set_len(ENTRY).unwrap();
        buf.copy_from_slice(&entry(flushed));
        let written = conn.write(buf, to).wait().0;
        if written.and_then(|_| conn.flush(to, Placement::Persistent).wait()).is_err() {
            break;
        }
        flushed += 1;
        if flushed == next + few {
            enough();
        }
    }
    flushed
}

#[test]
fn what_was_flushed_is_in_the_file_when_the_server_is_killed() {
    if !support::is_software() {
        return;
    }
    let path = path("killed");
    let mut flushed = 0;
    for round in 0..6 {
        let (mut server, address) = start(&path);
        let (enough, killed) = channel();
        // Killed by another thread, while more is written.
        let killer = thread::spawn(move || {
            let asked = killed.recv_timeout(Duration::from_secs(60));
            server.kill().unwrap();
            assert!(!server.wait().unwrap().success());
            asked
        });
        let before = flushed;
        flushed = append(&address, flushed, 1 + 5 * round, || enough.send(()).unwrap());
        killer.join().unwrap().expect("so many were flushed");
        assert!(flushed > before);
        let file = std::fs::read(&path).unwrap();
        for n in 0..flushed {
            assert_eq!(file[n * ENTRY..(n + 1) * ENTRY], entry(n), "entry {n} of {flushed}, round {round}");
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_is_opened_by_its_name_made_whole_and_persisted_by_its_own_process() {
    let path = path("opened");
    for len in [0, usize::MAX] {
        assert!(Memory::open(&path, len).is_err());
        assert!(!path.exists(), "{len}");
    }
    let memory = Memory::open(&path, 5000).unwrap();
    assert_eq!((memory.len(), std::fs::read(&path).unwrap()), (5000, vec![0; 5000]));
    memory.shared().copy_from(4090, b"across two pages").unwrap();
    memory.blocking_persist(4090..4106).unwrap();
    block_on(memory.persist(0..5000)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[4090..4106], *b"across two pages");
    assert_eq!(memory.blocking_persist(0..5001).unwrap_err().kind(), ErrorKind::OutOfRange);
    assert_eq!(Memory::open(&path, 4096).unwrap_err().kind(), ErrorKind::OutOfRange, "another length");
    let again = Memory::open(&path, 5000).unwrap();
    assert_eq!(again.shared().load::<[u8; 16]>(4090).unwrap(), *b"across two pages");
    let beside: Vec<_> = path.parent().unwrap().read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let left = beside.iter().filter(|file| file.to_string_lossy().starts_with(&name)).count();
    assert_eq!(left, 1, "nothing unfinished is left");
    let anonymous = Memory::<RemoteWrite>::zeroed(64).unwrap();
    assert_eq!(anonymous.blocking_persist(0..64).unwrap_err().kind(), ErrorKind::WrongState);
    let nowhere = Memory::open(path.join("below"), 64).unwrap_err();
    assert_eq!(nowhere.errno(), Some(libc::ENOTDIR));
    drop(File::open(&path));
    std::fs::remove_file(path).unwrap();
}
