//! Service id resolution (IBA 1.4 §12.11): one question, one answer, for datagram services. An exchange is named by a
//! [`ConnId`] like a connection and shares its tables; its request id is a communication id of the process.

use std::time::Instant;

use wire::mad::{Mad, Message, SidrRep, SidrReq, sidr_status};
use wire::{Guid, Psn, Qkey, Qpn, ServiceId};

use crate::connection::{ReqMark, State};
use crate::params::{ConnId, Error, Event, Origin, Path};
use crate::table::{Addressee, Cm};
use crate::timing::Retry;

/// SIDR messages name no adapter: request ids are told apart by GID alone.
const NO_GUID: Guid = Guid(0);

/// Parameters of [`Cm::sidr_request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrAsk {
    /// Service asked for.
    pub service_id: ServiceId,
    /// The way there.
    pub path: Path,
    /// Private data, all of it: for RDMA IP CM services the header comes first.
    pub private_data: [u8; 216],
}

/// Parameters of [`Cm::sidr_reply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrAnswer {
    /// One of [`sidr_status`].
    pub status: u8,
    /// Queue pair of the service.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// Private data.
    pub private_data: [u8; 136],
}

impl Cm {
    /// Asks for the queue pair of a datagram service: sends SIDR_REQ and repeats it. `SidrReply` or `Unreachable` follows.
    ///
    /// # Errors
    ///
    /// `Full`, `CommIds`: no room.
    pub fn sidr_request(&mut self, now: Instant, ask: &SidrAsk) -> Result<ConnId, Error> {
        let backoff = self.config.timing.request;
        let conn = self.insert(State::SidrSent, ask.path, None)?;
        let message = Message::SidrReq(SidrReq {
            request_id: conn.local,
            pkey: ask.path.pkey,
            service_id: ask.service_id,
            private_data: ask.private_data,
        });
        conn.active = true;
        conn.message = Some(Box::new(Mad { transaction_id: conn.transaction_id, message }));
        conn.retry = Some(Retry::new(now, backoff));
        let id = conn.id;
        self.retransmit(id);
        self.rearm(id);
        Ok(id)
    }

    /// Answers a SIDR request. The exchange is gone for the caller; the answer is remembered for duplicates.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not an unanswered SIDR request.
    pub fn sidr_reply(&mut self, now: Instant, id: ConnId, answer: &SidrAnswer) -> Result<(), Error> {
        let conn = self.connections.get_mut(&id).ok_or(Error::Unknown(id))?;
        if conn.state != State::SidrReceived {
            return Err(Error::State(id, conn.state.name()));
        }
        let message = Message::SidrRep(SidrRep {
            request_id: conn.remote.unwrap_or_default(),
            status: answer.status,
            info_len: 0,
            qpn: answer.qpn,
            service_id: conn.req_mark.map(|mark| ServiceId(mark.service_id)).unwrap_or_default(),
            qkey: answer.qkey,
            info: [0; 72],
            private_data: answer.private_data,
        });
        conn.message = Some(Box::new(Mad { transaction_id: conn.transaction_id, message }));
        self.retransmit(id);
        self.remember_answer(id, State::SidrAnswered, now + self.config.timing.refusal);
        Ok(())
    }

    pub(crate) fn on_sidr_req(&mut self, now: Instant, from: Origin, transaction_id: u64, req: &SidrReq) {
        let mark = ReqMark {
            transaction_id,
            service_id: req.service_id.0,
            qpn: Qpn::default(),
            psn: Psn::default(),
        };
        if let Some(conn) = self.find_remote(NO_GUID, from.source, req.request_id, transaction_id) {
            let (id, state, same) = (conn.id, conn.state, conn.req_mark == Some(mark));
            match state {
                State::SidrAnswered if same => {
                    self.remember_longer(id, now + self.config.timing.refusal);
                    return self.repeat(id);
                }
                State::SidrAnswered => self.remove(id),
                // The consumer is still thinking.
                _ => return,
            }
        }
        // There is no way to say "later": without room the peer asks again.
        if self.pending >= self.config.max_pending_requests {
            return;
        }
        let path = Path { pkey: req.pkey, ..from.path() };
        let Ok(conn) = self.insert(State::SidrReceived, path, Some(transaction_id)) else { return };
        conn.remote = Some(req.request_id);
        conn.remote_guid = NO_GUID;
        conn.req_mark = Some(mark);
        let id = conn.id;
        self.pending += 1;
        self.index_remote(id);
        self.event(id, Event::SidrRequest { request: Box::new(req.clone()), path });
    }

    /// Whoever asks again has not had the answer: it is remembered anew.
    fn remember_longer(&mut self, id: ConnId, until: Instant) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.until = Some(until);
        }
        self.rearm(id);
    }

    pub(crate) fn on_sidr_rep(&mut self, from: Origin, transaction_id: u64, rep: &SidrRep) {
        let Addressee::Is(id) = self.addressee(from, Some(transaction_id), rep.request_id) else { return };
        if self.connections.get(&id).is_none_or(|conn| conn.state != State::SidrSent) {
            return;
        }
        let &SidrRep { status, qpn, qkey, private_data, .. } = rep;
        self.event(id, Event::SidrReply { status, qpn, qkey, private_data });
        self.close(id);
    }

    /// "No" to a request whose consumer went away.
    pub(crate) fn refuse_sidr(&mut self, now: Instant, id: ConnId) {
        let no = SidrAnswer {
            status: sidr_status::REJECTED,
            qpn: Qpn::default(),
            qkey: Qkey::default(),
            private_data: [0; 136],
        };
        // Cannot fail: the caller has looked at the state.
        let _ = self.sidr_reply(now, id, &no);
    }
}
