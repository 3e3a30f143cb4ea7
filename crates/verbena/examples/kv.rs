//! A key-value store that clients read and change by themselves: READ and COMPARE SWAP; the
//! server's processor does nothing.
//!
//! A cell is a version (odd: being written), a key and a value, eight bytes each.

use verbena::prelude::*;
use verbena::{Connection, Memory, RemoteMemory, RemoteWrite, Result};

const CELLS: u64 = 1 << 16;
const CELL: u64 = 24;

async fn server() -> Result<()> {
    let table = Memory::<RemoteWrite>::zeroed((CELLS * CELL) as usize)?;
    let listener = verbena::listen("0.0.0.0:7472").await?;
    let mut clients = Vec::new(); // a connection ends with its last handle
    loop {
        let request = listener.request().await?;
        let mr = table.mr(request.pd())?;
        clients.push(request.accept().private_data(mr.remote().to_bytes()).await?);
        let changes: u64 =
            (0..CELLS).filter_map(|c| table.shared().load::<u64>((c * CELL) as usize).ok()).sum();
        println!("{} clients, {} changes", clients.len(), changes / 2);
    }
}

struct Store {
    conn: Connection,
    table: RemoteMemory,
}

impl Store {
    async fn open(server: &str) -> Result<Self> {
        let conn = verbena::connect(server).await?;
        let table = RemoteMemory::from_bytes(conn.private_data())?;
        Ok(Self { conn, table })
    }

    fn cell(&self, key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % CELLS * CELL
    }

    async fn get(&self, key: u64) -> Result<Option<u64>> {
        let cell = self.table.slice(self.cell(key)..)?.slice(..CELL)?;
        loop {
            // Bytes of a READ come in any order, so the version is read before and after.
            let before = self.conn.fetch_add(cell.word(0)?, 0).await?;
            let buf = self.conn.read(self.conn.buffer()?, cell).await.buf()?;
            let after = self.conn.fetch_add(cell.word(0)?, 0).await?;
            if before % 2 == 0 && before == after {
                return Ok((buf.read::<u64>(8)? == key).then_some(buf.read(16)?));
            }
        }
    }

    async fn put(&self, key: u64, value: u64) -> Result<()> {
        let at = self.cell(key);
        let version = self.table.word(at)?;
        let mut old = self.conn.fetch_add(version, 0).await?;
        loop {
            old &= !1;
            match self.conn.compare_swap(version, old, old + 1).await? {
                seen if seen == old => break,
                seen => old = seen,
            }
        }
        // Key and value, then the version: one doorbell, in order.
        let pair = [key.to_ne_bytes(), value.to_ne_bytes()].concat();
        let written = self.conn.write_inline(&pair, self.table.slice(at + 8..at + CELL)?);
        let unlocked = self.conn.atomic_write(version, old + 2);
        let (_, unlocked) = self.conn.post_all((written, unlocked))?;
        unlocked.await.map(drop)
    }
}

fn main() -> Result<()> {
    verbena::block_on(async {
        let Some(address) = std::env::args().nth(1) else { return server().await };
        let store = Store::open(&address).await?;
        store.put(1, 2).await?;
        println!("{:?}", store.get(1).await?);
        Ok(())
    })
}
