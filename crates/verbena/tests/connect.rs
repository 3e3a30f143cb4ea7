//! Connecting by address, over the loopback device of this machine, or what `support` says.
#![cfg(feature = "software")]

mod support;

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use support::{now, within};
use verbena::cm::limits;
use verbena::{Connection, ErrorKind, Listener, RejectReason, RnrRetry, Value};

fn listener() -> Listener {
    support::listen(support::any_port()).wait().expect("a free port")
}

/// A connection: the end that connected, the end that accepted.
fn connected(listener: &Listener) -> (Connection, Connection) {
    let to = listener.local_addr();
    thread::scope(|s| {
        let client = s.spawn(move || support::connect(to).wait());
        let server = listener.blocking_request().and_then(|request| request.accept().wait());
        let client = client.join().expect("no panic").expect("connected");
        (client, server.expect("accepted"))
    })
}

fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut field = data.to_vec();
    field.resize(len, 0);
    field
}

#[test]
fn both_programs_see_what_the_other_said() {
    let listener = listener();
    let to = listener.local_addr();
    thread::scope(|s| {
        let client = s.spawn(move || {
            let conn = support::connect(to.to_string())
                .private_data(b"hello")
                .responder_resources(3)
                .initiator_depth(4)
                .retry_count(5)
                .rnr_retry_count(RnrRetry::Times(6))
                .wait()
                .expect("connected");
            assert_eq!(conn.private_data(), padded(b"welcome", limits::REP_PRIVATE_DATA_MAX));
            assert_eq!(conn.peer_addr(), to);
            assert_eq!((conn.param().responder_resources, conn.param().initiator_depth), (Some(2), Some(4)));
            assert_eq!(conn.param().retry_count, 5);
            conn.local_addr()
        });
        let request = listener.blocking_request().expect("a request");
        assert_eq!(request.private_data(), padded(b"hello", limits::REQ_PRIVATE_DATA_MAX));
        assert_eq!(request.local_addr(), to);
        assert_ne!(request.peer_qp_num(), 0);
        let offered = request.param();
        assert_eq!((offered.responder_resources, offered.initiator_depth), (Some(4), Some(3)));
        assert_eq!((offered.retry_count, offered.rnr_retry_count), (5, RnrRetry::Times(6)));
        let peer = request.peer_addr();
        let conn = request.accept().private_data(b"welcome").initiator_depth(2).wait().expect("accepted");
        assert_eq!(conn.private_data(), padded(b"hello", limits::REQ_PRIVATE_DATA_MAX));
        assert_eq!((conn.param().responder_resources, conn.param().initiator_depth), (Some(4), Some(2)));
        assert_eq!((conn.peer_addr(), conn.local_addr()), (peer, to));
        assert_eq!(client.join().expect("no panic"), peer);
    });
}

#[test]
fn a_rejected_client_sees_the_reason() {
    let listener = listener();
    let to = listener.local_addr();
    for data in [Some(&b"not today"[..]), None] {
        thread::scope(|s| {
            let client = s.spawn(move || support::connect(to).wait().expect_err("refused"));
            let request = listener.blocking_request().expect("a request");
            match data {
                Some(data) => request.reject(data).expect("rejected"),
                None => drop(request),
            }
            let error = client.join().expect("no panic");
            assert_eq!(error.kind(), ErrorKind::Rejected);
            let rejection = error.rejection().expect("how it was refused");
            assert_eq!(rejection.reason, RejectReason::Consumer);
            assert_eq!(
                rejection.private_data,
                padded(data.unwrap_or_default(), limits::REJ_PRIVATE_DATA_MAX)
            );
        });
    }
}

#[test]
fn dropping_an_acceptance_or_its_future_rejects() {
    let listener = listener();
    let to = listener.local_addr();
    for begin in [false, true] {
        thread::scope(|s| {
            let client = s.spawn(move || support::connect(to).wait());
            let accept = listener.blocking_request().expect("a request").accept();
            if begin {
                let mut future = accept.into_future();
                let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                drop(future);
            } else {
                drop(accept);
            }
            match client.join().expect("no panic") {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Rejected),
                // The reply was under way already.
                Ok(conn) => assert_eq!(within(conn.ended()).kind(), ErrorKind::Disconnected),
            }
        });
    }
}

#[test]
fn without_a_listener_the_system_refuses() {
    let gone = listener();
    let to = gone.local_addr();
    drop(gone);
    let error = support::connect(to).wait().expect_err("nobody listens");
    assert_eq!(error.rejection().map(|r| r.reason), Some(RejectReason::InvalidServiceId));
}

