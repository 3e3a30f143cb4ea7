//! Wakers, destructors and closures of the program's that panic where the crate calls them:
//! borrowed memory stays borrowed, no other task misses a wake-up, and no thread of the crate ends.
//! Over what `support` says.

mod support;

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use verbena::{
    Connection, IoBuf, Memory, Message, Pool, QueueConfig, RegBuf, RemoteMemory, RemoteWrite, SgeList,
};

struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the program's");
    }
}

fn bomb() -> Waker {
    Waker::from(Arc::new(Bomb))
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn woken(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// A buffer whose destructor panics.
struct Fuse {
    buf: RegBuf,
    dropped: Arc<AtomicU32>,
}

// SAFETY: the pieces are its buffer's.
unsafe impl IoBuf for Fuse {
    fn gather(&self, list: &mut SgeList) {
        self.buf.gather(list);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        panic!("a destructor of the program's");
    }
}

/// Both ends of a connection, of the active one with so many entries in the send queue and of the
/// passive one with one receive; memory of the passive one, full of fives, that the active one
/// may access.
fn connected(send_depth: u32, bytes: usize) -> (Connection, Connection, RemoteMemory) {
    let memory = Memory::<RemoteWrite>::zeroed(bytes).unwrap();
    memory.shared().copy_from(0, &vec![5; bytes]).unwrap();
    let listener = support::listen(support::any_port()).wait().unwrap();
    let to = listener.local_addr();
    thread::scope(|s| {
        let queues = QueueConfig::default().send_depth(send_depth);
        let active = s.spawn(move || support::connect(to).queues(queues).wait().unwrap());
        let request = listener.blocking_request().unwrap();
        let mr = memory.mr(request.pd()).unwrap();
        let remote = mr.remote();
        std::mem::forget(mr);
        let queues = QueueConfig::default().recv_depth(1);
        let passive = request.accept().queues(queues).wait().unwrap();
        (active.join().unwrap(), passive, remote)
    })
}

/// From now on the passive side has no receive, until the message is dropped: what is posted after
/// a SEND is under way until then.
fn slowed(active: &Connection, passive: &Connection) -> Message {
    active.send_inline(b"first").wait().unwrap();
    passive.blocking_recv().unwrap().unwrap()
}

const SLOW: Duration = Duration::from_millis(300);

#[test]
fn a_waker_that_panics_ends_no_scope_whose_operations_are_under_way() {
    const BIG: usize = 1 << 20;
    let (active, passive, remote) = connected(3, BIG);
    let message = slowed(&active, &passive);
    let (mut small, mut back, mut sent) = ([0; 8], vec![0; BIG], vec![7; 4096]);
    let waker = bomb();
    let mut waits = pin!(active.send_copy(b"x").unwrap().into_future());
    let before = verbena::caught_panics();
    thread::scope(|threads| {
        threads.spawn(move || {
            thread::sleep(SLOW);
            drop(message);
        });
        let ended = catch_unwind(AssertUnwindSafe(|| {
            active.scope(|s| {
                let _first = s.read(&mut small, remote.slice(..8)?)?;
                let _second = s.send(&sent)?;
                let _third = s.read(&mut back, remote)?;
                // Another future of this connection waits for room in the send queue.
                assert!(
                    waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
                    "the queue is full"
                );
                Ok(())
            })
        }));
        // The program's again: whatever comes now changes it without the program's knowledge.
        let (all, zeros) =
            (back.iter().all(|byte| *byte == 5), back.iter().filter(|byte| **byte == 0).count());
        back.fill(1);
        sent.fill(8);
        let message = passive.blocking_recv().unwrap().unwrap();
        assert!(message.iter().all(|byte| *byte == 7), "the message had left when the scope ended");
        thread::sleep(SLOW);
        assert!(back.iter().all(|byte| *byte == 1), "bytes changed behind the scope's end");
        ended.expect("the panic is not the scope's").unwrap();
        assert!(all, "{zeros} bytes were not read when the scope ended");
    });
    assert!(verbena::caught_panics() > before);
}

#[test]
fn a_scope_that_panics_itself_is_drained_whatever_wakers_do() {
    let (active, passive, remote) = connected(3, 1 << 20);
    let message = slowed(&active, &passive);
    let (mut small, mut back) = ([0; 8], vec![0; 1 << 20]);
    let waker = bomb();
    let mut waits = pin!(active.send_copy(b"x").unwrap().into_future());
    let ended = catch_unwind(AssertUnwindSafe(|| {
        active.scope(|s| -> verbena::Result<()> {
            let _first = s.read(&mut small, remote.slice(..8)?)?;
            let _second = s.send(&[7; 100])?;
            let _third = s.read(&mut back, remote)?;
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "the queue is full");
            panic!("the closure of the program's");
        })
    }));
    // One panic while another unwinds would have ended the process.
    let said = ended.expect_err("the closure panicked");
    assert_eq!(said.downcast_ref(), Some(&"the closure of the program's"));
    back.fill(1);
    drop(message);
    thread::sleep(SLOW);
    assert!(back.iter().all(|byte| *byte == 1), "bytes changed behind the scope's end");
}

#[test]
fn a_waker_that_panics_loses_no_wake_up_of_another_connection() {
    for round in 0..20 {
        let ((a, b, _), (c, d, _)) = (connected(8, 8), connected(8, 8));
        let (waker, count) = (bomb(), Arc::new(Count::default()));
        let counts = Waker::from(count.clone());
        let (mut first, mut second) = (pin!(a.recv()), pin!(c.recv()));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(second.as_mut().poll(&mut Context::from_waker(&counts)).is_pending());
        // Both are posted together, and come together: the engine thread brings them.
        let posted = (b.send_copy(b"1").unwrap().post(), d.send_copy(b"2").unwrap().post());
        assert!(
            support::soon(true, || count.woken()),
            "round {round}: a message has come, and its receiver sleeps"
        );
        let message = support::within(second).unwrap().unwrap();
        assert_eq!(&message[..], b"2");
        // Nor is the message lost whose waker panicked.
        assert_eq!(&support::within(first).unwrap().unwrap()[..], b"1");
        drop(posted);
    }
}

#[test]
fn of_those_that_wait_for_one_thing_each_is_woken_whatever_the_first_does() {
    let (active, passive, _) = connected(1, 8);
    let message = slowed(&active, &passive);
    let under_way = active.send_copy(b"behind").unwrap().post().unwrap();
    let (waker, count) = (bomb(), Arc::new(Count::default()));
    let counts = Waker::from(count.clone());
    let mut ops: Vec<_> = (0..4).map(|_| active.send_inline(b"x")).collect();
    for (n, op) in ops.iter_mut().enumerate() {
        let waker = if n % 2 == 0 { &waker } else { &counts };
        assert!(pin!(op).poll(&mut Context::from_waker(waker)).is_pending(), "the queue is full");
    }
    drop(message);
    // The thread that takes the result makes room, and wakes the tasks that wait for some.
    under_way.wait().unwrap();
    assert_eq!(support::soon(2, || count.0.load(Ordering::SeqCst)), 2, "both are woken");
}

#[test]
fn a_buffer_of_a_pool_that_a_panicking_waiter_got_is_not_lost() {
    let (active, ..) = connected(1, 8);
    let pool = Pool::new(active.pd(), 64, 1).unwrap();
    let only = pool.get().unwrap();
    let (waker, count) = (bomb(), Arc::new(Count::default()));
    let counts = Waker::from(count.clone());
    let (mut first, mut second) = (Box::pin(pool.acquire()), Box::pin(pool.acquire()));
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&counts)).is_pending());
    drop(only);
    drop(first); // it was granted the buffer, and passes it on
    assert!(count.woken());
    support::within(second).unwrap();
}

