//! A view borrows its memory, and a domain's borrow its owner.
use verbena::{Connection, Memory, Pool, RemoteWrite};

fn viewed(memory: Memory<RemoteWrite>) -> verbena::Result<u64> {
    let view = memory.shared();
    drop(memory);
    view.load(0)
}

fn registered(conn: Connection) -> verbena::Result<Pool> {
    let pd = conn.pd();
    drop(conn);
    Pool::new(pd, 4096, 1)
}

fn received<'a>(message: verbena::Message) -> &'a [u8] {
    &message
}

fn main() {}
