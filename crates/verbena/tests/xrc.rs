//! Extended reliable connections: one connection reaches the shared receive queues of a domain, and
//! the memory of their protection domains.

#[cfg(feature = "software")]
mod support;

#[cfg(feature = "sim")]
mod sim {
    use std::net::{IpAddr, SocketAddr};
    use std::time::Duration;

    use verbena::cm::raw::{EventChannel, Id, Parameters, PortSpace, Service, What};
    use verbena::prelude::*;
    use verbena::sim::Host;
    use verbena::verbs::{Endpoint, Unconnected, XrcDomain};
    use verbena::{
        Device, Error, ErrorKind, Memory, Pool, Provider, QueueConfig, QueuePair, RemoteMemory, RemoteWrite,
        Result, XrcSend, XrcSrq,
    };

    const LONG: Duration = Duration::from_secs(60);

    fn device(here: IpAddr) -> Result<Device> {
        Provider::current()?.device_of(here)
    }

    /// A queue of a domain, in a protection domain of its own, and memory there.
    fn part(domain: &XrcDomain, device: &Device) -> Result<(XrcSrq, RemoteMemory, Memory<RemoteWrite>)> {
        let pd = device.new_pd()?;
        let memory = Memory::<RemoteWrite>::zeroed(64)?;
        let remote = memory.mr(&pd)?.remote();
        Ok((domain.srq(&pd, 4, 64)?, remote, memory))
    }

    fn tell(part: &(XrcSrq, RemoteMemory, Memory<RemoteWrite>)) -> Vec<u8> {
        [&part.0.number().to_be_bytes()[..], &part.1.to_bytes()].concat()
    }

    fn told(data: &[u8]) -> (u32, RemoteMemory) {
        let number = u32::from_be_bytes(data[..4].try_into().expect("four bytes"));
        (number, RemoteMemory::from_bytes(&data[4..]).expect("a descriptor"))
    }

    /// Sends to both parts, more than their receives; writes, reads and counts in their memory.
    async fn use_both(qp: &QueuePair<XrcSend>, parts: &[(u32, RemoteMemory)]) -> Result<()> {
        let pool = Pool::new(qp.pd(), 64, 2)?;
        for n in 0..10_u8 {
            for (at, &(number, remote)) in parts.iter().enumerate() {
                let to = qp.to_srq(number);
                to.send_inline(&[at as u8, n]).imm(7).await?;
                to.write(pool.copy(&[n; 8])?, remote.slice(8..16)?).await.buf()?;
                let read = to.read(pool.get()?, remote.slice(8..16)?).await.buf()?;
                assert_eq!(read[..], [n; 8]);
                assert_eq!(to.fetch_add(remote.word(0)?, 1).await?, u64::from(n));
            }
        }
        Ok(())
    }

    async fn hear(srq: XrcSrq, at: u8) -> Result<()> {
        for n in 0..10 {
            let message = srq.recv().await?;
            assert_eq!((&message[..], message.imm()), (&[at, n][..], Some(7)));
        }
        // The task that waited for the last one goes first.
        verbena::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(srq.posted(), srq.depth());
        Ok(())
    }

    #[verbena::test(seeds = 50, faults = "loss=1%, delay=20us..200us, reorder=2%")]
    async fn one_initiator_reaches_the_queues_and_the_memory_of_two_parts(left: Host, right: Host) {
        let (here, there) = (left.addr(), right.addr());
        let receives = right.spawn(async move {
            let request = verbena::listen("0.0.0.0:7000").await?.request().await?;
            let device = device(there)?;
            let domain = XrcDomain::open(&device, None)?;
            let parts = [part(&domain, &device)?, part(&domain, &device)?];
            let target = domain.target(there)?;
            let data = request.private_data();
            let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes"));
            let ours = target.endpoint();
            let target = target.connect(Endpoint::new(here, number(0), number(4)))?;
            let ends = [ours.qp_num.to_be_bytes(), ours.psn.to_be_bytes()].concat();
            let ways = [ends, tell(&parts[0]), tell(&parts[1])].concat();
            let _ways = request.accept().private_data(ways).await?;
            let [one, other] = parts;
            let first = hear(one.0.clone(), 0);
            verbena::spawn(async { first.await.expect("no error") })?;
            hear(other.0.clone(), 1).await?;
            // The last request named a key of the other part.
            assert!(!target.is_connected());
            assert_eq!(one.2.shared().load::<u64>(0)?, 10);
            Ok::<_, Error>(())
        });
        let sends = left.spawn(async move {
            let pd = device(here)?.pd()?;
            let ours = Unconnected::<XrcSend>::new(&pd, here, &QueueConfig::default())?;
            let us = ours.endpoint();
            let ways = verbena::connect("right:7000")
                .timeout(LONG)
                .private_data([us.qp_num.to_be_bytes(), us.psn.to_be_bytes()].concat())
                .await?;
            let data = ways.private_data();
            let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes"));
            let qp = ours.connect(Endpoint::new(there, number(0), number(4)))?;
            use_both(&qp, &[told(&data[8..]), told(&data[32..])]).await?;
            // A key of one part is none of the other's.
            let (one, other) = (told(&data[8..]), told(&data[32..]));
            let wrong = qp.to_srq(one.0).write_inline(&[1; 8], other.1).await.expect_err("refused");
            assert!(matches!(wrong.kind(), ErrorKind::Completion(_)), "{wrong}");
            Ok::<_, Error>(())
        });
        sends.await.unwrap();
        receives.await.unwrap();
    }

