//! Datagram sockets: lookup, messages to and fro, multicast groups, and what is refused. On the
//! loopback device, and on simulated hosts.

#[cfg(feature = "software")]
mod support;

use std::time::Duration;

use verbena::prelude::*;
use verbena::{ErrorKind, UdSocket, Value};

#[cfg(feature = "software")]
mod software {
    use std::future::IntoFuture;
    use std::net::IpAddr;
    use std::task::{Context, Waker};
    use std::thread;

    use verbena::cm::limits;
    use verbena::{Pool, QueueConfig, RejectReason, UdAddress, block_on};

    use super::*;

    const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));
    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(50);

    /// A socket to be, over what `support` says.
    fn bind(on: impl verbena::cm::ToAddr) -> verbena::ud::Bind {
        UdSocket::bind(on).provider(&support::provider())
    }

    fn socket() -> UdSocket {
        bind(support::any_port()).wait().unwrap()
    }

    #[test]
    fn a_lookup_tells_the_queue_pair_that_serves_and_what_it_says_of_itself() {
        let server = bind(support::any_port()).private_data(b"the time").wait().unwrap();
        let client = socket();
        let service = client.lookup(server.local_addr()).private_data(b"who?").with_data();
        let (found, said) = block_on(service).unwrap();
        assert_eq!((found, found.qp_num()), (server.address(), server.queue_pair().number()));
        assert_eq!((found.ip(), found.qkey()), (server.local_addr().ip(), 0x0123_4567));
        assert!(said.starts_with(b"the time\0"));
        assert_eq!(said.len(), limits::SIDR_REP_PRIVATE_DATA_MAX);
        assert_eq!(client.lookup(server.local_addr().to_string()).wait().unwrap(), found);
    }

    #[test]
    fn a_receiver_of_a_datagram_can_answer_it() {
        let (server, client) = (socket(), socket());
        let to = client.lookup(server.local_addr()).wait().unwrap();
        // More messages than there are receives: each is posted again.
        let rounds = 3 * QueueConfig::default().recv_depth;
        let echo = thread::spawn(move || {
            block_on(async {
                for _ in 0..rounds {
                    let datagram = server.recv_from().await.unwrap();
                    assert_eq!(datagram.to, server.local_addr().ip());
                    let imm = datagram.message.imm().unwrap();
                    server.send_to(datagram.message, &datagram.from).imm(imm + 1).await.buf().unwrap();
                }
            });
            server
        });
        let pool = Pool::new(client.queue_pair().pd(), 4096, 1).unwrap();
        for n in 0..rounds {
            let said = vec![n as u8; (n as usize * 64) % client.mtu() as usize];
            client.send_to(pool.copy(&said).unwrap(), &to).imm(n).wait().buf().unwrap();
            let answer = client.blocking_recv_from_timeout(LONG).unwrap();
            assert_eq!(&answer.message[..], said);
            assert_eq!((answer.message.imm(), answer.from, answer.to), (Some(n + 1), to, to.ip()));
        }
        drop(echo.join().unwrap());
    }

    #[test]
    fn a_datagram_longer_than_the_link_takes_is_refused_before_it_is_posted() {
        let (server, client) = (socket(), socket());
        let to = server.address();
        let most = client.mtu();
        assert!(most == 4096 || !support::is_ours(), "{most}");
        let pool = Pool::new(client.queue_pair().pd(), 8192, 1).unwrap();
        let buf = pool.get().unwrap().sized(most as usize + 1).unwrap();
        let (result, mut buf) = client.send_to(buf, &to).wait();
        let error = result.unwrap_err();
        let number = Value::Number { name: "length", is: u64::from(most) + 1, allowed: 0..=u64::from(most) };
        assert_eq!((error.kind(), error.value()), (ErrorKind::OutOfRange, Some(&number)));
        buf.set_len(most as usize).unwrap();
        client.send_to(buf, &to).wait().buf().unwrap();
        assert_eq!(server.blocking_recv_from_timeout(LONG).unwrap().message.len(), most as usize);
        let error = client.send_inline_to(&[0; 65], &to).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
    }

    #[test]
    fn wrong_addresses_are_errors_that_name_them() {
        let socket = socket();
        let kind = |result: verbena::Result<UdSocket>| result.unwrap_err().kind();
        assert_eq!(kind(bind(socket.local_addr()).wait()), ErrorKind::AddressInUse);
        assert_eq!(kind(bind("0.0.0.0:0").wait()), ErrorKind::WrongState);
        assert_eq!(kind(bind("203.0.113.1:0").wait()), ErrorKind::Unreachable);
        let data = vec![0; limits::SIDR_REP_PRIVATE_DATA_MAX + 1];
        assert_eq!(kind(bind(support::any_port()).private_data(&data).wait()), ErrorKind::OutOfRange);
        let data = vec![0; limits::SIDR_REQ_PRIVATE_DATA_MAX + 1];
        let asked = socket.lookup("127.0.0.1:1").private_data(&data).wait();
        assert_eq!(asked.unwrap_err().kind(), ErrorKind::OutOfRange);
        for group in ["10.0.0.1", "ff15::1"] {
            let error = socket.join(group.parse().unwrap()).wait().unwrap_err();
            let named = matches!(error.value(), Some(Value::Address(a)) if a.ip().to_string() == group);
            assert!(error.kind() == ErrorKind::OutOfRange && named, "{error}");
        }
        let elsewhere = UdAddress::from_raw("::1".parse().unwrap(), 1, 1);
        let error = socket.send_inline_to(b"", &elsewhere).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    }

    #[test]
    fn a_service_that_nobody_offers_is_refused() {
        let (gone, client) = (socket().local_addr(), socket());
        let error = client.lookup(gone).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert_eq!(error.rejection().unwrap().reason, RejectReason::InvalidServiceId);
        // A listener for connections serves no datagrams, whatever its port.
        let listener = support::listen(support::any_port()).wait().unwrap();
        assert_eq!(client.lookup(listener.local_addr()).wait().unwrap_err().kind(), ErrorKind::Rejected);
    }

    #[test]
    fn members_get_what_is_sent_to_their_group_until_they_leave() {
        let (sender, member, outsider) = (socket(), socket(), socket());
        let hears = |socket: &UdSocket, text: &str| {
            let got = socket.blocking_recv_from_timeout(if text.is_empty() { SHORT } else { LONG });
            match got {
                Ok(got) => {
                    assert_eq!((&got.message[..], got.from), (text.as_bytes(), sender.address()));
                    assert_eq!(got.to, GROUP);
                }
                Err(e) => assert!(text.is_empty() && e.kind() == ErrorKind::TimedOut, "{text}: {e}"),
            }
        };
        let to = sender.join(GROUP).send_only().wait().unwrap();
        let (first, second) = (member.join(GROUP).wait().unwrap(), member.join(GROUP).wait().unwrap());
        assert_eq!((to.address().ip(), to.address().qp_num()), (GROUP, 0xff_ffff));
        sender.send_inline_to(b"all", to.address()).wait().unwrap();
        hears(&member, "all");
        hears(&outsider, "");
        hears(&sender, "");
        drop(first);
        sender.send_copy_to(b"still", to.address()).unwrap().wait().unwrap();
        hears(&member, "still");
        drop(second);
        sender.send_inline_to(b"nobody", to.address()).wait().unwrap();
        hears(&member, "");
        // A join that no task waits for leaves no member.
        let mut join = member.join(GROUP).into_future();
        let _ = join.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(join);
        sender.send_inline_to(b"nobody", to.address()).wait().unwrap();
        hears(&member, "");
        let again = member.join(GROUP).wait().unwrap();
        sender.send_inline_to(b"again", again.address()).wait().unwrap();
        hears(&member, "again");
    }

    #[test]
    fn drops_in_any_order_harm_nobody() {
        let devices = support::provider().devices().unwrap();
        for order in 0..6 {
            let socket = socket();
            let to = socket.address();
            let membership = socket.join(GROUP).wait().unwrap();
            socket.send_inline_to(b"to ourselves", &to).wait().unwrap();
            let datagram = socket.blocking_recv_from_timeout(LONG).unwrap();
            let clone = socket.clone();
            match order {
                0 => drop((socket, membership, datagram, clone)),
                1 => drop((membership, datagram, socket, clone)),
                2 => drop((datagram, clone, socket, membership)),
                3 => drop((clone, socket, membership, datagram)),
                4 => drop((socket, clone, datagram, membership)),
                _ => std::mem::forget(datagram),
            }
            drop(bind(support::any_port()).wait().unwrap());
        }
        assert_eq!(support::provider().devices().unwrap(), devices);
    }
}

