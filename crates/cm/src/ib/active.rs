//! The side that connects: REQ out, REP, MRA in, RTU out (IBA 1.4 §12.9.7.1).

use std::time::Instant;

use wire::mad::{Lap, Mad, Mra, Rep, apr_status, reason};
use wire::{CommId, Gid};

use super::connection::CmState;
use super::messages::{REJECTS_OTHER, REJECTS_REP, answering_qpn, apr, rej, reply};
use super::private_data::data_with_header;
use super::table::{Addressee, Cm};
use super::timing::{Retry, local_ack_timeout, timeout};
use crate::event::{ConnId, Error, Event, at_most};
use crate::mads::Origin;
use crate::parameters::{Connect, TransportService};

impl Cm {
    /// Asks for a connection: sends REQ and repeats it. `Reply`, `Rejected` or `Unreachable`
    /// follows.
    ///
    /// # Errors
    ///
    /// `OutOfRange`: a field is wider than its bits on the wire. `Gid`: the path has none.
    /// `PrivateData`: it is too long. `Full`, `CommIds`: no room.
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, Error> {
        check(connect)?;
        let private_data = data_with_header(&connect.path, connect.source_port, &connect.private_data)?;
        let config = self.config.clone();
        let asked = &connect.parameters;
        let conn = self.insert(CmState::ReqSent, connect.path, None)?;
        conn.active = true;
        conn.xrc = connect.transport_service == TransportService::Xrc;
        conn.local_qpn = asked.qpn;
        conn.holds_qpn = true;
        conn.rq_psn = asked.starting_psn;
        conn.responder_resources = asked.responder_resources;
        conn.initiator_depth = asked.initiator_depth;
        conn.retry_count = asked.retry_count;
        conn.local_ack_timeout = local_ack_timeout(connect.path.packet_life_time, config.ack_delay);
        conn.message = Some(Box::new(conn.req(&config, connect, private_data)));
        conn.retry = Some(Retry::new(now, config.timing.request));
        let id = conn.id;
        self.retransmit(id);
        self.rearm(id);
        Ok(id)
    }

