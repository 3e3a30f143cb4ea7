//! A file by WRITE with immediate data: the receiver owns a ring of blocks and gives credits, the
//! sender writes into them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};

use verbena::op::Writing;
use verbena::prelude::*;
use verbena::{Memory, Pool, QueueConfig, RegBuf, RemoteMemory, RemoteWrite, Result};

const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 16;

async fn receive(mut to: File) -> Result<()> {
    let ring = Memory::<RemoteWrite>::zeroed(BLOCK * BLOCKS)?;
    let request = verbena::listen("0.0.0.0:7473").await?.request().await?;
    let mr = ring.mr(request.pd())?;
    let conn = request.accept().private_data(mr.remote().to_bytes()).await?;
    let mut block = vec![0; BLOCK];
    let mut next = 0;
    // The immediate data of each block is its length; blocks come in order.
    while let Some(len) = conn.recv().await?.and_then(|m| m.imm()) {
        let bytes = &mut block[..(len as usize).min(BLOCK)];
        ring.shared().copy_to(next * BLOCK, bytes)?;
        next = (next + 1) % BLOCKS;
        // A credit; the sender may have gone after its last block.
        _ = conn.send_inline(b"").await;
        to.write_all(bytes).expect("writing the file");
    }
    conn.close().await
}

async fn send(server: &str, mut from: File) -> Result<()> {
    let queues = QueueConfig::default().recv_depth(2 * BLOCKS as u32).recv_size(8);
    let conn = verbena::connect(server).queues(queues).await?;
    let ring = RemoteMemory::from_bytes(conn.private_data())?;
    let pool = Pool::new(conn.pd(), BLOCK, BLOCKS)?;
    let mut flying: VecDeque<Writing<RegBuf>> = VecDeque::new();
    let mut credits = BLOCKS;
    for n in 0.. {
        let mut buf = match flying.len() < BLOCKS {
            true => pool.get()?,
            false => flying.pop_front().expect("not empty").await.buf()?,
        };
        buf.set_len(BLOCK)?;
        let len = from.read(&mut buf).expect("reading the file");
        if len == 0 {
            break;
        }
        buf.set_len(len)?;
        while credits == 0 {
            conn.recv().await?;
            credits += 1;
        }
        credits -= 1;
        let at = (n % BLOCKS * BLOCK) as u64;
        let write = conn.write(buf, ring.slice(at..at + len as u64)?).imm(len as u32);
        flying.push_back(write.post()?);
    }
    for last in flying {
        last.await.buf()?;
    }
    conn.close().await
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let name = args.next().expect("a file");
    verbena::block_on(async {
        match args.next() {
            None => receive(File::create(name).expect("creating the file")).await,
            Some(server) => send(&server, File::open(name).expect("opening the file")).await,
        }
    })
}
