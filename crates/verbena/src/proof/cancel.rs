//! Every future of the crate, dropped at each of its polls until it is ready before: at once, when
//! it is woken, or a while after. Afterwards the connection goes on, nothing that came is lost, and
//! all that it had is back; in the end nothing is left on either host.

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use super::cut::{How, all, cut, surely};
use super::setting::{STOP, echo, left_over, serve};
use crate::sim::Host;
use crate::{Connection, Placement, Pool, QueueConfig, RemoteMemory};

const MS: Duration = Duration::from_millis(1);
/// Sizes that are soon full.
pub(super) const SENDS: u32 = 2;
const RECEIVES: u32 = 4;

/// How each cut is made, in turn from a place that the seed says.
pub(super) struct Plan(Cell<u64>);

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub(super) fn how(&self) -> How {
        let n = self.0.get();
        self.0.set(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        match (n >> 33) % 3 {
            0 => How::DirectOutcome,
            1 => How::WhenWoken,
            _ => How::After(Duration::from_micros((n >> 40) % 500)),
        }
    }

    /// A short time: messages are on their way for longer, or not.
    pub(super) fn soon(&self) -> Duration {
        match self.how() {
            How::After(time) => time,
            _ => Duration::ZERO,
        }
    }

    /// Cuts what `make` gives at its first poll, its second, and so on until it is ready; `then`
    /// looks after each.
    pub(super) async fn each<'a, T, A: Future<Output = ()>>(
        &self,
        what: &str,
        make: impl Fn() -> Pin<Box<dyn Future<Output = T> + 'a>>,
        then: impl Fn(Option<T>) -> A,
    ) {
        for polls in 0.. {
            let output = cut(what, make(), polls, self.how()).await;
            let is_over = output.is_some();
            then(output).await;
            if is_over {
                return;
            }
        }
    }
}

fn queues() -> QueueConfig {
    QueueConfig { send_depth: SENDS, recv_depth: RECEIVES, recv_size: 64, ..QueueConfig::default() }
}

pub(super) async fn connected() -> (Connection, RemoteMemory) {
    let conn = surely("connect", crate::connect("right:7000").queues(queues()).into_future()).await;
    let conn = conn.expect("connected");
    let remote = RemoteMemory::from_bytes(conn.private_data()).expect("a descriptor");
    (conn, remote)
}

/// The connection goes on, and has all that it had.
pub(super) async fn goes_on(what: &str, conn: &Connection) {
    let marker = [0xab; 3];
    surely(what, conn.send_inline(&marker)).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    // What was under way may have been echoed before.
    while surely(what, conn.recv()).await.expect("no failure").expect("a message")[..] != marker {}
    surely(what, conn.queue_pair().idle()).await;
    is_whole(what, conn);
}

fn is_whole(what: &str, conn: &Connection) {
    let census = conn.queue_pair().census();
    assert_eq!(
        (census.sends, census.posted, census.ready, census.waiting),
        (0, RECEIVES as usize, 0, 0),
        "{what}"
    );
    assert_eq!(conn.queue_pair().buffers(), (SENDS as usize, (SENDS + RECEIVES) as usize), "{what}");
}

