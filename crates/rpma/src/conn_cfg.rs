//! Configuration of connections (rpma_conn_cfg_new(3)).
//!
//! ```
//! let cfg = rpma::ConnCfg { sq_size: 64, ..rpma::ConnCfg::default() };
//! assert_eq!((cfg.timeout.as_millis(), cfg.cq_size, cfg.rcq_size, cfg.rq_size), (1000, 10, 0, 10));
//! assert!(!cfg.shared_comp_channel);
//! ```

use std::time::Duration;

use verbena::QueueConfig;

use crate::srq::Srq;

/// Configuration of a connection; the defaults are upstream's.
#[derive(Clone, Debug)]
pub struct ConnCfg {
    /// How long finding the way to the peer, and then its answer, may take, up to 2^31 - 1 ms; 1 s.
    pub timeout: Duration,
    /// Operations that may be posted to the completion queue ([`Cq`](crate::Cq)) at once, until
    /// their completions are taken; 10. Those that are awaited need none. 0 is refused.
    pub cq_size: u32,
    /// Over 0: messages do not come to the completion queue, but to a queue of their own,
    /// [`Conn::recv`](crate::Conn::recv). 0 is the default. It holds as many as there are
    /// receives, so that it can not be overrun.
    pub rcq_size: u32,
    /// Operations under way, 1 to 16384; 10. Upstream's 0 is taken for 1.
    pub sq_size: u32,
    /// Receives that are kept posted, 0 to 16384; 10.
    pub rq_size: u32,
    /// Bytes of each, 4096: what a peer sends must fit. Of this crate alone: upstream's receives
    /// name their memory.
    pub recv_size: usize,
    /// Both completion queues tell by one channel ([`Cq::next_of_both`](crate::Cq::next_of_both));
    /// not by default.
    pub shared_comp_channel: bool,
    /// Receives come from here; `rq_size` and `recv_size` mean nothing then.
    pub srq: Option<Srq>,
}

impl Default for ConnCfg {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(1000),
            cq_size: 10,
            rcq_size: 0,
            sq_size: 10,
            rq_size: 10,
            recv_size: 4096,
            shared_comp_channel: false,
            srq: None,
        }
    }
}

impl ConnCfg {
    /// What the stack below makes its queues by.
    pub(crate) fn queues(&self) -> QueueConfig {
        let queues = QueueConfig::default().send_depth(self.sq_size.max(1));
        let queues = queues.recv_depth(self.rq_size).recv_size(self.recv_size);
        match &self.srq {
            Some(srq) => queues.srq(srq.below()),
            None => queues,
        }
    }
}
