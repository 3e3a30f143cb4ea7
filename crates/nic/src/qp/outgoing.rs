//! What leaves by the stream of an iWARP queue pair.

use std::sync::Arc;

use transport::iwarp::StreamBatch;

use crate::stream::Stream;

/// A stream, and what is to leave by it.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub stream: Arc<dyn Stream>,
    pub batch: StreamBatch,
    /// Our half has ended.
    pub is_ended: bool,
}

impl Outgoing {
    pub(super) fn new(stream: Arc<dyn Stream>) -> Self {
        Self { stream, batch: StreamBatch::new(), is_ended: false }
    }
}
