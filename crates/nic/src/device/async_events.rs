//! Asynchronous events of an opened device (`ibv_get_async_event`).

use std::fmt::Debug;
use std::sync::Arc;

use crate::device::event_queue::EventQueue;
use crate::limits::MAX_EVENTS;
use crate::link::Signal;

/// `enum ibv_event_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the header's")]
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
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqLimit = 15,
    LastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
}

/// An object that events are about. A thread that fetches one knows the object by the mark that its
/// owner gave it.
pub trait Subject: Debug + Send + Sync {
    /// The owner's mark, such as the address of its C structure; 0 where there is none any more.
    fn cookie(&self) -> u64;
}

/// What an event is about. It keeps the object until the event is fetched or forgotten
/// ([`AsyncEventQueue::forget`]).
#[derive(Clone, Debug)]
pub enum Element {
    /// A queue pair.
    Qp(Arc<dyn Subject>),
    /// A completion queue.
    Cq(Arc<dyn Subject>),
    /// A shared receive queue.
    Srq(Arc<dyn Subject>),
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

/// The events of one opened device, bounded; the program that opened it is told by its signal.
/// Every object made for that opening keeps it.
pub struct AsyncEventQueue {
    queue: EventQueue<AsyncEvent>,
}

impl Debug for AsyncEventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AsyncEventQueue")
    }
}

impl AsyncEventQueue {
    /// An empty queue.
    pub fn new(signal: Box<dyn Signal>) -> Arc<Self> {
        Arc::new(Self { queue: EventQueue::new(signal) })
    }
    /// Adds an event and signals; dropped where the queue is full.
    pub fn push(&self, event: AsyncEvent) {
        self.queue.push_bounded(event, MAX_EVENTS);
    }
    /// Takes the oldest event.
    pub fn pop(&self) -> Option<AsyncEvent> {
        self.queue.pop()
    }
    /// Forgets the events about an object that is being destroyed.
    pub fn forget<T: Subject>(&self, subject: &Arc<T>) {
        let gone = Arc::as_ptr(subject).cast::<()>();
        let is_gone = |s: &Arc<dyn Subject>| Arc::as_ptr(s).cast::<()>() == gone;
        self.queue.take_back(|e| match &e.element {
            Element::Qp(s) | Element::Cq(s) | Element::Srq(s) => is_gone(s),
            Element::Port(_) | Element::Device => false,
        });
    }
}
