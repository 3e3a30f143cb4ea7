//! Receive queues and completion queues that many connections share.

#[cfg(feature = "software")]
mod support;

use verbena::prelude::*;
use verbena::{Connection, Cq, ErrorKind, Pd, QueueConfig, Result, Srq, UdSocket};

/// Both shared, and few sends.
fn queues(pd: &Pd, depth: u32) -> Result<QueueConfig> {
    let (srq, cq) = (Srq::new(pd, depth, 256)?, Cq::new(pd.device())?);
    Ok(QueueConfig::default().send_depth(8).srq(&srq).cq(&cq))
}

#[cfg(feature = "software")]
mod software {
    use std::thread;
    use std::time::Duration;

    use verbena::{Listener, Value, block_on};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn pd() -> Pd {
        support::provider().device_of(support::address()).unwrap().pd().unwrap()
    }

    fn listener() -> Listener {
        support::listen(support::any_port()).wait().unwrap()
    }

    /// The end that connected, and the one that accepted with these queues.
    fn connected(listener: &Listener, queues: &QueueConfig) -> (Connection, Connection) {
        thread::scope(|s| {
            let active = s.spawn(|| support::connect(listener.local_addr()).wait());
            let request = listener.blocking_request().unwrap();
            let passive = request.accept().queues(queues.clone()).wait().unwrap();
            (active.join().unwrap().unwrap(), passive)
        })
    }

    #[test]
    fn each_of_many_connections_gets_its_own_messages_and_results() {
        let (pd, listener) = (pd(), listener());
        let queues = queues(&pd, 16).unwrap();
        let ends: Vec<_> = (0..20).map(|_| connected(&listener, &queues)).collect();
        let (srq, cq) = (queues.srq.clone().unwrap(), queues.cq.clone().unwrap());
        assert_eq!((cq.users(), srq.depth(), srq.posted()), (20, 16, 16));
        block_on(async {
            for round in 0..10_u32 {
                for (n, (active, _)) in (0_u32..).zip(&ends) {
                    active.send_inline(&[n.to_be_bytes(), round.to_be_bytes()].concat()).await.unwrap();
                    // Not the order in which they came.
                    let (active, passive) = &ends[n as usize];
                    let message = passive.recv().await.unwrap().unwrap();
                    assert_eq!(message[..], [n.to_be_bytes(), round.to_be_bytes()].concat());
                    passive.send(message).imm(n).await.buf().unwrap();
                    assert_eq!(active.recv().await.unwrap().unwrap().imm(), Some(n));
                }
            }
        });
        assert_eq!(support::soon(16, || srq.posted()), 16);
        drop(ends);
        assert_eq!(support::soon((0, 16), || (cq.users(), srq.posted())), (0, 16));
    }

    #[test]
    fn peers_wait_while_messages_of_others_are_kept() {
        let (pd, listener) = (pd(), listener());
        let queues = queues(&pd, 4).unwrap();
        let (talks, hears) = connected(&listener, &queues);
        let (other, waits) = connected(&listener, &queues);
        let srq = queues.srq.as_ref().unwrap();
        block_on(async {
            let mut kept = Vec::new();
            for n in 0..4_u8 {
                talks.send_inline(&[n]).await.unwrap();
                kept.push(hears.recv().await.unwrap().unwrap());
            }
            assert_eq!(srq.posted(), 0);
            let sending = other.send_inline(b"patience").post().unwrap();
            thread::sleep(Duration::from_millis(20));
            assert!(waits.try_recv().unwrap().is_none());
            let buf = kept.pop().unwrap().into_buf();
            assert!(buf.is_some_and(|buf| buf[..] == [3]));
            drop(kept);
            sending.await.unwrap();
            assert_eq!(&waits.recv().await.unwrap().unwrap()[..], b"patience");
        });
    }

    #[test]
    fn a_connection_that_ends_takes_no_receives_along() {
        let (pd, listener) = (pd(), listener());
        let queues = queues(&pd, 8).unwrap();
        let srq = queues.srq.clone().unwrap();
        for how in 0..4 {
            let (active, passive) = connected(&listener, &queues);
            for n in 0..3_u8 {
                active.send_inline(&[n]).wait().unwrap();
            }
            match how {
                0 => drop((active, passive)),
                1 => drop((passive, active)),
                2 => {
                    // Longer than a receive: both ends fail.
                    let error = active.send_copy(&[0; 1000]).unwrap().wait().unwrap_err();
                    assert!(matches!(error.kind(), ErrorKind::Completion(_)), "{error}");
                    block_on(async { (active.ended().await, passive.ended().await) });
                    drop((active, passive));
                }
                _ => {
                    let kept = passive.blocking_recv_timeout(LONG).unwrap().unwrap();
                    drop((active, passive));
                    assert_eq!(kept[..], [0]);
                    assert_eq!(support::soon(7, || srq.posted()), 7);
                }
            }
            assert_eq!(support::soon(8, || srq.posted()), 8, "{how}");
        }
        let (active, passive) = connected(&listener, &queues);
        active.send_inline(b"still").wait().unwrap();
        assert_eq!(&passive.blocking_recv_timeout(LONG).unwrap().unwrap()[..], b"still");
    }

