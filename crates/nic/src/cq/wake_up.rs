//! A thread that waits for a completion is woken, in every order of the threads that bring, drain
//! and wait. [`Cq`], its channel, [`DeferredWork`] and [`Cq::attend`] run as they ship, on loom's
//! models of locks and atomics. They run under a reader that does what the queue pair of the Rust
//! crate does. Each model fails where a thread waits for ever.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p verbena-nic --lib --target-dir target/loom
//! cq::wake_up`

use std::future::poll_fn;
use std::sync::OnceLock;
use std::task::{Poll, Waker};

use loom::future::block_on;
use loom::model::Builder;
use loom::thread;
use transport::op::Completed;
use wire::Qpn;
use wire::roce::SendTail;

use super::*;
use crate::deferred_work::{DeferredWork, Work};

/// How a reader looks at its queue.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    AsItShips,
    /// Wrong: what comes between the look and the arming is seen by no thread.
    LooksThenArms,
    /// Wrong: a thread that leaves a waker does not ask for an event.
    NeverRingsForAll,
}

/// A queue of its own, and the threads that wait for what comes there.
struct Reader {
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    later: Arc<DeferredWork>,
    way: Way,
    results: Mutex<Results>,
}

#[derive(Default)]
struct Results {
    came: usize,
    waker: Option<Waker>,
    /// The queue tells of errors only.
    quiet: bool,
}

/// Has the reader look when no lock is held.
struct EventSignal {
    later: Arc<DeferredWork>,
    reader: OnceLock<Weak<Reader>>,
}

struct Rings(Arc<EventSignal>);

impl Signal for Rings {
    fn signal(&self) {
        if let Some(reader) = self.0.reader.get().and_then(Weak::upgrade) {
            self.0.later.add(reader);
        }
    }
    fn take_back(&self) {}
}

struct Unheard;

impl Signal for Unheard {
    fn signal(&self) {}
    fn take_back(&self) {}
}

impl Work for Reader {
    fn run(self: Arc<Self>) {
        match self.way {
            Way::AsItShips => self.cq.attend(&self.channel, || self.drain(), || self.ring_again()),
            Way::NeverRingsForAll => {
                self.cq.attend(&self.channel, || self.drain(), || self.cq.rearm(Arm::Solicited))
            }
            Way::LooksThenArms => {
                while self.channel.pop().is_some() {}
                self.drain();
                self.cq.arm(Arm::Next);
            }
        }
    }
}

impl Reader {
    fn new(way: Way) -> Arc<Self> {
        let later = Arc::new(DeferredWork::default());
        let signal = Arc::new(EventSignal { later: later.clone(), reader: OnceLock::new() });
        let channel = Channel::new(Box::new(Rings(signal.clone())));
        let events = AsyncEventQueue::new(Box::new(Unheard));
        let cq = Cq::new(4, Some(channel.clone()), events).unwrap();
        let results = Mutex::new(Rank::Operations, Results::default());
        let reader = Arc::new(Self { cq, channel, later, way, results });
        _ = signal.reader.set(Arc::downgrade(&reader));
        reader.ring_again();
        reader
    }

    /// No thread is told of what comes while none waits.
    fn ring_again(&self) {
        let mut results = self.results.lock();
        results.quiet = results.waker.is_none();
        self.cq.rearm(if results.quiet { Arm::Solicited } else { Arm::Next });
    }

    fn drain(&self) {
        let waker = {
            let mut results = self.results.lock();
            let mut count = 0;
            while self.cq.poll(2, |_| count += 1).is_ok_and(|n| n > 0) {}
            results.came += count;
            if count > 0 { results.waker.take() } else { None }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// What the adapter does: a completion, its event when nothing is locked, and what waits until
    /// then.
    fn bring(&self) {
        let mut notifications = Vec::new();
        let completion = Completion {
            wr_id: 1,
            status: Status::Success,
            opcode: Completed::Send,
            byte_len: 0,
            tail: SendTail::None,
            qpn: Qpn::new(17),
            source_qp: Qpn::new(0),
            solicited: false,
            header: Default::default(),
            tm: Default::default(),
        };
        self.cq.push(completion, &mut notifications);
        notifications.into_iter().for_each(Notification::send);
        self.later.run();
    }

    /// What a future does: it looks and leaves its waker under one lock, and then at what has told
    /// no thread.
    fn wait_for(&self, count: usize) {
        block_on(poll_fn(|cx| {
            let waker = cx.waker().clone();
            let was_quiet = {
                let mut results = self.results.lock();
                if results.came >= count {
                    return Poll::Ready(());
                }
                let _before = results.waker.replace(waker);
                let was_quiet = std::mem::replace(&mut results.quiet, false);
                if was_quiet && self.way != Way::NeverRingsForAll {
                    self.cq.rearm(Arm::Next);
                }
                was_quiet
            };
            if was_quiet && !self.cq.is_empty() {
                self.drain();
                self.later.run();
            }
            Poll::Pending
        }));
    }

    /// What a thread does that polls for a while: it takes what is there, and tells the threads
    /// that wait.
    fn look(&self) {
        if !self.cq.is_empty() {
            self.drain();
            self.later.run();
        }
    }
}

/// Every order of these threads, with so many switches that nothing forces.
fn explore(switches: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

fn two_bring(way: Way) {
    let reader = Reader::new(way);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let reader = reader.clone();
            thread::spawn(move || reader.bring())
        })
        .collect();
    reader.wait_for(2);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn one_who_waits_is_woken_by_another_thread() {
    explore(5, || {
        let reader = Reader::new(Way::AsItShips);
        let brings = reader.clone();
        let thread = thread::spawn(move || brings.bring());
        reader.wait_for(1);
        thread.join().unwrap();
    });
}

#[test]
fn two_that_bring_at_once_lose_no_wake_up() {
    explore(3, || two_bring(Way::AsItShips));
}

#[test]
fn one_that_drains_beside_the_one_that_brings_loses_no_wake_up() {
    explore(3, || {
        let reader = Reader::new(Way::AsItShips);
        let (brings, drains) = (reader.clone(), reader.clone());
        let threads = [
            thread::spawn(move || brings.bring()),
            // A connection that ends drains by itself; then it does what waits, as any call does.
            thread::spawn(move || {
                drains.drain();
                drains.later.run();
            }),
        ];
        reader.wait_for(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_that_polls_beside_one_who_waits_loses_no_wake_up() {
    explore(3, || {
        let reader = Reader::new(Way::AsItShips);
        let (brings, polls) = (reader.clone(), reader.clone());
        let threads = [thread::spawn(move || brings.bring()), thread::spawn(move || polls.look())];
        reader.wait_for(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_who_waits_again_and_again_is_woken_each_time() {
    explore(3, || {
        let reader = Reader::new(Way::AsItShips);
        let brings = reader.clone();
        let thread = thread::spawn(move || {
            brings.bring();
            brings.bring();
        });
        reader.wait_for(1);
        reader.wait_for(2);
        thread.join().unwrap();
    });
}

/// The models see what is wrong.
#[test]
#[should_panic(expected = "deadlock")]
fn one_who_waits_and_does_not_arm_sleeps_for_ever() {
    explore(3, || two_bring(Way::NeverRingsForAll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_reader_that_looks_and_then_arms_sleeps_for_ever() {
    explore(3, || two_bring(Way::LooksThenArms));
}
