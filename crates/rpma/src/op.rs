//! Operations on a connection: each is a future, or waits, or is posted, as those of `verbena`.
//! Buffers go into an operation and come back with its result:
//! parts of [`MrLocal`](crate::MrLocal), or a `RegBuf` of a `verbena::Pool`.
//!
//! | operation | native | where either end does not have it |
//! |---|---|---|
//! | [`Conn::flush`] to visibility | FLUSH | a READ of 8 bytes at most, after all WRITEs |
//! | [`Conn::flush`] to persistence | FLUSH | the same, where the peer has declared direct write to persistent memory; else `NoSupp` |
//! | [`Conn::atomic_write`] | ATOMIC WRITE | a WRITE of 8 bytes |
//!
//! The peer says by its [`PeerCfg`](crate::PeerCfg) what it has.
//!
//! ```
//! use rpma::{ConnCfg, ConnReq, Ep, FlushType, MrLocal, MrRemote, Peer, PeerCfg, Usage};
//!
//! let peer = Peer::local("127.0.0.1".parse().unwrap())?;
//! let ep = Ep::blocking_listen(&peer, "127.0.0.1:0")?;
//! let log = MrLocal::zeroed(&peer, 4096, Usage::WRITE_DST | Usage::FLUSH_VISIBILITY)?;
//! let theirs = log.clone();
//! # let host = peer.clone();
//! let to = ep.local_addr();
//! let server = std::thread::spawn(move || {
//!     let told = [&theirs.descriptor()[..], &PeerCfg::of(&host).descriptor()].concat();
//!     let conn = ep.blocking_next_conn_req(&ConnCfg::default())?.connect(&told)?;
//!     while conn.blocking_next_event().is_ok() {}
//!     rpma::Result::Ok(())
//! });
//! let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default())?.connect(b"hello")?;
//! conn.blocking_next_event()?;
//! let told = conn.private_data().unwrap();
//! let remote = MrRemote::from_descriptor(told)?;
//! conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(&told[MrRemote::DESCRIPTOR..])?);
//!
//! let entry = MrLocal::zeroed(&peer, 64, Usage::WRITE_SRC)?;
//! entry.shared().copy_from(0, b"an entry")?;
//! conn.write(entry.source(0..8)?, &remote, 8).wait().0?;
//! conn.atomic_write(&remote, 0, *b"8 bytes.").wait()?;
//! conn.flush(&remote, 0, 16, FlushType::Visibility).wait()?;
//! let mut seen = [0; 16];
//! log.shared().copy_to(0, &mut seen)?;
//! assert_eq!(&seen, b"8 bytes.an entry");
//! drop(conn);
//! server.join().unwrap()?;
//! # rpma::Result::Ok(())
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use verbena::op::kind::{Copied, Kind, Order, Read, Send, Write};
use verbena::{Access, Completion, InFlight, IoBuf, IoBufMut, Part, Placement, RemoteWrite};

use crate::conn::Conn;
use crate::cq::Flags;
use crate::error::{Error, PostError, Result};
use crate::log::{Level, log};
use crate::mr::{FlushType, MrRemote};

/// Bytes that a READ in place of a FLUSH brings at most.
pub(crate) const FLUSH_READ: usize = 8;

/// What `verbena`'s operations with a buffer give.
type Below<B> = (verbena::Result<Completion>, B);

/// A READ, WRITE or SEND. Nothing happens before it is awaited, waited for or posted; from then on
/// it goes on, also when dropped.
#[must_use = "an operation does nothing unless awaited, waited for or posted"]
#[derive(Debug)]
pub struct Op<'c, K: Kind<B, Output = Below<B>>, B: std::marker::Send + 'static> {
    conn: &'c Conn,
    state: State<'c, K, B>,
}

