//! Two processes of one simulated host: what they do to each other's memory, and what is left when
//! one is killed.
#![cfg(feature = "sim")]

use std::time::Duration;

use verbena::prelude::*;
use verbena::sim::Host;
use verbena::{Connection, Memory, Pool, QueueConfig, RemoteMemory, RemoteWrite, Result};

const LEN: usize = 1 << 16;

fn queues() -> QueueConfig {
    QueueConfig::default().recv_size(LEN).recv_depth(4)
}

/// Takes one connection, tells of its memory, and sends each message back until the connection
/// ends.
async fn echo() -> Result<Vec<u8>> {
    let memory = Memory::<RemoteWrite>::zeroed(LEN)?;
    let request = verbena::listen("0.0.0.0:7000").await?.request().await?;
    let told = memory.mr(request.pd())?.remote().to_bytes().to_vec();
    let conn = request.accept().queues(queues()).private_data(told).await?;
    while let Ok(Some(message)) = conn.recv().await {
        if conn.send(message).await.buf().is_err() {
            break;
        }
    }
    let mut seen = vec![0; LEN];
    memory.shared().copy_to(0, &mut seen)?;
    Ok(seen)
}

async fn connect(to: &str) -> Result<(Connection, RemoteMemory)> {
    let conn = verbena::connect(to).queues(queues()).await?;
    let there = RemoteMemory::from_bytes(conn.private_data())?;
    // What a process lends it has lent by now.
    verbena::time::sleep(Duration::from_millis(1)).await;
    Ok((conn, there))
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|n| (n * 31 + (n >> 8)) as u8).collect()
}

#[verbena::test(seeds = 10)]
async fn a_neighbours_memory_is_written_and_read_at_once_and_messages_come_whole(left: Host, right: Host) {
    let neighbour = left.sibling();
    assert_eq!(
        (neighbour.name(), neighbour.addr(), neighbour.addr_v6()),
        ("left", left.addr(), left.addr_v6())
    );
    let on_right = right.spawn(echo());
    let on_left = neighbour.spawn(echo());
    let clock = left.clone();
    let work = left.spawn(async move {
        for (to, at_once) in [("left:7000", true), ("right:7000", false)] {
            let (conn, there) = connect(to).await?;
            let pool = Pool::new(conn.pd(), LEN, 2)?;
            // The first request of a connection is a packet, whose answer tells that both ends fit.
            conn.write(pool.copy(&bytes())?, there).await.buf()?;
            let begun = clock.elapsed();
            conn.write(pool.copy(&bytes())?, there).await.buf()?;
            let read = conn.read(pool.get()?, there.slice(1_000..5_000)?).await.buf()?;
            assert_eq!(read[..], bytes()[1_000..5_000]);
            assert_eq!(clock.elapsed() == begun, at_once, "{to}");
            conn.send(pool.copy(&bytes())?).await.buf()?;
            let answer = conn.recv().await?.expect("an answer");
            assert!(answer[..] == bytes()[..]);
            drop((read, answer));
            conn.close().await?;
        }
        Ok::<_, verbena::Error>(())
    });
    work.await.unwrap();
    for seen in [on_left.await, on_right.await] {
        assert!(seen.unwrap() == bytes());
    }
}

#[verbena::test(seeds = 40, faults = "unreached=10%")]
async fn a_neighbour_that_is_killed_ends_what_is_under_way_within_a_second(host: Host) {
    let neighbour = host.sibling();
    let echo = neighbour.spawn(echo());
    let clock = host.clone();
    let work = host.spawn(async move {
        let (conn, there) = connect("host:7000").await?;
        let pool = Pool::new(conn.pd(), LEN, 4)?;
        let bytes = bytes();
        loop {
            let sent = conn.send(pool.copy(&bytes)?).await.buf();
            let written = conn.write_inline(&[1; 8], there.slice(..8)?).await;
            let received = conn.recv().await;
            match (sent, written, received) {
                (Ok(_), Ok(_), Ok(Some(answer))) => assert!(answer[..] == bytes[..]),
                _ => return Ok::<_, verbena::Error>(clock.elapsed()),
            }
        }
    });
    verbena::time::sleep(Duration::from_micros(1_700) + Duration::from_nanos(host.seed() * 9_973)).await;
    neighbour.kill();
    let killed_at = host.elapsed();
    let ended_at = work.await.unwrap();
    assert!(
        ended_at >= killed_at && ended_at < killed_at + Duration::from_secs(1),
        "{killed_at:?} {ended_at:?}"
    );
    assert!(echo.outcome().await.is_none(), "it was killed");
    assert!(host.is_alive() && !neighbour.is_alive());
    neighbour.restart();
    assert!(neighbour.is_alive());
}
