//! Service id resolution (IBA 1.4 §12.11): one question, one answer, for datagram services. An
//! exchange is named by a [`ConnId`] like a connection and shares its tables; its request id is a
//! communication id of the process.

use std::time::Instant;

use wire::mad::{SidrRep, SidrReq, sidr_status};
use wire::{Guid, Psn, Qkey, Qpn};

use super::connection::{CmState, ReqMark};
use super::messages::sidr_request;
use super::private_data::{data, data_with_header, ips_of};
use super::table::{Addressee, Cm};
use super::timing::Retry;
use crate::event::{ConnId, Error, Event};
use crate::mads::Origin;
use crate::parameters::{PathRecord, Refusal, SidrAnswer, SidrAsk};

/// SIDR messages name no adapter: request ids are told apart by GID alone.
pub(super) const NO_GUID: Guid = Guid(0);

impl Cm {
    /// Asks for the queue pair of a datagram service: sends SIDR_REQ and repeats it. `SidrReply` or
    /// `Unreachable` follows.
    ///
    /// # Errors
    ///
    /// `PrivateData`: it is too long. `Full`, `CommIds`: no room.
    pub fn sidr_request(&mut self, now: Instant, ask: &SidrAsk) -> Result<ConnId, Error> {
        let private_data = data_with_header(&ask.path, ask.source_port, &ask.private_data)?;
        let backoff = self.config.timing.request;
        let conn = self.insert(CmState::SidrSent, ask.path, None)?;
        conn.active = true;
        conn.message = Some(Box::new(conn.sidr_req(ask, private_data)));
        conn.retry = Some(Retry::new(now, backoff));
        let id = conn.id;
        self.retransmit(id);
        self.rearm(id);
        Ok(id)
    }

    /// Answers a SIDR request with the queue pair that serves; [`Cm::reject`] says no. The exchange
    /// is gone for the caller; the answer is remembered for duplicates.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not an unanswered SIDR request. `PrivateData`: it is too long.
    pub fn sidr_reply(&mut self, now: Instant, id: ConnId, answer: &SidrAnswer) -> Result<(), Error> {
        self.answer_sidr(now, id, sidr_status::VALID, answer)
    }

    /// "No" to a request.
    pub(super) fn refuse_sidr(
        &mut self,
        now: Instant,
        id: ConnId,
        why: Refusal,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let (qpn, qkey) = (Qpn::default(), Qkey::default());
        let answer = SidrAnswer { qpn, qkey, private_data: private_data.to_vec() };
        self.answer_sidr(now, id, why.status(), &answer)
    }

    fn answer_sidr(
        &mut self,
        now: Instant,
        id: ConnId,
        status: u8,
        answer: &SidrAnswer,
    ) -> Result<(), Error> {
        let conn = self.connections.get_mut(&id).ok_or(Error::Unknown(id))?;
        if conn.state != CmState::SidrReceived {
            return Err(Error::State(id, conn.state.name()));
        }
        conn.message = Some(Box::new(conn.sidr_rep(status, answer, data(&answer.private_data)?)));
        self.retransmit(id);
        self.remember_answer(id, CmState::SidrAnswered, now + self.config.timing.refusal);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, now: Instant, from: Origin, transaction_id: u64, req: &SidrReq) {
        let mark = ReqMark {
            transaction_id,
            service_id: req.service_id.0,
            qpn: Qpn::default(),
            psn: Psn::default(),
        };
        if let Some(conn) = self.find_remote(NO_GUID, from.source, req.request_id, transaction_id) {
            let (id, state, same) = (conn.id, conn.state, conn.req_mark == Some(mark));
            match state {
                CmState::SidrAnswered if same => {
                    self.remember_longer(id, now + self.config.timing.refusal);
                    return self.repeat(id);
                }
                CmState::SidrAnswered => self.remove(id),
                // The consumer is still thinking.
                _ => return,
            }
        }
        // There is no way to say "later": without room the peer asks again.
        if self.pending >= self.config.max_pending_requests {
            return;
        }
        let way = from.path();
        let path = PathRecord { pkey: req.pkey, ips: ips_of(&way, &req.private_data), ..way };
        let Ok(conn) = self.insert(CmState::SidrReceived, path, Some(transaction_id)) else { return };
        conn.remote = Some(req.request_id);
        conn.remote_guid = NO_GUID;
        conn.req_mark = Some(mark);
        let id = conn.id;
        self.pending += 1;
        self.index_remote(id);
        match sidr_request(req, path, (self.config.process_of)(req.request_id)) {
            Some(request) => self.event(id, Event::SidrRequest(Box::new(request))),
            None => {
                // Cannot fail: it has just come.
                _ = self.refuse_sidr(now, id, Refusal::InvalidService, &[]);
            }
        }
    }

    /// A peer that asks again has not had the answer: it is remembered anew.
    fn remember_longer(&mut self, id: ConnId, until: Instant) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.until = Some(until);
        }
        self.rearm(id);
    }

    pub(super) fn on_sidr_rep(&mut self, from: Origin, transaction_id: u64, rep: &SidrRep) {
        let Addressee::Is(id) = self.addressee(from, Some(transaction_id), rep.request_id) else { return };
        if self.connections.get(&id).is_none_or(|conn| conn.state != CmState::SidrSent) {
            return;
        }
        let &SidrRep { status, qpn, qkey, .. } = rep;
        self.event(id, Event::SidrReply { status, qpn, qkey, private_data: rep.private_data.to_vec() });
        self.close(id);
    }
}
