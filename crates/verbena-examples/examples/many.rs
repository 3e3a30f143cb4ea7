//! Thousands of connections on one thread, which share a receive queue and a completion queue a
//! device: quiet ones pin no memory of their own.
//!
//! `cargo run -p verbena-examples --example many` in one terminal, `... --example many
//! 127.0.0.1:7475 1000` in another.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use tokio::task::JoinSet;
use verbena::prelude::*;
use verbena::{Connection, Cq, Pd, QueueConfig, Result, Srq};

/// Receives that all connections of a device share, and bytes of each.
const RECEIVES: u32 = 4096;
const SIZE: usize = 256;
/// Messages of each client.
const ROUNDS: usize = 10;

/// What the connections of each device share.
#[derive(Default)]
struct Shared(HashMap<String, (Cq, Srq)>);

impl Shared {
    fn queues(&mut self, pd: &Pd) -> Result<QueueConfig> {
        let name = pd.device().name().to_owned();
        let (cq, srq) = match self.0.entry(name) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(none) => none.insert((Cq::new(pd.device())?, Srq::new(pd, RECEIVES, SIZE)?)),
        };
        Ok(QueueConfig::default().send_depth(4).recv_size(SIZE).cq(cq).srq(srq))
    }
}

async fn echo(conn: Connection) -> Result<()> {
    while let Some(message) = conn.recv().await? {
        conn.send(message).await.buf()?;
    }
    Ok(())
}

async fn server() -> Result<()> {
    let listener = verbena::listen("0.0.0.0:7475").backlog(1024).await?;
    let mut shared = Shared::default();
    loop {
        let request = listener.request().await?;
        let queues = shared.queues(request.pd())?;
        // The handshake, too, is in the task: a slow peer keeps no other waiting.
        tokio::spawn(async move {
            match request.accept().queues(queues).await {
                Ok(conn) => echo(conn).await,
                Err(error) => Err(error),
            }
            .unwrap_or_else(|error| eprintln!("{error}"));
        });
    }
}

async fn ask(conn: Connection, number: usize) -> Result<()> {
    for round in 0..ROUNDS {
        conn.send_copy(format!("{number}: {round}").as_bytes())?.await?;
        drop(conn.recv().await?);
    }
    conn.close().await
}

async fn client(server: &str, count: usize) -> Result<()> {
    let (mut shared, mut all, began) = (Shared::default(), Vec::new(), Instant::now());
    for _ in 0..count {
        let route = verbena::resolve(server).await?;
        let queues = shared.queues(route.pd())?;
        all.push(route.connect().queues(queues).await?);
    }
    println!("{count} connections stand after {:?}", began.elapsed());
    let began = Instant::now();
    let mut tasks: JoinSet<_> = all.into_iter().zip(0..).map(|(conn, number)| ask(conn, number)).collect();
    while let Some(done) = tasks.join_next().await {
        done.unwrap_or(Ok(()))?;
    }
    println!("{ROUNDS} messages and echoes of each, and all closed, after {:?}", began.elapsed());
    Ok(())
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
        match args.first() {
            None => server().await?,
            Some(to) => client(to, args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1000)).await?,
        }
        Ok(())
    })
}
