//! gRPC over RDMA, without a runtime: a server, and a client that asks it twice.
//!
//! `cargo run -p verbena-examples --example grpc` in one terminal, `... --example grpc
//! 127.0.0.1:7450` in another.

use verbena::{RdmaListener, RdmaStream};
use verbena_examples::grpc;

async fn server() -> std::io::Result<()> {
    let mut listener = RdmaListener::bind("0.0.0.0:7450").await?;
    loop {
        let stream = listener.accept().await?;
        verbena::spawn(async move {
            let peer = stream.peer_addr();
            println!("{peer}: {:?}", grpc::serve(stream).await);
        })?;
    }
}

async fn client(server: String) -> Result<(), Box<dyn std::error::Error>> {
    let mut client = grpc::Client::new(RdmaStream::connect(server).await?).await?;
    println!("{:?}", client.total("to be or not to be").await?);
    let mut words = client.split("to be or not to be").await?;
    while let Some(word) = words.message().await? {
        println!("{word:?}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    verbena::block_on(async {
        match std::env::args().nth(1) {
            None => Ok(server().await?),
            Some(address) => client(address).await,
        }
    })
}
