//! The same between simulated hosts, over a network that loses packets.
#![cfg(feature = "sim")]

use std::time::Duration;

use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, FlushType, MrLocal, MrRemote, Peer, PeerCfg, Result, Usage,
};
use verbena::sim::Host;
use verbena::time::sleep;
use verbena::{ErrorKind, WcStatus};

/// Serves one connection, and gives it when it stands.
async fn serve(host: &Host, memory: &mut Option<MrLocal>) -> Result<Conn> {
    let peer = Peer::local(host.addr())?;
    let mr = MrLocal::zeroed(&peer, 4096, Usage::WRITE_DST | Usage::READ_SRC | Usage::FLUSH_VISIBILITY)?;
    let told = [&mr.descriptor()[..], &PeerCfg::of(&peer).descriptor()].concat();
    *memory = Some(mr);
    let ep = Ep::listen(&peer, "0.0.0.0:7000").await?;
    let conn = ep.next_conn_req(&ConnCfg::default()).await?.connect(&told)?;
    assert_eq!(conn.next_event().await?, ConnEvent::Established);
    Ok(conn)
}

async fn connect(host: &Host) -> Result<(Conn, MrRemote, Peer)> {
    let peer = Peer::local(host.addr())?;
    let cfg = ConnCfg { timeout: Duration::from_secs(5), ..ConnCfg::default() };
    let conn = ConnReq::new(&peer, "right:7000", &cfg).await?.connect(b"hello")?;
    assert_eq!(conn.next_event().await?, ConnEvent::Established);
    let told = conn.private_data().expect("established");
    let remote = MrRemote::from_descriptor(told)?;
    conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(&told[MrRemote::DESCRIPTOR..])?);
    Ok((conn, remote, peer))
}

#[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn entries_are_appended_through_losses(left: Host, right: Host) {
    let host = right.clone();
    let server = right.spawn(async move {
        let mut memory = None;
        let conn = serve(&host, &mut memory).await?;
        let told = conn.recv().await?.expect("a message");
        let memory = memory.expect("memory");
        for n in 0..told.imm().expect("a number") as usize {
            assert_eq!(memory.shared().load::<u64>(n * 8)?, n as u64 + 1);
        }
        assert_eq!(conn.next_event().await?, ConnEvent::Closed);
        Result::Ok(())
    });
    let host = left.clone();
    let client = left.spawn(async move {
        let (conn, remote, peer) = connect(&host).await?;
        let entry = MrLocal::zeroed(&peer, 8, Usage::WRITE_SRC)?;
        for n in 0..20_u64 {
            entry.shared().store(0, n + 1)?;
            if n % 2 == 0 {
                conn.write(entry.source(0..8)?, &remote, n * 8).await.0?;
            } else {
                conn.atomic_write(&remote, n * 8, (n + 1).to_ne_bytes()).await?;
            }
            conn.flush(&remote, n * 8, 8, FlushType::Visibility).await?;
        }
        let pool = verbena::Pool::new(peer.pd(), 8, 1)?;
        conn.send_with_imm(pool.get()?, 20).await.0?;
        conn.disconnect()?;
        assert_eq!(conn.next_event().await?, ConnEvent::Closed);
        Result::Ok(())
    });
    client.await.unwrap();
    server.await.unwrap();
}

#[verbena::test(seeds = 10)]
async fn a_peer_that_is_cut_off_is_lost_and_one_that_dies_has_closed(left: Host, right: Host) {
    let serves = |host: Host| async move {
        let conn = serve(&host, &mut None).await?;
        sleep(Duration::from_secs(3600)).await;
        drop(conn);
        Result::Ok(())
    };
    drop(right.spawn(serves(right.clone())));
    let (host, victim) = (left.clone(), right.clone());
    let client = left.spawn(async move {
        let (conn, remote, _peer) = connect(&host).await?;
        victim.kill();
        assert!(conn.atomic_write(&remote, 0, [1; 8]).await.is_err());
        // The system of a process that dies disconnects for it.
        assert_eq!(conn.next_event().await?, ConnEvent::Closed);
        Result::Ok(())
    });
    client.await.unwrap();
    right.restart();
    drop(right.spawn(serves(right.clone())));
    let host = left.clone();
    let victim = right.clone();
    let client = left.spawn(async move {
        let (conn, remote, _peer) = connect(&host).await?;
        host.partition(&victim, Duration::from_secs(3600));
        let lost = conn.atomic_write(&remote, 0, [1; 8]).await.unwrap_err();
        let why = lost.provider().and_then(verbena::Error::status);
        assert_eq!(why, Some(WcStatus::RetryExceeded));
        assert_eq!(conn.next_event().await?, ConnEvent::Lost);
        assert!(matches!(conn.next_event().await, Err(Error::NoEvent)));
        drop(conn);
        Result::Ok(())
    });
    client.await.unwrap();
}

#[verbena::test(seeds = 10)]
async fn nobody_answers_or_nobody_listens(left: Host, right: Host) {
    let (host, there) = (right.clone(), right.clone());
    drop(right.spawn(async move {
        // A host that listens at another port has its system answer for this one.
        let ep = Ep::listen(&Peer::local(host.addr())?, "0.0.0.0:7001").await?;
        ep.next_conn_req(&ConnCfg::default()).await.map(drop)
    }));
    let host = left.clone();
    let client = left.spawn(async move {
        let peer = Peer::local(host.addr())?;
        let request = ConnReq::new(&peer, "right:7000", &ConnCfg::default()).await?;
        let conn = request.connect(&[])?;
        assert_eq!(conn.next_event().await?, ConnEvent::Rejected);
        drop(conn);
        let request = ConnReq::new(&peer, "right:7000", &ConnCfg::default()).await?;
        there.kill();
        let conn = request.connect(&[])?;
        assert_eq!(conn.next_event().await?, ConnEvent::Unreachable);
        let blocks = conn.blocking_next_event().unwrap_err();
        assert_eq!(blocks.provider().map(verbena::Error::kind), Some(ErrorKind::BlockingInSimulation));
        Result::Ok(())
    });
    client.await.unwrap();
}
