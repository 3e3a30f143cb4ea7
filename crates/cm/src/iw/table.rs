//! The connection manager of one process: the tables of streams and connections, what goes out, and
//! time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use super::config::Config;
use super::connection::{Asked, Connection, State};
use crate::event::{ConnId, ETIMEDOUT, Error, Event};
use crate::parameters::{PathRecord, QpAttributes, Service};
use crate::protocol::Output;
use crate::streams::{Accepted, Action, Close, StreamCounters, StreamId};

/// An accepted stream whose request is not whole.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub accepted: Accepted,
    /// What has come of the request.
    pub front: Vec<u8>,
    pub due: Instant,
}

/// The connection manager of one process. The page of this module shows the order of calls.
///
/// After every call that changes something, [`Cm::poll`] until it gives nothing, and look at
/// [`Cm::deadline`].
pub struct Cm {
    pub(super) config: Config,
    next: u64,
    pub(super) connections: BTreeMap<ConnId, Box<Connection>>,
    /// Streams of connections.
    pub(super) streams: BTreeMap<StreamId, ConnId>,
    /// Accepted streams, oldest first.
    pub(super) unfinished: BTreeMap<StreamId, Unfinished>,
    /// Deadlines of both, as `due` of each says.
    pub(super) timers: BTreeSet<(Instant, StreamId)>,
    /// Requests that the consumer has not answered.
    pub(super) pending: usize,
    pub(super) counters: StreamCounters,
    output: VecDeque<Output>,
}

