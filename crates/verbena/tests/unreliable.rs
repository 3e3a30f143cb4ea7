//! Unreliable connections: SEND and WRITE, losses, ends.

#[cfg(feature = "software")]
mod support;

use verbena::prelude::*;
use verbena::{Connection, ErrorKind, Memory, RemoteMemory, RemoteWrite, Uc};

#[cfg(feature = "software")]
mod software {
    use std::thread;

    use verbena::{RejectReason, block_on};

    use super::*;

    /// The passive side tells the active one of `memory`.
    fn connected(memory: &Memory<RemoteWrite>) -> (Connection<Uc>, Connection<Uc>) {
        let listener = support::listen(support::any_port()).uc().wait().unwrap();
        let to = listener.local_addr();
        thread::scope(|s| {
            let passive = s.spawn(move || {
                let request = listener.blocking_request()?;
                let told = memory.mr(request.pd())?.remote().to_bytes();
                request.accept().private_data(told).wait()
            });
            let active = support::connect(to).uc().wait().unwrap();
            (active, passive.join().unwrap().unwrap())
        })
    }

    #[test]
    fn an_unreliable_connection_sends_and_writes() {
        let memory = Memory::<RemoteWrite>::zeroed(4096).unwrap();
        let (active, passive) = connected(&memory);
        let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
        block_on(async {
            for n in 0..200_u32 {
                active.send_inline(&n.to_be_bytes()).imm(n).await.unwrap();
                let message = passive.recv().await.unwrap().unwrap();
                assert_eq!((&message[..], message.imm()), (&n.to_be_bytes()[..], Some(n)));
            }
            let bytes = [7; 64];
            active.write_inline(&bytes, remote.slice(64..128).unwrap()).imm(1).await.unwrap();
            assert_eq!(passive.recv().await.unwrap().unwrap().written(), Some(64));
            let mut seen = [0; 64];
            memory.shared().copy_to(64, &mut seen).unwrap();
            assert_eq!(seen, bytes);
            // No READs are agreed on, and a key that is taken back is none of this transport.
            let error = active.send_inline(b"x").invalidate(1).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfRange);
            active.close().await.unwrap();
            assert!(passive.recv().await.unwrap().is_none());
            assert_eq!(passive.ended().await.kind(), ErrorKind::Disconnected);
        });
    }

    #[test]
    fn reliable_and_unreliable_connections_have_ports_of_their_own() {
        let listener = support::listen(support::any_port()).wait().unwrap();
        let to = listener.local_addr();
        let error = support::connect(to).uc().wait().unwrap_err();
        assert_eq!(error.rejection().unwrap().reason, RejectReason::InvalidServiceId);
        let other = support::listen(to).uc().wait().unwrap();
        assert_eq!(other.local_addr(), to);
        thread::scope(|s| {
            let accepted = s.spawn(|| other.blocking_request()?.accept().wait());
            let route = support::resolve(to).wait().unwrap();
            drop(route.connect().uc().wait().unwrap());
            drop(accepted.join().unwrap().unwrap());
        });
    }
}

#[cfg(feature = "sim")]
mod sim {
    use std::time::Duration;

    use verbena::sim::Host;
    use verbena::time::{sleep, timeout};

    use super::*;

    #[verbena::test(seeds = 50, faults = "loss=5%, delay=20us..200us")]
    async fn what_an_unreliable_connection_loses_stays_lost_and_the_rest_is_in_order(
        left: Host,
        right: Host,
    ) {
        let hears = right.spawn(async {
            let conn: Connection<Uc> = verbena::listen("0.0.0.0:7000").uc().await?.accept().await?;
            let mut heard = Vec::new();
            // The end of the connection may be lost on its way, too.
            while let Ok(message) = timeout(Duration::from_secs(10), conn.recv()).await {
                let Some(message) = message? else { break };
                heard.push(u32::from_be_bytes(message[..4].try_into().expect("four bytes")));
            }
            Ok::<_, verbena::Error>(heard)
        });
        let says = left.spawn(async {
            let conn = verbena::connect("right:7000").uc().timeout(Duration::from_secs(60)).await?;
            let mut buf = conn.buffer()?.sized(3000)?;
            for n in 0..300_u32 {
                buf[..4].copy_from_slice(&n.to_be_bytes());
                buf = conn.send(buf).await.buf()?;
                sleep(Duration::from_micros(300)).await;
            }
            drop(buf);
            conn.close().await
        });
        says.await.unwrap();
        let heard = hears.await.unwrap();
        assert!(heard.is_sorted_by(|a, b| a < b), "{heard:?}");
        assert!((150..300).contains(&heard.len()), "{} of 300", heard.len());
    }
}
