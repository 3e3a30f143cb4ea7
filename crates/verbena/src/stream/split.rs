//! The two directions as each knows itself: what was begun to be read, and whether the end was
//! said. [`ReadHalf`] and [`WriteHalf`] have one each.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::RdmaStream;
use super::shared::Core;
use crate::error::{Result, ReuniteError};
use crate::op::{Sending, kind::Copied};
use crate::qp::Message;
use crate::qp::inner::Place;

/// Where one half waits: for messages, and for room in the send queue.
#[derive(Default)]
pub(super) struct Places {
    pub messages: Place,
    pub room: Place,
}

/// The message that is being read.
#[derive(Default)]
pub(super) struct Reading {
    message: Option<Message>,
    /// Bytes of it that were read.
    at: usize,
    places: Places,
}

impl Reading {
    pub(super) fn poll_fill_buf(&mut self, core: &Core, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.message.is_none() {
            self.message = ready!(core.poll_message(&mut self.places, cx))?;
            self.at = 0;
        }
        Poll::Ready(Ok(self.message.as_ref().map_or(&[], |message| &message[self.at..])))
    }

    pub(super) fn consume(&mut self, core: &Core, n: usize) {
        if let Some(message) = &self.message {
            self.at = self.at.saturating_add(n).min(message.len());
            if self.at == message.len()
                && let Some(message) = self.message.take()
            {
                core.was_read(message);
            }
        }
    }

    pub(super) fn poll_read(
        &mut self,
        core: &Core,
        cx: &mut Context<'_>,
        to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if to.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let from = ready!(self.poll_fill_buf(core, cx))?;
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        self.consume(core, n);
        Poll::Ready(Ok(n))
    }

    /// Forgets the places, as no call waits any more.
    fn forget(&mut self) {
        self.places = Places::default();
    }
}

/// How far a direction has come.
#[derive(Default)]
pub(super) struct Writing {
    end: End,
    places: Places,
}

/// How far the end of a direction has come.
#[derive(Default)]
pub(super) enum End {
    #[default]
    Open,
    /// The FIN is on its way.
    Sent(Sending<Copied>),
    /// The peer has it, or never will.
    Over(Result<()>),
}

impl Writing {
    pub(super) fn poll_write_vectored(
        &mut self,
        core: &Core,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.end {
            End::Open => core.poll_send(&mut self.places, cx, bufs),
            _ => Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "written after the shutdown"))),
        }
    }

    pub(super) fn poll_shutdown(&mut self, core: &Core, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        core.poll_end(&mut self.places, cx, &mut self.end)
    }

    /// Forgets the places and the FIN's waker, as no call waits any more.
    fn forget(&mut self, core: &Core) {
        self.places = Places::default();
        if matches!(self.end, End::Sent(_)) {
            // In place of the waker that was left with the FIN. Its result, if there is one just
            // now, stays here.
            _ = self.poll_shutdown(core, &mut Context::from_waker(Waker::noop()));
        }
    }
}

/// A call of a stream while it waits. Cancelled, it leaves no waker.
struct Waiting<'a> {
    stream: &'a mut RdmaStream,
    is_over: bool,
}

/// Waits until a call is ready.
pub(super) async fn until<T>(
    stream: &mut RdmaStream,
    mut call: impl FnMut(&mut RdmaStream, &mut Context<'_>) -> Poll<T>,
) -> T {
    let mut waiting = Waiting { stream, is_over: false };
    let output = poll_fn(|cx| call(waiting.stream, cx)).await;
    waiting.is_over = true;
    output
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.stream.reading.forget();
            self.stream.writing.forget(&self.stream.core);
        }
    }
}

/// What reads of a stream that was split.
pub struct ReadHalf {
    pub(super) core: Arc<Core>,
    pub(super) reading: Reading,
}

/// What writes of a stream that was split. Dropping it says nothing to the peer as long as the
/// other half is there: shut it down.
pub struct WriteHalf {
    pub(super) core: Arc<Core>,
    pub(super) writing: Writing,
}

macro_rules! addresses {
    ($half:ident) => {
        impl $half {
            /// The peer.
            pub fn peer_addr(&self) -> SocketAddr {
                self.core.connection().peer_addr()
            }
            /// Our own address.
            pub fn local_addr(&self) -> SocketAddr {
                self.core.connection().local_addr()
            }
        }

        impl std::fmt::Debug for $half {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({} to {})", stringify!($half), self.local_addr(), self.peer_addr())
            }
        }
    };
}
addresses!(ReadHalf);
addresses!(WriteHalf);

impl ReadHalf {
    /// Puts both together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`], with both: they are of two streams.
    #[expect(clippy::result_large_err, reason = "they come back as they were")]
    pub fn reunite(self, write: WriteHalf) -> Result<RdmaStream, ReuniteError> {
        if !Arc::ptr_eq(&self.core, &write.core) {
            return Err(ReuniteError(self, write));
        }
        Ok(RdmaStream { core: self.core, reading: self.reading, writing: write.writing })
    }
    /// [`RdmaStream::poll_fill_buf`].
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.reading.poll_fill_buf(&self.core, cx)
    }
    /// [`RdmaStream::consume`].
    pub fn consume(&mut self, n: usize) {
        self.reading.consume(&self.core, n);
    }
}

impl WriteHalf {
    /// [`RdmaStream::poll_write_vectored`].
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writing.poll_write_vectored(&self.core, cx, bufs)
    }
    /// [`RdmaStream::poll_shutdown`].
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing.poll_shutdown(&self.core, cx)
    }
}
