//! One thread, one connection, no thread to wake: for latency. What may be under way lives where it
//! does for all connections, in the queue pair's entries; but its completion queue wakes no thread
//! (it is not armed), so completions come when this thread asks and at no other time.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use transport::op::{SendOp, SendWr};

use crate::cm::Connection;
use crate::error::{Error, ErrorKind, PostError, Result};
use crate::mem::{IoBuf, IoBufMut, RegBuf, SharedSlice};
use crate::op::kind::{self, Kind};
use crate::op::slot::Ticket;
use crate::op::{Asked, Completion, Op, Reading, Request, Sending, Writing};
use crate::provider::Pd;
use crate::qp::Message;
use crate::qp::inner::QpInner;
use crate::remote::RemoteMemory;

/// How often memory is looked at between two polls that are not needed for it: twenty to forty
/// microseconds. A poll that looks at the sockets takes a microsecond, and the answer to a WRITE,
/// which may come meanwhile, two.
const LOOKS_PER_POLL: u32 = 65_536;

/// A connection that belongs to one polling thread: [`Connection::into_polled`]. It may move to
/// another thread, but not be shared:
/// ```compile_fail,E0277
/// fn f(conn: &verbena::PolledConnection) {
///     std::thread::scope(|s| {
///         s.spawn(|| {
///             conn.pd();
///         });
///     });
/// }
/// ```
/// and there is one of it:
/// ```compile_fail,E0308
/// fn f(conn: &verbena::PolledConnection) -> verbena::PolledConnection {
///     conn.clone()
/// }
/// ```
/// Dropping it ends the connection.
///
/// # Examples
///
/// ```no_run
/// # fn f(conn: verbena::Connection, to: verbena::RemoteMemory) -> Result<(), Box<dyn std::error::Error>> {
/// let mut conn = conn.into_polled()?;
/// let mut buf = conn.buffer()?;
/// buf.extend_from_slice(&1_u64.to_ne_bytes())?;
/// let mut write = conn.prepare_write(buf, to.word(0)?)?;
/// for _ in 0..1000 {
///     conn.spin(&mut write)?;
/// }
/// # Ok(()) }
/// ```
pub struct PolledConnection {
    conn: Connection,
    /// The last WRITE or READ was done as it was posted, without packets: so are the peer's, most
    /// likely.
    at_once: bool,
    _not_sync: PhantomData<Cell<()>>,
}

impl PolledConnection {
    /// Of a connection without other handles. Results of what was posted before come by polling,
    /// too.
    pub(crate) fn new(conn: Connection) -> Self {
        conn.inner().only_polled();
        Self { conn, at_once: false, _not_sync: PhantomData }
    }

    fn qp(&self) -> &Arc<QpInner> {
        self.conn.inner()
    }

    /// Where memory for it is registered.
    pub fn pd(&self) -> &Pd {
        self.conn.pd()
    }
    /// A buffer of its queue pair's pool: [`QueuePair::buffer`](crate::QueuePair::buffer).
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn buffer(&self) -> Result<RegBuf> {
        self.conn.buffer()
    }
    /// What the peer's program said: [`Connection::private_data`].
    pub fn private_data(&self) -> &[u8] {
        self.conn.private_data()
    }
    /// The error that moved its queue pair to the error state.
    pub fn failure(&self) -> Option<Error> {
        self.conn.failure()
    }

