//! Round trips of 64 bytes, both sides polling: by SEND, and by WRITE with an eye on memory. In the
//! loops nothing is allocated.
//!
//! `cargo run --release -p verbena-rdma --example latency` in one terminal, `... --example latency
//! 127.0.0.1:7474` in another.

use std::time::{Duration, Instant};

use verbena::{Memory, PolledConnection, Prepared, RegBuf, RemoteMemory, RemoteWrite, Result, SharedSlice};

const ROUNDS: u64 = 100_000;

/// One message there, one back.
fn by_send(conn: &mut PolledConnection, ping: &mut Prepared<RegBuf>, asks: bool) -> Result<()> {
    for _ in 0..ROUNDS {
        if asks {
            conn.post(ping)?;
        }
        // Dropping the message posts its receive again.
        drop(conn.spin_recv()?);
        if !asks {
            conn.post(ping)?;
        }
        while conn.take(ping).transpose()?.is_none() {
            conn.poll();
        }
    }
    Ok(())
}

/// The number of the round, there and back: the last eight bytes of each WRITE.
fn by_write(
    conn: &mut PolledConnection,
    ping: &mut Prepared<RegBuf>,
    mailbox: SharedSlice<'_>,
    asks: bool,
) -> Result<()> {
    for round in 1..=ROUNDS {
        if !asks {
            conn.spin_until(mailbox, 56, |n| n == round)?;
        }
        if let Some(bytes) = ping.bytes_mut() {
            bytes[56..].copy_from_slice(&round.to_ne_bytes());
        }
        conn.spin(ping)?;
        if asks {
            conn.spin_until(mailbox, 56, |n| n == round)?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mailbox = Memory::<RemoteWrite>::zeroed(64)?;
    let server = std::env::args().nth(1);
    // Each tells the other where its mailbox is.
    let conn = match &server {
        Some(server) => {
            let route = verbena::resolve(server.as_str()).wait()?;
            let mine = mailbox.mr(route.pd())?.remote();
            route.connect().private_data(mine.to_bytes()).wait()?
        }
        None => {
            let request = verbena::listen("0.0.0.0:7474").wait()?.blocking_request()?;
            let mine = mailbox.mr(request.pd())?.remote();
            request.accept().private_data(mine.to_bytes()).wait()?
        }
    };
    let theirs = RemoteMemory::from_bytes(conn.private_data())?;
    let Ok(mut conn) = conn.into_polled() else { unreachable!("there are no clones") };
    let buffer = conn.buffer()?.sized(64)?;
    let mut send = conn.prepare_send(buffer)?;
    let buffer = conn.buffer()?.sized(64)?;
    let mut write = conn.prepare_write(buffer, theirs)?;
    let report = |what: &str, took: Duration| {
        println!("{what}: {:.2} us, half a round trip", took.as_secs_f64() * 1e6 / ROUNDS as f64 / 2.0);
    };
    let begin = Instant::now();
    by_send(&mut conn, &mut send, server.is_some())?;
    report("SEND", begin.elapsed());
    let begin = Instant::now();
    by_write(&mut conn, &mut write, mailbox.shared(), server.is_some())?;
    report("WRITE", begin.elapsed());
    Ok(())
}
