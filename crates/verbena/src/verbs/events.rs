//! What happens to a device and its port (ibv_get_async_event(3)), and where such events come in.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use locks::{Mutex, Rank};
use nic::device::async_events::{self, AsyncEventQueue, EventKind};
use nic::program::wake_all;
use nic::{DeferredWork, Signal, Work};

use crate::cm::wait;
use crate::cm::waiters::{Awaited, Owner, Standing, Waiters, until};
use crate::error::Result;
use crate::provider::{Device, Provider, Stack};
use crate::thread_safe::ThreadSafe;

/// What happens to a device or its port. What happens to queue pairs ends their operations, and is
/// not told of here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The port passes packets again.
    PortActive,
    /// The interface is down.
    PortError,
    /// The addresses have changed: [`Device::addresses`].
    GidChange,
    /// Nothing works any more: an error inside of the stack.
    DeviceFatal,
}

/// The events of a device from the moment on at which this was made; see [`Device::events`]. Events
/// that no task takes wait, up to 1024 or so; each of several gets all. For a stream of any kind
/// there is [`DeviceEvents::poll_next`].
pub struct DeviceEvents {
    provider: Provider,
    place: Standing<AsyncEvents, State>,
}

impl Device {
    /// The device's events from now on.
    ///
    /// # Errors
    ///
    /// `Forked`; `Unsupported` over the machine's rdma-core.
    pub fn events(&self) -> Result<DeviceEvents> {
        self.stack().check(CALL)?;
        let nic = self.nic()?;
        let events = AsyncEvents::new(self.stack());
        nic.tell(&events.queue);
        Ok(DeviceEvents { provider: self.provider().clone(), place: Standing::new(&events) })
    }
}

/// The C function that this file is about, as errors name it.
const CALL: &str = "ibv_get_async_event";

impl DeviceEvents {
    /// The next one. Cancelling loses none.
    ///
    /// # Errors
    ///
    /// `Forked`.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn next(&self) -> impl Future<Output = Result<AsyncEvent>> + Send + '_ {
        async {
            self.provider.stack().check(CALL)?;
            Ok(until(self.place.owner(), State::next).await)
        }
    }

    /// Like [`DeviceEvents::next`], blocking.
    ///
    /// # Errors
    ///
    /// `Forked`; `BlockingInSimulation` in a task of a simulated host.
    pub fn blocking_next(&self) -> Result<AsyncEvent> {
        wait(&self.provider, CALL, self.next())
    }

    /// The next one, where there is one; else the task is woken when there is: the one that polled
    /// last.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<AsyncEvent>> {
        if let Err(error) = self.provider.stack().check(CALL) {
            return Poll::Ready(Err(error));
        }
        self.place.poll(cx, State::next).map(Ok)
    }

    /// An event that has come already.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn try_next(&self) -> Result<Option<AsyncEvent>> {
        self.provider.stack().check(CALL)?;
        Ok(self.place.owner().state.lock().next())
    }
}

impl std::fmt::Debug for DeviceEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceEvents({:?})", self.provider)
    }
}

/// Asynchronous events of whatever is made with its queue, and the tasks that wait for them.
pub(crate) struct AsyncEvents {
    stack: Stack,
    queue: ThreadSafe<Arc<AsyncEventQueue>>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Events of a device, until a task takes them.
    ready: VecDeque<AsyncEvent>,
    /// Events of a shared receive queue's limit so far.
    limits: u64,
    waiters: Waiters,
}

impl State {
    fn next(&mut self) -> Option<AsyncEvent> {
        self.ready.pop_front()
    }

    fn take_in(&mut self, event: &async_events::AsyncEvent) {
        let event = match event.kind {
            EventKind::PortActive => AsyncEvent::PortActive,
            EventKind::PortError => AsyncEvent::PortError,
            EventKind::GidChange => AsyncEvent::GidChange,
            EventKind::DeviceFatal => AsyncEvent::DeviceFatal,
            EventKind::SrqLimit => return self.limits += 1,
            _ => return,
        };
        if self.ready.len() < nic::limits::MAX_EVENTS {
            self.ready.push_back(event);
        }
    }
}

impl Awaited for State {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Owner<State> for AsyncEvents {
    fn is_ours(&self) -> bool {
        self.stack.is_ours()
    }
}

impl AsRef<Mutex<State>> for AsyncEvents {
    fn as_ref(&self) -> &Mutex<State> {
        &self.state
    }
}

/// Has the events taken in when no lock is held.
struct EventSignal {
    later: Arc<DeferredWork>,
    events: Weak<AsyncEvents>,
}

impl Signal for EventSignal {
    fn signal(&self) {
        if let Some(events) = self.events.upgrade() {
            self.later.add(events);
        }
    }
    fn take_back(&self) {}
}

impl Work for AsyncEvents {
    fn run(self: Arc<Self>) {
        // What an event is about may go with it, so it is dropped when nothing is locked.
        let mut taken = Vec::new();
        let wakers = {
            let mut state = self.state.lock();
            while let Some(event) = self.queue.pop() {
                state.take_in(&event);
                taken.push(event);
            }
            state.waiters.take()
        };
        drop(taken);
        wake_all(wakers);
    }
}

impl AsyncEvents {
    /// Nothing has come yet.
    pub(crate) fn new(stack: &Stack) -> Arc<Self> {
        Arc::new_cyclic(|events| {
            let signal = EventSignal { later: stack.later().clone(), events: events.clone() };
            Self {
                stack: stack.clone(),
                queue: ThreadSafe::new(AsyncEventQueue::new(Box::new(signal))),
                state: Mutex::new(Rank::Awaited, State::default()),
            }
        })
    }
    /// Where they come in.
    pub(crate) fn queue(&self) -> &Arc<AsyncEventQueue> {
        &self.queue
    }
    /// Times that the limit was reached so far, as of all events that are there by now.
    pub(crate) fn count(self: &Arc<Self>) -> u64 {
        self.clone().run();
        self.state.lock().limits
    }
    /// Waits until it was reached more often.
    pub(crate) async fn more_than(self: &Arc<Self>, before: u64) {
        until(self, move |state: &mut State| (state.limits > before).then_some(())).await;
    }
}
