//! HTTP and TLS over RDMA, in a simulation that loses packets and over software in tokio's runtime;
//! and tokio's own tools on a stream.

use hyper::Method;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use verbena::sim::Host;
use verbena::{RdmaListener, RdmaStream};
use verbena_examples::{http, tls};

fn body() -> Vec<u8> {
    (0..300_000_u32).map(|n| (n * 7 + n / 1000) as u8).collect()
}

async fn listen(port: u16) -> RdmaListener {
    RdmaListener::bind(format!("0.0.0.0:{port}")).await.unwrap()
}

#[verbena::test(seeds = 30, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn http_is_served_over_a_network_that_loses_packets(left: Host, right: Host) {
    right.spawn(async {
        let mut listener = listen(80).await;
        loop {
            let stream = listener.accept().await.unwrap();
            // A client that leaves without an end is none of the test's.
            verbena::spawn(http::serve(stream)).unwrap();
        }
    });
    left.spawn(async {
        for _ in 0..2 {
            let stream = RdmaStream::connect("right:80").await.unwrap();
            let mut client = http::Client::new(stream).await.unwrap();
            assert_eq!(client.ask(Method::GET, "/", "").await.unwrap(), (200, "hello over RDMA\n".into()));
            assert_eq!(client.ask(Method::POST, "/echo", body()).await.unwrap(), (200, body().into()));
            assert_eq!(client.ask(Method::GET, "/no", "").await.unwrap().0, 404);
        }
    })
    .await;
}

#[verbena::test(seeds = 10, faults = "loss=1%, delay=20us..200us")]
async fn tls_carries_http_and_says_who_the_server_is(left: Host, right: Host) {
    right.spawn(async {
        let mut listener = listen(443).await;
        loop {
            let stream = listener.accept().await.unwrap();
            verbena::spawn(async move {
                // The first client does not believe that it is the server it looks for.
                if let Ok(stream) = tls::accept(stream).await {
                    _ = http::serve(stream).await;
                }
            })
            .unwrap();
        }
    });
    left.spawn(async {
        let stream = RdmaStream::connect("right:443").await.unwrap();
        assert!(tls::connect(stream, "another.name").await.is_err());
        let stream = RdmaStream::connect("right:443").await.unwrap();
        let mut client = http::Client::new(tls::connect(stream, "right").await.unwrap()).await.unwrap();
        assert_eq!(client.ask(Method::POST, "/echo", body()).await.unwrap(), (200, body().into()));
    })
    .await;
}

#[test]
fn tokio_runs_both_ends_over_software() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let local = async {
        let mut listener = RdmaListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr();
        let serving = tokio::spawn(async move {
            let stream = listener.accept().await.unwrap();
            let (read, mut write) = tokio::io::split(stream);
            let mut lines = BufReader::new(read).lines();
            while let Some(line) = lines.next_line().await.unwrap() {
                write.write_all(format!("you said {line}\n").as_bytes()).await.unwrap();
            }
            write.shutdown().await.unwrap();
            http::serve(listener.accept().await.unwrap()).await
        });
        let mut stream = RdmaStream::connect(to).await.unwrap();
        stream.write_all(b"one\ntwo\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "you said one\nyou said two\n");
        let mut client = http::Client::new(RdmaStream::connect(to).await.unwrap()).await.unwrap();
        assert_eq!(client.ask(Method::POST, "/echo", body()).await.unwrap(), (200, body().into()));
        drop(client);
        serving.await.unwrap().unwrap();
    };
    runtime.block_on(local);
}
