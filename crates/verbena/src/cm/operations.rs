//! Operations of a [`Connection`]: those of its [`QueuePair`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use crate::error::{Error, PostError, Result};
use crate::mem::{IoBuf, IoBufMut, RegBuf};
use crate::op::kind::Copied;
use crate::op::{Op, Ops, Placement, kind};
use crate::provider::Pd;
use crate::qp::inner::QpInner;
use crate::qp::{Connected, Message, QpState, QueuePair, Reliable};
use crate::remote::RemoteMemory;
use crate::scope::Scope;

impl<T: Connected> Connection<T> {
    pub(crate) fn inner(&self) -> &Arc<QpInner> {
        let qp: &QueuePair<T> = self.queue_pair();
        qp.inner()
    }

    /// The queue pair's number: [`QueuePair::number`].
    pub fn number(&self) -> u32 {
        self.queue_pair().number()
    }
    /// The protection domain in which memory for the connection is registered: [`QueuePair::pd`].
    pub fn pd(&self) -> &Pd {
        self.queue_pair().pd()
    }
    /// The queue pair's state: [`QueuePair::state`].
    pub fn state(&self) -> QpState {
        self.queue_pair().state()
    }
    /// A buffer of the queue pair's pool: [`QueuePair::buffer`].
    ///
    /// ```no_run
    /// # use verbena::prelude::*;
    /// # fn f(conn: verbena::Connection) -> verbena::Result<()> {
    /// let mut buf = conn.buffer()?;
    /// buf.extend_from_slice(b"a message")?;
    /// conn.send(buf).wait().buf()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `Exhausted` where as many are out as the queues have entries.
    pub fn buffer(&self) -> Result<RegBuf> {
        self.queue_pair().buffer()
    }
    /// Posts several operations with one doorbell, all or none: [`QueuePair::post_all`].
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::post_all`], with the operations.
    pub fn post_all<O: Ops>(&self, ops: O) -> Result<O::InFlight, PostError<O>> {
        self.queue_pair().post_all(ops)
    }
    /// The next message: [`QueuePair::recv`]. `None` after the connection has ended and all that
    /// came before was taken.
    ///
    /// # Errors
    ///
    /// What moved the queue pair to the error state, once.
    pub fn recv(&self) -> impl Future<Output = Result<Option<Message>>> + Send + '_ {
        self.queue_pair().recv()
    }
    /// Like [`Connection::recv`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`Connection::recv`]; `BlockingInSimulation`.
    pub fn blocking_recv(&self) -> Result<Option<Message>> {
        self.queue_pair().blocking_recv()
    }
    /// Like [`Connection::blocking_recv`], for at most `time`.
    ///
    /// # Errors
    ///
    /// `TimedOut`; those of [`Connection::recv`]; `BlockingInSimulation`.
    pub fn blocking_recv_timeout(&self, time: Duration) -> Result<Option<Message>> {
        self.queue_pair().blocking_recv_timeout(time)
    }
    /// A message that has come already.
    ///
    /// # Errors
    ///
    /// Those of [`Connection::recv`].
    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.queue_pair().try_recv()
    }
    /// Moves the queue pair to the error state, of which the peer is told: [`QueuePair::fail`].
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn fail(&self) -> Result<()> {
        self.queue_pair().fail()
    }
    /// The error that moved the queue pair to the error state: [`QueuePair::failure`].
    pub fn failure(&self) -> Option<Error> {
        self.queue_pair().failure()
    }
    /// SEND: [`QueuePair::send`].
    pub fn send<B: IoBuf>(&self, buf: B) -> Op<'_, kind::Send, B> {
        self.queue_pair().send(buf)
    }
    /// SEND of at most `max_inline` bytes: [`QueuePair::send_inline`].
    pub fn send_inline(&self, bytes: &[u8]) -> Op<'_, kind::Send, Copied> {
        self.queue_pair().send_inline(bytes)
    }
    /// SEND of bytes copied to a buffer of the pool: [`QueuePair::send_copy`].
    ///
    /// # Errors
    ///
    /// `OutOfRange` for more bytes than the pool's buffers have, `Exhausted`.
    pub fn send_copy(&self, bytes: &[u8]) -> Result<Op<'_, kind::Send, Copied>> {
        self.queue_pair().send_copy(bytes)
    }
    /// RDMA WRITE: [`QueuePair::write`].
    pub fn write<B: IoBuf>(&self, buf: B, to: RemoteMemory) -> Op<'_, kind::Write, B> {
        self.queue_pair().write(buf, to)
    }
    /// RDMA WRITE of at most `max_inline` bytes: [`QueuePair::write_inline`].
    pub fn write_inline(&self, bytes: &[u8], to: RemoteMemory) -> Op<'_, kind::Write, Copied> {
        self.queue_pair().write_inline(bytes, to)
    }
    /// Operations on bytes that the program lends: [`QueuePair::scope`].
    ///
    /// # Errors
    ///
    /// What `f` gives; `BlockingInSimulation` and `Forked` before it runs.
    pub fn scope<'env, R>(
        &self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, T>) -> Result<R>,
    ) -> Result<R> {
        self.queue_pair().scope(f)
    }
}

impl<T: Reliable> Connection<T> {
    /// RDMA READ: [`QueuePair::read`].
    pub fn read<B: IoBufMut>(&self, buf: B, from: RemoteMemory) -> Op<'_, kind::Read, B> {
        self.queue_pair().read(buf, from)
    }
    /// Compare and swap of eight bytes: [`QueuePair::compare_swap`].
    pub fn compare_swap(&self, at: RemoteMemory, old: u64, new: u64) -> Op<'_, kind::Atomic> {
        self.queue_pair().compare_swap(at, old, new)
    }
    /// Fetch and add on eight bytes: [`QueuePair::fetch_add`].
    pub fn fetch_add(&self, at: RemoteMemory, add: u64) -> Op<'_, kind::Atomic> {
        self.queue_pair().fetch_add(at, add)
    }
    /// ATOMIC WRITE of eight bytes: [`QueuePair::atomic_write`].
    pub fn atomic_write(&self, at: RemoteMemory, value: u64) -> Op<'_, kind::Order> {
        self.queue_pair().atomic_write(at, value)
    }
    /// FLUSH: [`QueuePair::flush`].
    pub fn flush(&self, range: RemoteMemory, placement: Placement) -> Op<'_, kind::Order> {
        self.queue_pair().flush(range, placement)
    }
}
