//! MPA as a node calls it ([`crate::Cm`]), and its end of the streams ([`Streams`]).

use std::time::Instant;

use wire::Address;
use wire::iwarp::mpa::MAX_ENHANCED_PRIVATE_DATA;

use super::config::Config;
use super::table::Cm;
use crate::event::{ConnId, Error};
use crate::parameters::{Accept, Connect, QpAttributes, Refusal, Service};
use crate::protocol::{Output, PrivateData, Setup};
use crate::streams::{Accepted, StreamCounters, StreamId, Streams};

/// Room for the program's private data in enhanced frames. Those of revision 1 have 4 bytes more.
pub(crate) const PRIVATE_DATA: PrivateData = PrivateData {
    request: MAX_ENHANCED_PRIVATE_DATA,
    reply: MAX_ENHANCED_PRIVATE_DATA,
    rejection: MAX_ENHANCED_PRIVATE_DATA,
    question: 0,
    answer: 0,
};

/// A connection manager without connections. MPA has no use for GUIDs, ids and random numbers: a
/// stream says which connection it is.
pub(crate) fn start(setup: Setup) -> Cm {
    let Setup { crc, max_pending_requests, .. } = setup;
    Cm::new(Config { crc, max_pending_requests, ..Config::default() })
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
    fn reject(&mut self, _now: Instant, id: ConnId, why: Refusal, private_data: &[u8]) -> Result<(), Error> {
        Self::reject(self, id, why, private_data)
    }
    fn disconnect(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        Self::disconnect(self, now, id)
    }
    fn destroy(&mut self, _now: Instant, id: ConnId) {
        Self::destroy(self, id);
    }
    fn leave(&mut self, _now: Instant) {
        Self::leave(self);
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
    /// None: no message tells a process, and the end of a stream tells the end of one.
    fn with_peer(&self, _is_it: &dyn Fn(u32, Address) -> bool) -> Vec<ConnId> {
        Vec::new()
    }
    fn end_of_peer(&mut self, _now: Instant, id: ConnId) {
        Self::end_of_peer(self, id);
    }
    /// Nothing: TCP hears of ICMP errors itself.
    fn process_unreachable(&mut self, _now: Instant, _peer: Address, _process: u32) {}
    fn poll(&mut self) -> Option<Output> {
        Self::poll(self)
    }
    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }
    fn expire(&mut self, now: Instant) {
        Self::expire(self, now);
    }
    fn streams(&mut self) -> Option<&mut dyn Streams> {
        Some(self)
    }
}

impl Streams for Cm {
    fn accepted(&mut self, now: Instant, accepted: &Accepted) -> StreamId {
        Self::accepted(self, now, accepted)
    }
    fn opened(&mut self, now: Instant, stream: StreamId) {
        Self::opened(self, now, stream);
    }
    fn received(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        Self::received(self, now, stream, bytes);
    }
    fn ended(&mut self, _now: Instant, stream: StreamId) {
        Self::ended(self, stream);
    }
    fn lost(&mut self, _now: Instant, stream: StreamId, errno: i32) {
        Self::lost(self, stream, errno);
    }
    fn counters(&self) -> StreamCounters {
        Self::counters(self)
    }
}
