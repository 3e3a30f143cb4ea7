//! rdma_client(1) and rdma_server(1), as C programs have them: 16 bytes there, 16 bytes back.
//!
//! `rdma_client [ADDRESS]`, `rdma_client -s [ADDRESS]` for the server

use verbena::{QueueConfig, Result};

const MESSAGE: [u8; 16] = [0; 16];

async fn serve(on: String) -> Result<()> {
    let conn = verbena::listen(on).await?.accept().await?;
    println!("{} bytes came", conn.recv().await?.map_or(0, |message| message.len()));
    conn.send_inline(&MESSAGE).await?;
    // The client ends.
    conn.ended().await;
    Ok(())
}

async fn ask(to: String) -> Result<()> {
    let queues = QueueConfig::default().send_depth(1).recv_depth(1).recv_size(16);
    let conn = verbena::connect(to).queues(queues).await?;
    conn.send_inline(&MESSAGE).await?;
    println!("{} bytes came", conn.recv().await?.map_or(0, |message| message.len()));
    conn.close().await
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let serves = words.first().is_some_and(|word| word == "-s");
    let default = if serves { "0.0.0.0" } else { "127.0.0.1" };
    let address = words.get(usize::from(serves)).map_or(default, String::as_str);
    let address = format!("{address}:7471");
    verbena::block_on(async { if serves { serve(address).await } else { ask(address).await } })
}