#[test]
fn a_listener_that_ends_refuses_who_waits_and_keeps_what_stands() {
    let listener = listener();
    let to = listener.local_addr();
    let (client, server) = connected(&listener);
    thread::scope(|s| {
        let late = s.spawn(move || support::connect(to).timeout(Duration::from_secs(5)).wait());
        // Its request has come, and no call has asked for it.
        thread::sleep(Duration::from_millis(100));
        drop(listener);
        let error = late.join().expect("no panic").expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Rejected);
    });
    assert!(now(client.ended()).is_none() && now(server.ended()).is_none());
    server.blocking_close().expect("closed");
    assert_eq!(within(client.ended()).kind(), ErrorKind::Disconnected);
}

#[test]
fn nobody_answers_in_time() {
    let listener = listener();
    let begin = Instant::now();
    let timeout = Duration::from_millis(700);
    let error = support::connect(listener.local_addr()).timeout(timeout).wait().expect_err("nobody accepts");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!((timeout..Duration::from_secs(5)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}

#[test]
fn a_wildcard_listener_takes_requests_of_any_device() {
    for on in ["0.0.0.0:0", "[::]:0"] {
        let listener = support::listen(on).wait().expect("a free port");
        let port = listener.local_addr().port();
        thread::scope(|s| {
            let client =
                s.spawn(move || support::connect(SocketAddr::from((support::address(), port))).wait());
            let request = listener.blocking_request().expect("a request");
            assert_eq!(request.local_addr(), SocketAddr::from((support::address(), port)));
            let of_address = support::provider().device_of(support::address());
            assert_eq!(request.pd().device(), &of_address.expect("the loopback device"));
            request.accept().wait().expect("accepted");
            client.join().expect("no panic").expect("connected");
        });
    }
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let first = listener();
    let error = support::listen(first.local_addr()).wait().expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::AddressInUse);
    let error = support::listen("203.0.113.1:7").wait().expect_err("not ours");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[test]
fn a_route_shows_its_domain_before_it_connects() {
    let listener = listener();
    let to = listener.local_addr();
    let route = support::resolve(to).bind(support::any_port()).wait().expect("a way");
    assert_eq!((route.local_addr().ip(), route.peer_addr()), (to.ip(), to));
    assert!([256, 512, 1024, 2048, 4096].contains(&route.mtu()), "{}", route.mtu());
    let pd = route.pd().clone();
    thread::scope(|s| {
        let client = s.spawn(move || route.connect().private_data([1]).wait().expect("connected"));
        let request = listener.blocking_request().expect("a request");
        let server = request.accept().pd(&pd).wait().expect("accepted");
        let client = client.join().expect("no panic");
        assert_eq!(client.private_data().len(), limits::REP_PRIVATE_DATA_MAX);
        drop(server);
    });
    let error = support::resolve(to).wait().expect("a way").connect().bind(to).wait().expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::WrongState);
}

#[test]
fn values_out_of_range_are_named_with_their_limit() {
    let (listener, other) = (listener(), listener());
    let to = listener.local_addr();
    let refused = |connect: verbena::Connect| {
        let error = connect.wait().expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
        error.value().cloned().expect("a value")
    };
    let number = |name, is, most| Value::Number { name, is, allowed: 0..=most };
    let connect = || support::connect(to);
    assert_eq!(refused(connect().private_data([0; 57])), number("private_data_len", 57, 56));
    assert_eq!(refused(connect().retry_count(8)), number("retry_count", 8, 7));
    assert_eq!(refused(connect().rnr_retry_count(RnrRetry::Times(7))), number("rnr_retry_count", 7, 6));
    assert_eq!(refused(connect().responder_resources(129)), number("responder_resources", 129, 128));
    assert_eq!(refused(connect().initiator_depth(200)), number("initiator_depth", 200, 128));
    assert_eq!(refused(connect().ack_timeout(32)), number("ack_timeout", 32, 31));
    assert_eq!(
        refused(connect().timeout(Duration::MAX)),
        number("timeout_ms", u64::MAX, limits::TIMEOUT_MAX_MS)
    );
    for backlog in [0, 1025] {
        let error = support::listen(support::any_port()).backlog(backlog).wait().expect_err("out of range");
        let allowed = 1..=1024;
        assert_eq!(error.value(), Some(&Value::Number { name: "backlog", is: backlog.into(), allowed }));
    }
    // Nothing has reached the listener; the largest does.
    assert!(now(listener.request()).is_none());
    let to = other.local_addr();
    thread::scope(|s| {
        let client = s.spawn(move || support::connect(to).private_data([7; 56]).wait());
        let request = other.blocking_request().expect("a request");
        assert_eq!(request.private_data(), [7; 56]);
        let error = request.accept().private_data([0; 197]).wait().expect_err("out of range");
        assert_eq!(error.value(), Some(&number("private_data_len", 197, 196)));
        assert_eq!(client.join().expect("no panic").expect_err("refused").kind(), ErrorKind::Rejected);
        let client = s.spawn(move || support::connect(to).wait());
        let error = other.blocking_request().expect("a request").reject(&[0; 149]).expect_err("out of range");
        assert_eq!(error.value(), Some(&number("private_data_len", 149, 148)));
        assert_eq!(client.join().expect("no panic").expect_err("refused").kind(), ErrorKind::Rejected);
    });
}

#[test]
fn either_side_may_close() {
    let listener = listener();
    for server_closes in [false, true] {
        let (client, server) = connected(&listener);
        let (closes, stays) = if server_closes { (server, client) } else { (client, server) };
        let clone = closes.clone();
        closes.blocking_close().expect("closed");
        assert_eq!(within(clone.ended()).kind(), ErrorKind::Disconnected);
        assert_eq!(within(stays.ended()).kind(), ErrorKind::Disconnected);
        stays.blocking_close().expect("nothing is left to do");
        clone.blocking_close().expect("nothing is left to do");
    }
}

#[test]
fn both_sides_may_close_at_once() {
    let listener = listener();
    let (client, server) = connected(&listener);
    thread::scope(|s| {
        let other = s.spawn(|| client.blocking_close());
        server.blocking_close().expect("closed");
        other.join().expect("no panic").expect("closed");
    });
}

#[test]
fn a_queue_pair_that_fails_ends_its_connection_and_the_peer_learns_of_it() {
    let listener = listener();
    let why = ErrorKind::Completion(verbena::WcStatus::RemoteAccess);
    let flushed = ErrorKind::Completion(verbena::WcStatus::Flushed);
    // A kernel works on the packets of two queue pairs in two threads: its peer's graceful close
    // may overtake the NAK, though not ten times.
    let tries = if support::is_ours() { 1 } else { 10 };
    for left in (0..tries).rev() {
        let (client, server) = connected(&listener);
        // Nothing of the peer's is registered there.
        let nothing = verbena::RemoteMemory::from_raw(0x1000, 0xdead, 8);
        let refused = within(async { client.write_inline(&[1; 8], nothing).await }).expect_err("refused");
        if left > 0 && refused.kind() == flushed {
            assert_eq!(within(client.ended()).kind(), ErrorKind::Disconnected);
            continue;
        }
        assert_eq!(refused.kind(), why);
        assert_eq!(within(client.ended()).kind(), why);
        assert_eq!(within(server.ended()).kind(), ErrorKind::Disconnected);
        assert_eq!(client.blocking_close().expect_err("something was lost").kind(), why);
        return;
    }
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let listener = listener();
    let (client, server) = connected(&listener);
    let message = b"the last word";
    let mut sends: Vec<_> = (0..20).map(|_| Box::pin(client.send_inline(message).into_future())).collect();
    let mut cx = Context::from_waker(Waker::noop());
    sends.iter_mut().for_each(|send| drop(send.as_mut().poll(&mut cx)));
    drop(sends);
    client.blocking_close().expect("closed");
    for _ in 0..20 {
        assert_eq!(&*server.blocking_recv().expect("no failure").expect("a message"), message);
    }
    assert!(server.blocking_recv().expect("no failure").is_none());
    server.blocking_close().expect("closed");
}

#[test]
fn the_last_handle_ends_it_and_no_other() {
    let listener = listener();
    let (client, server) = connected(&listener);
    let clone = client.clone();
    drop(client);
    thread::sleep(Duration::from_millis(50));
    assert!(now(server.ended()).is_none(), "a handle is left");
    drop(clone);
    assert_eq!(within(server.ended()).kind(), ErrorKind::Disconnected);
}

#[test]
fn drops_in_every_order_harm_nobody() {
    // 0: listener, 1: client, 2: server, 3: a queue pair of the client.
    for order in permutations() {
        let listener = listener();
        let (client, server) = connected(&listener);
        let qp: verbena::QueuePair = client.queue_pair().clone();
        let (mut listener, mut client, mut server, mut qp) =
            (Some(listener), Some(client), Some(server), Some(qp));
        for what in order {
            match what {
                0 => drop(listener.take()),
                1 => {
                    client.take();
                    if let Some(server) = &server {
                        assert_eq!(within(server.ended()).kind(), ErrorKind::Disconnected, "{order:?}");
                    }
                }
                2 => {
                    server.take();
                    if let Some(client) = &client {
                        assert_eq!(within(client.ended()).kind(), ErrorKind::Disconnected, "{order:?}");
                    }
                }
                _ => drop(qp.take()),
            }
        }
    }
}

fn permutations() -> Vec<[usize; 4]> {
    let of = |code: usize| [code / 64 % 4, code / 16 % 4, code / 4 % 4, code % 4];
    let is_one = |p: &[usize; 4]| (0..4).all(|n| p.contains(&n));
    (0..256).map(of).filter(is_one).collect()
}

struct CountWakes(AtomicU32);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_request_is_not_lost_with_a_future_that_was_woken_for_it() {
    let listener = listener();
    let to = listener.local_addr();
    let count = Arc::new(CountWakes(AtomicU32::new(0)));
    let waker = Waker::from(count.clone());
    let mut one: Pin<Box<dyn Future<Output = _>>> = Box::pin(listener.request());
    let mut other: Pin<Box<dyn Future<Output = _>>> = Box::pin(listener.request());
    assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(other.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    thread::scope(|s| {
        let client = s.spawn(move || support::connect(to).wait());
        let begin = Instant::now();
        while count.0.load(Ordering::SeqCst) < 2 {
            assert!(begin.elapsed() < Duration::from_secs(5), "both are woken");
            thread::yield_now();
        }
        drop(one);
        let request = within(other).expect("a request");
        request.accept().wait().expect("accepted");
        client.join().expect("no panic").expect("connected");
    });
}

#[test]
fn many_requests_at_once_are_served_by_several_who_wait() {
    const CLIENTS: usize = 24;
    let listener = listener();
    let to = listener.local_addr();
    thread::scope(|s| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| s.spawn(move || support::connect(to).timeout(Duration::from_secs(20)).wait()))
            .collect();
        let serve = || {
            for _ in 0..CLIENTS / 3 {
                let request = listener.blocking_request().expect("a request");
                request.accept().wait().expect("accepted").blocking_close().expect("closed");
            }
        };
        (0..3).for_each(|_| drop(s.spawn(serve)));
        for client in clients {
            let conn = client.join().expect("no panic").expect("connected");
            assert_eq!(within(conn.ended()).kind(), ErrorKind::Disconnected);
        }
    });
}

