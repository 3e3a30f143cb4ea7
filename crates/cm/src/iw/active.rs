//! The side that connects: a stream is opened, the request goes out, the reply comes in (RFC 5044
//! §7.1.2, RFC 6581 §9).

use std::time::Instant;

use wire::Gid;
use wire::iwarp::mpa::{Frame, Kind};
use wire::iwarp::rdmap::Cause;

use super::connection::{Asked, State};
use super::frames::{asked, check_private_data, fill, frame, is_known, terminate};
use super::negotiation::{offered, replied};
use super::table::Cm;
use crate::event::{ConnId, ECONNREFUSED, ECONNRESET, EINVAL, Error, Event, at_most};
use crate::parameters::{Connect, NO_PROCESS, Parameters, Reply, TransportService};
use crate::streams::{Action, Agreed, Close, HandOver, Open, StreamId};

impl Cm {
    /// Asks for a connection: opens a stream, and sends the request on it. `Reply`, `Rejected`,
    /// `Unreachable` or `ConnectError` follows.
    ///
    /// # Errors
    ///
    /// `OutOfRange`: a depth is above its limit, or the transport service is not RC. `Gid`: an end
    /// has no IP address. `PrivateData`: it is too long. `Full`: no room.
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, Error> {
        let (path, parameters) = (connect.path, &connect.parameters);
        self.check_depths(parameters)?;
        if connect.transport_service != TransportService::Rc {
            return Err(Error::OutOfRange { what: "qp_type", value: 1, most: 0 });
        }
        let (from, to) = (path.local_gid, path.remote_gid);
        if path.lids.is_some() || from == Gid::default() || to == Gid::default() {
            return Err(Error::Gid { from, to });
        }
        let (ours, mine) = offered(&self.config, parameters);
        check_private_data(&ours, &connect.private_data)?;
        let stream = self.new_stream();
        let conn = self.insert(State::Opening, stream, path, connect.service, ours)?;
        let id = conn.id;
        conn.qpn = Some(parameters.qpn);
        conn.agreed = mine;
        conn.request = frame(Kind::Request, &ours, false, &connect.private_data);
        let open = Open { conn: id, path, source_port: connect.source_port, service: connect.service };
        self.act(stream, Action::Open(Box::new(open)));
        self.set_state(now, id, State::Opening, Some(self.config.timing.open));
        Ok(id)
    }

