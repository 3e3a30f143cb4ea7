//! The side that is asked: REQ in, REP, REJ or MRA out, RTU in (IBA 1.4 §12.9.7.2).

use std::time::Instant;

use wire::mad::{Mad, Message, Rep, Req, Rtu, reason};
use wire::{CommId, Qpn};

use crate::connection::{REJECTS_REQ, ReqMark, State, rej};
use crate::params::{Accept, ConnId, Error, Event, Origin, Path, Request, TransportService};
use crate::table::{Addressee, Cm};
use crate::timing::Retry;

impl Cm {
    /// Accepts a request: sends REP and repeats it. `Established`, `Rejected` or `Unreachable` follows.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not an unanswered request. `Parameter`: the RNR retry count is above 7.
    pub fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<(), Error> {
        if accept.rnr_retry_count > 7 {
            return Err(Error::Parameter("RNR retry count"));
        }
        self.unanswered(id)?;
        let (guid, ack_delay) = (self.config.guid, self.config.ack_delay);
        self.set_state(id, State::RepSent);
        self.unprobe(id);
        let conn = self.connections.get_mut(&id).ok_or(Error::Unknown(id))?;
        conn.local_qpn = accept.qpn;
        conn.holds_qpn = true;
        conn.rq_psn = accept.starting_psn;
        conn.responder_resources = accept.responder_resources;
        conn.initiator_depth = conn.initiator_depth.min(accept.initiator_depth);
        // Where it stands in the REP: see `answering_qpn`.
        let (qpn, eecn) = if conn.xrc { (Qpn::default(), accept.qpn.get()) } else { (accept.qpn, 0) };
        let message = Message::Rep(Rep {
            local_comm_id: conn.local,
            remote_comm_id: conn.remote.unwrap_or_default(),
            ece: accept.ece,
            local_qkey: accept.qkey,
            local_qpn: qpn,
            local_eecn: eecn,
            starting_psn: accept.starting_psn,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            target_ack_delay: ack_delay.min(31),
            failover: 0,
            flow_control: accept.flow_control,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq || conn.xrc,
            local_ca_guid: guid,
            private_data: accept.private_data,
        });
        conn.message = Some(Box::new(Mad { transaction_id: conn.transaction_id, message }));
        conn.retry = Some(Retry::new(now, self.config.timing.reply).at_most(conn.max_cm_retries));
        self.retransmit(id);
        self.rearm(id);
        Ok(())
    }

