use std::sync::atomic::AtomicU64;

use transport::op::Completed;
use wire::Qpn;
use wire::roce::SendTail;

use super::*;

struct Count(Arc<AtomicU64>);

impl Signal for Count {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn take_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts up with every look.
struct Ticks(Instant, AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Instant {
        self.0
    }
    fn stamp(&self) -> Stamp {
        let raw_ns = self.1.fetch_add(1, Ordering::Relaxed);
        Stamp { raw_ns, wall_ns: raw_ns + 100 }
    }
}

fn completion(wr_id: u64, status: Status) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: Completed::Send,
        byte_len: 0,
        tail: SendTail::None,
        qpn: Qpn::new(1),
        source_qp: Qpn::new(0),
        solicited: status != Status::Success,
        header: Default::default(),
        tm: Default::default(),
    }
}

/// A queue of four on a channel; the completion events there are, and the asynchronous ones.
fn queue(extras: CqExtras) -> (Arc<Cq>, Arc<AtomicU64>, Arc<AsyncEventQueue>) {
    let told = Arc::new(AtomicU64::new(0));
    let channel = Channel::new(Box::new(Count(told.clone())));
    let events = AsyncEventQueue::new(Box::new(Count(Arc::default())));
    (Cq::with(4, Some(channel), events.clone(), extras).unwrap(), told, events)
}

fn ticking() -> CqExtras {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start of the tests' clock")]
    let clock = Ticks(Instant::now(), AtomicU64::new(1));
    CqExtras { stamped: true, clock: Some(Arc::new(clock)), ..CqExtras::default() }
}

/// Adds completions and tells what there is to tell; the times at which events held back want to be
/// looked at.
fn add(cq: &Cq, ids: std::ops::Range<u64>, status: Status) -> usize {
    let mut notifications = Vec::new();
    ids.for_each(|id| cq.push(completion(id, status), &mut notifications));
    let later = notifications.iter().filter(|n| matches!(n, Notification::Moderated(..))).count();
    notifications.into_iter().for_each(Notification::send);
    later
}

#[test]
fn completions_bear_the_time_of_their_coming() {
    let (cq, ..) = queue(ticking());
    add(&cq, 0..2, Status::Success);
    let stamps: Vec<_> = (0..2).map(|_| cq.poll_one().unwrap().unwrap().1).collect();
    assert_eq!(stamps, [Stamp { raw_ns: 1, wall_ns: 101 }, Stamp { raw_ns: 2, wall_ns: 102 }]);
    assert_eq!(cq.poll_one(), Ok(None));
}

#[test]
fn a_queue_that_is_overrun_says_so_once_and_gives_nothing_more() {
    let (cq, _, events) = queue(CqExtras::default());
    add(&cq, 0..6, Status::Success);
    assert!(cq.is_overrun() && cq.poll_one().is_err() && cq.poll(9, |_| ()).is_err());
    assert_eq!(events.pop().map(|e| e.kind), Some(EventKind::CqError));
    assert!(events.pop().is_none());
}

#[test]
fn a_queue_that_ignores_overrun_loses_the_oldest() {
    let (cq, _, events) = queue(CqExtras { ignore_overrun: true, ..CqExtras::default() });
    add(&cq, 0..6, Status::Success);
    let mut ids = Vec::new();
    assert_eq!(cq.poll(9, |c| ids.push(c.wr_id)), Ok(4));
    assert_eq!((ids, events.pop().is_none()), (vec![2, 3, 4, 5], true));
}

#[test]
fn moderated_events_wait_for_so_many_completions_or_so_long() {
    let (cq, told, _) = queue(ticking());
    let told = || told.load(Ordering::Relaxed);
    cq.moderate(Moderation { count: 3, period_us: 50 });
    cq.arm(Arm::Next);
    assert_eq!((add(&cq, 0..2, Status::Success), told()), (1, 0), "held back, with one alarm");
    assert_eq!((add(&cq, 2..3, Status::Success), told()), (0, 1), "the third");
    cq.poll(9, |_| ()).unwrap();
    cq.arm(Arm::Next);
    assert_eq!((add(&cq, 0..1, Status::Success), told()), (1, 1));
    cq.period_over();
    assert_eq!(told(), 2, "the period");
    cq.period_over();
    assert_eq!(told(), 2, "an event is sent once");
    cq.arm(Arm::Next);
    add(&cq, 1..2, Status::WrFlush);
    assert_eq!(told(), 3, "errors do not wait");
    cq.arm(Arm::Next);
    add(&cq, 2..3, Status::Success);
    cq.moderate(Moderation::default());
    assert_eq!(told(), 4, "nothing is left behind");
    // Events that are not fetched keep the queue, which keeps the channel.
    cq.channel().unwrap().forget(&cq);
}

#[test]
fn a_queue_grows_and_shrinks_but_not_below_what_it_holds() {
    let (cq, ..) = queue(CqExtras::default());
    add(&cq, 0..3, Status::Success);
    assert!(cq.resize(2).is_err());
    cq.resize(8).unwrap();
    add(&cq, 3..8, Status::Success);
    assert!(!cq.is_overrun());
    assert_eq!(cq.poll(99, |_| ()), Ok(8));
    cq.resize(1).unwrap();
    assert_eq!(cq.capacity(), 1);
}