#[test]
fn destructors_that_panic_end_no_thread_and_hold_nothing_up() {
    let (active, passive, _) = connected(8, 8);
    let pool = Pool::new(active.pd(), 64, 4).unwrap();
    let dropped = Arc::new(AtomicU32::new(0));
    let message = slowed(&active, &passive);
    for _ in 0..3 {
        let fuse = Fuse { buf: pool.copy(b"fuse").unwrap(), dropped: dropped.clone() };
        drop(active.send(fuse).post().unwrap());
    }
    drop(message);
    for _ in 0..3 {
        assert_eq!(&passive.blocking_recv().unwrap().unwrap()[..], b"fuse");
    }
    assert_eq!(support::soon(3, || dropped.load(Ordering::SeqCst)), 3);
    // The engine thread lives, and the device is not in the error state.
    let (other, peer, _) = connected(1, 8);
    let sends = thread::spawn(move || active.send_inline(b"again").wait());
    assert_eq!(&passive.blocking_recv().unwrap().unwrap()[..], b"again");
    sends.join().unwrap().unwrap();
    other.send_inline(b"and others").wait().unwrap();
    assert_eq!(&peer.blocking_recv().unwrap().unwrap()[..], b"and others");
    assert!(pool.copy(b"all are back").is_ok());
}

#[test]
fn a_sleeper_whose_waker_panics_keeps_none_of_the_others_asleep() {
    let (waker, count) = (bomb(), Arc::new(Count::default()));
    let counts = Waker::from(count.clone());
    let time = Duration::from_millis(20);
    let mut sleeps: Vec<_> = (0..4).map(|_| Box::pin(verbena::time::sleep(time))).collect();
    for (n, sleep) in sleeps.iter_mut().enumerate() {
        let waker = if n % 2 == 0 { &waker } else { &counts };
        assert!(sleep.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    assert_eq!(support::soon(2, || count.0.load(Ordering::SeqCst)), 2);
    support::within(verbena::time::sleep(time));
}
