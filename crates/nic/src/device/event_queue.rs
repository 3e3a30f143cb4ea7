//! A queue of events with an owner to tell: what is in the queue and what was signalled never
//! differ.

use std::collections::VecDeque;

use locks::{Mutex, MutexGuard, Rank};

use crate::link::Signal;

/// A queue of events whose signals never differ from what is in it: see the module.
pub struct EventQueue<T> {
    inner: Mutex<Inner<T>>,
    signal: Box<dyn Signal>,
}

struct Inner<T> {
    queue: VecDeque<T>,
    /// So many at the end of the queue are not signalled yet, and not handed out.
    unsignalled: usize,
}

impl<T> std::fmt::Debug for EventQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventQueue")
    }
}

impl<T> EventQueue<T> {
    /// An empty queue whose owner is told by `signal`, once an event.
    pub fn new(signal: Box<dyn Signal>) -> Self {
        let inner = Inner { queue: VecDeque::new(), unsignalled: 0 };
        Self { inner: Mutex::new(Rank::EventQueue, inner), signal }
    }
    /// Adds an event and signals.
    pub fn push(&self, event: T) {
        self.enqueue(event);
        self.publish();
    }
    /// Adds an event that is handed out once it is published ([`EventQueue::publish`]): the thread
    /// that is woken for it shall not run into locks that the caller holds.
    pub fn enqueue(&self, event: T) {
        let mut inner = self.lock();
        inner.queue.push_back(event);
        inner.unsignalled += 1;
    }
    /// Signals all events that were enqueued, by whichever thread.
    pub fn publish(&self) {
        self.signal_all(&mut self.lock());
    }
    /// Like [`EventQueue::push`]; dropped where the queue holds `most` already.
    pub fn push_bounded(&self, event: T, most: usize) {
        let mut inner = self.lock();
        if inner.queue.len() < most {
            inner.queue.push_back(event);
            inner.unsignalled += 1;
            self.signal_all(&mut inner);
        }
    }
    /// Events that may be taken.
    pub fn waiting(&self) -> usize {
        let inner = self.lock();
        inner.queue.len() - inner.unsignalled
    }
    /// Takes the oldest event. The calling thread has consumed one signal.
    pub fn pop(&self) -> Option<T> {
        let mut inner = self.lock();
        if inner.queue.len() == inner.unsignalled {
            return None;
        }
        inner.queue.pop_front()
    }
    /// Takes the events that `which` names out again, in order, and their signals with them.
    pub fn take_back(&self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut inner = self.lock();
        let signalled = inner.queue.len() - inner.unsignalled;
        let (mut gone, mut kept) = (Vec::new(), VecDeque::new());
        for (n, event) in std::mem::take(&mut inner.queue).into_iter().enumerate() {
            if !which(&event) {
                kept.push_back(event);
                continue;
            }
            gone.push(event);
            if n < signalled {
                self.signal.take_back();
            } else {
                inner.unsignalled -= 1;
            }
        }
        inner.queue = kept;
        gone
    }
    fn signal_all(&self, inner: &mut Inner<T>) {
        (0..std::mem::take(&mut inner.unsignalled)).for_each(|_| self.signal.signal());
    }
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicIsize, Ordering};

    use super::*;

    #[derive(Clone, Default)]
    struct Signals(Arc<AtomicIsize>);

    impl Signal for Signals {
        fn signal(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn take_back(&self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn events_are_handed_out_in_order_once_they_are_published() {
        let signals = Signals::default();
        let queue = EventQueue::new(Box::new(signals.clone()));
        let signalled = || signals.0.load(Ordering::Relaxed);
        queue.push(1);
        queue.enqueue(2);
        queue.enqueue(3);
        assert_eq!(queue.waiting(), 1, "those that are published");
        assert_eq!((signalled(), queue.pop(), queue.pop()), (1, Some(1), None));
        queue.push(4);
        assert_eq!(signalled(), 4, "each event once");
        assert_eq!([queue.pop(), queue.pop(), queue.pop(), queue.pop()], [Some(2), Some(3), Some(4), None]);
    }

    #[test]
    fn an_event_that_is_taken_back_leaves_no_signal() {
        let signals = Signals::default();
        let queue = EventQueue::new(Box::new(signals.clone()));
        (1..=2).for_each(|event| queue.push(event));
        (3..=4).for_each(|event| queue.enqueue(event));
        assert_eq!(queue.take_back(|event| event % 2 == 0), [2, 4]);
        assert_eq!(signals.0.load(Ordering::Relaxed), 1);
        queue.publish();
        assert_eq!(signals.0.load(Ordering::Relaxed), 2);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(1), Some(3), None]);
    }
}