    /// Posts a SEND; look for the result with [`InFlight::try_take`](crate::InFlight::try_take).
    ///
    /// # Errors
    ///
    /// Those of [`Op::post`], with the operation.
    #[expect(clippy::result_large_err, reason = "the operation comes back as it was")]
    pub fn send<B: IoBuf>(&mut self, buf: B) -> Result<Sending<B>, PostError<Op<'_, kind::Send, B>>> {
        self.conn.send(buf).post()
    }
    /// Posts a WRITE, as [`PolledConnection::send`] does a SEND.
    ///
    /// # Errors
    ///
    /// Likewise.
    #[expect(clippy::result_large_err, reason = "the operation comes back as it was")]
    pub fn write<B: IoBuf>(
        &mut self,
        buf: B,
        to: RemoteMemory,
    ) -> Result<Writing<B>, PostError<Op<'_, kind::Write, B>>> {
        self.conn.write(buf, to).post()
    }
    /// Posts a READ, as [`PolledConnection::send`] does a SEND.
    ///
    /// # Errors
    ///
    /// Likewise.
    #[expect(clippy::result_large_err, reason = "the operation comes back as it was")]
    pub fn read<B: IoBufMut>(
        &mut self,
        buf: B,
        from: RemoteMemory,
    ) -> Result<Reading<B>, PostError<Op<'_, kind::Read, B>>> {
        self.conn.read(buf, from).post()
    }

    /// Writes a WRITE down, to be posted again and again.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for more bytes than `to` has, or more pieces than the queue pair takes;
    /// `WrongDomain`; `Forked`.
    pub fn prepare_write<B: IoBuf>(&mut self, buf: B, to: RemoteMemory) -> Result<Prepared<B>> {
        self.prepare::<kind::Write, B>(Asked::Write(to), buf)
    }
    /// Like [`PolledConnection::prepare_write`], for a SEND.
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn prepare_send<B: IoBuf>(&mut self, buf: B) -> Result<Prepared<B>> {
        self.prepare::<kind::Send, B>(Asked::Send, buf)
    }

    fn prepare<K: Kind<B>, B: IoBuf>(&mut self, asked: Asked, buf: B) -> Result<Prepared<B>> {
        let request = Request::new(asked);
        let wr = request.wr(0, self.qp().pieces::<K, B>(&request, &buf)?);
        Ok(Prepared { qp: self.qp().clone(), wr, at: At::Here(buf) })
    }

    /// Posts it; nothing is allocated.
    ///
    /// # Errors
    ///
    /// `WrongState` while it is under way, or where it is another connection's; those of
    /// [`Op::post`].
    pub fn post<B: IoBuf>(&mut self, op: &mut Prepared<B>) -> Result<()> {
        self.qp().check_is(&op.qp)?;
        let buf = match std::mem::replace(&mut op.at, At::Nowhere) {
            At::Here(buf) => buf,
            other => {
                op.at = other;
                return Err(Error::new(ErrorKind::WrongState, "ibv_post_send"));
            }
        };
        match self.qp().post_ready(&mut op.wr, buf) {
            Ok(ticket) => {
                op.at = At::Queue(ticket);
                self.qp().stack().later().run();
                Ok(())
            }
            Err((error, buf)) => {
                op.at = At::Here(buf);
                Err(error)
            }
        }
    }

    /// The result of what was posted, once; `None` while it is under way, or was not posted. Polls
    /// nothing.
    pub fn take<B: IoBuf>(&mut self, op: &mut Prepared<B>) -> Option<Result<Completion>> {
        let At::Queue(ticket) = &op.at else { return None };
        let (ended, buf) = op.qp.take_result(ticket)?;
        op.at = At::Here(buf);
        Some(ended.map(|(completion, _)| completion))
    }

    /// Posts it and polls until it is complete.
    ///
    /// # Errors
    ///
    /// Those of [`PolledConnection::post`]; how it completed; `BlockingInSimulation`.
    pub fn spin<B: IoBuf>(&mut self, op: &mut Prepared<B>) -> Result<Completion> {
        self.may_block("spin")?;
        self.post(op)?;
        if matches!(op.wr.op, SendOp::Write { .. } | SendOp::Read { .. }) {
            self.at_once = self.qp().carrier().has_completions();
        }
        loop {
            self.poll();
            if let Some(result) = self.take(op) {
                return result;
            }
        }
    }

    /// Polls once: takes what has arrived in this thread, then all completions.
    #[inline]
    pub fn poll(&mut self) {
        self.qp().poll_now();
    }

    /// The next message, if one has come; polls nothing.
    ///
    /// # Errors
    ///
    /// What moved the queue pair to the error state, once; `Disconnected` after the connection has
    /// ended and all that came was taken.
    pub fn try_recv(&mut self) -> Result<Option<Message>> {
        match self.qp().poll_recv(None) {
            Poll::Ready(Ok(None)) => Err(Error::new(ErrorKind::Disconnected, "ibv_poll_cq")),
            Poll::Ready(message) => message,
            Poll::Pending => Ok(None),
        }
    }

    /// Polls until a message has come; `None` after the connection has ended and all that came was
    /// taken.
    ///
    /// # Errors
    ///
    /// What moved the queue pair to the error state, once; `BlockingInSimulation`.
    pub fn spin_recv(&mut self) -> Result<Option<Message>> {
        self.may_block("spin_recv")?;
        loop {
            let seen = self.qp().news();
            if let Poll::Ready(message) = self.qp().poll_recv(None) {
                return message;
            }
            while self.qp().news() == seen {
                self.poll();
            }
        }
    }

    /// Polls until eight bytes that the peer writes are as wanted, and gives them. What it wrote
    /// before them is there, too.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where they are not inside, or `at` is no multiple of eight; `Disconnected`, or
    /// what moved the queue pair to the error state, where the connection has ended;
    /// `BlockingInSimulation`.
    pub fn spin_until(
        &mut self,
        memory: SharedSlice<'_>,
        at: usize,
        is: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        self.may_block("spin_until")?;
        let word = memory.word(at)?;
        let mut seen = None;
        // What comes without packets needs no poll.
        let looks = if self.at_once { LOOKS_PER_POLL } else { 1 };
        loop {
            for _ in 0..looks {
                let value = word.load(Ordering::Acquire);
                if is(value) {
                    return Ok(value);
                }
            }
            let news = self.qp().news();
            if seen.replace(news) != Some(news) && self.qp().has_ended() {
                let ended = || Error::new(ErrorKind::Disconnected, "ibv_poll_cq");
                return Err(self.failure().unwrap_or_else(ended));
            }
            self.poll();
        }
    }

    fn may_block(&self, call: &'static str) -> Result<()> {
        if self.qp().stack().may_block() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::BlockingInSimulation, call))
        }
    }
}