    #[verbena::test(seeds = 10, faults = "loss=1%")]
    async fn rdma_cm_connects_an_initiator_with_a_target(left: Host, right: Host) {
        let (here, there) = (left.addr(), right.addr());
        let space = PortSpace::Ib(Service::Xrc);
        let receives = right.spawn(async move {
            let channel = EventChannel::new(&Provider::current()?)?;
            let listener = Id::new(&channel, space)?;
            listener.bind(SocketAddr::new(there, 7000))?;
            listener.listen(4)?;
            let device = device(there)?;
            let domain = XrcDomain::open(&device, None)?;
            let part = part(&domain, &device)?;
            let What::ConnectRequest(id) = channel.next().await?.what else { panic!("a request") };
            let target = domain.target(there)?;
            let parameters = Parameters::new(target.endpoint().qp_num);
            let _target = target.connect_with(&id.attributes()?)?;
            id.accept(&parameters, &tell(&part))?;
            hear(part.0.clone(), 0).await
        });
        let sends = left.spawn(async move {
            let channel = EventChannel::new(&Provider::current()?)?;
            let id = Id::new(&channel, space)?;
            id.resolve_addr(None, SocketAddr::new(there, 7000), LONG)?;
            assert!(matches!(channel.next().await?.what, What::AddrResolved));
            id.resolve_route()?;
            assert!(matches!(channel.next().await?.what, What::RouteResolved));
            let ours = Unconnected::<XrcSend>::new(&device(here)?.pd()?, here, &QueueConfig::default())?;
            let parameters = Parameters::new(ours.endpoint().qp_num);
            id.connect(&parameters, b"")?;
            let event = channel.next().await?;
            assert!(matches!(event.what, What::ConnectResponse), "{event:?}");
            let qp = ours.connect_with(&id.attributes()?)?;
            id.establish()?;
            use_both(&qp, &[told(&event.private_data)]).await?;
            verbena::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Error>(())
        });
        sends.await.unwrap();
        receives.await.unwrap();
    }
}

#[cfg(feature = "software")]
mod software {
    use std::net::{IpAddr, Ipv4Addr};

    use verbena::verbs::{Unconnected, XrcDomain};
    use verbena::{ErrorKind, Provider, QueueConfig, XrcSend};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_target_gives_receives_back_and_goes_in_any_order() {
        let device = Provider::software().unwrap().device_of(HERE).unwrap();
        let pd = device.pd().unwrap();
        for order in 0..3 {
            let domain = XrcDomain::open(&device, None).unwrap();
            let srq = domain.srq(&pd, 4, 64).unwrap();
            let (target, ours) = (
                domain.target(HERE).unwrap(),
                Unconnected::<XrcSend>::new(&pd, HERE, &QueueConfig::default()).unwrap(),
            );
            let (us, them) = (ours.endpoint(), target.endpoint());
            let (target, qp) = (target.connect(us).unwrap(), ours.connect(them).unwrap());
            qp.to_srq(srq.number()).send_inline(b"hello").wait().unwrap();
            let message = srq.blocking_recv().unwrap();
            assert_eq!((&message[..], srq.posted()), (&b"hello"[..], 3));
            match order {
                0 => {
                    drop(message);
                    assert_eq!(
                        (crate::support::soon(4, || srq.posted()), srq.try_recv().is_none()),
                        (4, true)
                    );
                    drop((domain, srq, target, qp));
                }
                1 => drop((qp, target, srq, domain, message)),
                _ => drop((srq, message, domain, qp, target)),
            }
        }
    }

    #[test]
    fn handles_of_one_file_name_one_domain() {
        let device = Provider::software().unwrap().device_of(HERE).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (one, other) =
            (XrcDomain::open(&device, Some(&file)).unwrap(), XrcDomain::open(&device, Some(&file)).unwrap());
        let pd = device.pd().unwrap();
        let srq = one.srq(&pd, 1, 64).unwrap();
        let (target, ours) = (
            other.target(HERE).unwrap(),
            Unconnected::<XrcSend>::new(&pd, HERE, &QueueConfig::default()).unwrap(),
        );
        let (us, them) = (ours.endpoint(), target.endpoint());
        let (_target, qp) = (target.connect(us).unwrap(), ours.connect(them).unwrap());
        qp.to_srq(srq.number()).send_inline(b"by either").wait().unwrap();
        assert_eq!(&srq.blocking_recv().unwrap()[..], b"by either");
        assert_eq!(one.srq(&pd, 0, 64).unwrap_err().kind(), ErrorKind::OutOfRange);
        assert_eq!(other.target("203.0.113.1".parse().unwrap()).unwrap_err().kind(), ErrorKind::Unreachable);
    }
}
