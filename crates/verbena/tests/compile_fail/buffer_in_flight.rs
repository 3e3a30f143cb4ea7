//! A buffer is the operation's until it comes back.
async fn sent(conn: verbena::Connection, mut buf: verbena::RegBuf) {
    let sending = conn.send(buf);
    buf[0] = 1;
    let _ = sending.await;
}

fn main() {}
