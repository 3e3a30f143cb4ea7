//! What others may see of a queue pair's engine: its PSNs, what is under way, how often requests
//! were sent again, and why it failed. Nothing here changes it.

use wire::Psn;
use wire::bth::NakCode;

use super::Rc;
use crate::op::Status;

/// Why a queue pair went to the error state by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The oldest request completed with this status.
    Request(Status),
    /// A request of the peer was refused with this NAK.
    Refused(NakCode),
}

/// How often a requester sent again what it had sent. Each counter goes round at 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recoveries {
    /// Times that all was sent again from the oldest PSN that was not acknowledged.
    pub retransmissions: u32,
    /// Local ACK timeouts.
    pub timeouts: u32,
    /// RNR NAKs obeyed.
    pub rnr_naks: u32,
    /// NAKs for a PSN sequence error obeyed: the responder missed a packet.
    pub psn_naks: u32,
}

/// What a responder met out of the order of PSNs. Each counter goes round at 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Request packets that came again.
    pub duplicates: u32,
    /// Request packets that came before another one that was missing.
    pub early: u32,
}

impl Rc {
    /// The PSN the next new request packet will bear.
    pub fn sq_psn(&self) -> Psn {
        self.requester.sq_psn()
    }
    /// The PSN the responder expects next.
    pub fn rq_psn(&self) -> Psn {
        self.responder.rq_psn()
    }
    /// The oldest PSN that is not acknowledged, or where there is none the next.
    pub fn oldest_psn(&self) -> Psn {
        self.requester.una
    }
    /// PSNs sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.requester.high.since(self.requester.una).max(0) as u32
    }
    /// Send work requests that have completed without an error.
    pub fn completed(&self) -> u64 {
        self.requester.retired
    }
    /// How often its requests were sent again, and why.
    pub fn recoveries(&self) -> Recoveries {
        self.requester.recoveries
    }
    /// Request packets that came out of order.
    pub fn out_of_order(&self) -> OutOfOrder {
        self.responder.out_of_order
    }
    /// RNR NAKs sent: the peer's requests found no receive.
    pub fn rnr_naks_sent(&self) -> u32 {
        self.responder.answers.rnr_naks
    }
    /// Why it failed; `None` where it has not, or where it was told to.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }
}