    /// Refuses a request, or a reply that does not suit. The connection is gone for the caller; the refusal of a request is
    /// remembered for its duplicates.
    ///
    /// `why` is one of [`reason`]; of `info` up to 72 bytes go out.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: neither an unanswered request nor a reply.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnId,
        why: u16,
        info: &[u8],
        private_data: [u8; 148],
    ) -> Result<(), Error> {
        let conn = self.connections.get(&id).ok_or(Error::Unknown(id))?;
        let mad = conn.rej(self.config.guid, why, info, private_data);
        match conn.state {
            State::ReqReceived => {
                self.remember_refusal(now, id, mad);
                Ok(())
            }
            State::RepReceived => {
                self.answer(id, mad);
                self.remove(id);
                Ok(())
            }
            state => Err(Error::State(id, state.name())),
        }
    }

    /// Tells the peer that the answer will take its time (MRA); it stops repeating for the service timeout, code
    /// `service_timeout`, 0 to 31. Duplicates of an unanswered message get one anyway.
    ///
    /// # Errors
    ///
    /// `Unknown`, `State`: nothing is unanswered. `Parameter`: the code is above 31.
    pub fn mra(&mut self, _now: Instant, id: ConnId, service_timeout: u8) -> Result<(), Error> {
        if service_timeout > 31 {
            return Err(Error::Parameter("service timeout"));
        }
        let conn = self.connections.get(&id).ok_or(Error::Unknown(id))?;
        let message = match conn.state {
            State::ReqReceived => 0,
            State::RepReceived => 1,
            state => return Err(Error::State(id, state.name())),
        };
        let mad = conn.mra(message, service_timeout);
        self.answer(id, mad);
        Ok(())
    }

    pub(crate) fn on_req(&mut self, now: Instant, from: Origin, transaction_id: u64, req: &Req) {
        let mark = ReqMark {
            transaction_id,
            service_id: req.service_id.0,
            qpn: req.local_qpn,
            psn: req.starting_psn,
        };
        let (guid, gid, remote) = (req.local_ca_guid, from.source, req.local_comm_id);
        if let Some(conn) = self.find_remote(guid, gid, remote, transaction_id) {
            let (id, state) = (conn.id, conn.state);
            if conn.req_mark == Some(mark) {
                return self.duplicate_req(now, from, id, transaction_id, req);
            }
            if state != State::Refused {
                // Who numbers transactions in turn has forgotten this one, by a restart.
                self.refuse_req(from, transaction_id, req, reason::STALE_CONNECTION);
                return self.doubt(now, id);
            }
            self.remove(id);
        }
        let Some(service) = TransportService::from_codes(req.transport_service, req.extended_transport)
        else {
            return self.refuse_req(from, transaction_id, req, reason::INVALID_TRANSPORT_SERVICE);
        };
        if let Some(old) = self.find_connected(guid, gid, remote, req.local_qpn) {
            // §12.9.8.3.1: the peer has forgotten the old connection, if this is the peer. An id used anew is as stale as its
            // queue pair would be.
            self.refuse_req(from, transaction_id, req, reason::STALE_CONNECTION);
            return self.doubt(now, old);
        }
        if self.pending >= self.config.max_pending_requests {
            return self.refuse_req(from, transaction_id, req, reason::NO_RESOURCES);
        }
        let path = path_of(from, req);
        let Ok(conn) = self.insert(State::ReqReceived, path, Some(transaction_id)) else {
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
        self.addresses.asked(gid);
        self.index_remote(id);
        self.probe_from(now, id);
        let request = Request {
            req: req.clone(),
            path,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
        };
        self.event(id, Event::Request(Box::new(request)));
    }

    pub(crate) fn on_rtu(&mut self, now: Instant, from: Origin, transaction_id: u64, rtu: &Rtu) {
        let (ours, theirs) = (rtu.remote_comm_id, rtu.local_comm_id);
        let Addressee::Is(id) = self.addressee_of(from, Some(transaction_id), ours, theirs) else { return };
        self.heard(now, id);
        if self.connections.get(&id).is_some_and(|conn| conn.state == State::RepSent) {
            self.passive_established(now, id);
        }
    }

    /// RTU, or data, has come.
    pub(crate) fn passive_established(&mut self, now: Instant, id: ConnId) {
        self.set_state(id, State::Established);
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.retry = None;
            conn.message = None;
            let gid = conn.path.remote_gid;
            self.addresses.confirm(gid);
        }
        self.claim(now, id);
        self.probe_from(now, id);
        self.rearm(id);
        self.event(id, Event::Established);
    }

    /// Sends a REJ of a request and remembers it.
    pub(crate) fn remember_refusal(&mut self, now: Instant, id: ConnId, mad: Mad) {
        self.answer(id, mad.clone());
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.message = Some(Box::new(mad));
        }
        self.remember_answer(id, State::Refused, now + self.config.timing.refusal);
    }

    /// A REQ that has been seen gets what it got the first time (§12.9.8.3.2).
    fn duplicate_req(&mut self, now: Instant, from: Origin, id: ConnId, transaction_id: u64, req: &Req) {
        self.addresses.asked(from.source);
        self.heard(now, id);
        let Some(conn) = self.connections.get(&id) else { return };
        match conn.state {
            State::ReqReceived => {
                let mra = conn.mra(0, self.config.timing.mra_service_timeout);
                self.probe_from(now, id);
                self.answer(id, mra);
            }
            State::RepSent | State::Refused => self.repeat(id),
            // The connection ended before the peer saw our REP; a peer that did see it takes no notice.
            State::TimeWait => self.refuse_req(from, transaction_id, req, reason::STALE_CONNECTION),
            // The peer has had our REP: an old packet.
            _ => {}
        }
    }

    /// Refuses a REQ that makes no connection here.
    fn refuse_req(&mut self, from: Origin, transaction_id: u64, req: &Req, why: u16) {
        let message = rej(CommId(0), req.local_comm_id, REJECTS_REQ, why, &[], [0; 148]);
        self.answer_stateless(from, Mad { transaction_id, message });
    }

    fn unanswered(&self, id: ConnId) -> Result<(), Error> {
        match self.connections.get(&id).ok_or(Error::Unknown(id))?.state {
            State::ReqReceived => Ok(()),
            state => Err(Error::State(id, state.name())),
        }
    }
}

/// The way back to where a REQ came from. Addresses are the packet's: a REQ cannot point us at somebody else.
fn path_of(from: Origin, req: &Req) -> Path {
    Path {
        local_gid: from.dest,
        remote_gid: from.source,
        link: from.link,
        mtu: req.path_mtu,
        traffic_class: req.primary.traffic_class,
        flow_label: req.primary.flow_label,
        hop_limit: if req.primary.hop_limit == 0 { 64 } else { req.primary.hop_limit },
        service_level: req.primary.service_level,
        packet_rate: req.primary.packet_rate,
        packet_life_time: req.primary.local_ack_timeout.saturating_sub(1),
        pkey: req.pkey,
    }
}
