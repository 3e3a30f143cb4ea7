//! Ordered streams of bytes to one peer, such as TCP connections: what an iWARP queue pair travels
//! on. The environment opens them and tells when they are readable and writable; a queue pair that
//! has one sends and reads.

use std::net::SocketAddr;

use crate::errno::Errno;
pub use crate::memory::vectored::{Gather, MAX_PIECES, Scatter};

/// A stream, as its queue pair sees it. No call waits.
pub trait Stream: Send + Sync + std::fmt::Debug {
    /// Sends from the front of what is given, as many bytes as there is room for; how many these
    /// are.
    ///
    /// # Errors
    ///
    /// EAGAIN where there is room for none: [`Qp::stream_writable`](crate::Qp::stream_writable)
    /// follows once there is. EFAULT for memory that is not there. The system's, once the stream is
    /// lost.
    fn send(&self, from: &Gather<'_>) -> Result<usize, Errno>;
    /// Reads what has come, as far as there is room; how many bytes. 0 where the peer has ended its
    /// half.
    ///
    /// # Errors
    ///
    /// EAGAIN where nothing has come: [`Qp::read_stream`](crate::Qp::read_stream) follows once
    /// something has. EFAULT for memory that is not there. The system's, once the stream is lost.
    fn receive(&self, into: &Scatter<'_>) -> Result<usize, Errno>;
    /// Ends our half behind all that was sent (FIN). What the peer says until it ends its own half
    /// still comes.
    fn finish(&self);
    /// Lets go of the stream: our half ends behind all that was sent, and nothing more is told of
    /// it.
    fn close(&self);
    /// Ends the stream at once (RST). Nothing more is told of it.
    fn reset(&self);
    /// The stream that this side opened stands: for links that decorate streams.
    fn opened(&self) {}
    /// The stream could not be opened, or is lost, likewise.
    fn lost(&self, _why: Errno) {}
    /// A fault of this name befell bytes that came, or that were to leave, in a decorator over this
    /// one.
    fn fault(&self, _is_out: bool, _what: &'static str) {}
}

/// A stream that was opened or accepted just now, as links know it that decorate streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewStream {
    /// The environment's name for it.
    pub token: u64,
    /// Index of the interface that has our address.
    pub interface: u32,
    /// Our end.
    pub ours: SocketAddr,
    /// The peer's end.
    pub theirs: SocketAddr,
    /// Whether the peer opened it.
    pub is_accepted: bool,
}