/// Operations on a connection, of which each is cut.
async fn operations(plan: &Plan) {
    let (conn, remote) = connected().await;
    let conn = &conn;
    let pool = &Pool::new(conn.pd(), 64, 1).expect("a pool");
    let word = remote.word(64).expect("a word");
    let buf = || pool.copy(&[7; 40]).expect("the buffer is back");
    type Making<'a> = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + 'a>> + 'a>;
    macro_rules! makings {
        ($($name:literal: $op:expr;)*) => {
            [$(($name, Box::new(move || -> Pin<Box<dyn Future<Output = ()> + '_>> {
                Box::pin(async move { $op; })
            }) as Making<'_>)),*]
        };
    }
    let makings = makings! {
        "send": conn.send(buf()).await.0.expect("sent");
        "send_inline": conn.send_inline(&[1; 8]).await.expect("sent");
        "send_copy": conn.send_copy(&[2; 8]).expect("a buffer").await.expect("sent");
        "write": conn.write(buf(), remote).await.0.expect("written");
        "write_inline, imm": conn.write_inline(&[3; 8], remote).imm(5).await.expect("written");
        "read": conn.read(buf(), remote.slice(..64).expect("inside")).await.0.expect("read");
        "fetch_add": conn.fetch_add(word, 1).await.expect("added");
        "compare_swap": conn.compare_swap(word, 0, 1).await.expect("swapped");
        "atomic_write": conn.atomic_write(word, 9).await.expect("written");
        "flush": conn.flush(remote, Placement::Global).await.expect("flushed");
        "post": conn.send(buf()).post().expect("room").await.0.expect("sent");
        "post_all": {
            let ops = (conn.write_inline(&[4; 8], remote), conn.fetch_add(word, 1));
            let (write, add) = conn.post_all(ops).expect("room");
            add.await.expect("added");
            write.await.expect("written");
        };
        "post_all, the last is dropped": {
            let (send, read) = conn
                .post_all((conn.send_inline(&[5; 8]), conn.read(buf(), remote.slice(..8).expect("inside"))))
                .expect("room");
            drop(read);
            send.await.expect("sent");
        };
        "idle": {
            drop(conn.send(buf()).post().expect("room"));
            conn.queue_pair().idle().await;
        };
        "room": {
            let ops = (0..4).map(|n| -> Pin<Box<dyn Future<Output = _>>> { Box::pin(conn.write_inline(&[n], remote)) });
            all(ops).await.into_iter().for_each(|written| assert!(written.is_ok()));
        };
    };
    for (what, make) in &makings {
        plan.each(what, make, |_| async {
            goes_on(what, conn).await;
            assert_eq!(pool.census().free, 1, "{what}");
        })
        .await;
    }
    room(plan, conn, remote).await;
    receiving(plan, conn).await;
    waiting_for_buffers(plan, pool).await;
}

/// Of four that want one of two entries, one is cut while it waits; the others get through.
async fn room(plan: &Plan, conn: &Connection, remote: RemoteMemory) {
    for cut_one in 0..4 {
        for polls in 0..4 {
            let ops = (0..4_u32).map(|n| -> Pin<Box<dyn Future<Output = _>>> {
                let (polls, how) =
                    if n == cut_one { (polls, plan.how()) } else { (1000, How::DirectOutcome) };
                Box::pin(cut("one of four", conn.write_inline(&[n as u8], remote), polls, how))
            });
            for (n, written) in surely("four writes", all(ops)).await.into_iter().enumerate() {
                assert!(written.map_or(n == cut_one as usize, |written| written.is_ok()));
            }
            goes_on("one of four", conn).await;
        }
    }
}

/// A message that comes while a receiver is cut is not lost: neither for the next nor for another
/// that waits.
async fn receiving(plan: &Plan, conn: &Connection) {
    for polls in 0.. {
        conn.send_inline(&[polls as u8; 5]).await.expect("sent");
        let first = cut("recv", conn.recv(), polls, plan.how()).await;
        let is_over = first.is_some();
        let message = match first {
            Some(message) => message,
            None => surely("recv", conn.recv()).await,
        };
        assert_eq!(message.expect("no failure").expect("a message")[..], [polls as u8; 5]);
        if is_over {
            break;
        }
    }
    for polls in 0..3 {
        let (how, other) = (plan.how(), surely("the other", conn.recv()));
        let both: [Pin<Box<dyn Future<Output = _>>>; 3] = [
            Box::pin(async {
                cut("recv", crate::time::timeout(MS * 50, conn.recv()), polls, how).await.and_then(Result::ok)
            }),
            Box::pin(async { Some(other.await) }),
            Box::pin(async {
                conn.send_inline(&[6]).await.expect("sent");
                crate::time::sleep(MS * 20).await;
                conn.send_inline(&[7]).await.expect("sent");
                None
            }),
        ];
        let got = surely("two receivers", all(both)).await;
        let count = got.into_iter().flatten().filter(|got| matches!(got, Ok(Some(_)))).count();
        assert!((1..=2).contains(&count));
        goes_on("two receivers", conn).await;
    }
}

/// A buffer granted to a future that was cut goes to the next.
async fn waiting_for_buffers(plan: &Plan, pool: &Pool) {
    for polls in 0..4 {
        let buf = pool.get().expect("the buffer is back");
        let how = plan.how();
        let futures: [Pin<Box<dyn Future<Output = bool>>>; 3] = [
            Box::pin(async { cut("acquire", pool.acquire(), polls, how).await.is_some() }),
            Box::pin(async { surely("acquire", pool.acquire()).await.is_ok() }),
            Box::pin(async move {
                crate::time::sleep(MS / 5).await;
                drop(buf);
                true
            }),
        ];
        let got = surely("two who wait for a buffer", all(futures)).await;
        assert!(got[1] && got[2]);
        let census = pool.census();
        assert_eq!((census.free, census.waiting, census.granted), (1, 0, 0));
    }
}

/// The ways to a connection, and its ends.
async fn connecting(plan: &Plan) {
    plan.each(
        "resolve",
        || Box::pin(crate::resolve("right:7000").into_future()),
        |route| async { assert!(route.is_none_or(|route| route.is_ok())) },
    )
    .await;
    plan.each(
        "connect",
        || Box::pin(crate::connect("right:7000").queues(queues()).into_future()),
        |conn| async {
            if let Some(conn) = conn {
                goes_on("connect", &conn.expect("connected")).await;
            }
        },
    )
    .await;
    plan.each(
        "connect by a route",
        || Box::pin(async { crate::resolve("right:7000").await?.connect().queues(queues()).await }),
        |conn| async {
            if let Some(conn) = conn {
                goes_on("connect by a route", &conn.expect("connected")).await;
            }
        },
    )
    .await;
    for polls in 0.. {
        let (conn, _) = connected().await;
        conn.send_inline(&[1]).post().expect("room").await.expect("sent");
        drop(conn.send_inline(&[2]).post().expect("room"));
        let clone = conn.clone();
        let closed = cut("close", conn.close(), polls, plan.how()).await;
        match &closed {
            Some(closed) => closed.as_ref().expect("closed"),
            // No side may have begun to close it.
            None => &surely("close after a close that was cut", clone.clone().close()).await.expect("closed"),
        };
        surely("ended", clone.ended()).await;
        if closed.is_some() {
            break;
        }
    }
    for polls in 0.. {
        let (conn, _) = connected().await;
        let closing = conn.clone();
        crate::spawn(async move { closing.close().await }).expect("spawned");
        let ended = cut("ended", conn.ended(), polls, plan.how()).await;
        surely("ended", conn.ended()).await;
        if ended.is_some() {
            break;
        }
    }
}

/// Connects until a listener at `right:7001` accepts and echoes.
async fn persist() {
    loop {
        let Ok(conn) = surely("connect", crate::connect("right:7001").queues(queues()).into_future()).await
        else {
            crate::time::sleep(MS / 10).await;
            continue;
        };
        let said = async {
            conn.send_inline(&[1]).await?;
            conn.recv().await
        };
        if matches!(surely("an answer", said).await, Ok(Some(_))) {
            return;
        }
    }
}

/// The side that is asked: each way to accept is cut, and the next one serves. Runs on `right`, and
/// asks `left` to connect.
async fn accepting(plan: &Plan, left: &Host) {
    plan.each("listen", || Box::pin(crate::listen("0.0.0.0:7001").into_future()), |_| async {}).await;
    let listener = &crate::listen("0.0.0.0:7001").backlog(8).await.expect("the port is free again");
    for way in 0..3 {
        for polls in 0.. {
            let asking = left.spawn(persist());
            let accepting = async {
                match way {
                    0 => listener.accept().await,
                    1 => Ok(listener.request().await?.accept().queues(queues()).await?),
                    _ => {
                        let accept = listener.request().await?.accept();
                        crate::time::sleep(MS / 20).await;
                        accept.await
                    }
                }
            };
            let accepted = cut("accept", accepting, polls, plan.how()).await;
            let is_over = matches!(accepted, Some(Ok(_)));
            match accepted {
                Some(Ok(conn)) => echo(conn).await,
                _ => loop {
                    // Requests withdrawn or answered before come to nothing.
                    if let Ok(conn) = surely("accept", listener.accept()).await
                        && !asking.is_finished()
                    {
                        echo(conn).await;
                    }
                    if asking.is_finished() {
                        break;
                    }
                },
            }
            surely("who asked", asking.outcome()).await.expect("not killed");
            if is_over {
                break;
            }
        }
    }
}

/// Time and tasks.
async fn time(plan: &Plan, host: &Host) {
    plan.each("sleep", || Box::pin(crate::time::sleep(MS)), |_| async {}).await;
    let until = || crate::time::sleep_until(crate::time::now() + MS);
    plan.each("sleep_until", || Box::pin(until()), |_| async {}).await;
    let late = || crate::time::timeout(MS, std::future::pending::<()>());
    plan.each("timeout", || Box::pin(late()), |_| async {}).await;
    let join = || host.spawn(crate::time::sleep(MS)).outcome();
    plan.each("outcome", || Box::pin(join()), |ended| async move { assert_ne!(ended, Some(None)) }).await;
    plan.each("join", || Box::pin(host.spawn(crate::time::sleep(MS))), |_| async {}).await;
}

async fn cut_everything(left: Host, right: Host) {
    let seed = left.seed();
    if seed.is_multiple_of(4) {
        left.set_faults(crate::sim::Faults::none());
    }
    let plan = move || Plan::of(seed);
    let service = right.spawn(serve("0.0.0.0:7000"));
    let (here, there) = (left.clone(), left.clone());
    let asks = left.spawn(async move {
        time(&plan(), &here).await;
        operations(&plan()).await;
        connecting(&plan()).await;
    });
    let answers = right.spawn(async move { accepting(&plan(), &there).await });
    asks.await;
    answers.await;
    left.spawn(async { crate::connect("right:7000").private_data(STOP).await.expect_err("refused") }).await;
    service.await.expect("no error");
    // What the peers were told comes, and is answered.
    crate::time::sleep(Duration::from_secs(100)).await;
    for host in [&left, &right] {
        assert_eq!(host.spawn(async { left_over() }).await, Default::default(), "on {}", host.name());
    }
}

/// By hand on more: `VERBENA_SEEDS=10000 cargo test -p verbena-rdma --lib every_future`, some four
/// minutes.
#[verbena::test(seeds = 400, faults = "loss=2%, delay=20us..200us, reorder=2%, duplicate=1%")]
async fn every_future_may_be_dropped_at_any_poll(left: Host, right: Host) {
    cut_everything(left, right).await;
}