    /// The consumer waits for the answer to its request until `at` and no longer: `Unreachable`
    /// follows then, even where the peer has asked for more time. Harmless once the answer has
    /// come.
    pub fn give_up_at(&mut self, id: ConnId, at: Instant) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if matches!(conn.state, CmState::ReqSent | CmState::SidrSent)
            && let Some(retry) = &mut conn.retry
        {
            retry.give_up_at(at);
            self.rearm(id);
        }
    }

    /// The consumer's side of the handshake is done. After `Reply`: sends RTU. After accept: data
    /// has arrived on the queue pair, which says as much as an RTU that may be lost (§12.10.6,
    /// "communication established"); `Established` follows. Harmless when the connection is
    /// established already or past it.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State` before there is a REP.
    pub fn established(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        let conn = self.connections.get(&id).ok_or(Error::Unknown(id))?;
        match conn.state {
            CmState::RepReceived => {
                let rtu = conn.rtu();
                self.set_state(id, CmState::Established);
                self.answer(id, rtu);
                Ok(())
            }
            CmState::RepSent => {
                self.passive_established(now, id);
                Ok(())
            }
            CmState::Established | CmState::DreqSent | CmState::TimeWait | CmState::Closed => Ok(()),
            state => Err(Error::State(id, state.name())),
        }
    }

    pub(super) fn on_rep(&mut self, now: Instant, from: Origin, transaction_id: u64, rep: &Rep) {
        let id = match self.addressee(from, Some(transaction_id), rep.remote_comm_id) {
            Addressee::Is(id) => id,
            Addressee::Nobody => return self.reject_rep(from, transaction_id, rep, reason::INVALID_COMM_ID),
            Addressee::Other => return,
        };
        self.heard(now, id);
        let Some(conn) = self.connections.get(&id) else { return };
        if conn.active && conn.state == CmState::ReqSent {
            return self.first_rep(now, from, id, transaction_id, rep);
        }
        if !conn.active || conn.remote != Some(rep.local_comm_id) {
            // A second answer to one REQ, from another sender.
            return self.reject_rep(from, transaction_id, rep, reason::INVALID_COMM_INSTANCE);
        }
        match conn.state {
            CmState::RepReceived => {
                let mra = conn.mra(REJECTS_REP, self.config.timing.mra_service_timeout);
                self.answer(id, mra);
            }
            CmState::Established => {
                let rtu = conn.rtu();
                self.answer(id, rtu);
            }
            // The peer has seen neither RTU nor DREQ: what it needs now is the DREQ.
            CmState::DreqSent => self.repeat(id),
            CmState::TimeWait => {
                let dreq = conn.dreq();
                self.answer(id, dreq);
            }
            _ => {}
        }
    }

    pub(super) fn on_mra(&mut self, now: Instant, from: Origin, transaction_id: u64, mra: &Mra) {
        let max = self.config.timing.max_cm_retries;
        let id = match self.addressee(from, Some(transaction_id), mra.remote_comm_id) {
            Addressee::Is(id) => id,
            Addressee::Nobody => {
                let (ours, theirs) = (mra.remote_comm_id, mra.local_comm_id);
                let message = rej(ours, theirs, REJECTS_OTHER, reason::INVALID_COMM_ID, &[], [0; 148]);
                return self.answer_stateless(from, Mad { transaction_id, message });
            }
            Addressee::Other => return,
        };
        self.heard(now, id);
        let Some(conn) = self.connections.get(&id) else { return };
        let fits = match conn.state {
            CmState::ReqSent => mra.message == 0,
            CmState::RepSent => mra.message == REJECTS_REP && conn.remote == Some(mra.local_comm_id),
            _ => false,
        };
        let wait = timeout(mra.service_timeout) + timeout(conn.path.packet_life_time);
        if let Some(conn) = self.connections.get_mut(&id)
            && let Some(retry) = &mut conn.retry
            && fits
        {
            retry.extend(now, wait, max);
            if conn.state == CmState::ReqSent && mra.local_comm_id != CommId(0) {
                conn.remote_hint = Some(mra.local_comm_id);
            }
            self.rearm(id);
        }
    }

    /// RoCE has no alternate paths (annex A16); the standard wants an answer all the same
    /// (§12.9.7.2).
    pub(super) fn on_lap(&mut self, now: Instant, from: Origin, transaction_id: u64, lap: &Lap) {
        let (ours, theirs) = (lap.remote_comm_id, lap.local_comm_id);
        let status = match self.addressee_of(from, None, ours, theirs) {
            Addressee::Is(id) if self.knows_transaction(id, transaction_id) => {
                self.heard(now, id);
                apr_status::UNSUPPORTED
            }
            Addressee::Nobody => apr_status::INVALID_COMM_ID,
            Addressee::Is(_) => return self.count_unmatched(),
            Addressee::Other => return,
        };
        self.answer_stateless(from, apr(transaction_id, lap, status));
    }

    /// The first REP.
    fn first_rep(&mut self, now: Instant, from: Origin, id: ConnId, transaction_id: u64, rep: &Rep) {
        let xrc = self.connections.get(&id).is_some_and(|conn| conn.xrc);
        let theirs = answering_qpn(rep, xrc);
        let stale = self.find_connected(rep.local_ca_guid, from.source, rep.local_comm_id, theirs);
        if let Some(old) = stale {
            // §12.9.8.3.1: the peer's queue pair cannot be connected twice. A REP can name any
            // peer's, though.
            self.reject_rep(from, transaction_id, rep, reason::STALE_CONNECTION);
            self.check_stale(now, old);
            self.rejected(id, reason::STALE_CONNECTION);
            return self.close(id);
        }
        self.set_state(id, CmState::RepReceived);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.remote = Some(rep.local_comm_id);
        conn.remote_guid = rep.local_ca_guid;
        conn.remote_qpn = theirs;
        conn.sq_psn = rep.starting_psn;
        conn.rnr_retry_count = rep.rnr_retry_count;
        conn.initiator_depth = conn.initiator_depth.min(rep.responder_resources);
        conn.responder_resources = conn.responder_resources.min(rep.initiator_depth);
        conn.local_ack_timeout = local_ack_timeout(conn.path.packet_life_time, rep.target_ack_delay);
        conn.retry = None;
        conn.message = None;
        self.index_remote(id);
        self.claim(now, id);
        self.probe_from(now, id);
        self.rearm(id);
        let process = (self.config.process_of)(rep.local_comm_id);
        self.event(id, Event::Reply(Box::new(reply(rep, xrc, process))));
    }

    fn reject_rep(&mut self, from: Origin, transaction_id: u64, rep: &Rep, why: u16) {
        let message = rej(rep.remote_comm_id, rep.local_comm_id, REJECTS_REP, why, &[], [0; 148]);
        self.answer_stateless(from, Mad { transaction_id, message });
    }
}

fn check(connect: &Connect) -> Result<(), Error> {
    let (path, parameters) = (&connect.path, &connect.parameters);
    at_most("retry_count", parameters.retry_count, 7)?;
    at_most("rnr_retry_count", parameters.rnr_retry_count, 7)?;
    at_most("flow_label", path.flow_label, (1 << 20) - 1)?;
    at_most("service level", path.service_level, 15)?;
    at_most("packet rate", path.packet_rate, 63)?;
    at_most("packet life time", path.packet_life_time, 31)?;
    let (from, to) = (path.local_gid, path.remote_gid);
    if from == Gid::default() || to == Gid::default() {
        return Err(Error::Gid { from, to });
    }
    Ok(())
}
