//! A completion queue of the stack below, and the signal that it fires: for one queue pair, or for
//! many.

use std::sync::{Arc, OnceLock, Weak};

use nic::device::CqSlot;
use nic::device::async_events::AsyncEventQueue;
use nic::{Arm, Channel, Cq, DeferredWork, Signal, Work};
use transport::op::Completion;

use crate::provider::{Adapter, Device, Stack};
use crate::thread_safe::ThreadSafe;

/// A completion queue, which fires a signal.
pub(super) enum Completions {
    Ours(ThreadSafe<Queue>),
    #[cfg(feature = "system")]
    System(Arc<rdma_core::Cq>),
}

/// Verbena's own.
pub(super) struct Queue {
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    _slot: CqSlot,
}

impl Completions {
    /// A queue with so many entries; it rings from the first [`Completions::attend`] on.
    pub(super) fn new(device: &Device, cqe: u32, signal: &Arc<EventSignal>) -> Result<Self, nic::Error> {
        match device.adapter() {
            Adapter::Ours(device) => {
                let slot = device.take_cq()?;
                let channel = Channel::new(Box::new(Rings(signal.clone())));
                let cq = Cq::new(cqe, Some(channel.clone()), AsyncEventQueue::new(Box::new(Unheard)))?;
                Ok(Self::Ours(ThreadSafe::new(Queue { cq, channel, _slot: slot })))
            }
            #[cfg(feature = "system")]
            Adapter::System(device) => {
                rdma_core::Cq::new(device, cqe, signal.clone()).map(Completions::System)
            }
        }
    }
    /// At least so many entries from now on.
    pub(super) fn grow(&self, cqe: u32) -> Result<(), nic::Error> {
        match self {
            Self::Ours(own) if cqe > own.cq.capacity() => own.cq.resize(cqe),
            Self::Ours(_) => Ok(()),
            #[cfg(feature = "system")]
            Self::System(cq) => cq.grow(cqe),
        }
    }
    /// Takes up to `most` completions; how many there were. It can not be overrun: it has room for
    /// all that may be under way.
    pub(super) fn poll(&self, most: usize, take: impl FnMut(Completion)) -> usize {
        match self {
            Self::Ours(own) => own.cq.poll(most, take).unwrap_or(0),
            #[cfg(feature = "system")]
            Self::System(cq) => cq.poll(most, take),
        }
    }
    /// Takes what has arrived, in this thread, where there are no completions; whether there may be
    /// some.
    #[inline]
    pub(super) fn look(&self, stack: &Stack) -> bool {
        match self {
            Self::Ours(own) => {
                if own.cq.is_empty() {
                    stack.poll_for(&own.cq);
                }
                !own.cq.is_empty()
            }
            #[cfg(feature = "system")]
            Self::System(_) => true,
        }
    }
    /// The next completion fires the signal, or the next that is an error or that the peer asks
    /// for; what was asked for before is void. Another stack's rings for each.
    pub(super) fn ring_for(&self, arm: Arm) {
        match self {
            Self::Ours(own) => own.cq.rearm(arm),
            #[cfg(feature = "system")]
            Self::System(_) => {}
        }
    }
    /// Whether there are none that may have fired no signal.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Ours(own) => own.cq.is_empty(),
            // Each rings it.
            #[cfg(feature = "system")]
            Self::System(_) => true,
        }
    }
    /// The signal has fired: drains, and has it ring for the next completion, until nothing came
    /// meanwhile.
    pub(super) fn attend(&self, drain: impl FnMut()) {
        self.attend_as(drain, || self.ring_for(Arm::Next));
    }
    /// The signal has fired: drains, and has it ring again by [`Completions::ring_for`], until
    /// nothing came meanwhile.
    #[cfg_attr(
        not(feature = "system"),
        expect(unused_mut, reason = "the loop that needs it is the system's")
    )]
    pub(super) fn attend_as(&self, mut drain: impl FnMut(), again: impl FnMut()) {
        match self {
            Self::Ours(own) => own.cq.attend(&own.channel, drain, again),
            #[cfg(feature = "system")]
            Self::System(cq) => loop {
                cq.clear();
                drain();
                if !cq.arm() {
                    return;
                }
            },
        }
    }
    /// Verbena's own.
    ///
    /// # Errors
    ///
    /// `Unsupported` for another stack's.
    #[allow(clippy::unnecessary_wraps, reason = "not all queues are")]
    pub(super) fn ours(&self) -> Result<&Arc<Cq>, nic::Error> {
        match self {
            Self::Ours(own) => Ok(&own.cq),
            #[cfg(feature = "system")]
            Self::System(_) => Err(OTHER),
        }
    }
    /// The machine's libraries'.
    ///
    /// # Errors
    ///
    /// `Unsupported` for Verbena's own.
    #[cfg(feature = "system")]
    pub(super) fn system(&self) -> Result<&Arc<rdma_core::Cq>, nic::Error> {
        if let Self::System(cq) = self { Ok(cq) } else { Err(OTHER) }
    }
    /// Ends the queue, which rings no more: no queue pair has it.
    pub(super) fn end(&self) {
        match self {
            Self::Ours(own) => own.channel.forget(&own.cq),
            #[cfg(feature = "system")]
            Self::System(cq) => cq.destroy(),
        }
    }
}

#[cfg(feature = "system")]
const OTHER: nic::Error = nic::Error::Unsupported("a completion queue of another stack");

/// Has a queue pair, or the queue that many share, look for completions when no lock is held.
pub(crate) struct EventSignal {
    later: Arc<DeferredWork>,
    /// Once it is made.
    qp: OnceLock<Weak<dyn Work>>,
}

impl EventSignal {
    pub(crate) fn new(later: &Arc<DeferredWork>) -> Arc<Self> {
        Arc::new(Self { later: later.clone(), qp: OnceLock::new() })
    }
    /// Sets the queue pair to wake. Once.
    pub(crate) fn is_for(&self, qp: Weak<dyn Work>) {
        _ = self.qp.set(qp);
    }
}

struct Rings(Arc<EventSignal>);

impl Signal for Rings {
    fn signal(&self) {
        self.0.signal();
    }
    fn take_back(&self) {}
}

impl Signal for EventSignal {
    fn signal(&self) {
        if let Some(qp) = self.qp.get().and_then(Weak::upgrade) {
            self.later.add(qp);
        }
    }
    fn take_back(&self) {}
}

/// Asynchronous events say nothing that completions do not.
struct Unheard;

impl Signal for Unheard {
    fn signal(&self) {}
    fn take_back(&self) {}
}
