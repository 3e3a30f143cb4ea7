//! Completion queues and the channels that tell of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use transport::op::{Completion, Status};

use crate::events::{AsyncEvent, Element, EventKind, EventQueue};
use crate::mailbox::Mailbox;
use crate::{Device, Error, Signal, limits};

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

/// When a completion was added, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// On the device's own clock, which never steps.
    pub raw_ns: u64,
    /// Since 1970.
    pub wall_ns: u64,
}

/// The time, for queues that stamp their completions or moderate their events: completions come about in threads that
/// have no time to hand over.
pub trait Clock: Send + Sync {
    /// For deadlines.
    fn now(&self) -> Instant;
    /// For completions.
    fn stamp(&self) -> Stamp;
}

/// What a completion queue does beside queueing.
#[derive(Clone, Default)]
pub struct CqExtras {
    /// Every completion bears the time of its coming.
    pub stamped: bool,
    /// A full queue loses its oldest completion and goes on (IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN).
    pub ignore_overrun: bool,
    /// Without it neither stamps nor moderation.
    pub clock: Option<Arc<dyn Clock>>,
    /// Whose timers end the waiting of moderated events.
    pub device: Weak<Device>,
}

impl std::fmt::Debug for CqExtras {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CqExtras")
    }
}

/// How events are held back (ibv_modify_cq(3)): until so many completions came, or so long after the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions; 0 and 1 hold nothing back.
    pub count: u16,
    /// Microseconds; 0 holds nothing back.
    pub period_us: u16,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Completion, Stamp)>,
    armed: Option<Arm>,
    capacity: usize,
    overrun: bool,
    moderation: Moderation,
    /// Completions that would have raised an event, had it not been held back.
    held_back: u16,
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
    extras: CqExtras,
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
    /// A completion event that is held back until then.
    Later(Instant, Arc<Cq>),
}

impl Note {
    /// Tells it.
    pub fn send(self) {
        match self {
            Note::Channel(channel, cq) => channel.push(cq),
            Note::Async(queue, event) => queue.push(event),
            Note::Later(at, cq) => {
                if let Some(device) = cq.extras.device.upgrade() {
                    device.look_after_cq(at, &cq);
                }
            }
        }
    }
}

impl Cq {
    /// A queue of at least `cqe` completions, 1 to [`limits::MAX_CQE`].
    pub fn new(cqe: u32, channel: Option<Arc<Channel>>, events: Arc<EventQueue>) -> Result<Arc<Cq>, Error> {
        Cq::with(cqe, channel, events, CqExtras::default())
    }
    /// The same with extras.
    pub fn with(
        cqe: u32,
        channel: Option<Arc<Channel>>,
        events: Arc<EventQueue>,
        extras: CqExtras,
    ) -> Result<Arc<Cq>, Error> {
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
            extras,
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
        state.queue.drain(..n).for_each(|(completion, _)| take(completion));
        self.len.store(state.queue.len(), Ordering::Release);
        Ok(n)
    }
    /// The oldest completion and when it came. An overrun queue gives the error.
    pub fn poll_one(&self) -> Result<Option<(Completion, Stamp)>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let mut state = self.lock();
        if state.overrun {
            return Err(Error::Invalid("completion queue was overrun"));
        }
        let oldest = state.queue.pop_front();
        self.len.store(state.queue.len(), Ordering::Release);
        Ok(oldest)
    }
    /// Changes how events are held back; one that is held back now is no longer.
    pub fn moderate(&self, moderation: Moderation) {
        let mut state = self.lock();
        state.moderation = moderation;
        self.release(state);
    }
    /// The time of an event held back is over.
    pub(crate) fn period_over(&self) {
        self.release(self.lock());
    }
    /// Sends the event that is held back, if there is one.
    fn release(&self, mut state: std::sync::MutexGuard<'_, State>) {
        if std::mem::take(&mut state.held_back) == 0 {
            return;
        }
        state.armed = None;
        drop(state);
        if let (Some(channel), Some(me)) = (&self.channel, self.me.upgrade()) {
            channel.push(me);
        }
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
        state.queue.retain(|(c, _)| c.qpn != qpn);
        self.len.store(state.queue.len(), Ordering::Release);
    }
    /// Adds a completion; what must be told afterwards is added to `notes`.
    pub(crate) fn push(&self, completion: Completion, notes: &mut Vec<Note>) {
        let stamp = match &self.extras.clock {
            Some(clock) if self.extras.stamped => clock.stamp(),
            _ => Stamp::default(),
        };
        let mut state = self.lock();
        if state.overrun {
            return;
        }
        if state.queue.len() >= state.capacity {
            if !self.extras.ignore_overrun {
                state.overrun = true;
                if let Some(me) = self.me.upgrade() {
                    let event = AsyncEvent { kind: EventKind::CqError, element: Element::Cq(me) };
                    notes.push(Note::Async(self.events.clone(), event));
                }
                return;
            }
            state.queue.pop_front();
        }
        state.queue.push_back((completion, stamp));
        self.len.store(state.queue.len(), Ordering::Release);
        let fires = match state.armed {
            None => false,
            Some(Arm::Next) => true,
            Some(Arm::Solicited) => completion.solicited,
        };
        if fires {
            self.fire(&mut state, completion.status, notes);
        }
    }
    /// A completion that raises an event: now, or as the moderation says. Errors are not held back.
    fn fire(&self, state: &mut State, status: Status, notes: &mut Vec<Note>) {
        let (Some(channel), Some(me)) = (&self.channel, self.me.upgrade()) else {
            state.armed = None;
            return;
        };
        let Moderation { count, period_us } = state.moderation;
        let wait = count > 1 && period_us > 0 && status == Status::Success;
        if wait && let Some(clock) = &self.extras.clock {
            state.held_back += 1;
            if state.held_back == 1 {
                let at = clock.now() + Duration::from_micros(period_us.into());
                notes.push(Note::Later(at, me.clone()));
            }
            if state.held_back < count {
                return;
            }
        }
        state.held_back = 0;
        state.armed = None;
        notes.push(Note::Channel(channel.clone(), me));
    }
    /// Whether completions were lost because the queue was full.
    pub fn is_overrun(&self) -> bool {
        self.lock().overrun
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
