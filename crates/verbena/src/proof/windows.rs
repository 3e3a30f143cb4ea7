//! Buffers under windows: exposing one, dropped at each of its polls. The buffer is back in its
//! pool, and no window stays.

use std::time::Duration;

use super::cancel::{Plan, SENDS, connected, goes_on};
use super::cut::cut;
use super::setting::{STOP, left_over, serve};
use crate::sim::Host;
use crate::{Access, Pool};

async fn exposing(plan: &Plan) {
    let (conn, _) = connected().await;
    let pool = Pool::new(conn.pd(), 64, 1).expect("a pool");
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    // With entries of the send queue that are free, and without, where it waits for room.
    for busy in [0, SENDS] {
        for polls in 0.. {
            let buf = pool.copy(&[7; 40]).expect("the buffer is back");
            for n in 0..busy {
                // No code wants its result: its entry is free when it is complete.
                drop(conn.send_inline(&[n as u8; 4]).post().expect("room"));
            }
            let exposed = cut("expose", buf.expose(conn.queue_pair(), rights), polls, plan.how()).await;
            let is_over = exposed.is_some();
            if let Some(exposed) = exposed {
                let exposed = exposed.expect("exposed");
                assert_eq!(exposed.remote().len(), 40);
                // Either way the right ends.
                if polls % 2 == 0 {
                    assert_eq!(exposed.revoke().expect("revoked")[..], [7; 40]);
                }
            }
            goes_on("expose", &conn).await;
            assert_eq!(pool.census().free, 1);
            if is_over {
                break;
            }
        }
    }
}

#[verbena::test(seeds = 200, faults = "loss=2%, delay=20us..200us, reorder=2%, duplicate=1%")]
async fn exposing_a_buffer_may_be_dropped_at_any_poll(left: Host, right: Host) {
    let seed = left.seed();
    let service = right.spawn(serve("0.0.0.0:7000"));
    left.spawn(async move { exposing(&Plan::of(seed)).await }).await;
    left.spawn(async { crate::connect("right:7000").private_data(STOP).await.expect_err("refused") }).await;
    service.await.expect("no error");
    crate::time::sleep(Duration::from_secs(100)).await;
    for host in [&left, &right] {
        assert_eq!(host.spawn(async { left_over() }).await, Default::default(), "on {}", host.name());
    }
}
