//! Bytes in both directions: a server that reads a name to its end, and then greets.
//!
//! `cargo run -p verbena-rdma --example stream` in one terminal, `... --example stream
//! 127.0.0.1:7476` in another.

use verbena::{RdmaListener, RdmaStream};

async fn read_to_end(stream: &mut RdmaStream) -> std::io::Result<String> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece).await? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            n => bytes.extend(&piece[..n]),
        }
    }
}

async fn greet(mut stream: RdmaStream) -> std::io::Result<()> {
    let name = read_to_end(&mut stream).await?;
    stream.write_all(format!("hello {name}").as_bytes()).await?;
    stream.close().await
}

async fn server() -> std::io::Result<()> {
    let mut listener = RdmaListener::bind("0.0.0.0:7476").await?;
    loop {
        verbena::spawn(greet(listener.accept().await?))?;
    }
}

async fn client(server: String) -> std::io::Result<()> {
    let mut stream = RdmaStream::connect(server).await?;
    stream.write_all(b"world").await?;
    // The other direction goes on.
    stream.shutdown().await?;
    println!("{}", read_to_end(&mut stream).await?);
    stream.close().await
}

fn main() -> std::io::Result<()> {
    verbena::block_on(async {
        match std::env::args().nth(1) {
            None => server().await,
            Some(address) => client(address).await,
        }
    })
}
