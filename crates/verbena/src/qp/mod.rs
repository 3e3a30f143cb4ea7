//! Queue pairs: [`QueuePair`], what it can do by its [`Transport`], and [`Message`]s.
//!
//! | file | what |
//! |---|---|
//! | this one | transports, [`QueuePair`] |
//! | `config` | sizes: [`QueueConfig`] |
//! | `inner` | what the handles share: entries of both queues, and how completions reach tasks |
//! | `carrier` | the queue pair of the stack below |
//! | `completions` | its completion queue |
//! | `afterwards` | what waits until the queues are unlocked |
//! | `posting` | work requests on their way into the send queue |
//! | `waited` | which queue pairs a thread polls while it waits |
//! | `message` | [`Message`] |
//! | `srq` | [`Srq`]: receives that many queue pairs share |
//! | `xrc` | [`XrcSend`], [`XrcSrq`]: extended reliable connections |
//! | `cq` | [`Cq`]: a completion queue that they share |

mod afterwards;
pub(crate) mod carrier;
mod completions;
mod config;
mod cq;
pub(crate) mod inner;
mod message;
pub(crate) mod posting;
mod srq;
#[cfg(feature = "system")]
pub(crate) mod waited;
mod xrc;

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use transport::op::{AtomicOp, Data};

use crate::error::{Error, ErrorKind, PostError, Result};
use crate::exec::{self, How};
use crate::mem::{IoBuf, IoBufMut, RegBuf};
use crate::op::kind::Copied;
use crate::op::{Asked, Op, Ops, Placement, kind};
use crate::provider::Pd;
use crate::remote::RemoteMemory;
pub use config::QueueConfig;
pub use cq::Cq;
use inner::QpInner;
pub use message::Message;
pub use srq::Srq;
pub use xrc::{ToSrq, XrcSend, XrcSrq};

/// Transport services; each has the operations that it can do:
/// ```compile_fail,E0599
/// fn f(qp: &verbena::QueuePair<verbena::Ud>, buf: verbena::RegBuf, from: verbena::RemoteMemory) {
///     let _ = qp.read(buf, from);
/// }
/// ```
/// ```compile_fail,E0599
/// fn f(qp: &verbena::QueuePair<verbena::Uc>, at: verbena::RemoteMemory) {
///     let _ = qp.fetch_add(at, 1);
/// }
/// ```
/// A vector of the program's own is not registered:
/// ```compile_fail,E0277
/// fn f(conn: &verbena::Connection) {
///     let _ = conn.send(vec![1_u8, 2, 3]);
/// }
/// ```
pub trait Transport: sealed::Service + Send + Sync + 'static {}
/// Has one peer, or is one half of that: XRC.
pub trait HasPeer: Transport {}
/// Has one peer.
pub trait Connected: HasPeer {}
/// READ, atomics, FLUSH.
pub trait Reliable: Connected {}
/// Reliable connection.
#[derive(Debug)]
pub enum Rc {}
/// Unreliable connection.
#[derive(Debug)]
pub enum Uc {}
/// Unreliable datagram; see [`UdSocket`](crate::UdSocket).
#[derive(Debug)]
pub enum Ud {}
impl Transport for Rc {}
impl Transport for Uc {}
impl Transport for Ud {}
impl HasPeer for Rc {}
impl HasPeer for Uc {}
impl Connected for Rc {}
impl Connected for Uc {}
impl Reliable for Rc {}

pub(crate) mod sealed {
    /// No other crate has a transport service of its own.
    pub trait Service {
        #[doc(hidden)]
        const KIND: nic::QpType;
    }
    impl Service for super::Rc {
        const KIND: nic::QpType = nic::QpType::Rc;
    }
    impl Service for super::Uc {
        const KIND: nic::QpType = nic::QpType::Uc;
    }
    impl Service for super::Ud {
        const KIND: nic::QpType = nic::QpType::Ud;
    }
}

/// A queue pair: a handle, clones are the same one. It keeps the memory of its operations until
/// they are complete.
pub struct QueuePair<T: Transport = Rc> {
    inner: Arc<QpInner>,
    _t: PhantomData<fn() -> T>,
}

impl<T: Transport> Clone for QueuePair<T> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone())
    }
}

impl<T: Transport> std::fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueuePair({:#x}, {:?})", self.number(), self.state())
    }
}

/// `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the header's")]
pub enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Error,
}

