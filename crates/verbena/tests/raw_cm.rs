//! Identifiers and events of the connection manager by hand, over queue pairs of the program's own.

#[cfg(feature = "sim")]
mod sim {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::time::Duration;

    use verbena::cm::raw::{Event, EventChannel, Id, Parameters, PortSpace, Service, What};
    use verbena::cm::{ConnParam, FlowControl, RnrRetry};
    use verbena::prelude::*;
    use verbena::sim::Host;
    use verbena::verbs::Unconnected;
    use verbena::{
        Connected, Error, ErrorKind, Provider, QueueConfig, QueuePair, Rc, RejectReason, Result, Uc, Value,
    };

    const LONG: Duration = Duration::from_secs(60);

    fn queue_pair<T: Connected>(id: &Id) -> Result<Unconnected<T>> {
        let (device, here) = (id.device().expect("a device"), id.local_addr().expect("an address"));
        Unconnected::new(&device.pd()?, here.ip(), &QueueConfig::default())
    }

    fn parameters(qp_num: u32) -> Parameters {
        let param = ConnParam::default().responder_resources(3).initiator_depth(2).retry_count(6);
        let param = param.rnr_retry_count(RnrRetry::Times(5)).flow_control(FlowControl::EndToEnd);
        Parameters::new(qp_num).param(param).srq(true)
    }

    async fn resolved(channel: &EventChannel, space: PortSpace, to: SocketAddr) -> Result<Id> {
        let id = Id::new(channel, space)?;
        id.resolve_addr(None, to, LONG)?;
        assert!(matches!(next(channel, &id).await.what, What::AddrResolved));
        id.resolve_route()?;
        assert!(matches!(next(channel, &id).await.what, What::RouteResolved));
        Ok(id)
    }

    async fn next(channel: &EventChannel, of: &Id) -> Event {
        let event = channel.next().await.expect("an event");
        assert_eq!(event.id, of.number(), "{event:?}");
        event
    }

    fn listening(channel: &EventChannel, space: PortSpace) -> Result<Id> {
        let id = Id::new(channel, space)?;
        id.bind("0.0.0.0:7000".parse().expect("an address"))?;
        id.listen(16)?;
        Ok(id)
    }

