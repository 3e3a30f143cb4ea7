//! Completion queues and the channels that tell of them.

mod attend;
pub mod counter;
pub mod moderation;
mod of_qp;
#[cfg(test)]
mod tests;
#[cfg(all(test, loom))]
mod wake_up;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use locks::{Mutex, MutexGuard, Rank};
use transport::likely::unlikely;
use transport::op::{Completion, Status};

use crate::cq::moderation::{Moderated, Moderation};
use crate::device::async_events::{AsyncEvent, AsyncEventQueue, Element, EventKind, Subject};
use crate::device::event_queue::EventQueue;
use crate::error::{Error, in_range};
use crate::limits;
use crate::link::{Persist, Platform, Signal};
use crate::sync::{AtomicUsize, Ordering};

/// Which completion the next event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Any.
    Next,
    /// A completion whose sender asked for an event, or an error.
    Solicited,
}

/// A completion channel: tells which of its queues have something. Queues keep it, and each event
/// keeps its queue until it is fetched or forgotten ([`Channel::forget`]).
pub struct Channel {
    ready: EventQueue<Arc<Cq>>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channel")
    }
}

impl Channel {
    /// A channel whose owner is told by `signal`, once an event.
    pub fn new(signal: Box<dyn Signal>) -> Arc<Self> {
        Arc::new(Self { ready: EventQueue::new(signal) })
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

thread_local! {
    static ADDED: Cell<u32> = const { Cell::new(0) };
}

/// How many completions this thread has added, to whatever queues; runs over.
#[inline]
pub fn added() -> u32 {
    ADDED.get()
}

/// When a completion was added, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// On the device's own clock, which never steps.
    pub raw_ns: u64,
    /// Since 1970.
    pub wall_ns: u64,
}

/// The time, for queues that stamp their completions or moderate their events: completions come
/// about in threads that have no time to hand over.
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
    /// Where it is listed while it holds an event back; without it no moderation.
    pub moderated: Weak<Moderated>,
}

impl std::fmt::Debug for CqExtras {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CqExtras")
    }
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

/// A completion queue. It keeps its channel and its queue of asynchronous events; events about it
/// keep it until they are fetched or forgotten ([`Channel::forget`], [`AsyncEventQueue::forget`]),
/// and queue pairs keep it for as long as they live.
#[derive(Debug)]
pub struct Cq {
    me: Weak<Self>,
    state: Mutex<State>,
    /// Completions in the queue, readable without the lock: an empty poll costs no more.
    len: AtomicUsize,
    /// Completions that were ever added.
    added: AtomicU64,
    channel: Option<Arc<Channel>>,
    events: Arc<AsyncEventQueue>,
    extras: CqExtras,
    /// The owner's mark, such as the address of its C structure.
    pub cookie: AtomicU64,
}

/// Something to tell once all locks are released.
pub enum Notification {
    /// A completion event.
    Channel(Arc<Channel>, Arc<Cq>),
    /// An asynchronous event.
    Async(Arc<AsyncEventQueue>, AsyncEvent),
    /// A completion event that is held back until then.
    Moderated(Instant, Arc<Cq>),
    /// A peer's FLUSH is to be done, or a peer to be waited for.
    Persist(Arc<dyn Platform>, Persist),
}

impl std::fmt::Debug for Notification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Note")
    }
}

impl Notification {
    /// Tells it.
    pub fn send(self) {
        match self {
            Self::Channel(channel, cq) => channel.push(cq),
            Self::Async(queue, event) => queue.push(event),
            Self::Moderated(at, cq) => {
                if let Some(moderated) = cq.extras.moderated.upgrade() {
                    moderated.add(at, &cq);
                }
            }
            Self::Persist(platform, work) => platform.persist(work),
        }
    }
}

impl Subject for Cq {
    fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }
}