#[test]
fn requests_that_nobody_has_begun_do_not_hold_up_the_next() {
    let listener = listener();
    let to = listener.local_addr();
    thread::scope(|s| {
        let clients: Vec<_> = (0..8).map(|_| s.spawn(move || support::connect(to).wait())).collect();
        let requests: Vec<_> = (0..8).map(|_| listener.blocking_request().expect("a request")).collect();
        drop(requests);
        for client in clients {
            assert_eq!(client.join().expect("no panic").expect_err("refused").kind(), ErrorKind::Rejected);
        }
    });
}

#[test]
fn of_several_addresses_the_one_with_a_listener_answers() {
    if !support::address().is_loopback() {
        return;
    }
    // "localhost" is 127.0.0.1, ::1 or both, in whatever order; the listener is on the former only.
    let listener = listener();
    let to = format!("localhost:{}", listener.local_addr().port());
    thread::scope(|s| {
        let client = s.spawn(move || support::connect(to).wait().expect("connected"));
        listener.blocking_request().and_then(|r| r.accept().wait()).expect("accepted");
        assert!(client.join().expect("no panic").peer_addr().is_ipv4());
    });
}

#[test]
fn a_cancelled_connect_withdraws_its_request() {
    let listener = listener();
    let mut future = support::connect(listener.local_addr()).into_future();
    let mut cx = Context::from_waker(Waker::noop());
    let begin = Instant::now();
    let request = loop {
        assert!(future.as_mut().poll(&mut cx).is_pending());
        if let Some(request) = now(listener.request()) {
            break request.expect("a request");
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "no request");
        thread::yield_now();
    };
    drop(future);
    thread::sleep(Duration::from_millis(50));
    let error = request.accept().wait().expect_err("nobody is there");
    // Of a request that is not accepted yet, a kernel does not say how it ended.
    let unsaid = !support::is_software() && error.kind() == ErrorKind::Disconnected;
    assert!(error.kind() == ErrorKind::Rejected || unsaid, "{error}");
}

#[test]
fn another_device_s_domain_is_refused() {
    let provider = support::provider();
    let listener = listener();
    let to = listener.local_addr();
    let ours = provider.device_of(to.ip()).expect("the loopback device");
    let Some(other) = provider.devices().expect("devices").into_iter().find(|d| *d != ours) else { return };
    let pd = other.pd().expect("a domain");
    assert_eq!(support::connect(to).pd(&pd).wait().expect_err("another's").kind(), ErrorKind::WrongDomain);
}

#[test]
fn what_is_awaited_may_go_to_another_thread() {
    fn sent<T: Send + 'static>(_: &T) {}
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    let listener = listener();
    shared(&listener);
    let (client, server) = connected(&listener);
    shared(&client);
    sent(&server.close());
    sent(&support::connect("127.0.0.1:1").into_future());
    sent(&support::resolve("127.0.0.1:1").into_future());
    sent(&support::listen("127.0.0.1:1").into_future());
}
