//! gRPC by tonic over RDMA: calls, answers that are streams, refusals; in a simulation that loses
//! packets, and once over software.

use tonic::Code;
use verbena::sim::Host;
use verbena::{RdmaListener, RdmaStream};
use verbena_examples::grpc::{Client, Count, Word, serve};

fn text() -> String {
    (0..4000).map(|n| format!("word{n} ")).collect()
}

async fn ask(stream: RdmaStream) {
    let mut client = Client::new(stream).await.unwrap();
    assert_eq!(client.total("to be or not to be").await.unwrap(), Count { words: 6, bytes: 18 });
    assert_eq!(client.total("").await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.unknown().await.unwrap_err().code(), Code::Unimplemented);
    // More than the windows of HTTP/2 and of the stream: both directions wait for each other.
    let mut words = client.split(&text()).await.unwrap();
    let mut count = 0;
    while let Some(word) = words.message().await.unwrap() {
        assert_eq!(word, Word { word: format!("word{count}"), at: count });
        count += 1;
    }
    assert_eq!(count, 4000);
    // What is dropped in its midst is reset, and the connection goes on.
    let mut words = client.split(&text()).await.unwrap();
    assert_eq!(words.message().await.unwrap().unwrap().at, 0);
    drop(words);
    assert_eq!(client.total(&text()).await.unwrap().words, 4000);
}

#[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn grpc_runs_over_a_network_that_loses_packets(left: Host, right: Host) {
    right.spawn(async {
        let mut listener = RdmaListener::bind("0.0.0.0:50051").await.unwrap();
        loop {
            let stream = listener.accept().await.unwrap();
            // A client that leaves without an end is none of the test's.
            verbena::spawn(serve(stream)).unwrap();
        }
    });
    left.spawn(async {
        for _ in 0..2 {
            ask(RdmaStream::connect("right:50051").await.unwrap()).await;
        }
    })
    .await;
}

#[test]
fn grpc_runs_over_software_without_a_runtime() {
    verbena::block_on(async {
        let mut listener = RdmaListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr();
        verbena::spawn(async move { serve(listener.accept().await.unwrap()).await }).unwrap();
        ask(RdmaStream::connect(to).await.unwrap()).await;
    });
}
