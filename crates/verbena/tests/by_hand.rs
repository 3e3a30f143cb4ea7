//! Queue pairs that connect without rdma_cm.

#[cfg(feature = "software")]
mod support;

#[cfg(feature = "software")]
mod software {
    use std::net::IpAddr;
    use std::time::Duration;

    use verbena::prelude::*;
    use verbena::verbs::Unconnected;
    use verbena::{
        Connected, Cq, ErrorKind, Memory, Pd, Provider, QueueConfig, QueuePair, Rc, RemoteWrite, Srq, Uc,
        block_on,
    };

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const LONG: Duration = Duration::from_secs(10);

    fn pd() -> Pd {
        Provider::software().unwrap().device_of(HERE).unwrap().pd().unwrap()
    }

    fn connected<T: Connected>(pd: &Pd, queues: &QueueConfig) -> (QueuePair<T>, QueuePair<T>) {
        let one = Unconnected::new(pd, HERE, &QueueConfig::default()).unwrap();
        let other = Unconnected::new(pd, HERE, queues).unwrap();
        let (of_one, of_other) = (one.endpoint(), other.endpoint());
        (one.connect(of_other).unwrap(), other.connect(of_one).unwrap())
    }

    fn greets<T: Connected>(pd: &Pd) -> (QueuePair<T>, QueuePair<T>) {
        let (one, other) = connected::<T>(pd, &QueueConfig::default());
        one.send_inline(b"hello").imm(1).wait().unwrap();
        let message = other.blocking_recv_timeout(LONG).unwrap().unwrap();
        assert_eq!((&message[..], message.imm()), (&b"hello"[..], Some(1)));
        other.send(message).wait().buf().unwrap();
        assert_eq!(&one.blocking_recv_timeout(LONG).unwrap().unwrap()[..], b"hello");
        (one, other)
    }

    #[test]
    fn two_queue_pairs_that_know_each_other_need_no_connection_manager() {
        let pd = pd();
        drop(greets::<Uc>(&pd));
        let (one, other) = greets::<Rc>(&pd);
        let memory = Memory::<RemoteWrite>::zeroed(4096).unwrap();
        let remote = memory.mr(&pd).unwrap().remote();
        assert_eq!(one.fetch_add(remote.word(8).unwrap(), 5).wait().unwrap(), 0);
        assert_eq!(one.compare_swap(remote.word(8).unwrap(), 5, 9).wait().unwrap(), 5);
        // No side tells of the end: the next request is not answered.
        drop(other);
        let error = loop {
            // Another thread may be about to drop its handle.
            if let Err(error) = one.send_inline(b"are you there?").wait() {
                break error;
            }
        };
        assert!(matches!(error.kind(), ErrorKind::Completion(_)), "{error}");
        assert!(block_on(one.recv()).is_err());
    }

    #[test]
    fn what_an_address_can_not_be_is_said() {
        let pd = pd();
        let foreign = Unconnected::<Rc>::new(&pd, "203.0.113.1".parse().unwrap(), &QueueConfig::default());
        assert_eq!(foreign.unwrap_err().kind(), ErrorKind::Unreachable);
        let ours = Unconnected::<Rc>::new(&pd, HERE, &QueueConfig::default()).unwrap();
        let mut other = ours.endpoint();
        other.addr = "::1".parse().unwrap();
        assert_eq!(ours.connect(other).unwrap_err().kind(), ErrorKind::Unreachable);
    }

    #[test]
    fn the_last_handle_of_a_queue_pair_gives_shared_receives_back() {
        let pd = pd();
        let (srq, cq) = (Srq::new(&pd, 4, 64).unwrap(), Cq::new(pd.device()).unwrap());
        let queues = QueueConfig::default().srq(&srq).cq(&cq);
        for _ in 0..8 {
            let (one, other) = connected::<Rc>(&pd, &queues);
            let sent: Vec<_> = (0..4).map(|n| one.send_inline(&[n]).post().unwrap()).collect();
            drop(other);
            drop((sent, one));
            assert_eq!(crate::support::soon((4, 0), || (srq.posted(), cq.users())), (4, 0));
        }
    }
}

#[cfg(feature = "sim")]
mod sim {
    use std::net::IpAddr;
    use std::time::Duration;

    use verbena::prelude::*;
    use verbena::sim::Host;
    use verbena::verbs::{Endpoint, Unconnected};
    use verbena::{Provider, QueueConfig, Rc, Result};

    fn unconnected(here: IpAddr) -> Result<Unconnected<Rc>> {
        let pd = Provider::current()?.device_of(here)?.pd()?;
        Unconnected::new(&pd, here, &QueueConfig::default())
    }

    fn told(bytes: &[u8], addr: IpAddr) -> Endpoint {
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Endpoint::new(addr, number(0), number(4))
    }

    fn tell(endpoint: Endpoint) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&endpoint.qp_num.to_be_bytes());
        bytes[4..].copy_from_slice(&endpoint.psn.to_be_bytes());
        bytes
    }

    #[verbena::test(seeds = 50, faults = "loss=2%, delay=20us..200us, reorder=2%")]
    async fn two_hosts_that_tell_each_other_by_their_own_ways_are_connected(left: Host, right: Host) {
        let (here, there) = (left.addr(), right.addr());
        let echo = right.spawn(async move {
            let request = verbena::listen("0.0.0.0:7000").await?.request().await?;
            let ours = unconnected(there)?;
            let (us, them) = (ours.endpoint(), told(request.private_data(), here));
            // Ready before the peer knows of it.
            let qp = ours.connect(them)?;
            let _ways = request.accept().private_data(tell(us)).await?;
            for _ in 0..20 {
                let message = qp.recv().await?.expect("a message");
                qp.send(message).await.buf()?;
            }
            // What the peer has not acknowledged is sent again only as long as the queue pair is
            // there.
            verbena::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, verbena::Error>(())
        });
        let says = left.spawn(async move {
            let ours = unconnected(here)?;
            let ways = verbena::connect("right:7000")
                .timeout(Duration::from_secs(60))
                .private_data(tell(ours.endpoint()))
                .await?;
            let qp = ours.connect(told(ways.private_data(), there))?;
            for n in 0..20_u8 {
                qp.send_inline(&[n]).await?;
                assert_eq!(qp.recv().await?.expect("an answer")[..], [n]);
            }
            verbena::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, verbena::Error>(())
        });
        says.await.unwrap();
        echo.await.unwrap();
    }
}
