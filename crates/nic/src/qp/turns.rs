//! Queue pairs whose peer asked for more than one turn may take: a READ of a GiB is answered turn by turn, the locks
//! free between two of them, and everybody else served.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::Qp;
use crate::device::timers::MOMENT;
use crate::qp::Inner;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Readable without the lock: whoever polls asks each time.
    any: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Those that waited longest first; each is in it once at most.
    waiting: VecDeque<Weak<Qp>>,
    /// When the first is due.
    at: Option<Instant>,
}

impl Turns {
    /// Adds one that has had its turn `now`, behind all others; when it wants to be served.
    pub fn add(&self, now: Instant, qp: Weak<Qp>) -> Instant {
        let mut queue = self.lock();
        queue.waiting.push_back(qp);
        self.any.store(true, Ordering::Release);
        *queue.at.get_or_insert(now + MOMENT)
    }
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
    /// When the next wants to be served.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.lock().at }
    }
    /// Lets at most `most` of those that wait take their turns: each once, even if it is at the end of the queue again after
    /// it. No lock is held meanwhile.
    pub fn take(&self, now: Instant, most: usize, mut each: impl FnMut(Arc<Qp>)) {
        if self.is_empty() {
            return;
        }
        let taken: Vec<Weak<Qp>> = {
            let mut queue = self.lock();
            let count = most.min(queue.waiting.len());
            let taken = queue.waiting.drain(..count).collect();
            let left = !queue.waiting.is_empty();
            self.any.store(left, Ordering::Release);
            queue.at = left.then_some(now + MOMENT);
            taken
        };
        taken.iter().filter_map(Weak::upgrade).for_each(&mut each);
    }
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Qp {
    /// The peer's next share of this queue pair's time.
    pub(crate) fn take_turn(&self, now: Instant) {
        let mut inner = self.lock();
        inner.waits_for_turn = false;
        inner.engine.begin_turn();
        self.settle(inner, now);
    }
}

impl Inner {
    /// Queues it up where the engine has more to answer than one turn allows; when it wants to be served.
    pub(crate) fn queue_up(&mut self, qp: &Qp, now: Instant) -> Option<Instant> {
        if self.waits_for_turn || !self.engine.wants_turn() {
            return None;
        }
        self.waits_for_turn = true;
        Some(qp.pd().device.turns.add(now, qp.me.clone()))
    }
}
