//! HTTPS over RDMA, without a runtime: a server, and a client that asks it twice.
//!
//! `cargo run -p verbena-examples --example https` in one terminal, `... --example https
//! 127.0.0.1:7443` in another.

use hyper::Method;
use verbena::{RdmaListener, RdmaStream};
use verbena_examples::{http, tls};

async fn server() -> std::io::Result<()> {
    let mut listener = RdmaListener::bind("0.0.0.0:7443").await?;
    loop {
        let stream = listener.accept().await?;
        verbena::spawn(async move {
            let peer = stream.peer_addr();
            let served =
                async { http::serve(tls::accept(stream).await?).await.map_err(std::io::Error::other) };
            println!("{peer}: {:?}", served.await);
        })?;
    }
}

async fn client(server: String) -> std::io::Result<()> {
    let stream = tls::connect(RdmaStream::connect(server).await?, "server").await?;
    let mut client = http::Client::new(stream).await?;
    println!("{:?}", client.ask(Method::GET, "/", "").await?);
    println!("{:?}", client.ask(Method::POST, "/echo", "and back").await?);
    Ok(())
}

fn main() -> std::io::Result<()> {
    verbena::block_on(async {
        match std::env::args().nth(1) {
            None => server().await,
            Some(address) => client(address).await,
        }
    })
}
