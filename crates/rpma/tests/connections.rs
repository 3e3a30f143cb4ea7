//! Connections, from their request to their end, over software on 127.0.0.1, or what `support`
//! says.
#![cfg(feature = "software")]

mod support;

use std::thread::{self, JoinHandle};

use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, Peer, Result, Srq, SrqCfg};
use support::peer;
use verbena::{ErrorKind, Pool};

fn assert_shared<T: Send + Sync + 'static>() {}

/// Both ends, established; the passive one first.
fn connected(cfg: &ConnCfg) -> (Conn, Conn) {
    let peer = peer();
    let ep = Ep::blocking_listen(&peer, support::address()).unwrap();
    let to = ep.local_addr();
    let theirs = cfg.clone();
    let passive: JoinHandle<Result<Conn>> = thread::spawn(move || {
        let request = ep.blocking_next_conn_req(&theirs)?;
        assert!(request.private_data().unwrap().starts_with(b"hello"));
        let conn = request.connect(b"welcome")?;
        assert_eq!(conn.blocking_next_event()?, ConnEvent::Established);
        Ok(conn)
    });
    let active = ConnReq::blocking_new(&peer, to, cfg).unwrap().connect(b"hello").unwrap();
    assert!(active.private_data().is_none());
    assert_eq!(active.blocking_next_event().unwrap(), ConnEvent::Established);
    (passive.join().unwrap().unwrap(), active)
}

#[test]
fn events_come_in_order_and_private_data_goes_both_ways() {
    let (passive, active) = connected(&ConnCfg::default());
    assert!(active.private_data().unwrap().starts_with(b"welcome\0"));
    assert!(passive.private_data().unwrap().starts_with(b"hello\0"));
    active.disconnect().unwrap();
    for conn in [&active, &passive] {
        assert_eq!(conn.blocking_next_event().unwrap(), ConnEvent::Closed);
        conn.disconnect().unwrap();
        assert!(matches!(conn.blocking_next_event(), Err(Error::NoEvent)));
        assert!(conn.blocking_recv().unwrap().is_none());
    }
}

#[test]
fn each_event_comes_to_one_of_those_who_wait() {
    let (passive, active) = connected(&ConnCfg::default());
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let conn = passive.clone();
            thread::spawn(move || conn.blocking_next_event())
        })
        .collect();
    drop(active);
    let told: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(told.iter().filter(|event| matches!(event, Ok(ConnEvent::Closed))).count(), 1);
    assert_eq!(told.iter().filter(|event| matches!(event, Err(Error::NoEvent))).count(), 3);
}

#[test]
fn a_refusal_is_an_event() {
    let peer = peer();
    let ep = Ep::blocking_listen(&peer, support::address()).unwrap();
    let to = ep.local_addr();
    let refuses = thread::spawn(move || {
        ep.blocking_next_conn_req(&ConnCfg::default())?.reject(b"no")?;
        // Dropped, it is refused too.
        drop(ep.blocking_next_conn_req(&ConnCfg::default())?);
        ep.shutdown();
        Result::Ok(())
    });
    for _ in 0..2 {
        let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default()).unwrap().connect(&[]).unwrap();
        assert_eq!(conn.blocking_next_event().unwrap(), ConnEvent::Rejected);
        conn.disconnect().unwrap();
        assert!(matches!(conn.blocking_next_event(), Err(Error::NoEvent)));
    }
    refuses.join().unwrap().unwrap();
    let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default()).unwrap().connect(&[]).unwrap();
    assert_eq!(conn.blocking_next_event().unwrap(), ConnEvent::Rejected, "nobody listens any more");
}

