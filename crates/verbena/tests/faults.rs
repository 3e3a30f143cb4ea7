//! Faults at a moment of a test's choice: queue pairs that fail, requests that are refused.
#![cfg(feature = "sim")]

use std::time::Duration;

use verbena::prelude::*;
use verbena::sim::Host;
use verbena::{Connection, ErrorKind, Pool, RejectReason, Result, WcStatus};

async fn echo() -> Result<()> {
    let listener = verbena::listen("0.0.0.0:7000").await?;
    loop {
        let conn = listener.accept().await?;
        verbena::spawn(async move {
            while let Ok(Some(message)) = conn.recv().await {
                if conn.send(message).await.buf().is_err() {
                    break;
                }
            }
        })?;
    }
}

async fn said(conn: &Connection) -> Result<()> {
    conn.send_inline(b"hello").await?;
    assert_eq!(&conn.recv().await?.expect("a message")[..], b"hello");
    Ok(())
}

#[verbena::test(seeds = 50, faults = "delay=20us..100us, loss=1%")]
async fn queue_pairs_that_fail_flush_what_is_under_way_and_peers_are_told(left: Host, right: Host) {
    right.spawn(echo());
    let (failing, clone) = (left.clone(), right.clone());
    let work = left.spawn(async move {
        for host in [failing, clone] {
            let conn = verbena::connect("right:7000").await?;
            said(&conn).await?;
            let buf = Pool::new(conn.pd(), 64, 1)?.copy(b"under way")?;
            let sending = conn.send(buf).post()?;
            host.fail_queue_pairs();
            let (sent, buf) = sending.await;
            assert_eq!(&buf[..], b"under way", "the buffer comes back");
            match sent {
                // Where the peer's failed this side may have been served before, or is refused.
                Ok(_) => assert_eq!(host.name(), "right"),
                Err(e) => assert!(matches!(
                    e.status(),
                    Some(WcStatus::Flushed | WcStatus::RetryExceeded | WcStatus::RemoteOperation)
                )),
            }
            let why = conn.ended().await;
            assert!(matches!(why.kind(), ErrorKind::Disconnected | ErrorKind::Completion(_)), "{why}");
            assert!(conn.send_inline(b"no more").await.is_err());
            // A new one works.
            said(&verbena::connect("right:7000").await?).await?;
        }
        Ok(())
    });
    let done: Result<()> = work.await;
    done.unwrap();
}

#[verbena::test(seeds = 50, faults = "delay=20us..100us, loss=1%")]
async fn the_requests_that_a_rule_names_are_refused_for_its_reason(left: Host, right: Host) {
    right.spawn(echo());
    verbena::time::sleep(Duration::from_millis(1)).await;
    right.refuse_request(2, RejectReason::NoResources);
    right.refuse_request(3, RejectReason::StaleConnection);
    right.refuse_request(5, RejectReason::Other(32));
    // A name would stand for two addresses, which are tried in turn.
    let to = std::net::SocketAddr::new(right.addr(), 7000);
    let work = left.spawn(async move {
        let mut seen = Vec::new();
        for _ in 0..6 {
            let connected = verbena::connect(to).await;
            seen.push(connected.as_ref().err().and_then(|e| e.rejection()).map(|rejection| rejection.reason));
            if let Ok(conn) = connected {
                said(&conn).await.unwrap();
            }
        }
        seen
    });
    let expected = [
        None,
        Some(RejectReason::NoResources),
        Some(RejectReason::StaleConnection),
        None,
        Some(RejectReason::Other(32)),
        None,
    ];
    assert_eq!(work.await, expected);
}

#[verbena::test(seeds = 2)]
async fn rules_for_a_host_that_is_dead_are_none(left: Host, right: Host) {
    right.kill();
    right.fail_queue_pairs();
    right.refuse_request(1, RejectReason::Consumer);
    right.restart();
    right.spawn(echo());
    let work = left.spawn(async { said(&verbena::connect("right:7000").await?).await });
    work.await.unwrap();
}
