//! The program's code panics at its k-th call, for each k that there is: clones, wakes and drops of
//! wakers; destructors of values, and what values say of themselves, whether they lie in a queue or
//! not. What another task does beside it, with connections, queues, a pool and a listener in
//! common, goes on and ends as if nothing had been, and nothing is left on either host.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use super::cut::surely;
use super::setting::{STOP, echo, left_over};
use crate::sim::Host;
use crate::{
    Connection, Cq, IoBuf, IoBufMut, Pool, Provider, QueueConfig, RdmaListener, RdmaStream, RegBuf,
    RemoteMemory, SgeList, StreamConfig,
};

const MS: Duration = Duration::from_millis(1);

thread_local! {
    /// Calls of the program's code so far, and that which panics.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static PANICS_AT: Cell<u64> = const { Cell::new(0) };
    /// What each call was, to say which one panicked.
    static NAMES: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// The payload of such a panic; it panics when it is dropped, where the run says so.
struct Payload;

fn program(what: &'static str) {
    let call = CALLS.get() + 1;
    CALLS.set(call);
    NAMES.with_borrow_mut(|names| names.push(what));
    if call == PANICS_AT.get() {
        panic_any(Payload);
    }
}

/// A waker of the program's that is called before a task's own.
struct Trap(Waker);

#[allow(unsafe_code, reason = "a waker whose clone panics can not be made by the trait Wake")]
mod raw {
    use super::*;

    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_it);

    pub(super) fn waker(outer: &Waker) -> Waker {
        // SAFETY: the functions of the table take what `Rc::into_raw` gave. Wakers stay in the
        // simulation's thread.
        unsafe { Waker::from_raw(RawWaker::new(Rc::into_raw(Rc::new(Trap(outer.clone()))).cast(), &TABLE)) }
    }

    unsafe fn clone(at: *const ()) -> RawWaker {
        program("clone of a waker");
        // SAFETY: the waker that is cloned keeps it.
        unsafe { Rc::increment_strong_count(at.cast::<Trap>()) };
        RawWaker::new(at, &TABLE)
    }
    unsafe fn wake(at: *const ()) {
        // SAFETY: the waker gives up its count.
        let trap = unsafe { Rc::from_raw(at.cast::<Trap>()) };
        // Its task is woken in any case: only so can it be seen that nothing else is lost.
        trap.0.wake_by_ref();
        program("wake");
    }
    unsafe fn wake_by_ref(at: *const ()) {
        // SAFETY: the waker keeps it.
        unsafe { &*at.cast::<Trap>() }.0.wake_by_ref();
        program("wake_by_ref");
    }
    unsafe fn drop_it(at: *const ()) {
        // SAFETY: the waker gives up its count.
        drop(unsafe { Rc::from_raw(at.cast::<Trap>()) });
        program("drop of a waker");
    }

    /// A buffer all of whose functions may panic.
    pub(super) struct Mine(pub RegBuf);

    // SAFETY: the pieces are its buffer's.
    unsafe impl IoBuf for Mine {
        fn gather(&self, list: &mut SgeList) {
            program("gather");
            self.0.gather(list);
        }
    }
    // SAFETY: as above.
    unsafe impl IoBufMut for Mine {
        fn gather_mut(&self, list: &mut SgeList) {
            program("gather_mut");
            self.0.gather_mut(list);
        }
        fn capacity_bytes(&self) -> usize {
            program("capacity_bytes");
            self.0.capacity_bytes()
        }
        fn set_filled(&mut self, len: usize) {
            program("set_filled");
            self.0.set_filled(len);
        }
    }
    impl Drop for Mine {
        fn drop(&mut self) {
            program("drop of a value");
        }
    }
}
use raw::Mine;

/// What a future gives that is polled with traps; `None` where one went off in a poll, as in a task
/// that ends with it.
async fn trapped<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = Some(Box::pin(future));
    poll_fn(|cx| {
        let Some(living) = &mut future else { return Poll::Ready(None) };
        let waker = raw::waker(cx.waker());
        let polled = caught(|| living.as_mut().poll(&mut Context::from_waker(&waker)));
        caught(|| drop(waker));
        match polled {
            Some(Poll::Ready(output)) => {
                caught(|| drop(future.take()));
                Poll::Ready(Some(output))
            }
            Some(Poll::Pending) => Poll::Pending,
            None => {
                caught(|| drop(future.take()));
                Poll::Ready(None)
            }
        }
    })
    .await
}

