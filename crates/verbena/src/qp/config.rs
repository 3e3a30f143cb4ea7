//! Sizes of the queues of a queue pair.

use super::{Cq, Srq};

/// Sizes of a queue pair; `Default` suits messages up to 4 KiB.
///
/// ```
/// use verbena::QueueConfig;
///
/// let queues = QueueConfig::default().send_depth(16).recv_size(1 << 20);
/// assert_eq!((queues.send_depth, queues.recv_depth), (16, 64));
/// ```
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Send operations under way, 1 to 16384.
    pub send_depth: u32,
    /// Receives, each with its own buffer, that the crate keeps posted; at most 16384.
    pub recv_depth: u32,
    /// Bytes of each.
    pub recv_size: usize,
    /// Pieces of a send, at most 32.
    pub max_send_sge: u32,
    /// Bytes that `send_inline` takes at most, at most 1024.
    pub max_inline: u32,
    /// Receives come from here; `recv_depth` and `recv_size` mean nothing then.
    pub srq: Option<Srq>,
    /// Completions go here; without one, to a queue of its own.
    pub cq: Option<Cq>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            send_depth: 64,
            recv_depth: 64,
            recv_size: 4096,
            max_send_sge: 4,
            max_inline: 64,
            srq: None,
            cq: None,
        }
    }
}

impl QueueConfig {
    /// Sets [`QueueConfig::send_depth`].
    pub fn send_depth(mut self, n: u32) -> Self {
        self.send_depth = n;
        self
    }
    /// Sets [`QueueConfig::recv_depth`].
    pub fn recv_depth(mut self, n: u32) -> Self {
        self.recv_depth = n;
        self
    }
    /// Sets [`QueueConfig::recv_size`].
    pub fn recv_size(mut self, n: usize) -> Self {
        self.recv_size = n;
        self
    }
    /// Sets [`QueueConfig::max_send_sge`].
    pub fn max_send_sge(mut self, n: u32) -> Self {
        self.max_send_sge = n;
        self
    }
    /// Sets [`QueueConfig::max_inline`].
    pub fn max_inline(mut self, n: u32) -> Self {
        self.max_inline = n;
        self
    }
    /// Sets [`QueueConfig::srq`].
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }
    /// Sets [`QueueConfig::cq`].
    pub fn cq(mut self, cq: &Cq) -> Self {
        self.cq = Some(cq.clone());
        self
    }
}
