//! The executor under what the crate itself puts on it: nodes, their events, work for when no lock
//! is held. What a user sees of it is tested in tests/simulation.rs.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use locks::{Mutex, Rank};
use nic::rdma_cm::EventKind;
use nic::{DeferredWork, Signal, Work};
use stack::{Event, EventChannel};
use wire::mad::PortSpace;

use super::{Faults, Host, Task, addresses_of};
use crate::provider::{Provider, node};

/// What an event channel wakes, by way of `DeferredWork`.
struct Reader {
    later: Arc<DeferredWork>,
    me: Weak<Self>,
    waiter: Mutex<Option<Waker>>,
}

struct Tell(Weak<Reader>);

impl Signal for Tell {
    fn signal(&self) {
        if let Some(reader) = self.0.upgrade() {
            reader.later.add(reader.clone());
        }
    }
    fn take_back(&self) {}
}

impl Work for Reader {
    fn run(self: Arc<Self>) {
        let waiter = self.waiter.lock().take();
        waiter.into_iter().for_each(Waker::wake);
    }
}

struct Channel {
    provider: Provider,
    events: Arc<EventChannel>,
    reader: Arc<Reader>,
}

impl Channel {
    fn new() -> Self {
        let provider = Provider::current().unwrap();
        let later = provider.stack().later().clone();
        let reader = Arc::new_cyclic(|me: &Weak<Reader>| Reader {
            later,
            me: me.clone(),
            waiter: Mutex::new(Rank::ConnectionState, None),
        });
        let events = EventChannel::new(Box::new(Tell(reader.me.clone())));
        Self { provider, events, reader }
    }