#[derive(Debug)]
enum State<'c, K: Kind<B>, B: std::marker::Send + 'static> {
    /// An operation that is refused before it is posted.
    Refused(Error, B),
    Asked(verbena::Op<'c, K, B>),
    Over,
}

impl<K: Kind<B, Output = Below<B>>, B: std::marker::Send + 'static> Unpin for Op<'_, K, B> {}

fn told<B>((result, buf): Below<B>) -> (Result<Completion>, B) {
    (result.map_err(failed), buf)
}

/// The error of an operation that does not come back.
fn to_error<O>(failed: verbena::PostError<O>) -> Error {
    verbena::Error::from(failed).into()
}

fn failed(error: verbena::Error) -> Error {
    log!(Level::Error, "an operation failed: {error}");
    error.into()
}

impl<'c, K: Kind<B, Output = Below<B>>, B: std::marker::Send + 'static> Op<'c, K, B> {
    fn new(conn: &'c Conn, asked: Result<impl FnOnce(B) -> verbena::Op<'c, K, B>>, buf: B) -> Self {
        let state = match asked {
            Ok(asked) => State::Asked(asked(buf)),
            Err(error) => State::Refused(error, buf),
        };
        Op { conn, state }
    }

    /// Posts, and blocks until it is complete; `Provider` (`BlockingInSimulation`) on simulated
    /// hosts.
    ///
    /// # Panics
    ///
    /// Where it was awaited before, and its result taken.
    pub fn wait(self) -> (Result<Completion>, B) {
        match self.state {
            State::Asked(op) => told(op.wait()),
            State::Refused(error, buf) => (Err(error), buf),
            #[allow(clippy::panic, reason = "the contract of Future::poll")]
            State::Over => panic!("an operation was polled after it was complete"),
        }
    }

    /// Posts it, and waits for nothing: several may be under way at once. What it gives is a future
    /// of `verbena`, with its errors.
    ///
    /// # Errors
    ///
    /// Why it can not be, and itself: `Provider` for a full send queue or a connection that does
    /// not stand, `Inval`.
    #[expect(clippy::result_large_err, reason = "the operation comes back as it was")]
    pub fn post(self) -> std::result::Result<InFlight<K, B>, PostError<Self>> {
        let conn = self.conn;
        match self.state {
            State::Asked(op) => op.post().map_err(|failed| {
                let (error, op) = failed.into_parts();
                PostError::new(error.into(), Op { conn, state: State::Asked(op) })
            }),
            State::Refused(error, buf) => {
                Err(PostError::new(error.clone(), Op { conn, state: State::Refused(error, buf) }))
            }
            State::Over => {
                let error = Error::Inval("an operation that is complete");
                Err(PostError::new(error, Op { conn, state: State::Over }))
            }
        }
    }

    /// Posts it; the completion comes to the connection's [`Cq`](crate::Cq) with this number. The
    /// buffer is dropped then.
    ///
    /// # Errors
    ///
    /// `Again` where as many are posted to the queue as it has entries; those of [`Op::post`]. The
    /// operation comes back.
    #[expect(clippy::result_large_err, reason = "the operation comes back as it was")]
    pub fn post_to_cq(self, context: u64, flags: Flags) -> std::result::Result<(), PostError<Self>> {
        let conn = self.conn;
        if let Err(error) = conn.posted().reserve() {
            return Err(PostError::new(error, self));
        }
        let under_way = self.post().inspect_err(|_| conn.posted().give_back())?;
        conn.posted().push(context, flags, async move { told(under_way.await).0 });
        Ok(())
    }
}

impl<K: Kind<B, Output = Below<B>>, B: std::marker::Send + 'static> Future for Op<'_, K, B> {
    type Output = (Result<Completion>, B);

    /// # Panics
    ///
    /// Where it is polled again after its result was taken.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Asked(mut op) => {
                let polled = Pin::new(&mut op).poll(cx);
                if polled.is_pending() {
                    self.state = State::Asked(op);
                }
                polled.map(told)
            }
            State::Refused(error, buf) => Poll::Ready((Err(error), buf)),
            #[allow(clippy::panic, reason = "the contract of Future::poll")]
            State::Over => panic!("an operation was polled after it was complete"),
        }
    }
}