    #[test]
    fn a_failed_connection_tells_its_owner_and_no_other() {
        let (pd, listener) = (pd(), listener());
        let queues = queues(&pd, 8).unwrap();
        let (active, passive) = connected(&listener, &queues);
        let (other, lives) = connected(&listener, &queues);
        let nowhere = verbena::RemoteMemory::from_raw(0x1000, 7, 8);
        let error = passive.write_inline(&[0; 8], nowhere).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Completion(_)));
        block_on(async {
            active.ended().await;
            passive.ended().await;
        });
        lives.send_inline(b"alive").wait().unwrap();
        assert_eq!(&other.blocking_recv_timeout(LONG).unwrap().unwrap()[..], b"alive");
        assert!(lives.failure().is_none());
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        let pd = pd();
        for (depth, size, name) in [(0, 64, "depth"), (40_000, 64, "depth"), (4, 0, "size")] {
            let error = Srq::new(&pd, depth, size).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfRange);
            assert!(matches!(error.value(), Some(Value::Number { name: n, .. }) if *n == name), "{error}");
        }
    }

    #[test]
    fn datagram_sockets_share_queues_too() {
        let pd = pd();
        let queues = queues(&pd, 8).unwrap();
        let bind = || {
            let socket = UdSocket::bind(support::any_port()).provider(&support::provider());
            socket.queues(queues.clone()).wait().unwrap()
        };
        let (a, b) = (bind(), bind());
        for n in 0..20_u8 {
            a.send_inline_to(&[n], &b.address()).wait().unwrap();
            b.send_inline_to(&[n, n], &a.address()).wait().unwrap();
            assert_eq!(b.blocking_recv_from_timeout(LONG).unwrap().message[..], [n]);
            let got = a.blocking_recv_from_timeout(LONG).unwrap();
            assert_eq!((&got.message[..], got.from), (&[n, n][..], b.address()));
        }
        // As long as a receive, after the network header.
        a.send_copy_to(&[1; 256], &b.address()).unwrap().wait().unwrap();
        assert_eq!(b.blocking_recv_from_timeout(LONG).unwrap().message.len(), 256);
        drop((a, b));
        let srq = queues.srq.unwrap();
        assert_eq!(support::soon(8, || srq.posted()), 8);
    }

    #[test]
    fn queues_connections_and_messages_go_in_any_order() {
        let (pd, listener) = (pd(), listener());
        for order in 0..24_usize {
            let queues = queues(&pd, 4).unwrap();
            let (active, passive) = connected(&listener, &queues);
            active.send_inline(b"kept").wait().unwrap();
            let message = passive.blocking_recv_timeout(LONG).unwrap().unwrap();
            let mut all: Vec<Box<dyn std::any::Any>> =
                vec![Box::new(queues), Box::new(active), Box::new(passive), Box::new(message)];
            let mut left = order;
            for n in (1..=4).rev() {
                drop(all.remove(left % n));
                left /= n;
            }
        }
    }
}

#[cfg(feature = "sim")]
mod sim {
    use std::time::Duration;

    use verbena::sim::Host;

    use super::*;

    const MESSAGES: u32 = 40;

    /// Says its numbers, each of which comes back.
    async fn client(name: u32) -> Result<()> {
        let conn = verbena::connect("server:7000").timeout(Duration::from_secs(60)).await?;
        for n in 0..MESSAGES {
            conn.send_inline(&[name.to_be_bytes(), n.to_be_bytes()].concat()).await?;
            let answer = conn.recv().await?.expect("an answer");
            assert_eq!(answer[..], [name.to_be_bytes(), n.to_be_bytes()].concat());
        }
        conn.close().await
    }

    async fn serve(conn: Connection) -> Result<()> {
        let (mut name, mut count) = (None, 0);
        while let Some(message) = conn.recv().await? {
            let said: [u8; 4] = message[..4].try_into().expect("four bytes");
            assert_eq!(*name.get_or_insert(said), said, "another connection's");
            count += 1;
            // The peer may have what it waited for, and be gone before its ACK is here.
            _ = conn.send(message).await;
        }
        assert_eq!(count, MESSAGES);
        Ok(())
    }

    #[verbena::test(seeds = 100, faults = "loss=2%, delay=20us..200us, reorder=2%")]
    async fn connections_of_two_hosts_share_queues(server: Host, left: Host, right: Host) {
        let serves = server.clone().spawn(async move {
            let listener = verbena::listen("0.0.0.0:7000").await?;
            let device = verbena::Provider::current()?.device_of(server.addr())?;
            // Fewer receives than messages that may come at once.
            let queues = queues(&device.pd()?, 3)?;
            let mut tasks = Vec::new();
            for _ in 0..6 {
                let conn = listener.request().await?.accept().queues(queues.clone()).await?;
                tasks.push(server.spawn(serve(conn)));
            }
            for task in tasks {
                task.await?;
            }
            let (srq, cq) = (queues.srq.expect("given"), queues.cq.expect("given"));
            assert_eq!((srq.posted(), cq.users()), (3, 0));
            Ok::<_, verbena::Error>(())
        });
        let clients: Vec<_> = (0..6).map(|n| [&left, &right][n as usize % 2].spawn(client(n))).collect();
        for client in clients {
            client.await.unwrap();
        }
        serves.await.unwrap();
    }
}
