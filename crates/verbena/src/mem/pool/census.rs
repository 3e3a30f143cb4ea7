//! What a pool has, for tests that want nothing left.

use super::Pool;

/// Buffers of a pool, and the tasks that wait for them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub buffers: usize,
    pub free: usize,
    pub waiting: usize,
    pub granted: usize,
}

impl Pool {
    pub(crate) fn census(&self) -> Census {
        let free = self.0.free.lock();
        Census {
            buffers: self.0.pieces.len(),
            free: free.buffers.len(),
            waiting: free.waiting.len(),
            granted: free.granted.len(),
        }
    }
}