    fn failure(what: What) -> Error {
        match what {
            What::Failed(why) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Accepts requests by hand, echoes until each connection has ended, `connections` in all.
    async fn serve<T: Connected>(space: PortSpace, connections: usize) -> Result<()> {
        let channel = EventChannel::new(&Provider::current()?)?;
        let listener = listening(&channel, space)?;
        let mut living: BTreeMap<u64, (Id, QueuePair<T>)> = BTreeMap::new();
        let mut ended = 0;
        while ended < connections {
            let event = channel.next().await?;
            match event.what {
                What::ConnectRequest(id) => {
                    assert_eq!((event.id, &event.private_data[..5]), (listener.number(), &b"hello"[..]));
                    let told = event.parameters.expect("parameters");
                    let queues = queue_pair::<T>(&id)?;
                    let qp_num = queues.endpoint().qp_num;
                    let attr = id.attributes()?;
                    assert_eq!((attr.dest_qp_num, told.srq), (told.qp_num, true));
                    let qp = queues.connect_with(&attr)?;
                    id.accept(&parameters(qp_num), b"welcome")?;
                    let echo = qp.clone();
                    verbena::spawn(async move {
                        while let Some(message) = echo.recv().await? {
                            echo.send(message).await.buf()?;
                        }
                        Ok::<_, Error>(())
                    })?;
                    living.insert(id.number(), (id, qp));
                }
                What::Established | What::TimewaitExit => {}
                What::Disconnected => {
                    let (id, qp) = living.remove(&event.id).expect("a connection");
                    qp.fail()?;
                    // The peer is told that we know.
                    id.disconnect()?;
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    async fn greet<T: Connected>(space: PortSpace, to: SocketAddr) -> Result<()> {
        let channel = EventChannel::new(&Provider::current()?)?;
        let id = resolved(&channel, space, to).await?;
        assert_eq!(id.attributes().unwrap_err().kind(), ErrorKind::WrongState);
        let queues = queue_pair::<T>(&id)?;
        id.connect(&parameters(queues.endpoint().qp_num), b"hello")?;
        let event = next(&channel, &id).await;
        assert!(matches!(event.what, What::ConnectResponse), "{event:?}");
        assert_eq!(&event.private_data[..8], b"welcome\0");
        let told = event.parameters.expect("parameters");
        let attr = id.attributes()?;
        assert_eq!((attr.dest_qp_num, attr.peer()), (told.qp_num, to.ip()));
        let qp = queues.connect_with(&attr)?;
        id.establish()?;
        assert_eq!(id.establish().unwrap_err().kind(), ErrorKind::WrongState);
        for n in 0..10_u8 {
            qp.send_inline(&[n]).await?;
            assert_eq!(qp.recv().await?.expect("an answer")[..], [n]);
        }
        id.disconnect()?;
        let event = next(&channel, &id).await;
        assert!(matches!(event.what, What::Disconnected), "{event:?}");
        qp.fail()?;
        assert!(qp.recv().await?.is_none());
        Ok(())
    }

    #[verbena::test(seeds = 50, faults = "loss=1%, delay=20us..200us, reorder=2%")]
    async fn both_sides_connect_their_own_queue_pairs_by_events(left: Host, right: Host) {
        let to = SocketAddr::new(right.addr(), 7000);
        let server = right.spawn(serve::<Rc>(PortSpace::Tcp, 3));
        left.spawn(async move {
            for _ in 0..3 {
                greet::<Rc>(PortSpace::Tcp, to).await.expect("greeted");
            }
        })
        .await;
        server.await.unwrap();
    }

    #[verbena::test(seeds = 5)]
    async fn unreliable_connections_are_made_by_hand_too(left: Host, right: Host) {
        let (to, space) = (SocketAddr::new(right.addr(), 7000), PortSpace::Ib(Service::Uc));
        let server = right.spawn(serve::<Uc>(space, 1));
        left.spawn(greet::<Uc>(space, to)).await.unwrap();
        server.await.unwrap();
    }

    #[verbena::test(seeds = 10, faults = "loss=1%")]
    async fn a_request_is_rejected_by_its_identifier_by_a_drop_or_for_want_of_a_listener(
        left: Host,
        right: Host,
    ) {
        let to = SocketAddr::new(right.addr(), 7000);
        let server = right.spawn(async {
            let channel = EventChannel::new(&Provider::current()?)?;
            let _listener = listening(&channel, PortSpace::Tcp)?;
            for says in [Some(&b"no"[..]), None] {
                match (channel.next().await?.what, says) {
                    (What::ConnectRequest(id), Some(why)) => id.reject(why)?,
                    (What::ConnectRequest(id), None) => drop(id),
                    (other, _) => panic!("{other:?}"),
                }
            }
            verbena::time::sleep(Duration::from_secs(1)).await;
            // An event that no task takes goes with the channel.
            Ok::<_, Error>(())
        });
        let asks = left.spawn(async move {
            let channel = EventChannel::new(&Provider::current()?)?;
            let mut reasons = Vec::new();
            for _ in 0..4 {
                let id = resolved(&channel, PortSpace::Tcp, to).await?;
                let queues = queue_pair::<Rc>(&id)?;
                id.connect(&parameters(queues.endpoint().qp_num), b"")?;
                let why = failure(next(&channel, &id).await.what);
                let rejection = why.rejection().expect("a rejection").clone();
                reasons.push((rejection.reason, rejection.private_data.starts_with(b"no")));
            }
            Ok::<_, Error>(reasons)
        });
        let reasons = asks.await.unwrap();
        assert_eq!(reasons[..2], [(RejectReason::Consumer, true), (RejectReason::Consumer, false)]);
        assert_eq!(reasons[3], (RejectReason::InvalidServiceId, false));
        server.await.unwrap();
    }

    #[verbena::test]
    async fn events_go_to_the_channel_that_an_identifier_has_migrated_to(left: Host, right: Host) {
        let server = right.spawn(serve::<Rc>(PortSpace::Tcp, 1));
        let to = SocketAddr::new(right.addr(), 7000);
        left.spawn(async move {
            let provider = Provider::current()?;
            let (one, other) = (EventChannel::new(&provider)?, EventChannel::new(&provider)?);
            let id = Id::new(&one, PortSpace::Tcp)?;
            id.resolve_addr(None, to, LONG)?;
            verbena::time::sleep(Duration::from_millis(10)).await;
            id.migrate(&other)?;
            assert!(one.try_next()?.is_none());
            assert!(matches!(next(&other, &id).await.what, What::AddrResolved));
            id.resolve_route()?;
            // No task hears the old one any more.
            drop(one);
            assert!(matches!(next(&other, &id).await.what, What::RouteResolved));
            drop(id);
            greet::<Rc>(PortSpace::Tcp, to).await
        })
        .await
        .unwrap();
        server.await.unwrap();
    }

    #[verbena::test]
    async fn a_datagram_service_is_looked_up_by_hand(left: Host, right: Host) {
        let to = SocketAddr::new(right.addr(), 7000);
        let server = right.spawn(async {
            let channel = EventChannel::new(&Provider::current()?)?;
            let _listener = listening(&channel, PortSpace::Udp)?;
            match channel.next().await?.what {
                What::ConnectRequest(id) => {
                    id.accept(&Parameters::new(0x1234), b"here")?;
                }
                other => panic!("{other:?}"),
            }
            verbena::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Error>(())
        });
        let event = left.spawn(async move {
            let channel = EventChannel::new(&Provider::current()?)?;
            let id = resolved(&channel, PortSpace::Udp, to).await?;
            id.connect(&Parameters::default(), b"where?")?;
            let event = next(&channel, &id).await;
            Ok::<_, Error>((event.ud.expect("an address"), event.private_data))
        });
        let (address, data) = event.await.unwrap();
        assert_eq!((address.ip(), address.qp_num()), (to.ip(), 0x1234));
        assert!(data.starts_with(b"here"));
        server.await.unwrap();
    }

    #[verbena::test]
    async fn wrong_values_and_calls_out_of_order_are_errors_of_the_call(left: Host) {
        left.spawn(async {
            let channel = EventChannel::new(&Provider::current()?)?;
            let id = Id::new(&channel, PortSpace::Tcp)?;
            let wrong = id.connect(&parameters(1 << 24), b"").unwrap_err();
            let value = Value::Number { name: "qp_num", is: 1 << 24, allowed: 0..=0xff_ffff };
            assert_eq!((wrong.kind(), wrong.value()), (ErrorKind::OutOfRange, Some(&value)));
            assert_eq!(id.connect(&parameters(1), &[0; 57]).unwrap_err().kind(), ErrorKind::OutOfRange);
            assert_eq!(id.listen(0).unwrap_err().kind(), ErrorKind::OutOfRange);
            for early in [
                id.connect(&parameters(1), b""),
                id.accept(&parameters(1), b""),
                id.reject(b""),
                id.establish(),
                id.disconnect(),
                id.note_data_received().map(drop),
                id.attributes().map(drop),
            ] {
                assert_eq!(early.unwrap_err().kind(), ErrorKind::WrongState);
            }
            assert!(channel.try_next()?.is_none());
            assert_eq!(channel.blocking_next().unwrap_err().kind(), ErrorKind::BlockingInSimulation);
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    }
}

#[cfg(feature = "software")]
mod software {
    use std::time::Duration;

    use verbena::cm::raw::{EventChannel, Id, Parameters, PortSpace, What};
    use verbena::verbs::Unconnected;
    use verbena::{Provider, QueueConfig, Rc};

    #[test]
    fn two_threads_connect_by_events_over_sockets() {
        let provider = Provider::software().unwrap();
        let channel = EventChannel::new(&provider).unwrap();
        let listener = Id::new(&channel, PortSpace::Tcp).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(4).unwrap();
        let to = listener.local_addr().unwrap();
        let queue_pair = |id: &Id| {
            let pd = id.device().unwrap().pd().unwrap();
            Unconnected::<Rc>::new(&pd, id.local_addr().unwrap().ip(), &QueueConfig::default()).unwrap()
        };
        let told = |qp: &Unconnected<Rc>| Parameters::new(qp.endpoint().qp_num);
        std::thread::scope(|s| {
            s.spawn(|| {
                let channel = EventChannel::new(&provider).unwrap();
                let id = Id::new(&channel, PortSpace::Tcp).unwrap();
                id.resolve_addr(None, to, Duration::from_secs(5)).unwrap();
                assert!(matches!(channel.blocking_next().unwrap().what, What::AddrResolved));
                id.resolve_route().unwrap();
                assert!(matches!(channel.blocking_next().unwrap().what, What::RouteResolved));
                let mine = queue_pair(&id);
                id.connect(&told(&mine), b"").unwrap();
                assert!(matches!(channel.blocking_next().unwrap().what, What::ConnectResponse));
                let qp = mine.connect_with(&id.attributes().unwrap()).unwrap();
                id.establish().unwrap();
                qp.send_inline(b"hello").wait().unwrap();
                assert_eq!(&qp.blocking_recv().unwrap().unwrap()[..], b"hello");
                id.disconnect().unwrap();
                assert!(matches!(channel.blocking_next().unwrap().what, What::Disconnected));
            });
            let What::ConnectRequest(id) = channel.blocking_next().unwrap().what else { panic!("a request") };
            let mine = queue_pair(&id);
            let told = told(&mine);
            let qp = mine.connect_with(&id.attributes().unwrap()).unwrap();
            id.accept(&told, b"").unwrap();
            assert!(matches!(channel.blocking_next().unwrap().what, What::Established));
            assert!(!id.note_data_received().unwrap());
            let message = qp.blocking_recv().unwrap().unwrap();
            qp.send(message).wait().0.unwrap();
            let ended = channel.blocking_next().unwrap();
            assert!(matches!(ended.what, What::Disconnected) && ended.id == id.number(), "{ended:?}");
            id.disconnect().unwrap();
        });
    }
}
