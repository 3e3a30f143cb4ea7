//! A READ writes to memory of ours: not to what is frozen.
use verbena::{Connection, Memory, RegBytes, RemoteMemory, RemoteRead};

fn read(conn: &Connection, from: RemoteMemory, bytes: RegBytes, memory: Memory<RemoteRead>) {
    let _ = conn.read(bytes, from);
    let _ = conn.read(memory.part(0..8).unwrap(), from);
}

fn main() {}
