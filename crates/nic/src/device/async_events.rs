//! Asynchronous events of an opened device (`ibv_get_async_event`).

use std::sync::Arc;

use crate::device::event_queue::EventQueue;
use crate::limits::MAX_EVENTS;
use crate::{Cq, Qp, Signal, Srq};

/// `enum ibv_event_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum EventKind {
    CqError = 0,
    QpFatal = 1,
    QpRequestError = 2,
    QpAccessError = 3,
    CommunicationEstablished = 4,
    SqDrained = 5,
    DeviceFatal = 8,
    PortActive = 9,
    PortError = 10,
    SrqLimit = 15,
    LastWqeReached = 16,
    GidChange = 18,
}

/// What an event is about.
#[derive(Clone, Debug)]
pub enum Element {
    /// A queue pair.
    Qp(Arc<Qp>),
    /// A completion queue.
    Cq(Arc<Cq>),
    /// A shared receive queue.
    Srq(Arc<Srq>),
    /// A port, counted from 1.
    Port(u8),
    /// The device.
    Device,
}

/// An asynchronous event.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// To what.
    pub element: Element,
}

/// The events of one opened device, bounded; whoever opened it is told by its signal.
pub struct AsyncEventQueue {
    queue: EventQueue<AsyncEvent>,
}

impl std::fmt::Debug for AsyncEventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AsyncEventQueue")
    }
}

impl AsyncEventQueue {
    /// An empty queue.
    pub fn new(signal: Box<dyn Signal>) -> Arc<Self> {
        Arc::new(AsyncEventQueue { queue: EventQueue::new(signal) })
    }
    /// Adds an event and signals; dropped where the queue is full.
    pub fn push(&self, event: AsyncEvent) {
        self.queue.push_bounded(event, MAX_EVENTS);
    }
    /// Takes the oldest event.
    pub fn pop(&self) -> Option<AsyncEvent> {
        self.queue.pop()
    }
    /// Forgets the events about a queue pair that is being destroyed.
    pub fn forget_qp(&self, qp: &Arc<Qp>) {
        self.queue.take_back(|e| matches!(&e.element, Element::Qp(q) if Arc::ptr_eq(q, qp)));
    }
    /// Forgets the events about a shared receive queue that is being destroyed.
    pub fn forget_srq(&self, srq: &Arc<Srq>) {
        self.queue.take_back(|e| matches!(&e.element, Element::Srq(s) if Arc::ptr_eq(s, srq)));
    }
    /// Forgets the events about a completion queue that is being destroyed.
    pub fn forget_cq(&self, cq: &Arc<Cq>) {
        self.queue.take_back(|e| matches!(&e.element, Element::Cq(c) if Arc::ptr_eq(c, cq)));
    }
}
