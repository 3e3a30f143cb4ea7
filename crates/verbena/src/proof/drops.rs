//! The objects of a live connection, dropped in every order with work under way on both sides:
//! nothing panics, each side that is left is told, and in the end nothing is left on either host.

use std::any::Any;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

#[cfg(feature = "software")]
use super::cut::all;
use super::cut::surely;
use super::setting::left_over;
use crate::cm::{Addr, ToAddr};
use crate::sim::Host;
use crate::{
    Connection, ErrorKind, Listener, Memory, Pool, Provider, RegBox, RemoteMemory, RemoteRead, RemoteWrite,
    WcStatus,
};

const US: Duration = Duration::from_micros(1);

/// Something to be dropped.
enum Object {
    /// A handle of the connection.
    Client(Connection),
    Server(Connection),
    /// Work under way, to be awaited or dropped.
    Flight(Pin<Box<dyn Future<Output = ()>>>),
    Other {
        _object: Box<dyn Any>,
    },
}

fn other(object: impl Any) -> Object {
    Object::Other { _object: Box::new(object) }
}

/// Objects that are dropped in every permutation come first; the others get in between wherever the
/// seed says.
const PERMUTED: usize = 6;
const PERMUTATIONS: u64 = 720;

/// What the side that connects has.
async fn client(to: Addr) -> Vec<Object> {
    let provider = Provider::current().expect("a host");
    let conn = crate::connect(to.clone()).await.expect("connected");
    let remote = RemoteMemory::from_bytes(conn.private_data()).expect("a descriptor");
    let pd = conn.pd().clone();
    let pool = Pool::new(&pd, 4096, 4).expect("a pool");
    for n in 0..3 {
        let sent = conn.send_inline(&[n; 8]).post().expect("room");
        drop(sent);
    }
    let buf = pool.get().expect("a buffer");
    let read = conn.read(buf, remote.slice(..4096).expect("inside")).post().expect("room");
    let add = conn.fetch_add(remote.word(0).expect("a word"), 1).post().expect("room");
    // Never polled again: it asks, and the peer may have to be told that no answer is wanted any
    // more.
    let mut connecting = crate::connect(to).into_future();
    for _ in 0..3 {
        if connecting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            break;
        }
        crate::time::sleep(US * 100).await;
    }
    let memory = Memory::<RemoteWrite>::zeroed(8192).expect("memory");
    let part = memory.part(0..8192).expect("all of it");
    let write = conn.write(part, remote.slice(..8192).expect("inside")).post().expect("room");
    let own = RegBox::new(&pool, 7_u64).expect("a value");
    let qp = conn.queue_pair().clone();
    let mut closing = Box::pin(conn.clone().ended_soon());
    let _ = closing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    vec![
        Object::Client(conn.clone()),
        Object::Flight(Box::pin(async move { drop(read.await) })),
        other(memory.clone()),
        Object::Client(conn),
        // Before these, by the caller, what the server has.
        Object::Flight(Box::pin(async move { drop(add.await) })),
        Object::Flight(Box::pin(async move { drop(write.await) })),
        Object::Flight(closing),
        other(connecting),
        other(memory.mr(&pd).expect("registered")),
        other(memory.part(8..16).expect("a part")),
        other(qp),
        other(own),
        other(pool.copy(b"a buffer").expect("a buffer")),
        other(pool.copy(b"frozen").expect("a buffer").freeze()),
        other(pool),
        other(pd.device().clone()),
        other(pd),
        other(provider),
    ]
}

impl Connection {
    /// Waits for the end, with a handle of its own.
    async fn ended_soon(self) {
        self.ended().await;
    }
}

/// What the side has that is asked.
async fn server(listener: Listener) -> Vec<Object> {
    let provider = Provider::current().expect("a host");
    let request = listener.request().await.expect("a request");
    let memory = Memory::<RemoteWrite>::zeroed(8192).expect("memory");
    let mr = memory.mr(request.pd()).expect("registered");
    let frozen = Memory::<RemoteRead>::from_bytes(&[1; 100]).expect("memory");
    let conn = request.accept().private_data(mr.remote().to_bytes()).await.expect("accepted");
    let message = conn.recv().await.expect("no failure");
    // It may not have come: the future that asks is polled no more.
    let second = crate::time::timeout(US * 20_000, listener.request()).await;
    let send = conn.send(frozen.part(0..100).expect("all of it")).post().expect("room");
    let clone = conn.clone();
    let accepting = second.ok().map(|second| {
        let mut accepting = second.expect("a request").accept().into_future();
        let _ = accepting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        accepting
    });
    vec![
        Object::Server(conn),
        other(listener),
        Object::Flight(Box::pin(async move { drop(send.await) })),
        other(message),
        other(accepting),
        other(clone.queue_pair().clone()),
        other(memory),
        other(mr),
        other(frozen),
        other(provider),
    ]
}

