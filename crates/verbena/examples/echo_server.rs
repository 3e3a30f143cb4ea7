//! Sends every message back. The received buffer itself is sent: no copy. When it has left, it is
//! posted again.

use verbena::prelude::*;

async fn serve(conn: verbena::Connection) -> verbena::Result<()> {
    while let Some(message) = conn.recv().await? {
        conn.send(message).await.buf()?;
    }
    conn.close().await
}

fn main() -> verbena::Result<()> {
    verbena::block_on(async {
        let listener = verbena::listen("0.0.0.0:7471").await?;
        loop {
            let conn = listener.accept().await?;
            verbena::spawn(async move {
                if let Err(e) = serve(conn).await {
                    eprintln!("{e}");
                }
            })?;
        }
    })
}
