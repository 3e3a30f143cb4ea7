//! What a finding calls a request.

use std::fmt::{self, Display, Formatter};

use crate::objects::{Posted, SharedQueue};

/// A request by its operation, its number and its queue. Only a finding that is told writes it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    operation: &'static str,
    wr_id: u64,
    queue: QueueName,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum QueueName {
    /// The number of a queue pair.
    Pair(u32),
    /// What a shared queue is.
    Shared(&'static str),
}

impl Name {
    pub(crate) fn new(operation: &'static str, wr_id: u64, queue: QueueName) -> Self {
        Self { operation, wr_id, queue }
    }

    /// A request of a queue pair with this number.
    pub(crate) fn on_pair<S>(posted: &Posted<S>, number: u32) -> Self {
        Self::new(posted.name, posted.wr_id, QueueName::Pair(number))
    }

    /// A receive of a shared queue.
    pub(crate) fn on_shared<S>(posted: &Posted<S>, queue: &SharedQueue<S>) -> Self {
        Self::new(posted.name, posted.wr_id, QueueName::Shared(queue.kind))
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { operation, wr_id, queue } = self;
        match queue {
            QueueName::Pair(number) => write!(f, "{operation} {wr_id} on queue pair {number}"),
            QueueName::Shared(kind) => write!(f, "{operation} {wr_id} on a {kind}"),
        }
    }
}