/// The program's own, so that the simulation goes on: `None` where it panicked by a trap.
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(output) => Some(output),
        Err(payload) if payload.is::<Payload>() => None,
        Err(other) => std::panic::resume_unwind(other),
    }
}

/// Small queues, so that there is something to wait for.
fn queues(cq: &Cq) -> QueueConfig {
    QueueConfig { send_depth: 2, recv_depth: 4, cq: Some(cq.clone()), ..QueueConfig::default() }
}

/// Whatever a connection does, with traps; it goes on with the next where one goes off.
async fn trapping(conn: Connection, pool: Pool, to: RemoteMemory) {
    let mine = |buf: crate::Result<RegBuf>| buf.ok().map(Mine);
    for _ in 0..2 {
        if let Some(buf) = mine(pool.copy(b"mine")) {
            trapped(conn.send(buf).into_future())
                .await
                .into_iter()
                .for_each(|sent| _ = caught(|| drop(sent)));
        }
        if let Some(Ok(buf)) = trapped(pool.acquire()).await {
            let read = Box::pin(async { conn.read(Mine(buf), to).await });
            trapped(read).await.into_iter().for_each(|read| _ = caught(|| drop(read)));
        }
        // Several at once: the queue is full. Their results are of no interest: the thread that
        // drains drops the values.
        for _ in 0..3 {
            if let Some(buf) = mine(pool.copy(b"given up")) {
                caught(|| drop(conn.write(buf, to).post()));
            }
        }
        trapped(async { conn.fetch_add(to.word(0)?, 1).await }).await;
        // What was to be sent may not have been.
        trapped(crate::time::timeout(10 * MS, conn.recv())).await;
        trapped(crate::time::sleep(MS)).await;
        trapped(crate::time::timeout(MS, conn.recv())).await;
    }
    trapped(conn.close()).await;
}

/// The exchange without traps: all of it must come about.
async fn undisturbed(conn: Connection, pool: Pool, to: RemoteMemory) {
    for n in 0..4_u8 {
        surely("a message", async {
            let mut buf = pool.acquire().await.expect("a buffer");
            buf.extend_from_slice(&[n; 8]).expect("room");
            conn.send(buf).await.0.expect("sent");
            let back = conn.recv().await.expect("no failure").expect("an echo");
            assert_eq!(&back[..], &[n; 8]);
        })
        .await;
        let buf = surely("a buffer", pool.acquire()).await.expect("a buffer");
        let (read, buf) =
            surely("a READ", conn.read(buf, to.slice(8..16).expect("inside")).into_future()).await;
        read.expect("read");
        assert_eq!(&buf[..], &[0; 8]);
        drop(buf);
        surely("a sleep", crate::time::sleep(MS)).await;
    }
    surely("the end", conn.close()).await.expect("closed");
}

/// Bytes both ways by a stream, or less where a trap goes off.
async fn trapping_stream(to: &str) {
    let Some(Ok(mut stream)) = trapped(RdmaStream::connect(to)).await else { return };
    let mut back = [0; 300];
    trapped(stream.write_all(&[3; 300])).await;
    trapped(stream.read(&mut back)).await;
    trapped(stream.close()).await;
}

async fn undisturbed_stream(to: &str) {
    let mut stream = surely("a stream", RdmaStream::connect(to)).await.expect("connected");
    surely("bytes", stream.write_all(&[4; 300])).await.expect("written");
    let (mut back, mut len) = ([0; 300], 0);
    while len < back.len() {
        len += surely("bytes", stream.read(&mut back[len..])).await.expect("read");
    }
    assert_eq!(back, [4; 300]);
    surely("the end", stream.close()).await.expect("closed");
}

