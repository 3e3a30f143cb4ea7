//! Memory that peers may write is never seen as bytes that do not change, nor as ours alone.
use verbena::{Memory, RemoteWrite};

fn seen(memory: &Memory<RemoteWrite>) -> &[u8] {
    memory
}

fn indexed(memory: &mut Memory<RemoteWrite>) {
    memory[0] = 1;
}

fn referred(memory: &Memory<RemoteWrite>) -> &u64 {
    memory.shared().word(0).unwrap()
}

fn main() {}
