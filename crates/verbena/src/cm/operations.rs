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
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// let write = conn.write_inline(b"value", mr.remote().slice(8..13)?);
    /// let (write, add) = conn.post_all((write, conn.fetch_add(mr.remote().word(0)?, 1)))?;
    /// write.wait()?;
    /// assert_eq!(add.wait()?, 0);
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn post_all<O: Ops>(&self, ops: O) -> Result<O::InFlight, PostError<O>> {
        self.queue_pair().post_all(ops)
    }
    /// The next message: [`QueuePair::recv`]. `None` after the connection has ended and all that
    /// came before was taken.
    ///
    /// # Errors
    ///
    /// What moved the queue pair to the error state, once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// verbena::block_on(async {
    ///     conn.send_inline(b"hello").await?;
    ///     drop(conn);
    ///     while let Some(message) = peer.recv().await? {
    ///         assert_eq!(&message[..], b"hello");
    ///     }
    ///     Ok::<(), verbena::Error>(())
    /// })?;
    /// # Ok::<(), verbena::Error>(())
    /// ```
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

    /// The name of [`Connection::blocking_recv`] before 0.1.0.
    ///
    /// # Errors
    ///
    /// Likewise.
    #[doc(hidden)]
    #[deprecated(note = "renamed to `blocking_recv`")]
    pub fn recv_wait(&self) -> Result<Option<Message>> {
        self.blocking_recv()
    }
    /// Like [`Connection::blocking_recv`], for at most `time`.
    ///
    /// # Errors
    ///
    /// `TimedOut`; those of [`Connection::recv`]; `BlockingInSimulation`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::ErrorKind;
    ///
    /// let none = conn.blocking_recv_timeout(std::time::Duration::from_millis(1));
    /// assert_eq!(none.unwrap_err().kind(), ErrorKind::TimedOut);
    /// # drop(peer);
    /// # Ok::<(), verbena::Error>(())
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// let mut buf = conn.buffer()?;
    /// buf.extend_from_slice(b"a message")?;
    /// let buf = conn.send(buf).wait().buf()?;
    /// assert_eq!(&buf[..], b"a message");
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn send<B: IoBuf>(&self, buf: B) -> Op<'_, kind::Send, B> {
        self.queue_pair().send(buf)
    }
    /// SEND of at most `max_inline` bytes: [`QueuePair::send_inline`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// conn.send_inline(b"short").wait()?;
    /// assert_eq!(&peer.blocking_recv()?.expect("a message")[..], b"short");
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn send_inline(&self, bytes: &[u8]) -> Op<'_, kind::Send, Copied> {
        self.queue_pair().send_inline(bytes)
    }
    /// SEND of bytes copied to a buffer of the pool: [`QueuePair::send_copy`].
    ///
    /// # Errors
    ///
    /// `OutOfRange` for more bytes than the pool's buffers have, `Exhausted`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// conn.send_copy(&[7; 1000])?.imm(1).wait()?;
    /// let message = peer.blocking_recv()?.expect("a message");
    /// assert_eq!((message.len(), message.imm()), (1000, Some(1)));
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn send_copy(&self, bytes: &[u8]) -> Result<Op<'_, kind::Send, Copied>> {
        self.queue_pair().send_copy(bytes)
    }
    /// RDMA WRITE: [`QueuePair::write`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// let mut buf = conn.buffer()?;
    /// buf.extend_from_slice(b"at the peer")?;
    /// conn.write(buf, mr.remote().slice(..11)?).wait().buf()?;
    /// let mut seen = [0; 11];
    /// table.shared().copy_to(0, &mut seen)?;
    /// assert_eq!(&seen, b"at the peer");
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn write<B: IoBuf>(&self, buf: B, to: RemoteMemory) -> Op<'_, kind::Write, B> {
        self.queue_pair().write(buf, to)
    }
    /// RDMA WRITE of at most `max_inline` bytes: [`QueuePair::write_inline`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// conn.write_inline(&7_u64.to_ne_bytes(), mr.remote().word(8)?).wait()?;
    /// assert_eq!(table.shared().load::<u64>(8)?, 7);
    /// # Ok::<(), verbena::Error>(())
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// table.shared().copy_from(0, b"bytes")?;
    /// let buf = conn.read(conn.buffer()?, mr.remote().slice(..5)?).wait().buf()?;
    /// assert_eq!(&buf[..], b"bytes");
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn read<B: IoBufMut>(&self, buf: B, from: RemoteMemory) -> Op<'_, kind::Read, B> {
        self.queue_pair().read(buf, from)
    }
    /// Compare and swap of eight bytes: [`QueuePair::compare_swap`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// let word = mr.remote().word(0)?;
    /// assert_eq!(conn.compare_swap(word, 0, 5).wait()?, 0);
    /// assert_eq!(conn.compare_swap(word, 0, 6).wait()?, 5, "not swapped");
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn compare_swap(&self, at: RemoteMemory, old: u64, new: u64) -> Op<'_, kind::Atomic> {
        self.queue_pair().compare_swap(at, old, new)
    }
    /// Fetch and add on eight bytes: [`QueuePair::fetch_add`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// let counter = mr.remote().word(0)?;
    /// assert_eq!(conn.fetch_add(counter, 2).wait()?, 0);
    /// assert_eq!(conn.fetch_add(counter, 2).wait()?, 2);
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn fetch_add(&self, at: RemoteMemory, add: u64) -> Op<'_, kind::Atomic> {
        self.queue_pair().fetch_add(at, add)
    }
    /// ATOMIC WRITE of eight bytes: [`QueuePair::atomic_write`].
    pub fn atomic_write(&self, at: RemoteMemory, value: u64) -> Op<'_, kind::Order> {
        self.queue_pair().atomic_write(at, value)
    }
    /// FLUSH: [`QueuePair::flush`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// use verbena::{Memory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(64)?;
    /// let mr = table.mr(peer.pd())?;
    /// use verbena::Placement;
    ///
    /// conn.write_inline(b"visible", mr.remote().slice(..7)?).wait()?;
    /// conn.flush(mr.remote().slice(..7)?, Placement::Global).wait()?;
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn flush(&self, range: RemoteMemory, placement: Placement) -> Op<'_, kind::Order> {
        self.queue_pair().flush(range, placement)
    }
}
