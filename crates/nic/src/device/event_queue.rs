//! A queue of events with an owner to tell: what is in the queue and what was signalled never
//! differ.

use std::collections::VecDeque;

use locks::{Mutex, MutexGuard, Rank};

use crate::link::Signal;

/// A queue of events whose signals never differ from what is in it: see the module.
pub struct EventQueue<T> {
    queue: Mutex<VecDeque<T>>,
    signal: Box<dyn Signal>,
}

impl<T> std::fmt::Debug for EventQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventQueue")
    }
}

impl<T> EventQueue<T> {
    /// An empty queue whose owner is told by `signal`, once an event.
    pub fn new(signal: Box<dyn Signal>) -> Self {
        Self { queue: Mutex::new(Rank::EventQueue, VecDeque::new()), signal }
    }
    /// Adds an event and signals.
    pub fn push(&self, event: T) {
        let mut queue = self.lock();
        queue.push_back(event);
        self.signal.signal();
    }
    /// Like [`EventQueue::push`]; dropped where the queue holds `most` already.
    pub fn push_bounded(&self, event: T, most: usize) {
        let mut queue = self.lock();
        if queue.len() < most {
            queue.push_back(event);
            self.signal.signal();
        }
    }
    /// Takes the oldest event. The calling thread has consumed one signal.
    pub fn pop(&self) -> Option<T> {
        self.lock().pop_front()
    }
    /// Takes the events that `which` names out again, in order, and their signals with them.
    pub fn take_back(&self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = self.lock();
        let (gone, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(|e| which(e));
        queue.extend(kept);
        gone.iter().for_each(|_| self.signal.take_back());
        gone
    }
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock()
    }
}
