//! The stacks that this crate runs over, as a closed `enum`: a predictable branch a call. What each
//! object has of its own stack is an `enum` likewise: [`Adapter`](crate::provider::Adapter),
//! [`Domain`](crate::provider::Domain), a region's registration, the queue pair's
//! [`Carrier`](crate::qp::carrier::Carrier), and the identifiers of `cm::below`.

use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "software")]
use local::rings::adaptive_spin::AdaptiveSpin;
use nic::DeferredWork;

use crate::error::{Error, ErrorKind, Result};
use crate::thread_safe::ThreadSafe;

/// The stack below.
#[derive(Clone)]
pub(crate) enum Stack {
    /// Verbena's own.
    Ours(Ours),
    /// The machine's libraries.
    #[cfg(feature = "system")]
    System(ThreadSafe<Arc<rdma_core::System>>),
}

/// Verbena's own stack, over either world. It has no value without the features `software` and
/// `sim`.
#[derive(Clone)]
pub(crate) enum Ours {
    /// This process's host, over sockets.
    #[cfg(feature = "software")]
    Software(ThreadSafe<Arc<linux::process::Instance>>),
    /// A process of a simulated host.
    #[cfg(feature = "sim")]
    Sim(ThreadSafe<Arc<SimProcess>>),
}

/// A process of a simulated host.
#[cfg(feature = "sim")]
pub(crate) struct SimProcess {
    pub node: Arc<stack::Node<sim::SimEnv>>,
    /// Run by the executor, after each step of the simulation and each task.
    pub later: Arc<DeferredWork>,
}

#[cfg(any(feature = "software", feature = "sim"))]
pub(crate) use stack::{EventChannel as NodeChannel, Id as NodeId};

/// What stands for a node's channel of events where there is no node.
#[cfg(not(any(feature = "software", feature = "sim")))]
pub(crate) enum NodeChannel {}

/// What stands for a node's identifier where there is no node.
#[cfg(not(any(feature = "software", feature = "sim")))]
pub(crate) enum NodeId {}

/// Calls the node of [`Ours`], whatever its world: `node!(ours, node => node.disconnect(&id))`.
/// Without the features `software` and `sim` the call is not compiled.
#[cfg(any(feature = "software", feature = "sim"))]
macro_rules! node {
    ($ours:expr, $node:ident => $call:expr) => {
        match $ours {
            #[cfg(feature = "software")]
            $crate::stack::Ours::Software(instance) => {
                let $node = instance.node();
                $call
            }
            #[cfg(feature = "sim")]
            $crate::stack::Ours::Sim(process) => {
                let $node = &process.node;
                $call
            }
        }
    };
}
#[cfg(not(any(feature = "software", feature = "sim")))]
macro_rules! node {
    ($ours:expr, $node:ident => $call:expr) => {
        match *$ours {}
    };
}
pub(crate) use node;

/// What is done on Verbena's own stack only.
#[cfg(feature = "system")]
pub(crate) fn unsupported() -> Error {
    let text = "the machine's libraries do not do this, or this crate does not ask them".to_owned();
    Error::new(ErrorKind::Unsupported, "Provider::system").with(crate::Value::Text(text))
}

