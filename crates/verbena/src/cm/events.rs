//! An identifier of the node and its events. Each has a channel of its own; what comes there is
//! folded into [`Seen`], when no lock is held ([`nic::DeferredWork`]), and the task that waits for
//! it is woken. The end of a connection is acted on here, whether or not a task waits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use locks::{Mutex, Rank};
use nic::program::wake_all;
use nic::rdma_cm::{EventKind, UdParam};
use nic::{DeferredWork, Errno, QpState, QpType, Signal, Work};
use wire::mad::sidr_status;

use super::below::{Event, Events, Id};
use super::waiters::{Awaited, Owner, Standing, Waiters, until};
use crate::error::{Error, ErrorKind, RejectReason, Rejection, Result};
use crate::provider::Stack;
use crate::qp::inner::QpInner;

/// What the peer said when the connection came to be.
#[derive(Clone)]
pub(crate) struct Answer {
    pub param: nic::rdma_cm::ConnParam,
    pub private_data: Vec<u8>,
    /// The destination to send to, where it is a datagram service's.
    pub ud: Option<UdParam>,
}

/// What an identifier's events have told so far.
#[derive(Default)]
pub(crate) struct Seen {
    pub address: Option<Result<()>>,
    pub route: Option<Result<()>>,
    /// Of the peer, to a request or an acceptance; why there will be none.
    pub answer: Option<Result<Answer>>,
    /// Joins of multicast groups, by the number that each was given, until a task looks.
    pub joined: BTreeMap<u64, Result<UdParam>>,
    /// We have accepted.
    accepted: bool,
    /// The connection is no more.
    pub ended: Option<Error>,
    /// This side is ending it: its queue pair fails for that.
    closing: bool,
    /// The identifier, and the queue pair that is to learn of the end.
    qp: Option<(Id, Arc<QpInner>)>,
    waiters: Waiters,
}

impl Awaited for Seen {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Seen {
    /// Whether the connection stands, and no side is ending it.
    fn stands(&self) -> bool {
        matches!(self.answer, Some(Ok(_))) && self.ended.is_none() && !self.closing
    }

    /// Why the connection is no more, where the event says so: for [`Seen::end`].
    fn take_in(&mut self, event: Event) -> Option<Error> {
        let status = || Errno(event.status.saturating_neg());
        let end = match event.kind {
            EventKind::AddrResolved => {
                self.address = Some(Ok(()));
                return None;
            }
            EventKind::AddrError => {
                self.address = Some(Err(Error::of_errno("rdma_resolve_addr", status())));
                return None;
            }
            EventKind::RouteResolved => {
                self.route = Some(Ok(()));
                return None;
            }
            EventKind::RouteError => {
                self.route = Some(Err(Error::of_errno("rdma_resolve_route", status())));
                return None;
            }
            EventKind::Established if self.answer.is_none() => {
                let Event { param, private_data, ud, .. } = event;
                self.answer = Some(Ok(Answer { param, private_data, ud }));
                return None;
            }
            EventKind::MulticastJoin | EventKind::MulticastError => {
                if let Some(ud) = event.ud {
                    let joined = match event.kind {
                        EventKind::MulticastJoin => Ok(ud),
                        _ => Err(Error::of_errno("rdma_join_multicast", status())),
                    };
                    self.joined.insert(ud.context, joined);
                }
                return None;
            }
            // A positive status is the answer of the peer asked for a datagram service.
            EventKind::Unreachable if event.status > 0 => {
                Error::rejected("rdma_connect", no_service(event.status, event.private_data))
            }
            EventKind::Rejected if matches!(self.answer, Some(Ok(_))) => ended(),
            EventKind::Rejected => {
                Error::rejected("rdma_connect", rejection(event.status, event.private_data))
            }
            EventKind::Unreachable | EventKind::ConnectError => Error::of_errno("rdma_connect", status()),
            EventKind::Disconnected => {
                // A peer that disconnects has had our acceptance: its word that it is ready (RTU)
                // was lost or overtaken. What it sent stands.
                if self.accepted && self.answer.is_none() {
                    self.answer =
                        Some(Ok(Answer { param: event.param, ud: None, private_data: event.private_data }));
                }
                ended()
            }
            EventKind::DeviceRemoval => Error::of_errno("rdma_get_cm_event", Errno::ENODEV),
            _ => return None,
        };
        Some(end)
    }

