//! The local path: how an engine reaches a process of the same host without packets.
//!
//! An engine asks for it by [`Context::local`](super::Context::local). A queue pair whose peer is
//! on another host, and an engine that knows no such short cut, has [`NoLocalPath`]. What goes the
//! local path is chosen by `rc::local`; the adapter carries it out.

use wire::roce::Header;

use super::{Fault, RecvWr, Remote, SendWr, Sge};

/// Bytes of the longest direct copy: the queue pair is locked meanwhile, and what has come for it
/// waits.
pub const MAX_DIRECT: u64 = 16 << 20;

/// Outcome of a request that may need no packet: a WRITE, READ, atomic or FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOutcome {
    /// The request is done.
    Done,
    /// The request can not be done so: its packets will tell why.
    Refused,
    /// The peer's memory is not reached, or not for so much.
    Unavailable,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In memory that a work request names.
    List(&'a [Sge]),
    /// In memory that a peer reads.
    Range(Remote),
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Where the message is.
    pub from: Source<'a>,
    /// Where the part begins, in bytes.
    pub at: u64,
    /// Bytes.
    pub len: usize,
}

/// How the bytes of a fragment travel. UCX calls the first one bcopy, the others zcopy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentBytes {
    /// The ring carries a copy of the bytes.
    Inline,
    /// The receiver copies the bytes from the sender's memory. Those of a request that has not
    /// completed stay there; those that a READ asks for may be gone.
    Exported,
    /// The sender copies the bytes to this place in the peer's memory before the fragment leaves:
    /// the target of a WRITE, or a place that the peer has advertised.
    Placed(Remote),
    /// The fragment asks for a part of a READ, of one element, and advertises its destination. The
    /// peer may write there until the READ completes. So the READ completes with an error only
    /// once the peer writes no more.
    Requested,
}

/// Outcome of a fragment that was to go to a process of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// The fragment has left.
    Sent,
    /// There is no room for the fragment now.
    Full,
    /// There is no way for fragments just now.
    Unavailable,
}

/// The way to a peer that is a process of the same host, during one call. The adapter implements
/// it; each method's default is that of a peer on another host.
pub trait LocalPath {
    /// Whether each process may copy to and from memory of the other one, as far as is known.
    fn reaches(&self) -> bool {
        false
    }
    /// What came from the peer just now, in this thread, was a request of this connection.
    fn hear(&mut self) {}
    /// Whether both processes map the memory that a WRITE, READ or atomic names at the peer.
    fn is_mapped(&self, _wr: &SendWr) -> bool {
        false
    }
    /// Whether requests come in a stream: the program posts many and waits for none of them.
    fn is_stream(&self, _wr: &SendWr) -> bool {
        false
    }
    /// Executes a WRITE, READ, atomic or FLUSH in the peer's memory, without the peer's responder.
    /// Nothing of the queue pair is outstanding.
    fn copy(&mut self, _wr: &SendWr) -> DirectOutcome {
        DirectOutcome::Unavailable
    }
    /// The longest fragment in bytes; 0 where no fragments leave.
    fn max_fragment(&self) -> usize {
        0
    }
    /// Sends a fragment of a message, with the headers of one packet in place of several. All that
    /// was sent before it has been handed over.
    ///
    /// # Errors
    ///
    /// Those of the memory, of inline bytes only; then nothing has left.
    fn send_fragment(
        &mut self,
        _header: &Header,
        _part: Part<'_>,
        _bytes: FragmentBytes,
    ) -> Result<FragmentOutcome, Fault> {
        Ok(FragmentOutcome::Unavailable)
    }
    /// Advertises the receive buffer of the message that begins with the fragment of these headers.
    /// The peer may write to the buffer until the receive completes. So the receive completes with
    /// an error only once the peer writes no more. False where the peer is not told.
    fn advertise(&mut self, _header: &Header, _receive: &RecvWr) -> bool {
        false
    }
    /// Reports PSNs, `count` from that of these headers on, that no packet bears. The queue pair is
    /// about to go.
    fn report_unsent(&mut self, _header: &Header, _count: u32) {}
    /// Ends the peer's access to exported memory: requests and receives are about to complete as
    /// flushed. The peer copies nothing any more, or what it has copied does not count.
    fn revoke(&mut self) {}
    /// Whether something that was sent lies unread where only the peer's process takes it.
    fn has_unread(&self) -> bool {
        false
    }
    /// The shortest message of which both ends copy, in bytes. `None` takes the engine's own
    /// value; a simulation sets another one to have many short fragments.
    fn min_zero_copy(&self) -> Option<u32> {
        None
    }
}

/// The local path of a queue pair whose peer is on another host.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLocalPath;

impl LocalPath for NoLocalPath {}
