//! The side that is asked: REQ in, REP, REJ or MRA out, RTU in (IBA 1.4 §12.9.7.2).

use std::time::Instant;

use wire::mad::{Mad, Req, Rtu, reason};

use super::connection::{CmState, Connection, ReqMark};
use super::messages::{path_back, rej_of_req, request, service_id, transport_service};
use super::private_data::data;
use super::table::{Addressee, Cm};
use super::timing::Retry;
use crate::event::{ConnId, Error, Event, at_most};
use crate::mads::Origin;
use crate::parameters::{Accept, Refusal, Service, TransportService};

impl Cm {
    /// Accepts a request: sends REP and repeats it. `Established`, `Rejected` or `Unreachable`
    /// follows.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not an unanswered request. `OutOfRange`: the RNR retry count is above
    /// 7. `PrivateData`: it is too long.
    pub fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<(), Error> {
        let granted = &accept.parameters;
        at_most("rnr_retry_count", granted.rnr_retry_count, 7)?;
        let private_data = data(&accept.private_data)?;
        self.unanswered(id)?;
        self.set_state(id, CmState::RepSent);
        self.unprobe(id);
        let conn = self.connections.get_mut(&id).ok_or(Error::Unknown(id))?;
        conn.local_qpn = granted.qpn;
        conn.holds_qpn = true;
        conn.rq_psn = granted.starting_psn;
        conn.responder_resources = granted.responder_resources;
        conn.initiator_depth = conn.initiator_depth.min(granted.initiator_depth);
        conn.message = Some(Box::new(conn.rep(&self.config, accept, private_data)));
        conn.retry = Some(Retry::new(now, self.config.timing.reply).at_most(conn.max_cm_retries));
        self.retransmit(id);
        self.rearm(id);
        Ok(())
    }

