//! What the connection manager tells of identifiers: one channel for all of them, read by the
//! thread that is told that there is something; each event is copied, acknowledged, and put to its
//! identifier's [`Inbox`].

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use nic::rdma_cm::{ConnParam, EventKind, UdParam};
use nic::{AddressVector, QpType, Signal};
use rdma_core_abi::cma::{RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_PS_UDP, rdma_cm_event, rdma_conn_param};
use wire::{Qkey, Qpn};

use crate::id::Id;
use crate::instance::System;

/// How long an event may come after what it tells of. Calls fail as soon as the peer has ended a
/// connection, and the system tells how a moment later.
const BEHIND: Duration = Duration::from_millis(100);

/// An event.
#[derive(Debug)]
pub struct Event {
    /// The new identifier of a request.
    pub request: Option<Arc<Id>>,
    /// What.
    pub kind: EventKind,
    /// A negative errno; of a rejection its reason.
    pub status: i32,
    /// What the peer said, as it looks from here.
    pub param: ConnParam,
    /// Of a datagram service or a group: the destination to send to; of a group with the number of
    /// its join.
    pub ud: Option<UdParam>,
    /// What its program said.
    pub private_data: Vec<u8>,
}

/// Events that no identifier has looked at.
pub struct Inbox {
    events: Mutex<VecDeque<Event>>,
    signal: Box<dyn Signal>,
}

struct Deaf;

impl Signal for Deaf {
    fn signal(&self) {}
    fn take_back(&self) {}
}

impl Inbox {
    /// An inbox that calls `signal` for each event, with locks held.
    pub fn new(signal: Box<dyn Signal>) -> Arc<Self> {
        Arc::new(Self { events: Mutex::new(Rank::SystemInbox, VecDeque::new()), signal })
    }
    /// An inbox that tells no thread of its events.
    pub fn deaf() -> Arc<Self> {
        Self::new(Box::new(Deaf))
    }
    /// The next one.
    pub fn next(&self) -> Option<Event> {
        self.events.lock().pop_front()
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub(crate) fn push(&self, event: Event) {
        self.events.lock().push_back(event);
        self.signal.signal();
    }
    pub(crate) fn take_all(&self) -> VecDeque<Event> {
        std::mem::take(&mut *self.events.lock())
    }
}

/// `None` for what this crate does not know.
fn kind(code: u32) -> Option<EventKind> {
    use EventKind::*;
    const ALL: [EventKind; 16] = [
        AddrResolved,
        AddrError,
        RouteResolved,
        RouteError,
        ConnectRequest,
        ConnectResponse,
        ConnectError,
        Unreachable,
        Rejected,
        Established,
        Disconnected,
        DeviceRemoval,
        MulticastJoin,
        MulticastError,
        AddrChange,
        TimewaitExit,
    ];
    ALL.get(code as usize).copied()
}

/// # Safety
///
/// Where there is private data, so many bytes are there.
unsafe fn param(c: &rdma_conn_param) -> (ConnParam, Vec<u8>) {
    let param = ConnParam {
        responder_resources: c.responder_resources,
        initiator_depth: c.initiator_depth,
        flow_control: c.flow_control != 0,
        retry_count: c.retry_count,
        rnr_retry_count: c.rnr_retry_count,
        srq: c.srq != 0,
        qp_num: c.qp_num,
    };
    if c.private_data.is_null() || c.private_data_len == 0 {
        return (param, Vec::new());
    }
    // SAFETY: as the caller says.
    let data = unsafe { std::slice::from_raw_parts(c.private_data.cast::<u8>(), c.private_data_len.into()) };
    (param, data.to_vec())
}

/// What an event says: parameters of a connection or of datagrams, and private data.
///
/// # Safety
///
/// The event is not acknowledged yet.
unsafe fn told(c: &rdma_cm_event, kind: EventKind) -> (ConnParam, Vec<u8>, Option<UdParam>) {
    // SAFETY: as the caller says.
    unsafe {
        if c.id.is_null() || (*c.id).ps != RDMA_PS_UDP {
            let (param, private_data) = param(&c.param.conn);
            return (param, private_data, None);
        }
        let (ud, none) = (&c.param.ud, ConnParam::default());
        let is_group = matches!(kind, EventKind::MulticastJoin | EventKind::MulticastError);
        // Of a group it is the number that its join was given.
        let context = if is_group { ud.private_data.addr() as u64 } else { 0 };
        let len = if is_group || ud.private_data.is_null() { 0 } else { usize::from(ud.private_data_len) };
        let private_data = match len {
            0 => Vec::new(),
            len => std::slice::from_raw_parts(ud.private_data.cast::<u8>(), len).to_vec(),
        };
        let peer = Ipv6Addr::from(ud.ah_attr.grh.dgid.raw).to_canonical();
        let av = AddressVector { dgid: peer.into(), is_global: true, port: 1, ..AddressVector::default() };
        let (qpn, qkey) = (Qpn::new(ud.qp_num), Qkey(ud.qkey));
        (none, private_data, Some(UdParam { av, qpn, qkey, context }))
    }
}

impl System {
    /// Reads all events that there are. Call it with no lock held.
    pub(crate) fn read_events(self: &Arc<Self>) {
        if !self.is_ours() {
            return;
        }
        let mut left = Left::default();
        {
            let mut failed = self.reading.lock();
            self.timer.clear();
            let channel = self.channel.load(Ordering::Relaxed);
            let mut event = null_mut();
            // SAFETY: the channel lives as long as the process, and does not block.
            while unsafe { (self.calls.rdma_get_cm_event)(channel, &raw mut event) } == 0 {
                // SAFETY: an event lives until it is acknowledged, and its identifier at least as
                // long.
                unsafe { self.take_event(event, &mut left) };
                // SAFETY: it was got just now.
                unsafe { (self.calls.rdma_ack_cm_event)(event) };
            }
            failed.append(&mut left.failed);
            for Failed { id, event, .. } in settled(&mut failed, Instant::now(), |id| id.is_over()) {
                if !id.is_over() {
                    id.tell(event);
                }
                left.ids.push(id);
            }
            if !failed.is_empty() {
                self.timer.set(BEHIND);
            }
        }
        // Rejects requests.
        drop(left);
    }

