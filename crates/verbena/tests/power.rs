//! Persistent memory of simulated hosts: power failures, slow and failing storage, and what ends
//! while a flush is under way. `VERBENA_SEEDS=10000` runs each on so many seeds.
#![cfg(feature = "sim")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use verbena::sim::Host;
use verbena::time::sleep;
use verbena::{Connection, ErrorKind, Memory, Placement, RemoteMemory, RemoteWrite, Result, WcStatus};

const MS: Duration = Duration::from_millis(1);
const LEN: usize = 4096;
/// Words of an entry. The first one's place is the number of entries.
const WORDS: u64 = 8;
const ENTRIES: u64 = 24;
/// A number times this shows whether a word is torn.
const ALL_BYTES: u64 = 0x0101_0101_0101_0101;

/// How far the client is.
#[derive(Default)]
struct Progress {
    begun: Cell<u64>,
    told: Cell<u64>,
}

/// What an entry's words are.
fn words(n: u64) -> [u64; WORDS as usize] {
    std::array::from_fn(|at| n * ALL_BYTES + at as u64)
}

/// What the server finds when it starts.
fn recover(log: &Memory<RemoteWrite>, progress: &Progress) -> Result<()> {
    let number = log.shared().load::<u64>(0)?;
    assert_eq!(number % ALL_BYTES, 0, "a torn word: {number:#x}");
    let number = number / ALL_BYTES;
    assert!(number >= progress.told.get(), "lost: there are {number} of {}", progress.told.get());
    assert!(number <= progress.begun.get(), "from nowhere");
    for n in 1..=number {
        let entry: [u64; WORDS as usize] = log.shared().load((n * WORDS * 8) as usize)?;
        assert_eq!(entry, words(n), "lost: a part of entry {n}");
    }
    Ok(())
}

async fn serve(progress: Rc<Progress>) -> Result<()> {
    let log = Memory::<RemoteWrite>::open("log", LEN)?;
    recover(&log, &progress)?;
    let listener = verbena::listen("0.0.0.0:7000").await?;
    let mut clients = Vec::new();
    loop {
        let request = listener.request().await?;
        let mr = log.mr(request.pd())?;
        // A client may be gone again.
        clients.extend(request.accept().private_data(mr.remote().to_bytes()).await);
    }
}

/// What the client waits for, and in which order.
#[derive(Clone, Copy)]
enum Protocol {
    /// Each part is persistent before the next is written, and the last before any peer is told.
    Right,
    /// The entry is told of when it is written.
    ToldTooEarly,
    /// One flush for the entry and the number: the number may be persistent first.
    OneFlush,
}

async fn append(conn: &Connection, progress: &Progress, protocol: Protocol) -> Result<()> {
    let log = RemoteMemory::from_bytes(conn.private_data())?;
    while progress.told.get() < ENTRIES {
        let n = progress.told.get() + 1;
        progress.begun.set(n);
        let entry = log.slice(n * WORDS * 8..(n + 1) * WORDS * 8)?;
        let bytes: Vec<u8> = words(n).iter().flat_map(|word| word.to_ne_bytes()).collect();
        conn.write_inline(&bytes, entry).await?;
        if matches!(protocol, Protocol::Right) {
            conn.flush(entry, Placement::Persistent).await?;
        }
        conn.atomic_write(log.word(0)?, n * ALL_BYTES).await?;
        if matches!(protocol, Protocol::ToldTooEarly) {
            progress.told.set(n);
        }
        conn.flush(log, Placement::Persistent).await?;
        progress.told.set(n);
    }
    Ok(())
}

/// Appends all entries, connecting again as often as it needs.
async fn client(progress: Rc<Progress>, protocol: Protocol) {
    loop {
        if let Ok(conn) = verbena::connect("right:7000").await
            && append(&conn, &progress, protocol).await.is_ok()
        {
            return;
        }
        sleep(MS).await;
    }
}

async fn run(left: Host, right: Host, protocol: Protocol) {
    let progress = Rc::new(Progress::default());
    let theirs = progress.clone();
    right.boot(move || {
        let serving = serve(theirs.clone());
        async { serving.await.unwrap() }
    });
    left.spawn(client(progress.clone(), protocol)).await;
    right.set_faults(right.faults().power_fail(0.0));
    right.power_fail();
    right.restart();
    sleep(MS).await;
    assert!(progress.told.get() == ENTRIES && right.is_alive());
}