/// A FLUSH or ATOMIC WRITE, or what stands for it.
#[must_use = "an operation does nothing unless awaited, waited for or posted"]
#[derive(Debug)]
pub struct Ordered<'c> {
    conn: &'c Conn,
    way: Way<'c>,
}

#[derive(Debug)]
enum Way<'c> {
    Refused(Option<Error>),
    Native(verbena::Op<'c, Order>),
    Read(verbena::Op<'c, Read, Part<RemoteWrite>>),
    Write(verbena::Op<'c, Write, Copied>),
}

impl Ordered<'_> {
    /// Whether it is what it is called, and nothing that stands for it.
    pub fn is_native(&self) -> bool {
        matches!(self.way, Way::Native(_))
    }
    /// Posts, and blocks until it is complete.
    ///
    /// # Errors
    ///
    /// Those of what made it; `Provider` for how it failed, or (`BlockingInSimulation`) on
    /// simulated hosts.
    pub fn wait(self) -> Result<()> {
        let result = match self.way {
            Way::Refused(error) => return Err(error.unwrap_or(Error::Unknown)),
            Way::Native(op) => op.wait(),
            Way::Read(op) => op.wait().0,
            Way::Write(op) => op.wait(),
        };
        result.map(drop).map_err(failed)
    }

    /// Posts it; the completion comes to the connection's [`Cq`](crate::Cq) with this number.
    ///
    /// # Errors
    ///
    /// `Again` where as many are posted to the queue as it has entries; `Provider` for a full send
    /// queue; those of what made it.
    pub fn post_to_cq(self, context: u64, flags: Flags) -> Result<()> {
        let posted = self.conn.posted();
        posted.reserve()?;
        let result = match self.way {
            Way::Refused(error) => Err(error.unwrap_or(Error::Unknown)),
            Way::Native(op) => op.post().map_err(to_error).map(|under_way| {
                posted.push(context, flags, async move { under_way.await.map_err(failed) });
            }),
            Way::Read(op) => op.post().map_err(to_error).map(|under_way| {
                posted.push(context, flags, async move { told(under_way.await).0 });
            }),
            Way::Write(op) => op.post().map_err(to_error).map(|under_way| {
                posted.push(context, flags, async move { under_way.await.map_err(failed) });
            }),
        };
        result.inspect_err(|_| posted.give_back())
    }
}

impl Future for Ordered<'_> {
    type Output = Result<()>;

    /// # Panics
    ///
    /// Where it is polled again after its result was taken.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let result = match &mut self.way {
            Way::Refused(error) => return Poll::Ready(Err(error.take().unwrap_or(Error::Unknown))),
            Way::Native(op) => Pin::new(op).poll(cx),
            Way::Read(op) => Pin::new(op).poll(cx).map(|(result, _)| result),
            Way::Write(op) => Pin::new(op).poll(cx),
        };
        result.map(|result| result.map(drop).map_err(failed))
    }
}

