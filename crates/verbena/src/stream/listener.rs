//! Takes connections for streams.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{RdmaStream, StreamConfig};
use nic::program;

use crate::cm::{Listen, Listener, Request, ToAddr, listen};
use crate::error::Result;

/// Handshakes at once; a peer that comes then waits in the backlog.
const HANDSHAKES: usize = 128;

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Takes connections for streams, several handshakes at once: a peer that is slow keeps no other
/// waiting. Those that do not speak the protocol are rejected. Dropping it ends handshakes; streams
/// go on.
///
/// # Examples
///
/// ```
/// # verbena::block_on(async {
/// use verbena::{RdmaListener, RdmaStream};
///
/// let mut listener = RdmaListener::bind("127.0.0.1:0").await?;
/// let to = listener.local_addr();
/// verbena::spawn(async move {
///     let mut stream = RdmaStream::connect(to).await?;
///     stream.write_all(b"hello").await?;
///     stream.close().await
/// })?;
/// let mut stream = listener.accept().await?;
/// let mut bytes = [0; 16];
/// let n = stream.read(&mut bytes).await?;
/// assert_eq!(&bytes[..n], b"hello");
/// stream.close().await?;
/// # Ok::<(), std::io::Error>(()) }).unwrap();
/// ```
pub struct RdmaListener {
    listener: Arc<Listener>,
    config: StreamConfig,
    next: Option<Boxed<Request>>,
    handshakes: Vec<Boxed<RdmaStream>>,
}

impl RdmaListener {
    /// Listens on an address.
    ///
    /// # Errors
    ///
    /// Those of [`Listen`].
    pub async fn bind(on: impl ToAddr) -> Result<Self> {
        Self::over(listen(on), StreamConfig::default()).await
    }

    /// Like [`RdmaListener::bind`], with properties of your own.
    ///
    /// # Errors
    ///
    /// Likewise; `OutOfRange` for what the configuration has.
    pub async fn over(listen: Listen, config: StreamConfig) -> Result<Self> {
        config.check()?;
        let listener = Arc::new(listen.await?);
        Ok(Self { listener, config, next: None, handshakes: Vec::new() })
    }

    /// The address, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next stream. Cancelling loses none.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::request`]. What goes wrong with one peer is none of the listener's.
    pub async fn accept(&mut self) -> Result<RdmaStream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Like [`RdmaListener::accept`], by hand.
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RdmaStream>> {
        // What is polled in here belongs to other connections, too: it survives a waker that
        // panics.
        let waker = program::calm(cx);
        let cx = &mut Context::from_waker(&waker);
        while self.handshakes.len() < HANDSHAKES {
            let listener = &self.listener;
            let next = self.next.get_or_insert_with(|| {
                let listener = listener.clone();
                Box::pin(async move { listener.request().await })
            });
            let Poll::Ready(request) = next.as_mut().poll(cx) else { break };
            self.next = None;
            self.handshakes.push(Box::pin(RdmaStream::accept(request?, self.config)));
        }
        let mut at = 0;
        while let Some(handshake) = self.handshakes.get_mut(at) {
            match handshake.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(done) => {
                    drop(self.handshakes.remove(at));
                    if let Ok(stream) = done {
                        // There may be room for another request now, whose waker was not left.
                        cx.waker().wake_by_ref();
                        return Poll::Ready(Ok(stream));
                    }
                }
            }
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RdmaListener({})", self.local_addr())
    }
}