#[verbena::test(
    seeds = 200,
    faults = "loss=1%, reorder=1%, delay=20us..100us, power_fail=1%, power_time=20ms, flush=5us..500us"
)]
async fn what_was_flushed_survives_and_no_word_is_torn(left: Host, right: Host) {
    run(left, right, Protocol::Right).await;
}

#[verbena::test(seeds = 100, faults = "power_fail=1%, flush=5us..500us")]
#[should_panic(expected = "lost")]
async fn who_tells_of_an_entry_before_it_is_flushed_is_found_out(left: Host, right: Host) {
    run(left, right, Protocol::ToldTooEarly).await;
}

#[verbena::test(seeds = 100, faults = "power_fail=1%, flush=5us..500us")]
#[should_panic(expected = "lost")]
async fn who_flushes_an_entry_and_its_number_at_once_is_found_out(left: Host, right: Host) {
    run(left, right, Protocol::OneFlush).await;
}

/// A server with persistent memory, which takes one connection and keeps both, for a minute where
/// the test does not take them.
fn serving(right: &Host) -> (verbena::sim::Task<Result<()>>, Rc<Cell<Option<Ends>>>) {
    let ends = Rc::new(Cell::new(None));
    let theirs = ends.clone();
    let serving = right.spawn(async move {
        let memory = Memory::<RemoteWrite>::open("memory", LEN)?;
        let request = verbena::listen("0.0.0.0:7000").await?.request().await?;
        let mr = memory.mr(request.pd())?;
        let conn = request.accept().private_data(mr.remote().to_bytes()).await?;
        theirs.set(Some(Ends { conn, mr }));
        sleep(60_000 * MS).await;
        Ok(())
    });
    (serving, ends)
}

/// What the server has of a connection.
struct Ends {
    conn: Connection,
    mr: verbena::Mr<RemoteWrite>,
}

/// Writes, flushes, and says the outcome of the flush.
async fn write_and_flush(rounds: u64) -> Result<()> {
    let conn = verbena::connect("right:7000").await?;
    let there = RemoteMemory::from_bytes(conn.private_data())?;
    for n in 0..rounds {
        let word = there.slice(n % 8 * 8..n % 8 * 8 + 8)?;
        conn.write_inline(&n.to_ne_bytes(), word).await?;
        conn.flush(word, Placement::Persistent).await?;
    }
    Ok(())
}

#[verbena::test(seeds = 50, faults = "loss=3%, duplicate=20%, replay=20%, reorder=10%, flush=0us..2ms")]
async fn flushes_that_come_twice_or_late_are_done_once_and_all_are_answered(left: Host, right: Host) {
    let (_serving, ends) = serving(&right);
    left.spawn(write_and_flush(64)).await.unwrap();
    let left_by_power = right.persistent("memory").unwrap();
    assert!((0..8).all(|n| left_by_power[n * 8..n * 8 + 8] == (56 + n as u64).to_ne_bytes()));
    assert!(ends.take().is_some());
}

#[verbena::test(seeds = 10, faults = "flush=5s..20s", limit = "30min")]
async fn a_storage_that_takes_longer_than_all_repetitions_is_waited_for(left: Host, right: Host) {
    let (_serving, _ends) = serving(&right);
    left.spawn(write_and_flush(2)).await.unwrap();
    assert_eq!(right.persistent("memory").unwrap()[8..16], 1_u64.to_ne_bytes());
}

#[verbena::test(seeds = 20, faults = "flush=0us..2ms")]
async fn a_storage_that_fails_is_a_remote_operation_error(left: Host, right: Host) {
    let (_serving, _ends) = serving(&right);
    right.fail_flush(3);
    let failed = left.spawn(write_and_flush(10)).await.unwrap_err();
    assert_eq!(failed.status(), Some(WcStatus::RemoteOperation), "{failed}");
    right.fail_flush(1);
    let own = right.spawn(async {
        let memory = Memory::open("memory", LEN)?;
        assert_eq!(memory.blocking_persist(0..8).unwrap_err().kind(), ErrorKind::BlockingInSimulation);
        memory.persist(0..8).await
    });
    assert_eq!(own.await.unwrap_err().errno(), Some(5), "EIO");
}