    /// The consumer waits for the answer to its request until `at` and no longer: `Unreachable`
    /// follows then. Harmless once the answer has come.
    pub fn give_up_at(&mut self, id: ConnId, at: Instant) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if matches!(conn.state, State::Opening | State::Asking) {
            conn.give_up = Some(at);
            let due = conn.due.into_iter().chain(conn.give_up).min();
            self.set_due(id, due);
        }
    }

    /// The consumer's side of the handshake is done. After `Reply`: the queue pair gets the stream.
    /// After accept: the RTR, or data, has come on the queue pair, and `Established` follows.
    /// Harmless when the connection is established already or past it.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State` before there is a reply.
    pub fn established(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        match self.state(id)? {
            State::Replied => self.hand_over(id),
            State::RtrAwaited => self.event(id, Event::Established),
            State::Established | State::Closed => return Ok(()),
            state => return Err(Error::State(id, state.name())),
        }
        self.set_state(now, id, State::Established, None);
        Ok(())
    }

    /// The stream belongs to the queue pair from here on.
    pub(super) fn hand_over(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let Some(stream) = conn.stream else { return };
        let given = HandOver { conn: id, agreed: conn.agreed, behind: std::mem::take(&mut conn.front) };
        self.act(stream, Action::HandOver(Box::new(given)));
    }

    /// Whether depths are within their limits.
    pub(super) fn check_depths(&self, parameters: &Parameters) -> Result<(), Error> {
        at_most("responder_resources", parameters.responder_resources, self.config.max_ird.into())?;
        at_most("initiator_depth", parameters.initiator_depth, self.config.max_ord.into())
    }

    /// The stream stands: the request leaves.
    pub fn opened(&mut self, now: Instant, stream: StreamId) {
        let Some(&id) = self.streams.get(&stream) else { return };
        let Some(conn) = self.connections.get_mut(&id).filter(|conn| conn.state == State::Opening) else {
            return;
        };
        let request = std::mem::take(&mut conn.request);
        self.act(stream, Action::Write(request));
        self.set_state(now, id, State::Asking, Some(self.config.timing.reply));
    }

    /// Bytes came where a reply was expected.
    pub(super) fn on_reply_bytes(&mut self, now: Instant, id: ConnId, bytes: &[u8]) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let mut front = std::mem::take(&mut conn.front);
        match fill(Kind::Reply, &mut front, bytes) {
            Ok(None) => conn.front = front,
            Ok(Some(behind)) => match Frame::parse(Kind::Reply, &front).ok().and_then(|p| p.whole()) {
                Some(reply) => self.on_reply(now, id, &reply, behind),
                None => self.bad_reply(id),
            },
            Err(_) => self.bad_reply(id),
        }
    }

    /// A reply is whole. The checks come in siw's order.
    fn on_reply(&mut self, now: Instant, id: ConnId, reply: &Frame<'_>, behind: &[u8]) {
        let Some(conn) = self.connections.get(&id) else { return };
        let (ours, mine, theirs) = (conn.asked, conn.agreed, asked(reply));
        if !is_known(reply.revision) {
            return self.bad_reply(id);
        }
        let rejected = |reason, data: &[u8]| Some(Event::Rejected { reason, private_data: data.to_vec() });
        if reply.rejected {
            return self.end(id, rejected(ECONNRESET, reply.private_data), Some(Close::Gracefully));
        }
        if reply.markers {
            return self.end(id, rejected(ECONNREFUSED, &[]), Some(Close::Reset));
        }
        if ours.enhanced.is_some() && theirs.enhanced.is_none() {
            return self.end(id, rejected(ECONNRESET, &[]), Some(Close::Reset));
        }
        match replied(&self.config, &ours, mine, &theirs) {
            Ok(agreed) => self.first_reply(now, id, agreed, reply.private_data, behind),
            Err(cause) => self.terminate(id, cause, ours, theirs),
        }
    }

    /// A reply that both ends can work with.
    fn first_reply(&mut self, now: Instant, id: ConnId, agreed: Agreed, data: &[u8], behind: &[u8]) {
        if behind.len() > self.config.max_behind {
            return self.bad_reply(id);
        }
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.agreed = agreed;
        conn.front = behind.to_vec();
        self.set_state(now, id, State::Replied, None);
        let parameters = Parameters {
            responder_resources: agreed.ird,
            initiator_depth: agreed.ord,
            ..Parameters::default()
        };
        let reply = Reply { process: NO_PROCESS, parameters, private_data: data.to_vec() };
        self.event(id, Event::Reply(Box::new(reply)));
    }

    /// Bytes came behind the reply, which the queue pair will read.
    pub(super) fn on_bytes_behind(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.front.len() + bytes.len() <= self.config.max_behind {
            return conn.front.extend_from_slice(bytes);
        }
        self.counters.malformed += 1;
        self.end(id, Some(Event::Disconnected { status: 0 }), Some(Close::Reset));
    }

    /// What came is no reply.
    fn bad_reply(&mut self, id: ConnId) {
        self.counters.malformed += 1;
        self.end(id, Some(Event::ConnectError { status: EINVAL }), Some(Close::Reset));
    }

    /// The reply is one, but we cannot work with it: the peer is told by a TERMINATE.
    fn terminate(&mut self, id: ConnId, cause: Cause, ours: Asked, theirs: Asked) {
        if let Some(stream) = self.connections.get(&id).and_then(|conn| conn.stream) {
            self.act(stream, Action::Write(terminate(cause, ours.crc || theirs.crc)));
        }
        self.end(id, Some(Event::ConnectError { status: EINVAL }), Some(Close::Gracefully));
    }
}
