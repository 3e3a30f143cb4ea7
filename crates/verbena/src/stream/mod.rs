//! Bytes over a connection: [`RdmaStream`], with credits, half close and a defined end. With the
//! feature `tokio` it is `tokio::io::{AsyncRead, AsyncBufRead, AsyncWrite}`.
//!
//! | file | what |
//! |---|---|
//! | this one | [`RdmaStream`], [`StreamConfig`] |
//! | `wire` | what goes over the wire: the greeting, and the word that each message carries |
//! | `shared` | both directions: messages in, credits, messages out, the end |
//! | `split` | the two halves |
//! | `listener` | [`RdmaListener`] |
//! | `tokio` | tokio's traits |
//!
//! # The protocol
//!
//! Both sides say in the private data that they speak it (version 1), how many data messages they
//! have room for, and how large those may be. Bytes travel as SENDs. A sender counts the peer's
//! receives (credits) and waits when there are none, so a receiver is never not ready: RNR does not
//! happen. Credits return with data that goes the other way, or by themselves when half of a window
//! was read. A FIN says that nothing comes after it in that direction; the other goes on. A message
//! that breaks these rules is `InvalidData`.

mod listener;
mod shared;
mod split;
#[cfg(feature = "tokio")]
mod tokio;
mod wire;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::cm::{Connect, Request, ToAddr, connect};
use crate::error::{Error, Result};
use crate::qp::QueueConfig;
pub use listener::RdmaListener;
use shared::{Core, INLINE};
pub use split::{ReadHalf, WriteHalf};
use split::{Reading, Writing, until};
use wire::{CONTROL, Greeting};

/// How much a stream has under way.
///
/// ```
/// use verbena::StreamConfig;
///
/// let config = StreamConfig::default().window(16).message_size(64 << 10);
/// assert_eq!(config.window, 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Messages with bytes that the peer may send and that are not read, 2 to 8192; and that we
    /// have under way ourselves.
    pub window: u16,
    /// Bytes of each at most, 64 to 2^24.
    pub message_size: u32,
}

/// What one system call sends: 15 packets of 4 KiB, or 60 of 1 KiB.
const ONE_CALL: u32 = 15 * 4096;

impl Default for StreamConfig {
    /// A window of 8, messages of 245,756 bytes: with the word that each carries beside them, four
    /// system calls to send.
    fn default() -> Self {
        Self { window: 8, message_size: 4 * ONE_CALL - 4 }
    }
}

/// Entries of the send queue for messages without bytes that are not acknowledged.
const WORDS: u32 = 6;

impl StreamConfig {
    /// Sets [`StreamConfig::window`], 2 to 8192 messages.
    pub fn window(mut self, messages: u16) -> Self {
        self.window = messages;
        self
    }
    /// Sets [`StreamConfig::message_size`], 64 to 2^24 bytes.
    pub fn message_size(mut self, bytes: u32) -> Self {
        self.message_size = bytes;
        self
    }
    fn check(&self) -> Result<()> {
        let check = |name, is, least, most| match (least..=most).contains(&is) {
            true => Ok(()),
            false => Err(Error::number("RdmaStream", name, is, least..=most)),
        };
        check("window", self.window.into(), 2, 8192)?;
        check("message_size", self.message_size.into(), INLINE as u64, 1 << 24)
    }
    fn greeting(&self) -> Greeting {
        Greeting { window: self.window, message_size: self.message_size }
    }
    fn queues(&self) -> QueueConfig {
        let window = u32::from(self.window);
        QueueConfig {
            send_depth: window + WORDS,
            recv_depth: window + CONTROL,
            recv_size: self.message_size as usize,
            max_send_sge: 1,
            max_inline: INLINE as u32,
            srq: None,
            cq: None,
        }
    }
}

/// A stream of bytes in both directions, as of TCP, over a connection of its own.
///
/// What was written is on its way: nothing is kept back, flushing does nothing. Writing waits when
/// the peer does not read.
///
/// [`shutdown`](RdmaStream::shutdown) says that nothing more will be written, waits until the
/// peer's adapter has all of it, and the peer reads an end there; reading goes on. A stream that is
/// dropped without it is reset: the peer reads what had come, then `ConnectionReset`, as it does of
/// a program that was killed. A peer that vanished with its host, or its network, is noticed by
/// what is written to it.
///
/// | error | when |
/// |---|---|
/// | `ConnectionReset` | the peer has gone, or does not answer any more |
/// | `BrokenPipe` | written after `shutdown` |
/// | `InvalidData` | the peer breaks the protocol |
///
/// All calls may be cancelled: what a future did not return was not read, or not written.
///
/// ```no_run
/// # async fn f() -> std::io::Result<()> {
/// let mut stream = verbena::RdmaStream::connect("10.0.0.2:7471").await?;
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// stream.shutdown().await?;
/// let mut piece = [0; 4096];
/// loop {
///     match stream.read(&mut piece).await? {
///         0 => break,
///         n => println!("{}", String::from_utf8_lossy(&piece[..n])),
///     }
/// }
/// # Ok(()) }
/// ```
pub struct RdmaStream {
    core: Arc<Core>,
    reading: Reading,
    writing: Writing,
}