/// The listening side of the streams: each poll of the listener is one that may panic.
async fn streams(on: &'static str) {
    let mut listener = RdmaListener::over(crate::listen(on), StreamConfig::default()).await.expect("a port");
    loop {
        let accepted = poll_fn(|cx| {
            let waker = raw::waker(cx.waker());
            let polled = caught(|| listener.poll_accept(&mut Context::from_waker(&waker)));
            caught(|| drop(waker));
            // A task that is polled again.
            polled.unwrap_or_else(|| {
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        });
        let mut stream = accepted.await.expect("a stream");
        let serve = async move {
            let mut bytes = [0; 300];
            while let Ok(n) = stream.read(&mut bytes).await {
                if n == 0 || stream.write_all(&bytes[..n]).await.is_err() {
                    break;
                }
            }
            _ = stream.shutdown().await;
        };
        crate::spawn(serve).expect("a task");
    }
}

async fn served() {
    let listener = crate::listen("0.0.0.0:7000").await.expect("a port");
    let memory = crate::Memory::<crate::RemoteWrite>::zeroed(4096).expect("memory");
    loop {
        let request = listener.request().await.expect("a request");
        if request.private_data().starts_with(STOP) {
            return;
        }
        let mr = memory.mr(request.pd()).expect("registered");
        let answer = async move {
            if let Ok(conn) = request.accept().private_data(mr.remote().to_bytes()).await {
                echo(conn).await;
            }
            drop(mr);
        };
        crate::spawn(answer).expect("a task");
    }
}

async fn both() {
    let device = Provider::current().expect("a host").devices().expect("devices").remove(0);
    let cq = Cq::new(&device).expect("a queue");
    let mut conns: Vec<(Connection, RemoteMemory)> = Vec::new();
    for _ in 0..2 {
        let conn = crate::connect("right:7000").queues(queues(&cq)).await.expect("connected");
        let to = RemoteMemory::from_bytes(conn.private_data()).expect("a descriptor");
        conns.push((conn, to));
    }
    let pool = Pool::new(conns[0].0.pd(), 64, 2).expect("a pool");
    let (other, to) = conns.pop().expect("two");
    let (conn, _) = conns.pop().expect("two");
    let (first, second) =
        (trapping(conn, pool.clone(), to.slice(0..64).expect("inside")), undisturbed(other, pool, to));
    super::cut::all([
        Box::pin(first) as Pin<Box<dyn Future<Output = ()>>>,
        Box::pin(second),
        Box::pin(trapping_stream("right:7001")),
        Box::pin(undisturbed_stream("right:7001")),
    ])
    .await;
    let last = crate::connect("right:7000").private_data(STOP).await;
    assert!(last.is_err(), "the service ends");
}

async fn scenario(hosts: Vec<Host>) {
    let (left, right) = (&hosts[0], &hosts[1]);
    let (served, streams) = (right.spawn(served()), right.spawn(streams("0.0.0.0:7001")));
    left.spawn(both()).await;
    served.await;
    crate::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(left.spawn(async { left_over() }).await, Default::default());
    drop(streams);
}

#[test]
fn what_is_beside_a_panic_of_the_program_goes_on_wherever_that_panics() {
    // It tells of each: hundreds.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Payload>() {
            hook(info);
        }
    }));
    let mut seen = std::collections::BTreeMap::new();
    for at in 1.. {
        CALLS.set(0);
        NAMES.take();
        PANICS_AT.set(at);
        let run = |hosts| Box::pin(scenario(hosts)) as Pin<Box<dyn Future<Output = ()>>>;
        let settings = "seeds = 1, faults = \"delay=20us..200us, reorder=1%\"";
        let ran = catch_unwind(|| {
            crate::sim::run_seeds(module_path!(), "panics", settings, &["left", "right"], run);
        });
        let which = NAMES.with_borrow(|names| names.get(at as usize - 1).copied());
        assert!(ran.is_ok(), "where the {at}-th call panics, a {which:?}");
        let Some(which) = which else { break };
        *seen.entry(which).or_insert(0) += 1;
    }
    for what in ["clone of a waker", "wake", "drop of a waker", "gather", "set_filled", "drop of a value"] {
        assert!(seen.get(what).is_some_and(|count| *count > 1), "{what}: {seen:?}");
    }
}
