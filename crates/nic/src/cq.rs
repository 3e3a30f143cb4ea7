//! Completion queues and the channels that tell of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use transport::op::Completion;

use crate::events::{AsyncEvent, Element, EventKind, EventQueue};
use crate::mailbox::Mailbox;
use crate::{Error, Signal, limits};

/// Which completion the next event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Any.
    Next,
    /// One whose sender asked for it, or an error.
    Solicited,
}

/// A completion channel: tells which of its queues have something.
pub struct Channel {
    ready: Mailbox<Arc<Cq>>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channel")
    }
}

impl Channel {
    /// A channel whose owner is told by `signal`, once an event.
    pub fn new(signal: Box<dyn Signal>) -> Arc<Channel> {
        Arc::new(Channel { ready: Mailbox::new(signal) })
    }
    /// Takes the oldest event.
    pub fn pop(&self) -> Option<Arc<Cq>> {
        self.ready.pop()
    }
    /// Forgets the events of a queue that is being destroyed.
    pub fn forget(&self, cq: &Arc<Cq>) {
        self.ready.take_back(|c| Arc::ptr_eq(c, cq));
    }
    fn push(&self, cq: Arc<Cq>) {
        self.ready.push(cq);
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Completion>,
    armed: Option<Arm>,
    capacity: usize,
    overrun: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    me: Weak<Cq>,
    state: Mutex<State>,
    /// Completions in the queue, readable without the lock: an empty poll costs no more.
    len: AtomicUsize,
    channel: Option<Arc<Channel>>,
    events: Arc<EventQueue>,
    /// The owner's mark, such as the address of its C structure.
    pub cookie: AtomicU64,
}

/// Something to tell once all locks are released.
#[derive(Debug)]
pub enum Note {
    /// A completion event.
    Channel(Arc<Channel>, Arc<Cq>),
    /// An asynchronous event.
    Async(Arc<EventQueue>, AsyncEvent),
}

impl Note {
    /// Tells it.
    pub fn send(self) {
        match self {
            Note::Channel(channel, cq) => channel.push(cq),
            Note::Async(queue, event) => queue.push(event),
        }
    }
}

impl Cq {
    /// A queue of at least `cqe` completions, 1 to [`limits::MAX_CQE`].
    pub fn new(cqe: u32, channel: Option<Arc<Channel>>, events: Arc<EventQueue>) -> Result<Arc<Cq>, Error> {
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(Error::Invalid("cqe is 0 or above max_cqe"));
        }
        let state = State { capacity: cqe as usize, ..State::default() };
        Ok(Arc::new_cyclic(|me| Cq {
            me: me.clone(),
            state: Mutex::new(state),
            len: AtomicUsize::new(0),
            channel,
            events,
            cookie: AtomicU64::new(0),
        }))
    }
    /// Completions it holds at most.
    pub fn capacity(&self) -> u32 {
        self.lock().capacity as u32
    }
    /// Changes the size; not below what it holds now.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        let mut state = self.lock();
        if cqe == 0 || cqe > limits::MAX_CQE || (cqe as usize) < state.queue.len() {
            return Err(Error::Invalid("cqe is out of range"));
        }
        state.capacity = cqe as usize;
        Ok(())
    }
    /// The channel it reports to.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }
    /// Whether there is nothing to poll.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }
    /// Hands the oldest completions, at most `max`, to `take`; returns how many. An overrun queue gives the error.
    pub fn poll(&self, max: usize, mut take: impl FnMut(Completion)) -> Result<usize, Error> {
        if self.is_empty() {
            return Ok(0);
        }
        let mut state = self.lock();
        if state.overrun {
            return Err(Error::Invalid("completion queue was overrun"));
        }
        let n = max.min(state.queue.len());
        state.queue.drain(..n).for_each(&mut take);
        self.len.store(state.queue.len(), Ordering::Release);
        Ok(n)
    }
    /// Asks for one event at the next completion added from now on.
    pub fn arm(&self, arm: Arm) {
        let mut state = self.lock();
        // A request for any completion is not narrowed by a later one for solicited ones only.
        if state.armed != Some(Arm::Next) {
            state.armed = Some(arm);
        }
    }
    /// Removes the completions of a queue pair that is being destroyed or reset.
    pub fn forget_qp(&self, qpn: wire::Qpn) {
        let mut state = self.lock();
        state.queue.retain(|c| c.qpn != qpn);
        self.len.store(state.queue.len(), Ordering::Release);
    }
    /// Adds a completion; what must be told afterwards is added to `notes`.
    pub(crate) fn push(&self, completion: Completion, notes: &mut Vec<Note>) {
        let mut state = self.lock();
        if state.overrun {
            return;
        }
        let me = self.me.upgrade();
        if state.queue.len() >= state.capacity {
            state.overrun = true;
            if let Some(me) = me {
                let event = AsyncEvent { kind: EventKind::CqError, element: Element::Cq(me) };
                notes.push(Note::Async(self.events.clone(), event));
            }
            return;
        }
        let solicited = completion.solicited;
        state.queue.push_back(completion);
        self.len.store(state.queue.len(), Ordering::Release);
        let fires = match state.armed {
            None => false,
            Some(Arm::Next) => true,
            Some(Arm::Solicited) => solicited,
        };
        if fires {
            state.armed = None;
            if let (Some(channel), Some(me)) = (&self.channel, me) {
                notes.push(Note::Channel(channel.clone(), me));
            }
        }
    }
    /// Whether completions were lost because the queue was full.
    pub fn is_overrun(&self) -> bool {
        self.lock().overrun
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
