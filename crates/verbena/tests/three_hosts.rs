//! One's own protocol, tested on three hosts: a primary tells two replicas; one is cut off and
//! killed.

use std::time::Duration;

use verbena::sim::Host;

async fn replica() -> verbena::Result<u64> {
    let conn = verbena::listen("0.0.0.0:7000").await?.accept().await?;
    let mut seen = 0;
    while let Some(message) = conn.recv().await? {
        seen = u64::from_be_bytes(message[..8].try_into().expect("eight bytes"));
        // The primary may have gone: what it said last counts all the same.
        _ = conn.send(message).await;
    }
    Ok(seen)
}

async fn commit(replicas: &[verbena::Connection], n: u64) -> usize {
    let mut acks = 0;
    for conn in replicas {
        let told = async {
            conn.send_inline(&n.to_be_bytes()).await?;
            conn.recv().await
        };
        let told = verbena::time::timeout(Duration::from_secs(60), told).await;
        acks += usize::from(matches!(told, Ok(Ok(Some(_)))));
    }
    acks
}

#[verbena::test(seeds = 1000, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn a_majority_survives_a_replica(primary: Host, left: Host, right: Host) {
    let kept = left.spawn(replica());
    right.spawn(replica());
    let cut = primary.clone();
    let done = primary.spawn(async move {
        let replicas =
            [verbena::connect("left:7000").await.unwrap(), verbena::connect("right:7000").await.unwrap()];
        for n in 1..=100 {
            if n == 50 {
                cut.partition(&right, Duration::from_millis(3));
                right.kill();
            }
            assert!(commit(&replicas, n).await >= 1, "{n} lost on {}", cut.name());
        }
    });
    done.await;
    assert_eq!(kept.await.unwrap(), 100);
}