impl<T: Transport> QueuePair<T> {
    pub(crate) fn new(inner: Arc<QpInner>) -> Self {
        Self { inner, _t: PhantomData }
    }
    /// The queue pair's number, 24 bits.
    pub fn number(&self) -> u32 {
        self.inner.carrier().qpn().get()
    }
    /// The queue pair's protection domain: where memory for it is registered.
    pub fn pd(&self) -> &Pd {
        self.inner.pd()
    }
    /// The queue pair's state.
    pub fn state(&self) -> QpState {
        match self.inner.carrier().state() {
            nic::QpState::Reset => QpState::Reset,
            nic::QpState::Init => QpState::Init,
            nic::QpState::Rtr => QpState::Rtr,
            nic::QpState::Rts => QpState::Rts,
            nic::QpState::Sqd => QpState::Sqd,
            nic::QpState::Sqe => QpState::Sqe,
            nic::QpState::Error => QpState::Error,
        }
    }
    /// A buffer of its pool, which has as much room as its receives.
    ///
    /// # Errors
    ///
    /// `Exhausted` where as many are out as its queues have entries.
    pub fn buffer(&self) -> Result<RegBuf> {
        self.inner.pool().get()
    }
    /// Posts several operations with one doorbell: all or none.
    ///
    /// # Errors
    ///
    /// Those of [`Op::post`]; they come back where the queue has no room for all, where one is
    /// wrong or of another queue pair.
    pub fn post_all<O: Ops>(&self, ops: O) -> Result<O::InFlight, PostError<O>> {
        self.inner.post_all(ops)
    }
    /// The next message. Cancelling loses nothing: receives stay posted, messages wait. `None`
    /// after the connection has ended and all that came before was taken.
    ///
    /// # Errors
    ///
    /// What moved the queue pair to the error state, once.
    pub fn recv(&self) -> impl Future<Output = Result<Option<Message>>> + Send + '_ {
        let mut place = inner::Place::default();
        std::future::poll_fn(move |cx| self.inner.poll_recv(Some((&mut place, cx))))
    }
    /// Like [`QueuePair::recv`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::recv`]; `BlockingInSimulation`.
    pub fn blocking_recv(&self) -> Result<Option<Message>> {
        self.may_block("blocking_recv")?;
        self.block("blocking_recv", How::default())
    }
    /// Like [`QueuePair::blocking_recv`], for at most so long.
    ///
    /// # Errors
    ///
    /// `TimedOut`; those of [`QueuePair::recv`]; `BlockingInSimulation`.
    pub fn blocking_recv_timeout(&self, time: Duration) -> Result<Option<Message>> {
        self.may_block("blocking_recv_timeout")?;
        let until = Instant::now().checked_add(time);
        self.block("blocking_recv_timeout", How { never_sleeps: false, until })
    }
    fn block(&self, call: &'static str, how: How) -> Result<Option<Message>> {
        let look = || match self.inner.poll_recv(None) {
            Poll::Ready(message) => Some(message),
            Poll::Pending => None,
        };
        let found = look().or_else(|| exec::poll_on(&self.inner, how, look));
        let found = found.or_else(|| exec::go_on(self.recv(), how, self.inner.gains_by_polling()));
        found.unwrap_or_else(|| Err(Error::new(ErrorKind::TimedOut, call)))
    }
    /// A message that has come already.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::recv`].
    pub fn try_recv(&self) -> Result<Option<Message>> {
        match self.inner.poll_recv(None) {
            Poll::Ready(message) => message,
            Poll::Pending => Ok(None),
        }
    }
    /// The error that moved it to the error state; what was flushed says only `Flushed`.
    pub fn failure(&self) -> Option<Error> {
        self.inner.failure()
    }
    fn may_block(&self, call: &'static str) -> Result<()> {
        exec::may_block(self.inner.stack(), call)
    }
    pub(crate) fn inner(&self) -> &Arc<QpInner> {
        &self.inner
    }
}

impl<T: Connected> QueuePair<T> {
    /// SEND.
    pub fn send<B: IoBuf>(&self, buf: B) -> Op<'_, kind::Send, B> {
        Op::new(&self.inner, Asked::Send, buf)
    }
    /// SEND of at most `max_inline` bytes, copied into the work request: no registration, nothing
    /// to give back.
    pub fn send_inline(&self, bytes: &[u8]) -> Op<'_, kind::Send, Copied> {
        Op::new(&self.inner, Asked::Send, Copied(None))
            .map(|request| request.inline = Some(Data::inline(bytes)))
    }
    /// SEND of bytes copied to a buffer of the pool.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for more bytes than its buffers have, `Exhausted`.
    pub fn send_copy(&self, bytes: &[u8]) -> Result<Op<'_, kind::Send, Copied>> {
        Ok(Op::new(&self.inner, Asked::Send, Copied(Some(self.inner.pool().copy(bytes)?))))
    }
    /// RDMA WRITE. More bytes than `to` has: `OutOfRange`, nothing is posted.
    pub fn write<B: IoBuf>(&self, buf: B, to: RemoteMemory) -> Op<'_, kind::Write, B> {
        Op::new(&self.inner, Asked::Write(to), buf)
    }
    /// RDMA WRITE of at most `max_inline` bytes.
    pub fn write_inline(&self, bytes: &[u8], to: RemoteMemory) -> Op<'_, kind::Write, Copied> {
        let op = Op::new(&self.inner, Asked::Write(to), Copied(None));
        op.map(|request| request.inline = Some(Data::inline(bytes)))
    }
}

impl<T: Reliable> QueuePair<T> {
    /// RDMA READ of as many bytes as `from` has, to the beginning of the buffer.
    pub fn read<B: IoBufMut>(&self, buf: B, from: RemoteMemory) -> Op<'_, kind::Read, B> {
        Op::new(&self.inner, Asked::Read(from), buf)
    }
    /// Stores `new` where `old` is; gives what was there. Eight bytes of `at`, see
    /// [`RemoteMemory::word`].
    pub fn compare_swap(&self, at: RemoteMemory, old: u64, new: u64) -> Op<'_, kind::Atomic> {
        Op::new(&self.inner, Asked::Atomic(at, AtomicOp::CompareSwap { compare: old, swap: new }), ())
    }
    /// Adds, wrapping; gives what was there.
    pub fn fetch_add(&self, at: RemoteMemory, add: u64) -> Op<'_, kind::Atomic> {
        Op::new(&self.inner, Asked::Atomic(at, AtomicOp::FetchAdd(add)), ())
    }
    /// ATOMIC WRITE of eight bytes (IBA annex A19).
    pub fn atomic_write(&self, at: RemoteMemory, value: u64) -> Op<'_, kind::Order> {
        Op::new(&self.inner, Asked::Atomic(at, AtomicOp::Write(value)), ())
    }
    /// FLUSH (IBA annex A19). It completes when all that this queue pair wrote to `range` before
    /// has the given placement.
    pub fn flush(&self, range: RemoteMemory, placement: Placement) -> Op<'_, kind::Order> {
        Op::new(&self.inner, Asked::Flush(range, placement.flush()), ())
    }
}