/// Numbers out of a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// The permutation of this number.
fn permutation(mut number: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..PERMUTED).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        order.push(left.remove(number % left.len()));
        number /= left.len() + 1;
    }
    order
}

/// The last handle of one side is gone: the other, where it has one, learns of it.
async fn told(objects: &[Option<Object>], gone: bool) {
    let still = objects.iter().flatten().find_map(|object| match object {
        Object::Client(conn) if !gone => Some(conn),
        Object::Server(conn) if gone => Some(conn),
        _ => None,
    });
    if let Some(conn) = still {
        // Memory that is gone before the other side has read it is the other way to end a
        // connection.
        let why = surely("the peer's end", conn.ended()).await.kind();
        assert!(
            matches!(why, ErrorKind::Disconnected | ErrorKind::Completion(WcStatus::RemoteAccess)),
            "{why:?}"
        );
    }
}

/// Drops all, the first of them in the order that the seed says.
async fn dropped_in_order(mut ours: Vec<Object>, mut theirs: Vec<Object>, seed: u64) {
    let mut dice = Dice(seed);
    // The connection that ends, the listener, both its handles, a READ, memory.
    let mut objects: Vec<Object> = ours.drain(..4).chain(theirs.drain(..2)).collect();
    objects.append(&mut ours);
    objects.append(&mut theirs);
    let mut order = permutation((seed % PERMUTATIONS) as usize);
    for n in PERMUTED..objects.len() {
        order.insert(dice.below(order.len() + 1), n);
    }
    let mut objects: Vec<Option<Object>> = objects.into_iter().map(Some).collect();
    for n in order {
        let gone = objects[n].take();
        let left = || objects.iter().flatten();
        match gone {
            Some(Object::Client(conn)) => {
                drop(conn);
                // What waits for the end has a handle, too.
                if !left().any(|o| matches!(o, Object::Client(_) | Object::Flight(_))) {
                    told(&objects, true).await;
                }
            }
            Some(Object::Server(conn)) => {
                drop(conn);
                told(&objects, false).await;
            }
            // Flushed, or complete: it comes back once the connection has ended.
            Some(Object::Flight(flight))
                if dice.below(2) == 0 && !left().any(|o| matches!(o, Object::Server(_))) =>
            {
                surely("work under way", flight).await;
            }
            gone => drop(gone),
        }
        match dice.below(3) {
            0 => {}
            1 => crate::time::sleep(US * dice.below(300) as u32).await,
            _ => crate::time::sleep(US * 5000).await,
        }
    }
}

#[verbena::test(seeds = 1440, faults = "delay=20us..200us, reorder=1%")]
async fn every_order_of_drops_leaves_nothing(left: Host, right: Host) {
    let serving = right.spawn(async { server(crate::listen("0.0.0.0:7000").await.expect("a port")).await });
    let ours = left.spawn(client("right:7000".to_addr())).await;
    dropped_in_order(ours, serving.await, left.seed()).await;
    crate::time::sleep(Duration::from_secs(100)).await;
    for host in [&left, &right] {
        assert_eq!(host.spawn(async { left_over() }).await, Default::default(), "on {}", host.name());
    }
}

/// Drops in drawn orders, over sockets, with the engine thread beside the thread that drops.
#[cfg(feature = "software")]
#[test]
fn orders_of_drops_over_sockets() {
    for n in 0..24 {
        crate::block_on(async {
            let listener = crate::listen("127.0.0.1:0").await.expect("a port");
            let to = listener.local_addr().to_addr();
            let both: [Pin<Box<dyn Future<Output = _>>>; 2] =
                [Box::pin(client(to)), Box::pin(server(listener))];
            let mut both = surely("a connection", all(both)).await;
            let theirs = both.pop().unwrap_or_default();
            dropped_in_order(both.pop().unwrap_or_default(), theirs, 31 * n).await;
        });
    }
}

#[test]
fn every_permutation_has_its_number() {
    let all: std::collections::BTreeSet<Vec<usize>> = (0..PERMUTATIONS as usize).map(permutation).collect();
    assert_eq!(all.len(), PERMUTATIONS as usize);
}
