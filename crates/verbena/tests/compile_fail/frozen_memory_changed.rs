//! What peers may read does not change.
fn changed(mut memory: verbena::Memory<verbena::RemoteRead>) {
    memory[0] = 1;
}

fn main() {}