    /// The connection is no more, for this reason; false where it had ended before.
    fn end(&mut self, why: &Error) -> bool {
        if self.answer.is_none() {
            self.answer = Some(Err(why.clone()));
        }
        let first = self.ended.is_none();
        self.ended.get_or_insert_with(|| why.clone());
        first
    }
}

/// What waits for a peer that has disconnected is told so.
fn ended() -> Error {
    Error::new(ErrorKind::Disconnected, "rdma_disconnect")
}

/// How a datagram service was refused, in the words of a connection's refusal.
pub(super) fn no_service(status: i32, private_data: Vec<u8>) -> Rejection {
    let reason = match u8::try_from(status) {
        Ok(sidr_status::UNSUPPORTED) => RejectReason::InvalidServiceId,
        Ok(sidr_status::REJECTED) => RejectReason::Consumer,
        Ok(sidr_status::NO_QP) => RejectReason::NoResources,
        other => RejectReason::Other(other.map_or(0, u16::from)),
    };
    Rejection { reason, private_data }
}

/// How a connection was refused.
pub(super) fn rejection(status: i32, private_data: Vec<u8>) -> Rejection {
    use wire::mad::reason;
    let code = u16::try_from(status).unwrap_or(0);
    let reason = match code {
        reason::CONSUMER_DEFINED => RejectReason::Consumer,
        reason::INVALID_SERVICE_ID => RejectReason::InvalidServiceId,
        reason::STALE_CONNECTION => RejectReason::StaleConnection,
        reason::NO_RESOURCES => RejectReason::NoResources,
        reason::TIMEOUT => RejectReason::Timeout,
        other => RejectReason::Other(other),
    };
    Rejection { reason, private_data }
}

/// Where the events of an identifier come in.
pub(crate) struct Inbox {
    stack: Stack,
    events: Events,
    /// A listener's requests stay in the channel until taken, and count against its backlog.
    is_listener: bool,
    seen: Mutex<Seen>,
}

impl Owner<Seen> for Inbox {
    fn is_ours(&self) -> bool {
        self.stack.is_ours()
    }
}

impl AsRef<Mutex<Seen>> for Inbox {
    fn as_ref(&self) -> &Mutex<Seen> {
        &self.seen
    }
}

/// Has an inbox looked at when no lock is held.
struct EventSignal {
    later: Arc<DeferredWork>,
    inbox: Weak<Inbox>,
}

impl Signal for EventSignal {
    fn signal(&self) {
        if let Some(inbox) = self.inbox.upgrade() {
            self.later.add(inbox);
        }
    }
    fn take_back(&self) {}
}

impl Inbox {
    fn new(stack: &Stack, is_listener: bool) -> Arc<Self> {
        Arc::new_cyclic(|inbox| {
            let signal = EventSignal { later: stack.later().clone(), inbox: inbox.clone() };
            Self {
                stack: stack.clone(),
                events: Events::new(stack, Box::new(signal)),
                is_listener,
                seen: Mutex::new(Rank::ConnectionState, Seen::default()),
            }
        })
    }

    /// The connection has ended: what is under way is flushed, the peer is told where it does not
    /// know, and the receivers learn of it.
    fn end(&self, why: Error) {
        let connection = self.seen.lock().qp.clone();
        // The queue pair's first error, just before, says more: the peer may have left for it. A
        // NAK or an ACK may still lie in a socket, where the peer's DREQ came by another way.
        let failure = connection.as_ref().and_then(|(_, qp)| {
            self.stack.drain_all();
            qp.drain();
            qp.failure()
        });
        let why = failure.unwrap_or(why);
        let wakers = {
            let mut seen = self.seen.lock();
            if !seen.end(&why) {
                return;
            }
            seen.waiters.take()
        };
        if let Some((id, qp)) = connection {
            // An error says that there was no connection yet.
            _ = id.disconnect();
            qp.ended(why);
        }
        wake_all(wakers);
    }

