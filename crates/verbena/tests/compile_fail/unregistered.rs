//! Bytes of the program's own are not registered.
fn sent(conn: &verbena::Connection, bytes: &'static [u8]) {
    let _ = conn.send(vec![1_u8, 2, 3]);
    let _ = conn.send(bytes);
}

fn main() {}
