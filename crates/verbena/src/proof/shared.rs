//! The futures of datagram sockets, and those of connections that share a receive and a completion
//! queue, dropped at each of their polls.

use std::future::IntoFuture;
use std::net::IpAddr;
use std::time::Duration;

use super::cancel::Plan;
use super::cut::{cut, surely};
use super::setting::{STOP, left_over, serve};
use crate::prelude::*;
use crate::sim::{Host, faults};
use crate::{Cq, QueueConfig, Srq, UdSocket};

const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));
const MS: Duration = Duration::from_millis(1);
const RECEIVES: u32 = 4;

fn queues() -> QueueConfig {
    QueueConfig { send_depth: 2, recv_depth: RECEIVES, recv_size: 64, ..QueueConfig::default() }
}

/// Sends back each datagram, until one says to stop.
async fn echo() -> crate::Result<()> {
    let socket = UdSocket::bind("right:7000").queues(queues()).await?;
    let _group = socket.join(GROUP).await?;
    loop {
        let datagram = socket.recv_from().await?;
        if datagram.message.starts_with(STOP) {
            return Ok(());
        }
        socket.send_to(datagram.message, &datagram.from).await.buf()?;
    }
}

async fn datagrams(plan: &Plan) {
    let whole = |what: &str, socket: &UdSocket| {
        let census = socket.queue_pair().census();
        assert_eq!(
            (census.sends, census.posted, census.ready, census.waiting),
            (0, RECEIVES as usize, 0, 0),
            "{what}"
        );
    };
    plan.each("bind", || Box::pin(UdSocket::bind("left:0").queues(queues()).into_future()), |_| async {})
        .await;
    let socket = &UdSocket::bind("left:0").queues(queues()).await.expect("a socket");
    plan.each(
        "lookup",
        || Box::pin(socket.lookup("right:7000").into_future()),
        |_| async { whole("lookup", socket) },
    )
    .await;
    plan.each("with_data", || Box::pin(socket.lookup("right:7000").with_data()), |_| async {}).await;
    plan.each("join", || Box::pin(socket.join(GROUP).into_future()), |_| async { whole("join", socket) })
        .await;
    let to = &surely("lookup", socket.lookup("right:7000").into_future()).await.expect("found");
    for polls in 0.. {
        surely("send_to", socket.send_inline_to(&[polls as u8; 5], to)).await.expect("sent");
        let first = cut("recv_from", socket.recv_from(), polls, plan.how()).await;
        let is_over = first.is_some();
        let datagram = match first {
            Some(datagram) => datagram,
            None => surely("recv_from", socket.recv_from()).await,
        };
        assert_eq!(datagram.expect("a datagram").message[..], [polls as u8; 5]);
        whole("recv_from", socket);
        if is_over {
            break;
        }
    }
    let group = &surely("join", socket.join(GROUP).send_only().into_future()).await.expect("joined");
    for to in [to, group.address()] {
        for polls in 0.. {
            let copied = socket.send_copy_to(&[polls as u8; 5], to).expect("a buffer");
            let sent = cut("send_to", copied, polls, plan.how()).await;
            if polls > 0 {
                surely("an echo", socket.recv_from()).await.expect("a datagram");
            }
            surely("idle", socket.queue_pair().idle()).await;
            whole("send_to", socket);
            if sent.is_some() {
                break;
            }
        }
    }
    socket.send_inline_to(STOP, to).await.expect("sent");
}

/// Two connections on shared queues: what is cut on one harms neither.
async fn shared(plan: &Plan, host: &Host) {
    let device = crate::Provider::current().and_then(|p| p.device_of(host.addr())).expect("a device");
    let srq = Srq::new(&device.pd().expect("a domain"), RECEIVES, 64).expect("a queue");
    let cq = Cq::new(&device).expect("a queue");
    let queues = || QueueConfig { srq: Some(srq.clone()), cq: Some(cq.clone()), ..queues() };
    let connect = || crate::connect("right:7001").queues(queues()).into_future();
    let steady = &surely("connect", connect()).await.expect("connected");
    let goes_on = |what: &'static str| async move {
        surely(what, steady.send_inline(&[9; 9])).await.expect("sent");
        assert_eq!(surely(what, steady.recv()).await.expect("no failure").expect("a message")[..], [9; 9]);
    };
    plan.each("connect", || Box::pin(connect()), |_| goes_on("connect")).await;
    for what in ["send", "recv", "close"] {
        for polls in 0.. {
            let conn = surely(what, connect()).await.expect("connected");
            let said = async {
                match what {
                    "send" => drop(conn.send_copy(&[1; 8]).expect("a buffer").await.expect("sent")),
                    "recv" => {
                        conn.send_inline(&[2; 8]).await.expect("sent");
                        assert_eq!(conn.recv().await.expect("no failure").expect("a message")[..], [2; 8]);
                    }
                    _ => conn.clone().close().await.expect("closed"),
                }
            };
            let is_over = cut(what, said, polls, plan.how()).await.is_some();
            goes_on(what).await;
            drop(conn);
            goes_on(what).await;
            if is_over {
                break;
            }
        }
    }
    assert_eq!(cq.users(), 1);
    surely("close", steady.clone().close()).await.expect("closed");
    crate::time::sleep(MS).await;
    assert_eq!(srq.posted(), RECEIVES);
}

#[verbena::test(seeds = 100, faults = "loss=2%, delay=20us..200us, reorder=2%, duplicate=1%")]
async fn futures_of_shared_queues_may_be_dropped_at_any_poll(left: Host, right: Host) {
    let (plan, here) = (Plan::of(left.seed()), left.clone());
    let service = right.spawn(serve("0.0.0.0:7001"));
    left.spawn(async move { shared(&plan, &here).await }).await;
    left.spawn(async { crate::connect("right:7001").private_data(STOP).await.expect_err("refused") }).await;
    service.await.expect("no error");
    nothing_is_left(&left, &right).await;
}

/// Datagrams that are lost are never repeated: these are late only.
#[verbena::test(seeds = 100, faults = "delay=20us..200us")]
async fn futures_of_datagrams_may_be_dropped_at_any_poll(left: Host, right: Host) {
    let plan = Plan::of(left.seed());
    let service = right.spawn(echo());
    crate::time::sleep(MS).await;
    left.set_faults(faults("delay=20us..150us").expect("faults"));
    left.spawn(async move { datagrams(&plan).await }).await;
    service.await.expect("no error");
    nothing_is_left(&left, &right).await;
}

pub(super) async fn nothing_is_left(left: &Host, right: &Host) {
    crate::time::sleep(Duration::from_secs(100)).await;
    for host in [left, right] {
        assert_eq!(host.spawn(async { left_over() }).await, Default::default(), "on {}", host.name());
    }
}