impl Cm {
    /// A connection manager without connections.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            next: 1,
            connections: BTreeMap::new(),
            streams: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            timers: BTreeSet::new(),
            pending: 0,
            counters: StreamCounters::default(),
            output: VecDeque::new(),
        }
    }

    /// The next thing to do to a stream, or to tell.
    pub fn poll(&mut self) -> Option<Output> {
        let output = self.output.pop_front()?;
        if let Output::Stream { action: Action::HandOver(given), .. } = &output
            && let Some(conn) = self.connections.get_mut(&given.conn)
        {
            conn.handed_over = true;
        }
        Some(output)
    }

    /// When [`Cm::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Does what is due at `now`.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(at, stream)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            if self.unfinished.contains_key(&stream) {
                self.counters.late += 1;
                self.drop_unfinished(stream);
            } else if let Some(&id) = self.streams.get(&stream) {
                let event = Event::Unreachable { status: ETIMEDOUT };
                self.end(id, Some(event), Some(Close::Reset));
            }
        }
    }

    /// Connections held, those that have ended and are not destroyed included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether nothing is held: no connection, and no accepted stream.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.unfinished.is_empty()
    }

    /// Accepted streams whose request is not whole.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Whether a request still waits for its answer.
    pub fn is_unanswered(&self, id: ConnId) -> bool {
        self.state(id).is_ok_and(|state| state == State::Requested)
    }

    /// The connections that requests for a service began and that are not established yet.
    pub fn half_open(&self, service: Service) -> Vec<ConnId> {
        let all = self.connections.values();
        all.filter(|conn| conn.state.is_half_open() && conn.service == service).map(|conn| conn.id).collect()
    }

    /// Whether a connection that a request began is not established yet.
    pub fn is_half_open(&self, id: ConnId) -> bool {
        self.state(id).is_ok_and(State::is_half_open)
    }

    /// What the queue pair wants for RTR and RTS: the depths that both ends agreed on. `None` until
    /// they did, and after the end.
    pub fn qp_attr(&self, id: ConnId) -> Option<QpAttributes> {
        self.connections.get(&id)?.attributes()
    }

    /// What a queue pair wants that is moved before its request is accepted: the depths that the
    /// peer allows at most. `None` once it is answered.
    pub fn requested_qp_attr(&self, id: ConnId) -> Option<QpAttributes> {
        self.connections.get(&id)?.requested_attributes()
    }

    /// Streams ended so far because of what the peer did or did not send.
    pub fn counters(&self) -> StreamCounters {
        self.counters
    }

    // What every part uses.

    /// An id for a stream that was not given out before.
    pub(super) fn new_stream(&mut self) -> StreamId {
        let id = StreamId(self.next);
        self.next += 1;
        id
    }

    /// A connection with its stream.
    pub(super) fn insert(
        &mut self,
        state: State,
        stream: StreamId,
        path: PathRecord,
        service: Service,
        asked: Asked,
    ) -> Result<&mut Connection, Error> {
        if self.connections.len() >= self.config.max_connections {
            return Err(Error::Full(self.config.max_connections));
        }
        let id = ConnId(self.next);
        self.next += 1;
        self.streams.insert(stream, id);
        let conn = Connection::new(id, state, stream, path, service, asked);
        Ok(self.connections.entry(id).or_insert_with(|| Box::new(conn)))
    }

    pub(super) fn state(&self, id: ConnId) -> Result<State, Error> {
        self.connections.get(&id).map(|conn| conn.state).ok_or(Error::Unknown(id))
    }

    /// The connection has come further, and has so long for its next step; `None`: for ever.
    pub(super) fn set_state(&mut self, now: Instant, id: ConnId, state: State, span: Option<Duration>) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.state == State::Requested && state != State::Requested {
            self.pending -= 1;
        }
        conn.state = state;
        if !matches!(state, State::Opening | State::Asking) {
            conn.give_up = None;
        }
        let due = span.map(|span| now + span).into_iter().chain(conn.give_up).min();
        self.set_due(id, due);
    }

    pub(super) fn set_due(&mut self, id: ConnId, due: Option<Instant>) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let Some(stream) = conn.stream else { return };
        if let Some(before) = std::mem::replace(&mut conn.due, due) {
            self.timers.remove(&(before, stream));
        }
        if let Some(at) = due {
            self.timers.insert((at, stream));
        }
    }

    pub(super) fn event(&mut self, conn: ConnId, event: Event) {
        if self.connections.get(&conn).is_some_and(|conn| !conn.detached) {
            self.output.push_back(Output::Event { conn, event });
        }
    }

    pub(super) fn act(&mut self, stream: StreamId, action: Action) {
        self.output.push_back(Output::Stream { stream, action });
    }

    /// Takes back what is to be done to a stream, and the connection's event, that no node has
    /// fetched.
    pub(super) fn take_back(&mut self, id: ConnId, of: StreamId) {
        self.output.retain(|output| match output {
            Output::Stream { stream, .. } => *stream != of,
            Output::Event { conn, .. } => *conn != id,
            _ => true,
        });
    }

    /// Forgets an accepted stream and resets it.
    pub(super) fn drop_unfinished(&mut self, stream: StreamId) {
        self.forget_unfinished(stream);
        self.act(stream, Action::Close(Close::Reset));
    }

    pub(super) fn forget_unfinished(&mut self, stream: StreamId) -> Option<Unfinished> {
        let unfinished = self.unfinished.remove(&stream)?;
        self.timers.remove(&(unfinished.due, stream));
        Some(unfinished)
    }

    /// The connection is over: the consumer is told by `event`, and the stream is closed unless the
    /// node has lost it already. What the consumer still owns stays as an empty shell until
    /// destroyed.
    pub(super) fn end(&mut self, id: ConnId, event: Option<Event>, close: Option<Close>) {
        if let Some(event) = event {
            self.event(id, event);
        }
        self.set_due(id, None);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if std::mem::replace(&mut conn.state, State::Closed) == State::Requested {
            self.pending -= 1;
        }
        (conn.request, conn.front) = (Vec::new(), Vec::new());
        let (stream, qpn, detached) = (conn.stream.take(), conn.qpn.take(), conn.detached);
        if detached {
            self.connections.remove(&id);
        }
        if let Some(stream) = stream {
            self.streams.remove(&stream);
            if let Some(close) = close {
                self.act(stream, Action::Close(close));
            }
        }
        if let Some(qpn) = qpn {
            self.output.push_back(Output::Released { conn: id, qpn });
        }
    }
}

impl fmt::Debug for Cm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cm")
            .field("connections", &self.connections.len())
            .field("unfinished", &self.unfinished.len())
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
