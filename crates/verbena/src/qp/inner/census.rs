//! What a queue pair has, for tests that want nothing left.

use super::Queues;
use crate::qp::{QueuePair, Transport};

/// What there is of a queue pair's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Entries of the send queue that are not free.
    pub sends: usize,
    /// Receives that are posted.
    pub posted: usize,
    /// Messages that no task has taken.
    pub ready: usize,
    /// Wakers of tasks that wait for anything but a request's end.
    pub waiting: usize,
}

impl<T: Transport> QueuePair<T> {
    pub(crate) fn census(&self) -> Census {
        let queues = self.inner.lock();
        let Queues { sends, posted, ready, room, idle, receivers, .. } = &*queues;
        Census {
            sends: sends.in_use(),
            posted: posted.iter().flatten().count(),
            ready: ready.len(),
            waiting: room.len() + idle.len() + receivers.len(),
        }
    }

    /// Buffers of its pool that are free, and that there are in all.
    pub(crate) fn buffers(&self) -> (usize, usize) {
        let pool = self.inner.pool().census();
        (pool.free, pool.buffers)
    }

    /// Waits until no send is under way.
    pub(crate) async fn idle(&self) {
        self.inner.idle().await;
    }
}