    /// Refuses a request for a connection or for a datagram service, or a reply that does not suit.
    /// The connection is gone for the caller; the refusal of a request is remembered for its
    /// duplicates.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: neither an unanswered request nor a reply. `PrivateData`: it is too
    /// long.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnId,
        why: Refusal,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let conn = self.connections.get(&id).ok_or(Error::Unknown(id))?;
        match conn.state {
            CmState::ReqReceived => {
                let mad = conn.rej(self.config.guid, why.reason(), data(private_data)?);
                self.remember_refusal(now, id, mad);
                Ok(())
            }
            CmState::RepReceived => {
                let mad = conn.rej(self.config.guid, why.reason(), data(private_data)?);
                self.answer(id, mad);
                self.remove(id);
                Ok(())
            }
            CmState::SidrReceived => self.refuse_sidr(now, id, why, private_data),
            state => Err(Error::State(id, state.name())),
        }
    }

    /// Tells the peer that the answer will take its time (MRA); it stops repeating for the service
    /// timeout, code `service_timeout`, 0 to 31. Duplicates of an unanswered message get one
    /// anyway.
    ///
    /// # Errors
    ///
    /// `Unknown`, `State`: nothing is unanswered. `OutOfRange`: the code is above 31.
    pub fn mra(&mut self, _now: Instant, id: ConnId, service_timeout: u8) -> Result<(), Error> {
        at_most("service timeout", service_timeout, 31)?;
        let conn = self.connections.get(&id).ok_or(Error::Unknown(id))?;
        let message = match conn.state {
            CmState::ReqReceived => 0,
            CmState::RepReceived => 1,
            state => return Err(Error::State(id, state.name())),
        };
        let mad = conn.mra(message, service_timeout);
        self.answer(id, mad);
        Ok(())
    }

    /// Whether a request for a connection or for a datagram service still waits for its answer.
    pub fn is_unanswered(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|conn| conn.state.is_unanswered())
    }

    /// The connections that requests for this service began and that are not established yet: these
    /// requests may come again.
    pub fn half_open(&self, service: Service) -> Vec<ConnId> {
        let asked_for = service_id(service).0;
        let is_it = |conn: &&Connection| {
            conn.state.is_half_open() && conn.req_mark.is_some_and(|mark| mark.service_id == asked_for)
        };
        let mut all: Vec<_> =
            self.connections.values().map(|conn| &**conn).filter(is_it).map(|conn| conn.id).collect();
        all.sort_unstable();
        all
    }

    /// Whether a connection that a request began is not established yet.
    pub fn is_half_open(&self, id: ConnId) -> bool {
        self.connections.get(&id).is_some_and(|conn| conn.state.is_half_open())
    }

    /// A REQ has come: one seen before, one that makes an old connection stale, or a new one.
    pub(super) fn on_req(&mut self, now: Instant, from: Origin, transaction_id: u64, req: &Req) {
        let mark = ReqMark {
            transaction_id,
            service_id: req.service_id.0,
            qpn: req.local_qpn,
            psn: req.starting_psn,
        };
        let (guid, peer, remote) = (req.local_ca_guid, from.source, req.local_comm_id);
        if let Some(conn) = self.find_remote(guid, peer, remote, transaction_id) {
            let (id, state) = (conn.id, conn.state);
            if conn.req_mark == Some(mark) {
                return self.duplicate_req(now, from, id, transaction_id, req);
            }
            if state != CmState::Refused {
                // A peer that numbers transactions in turn has forgotten this one, by a restart.
                self.refuse_req(from, transaction_id, req, reason::STALE_CONNECTION);
                return self.check_stale(now, id);
            }
            self.remove(id);
        }
        let Some(service) = transport_service(req) else {
            return self.refuse_req(from, transaction_id, req, reason::INVALID_TRANSPORT_SERVICE);
        };
        if let Some(old) = self.find_connected(guid, peer, remote, req.local_qpn) {
            // §12.9.8.3.1: the peer has forgotten the old connection, if this is the peer. An id
            // used anew is as stale as its queue pair would be.
            self.refuse_req(from, transaction_id, req, reason::STALE_CONNECTION);
            return self.check_stale(now, old);
        }
        self.new_req(now, from, mark, service, req);
    }

    /// A REQ that begins a connection.
    fn new_req(&mut self, now: Instant, from: Origin, mark: ReqMark, service: TransportService, req: &Req) {
        let transaction_id = mark.transaction_id;
        if self.pending >= self.config.max_pending_requests {
            return self.refuse_req(from, transaction_id, req, reason::NO_RESOURCES);
        }
        let path = path_back(from, req);
        let Ok(conn) = self.insert(CmState::ReqReceived, path, Some(transaction_id)) else {
            return self.refuse_req(from, transaction_id, req, reason::NO_RESOURCES);
        };
        conn.remote = Some(req.local_comm_id);
        conn.remote_guid = req.local_ca_guid;
        conn.remote_qpn = req.local_qpn;
        conn.xrc = service == TransportService::Xrc;
        conn.max_cm_retries = req.max_cm_retries;
        conn.req_mark = Some(mark);
        conn.sq_psn = req.starting_psn;
        conn.responder_resources = req.initiator_depth;
        conn.initiator_depth = req.responder_resources;
        conn.local_ack_timeout = req.primary.local_ack_timeout;
        conn.retry_count = req.retry_count;
        conn.rnr_retry_count = req.rnr_retry_count;
        let id = conn.id;
        self.pending += 1;
        self.addresses.asked(from.source);
        self.index_remote(id);
        self.probe_from(now, id);
        match request(req, path, service, (self.config.process_of)(req.local_comm_id)) {
            Some(request) => self.event(id, Event::Request(Box::new(request))),
            None => {
                // Cannot fail: it has just come.
                _ = self.reject(now, id, Refusal::InvalidService, &[]);
            }
        }
    }

    pub(super) fn on_rtu(&mut self, now: Instant, from: Origin, transaction_id: u64, rtu: &Rtu) {
        let (ours, theirs) = (rtu.remote_comm_id, rtu.local_comm_id);
        let Addressee::Is(id) = self.addressee_of(from, Some(transaction_id), ours, theirs) else { return };
        self.heard(now, id);
        if self.connections.get(&id).is_some_and(|conn| conn.state == CmState::RepSent) {
            self.passive_established(now, id);
        }
    }

    /// RTU, or data, has come.
    pub(super) fn passive_established(&mut self, now: Instant, id: ConnId) {
        self.set_state(id, CmState::Established);
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.retry = None;
            conn.message = None;
            let peer = conn.path.dest();
            self.addresses.confirm(peer);
        }
        self.claim(now, id);
        self.probe_from(now, id);
        self.rearm(id);
        self.event(id, Event::Established);
    }

    /// Sends a REJ of a request and remembers it.
    pub(super) fn remember_refusal(&mut self, now: Instant, id: ConnId, mad: Mad) {
        self.answer(id, mad.clone());
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.message = Some(Box::new(mad));
        }
        self.remember_answer(id, CmState::Refused, now + self.config.timing.refusal);
    }

    /// A REQ that has been seen gets what it got the first time (§12.9.8.3.2).
    fn duplicate_req(&mut self, now: Instant, from: Origin, id: ConnId, transaction_id: u64, req: &Req) {
        self.addresses.asked(from.source);
        self.heard(now, id);
        let Some(conn) = self.connections.get(&id) else { return };
        match conn.state {
            CmState::ReqReceived => {
                let mra = conn.mra(0, self.config.timing.mra_service_timeout);
                self.probe_from(now, id);
                self.answer(id, mra);
            }
            CmState::RepSent | CmState::Refused => self.repeat(id),
            // The connection ended before the peer saw our REP; a peer that did see it takes no
            // notice.
            CmState::TimeWait => self.refuse_req(from, transaction_id, req, reason::STALE_CONNECTION),
            // The peer has had our REP: an old packet.
            _ => {}
        }
    }

    /// Refuses a REQ that makes no connection here.
    fn refuse_req(&mut self, from: Origin, transaction_id: u64, req: &Req, why: u16) {
        self.answer_stateless(from, Mad { transaction_id, message: rej_of_req(req, why) });
    }

    fn unanswered(&self, id: ConnId) -> Result<(), Error> {
        match self.connections.get(&id).ok_or(Error::Unknown(id))?.state {
            CmState::ReqReceived => Ok(()),
            state => Err(Error::State(id, state.name())),
        }
    }
}
