//! Ordered streams of bytes to one peer, such as TCP connections: what an iWARP queue pair travels
//! on. The environment opens and reads them; a queue pair that has one sends on it.

use crate::errno::Errno;

/// A stream, as its queue pair sees it. No call waits.
pub trait Stream: Send + Sync + std::fmt::Debug {
    /// Sends from the front of `bytes`, as many as there is room for; how many these are. Where
    /// that is not all, [`Qp::stream_writable`](crate::Qp::stream_writable) follows once there is
    /// room.
    ///
    /// # Errors
    ///
    /// The system's, once the stream is lost.
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno>;
    /// Ends our half behind all that was sent (FIN). What the peer says until it ends its own half
    /// still comes.
    fn finish(&self);
    /// Lets go of the stream: our half ends behind all that was sent, and nothing more is told of
    /// it.
    fn close(&self);
    /// Ends the stream at once (RST). Nothing more is told of it.
    fn reset(&self);
}