/// All operations fail with `Inval` where a range leaves the remote memory; `Provider` before the
/// connection stands, after it has ended, and as they complete.
impl Conn {
    /// Reads `len` bytes of the peer's memory, from `offset` on, to the beginning of `dst`
    /// (rpma_read(3)).
    pub fn read<B: IoBufMut>(&self, dst: B, src: &MrRemote, offset: u64, len: u64) -> Op<'_, Read, B> {
        let from = src.slice(offset, len);
        Op::new(self, from.map(|from| move |dst| self.qp().read(dst, from)), dst)
    }
    /// Writes all of `src` to the peer's memory, from `offset` on (rpma_write(3)).
    pub fn write<B: IoBuf>(&self, src: B, dst: &MrRemote, offset: u64) -> Op<'_, Write, B> {
        let to = dst.from(offset);
        Op::new(self, to.map(|to| move |src| self.qp().write(src, to)), src)
    }
    /// Like [`Conn::write`], and tells the peer so: it gets a message without bytes, with this
    /// number (rpma_write_with_imm(3)).
    pub fn write_with_imm<B: IoBuf>(
        &self,
        src: B,
        dst: &MrRemote,
        offset: u64,
        imm: u32,
    ) -> Op<'_, Write, B> {
        let to = dst.from(offset);
        Op::new(self, to.map(|to| move |src| self.qp().write(src, to).imm(imm)), src)
    }
    /// Sends a message (rpma_send(3)); complete when it is in a receive of the peer's.
    pub fn send<B: IoBuf>(&self, src: B) -> Op<'_, Send, B> {
        Op::new(self, Ok(|src| self.qp().send(src)), src)
    }
    /// Like [`Conn::send`], with a number (rpma_send_with_imm(3)).
    pub fn send_with_imm<B: IoBuf>(&self, src: B, imm: u32) -> Op<'_, Send, B> {
        Op::new(self, Ok(move |src| self.qp().send(src).imm(imm)), src)
    }

    /// Stores eight bytes at once (rpma_atomic_write(3)): no reader sees a part of them, where both
    /// ends have ATOMIC WRITE. A WRITE that stands for it is as atomic as the peer's adapter makes
    /// it.
    ///
    /// `Inval` where `offset` is no multiple of 8.
    pub fn atomic_write(&self, dst: &MrRemote, offset: u64, src: [u8; 8]) -> Ordered<'_> {
        let to = match offset % 8 {
            0 => dst.slice(offset, 8),
            _ => Err(Error::Inval("an offset that is no multiple of 8")),
        };
        let both =
            || self.remote_peer_cfg().native_atomic_write() && self.qp().pd().device().has_atomic_write();
        let way = match to {
            Err(error) => Way::Refused(Some(error)),
            // A region may begin anywhere: then there is no word for it.
            Ok(to) if to.addr().is_multiple_of(8) && both() => {
                Way::Native(self.qp().atomic_write(to, u64::from_ne_bytes(src)))
            }
            Ok(to) => Way::Write(self.qp().write_inline(&src, to)),
        };
        Ordered { conn: self, way }
    }

    /// Complete when all that was written to these bytes before is visible, or persistent
    /// (rpma_flush(3)).
    ///
    /// `NoSupp` where the memory is not registered for that, or for persistence without FLUSH and
    /// without direct write: see the module.
    pub fn flush(&self, dst: &MrRemote, offset: u64, len: u64, how: FlushType) -> Ordered<'_> {
        let way = self.way(dst, offset, len, how);
        Ordered { conn: self, way: way.unwrap_or_else(|error| Way::Refused(Some(error))) }
    }

    fn way(&self, dst: &MrRemote, offset: u64, len: u64, how: FlushType) -> Result<Way<'_>> {
        let what = dst.slice(offset, len)?;
        if !dst.has_flush(how) {
            return Err(Error::NoSupp("a flush that the memory was not registered for"));
        }
        let persistent = how == FlushType::Persistent;
        let (right, placement) = match how {
            FlushType::Persistent => (Access::FLUSH_PERSISTENT, Placement::Persistent),
            FlushType::Visibility => (Access::FLUSH_GLOBAL, Placement::Global),
        };
        let remote = self.remote_peer_cfg();
        if remote.native_flush() && self.qp().pd().device().supports(right) {
            return Ok(Way::Native(self.qp().flush(what, placement)));
        }
        if persistent && !remote.direct_write_to_pmem() {
            return Err(Error::NoSupp(
                "a peer that neither has FLUSH nor declares direct write to persistent memory",
            ));
        }
        let len = len.min(FLUSH_READ as u64);
        let part = self.flushed().part(0..len as usize)?;
        Ok(Way::Read(self.qp().read(part, dst.slice(offset, len)?)))
    }
}
