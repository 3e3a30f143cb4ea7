//! The side that is asked: a stream is accepted, the request comes in, the reply goes out (RFC 5044
//! §7.1.2, RFC 6581 §9).

use std::time::Instant;

use wire::iwarp::mpa::{Frame, Kind};

use super::connection::{Asked, State};
use super::frames::{asked, check_private_data, fill, frame, is_known};
use super::negotiation::{accepted, refused, requested};
use super::table::{Cm, Unfinished};
use crate::event::{ConnId, ECONNRESET, Error, Event};
use crate::parameters::{Accept, NO_PROCESS, Parameters, Request, TransportService};
use crate::streams::{Accepted, Action, Close, Rtr, StreamId};

impl Cm {
    /// Accepts a request: sends the reply, and gives the stream to the queue pair. `Established`
    /// follows: at once, or where an RTR was agreed on, upon [`Cm::established`]. There the stream
    /// may end first (`Rejected`), or the time (`Unreachable`).
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not an unanswered request. `OutOfRange`: a depth is above its limit.
    /// `PrivateData`: it is too long.
    pub fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<(), Error> {
        self.check_depths(&accept.parameters)?;
        let (stream, asked) = self.unanswered(id)?;
        check_private_data(&asked, &accept.private_data)?;
        let (agreed, reply) = accepted(&self.config, &asked, &accept.parameters);
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.agreed = agreed;
            conn.qpn = Some(accept.parameters.qpn);
        }
        self.act(stream, Action::Write(frame(Kind::Reply, &reply, false, &accept.private_data)));
        self.hand_over(id);
        if agreed.rtr == Rtr::None {
            self.set_state(now, id, State::Established, None);
            self.event(id, Event::Established);
        } else {
            self.set_state(now, id, State::RtrAwaited, Some(self.config.timing.rtr));
        }
        Ok(())
    }

    /// The stream of a request that waits for its answer, and what it asks for.
    pub(super) fn unanswered(&self, id: ConnId) -> Result<(StreamId, Asked), Error> {
        let conn = self.connections.get(&id).ok_or(Error::Unknown(id))?;
        match (conn.state, conn.stream) {
            (State::Requested, Some(stream)) => Ok((stream, conn.asked)),
            (state, _) => Err(Error::State(id, state.name())),
        }
    }

    /// A listener accepted a stream: its id.
    pub fn accepted(&mut self, now: Instant, accepted: &Accepted) -> StreamId {
        let stream = self.new_stream();
        let due = now + self.config.timing.request;
        self.unfinished.insert(stream, Unfinished { accepted: *accepted, front: Vec::new(), due });
        self.timers.insert((due, stream));
        while self.unfinished.len() > self.config.max_unfinished {
            let Some((&oldest, _)) = self.unfinished.first_key_value() else { break };
            self.counters.crowded_out += 1;
            self.drop_unfinished(oldest);
        }
        stream
    }

    /// Bytes came on a stream, in any pieces.
    pub fn received(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        if self.unfinished.contains_key(&stream) {
            return self.on_request_bytes(now, stream, bytes);
        }
        let Some(&id) = self.streams.get(&stream) else { return };
        match self.state(id) {
            Ok(State::Asking) => self.on_reply_bytes(now, id, bytes),
            Ok(State::Replied) => self.on_bytes_behind(id, bytes),
            // RFC 5044 §7.1.2: the initiator sends no FPDU before the reply.
            Ok(State::Requested) if !bytes.is_empty() => {
                self.counters.malformed += 1;
                self.reset(id);
            }
            _ => {}
        }
    }

    /// Bytes came where a request was expected.
    fn on_request_bytes(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        let Some(unfinished) = self.unfinished.get_mut(&stream) else { return };
        let filled = fill(Kind::Request, &mut unfinished.front, bytes);
        if filled == Ok(None) {
            return;
        }
        let Some(Unfinished { accepted, front, .. }) = self.forget_unfinished(stream) else { return };
        let parsed = Frame::parse(Kind::Request, &front).ok().and_then(|parsed| parsed.whole());
        match parsed.filter(|frame| is_known(frame.revision) && filled == Ok(Some(&[]))) {
            Some(request) => self.on_request(now, stream, &accepted, &request),
            None => {
                self.counters.malformed += 1;
                self.act(stream, Action::Close(Close::Reset));
            }
        }
    }

    /// A request is whole.
    fn on_request(&mut self, now: Instant, stream: StreamId, by: &Accepted, request: &Frame<'_>) {
        let theirs = asked(request);
        if request.markers || self.pending >= self.config.max_pending_requests {
            return self.refuse(stream, &theirs);
        }
        let most = requested(&self.config, theirs.enhanced);
        let Ok(conn) = self.insert(State::Requested, stream, by.path, by.service, theirs) else {
            return self.refuse(stream, &theirs);
        };
        let id = conn.id;
        conn.agreed = most;
        self.pending += 1;
        self.set_state(now, id, State::Requested, None);
        let parameters =
            Parameters { responder_resources: most.ird, initiator_depth: most.ord, ..Parameters::default() };
        let request = Request {
            service: by.service,
            peer_port: by.peer_port,
            path: by.path,
            process: NO_PROCESS,
            transport_service: TransportService::Rc,
            parameters,
            header: Vec::new(),
            private_data: request.private_data.to_vec(),
        };
        self.event(id, Event::Request(Box::new(request)));
    }

    /// Refuses a request that makes no connection here.
    fn refuse(&mut self, stream: StreamId, theirs: &Asked) {
        self.counters.refused += 1;
        let reply = refused(&self.config, theirs);
        self.act(stream, Action::Write(frame(Kind::Reply, &reply, true, &[])));
        self.act(stream, Action::Close(Close::Gracefully));
    }

    /// A request's stream is reset, for what came on it.
    fn reset(&mut self, id: ConnId) {
        let event = Event::Rejected { reason: ECONNRESET, private_data: Vec::new() };
        self.end(id, Some(event), Some(Close::Reset));
    }
}
