//! rdma_cm by hand: identifiers ([`Id`]), the channel that their events come in by
//! ([`EventChannel`]), and queue pairs of the program's own. For programs that want another order
//! of things than [`connect`](crate::connect) and [`listen`](crate::listen) have; nothing here is
//! needed for the rest.
//!
//! ```no_run
//! use verbena::cm::raw::{EventChannel, Id, Parameters, PortSpace, What};
//! use verbena::verbs::Unconnected;
//! # async fn f(provider: verbena::Provider) -> verbena::Result<()> {
//! let channel = EventChannel::new(&provider)?;
//! let id = Id::new(&channel, PortSpace::Tcp)?;
//! id.resolve_addr(None, ([10, 0, 0, 2], 7471).into(), std::time::Duration::from_secs(2))?;
//! assert!(matches!(channel.next().await?.what, What::AddrResolved));
//! id.resolve_route()?;
//! assert!(matches!(channel.next().await?.what, What::RouteResolved));
//! let (device, from) = (id.device().unwrap(), id.local_addr().unwrap().ip());
//! let mine = Unconnected::<verbena::Rc>::new(&device.pd()?, from, &Default::default())?;
//! id.connect(&Parameters::new(mine.endpoint().qp_num), b"hello")?;
//! assert!(matches!(channel.next().await?.what, What::ConnectResponse));
//! let qp = mine.connect_with(&id.attributes()?)?;
//! id.establish()?;
//! qp.send_inline(b"a message").await?;
//! # Ok(()) }
//! ```
//!
//! Two things are otherwise than in C: an event is a value, which the program does not acknowledge,
//! so no call waits for that; and what is dropped is ended, in any order.
//!
//! | file | what |
//! |---|---|
//! | this one | [`EventChannel`] |
//! | `event` | [`Event`], [`What`], [`Parameters`] |
//! | `id` | [`Id`], [`PortSpace`] |

mod event;
mod id;

use std::future::Future;
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};
use nic::program::wake_all;
use nic::{DeferredWork, Signal, Work};

use super::wait;
use super::waiters::{Awaited, Owner, Waiters, until};
use crate::error::Result;
use crate::provider::{Ours, Provider, node};
use crate::thread_safe::ThreadSafe;
pub use event::{Event, Parameters, What};
pub use id::{Id, PortSpace, Service};

/// A queue of events (rdma_create_event_channel(3)): a handle, clones are the same one. Several
/// tasks or threads may take turns. Requests that wait in one when its last handle is dropped are
/// rejected; the identifiers go on without being heard.
#[derive(Clone)]
pub struct EventChannel(Arc<Channel>);

pub(super) struct Channel {
    provider: Provider,
    ours: Ours,
    node: ThreadSafe<Arc<stack::EventChannel>>,
    state: Mutex<State>,
}

/// The tasks that wait for an event. The lock is held while one is taken, so that events are told
/// in order.
#[derive(Default)]
pub(super) struct State {
    waiters: Waiters,
}

impl Awaited for State {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Owner<State> for Channel {
    fn is_ours(&self) -> bool {
        self.provider.stack().is_ours()
    }
}

impl AsRef<Mutex<State>> for Channel {
    fn as_ref(&self) -> &Mutex<State> {
        &self.state
    }
}

/// Has the channel's waiters woken when no lock is held.
struct EventSignal {
    later: Arc<DeferredWork>,
    channel: Weak<Channel>,
}

impl Signal for EventSignal {
    fn signal(&self) {
        if let Some(channel) = self.channel.upgrade() {
            self.later.add(channel);
        }
    }
    fn take_back(&self) {}
}

impl Work for Channel {
    fn run(self: Arc<Self>) {
        let wakers = self.state.lock().waiters.take();
        wake_all(wakers);
    }
}

impl EventChannel {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// `Forked`; `Unsupported` over the machine's rdma-core.
    pub fn new(provider: &Provider) -> Result<Self> {
        const CALL: &str = "rdma_create_event_channel";
        let stack = provider.stack();
        stack.check(CALL)?;
        let ours = stack.ours()?.clone();
        Ok(Self(Arc::new_cyclic(|channel| {
            let signal = EventSignal { later: stack.later().clone(), channel: channel.clone() };
            Channel {
                provider: provider.clone(),
                ours,
                node: ThreadSafe::new(stack::EventChannel::new(Box::new(signal))),
                state: Mutex::new(Rank::ConnectionState, State::default()),
            }
        })))
    }

    /// The next event. Cancelling loses none.
    ///
    /// # Errors
    ///
    /// `Forked`.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn next(&self) -> impl Future<Output = Result<Event>> + Send + '_ {
        async {
            self.0.check()?;
            let channel = &*self.0;
            let event = until(&self.0, move |_| channel.take()).await;
            // The next one may have come, for another task that waits.
            self.0.provider.stack().later().run();
            Ok(event)
        }
    }

    /// Like [`EventChannel::next`], blocking.
    ///
    /// # Errors
    ///
    /// `Forked`; `BlockingInSimulation` in a task of a simulated host.
    pub fn blocking_next(&self) -> Result<Event> {
        wait(&self.0.provider, "rdma_get_cm_event", self.next())
    }

    /// An event that has come already.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn try_next(&self) -> Result<Option<Event>> {
        self.0.check()?;
        let event = {
            let _in_turn = self.0.state.lock();
            self.0.take()
        };
        self.0.provider.stack().later().run();
        Ok(event)
    }

    /// The channel's provider.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }
}

impl Channel {
    fn check(&self) -> Result<()> {
        self.provider.stack().check("rdma_get_cm_event")
    }

    /// Takes the oldest event. The caller holds `state`, so that a request's number is given before
    /// another thread sees what follows it.
    fn take(&self) -> Option<Event> {
        while let Some(event) = node!(&self.ours, node => node.next_event(&self.node)) {
            if let Some(event) = Event::of_node(&self.provider, &self.ours, event) {
                return Some(event);
            }
        }
        None
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // In a forked child they are the parent's.
        if self.provider.stack().is_ours() {
            // An identifier of a request among them would have no owner.
            while let Some(unseen) = self.take() {
                drop(unseen);
            }
        }
    }
}

impl PartialEq for EventChannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventChannel({:?})", self.0.provider)
    }
}