impl RdmaStream {
    /// Connects to a listener that speaks the same protocol.
    ///
    /// # Errors
    ///
    /// Those of [`Connect`]; `Unsupported` where the peer speaks another protocol.
    pub async fn connect(to: impl ToAddr) -> Result<Self> {
        Self::over(connect(to), StreamConfig::default()).await
    }

    /// Like [`RdmaStream::connect`], with properties of your own: its private data and queues are
    /// the stream's.
    ///
    /// # Errors
    ///
    /// Likewise; `OutOfRange` for what the configuration has.
    pub async fn over(connect: Connect, config: StreamConfig) -> Result<Self> {
        config.check()?;
        let greeting = config.greeting();
        let conn = connect.private_data(greeting.to_bytes()).queues(config.queues()).await?;
        Ok(Self::new(Core::new(conn, greeting)?))
    }

    /// Accepts a request of a [`Listener`](crate::Listener), or rejects it where it is none for a
    /// stream.
    ///
    /// # Errors
    ///
    /// Those of [`Accept`](crate::Accept); `Unsupported` where the peer speaks another protocol.
    pub async fn accept(request: Request, config: StreamConfig) -> Result<Self> {
        config.check()?;
        if let Err(error) = Greeting::from_bytes(request.private_data()) {
            request.reject(format!("verbena: byte streams, version {}", wire::VERSION).as_bytes())?;
            return Err(error);
        }
        let greeting = config.greeting();
        let conn = request.accept().private_data(greeting.to_bytes()).queues(config.queues()).await?;
        Ok(Self::new(Core::new(conn, greeting)?))
    }

    fn new(core: Core) -> Self {
        Self { core: Arc::new(core), reading: Reading::default(), writing: Writing::default() }
    }

    /// The peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.core.connection().peer_addr()
    }
    /// Our own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.core.connection().local_addr()
    }
    /// What carries it.
    #[cfg(all(test, feature = "sim"))]
    pub(crate) fn connection(&self) -> &crate::Connection {
        self.core.connection()
    }
    /// Bytes of a message at most: what is written in pieces of it, or of multiples, goes fastest.
    pub fn message_size(&self) -> usize {
        self.core.message_size()
    }

    /// Two halves that tasks or threads of their own may use. The stream ends when both are
    /// dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(stream: verbena::RdmaStream) -> Result<(), Box<dyn std::error::Error>> {
    /// let (read, write) = stream.into_split();
    /// // Each may be used by a task of its own. Then:
    /// let stream = read.reunite(write)?;
    /// stream.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let Self { core, reading, writing } = self;
        (ReadHalf { core: core.clone(), reading }, WriteHalf { core, writing })
    }

    /// The bytes that have come and were not [consumed](RdmaStream::consume); where there are none
    /// it waits for some. None: the end.
    ///
    /// # Errors
    ///
    /// As the table above says, after all that had come.
    pub fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.reading.poll_fill_buf(&self.core, cx)
    }
    /// Notes that so many bytes were read; at most as many as there are.
    pub fn consume(&mut self, n: usize) {
        self.reading.consume(&self.core, n);
    }
    /// Writes as many of the bytes as there is room for, one at least, or waits for room. Does not
    /// wait until they have arrived.
    ///
    /// # Errors
    ///
    /// As the table above says.
    pub fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writing.poll_write_vectored(&self.core, cx, bufs)
    }
    /// Ends this direction after what was written, and waits until the peer's adapter has it all. A
    /// peer that has ended its own direction before and leaves meanwhile is taken to have what it
    /// wanted.
    ///
    /// # Errors
    ///
    /// As the table above says: then it is not known what arrived. `ConnectionReset` also where the
    /// peer has read to the end and was dropped without an end of its own, and the last ACK was
    /// lost.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing.poll_shutdown(&self.core, cx)
    }

    /// Reads as many bytes as there are, one at least; 0: the end.
    ///
    /// # Errors
    ///
    /// As the table above says.
    pub async fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        until(self, |this, cx| this.reading.poll_read(&this.core, cx, to)).await
    }
    /// Writes as many of the bytes as there is room for, one at least. Cancelled: none.
    ///
    /// # Errors
    ///
    /// As the table above says.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        until(self, |this, cx| this.poll_write_vectored(cx, &[IoSlice::new(bytes)])).await
    }
    /// Writes all.
    ///
    /// # Errors
    ///
    /// As the table above says. Cancelled: part of it may be written.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = self.write(bytes).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }
    /// [`poll_shutdown`](RdmaStream::poll_shutdown).
    ///
    /// # Errors
    ///
    /// Likewise.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        until(self, Self::poll_shutdown).await
    }
    /// Ends the stream in order: shuts down, waits for the peer's end and drops what comes before
    /// it, then disconnects.
    ///
    /// # Errors
    ///
    /// As the table above says.
    pub async fn close(mut self) -> io::Result<()> {
        self.shutdown().await?;
        loop {
            let n = until(&mut self, |this, cx| this.poll_fill_buf(cx).map_ok(<[u8]>::len)).await?;
            if n == 0 {
                break;
            }
            self.consume(n);
        }
        Ok(self.core.connection().clone().close().await?)
    }
}

impl std::fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RdmaStream({} to {})", self.local_addr(), self.peer_addr())
    }
}