    /// Ends a connection whose queue pair has failed: else the peer would not be told.
    fn look_at_qp(&self) {
        let qp = {
            let seen = self.seen.lock();
            seen.qp.clone().filter(|_| seen.stands())
        };
        let Some((_, qp)) = qp.filter(|(_, qp)| qp.carrier().state() == QpState::Error) else { return };
        self.end(qp.failure().unwrap_or_else(ended));
    }
}

impl Work for Inbox {
    fn run(self: Arc<Self>) {
        loop {
            let (event, wakers) = {
                let mut seen = self.seen.lock();
                // Taken and folded in one go, so that two threads keep the order.
                let event = if self.is_listener { None } else { self.events.next() };
                (event.map(|event| seen.take_in(event)), seen.waiters.take())
            };
            if let Some(Some(why)) = &event {
                self.end(why.clone());
            }
            wake_all(wakers);
            if event.is_none() {
                return self.look_at_qp();
            }
        }
    }
}

/// RNR timer of a peer that found no receive: code 12, 0.64 ms. librdmacm's 0 means 655 ms.
pub(super) const RNR_TIMER: u8 = 12;

/// An identifier. Its drop tells the peer what its state calls for (REJ, DREQ), and drops events.
pub(crate) struct Identifier {
    stack: Stack,
    id: Id,
    inbox: Arc<Inbox>,
}

impl Identifier {
    /// A new one for queue pairs of this type.
    pub(crate) fn new(stack: &Stack, kind: QpType) -> Result<Self> {
        stack.check("rdma_create_id")?;
        Self::with(stack, Inbox::new(stack, false), kind)
    }

    /// A new one that will listen.
    pub(crate) fn listener(stack: &Stack, kind: QpType) -> Result<Self> {
        stack.check("rdma_listen")?;
        Self::with(stack, Inbox::new(stack, true), kind)
    }

    fn with(stack: &Stack, inbox: Arc<Inbox>, kind: QpType) -> Result<Self> {
        let id = inbox.events.create_id(kind).map_err(|e| Error::of_nic("rdma_create_id", e))?;
        Ok(Self { stack: stack.clone(), id, inbox })
    }

    /// The one that came with a request.
    fn of_request(stack: &Stack, id: Id) -> Self {
        let inbox = Inbox::new(stack, false);
        inbox.events.adopt(&id);
        Self { stack: stack.clone(), id, inbox }
    }

