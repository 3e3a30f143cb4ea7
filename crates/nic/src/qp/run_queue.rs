//! Queue pairs whose peer asked for more than one turn may take, or that have more to copy. A READ
//! of a GiB is answered turn by turn, the locks free between two of them, and all others served.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use locks::{Mutex, MutexGuard, Rank};

use crate::device::timers::MOMENT;

/// A queue of whatever takes turns: queue pairs, which it does not keep.
#[derive(Debug)]
pub(crate) struct RunQueue<T> {
    /// Readable without the lock: a polling thread asks each time.
    any: AtomicBool,
    queue: Mutex<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T> {
    /// Queue pairs that wait for their turn, the longest first; each is in it once at most.
    waiting: VecDeque<Weak<T>>,
    /// When the first is due.
    at: Option<Instant>,
}

impl<T> Default for RunQueue<T> {
    fn default() -> Self {
        let queue = Queue { waiting: VecDeque::new(), at: None };
        Self { any: AtomicBool::new(false), queue: Mutex::new(Rank::RunQueue, queue) }
    }
}

impl<T> RunQueue<T> {
    /// Adds one that has had its turn `now`, after all others; when it wants to be served.
    pub(crate) fn add(&self, now: Instant, one: Weak<T>) -> Instant {
        let mut queue = self.lock();
        queue.waiting.push_back(one);
        self.any.store(true, Ordering::Release);
        *queue.at.get_or_insert(now + MOMENT)
    }
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
    /// When the next wants to be served.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.lock().at }
    }
    /// Lets at most `most` of those that wait take their turns: each once, even if it is at the end
    /// of the queue again after it. No lock is held meanwhile.
    pub(crate) fn take(&self, now: Instant, most: usize, mut each: impl FnMut(Arc<T>)) {
        if self.is_empty() {
            return;
        }
        let taken: Vec<Weak<T>> = {
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
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock()
    }
}