    /// Copies an event, and puts it where it belongs.
    ///
    /// # Safety
    ///
    /// The event is not acknowledged yet.
    unsafe fn take_event(self: &Arc<Self>, event: *mut rdma_cm_event, left: &mut Left) {
        // SAFETY: as the caller says.
        let c = unsafe { &*event };
        let Some(mut kind) = kind(c.event) else { return };
        // SAFETY: as the caller says: the identifier lives, and its port space says which
        // parameters there are.
        let (param, private_data, ud) = unsafe { told(c, kind) };
        let mut status = c.status;
        let known = |raw: *mut _| self.ids.lock().get(&(raw as usize)).and_then(std::sync::Weak::upgrade);
        if kind == EventKind::ConnectRequest {
            let listener = known(c.listen_id);
            let whose = listener.as_ref().map_or(QpType::Rc, |listener| listener.kind());
            // SAFETY: a new identifier, which is ours to destroy.
            let Some(request) = (unsafe { Id::of_request(self, whose, c.id, param) }) else { return };
            match listener.as_ref().filter(|listener| listener.has_room()) {
                Some(listener) => {
                    listener.tell(Event { request: Some(request), kind, status, param, ud, private_data });
                }
                None => left.ids.push(request),
            }
            left.ids.extend(listener);
            return;
        }
        let Some(id) = known(c.id) else { return };
        if let Some(group) = ud.filter(|_| kind == EventKind::MulticastJoin) {
            // SAFETY: of such an identifier, as above.
            if let Err(e) = id.joined(group.context, unsafe { &c.param.ud.ah_attr }) {
                (kind, status) = (EventKind::MulticastError, -e.errno().0);
            }
        }
        let mut failed = false;
        if c.event == RDMA_CM_EVENT_CONNECT_RESPONSE {
            // SAFETY: it lives, as its event does.
            match unsafe { id.respond(c.id) } {
                Ok(()) => kind = EventKind::Established,
                Err(e) => (kind, status, failed) = (EventKind::ConnectError, -e.errno().0, true),
            }
        }
        // SAFETY: it lives, as its event does.
        unsafe { id.look(c.id) };
        let event = Event { request: None, kind, status, param, ud, private_data };
        if failed {
            // The peer may have thought better of it: an event says so.
            left.failed.push(Failed { id, event, until: Instant::now() + BEHIND });
            return;
        }
        id.tell(event);
        left.ids.push(id);
    }
}

/// What is left over when events have been taken.
#[derive(Default)]
struct Left {
    /// Identifiers that may have no other owner: to be dropped with no lock held, when their events
    /// are acknowledged.
    ids: Vec<Arc<Id>>,
    /// Connections that could not be made.
    failed: Vec<Failed>,
}

/// A connection that could not be made, before its identifier is told so: an event of the peer's
/// says more.
pub(crate) struct Failed<I = Arc<Id>> {
    id: I,
    event: Event,
    until: Instant,
}

/// Takes out those that have waited long enough, or whose end an event has told of.
fn settled<I>(failed: &mut Vec<Failed<I>>, now: Instant, is_over: impl Fn(&I) -> bool) -> Vec<Failed<I>> {
    failed.extract_if(.., |failed| is_over(&failed.id) || failed.until <= now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_no_event_has_said_more_for_a_while() {
        let now = Instant::now();
        let failed = |is_over, until| {
            let (kind, param) = (EventKind::ConnectError, ConnParam::default());
            let event = Event { request: None, kind, status: -22, param, ud: None, private_data: Vec::new() };
            Failed { id: is_over, event, until }
        };
        let mut waiting = vec![failed(false, now + BEHIND), failed(true, now + BEHIND), failed(false, now)];
        let settled = |waiting: &mut _, now| {
            let settled = settled(waiting, now, |is_over: &bool| *is_over);
            settled.into_iter().map(|it| it.id).collect::<Vec<_>>()
        };
        assert_eq!(settled(&mut waiting, now), [true, false]);
        assert_eq!(settled(&mut waiting, now + BEHIND / 2), []);
        assert_eq!(settled(&mut waiting, now + BEHIND), [false]);
    }
}