#[test]
fn what_can_not_be_is_said() {
    let peer = peer();
    let provider = |error: &Error| error.provider().map(verbena::Error::kind);
    let no_host = ConnReq::blocking_new(&peer, "no.such.host.invalid:7", &ConnCfg::default()).unwrap_err();
    assert_eq!((no_host.code(), provider(&no_host)), (-100_002, Some(ErrorKind::NotFound)));
    let ep = Ep::blocking_listen(&peer, support::address()).unwrap();
    let taken = Ep::blocking_listen(&peer, ep.local_addr()).unwrap_err();
    assert_eq!(provider(&taken), Some(ErrorKind::AddressInUse));
    let none = ConnCfg { cq_size: 0, ..ConnCfg::default() };
    assert!(matches!(ConnReq::blocking_new(&peer, ep.local_addr(), &none), Err(Error::Inval(_))));
    let request = || ConnReq::blocking_new(&peer, ep.local_addr(), &ConnCfg::default()).unwrap();
    assert_eq!(provider(&request().connect(&[0; 57]).unwrap_err()), Some(ErrorKind::OutOfRange));
    let conn = request().connect(&[0; 56]).unwrap();
    assert_eq!(provider(&conn.disconnect().unwrap_err()), Some(ErrorKind::WrongState));
    let pool = Pool::new(peer.pd(), 8, 1).unwrap();
    let early = conn.send(pool.copy(b"early").unwrap()).wait();
    assert_eq!(provider(&early.0.unwrap_err()), Some(ErrorKind::WrongState));
    assert_eq!(&early.1[..], b"early", "the buffer is back");
    assert!(Peer::local("203.0.113.7".parse().unwrap()).is_err());
}

#[test]
fn messages_come_and_go_with_numbers() {
    let (passive, active) = connected(&ConnCfg { rcq_size: 10, ..ConnCfg::default() });
    let echo = thread::spawn(move || {
        while let Some(message) = passive.blocking_recv()? {
            let imm = message.imm().unwrap();
            passive.send_with_imm(message, imm + 1).wait().0?;
        }
        Result::Ok(())
    });
    let pool = Pool::new(active.pd(), 64, 1).unwrap();
    for n in 0..200_u32 {
        let buf = pool.copy(&n.to_le_bytes()).unwrap();
        active.send_with_imm(buf, n).wait().0.unwrap();
        let answer = active.blocking_recv().unwrap().unwrap();
        assert_eq!((&answer[..], answer.imm()), (&n.to_le_bytes()[..], Some(n + 1)));
    }
    active.disconnect().unwrap();
    echo.join().unwrap().unwrap();
}

#[test]
fn connections_share_receives() {
    if !support::is_software() {
        return; // not over rdma-core so far
    }
    let peer = peer();
    let srq = Srq::new(&peer, &SrqCfg { rq_size: 4, ..SrqCfg::default() }).unwrap();
    let ep = Ep::blocking_listen(&peer, support::address()).unwrap();
    let to = ep.local_addr();
    let cfg = ConnCfg { srq: Some(srq.clone()), ..ConnCfg::default() };
    let passive = thread::spawn(move || {
        let accept = || {
            let conn = ep.blocking_next_conn_req(&cfg)?.connect(&[])?;
            conn.blocking_next_event().map(|_| conn)
        };
        [accept(), accept()]
    });
    let connect = || {
        let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default()).unwrap().connect(&[]).unwrap();
        assert_eq!(conn.blocking_next_event().unwrap(), ConnEvent::Established);
        conn
    };
    let active = [connect(), connect()];
    let passive = passive.join().unwrap().map(Result::unwrap);
    let pool = Pool::new(peer.pd(), 64, 1).unwrap();
    for (n, (from, to)) in active.iter().zip(&passive).enumerate() {
        from.send(pool.copy(&[n as u8]).unwrap()).wait().0.unwrap();
        let message = to.blocking_recv().unwrap().unwrap();
        assert_eq!((&message[..], srq.posted()), (&[n as u8][..], 3));
    }
    assert_eq!(srq.posted(), 4);
}

#[test]
fn all_objects_are_for_any_thread() {
    assert_shared::<Conn>();
    assert_shared::<ConnReq>();
    assert_shared::<Ep>();
    assert_shared::<Peer>();
    assert_shared::<Srq>();
    assert_shared::<rpma::MrLocal>();
    assert_shared::<rpma::MrRemote>();
    assert_shared::<Error>();
}
