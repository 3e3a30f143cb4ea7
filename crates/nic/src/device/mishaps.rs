//! What befell the queue pairs of a device, added up: what was sent again, and why; what came out
//! of order; which retries were used up. Engines count it, and a queue pair whose engine goes
//! leaves its part with the device.

use transport::Rc;
use transport::op::Status;
use transport::rc::Failure;

/// What befell queue pairs so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mishaps {
    /// Times that all was sent again from the oldest PSN that was not acknowledged.
    pub retransmissions: u64,
    /// RNR NAKs obeyed.
    pub rcvd_rnr_naks: u64,
    /// RNR NAKs sent.
    pub sent_rnr_naks: u64,
    /// NAKs for a PSN sequence error obeyed.
    pub rcvd_psn_naks: u64,
    /// Request packets that came again.
    pub duplicates: u64,
    /// Request packets that came before another one that was missing.
    pub early: u64,
    /// Queue pairs that failed with IBV_WC_RETRY_EXC_ERR.
    pub retry_exceeded: u64,
    /// Queue pairs that failed with IBV_WC_RNR_RETRY_EXC_ERR.
    pub rnr_retry_exceeded: u64,
}

impl Mishaps {
    /// Adds what one engine has counted.
    pub(crate) fn add(&mut self, engine: &Rc) {
        let (recoveries, out_of_order) = (engine.recoveries(), engine.out_of_order());
        let failed = |status| u64::from(engine.failure() == Some(Failure::Request(status)));
        self.retransmissions += u64::from(recoveries.retransmissions);
        self.rcvd_rnr_naks += u64::from(recoveries.rnr_naks);
        self.rcvd_psn_naks += u64::from(recoveries.psn_naks);
        self.sent_rnr_naks += u64::from(engine.rnr_naks_sent());
        self.duplicates += u64::from(out_of_order.duplicates);
        self.early += u64::from(out_of_order.early);
        self.retry_exceeded += failed(Status::RetryExceeded);
        self.rnr_retry_exceeded += failed(Status::RnrRetryExceeded);
    }
}
