//! What is done by hand: events of identifiers and devices, requests as a stream, the limit of a
//! shared receive queue; each future dropped at each of its polls.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::cancel::Plan;
use super::cut::{cut, surely};
use super::setting::{STOP, left_over, serve};
use crate::cm::raw::{EventChannel, Id, PortSpace, What};
use crate::sim::Host;
use crate::verbs::{AsyncEvent, Unconnected, XrcDomain};
use crate::{Device, Provider, QueueConfig, Srq, XrcSend};

const MS: Duration = Duration::from_millis(1);

/// Events of identifiers. None is lost, whichever task was woken for it.
async fn identifiers(plan: &Plan, to: SocketAddr) {
    let channel = EventChannel::new(&Provider::current().expect("a host")).expect("a channel");
    for polls in 0.. {
        let id = Id::new(&channel, PortSpace::Tcp).expect("an identifier");
        id.resolve_addr(None, to, Duration::from_secs(1)).expect("begun");
        let first = cut("next", channel.next(), polls, plan.how()).await;
        let is_over = first.is_some();
        let event = match first {
            Some(event) => event,
            None => surely("next", channel.next()).await,
        };
        let event = event.expect("an event");
        assert!(matches!(event.what, What::AddrResolved) && event.id == id.number(), "{event:?}");
        if is_over {
            return;
        }
    }
}

/// Changes the port's state to the other one.
fn toggle(device: &Device) {
    let nic = device.nic().expect("Verbena's own");
    let mut port = (*nic.port()).clone();
    port.up = !port.up;
    nic.set_port(port);
    device.stack().later().run();
}

async fn devices(plan: &Plan, here: IpAddr) {
    let device = Provider::current().and_then(|p| p.device_of(here)).expect("a device");
    let (events, others) = (&device.events().expect("events"), device.events().expect("events"));
    for polls in 0.. {
        let toggled = device.clone();
        let toggling = crate::spawn(async move {
            crate::time::sleep(MS).await;
            toggle(&toggled);
            crate::time::sleep(MS).await;
            toggle(&toggled);
        });
        toggling.expect("a task");
        let first = cut("event", events.next(), polls, plan.how()).await;
        let is_over = first.is_some();
        let first = match first {
            Some(event) => event,
            None => surely("event", events.next()).await,
        };
        assert_eq!(first.expect("an event"), AsyncEvent::PortError);
        assert_eq!(surely("event", events.next()).await.expect("an event"), AsyncEvent::PortActive);
        assert_eq!(others.try_next().expect("an event"), Some(AsyncEvent::PortError));
        assert_eq!(others.try_next().expect("an event"), Some(AsyncEvent::PortActive));
        assert_eq!(events.try_next().expect("no error"), None);
        if is_over {
            return;
        }
    }
}

async fn limits(plan: &Plan, here: IpAddr) {
    let pd = Provider::current().and_then(|p| p.device_of(here)?.pd()).expect("a domain");
    let srq = &Srq::new(&pd, 4, 64).expect("a queue");
    let queues = QueueConfig { srq: Some(srq.clone()), ..QueueConfig::default() };
    let conn = &crate::connect("right:7000").queues(queues).await.expect("connected");
    assert!(srq.runs_low(5).await.is_err() && srq.runs_low(0).await.is_err());
    for polls in 0.. {
        let asking = conn.clone();
        let sent = crate::spawn(async move {
            for _ in 0..3 {
                asking.send_inline(b"come back").await.expect("sent");
            }
        });
        sent.expect("a task");
        let first = cut("runs_low", srq.runs_low(2), polls, plan.how()).await;
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(surely("recv", conn.recv()).await);
        }
        let is_over = first.map(|low| low.expect("no error")).is_some();
        assert_eq!(srq.posted(), 1);
        // A limit that is reached already tells at once.
        surely("runs_low", srq.runs_low(2)).await.expect("no error");
        drop(kept);
        assert_eq!(srq.posted(), 4);
        if is_over {
            return;
        }
    }
}

/// Messages to the receive queue of an XRC domain.
async fn xrc(plan: &Plan, here: IpAddr) {
    let device = Provider::current().and_then(|p| p.device_of(here)).expect("a device");
    let pd = device.pd().expect("a domain");
    let domain = XrcDomain::open(&device, None).expect("an XRC domain");
    let srq = &domain.srq(&pd, 4, 64).expect("a queue");
    let target = domain.target(here).expect("a target");
    let ours = Unconnected::<XrcSend>::new(&pd, here, &QueueConfig::default()).expect("an initiator");
    let (us, them) = (ours.endpoint(), target.endpoint());
    let _target = target.connect(us).expect("connected");
    let qp = ours.connect(them).expect("connected");
    for polls in 0.. {
        let (asking, number) = (qp.clone(), srq.number());
        let sent = crate::spawn(async move {
            asking.to_srq(number).send_inline(&[polls as u8]).await.expect("sent");
        });
        sent.expect("a task");
        let first = cut("recv", srq.recv(), polls, plan.how()).await;
        let is_over = first.is_some();
        let message = match first {
            Some(message) => message,
            None => surely("recv", srq.recv()).await,
        };
        assert_eq!(message.expect("a message")[..], [polls as u8]);
        assert_eq!((srq.posted(), srq.try_recv().is_none()), (4, true));
        if is_over {
            return;
        }
    }
}

/// A stream of requests, of which each may be given up.
async fn requests(plan: &Plan, left: &Host) {
    let listener = &crate::listen("0.0.0.0:7001").await.expect("the port");
    for polls in 0.. {
        let asking =
            left.spawn(async { crate::connect("right:7001").await.map(drop).expect_err("rejected") });
        let mut stream = listener.requests();
        let first = cut("request", poll_fn(move |cx| stream.poll_request(cx)), polls, plan.how()).await;
        let is_over = first.is_some();
        let mut again = listener.requests();
        let request = match first {
            Some(request) => request,
            None => surely("request", poll_fn(|cx| again.poll_request(cx))).await,
        };
        drop(request.expect("a request"));
        surely("who asked", asking.outcome()).await.expect("not killed");
        if is_over {
            return;
        }
    }
}

#[verbena::test(seeds = 200, faults = "loss=2%, delay=20us..200us, reorder=2%, duplicate=1%")]
async fn futures_of_what_is_done_by_hand_may_be_dropped_at_any_poll(left: Host, right: Host) {
    let seed = left.seed();
    let plan = move || Plan::of(seed);
    let (here, to) = (left.addr(), SocketAddr::new(right.addr(), 7000));
    let service = right.spawn(serve("0.0.0.0:7000"));
    let asking = left.clone();
    let answers = right.spawn(async move { requests(&plan(), &asking).await });
    left.spawn(async move {
        identifiers(&plan(), to).await;
        limits(&plan(), here).await;
        xrc(&plan(), here).await;
    })
    .await;
    answers.await;
    left.spawn(async move {
        crate::connect("right:7000").private_data(STOP).await.expect_err("refused");
        devices(&plan(), here).await;
    })
    .await;
    service.await.expect("no error");
    crate::time::sleep(Duration::from_secs(100)).await;
    for host in [&left, &right] {
        assert_eq!(host.spawn(async { left_over() }).await, Default::default(), "on {}", host.name());
    }
}
