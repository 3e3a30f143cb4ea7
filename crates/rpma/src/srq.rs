//! Receives that connections share (rpma_srq_new(3)).
//!
//! ```
//! use rpma::{ConnCfg, Peer, Srq, SrqCfg};
//!
//! let peer = Peer::local("127.0.0.1".parse().unwrap())?;
//! let srq = Srq::new(&peer, &SrqCfg::default())?;
//! assert_eq!(srq.posted(), 100);
//! let cfg = ConnCfg { srq: Some(srq), ..ConnCfg::default() };
//! # rpma::Result::Ok(())
//! ```

use crate::error::Result;
use crate::peer::Peer;

/// Configuration of a shared receive queue; the defaults are upstream's.
#[derive(Clone, Debug)]
pub struct SrqCfg {
    /// Receives that are kept posted, 1 to 32768; 100.
    pub rq_size: u32,
    /// Completions that a program expects to wait at once; 100. The queue is as long as it must be.
    pub rcq_size: u32,
    /// Bytes of each receive, 4096. Of this crate alone: upstream's receives name their memory.
    pub recv_size: usize,
}

impl Default for SrqCfg {
    fn default() -> Self {
        Self { rq_size: 100, rcq_size: 100, recv_size: 4096 }
    }
}

/// A shared receive queue: a handle, clones are the same one. A message comes to the connection
/// that it was sent by; its buffer is posted again when it is dropped. Over rdma-core there is
/// none.
#[derive(Clone, Debug)]
pub struct Srq(verbena::Srq);

impl Srq {
    /// A queue with all of its receives posted.
    ///
    /// # Errors
    ///
    /// `Provider` for sizes out of range, or where the stack below has none; `NoMem`.
    pub fn new(peer: &Peer, cfg: &SrqCfg) -> Result<Self> {
        Ok(Self(verbena::Srq::new(peer.pd(), cfg.rq_size, cfg.recv_size)?))
    }
    /// Receives that wait for messages.
    pub fn posted(&self) -> u32 {
        self.0.posted()
    }
    pub(crate) fn below(&self) -> &verbena::Srq {
        &self.0
    }
}