#[cfg(feature = "sim")]
mod sim {
    use std::net::{IpAddr, SocketAddr};

    use verbena::Result;
    use verbena::sim::Host;
    use verbena::time::{sleep, timeout};

    use super::*;

    const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));
    const MS: Duration = Duration::from_millis(1);

    /// Hears the group, answers each to its sender alone, and is found by its port.
    async fn member(host: Host) -> Result<()> {
        let socket = UdSocket::bind(format!("{}:7000", host.name())).private_data(host.name()).await?;
        let _group = socket.join(GROUP).await?;
        loop {
            let datagram = socket.recv_from().await?;
            assert!(datagram.to == GROUP || datagram.to == socket.local_addr().ip());
            let imm = datagram.message.imm().unwrap();
            socket.send_to(datagram.message, &datagram.from).imm(imm).await.buf()?;
        }
    }

    /// Asks all members until all have answered; losses are ours to repeat.
    #[verbena::test(seeds = 200, faults = "loss=5%, delay=20us..200us, reorder=2%")]
    async fn datagrams_find_their_way_through_losses(left: Host, middle: Host, right: Host) {
        let hosts = [middle.clone(), right.clone()];
        for host in &hosts {
            host.spawn(member(host.clone()));
        }
        let asks = left.spawn(async move {
            // No member has said that it is ready.
            sleep(MS).await;
            let socket = UdSocket::bind("left:0").await?;
            for host in &hosts {
                let service = format!("{}:7000", host.name());
                let (to, said) = socket.lookup(service).timeout(MS * 60_000).with_data().await?;
                assert_eq!(to.ip(), host.addr());
                assert!(said.starts_with(host.name().as_bytes()));
                let answer = repeat(&socket, &to, 1, 1).await?;
                assert_eq!(answer, [host.addr()]);
            }
            let group = socket.join(GROUP).send_only().await?;
            for n in 2..12 {
                let mut answers = repeat(&socket, group.address(), n, hosts.len()).await?;
                answers.sort();
                let mut members: Vec<IpAddr> = hosts.iter().map(Host::addr).collect();
                members.sort();
                assert_eq!(answers, members);
            }
            Ok::<_, verbena::Error>(())
        });
        asks.await.unwrap();
    }

    /// Says `n` until so many have answered it; their addresses.
    async fn repeat(socket: &UdSocket, to: &verbena::UdAddress, n: u32, count: usize) -> Result<Vec<IpAddr>> {
        let mut answers = Vec::new();
        while answers.len() < count {
            socket.send_inline_to(&n.to_be_bytes(), to).imm(n).await?;
            while let Ok(answer) = timeout(MS, socket.recv_from()).await {
                let answer = answer?;
                let ip = answer.from.ip();
                if answer.message.imm() == Some(n) && !answers.contains(&ip) {
                    assert_eq!(&answer.message[..], n.to_be_bytes());
                    answers.push(ip);
                }
            }
        }
        Ok(answers)
    }

    #[verbena::test(seeds = 5)]
    async fn a_lookup_of_a_host_that_is_gone_ends_in_time(left: Host, right: Host) {
        let address = right.addr();
        right.kill();
        let asks = left.spawn(async move {
            let socket = UdSocket::bind("left:0").await?;
            socket.lookup(SocketAddr::new(address, 7000)).timeout(MS * 500).await
        });
        let begun = verbena::time::now();
        let error = asks.await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable), "{error}");
        assert!(verbena::time::now() - begun <= MS * 1000, "{:?}", verbena::time::now() - begun);
    }

    #[verbena::test(seeds = 20, faults = "loss=2%")]
    async fn ipv6_groups_and_services_are_as_those_of_ipv4(left: Host, right: Host) {
        let (ours, theirs) = (left.addr_v6(), right.addr_v6());
        let group: IpAddr = "ff15::1234".parse().unwrap();
        right.spawn(async move {
            let socket = UdSocket::bind(SocketAddr::new(theirs, 7000)).await?;
            let _group = socket.join(group).await?;
            loop {
                let datagram = socket.recv_from().await?;
                assert_eq!(datagram.from.ip(), ours);
                socket.send_to(datagram.message, &datagram.from).imm(7).await.buf()?;
            }
            #[allow(unreachable_code, reason = "its type")]
            Ok::<_, verbena::Error>(())
        });
        let asks = left.spawn(async move {
            sleep(MS).await;
            let socket = UdSocket::bind(SocketAddr::new(ours, 0)).await?;
            let to = socket.lookup(SocketAddr::new(theirs, 7000)).timeout(MS * 60_000).await?;
            assert_eq!(repeat(&socket, &to, 7, 1).await?, [theirs]);
            let group = socket.join(group).send_only().await?;
            assert_eq!(repeat(&socket, group.address(), 7, 1).await?, [theirs]);
            Ok::<_, verbena::Error>(())
        });
        asks.await.unwrap();
    }

    #[verbena::test(seeds = 3)]
    async fn a_group_is_left_with_its_last_membership(left: Host, right: Host) {
        let listens = right.spawn(async {
            let socket = UdSocket::bind("[right]:7000").await;
            assert_eq!(socket.unwrap_err().kind(), ErrorKind::NotFound);
            let socket = UdSocket::bind("right:7000").await?;
            let group = socket.join(GROUP).await?;
            let first = socket.recv_from().await?.message.len();
            drop(group);
            sleep(MS * 100).await;
            Ok::<_, verbena::Error>((first, socket.try_recv_from()?.is_none()))
        });
        let says = left.spawn(async {
            let socket = UdSocket::bind("left:0").await?;
            let group = socket.join(GROUP).send_only().await?;
            for _ in 0..2 {
                sleep(MS * 50).await;
                socket.send_inline_to(b"hello", group.address()).await?;
            }
            assert_eq!(socket.blocking_recv_from().unwrap_err().kind(), ErrorKind::BlockingInSimulation);
            Ok::<_, verbena::Error>(())
        });
        says.await.unwrap();
        assert_eq!(listens.await.unwrap(), (5, true));
    }
}