    /// The identifier of the stack below.
    pub(crate) fn below(&self) -> &Id {
        &self.id
    }
    /// Our address, unspecified as long as there is none.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or_else(nowhere)
    }
    /// The peer's address.
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.id.peer_addr().unwrap_or_else(nowhere)
    }

    /// The result of a call into the node; takes in its events. Call it with no lock held.
    pub(crate) fn called<T>(&self, call: &'static str, result: Result<T, nic::Error>) -> Result<T> {
        self.stack.later().run();
        result.map_err(|e| {
            // What ended the connection says more than that the call is not possible any more.
            let ended = self.inbox.seen.lock().ended.clone();
            ended.unwrap_or_else(|| Error::of_nic(call, e))
        })
    }

    /// Waits until `look` finds something in what the events have told.
    pub(crate) async fn until<T>(&self, look: impl FnMut(&mut Seen) -> Option<T> + Unpin) -> T {
        until(&self.inbox, look).await
    }

    /// Forgets a join that no task looks for any more.
    pub(crate) fn forget_join(&self, number: u64) {
        let forgotten = self.inbox.seen.lock().joined.remove(&number);
        drop(forgotten);
    }

    /// From now on the peer may take it as accepted.
    pub(crate) fn accepts(&self) {
        self.inbox.seen.lock().accepted = true;
    }

    /// Waits for the peer's answer.
    pub(crate) async fn answer(&self) -> Result<Answer> {
        self.until(|seen| seen.answer.clone()).await
    }

    /// Like [`Identifier::answer`], for so long where the stack below does not look at the clock.
    #[cfg_attr(not(feature = "system"), allow(unused_variables, reason = "ours does"))]
    pub(crate) async fn answer_in(&self, time: Duration) -> Result<Answer> {
        match &self.stack {
            Stack::Ours(_) => self.answer().await,
            #[cfg(feature = "system")]
            Stack::System(_) => match crate::time::timeout(time, self.answer()).await {
                Ok(answer) => answer,
                Err(_) => Err(Error::of_errno("rdma_connect", Errno::ETIMEDOUT)),
            },
        }
    }

    /// Waits until it has ended, where the peer's answer to a disconnection takes no longer than
    /// the stack below waits for one: 2 s. A kernel waits for more than a minute.
    pub(crate) async fn until_ended(&self) {
        let ended = self.until(|seen| seen.ended.clone());
        match &self.stack {
            Stack::Ours(_) => _ = ended.await,
            #[cfg(feature = "system")]
            Stack::System(_) => _ = crate::time::timeout(Duration::from_secs(2), ended).await,
        }
    }

    /// Whether the peer has answered.
    pub(crate) fn has_answer(&self) -> bool {
        self.inbox.seen.lock().answer.is_some()
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.inbox.seen.lock().ended.is_some()
    }

    /// Finds the way to an address.
    pub(crate) async fn resolve(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let begun = self.id.resolve_addr(from, to, timeout);
        self.called("rdma_resolve_addr", begun)?;
        self.until(|seen| seen.address.clone()).await?;
        let begun = self.id.resolve_route(timeout);
        self.called("rdma_resolve_route", begun)?;
        self.until(|seen| seen.route.clone()).await
    }

    /// Sets the queue pair, which goes to INIT, and which learns of the end of the connection.
    pub(crate) fn set_qp(&self, qp: &Arc<QpInner>) -> Result<()> {
        let set = self.id.set_qp(qp.carrier(), RNR_TIMER);
        self.inbox.seen.lock().qp = Some((self.id.clone(), qp.clone()));
        let owner: Weak<Inbox> = Arc::downgrade(&self.inbox);
        qp.set_owner(owner);
        self.called("rdma_create_qp", set)
    }

    /// Ends the connection: what is under way is flushed, the peer is told. What has arrived is
    /// executed before: ACKs, whose messages were delivered and are not flushed.
    pub(crate) fn disconnect(&self, qp: &QpInner) {
        self.stack.drain_all();
        self.inbox.seen.lock().closing = true;
        // An error says that it has ended.
        _ = self.id.disconnect();
        qp.ended(ended());
        self.stack.drain_sent();
        self.stack.later().run();
    }

    /// A place among the tasks that wait for a listener's requests.
    pub(crate) fn standing(&self) -> Standing<Inbox, Seen> {
        Standing::new(&self.inbox)
    }

    /// The next request to a listener, the identifier that came with it and what it says; or leaves
    /// the waker at the place.
    pub(crate) fn poll_request(
        &self,
        place: &mut Standing<Inbox, Seen>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Self, Event)>> {
        let taken = place.poll(cx, |seen| {
            if let Some(ended) = &seen.ended {
                return Some(Err(ended.clone()));
            }
            while let Some(event) = self.inbox.events.next() {
                if let Some(id) = event.request.clone() {
                    // Under the listener's lock, or another waiter takes the new one's events.
                    return Some(Ok((Self::of_request(&self.stack, id), event)));
                }
                if event.kind == EventKind::DeviceRemoval {
                    let gone = Error::of_errno("rdma_get_cm_event", Errno::ENODEV);
                    seen.ended = Some(gone.clone());
                    return Some(Err(gone));
                }
            }
            None
        });
        if taken.is_ready() {
            // The next request may have come, for another task that waits.
            self.stack.later().run();
        }
        taken
    }

    /// Waits for it.
    pub(crate) async fn next_request(&self) -> Result<(Self, Event)> {
        let mut place = self.standing();
        std::future::poll_fn(|cx| self.poll_request(&mut place, cx)).await
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // In a forked child the parent's connections are the parent's.
        if !self.stack.is_ours() {
            return;
        }
        self.id.destroy();
        // Its last message may be the process's last.
        self.stack.drain_sent();
        self.stack.later().run();
    }
}

fn nowhere() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

#[cfg(test)]
mod tests;
