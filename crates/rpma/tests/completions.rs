//! Completions by a queue: between simulated hosts, and blocking over software.
#![cfg(all(feature = "sim", feature = "software"))]

use std::thread;

use rpma::cq::{Flags, Wc};
use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Cq, Ep, Error, FlushType, MrLocal, MrRemote, Peer, Result, Usage,
};
use verbena::Pool;
use verbena::sim::Host;

/// Sends as many messages as it gets a number for, and leaves.
async fn sender(host: Host) -> Result<()> {
    let peer = Peer::local(host.addr())?;
    let mr = MrLocal::zeroed(&peer, 64, Usage::WRITE_DST | Usage::FLUSH_VISIBILITY)?;
    let ep = Ep::listen(&peer, "0.0.0.0:7000").await?;
    let conn = ep.next_conn_req(&ConnCfg::default()).await?.connect(&mr.descriptor())?;
    conn.next_event().await?;
    let pool = Pool::new(peer.pd(), 8, 1)?;
    while let Some(asked) = conn.recv().await? {
        for n in 0..asked.imm().unwrap() {
            conn.send_with_imm(pool.get()?, n).await.0?;
        }
    }
    Ok(())
}

async fn connect(host: &Host, cfg: &ConnCfg) -> Result<(Conn, Cq, MrRemote, Peer)> {
    let peer = Peer::local(host.addr())?;
    let conn = ConnReq::new(&peer, "right:7000", cfg).await?.connect(&[])?;
    assert_eq!(conn.next_event().await?, ConnEvent::Established);
    let remote = MrRemote::from_descriptor(conn.private_data().expect("established"))?;
    let cq = conn.take_cq().expect("a queue");
    assert!(conn.take_cq().is_none());
    Ok((conn, cq, remote, peer))
}

#[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us")]
async fn completions_come_in_order_and_messages_beside_them(left: Host, right: Host) {
    drop(right.spawn(sender(right.clone())));
    let host = left.clone();
    let client = left.spawn(async move {
        let (conn, mut cq, remote, peer) = connect(&host, &ConnCfg::default()).await?;
        let mr = MrLocal::zeroed(&peer, 64, Usage::WRITE_SRC)?;
        assert!(matches!(cq.try_next(), Err(Error::NoCompletion)));
        let write = || conn.write(mr.source(0..8).unwrap(), &remote, 0);
        for context in 0..8 {
            let flags = if context % 2 == 0 { Flags::Always } else { Flags::OnError };
            write().post_to_cq(context, flags)?;
        }
        let flush = || conn.flush(&remote, 0, 8, FlushType::Visibility);
        flush().post_to_cq(8, Flags::Always)?;
        let pool = Pool::new(peer.pd(), 8, 1)?;
        conn.send_with_imm(pool.get()?, 5).post_to_cq(9, Flags::Always)?;
        assert!(matches!(flush().post_to_cq(10, Flags::Always), Err(Error::Again)), "ten are under way");
        let refused = write().post_to_cq(10, Flags::Always).unwrap_err();
        assert!(matches!(refused.error(), Error::Again));
        let (mut done, mut come) = (Vec::new(), Vec::new());
        while done.len() < 6 || come.len() < 5 {
            match cq.next().await? {
                Wc::Completion { context, result } => done.push((context, result.is_ok())),
                Wc::Message(message) => come.push(message.imm()),
            }
        }
        assert_eq!(done, [0, 2, 4, 6, 8, 9].map(|context| (context, true)));
        assert_eq!(come, [0, 1, 2, 3, 4].map(Some));
        assert!(matches!(cq.next_of_both().await, Err(Error::NotSharedChannel)));
        conn.disconnect()?;
        // What is posted too late is flushed, and a failure is told of in any case.
        write().post_to_cq(11, Flags::OnError)?;
        assert!(matches!(cq.next().await?, Wc::Completion { context: 11, result: Err(_) }));
        assert!(matches!(cq.next().await, Err(Error::NoCompletion)));
        Result::Ok(())
    });
    client.await.unwrap();
}

#[verbena::test(seeds = 10)]
async fn queues_apart_share_a_channel_where_that_was_asked_for(left: Host, right: Host) {
    drop(right.spawn(sender(right.clone())));
    let host = left.clone();
    let client = left.spawn(async move {
        let apart = ConnCfg { rcq_size: 10, ..ConnCfg::default() };
        let (conn, mut cq, _, peer) = connect(&host, &apart).await?;
        let pool = Pool::new(peer.pd(), 8, 1)?;
        conn.send_with_imm(pool.get()?, 1).post_to_cq(1, Flags::Always)?;
        assert!(matches!(cq.next().await?, Wc::Completion { context: 1, .. }));
        assert_eq!(conn.recv().await?.expect("a message").imm(), Some(0));
        assert!(matches!(cq.try_next(), Err(Error::NoCompletion)));
        Result::Ok(())
    });
    client.await.unwrap();
    right.restart();
    drop(right.spawn(sender(right.clone())));
    let host = left.clone();
    let client = left.spawn(async move {
        let shared = ConnCfg { rcq_size: 10, shared_comp_channel: true, ..ConnCfg::default() };
        let (conn, mut cq, remote, peer) = connect(&host, &shared).await?;
        assert!(matches!(cq.next().await, Err(Error::SharedChannel)));
        let pool = Pool::new(peer.pd(), 8, 1)?;
        conn.send_with_imm(pool.get()?, 1).post_to_cq(1, Flags::Always)?;
        let both = [cq.next_of_both().await?, cq.next_of_both().await?];
        assert_eq!(both.iter().filter(|wc| matches!(wc, Wc::Message(_))).count(), 1);
        let mr = MrLocal::zeroed(&peer, 8, Usage::READ_DST)?;
        let read = conn.read(mr.destination(0..8)?, &remote, 0, 8);
        // What is flushed when the connection ends has failed, whatever the flags.
        read.post_to_cq(2, Flags::OnError)?;
        conn.disconnect()?;
        assert!(matches!(cq.next_of_both().await?, Wc::Completion { context: 2, result: Err(_) }));
        assert!(matches!(cq.next_of_both().await, Err(Error::NoCompletion)));
        Result::Ok(())
    });
    client.await.unwrap();
}

#[test]
fn a_queue_that_waits_hears_of_what_others_post() {
    let peer = Peer::local("127.0.0.1".parse().unwrap()).unwrap();
    let ep = Ep::blocking_listen(&peer, "127.0.0.1:0").unwrap();
    let to = ep.local_addr();
    let passive = thread::spawn(move || {
        let conn = ep.blocking_next_conn_req(&ConnCfg::default())?.connect(&[])?;
        while conn.blocking_recv()?.is_some() {}
        Result::Ok(())
    });
    let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default()).unwrap().connect(&[]).unwrap();
    conn.blocking_next_event().unwrap();
    let mut cq = conn.take_cq().unwrap();
    let waits = thread::spawn(move || (0..50).try_for_each(|_| cq.blocking_next().map(drop)));
    let pool = Pool::new(conn.pd(), 8, 16).unwrap();
    for context in 0..50 {
        let mut op = conn.send(pool.get().unwrap());
        while let Err(failed) = op.post_to_cq(context, Flags::Always) {
            let (error, back) = failed.into_parts();
            assert!(matches!(error, Error::Again) || error.provider().is_some(), "{error}");
            thread::yield_now();
            op = back;
        }
    }
    waits.join().unwrap().unwrap();
    conn.disconnect().unwrap();
    passive.join().unwrap().unwrap();
}