impl Stack {
    /// Verbena's own, for what no other stack does in this crate.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    #[allow(clippy::unnecessary_wraps, reason = "not all stacks are")]
    pub(crate) fn ours(&self) -> Result<&Ours> {
        match self {
            Self::Ours(ours) => Ok(ours),
            #[cfg(feature = "system")]
            Self::System(_) => Err(unsupported()),
        }
    }
    /// The time as timers know it.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::Ours(ours) => ours.now(),
            #[cfg(feature = "system")]
            Self::System(_) => Instant::now(),
        }
    }
    /// What waits until no lock is held.
    pub(crate) fn later(&self) -> &Arc<DeferredWork> {
        match self {
            Self::Ours(ours) => ours.later(),
            #[cfg(feature = "system")]
            Self::System(system) => system.later(),
        }
    }
    /// Takes what has arrived, in this thread. Nothing in a simulation: there the executor lets
    /// things arrive.
    pub(crate) fn poll(&self) {
        match self {
            Self::Ours(ours) => ours.poll(),
            // A thread that waits polls the queue pairs that it waits for: see `qp::waited`.
            #[cfg(feature = "system")]
            Self::System(_) => {}
        }
    }
    /// Like [`Stack::poll`], for a thread that waits for a completion of this queue. A completion
    /// that was taken out already, as a task waits for it, is news, too: after it ACKs wait for
    /// what this thread posts.
    #[inline]
    pub(crate) fn poll_for(&self, cq: &nic::Cq) {
        let before = nic::cq::added();
        self.poll_until(|| nic::cq::added() != before || !cq.is_empty());
    }
    /// Like [`Stack::poll`], for a thread that will not come back soon: until what has arrived says
    /// something to it, or there is no more.
    #[inline]
    pub(crate) fn poll_until(&self, says_something: impl Fn() -> bool) {
        match self {
            Self::Ours(ours) => ours.poll_until(says_something),
            // Its queues are not of this kind.
            #[cfg(feature = "system")]
            Self::System(_) => {}
        }
    }
    /// Whether a thread that waits gains by polling: not in a simulation, whose time goes on when
    /// all wait, and not where polling is a queue pair's own affair.
    pub(crate) fn gains_by_polling(&self) -> bool {
        #[cfg(feature = "software")]
        if matches!(self, Self::Ours(Ours::Software(_))) {
            return true;
        }
        false
    }
    /// For a task that is about to wait: takes what arrives, in this thread, for a moment or until
    /// `has_event`, where that is likely. Where it is in vain the engine thread takes what arrives
    /// from now on.
    #[cfg(feature = "software")]
    pub(crate) fn spin(&self, spin: &AdaptiveSpin, has_event: impl Fn() -> bool) {
        #[allow(irrefutable_let_patterns, reason = "where there is one stack only")]
        if let Self::Ours(Ours::Software(instance)) = self {
            instance.host.spin_for_task(spin, has_event);
        }
    }
    /// This thread polls no more for now: the engine thread takes what arrives.
    pub(crate) fn end_polling(&self) {
        match self {
            Self::Ours(ours) => ours.end_polling(),
            // A thread that waits polls the queue pairs that it waits for: see `qp::waited`.
            #[cfg(feature = "system")]
            Self::System(_) => {}
        }
    }
    /// Whether this process made it: not so in a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        match self {
            Self::Ours(ours) => ours.is_ours(),
            #[cfg(feature = "system")]
            Self::System(system) => system.is_ours(),
        }
    }
    /// `Forked` in a child of the process that made it.
    pub(crate) fn check(&self, call: &'static str) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(Error::new(ErrorKind::Forked, call)) }
    }
    /// Whether a thread may block until something arrives.
    pub(crate) fn may_block(&self) -> bool {
        #[cfg(feature = "sim")]
        if matches!(self, Self::Ours(Ours::Sim(_))) {
            return false;
        }
        true
    }
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            #[cfg(feature = "software")]
            (Self::Ours(Ours::Software(a)), Self::Ours(Ours::Software(b))) => Arc::ptr_eq(a, b),
            #[cfg(feature = "sim")]
            (Self::Ours(Ours::Sim(a)), Self::Ours(Ours::Sim(b))) => Arc::ptr_eq(a, b),
            #[cfg(feature = "system")]
            (Self::System(a), Self::System(b)) => Arc::ptr_eq(a, b),
            #[allow(unreachable_patterns, reason = "where there is one stack only")]
            _ => false,
        }
    }
    /// Hands on what was sent to other processes of this host, as this process may end at once.
    pub(crate) fn drain_sent(&self) {
        match self {
            Self::Ours(ours) => ours.drain_sent(),
            #[cfg(feature = "system")]
            Self::System(_) => {}
        }
    }
    /// Takes in all that has arrived. In a simulation nothing waits.
    pub(crate) fn drain_all(&self) {
        match self {
            Self::Ours(ours) => ours.drain_all(),
            #[cfg(feature = "system")]
            Self::System(_) => {}
        }
    }
}

impl nic::Time for Stack {
    #[inline]
    fn just_now(&self) -> Instant {
        match self {
            Self::Ours(ours) => ours.just_now(),
            #[cfg(feature = "system")]
            Self::System(_) => self.now(),
        }
    }
}

// A match of `*self` needs no arm where the type has no value; a match of `self` does.
impl Ours {
    /// The provider's name, as it is shown.
    pub(crate) fn name(&self) -> &'static str {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(_) => "software",
            #[cfg(feature = "sim")]
            Self::Sim(_) => "sim",
        }
    }
    fn now(&self) -> Instant {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(_) => Instant::now(),
            #[cfg(feature = "sim")]
            Self::Sim(ref process) => stack::Env::now(&**process.node.env()),
        }
    }
    #[inline]
    fn just_now(&self) -> Instant {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.host.just_now(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => self.now(),
        }
    }
    fn later(&self) -> &Arc<DeferredWork> {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.host.later(),
            #[cfg(feature = "sim")]
            Self::Sim(ref process) => &process.later,
        }
    }
    #[inline]
    fn poll(&self) {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => _ = instance.host.poll(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => {}
        }
    }
    #[inline]
    #[cfg_attr(
        not(feature = "software"),
        allow(unused_variables, reason = "nothing is waited for in a simulation")
    )]
    fn poll_until(&self, says_something: impl Fn() -> bool) {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.host.poll_until(says_something),
            #[cfg(feature = "sim")]
            Self::Sim(_) => {}
        }
    }
    #[inline]
    fn end_polling(&self) {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.host.end_polling(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => {}
        }
    }
    #[inline]
    fn is_ours(&self) -> bool {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.is_ours(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => true,
        }
    }
    fn drain_sent(&self) {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.host.drain_sent(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => {}
        }
    }
    fn drain_all(&self) {
        match *self {
            #[cfg(feature = "software")]
            Self::Software(ref instance) => instance.host.drain_all(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => {}
        }
    }
}