impl std::fmt::Debug for PolledConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Polled{:?}", self.conn)
    }
}

/// A work request that was written down once, with its buffer: [`PolledConnection::prepare_write`].
/// Dropped or forgotten while it is under way, the queue pair keeps the buffer until the
/// completion.
#[must_use = "it is posted by `spin` or `post`"]
pub struct Prepared<B: Send + 'static> {
    qp: Arc<QpInner>,
    /// Of the buffer as it is: no code changes more of it than its bytes.
    wr: SendWr,
    at: At<B>,
}

/// Where the buffer is.
enum At<B> {
    Here(B),
    /// In the queue pair's entry.
    Queue(Ticket<B>),
    Nowhere,
}

impl Prepared<RegBuf> {
    /// The bytes, unless it is under way.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.at {
            At::Here(buf) => Some(buf),
            _ => None,
        }
    }
}

impl<B: Send + 'static> Prepared<B> {
    /// Posted, and its result not taken.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.at, At::Queue(_))
    }
    /// The buffer, unless it is under way.
    ///
    /// # Errors
    ///
    /// Itself, where it is.
    #[expect(clippy::result_large_err, reason = "it comes back as it was")]
    pub fn into_buf(mut self) -> Result<B, Self> {
        match std::mem::replace(&mut self.at, At::Nowhere) {
            At::Here(buf) => Ok(buf),
            other => {
                self.at = other;
                Err(self)
            }
        }
    }
}

impl<B: Send + 'static> Drop for Prepared<B> {
    fn drop(&mut self) {
        if let At::Queue(ticket) = &self.at {
            self.qp.abandon(ticket);
        }
    }
}

impl<B: Send + 'static> std::fmt::Debug for Prepared<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_in_flight() { "Prepared(in flight)" } else { "Prepared" })
    }
}