    async fn next(&self) -> Event {
        poll_fn(|cx| {
            *self.reader.waiter.lock() = Some(cx.waker().clone());
            match node!(self.provider.stack().ours().unwrap(), node => node.next_event(&self.events)) {
                Some(event) => Poll::Ready(event),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The address of a host, resolved by rdma_cm.
    async fn resolve(&self, host: &str) -> EventKind {
        let dest = SocketAddr::new(addresses_of(host)[0], 7000);
        let node = self.provider.stack();
        let id = node!(node.ours().unwrap(), node => node.create_id(&self.events, PortSpace::Tcp));
        node!(node.ours().unwrap(), node => node.resolve_addr(&id, None, dest, Duration::from_secs(2)))
            .unwrap();
        let event = self.next().await;
        assert!(Arc::ptr_eq(&event.id, &id));
        node!(node.ours().unwrap(), node => node.destroy(&id));
        event.kind
    }
}

/// Listens, then takes the requests of others; says how many came.
async fn requests(count: u32) -> u32 {
    let channel = Channel::new();
    let stack = channel.provider.stack();
    let id = node!(stack.ours().unwrap(), node => node.create_id(&channel.events, PortSpace::Tcp));
    node!(stack.ours().unwrap(), node => node.bind(&id, "0.0.0.0:7000".parse().unwrap())).unwrap();
    node!(stack.ours().unwrap(), node => node.listen(&id, 8)).unwrap();
    for _ in 0..count {
        let event = channel.next().await;
        assert_eq!(event.kind, EventKind::ConnectRequest);
        node!(stack.ours().unwrap(), node => node.reject(&event.id, b"no")).unwrap();
    }
    count
}

/// Asks for a connection until a listener refuses it.
async fn ask(host: &'static str) -> i32 {
    loop {
        let channel = Channel::new();
        let stack = channel.provider.stack();
        let dest = SocketAddr::new(addresses_of(host)[0], 7000);
        let id = node!(stack.ours().unwrap(), node => node.create_id(&channel.events, PortSpace::Tcp));
        node!(stack.ours().unwrap(), node => node.resolve_addr(&id, None, dest, Duration::from_secs(2)))
            .unwrap();
        assert_eq!(channel.next().await.kind, EventKind::AddrResolved);
        node!(stack.ours().unwrap(), node => node.resolve_route(&id, Duration::from_secs(2))).unwrap();
        assert_eq!(channel.next().await.kind, EventKind::RouteResolved);
        node!(stack.ours().unwrap(), node => node.connect(&id, &nic::rdma_cm::ConnParam::default(), b"please"))
            .unwrap();
        let event = channel.next().await;
        if event.kind == EventKind::Rejected && event.private_data.starts_with(b"no") {
            return event.status;
        }
        crate::time::sleep(Duration::from_millis(1)).await;
    }
}

#[verbena::test(seeds = 3)]
async fn a_host_resolves_the_address_of_another(left: Host, right: Host) {
    let name = right.name();
    let task = left.spawn(async move { Channel::new().resolve(name).await });
    assert_eq!(task.await, EventKind::AddrResolved);
    assert!(left.elapsed() > Duration::ZERO);
}

#[verbena::test(seeds = 50, faults = "loss=5%, delay=20us..200us, reorder=5%, duplicate=2%")]
async fn hosts_speak_over_a_bad_network(left: Host, middle: Host, right: Host) {
    let requests = right.spawn(requests(2));
    let asked = [&left, &middle].map(|host| host.spawn(ask("right")));
    for asked in asked {
        assert_eq!(asked.await, 28);
    }
    assert_eq!(requests.await, 2);
}

#[verbena::test(seeds = 1)]
async fn what_a_killed_host_held_may_be_dropped_later_and_elsewhere(left: Host, right: Host) {
    let served = right.spawn(requests(1));
    let asked: Task<i32> = left.spawn(ask("right"));
    let kept = right.spawn(async { Channel::new() }).await;
    let of_dead = kept.provider.clone();
    right.kill();
    assert_eq!((served.outcome().await, right.is_alive()), (None, false));
    // Calls on it do no harm, and nothing comes of them.
    let id = node!(of_dead.stack().ours().unwrap(), node => node.create_id(&kept.events, PortSpace::Tcp));
    let called = node!(of_dead.stack().ours().unwrap(), node => node.resolve_addr(&id, None, "10.0.0.1:1".parse().unwrap(), Duration::from_secs(1)));
    drop((called, id));
    crate::time::sleep(Duration::from_secs(5)).await;
    drop(kept);
    right.restart();
    let again = right.spawn(requests(1));
    assert!(Provider::current().is_err(), "the test function is on no host");
    assert!(right.spawn(async move { Provider::current().unwrap() != of_dead }).await);
    assert_eq!((asked.await, again.await), (28, 1));
}

/// Work that adds to another host's, then wakes a task there.
struct Pass {
    to: Option<Arc<dyn Work>>,
    later: Arc<DeferredWork>,
    waker: Mutex<Option<Waker>>,
}

impl Work for Pass {
    fn run(self: Arc<Self>) {
        if let Some(to) = &self.to {
            self.later.add(to.clone());
        }
        let waker = self.waker.lock().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

#[verbena::test(seeds = 1)]
async fn work_may_ask_for_work_on_a_host_whose_turn_is_over(left: Host, right: Host) {
    let later = |host: &Host| host.spawn(async { Provider::current().unwrap().stack().later().clone() });
    let (first, second) = (later(&left).await, later(&right).await);
    let mut asked = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        let pass = |to, later: &Arc<DeferredWork>, waker| {
            Arc::new(Pass { to, later: later.clone(), waker: Mutex::new(Rank::ConnectionState, waker) })
        };
        let last: Arc<dyn Work> = pass(None, &first, Some(cx.waker().clone()));
        second.add(pass(Some(last), &first, None));
        Poll::Pending
    })
    .await;
}

/// The trace of one run on a network where much goes wrong.
fn trace_of(seed: u64) -> u64 {
    let settings = super::settings::Settings {
        seeds: 1,
        limit: Duration::from_secs(600),
        faults: Faults::lossy().corrupt(0.01).partition(0.01),
        fabric: None,
    };
    let trace = Rc::new(Cell::new(0));
    let (out, at) = (trace.clone(), std::panic::Location::caller());
    super::run::simulate(seed, (&settings, None), &["left", "right", "other"], at, &move |hosts: Vec<
        Host,
    >| {
        let out = out.clone();
        Box::pin(async move {
            let served = hosts[1].spawn(requests(6));
            let asked: Vec<_> = [0, 2, 0, 2, 0, 2].iter().map(|&h| hosts[h].spawn(ask("right"))).collect();
            for asked in asked {
                asked.await;
            }
            served.await;
            out.set(hosts[0].trace());
        })
    });
    trace.get()
}

#[test]
fn two_runs_of_one_seed_are_the_same_and_those_of_two_are_not() {
    let first: Vec<u64> = (0..20).map(trace_of).collect();
    let second: Vec<u64> = (0..20).map(trace_of).collect();
    assert_eq!(first, second);
    let different: std::collections::BTreeSet<u64> = first.into_iter().collect();
    assert_eq!(different.len(), 20);
}
