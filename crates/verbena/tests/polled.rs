//! A connection for one polling thread, over software on 127.0.0.1.

use std::thread;
use std::time::Duration;

use verbena::{
    Connection, ErrorKind, IntoPolledError, Memory, PolledConnection, QueueConfig, RemoteMemory, RemoteWrite,
    Result, WcStatus, block_on,
};

/// Both ends; each has told the other of its memory.
fn connected(ours: &Memory<RemoteWrite>, theirs: &Memory<RemoteWrite>) -> (Connection, Connection) {
    let listener = verbena::listen("127.0.0.1:0").wait().unwrap();
    let (to, theirs) = (listener.local_addr(), theirs.clone());
    let passive = thread::spawn(move || {
        let request = listener.blocking_request().unwrap();
        let told = theirs.mr(request.pd()).unwrap().remote().to_bytes();
        request.accept().private_data(told).wait().unwrap()
    });
    let route = verbena::resolve(to).wait().unwrap();
    let told = ours.mr(route.pd()).unwrap().remote().to_bytes();
    let active = route.connect().private_data(told).wait().unwrap();
    (active, passive.join().unwrap())
}

fn memory() -> Memory<RemoteWrite> {
    Memory::zeroed(64).unwrap()
}

fn polled(conn: Connection) -> PolledConnection {
    conn.into_polled().expect("no clones")
}

#[test]
fn messages_and_writes_go_back_and_forth_by_polling_alone() {
    let (ours, theirs) = (memory(), memory());
    let (active, passive) = connected(&ours, &theirs);
    let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
    let back = RemoteMemory::from_bytes(passive.private_data()).unwrap();
    let echo = thread::spawn(move || {
        let mut conn = polled(passive);
        let buffer = conn.buffer().unwrap().sized(8).unwrap();
        let mut write = conn.prepare_write(buffer, back).unwrap();
        for n in 1..=300_u64 {
            let message = conn.spin_recv().unwrap().unwrap();
            assert_eq!(message[..], n.to_ne_bytes());
            let mut sending = conn.send(message).unwrap();
            _ = loop {
                conn.poll();
                match sending.try_take() {
                    Ok((result, _)) => break result,
                    Err(still) => sending = still,
                }
            }
            .unwrap();
            conn.spin_until(theirs.shared(), 0, |seen| seen == n).unwrap();
            write.bytes_mut().unwrap().copy_from_slice(&n.to_ne_bytes());
            conn.spin(&mut write).unwrap();
        }
        assert!(conn.spin_recv().unwrap().is_none());
        assert_eq!(conn.try_recv().unwrap_err().kind(), ErrorKind::Disconnected);
        let error = conn.spin_until(theirs.shared(), 0, |_| false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected);
        assert_eq!(conn.spin(&mut write).unwrap_err().status(), Some(WcStatus::Flushed));
    });
    let mut conn = polled(active);
    let (first, second) =
        (conn.buffer().unwrap().sized(8).unwrap(), conn.buffer().unwrap().sized(8).unwrap());
    let (mut send, mut write) =
        (conn.prepare_send(first).unwrap(), conn.prepare_write(second, remote).unwrap());
    for n in 1..=300_u64 {
        send.bytes_mut().unwrap().copy_from_slice(&n.to_ne_bytes());
        conn.post(&mut send).unwrap();
        assert!(send.is_in_flight() && send.bytes_mut().is_none());
        assert_eq!(conn.post(&mut send).unwrap_err().kind(), ErrorKind::WrongState);
        assert_eq!(conn.spin_recv().unwrap().unwrap()[..], n.to_ne_bytes());
        while conn.take(&mut send).transpose().unwrap().is_none() {
            conn.poll();
        }
        assert!(conn.take(&mut send).is_none());
        write.bytes_mut().unwrap().copy_from_slice(&n.to_ne_bytes());
        conn.spin(&mut write).unwrap();
        conn.spin_until(ours.shared(), 0, |seen| seen == n).unwrap();
    }
    drop(conn);
    echo.join().unwrap();
    assert_eq!(send.into_buf().unwrap().len(), 8);
}

#[test]
fn a_prepared_operation_belongs_to_one_connection_and_its_buffer_outlives_it() {
    let (ours, theirs) = (memory(), memory());
    let (active, passive) = connected(&ours, &theirs);
    let clone = active.clone();
    let IntoPolledError(active) = active.into_polled().unwrap_err();
    drop(clone);
    let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
    let (mut one, mut other) = (polled(active), polled(passive));
    let buffer = one.buffer().unwrap().sized(64).unwrap();
    let beyond = one.prepare_write(buffer, remote.slice(..8).unwrap()).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::OutOfRange);
    let depth = QueueConfig::default().send_depth;
    let mut posted = Vec::new();
    for _ in 0..depth {
        let buffer = one.buffer().unwrap().sized(64).unwrap();
        let mut write = one.prepare_write(buffer, remote).unwrap();
        assert_eq!(other.post(&mut write).unwrap_err().kind(), ErrorKind::WrongState);
        one.post(&mut write).unwrap();
        posted.push(write);
    }
    // Their buffers are the queue pair's until they are complete, and the pool's again then.
    drop(posted);
    let begun = std::time::Instant::now();
    while (0..depth).map(|_| one.buffer()).collect::<Result<Vec<_>>>().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        one.poll();
    }
}

#[test]
fn a_wait_begun_before_is_over_when_the_thread_polls() {
    let (active, passive) = connected(&memory(), &memory());
    let qp = active.queue_pair().clone();
    let waiting = thread::spawn(move || block_on(qp.recv()).unwrap().unwrap().to_vec());
    let mut conn = polled(active);
    passive.send_inline(b"for the other handle").wait().unwrap();
    while !waiting.is_finished() {
        conn.poll();
    }
    assert_eq!(waiting.join().unwrap(), b"for the other handle");
}

#[cfg(feature = "sim")]
#[verbena::test(seeds = 3)]
async fn nothing_spins_on_a_simulated_host(left: verbena::sim::Host, right: verbena::sim::Host) {
    right.spawn(async {
        let conn = verbena::listen("0.0.0.0:7000").await.unwrap().accept().await.unwrap();
        conn.send_inline(b"hello").await.unwrap();
        conn.ended().await;
    });
    left.spawn(async {
        let mut conn = polled(verbena::connect("right:7000").await.unwrap());
        assert_eq!(conn.spin_recv().unwrap_err().kind(), ErrorKind::BlockingInSimulation);
        let message = loop {
            verbena::time::sleep(Duration::from_millis(1)).await;
            conn.poll();
            if let Some(message) = conn.try_recv().unwrap() {
                break message;
            }
        };
        assert_eq!(message[..], *b"hello");
    })
    .await;
}