#[verbena::test(seeds = 50, faults = "delay=20us..200us, flush=5ms..6ms")]
async fn memory_that_is_deregistered_during_a_flush_is_an_access_error(left: Host, right: Host) {
    let (_serving, ends) = serving(&right);
    let flushing = left.spawn(write_and_flush(1));
    sleep(4 * MS).await;
    let Ends { conn, mr } = ends.take().unwrap();
    mr.revoke().unwrap();
    let failed = flushing.await.unwrap_err();
    assert_eq!(failed.status(), Some(WcStatus::RemoteAccess), "{failed}");
    drop(conn);
}

#[verbena::test(seeds = 50, faults = "delay=20us..200us, flush=5ms..6ms")]
async fn a_connection_that_ends_during_a_flush_ends(left: Host, right: Host) {
    let (_serving, ends) = serving(&right);
    let flushing = left.spawn(write_and_flush(1));
    sleep(4 * MS).await;
    drop(ends.take().unwrap());
    assert!(flushing.await.is_err(), "it was not flushed, and its end was told");
    sleep(20 * MS).await;
    assert!(right.is_alive());
}

async fn accept_all() -> Result<()> {
    let memory = Memory::<RemoteWrite>::open("memory", LEN)?;
    let listener = verbena::listen("0.0.0.0:7000").await?;
    let mut clients = Vec::new();
    loop {
        let request = listener.request().await?;
        let mr = memory.mr(request.pd())?;
        clients.push(request.accept().private_data(mr.remote().to_bytes()).await?);
    }
}

/// Writes and counts until the connection ends.
async fn write_on(count: Rc<Cell<u32>>) -> Result<()> {
    let conn = verbena::connect("right:7000").await?;
    let there = RemoteMemory::from_bytes(conn.private_data())?.slice(..8)?;
    sleep(5 * MS).await;
    loop {
        conn.write_inline(&[1; 8], there).await?;
        count.set(count.get() + 1);
    }
}

#[verbena::test(seeds = 20, faults = "flush=5ms..6ms")]
async fn other_connections_go_on_during_a_flush(left: Host, right: Host) {
    let done = Rc::new(Cell::new(0_u32));
    let serving = right.spawn(accept_all());
    let writing = left.spawn(write_on(done.clone()));
    let before = Rc::new(Cell::new(0));
    let (seen, count) = (before.clone(), done.clone());
    left.spawn(async move {
        let conn = verbena::connect("right:7000").await?;
        let there = RemoteMemory::from_bytes(conn.private_data())?;
        sleep(5 * MS).await;
        seen.set(count.get());
        conn.flush(there, Placement::Persistent).await
    })
    .await
    .unwrap();
    assert!(done.get() > before.get() + 20, "{} writes during a flush", done.get() - before.get());
    right.kill();
    drop((serving, writing));
}

#[verbena::test(seeds = 20)]
async fn a_file_is_its_hosts_own_and_outlives_a_kill(left: Host, right: Host) {
    let write = |n: u64| async move {
        let memory = Memory::<RemoteWrite>::open("memory", 100)?;
        let before = memory.shared().load::<u64>(0)?;
        memory.shared().store(0, n)?;
        Ok::<_, verbena::Error>(before)
    };
    assert_eq!(right.spawn(write(1)).await.unwrap(), 0);
    assert_eq!(left.spawn(write(2)).await.unwrap(), 0);
    right.kill();
    right.restart();
    assert_eq!(right.spawn(write(3)).await.unwrap(), 1, "caches are not lost with a process");
    assert_eq!(right.persistent("memory").unwrap(), [0; 100]);
    assert_eq!(right.persistent("other"), None);
    let other = right.spawn(async { Memory::open("memory", 101).unwrap_err().kind() });
    assert_eq!(other.await, ErrorKind::OutOfRange);
    assert_eq!(Memory::open("memory", 100).unwrap_err().kind(), ErrorKind::WrongState, "of no host");
    let persisted = right.spawn(async {
        let memory = Memory::<RemoteWrite>::open("memory", 100)?;
        memory.shared().store(8, 4_u64)?;
        memory.persist(8..16).await
    });
    persisted.await.unwrap();
    right.power_fail();
    assert!(!right.is_alive());
    right.restart();
    let left_there = right.spawn(async { Memory::open("memory", 100)?.shared().load::<u64>(8) });
    assert_eq!(left_there.await.unwrap(), 4);
}