impl Cq {
    /// A queue of at least `cqe` completions, 1 to [`limits::MAX_CQE`].
    pub fn new(
        cqe: u32,
        channel: Option<Arc<Channel>>,
        events: Arc<AsyncEventQueue>,
    ) -> Result<Arc<Self>, Error> {
        Self::with(cqe, channel, events, CqExtras::default())
    }
    /// Like [`Cq::new`], with extras.
    pub fn with(
        cqe: u32,
        channel: Option<Arc<Channel>>,
        events: Arc<AsyncEventQueue>,
        extras: CqExtras,
    ) -> Result<Arc<Self>, Error> {
        in_range("cqe", cqe, 1_u32, limits::MAX_CQE)?;
        let state = State { capacity: cqe as usize, ..State::default() };
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            state: Mutex::new(Rank::Cq, state),
            len: AtomicUsize::new(0),
            added: AtomicU64::new(0),
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
        in_range("cqe", cqe, state.queue.len().max(1) as u64, limits::MAX_CQE)?;
        state.capacity = cqe as usize;
        Ok(())
    }
    /// The channel it reports to.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }
    /// Whether there is nothing to poll.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }
    /// Completions that were ever added, and those of them that were taken out again.
    #[inline]
    pub(crate) fn passed(&self) -> (u64, u64) {
        // In this order: a completion that is added meanwhile is not taken for one that was taken
        // out.
        let added = self.added.load(Ordering::Acquire);
        (added, added.saturating_sub(self.len.load(Ordering::Acquire) as u64))
    }
    /// Hands the oldest completions, at most `max`, to `take`; returns how many. An overrun queue
    /// gives the error.
    #[inline]
    pub fn poll(&self, max: usize, mut take: impl FnMut(Completion)) -> Result<usize, Error> {
        if self.is_empty() {
            return Ok(0);
        }
        let mut state = self.lock();
        if state.overrun {
            return Err(Error::Invalid("the completion queue was overrun"));
        }
        let n = max.min(state.queue.len());
        for _ in 0..n {
            let Some((completion, _)) = state.queue.pop_front() else { break };
            take(completion);
        }
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
            return Err(Error::Invalid("the completion queue was overrun"));
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
    fn release(&self, mut state: MutexGuard<'_, State>) {
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
    /// Adds a completion; what must be told afterwards is added to `notifications`.
    #[inline(always)]
    pub(crate) fn push(&self, completion: Completion, notifications: &mut Vec<Notification>) {
        let stamp = if self.extras.stamped { self.stamp() } else { Stamp::default() };
        let mut state = self.lock();
        if unlikely(state.overrun) {
            return;
        }
        let queue = &state.queue;
        let fits = queue.len() < queue.capacity().min(state.capacity);
        if unlikely(!fits) && !self.make_room(&mut state, notifications) {
            return;
        }
        state.queue.push_back((completion, stamp));
        ADDED.set(ADDED.get().wrapping_add(1));
        self.len.store(state.queue.len(), Ordering::Release);
        // Written with the lock held only.
        self.added.store(self.added.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        if let Some(armed) = state.armed
            && (armed == Arm::Next || completion.solicited)
        {
            self.fire(&mut state, completion.status, notifications);
        }
    }
    #[cold]
    fn stamp(&self) -> Stamp {
        self.extras.clock.as_ref().map_or_else(Stamp::default, |clock| clock.stamp())
    }
    /// Room for one more completion, where there is none ready; false where it is lost.
    #[cold]
    fn make_room(&self, state: &mut State, notifications: &mut Vec<Notification>) -> bool {
        // A queue that can not grow, for want of memory, is full.
        if state.queue.len() < state.capacity && state.queue.try_reserve(1).is_ok() {
            return true;
        }
        if !self.extras.ignore_overrun {
            state.overrun = true;
            if let Some(me) = self.me.upgrade() {
                let event = AsyncEvent { kind: EventKind::CqError, element: Element::Cq(me) };
                notifications.push(Notification::Async(self.events.clone(), event));
            }
            return false;
        }
        // None: not even room for one.
        state.queue.pop_front().is_some()
    }
    /// A completion that raises an event: now, or as the moderation says. Errors are not held back.
    fn fire(&self, state: &mut State, status: Status, notifications: &mut Vec<Notification>) {
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
                notifications.push(Notification::Moderated(at, me.clone()));
            }
            if state.held_back < count {
                return;
            }
        }
        state.held_back = 0;
        state.armed = None;
        notifications.push(Notification::Channel(channel.clone(), me));
    }
    /// Completions in the queue, and those that were ever added. It takes no lock.
    pub fn fill(&self) -> (u32, u64) {
        let (added, taken) = self.passed();
        ((added - taken) as u32, added)
    }
    /// Completions in the queue that raise no event, as it was armed behind them; 0 where it is not
    /// armed for each.
    pub fn unannounced(&self) -> u32 {
        let state = self.lock();
        let is_armed = state.armed == Some(Arm::Next) && state.held_back == 0;
        if is_armed { state.queue.len() as u32 } else { 0 }
    }
    /// Whether completions were lost because the queue was full.
    pub fn is_overrun(&self) -> bool {
        self.lock().overrun
    }
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
