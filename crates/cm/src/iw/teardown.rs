//! How connections end: disconnect, reject, destroy, and streams that end (RFC 5044 §7.2).

use std::time::Instant;

use wire::iwarp::mpa::Kind;

use super::connection::State;
use super::frames::{check_private_data, frame};
use super::negotiation::refused;
use super::table::Cm;
use crate::event::{ConnId, ECONNREFUSED, ECONNRESET, ETIMEDOUT, Error, Event};
use crate::parameters::Refusal;
use crate::streams::{Action, Close, StreamId};

/// `EHOSTUNREACH`, of a stream that could not be opened.
const EHOSTUNREACH: i32 = 113;
/// `ENETUNREACH`, of a stream that could not be opened.
const ENETUNREACH: i32 = 101;

impl Cm {
    /// Ends a connection: the stream is closed. `Disconnected` follows at once, as with siw, and no
    /// time wait. Harmless when the connection has ended.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: there is no connection yet.
    pub fn disconnect(&mut self, _now: Instant, id: ConnId) -> Result<(), Error> {
        let close = match self.state(id)? {
            State::Established | State::RtrAwaited => Close::Gracefully,
            State::Replied => Close::Reset,
            State::Closed => return Ok(()),
            state => return Err(Error::State(id, state.name())),
        };
        self.end(id, Some(Event::Disconnected { status: 0 }), Some(close));
        Ok(())
    }

    /// Refuses a request, by a reply with R. A reply that does not suit is answered by a reset, as
    /// no message says more. The connection is gone for the caller. MPA has no reasons: `_why` is
    /// not told.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: neither an unanswered request nor a reply. `PrivateData`: it is too
    /// long.
    pub fn reject(&mut self, id: ConnId, _why: Refusal, private_data: &[u8]) -> Result<(), Error> {
        let close = match self.state(id)? {
            State::Requested => {
                let (stream, asked) = self.unanswered(id)?;
                check_private_data(&asked, private_data)?;
                let reply = refused(&self.config, &asked);
                self.act(stream, Action::Write(frame(Kind::Reply, &reply, true, private_data)));
                Close::Gracefully
            }
            State::Replied => Close::Reset,
            state => return Err(Error::State(id, state.name())),
        };
        self.detach(id);
        self.end(id, None, Some(close));
        Ok(())
    }

    /// The consumer is done with the connection, whatever its state; no event follows. A request is
    /// refused, and the stream is closed.
    pub fn destroy(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else { return };
        let close = match conn.state {
            State::Requested => {
                // Cannot fail: the state allows it.
                _ = self.reject(id, Refusal::ConsumerDefined, &[]);
                return;
            }
            State::RtrAwaited | State::Established if conn.handed_over => Close::Gracefully,
            // The queue pair never had the stream: the peer shall not see a connection.
            State::RtrAwaited | State::Established => {
                if let Some(stream) = conn.stream {
                    self.take_back(id, stream);
                }
                Close::Reset
            }
            State::Opening | State::Asking | State::Replied | State::Closed => Close::Reset,
        };
        self.detach(id);
        self.end(id, None, Some(close));
    }

    /// The process ends: every connection as by [`Cm::destroy`], and every accepted stream.
    pub fn leave(&mut self) {
        let all: Vec<ConnId> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.destroy(id));
        let all: Vec<StreamId> = self.unfinished.keys().copied().collect();
        all.into_iter().for_each(|stream| self.drop_unfinished(stream));
    }

    /// The peer ended its half of a stream. Ours ends too: MPA has no half-closed connections.
    pub fn ended(&mut self, stream: StreamId) {
        if self.forget_unfinished(stream).is_some() {
            return self.act(stream, Action::Close(Close::Gracefully));
        }
        let Some(&id) = self.streams.get(&stream) else { return };
        let Some(event) = self.event_of_end(id) else { return };
        self.end(id, Some(event), Some(Close::Gracefully));
    }

    /// A stream could not be opened, or is lost.
    pub fn lost(&mut self, stream: StreamId, errno: i32) {
        if self.forget_unfinished(stream).is_some() {
            return;
        }
        let Some(&id) = self.streams.get(&stream) else { return };
        let event = if self.state(id) == Ok(State::Opening) {
            Some(not_opened(errno))
        } else {
            self.event_of_end(id)
        };
        self.end(id, event, None);
    }

    /// The process at the other end of one connection is no more. Harmless where the connection is
    /// unknown or has ended.
    pub fn end_of_peer(&mut self, id: ConnId) {
        let Some(event) = self.event_of_end(id) else { return };
        self.end(id, Some(event), Some(Close::Reset));
    }

    /// What the consumer is told when the stream ends. `None` where the connection has ended.
    fn event_of_end(&self, id: ConnId) -> Option<Event> {
        match self.state(id).ok()? {
            State::Opening | State::Asking | State::Requested | State::RtrAwaited => {
                Some(Event::Rejected { reason: ECONNRESET, private_data: Vec::new() })
            }
            State::Replied | State::Established => Some(Event::Disconnected { status: 0 }),
            State::Closed => None,
        }
    }

    /// The consumer hears no more of a connection.
    fn detach(&mut self, id: ConnId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.detached = true;
        }
    }
}

/// What the consumer is told where its stream could not be opened: what rdma_cm makes of the errno
/// in a reply of iw_cm.
fn not_opened(errno: i32) -> Event {
    match -errno {
        reason @ (ECONNREFUSED | ECONNRESET) => Event::Rejected { reason, private_data: Vec::new() },
        ETIMEDOUT => Event::Unreachable { status: ETIMEDOUT },
        status if matches!(errno, EHOSTUNREACH | ENETUNREACH) => Event::Unreachable { status },
        status => Event::ConnectError { status },
    }
}
