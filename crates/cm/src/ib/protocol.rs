//! The InfiniBand connection manager as a node calls it ([`crate::Cm`]), and its end of QP1
//! ([`Mads`]).

use std::time::Instant;

use wire::mad::{Mad, Message};
use wire::{Address, CommId};

use super::config::Config;
use super::table::Cm;
use crate::event::{ConnId, Error};
use crate::mads::{Mads, Origin};
use crate::parameters::{Accept, Connect, QpAttributes, Refusal, Service, SidrAnswer, SidrAsk};
use crate::protocol::{Output, PrivateData, Setup};
use wire::mad::{REJ_DATA, REP_DATA, REQ_DATA, SIDR_REP_DATA, SIDR_REQ_DATA};

/// Room for the program's private data in the messages.
pub(crate) const PRIVATE_DATA: PrivateData = PrivateData {
    request: REQ_DATA,
    reply: REP_DATA,
    rejection: REJ_DATA,
    question: SIDR_REQ_DATA,
    answer: SIDR_REP_DATA,
};

/// A connection manager without connections.
pub(crate) fn start(setup: Setup) -> Cm {
    let Setup { guid, timing, max_pending_requests, is_kin, process_of, comm_ids, random, .. } = setup;
    let config = Config { timing, max_pending_requests, is_kin, process_of, ..Config::new(guid) };
    Cm::new(config, comm_ids, random)
}

impl crate::Cm for Cm {
    fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, Error> {
        Self::connect(self, now, connect)
    }
    fn give_up_at(&mut self, id: ConnId, at: Instant) {
        Self::give_up_at(self, id, at);
    }
    fn established(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        Self::established(self, now, id)
    }
    fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<(), Error> {
        Self::accept(self, now, id, accept)
    }
    fn reject(&mut self, now: Instant, id: ConnId, why: Refusal, private_data: &[u8]) -> Result<(), Error> {
        Self::reject(self, now, id, why, private_data)
    }
    fn disconnect(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        Self::disconnect(self, now, id)
    }
    fn destroy(&mut self, now: Instant, id: ConnId) {
        Self::destroy(self, now, id);
    }
    fn leave(&mut self, now: Instant) {
        Self::leave(self, now);
    }
    fn sidr_request(&mut self, now: Instant, ask: &SidrAsk) -> Result<ConnId, Error> {
        Self::sidr_request(self, now, ask)
    }
    fn sidr_reply(&mut self, now: Instant, id: ConnId, answer: &SidrAnswer) -> Result<(), Error> {
        Self::sidr_reply(self, now, id, answer)
    }
    fn is_unanswered(&self, id: ConnId) -> bool {
        Self::is_unanswered(self, id)
    }
    fn half_open(&self, service: Service) -> Vec<ConnId> {
        Self::half_open(self, service)
    }
    fn is_half_open(&self, id: ConnId) -> bool {
        Self::is_half_open(self, id)
    }
    fn qp_attr(&self, id: ConnId) -> Option<QpAttributes> {
        Self::qp_attr(self, id)
    }
    fn requested_qp_attr(&self, id: ConnId) -> Option<QpAttributes> {
        Self::requested_qp_attr(self, id)
    }
    fn connections(&self) -> usize {
        self.len()
    }
    fn with_peer(&self, is_it: &dyn Fn(u32, Address) -> bool) -> Vec<ConnId> {
        let process_of = self.config.process_of;
        Self::with_peer(self, |remote, peer| remote.is_some_and(|id| is_it(process_of(id), peer)))
    }
    fn end_of_peer(&mut self, now: Instant, id: ConnId) {
        Self::end_of_peer(self, now, id);
    }
    fn process_unreachable(&mut self, now: Instant, peer: Address, process: u32) {
        Self::process_unreachable(self, now, peer, process);
    }
    fn poll(&mut self) -> Option<Output> {
        Self::poll(self)
    }
    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }
    fn expire(&mut self, now: Instant) {
        Self::expire(self, now);
    }
    fn mads(&mut self) -> Option<&mut dyn Mads> {
        Some(self)
    }
}

impl Mads for Cm {
    fn input(&mut self, now: Instant, from: Origin, mad: &Mad) {
        Self::input(self, now, from, mad);
    }
    fn has_asked(&self, from: Origin, request: &Mad) -> bool {
        Self::has_asked(self, from, request)
    }
    fn ended_by(&self, from: Origin, mad: &Mad) -> Option<ConnId> {
        let Message::Dreq(dreq) = &mad.message else { return None };
        Self::ended_by(self, from, mad.transaction_id, dreq)
    }
    fn peer_unreachable(&mut self, now: Instant, peer: Address, ours: CommId) {
        Self::peer_unreachable(self, now, peer, Some(ours));
    }
    fn unmatched(&self) -> u64 {
        Self::unmatched(self)
    }
}
