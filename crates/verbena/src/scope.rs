//! Borrowed memory, for as long as a closure runs: [`QueuePair::scope`].
//!
//! There is no async scope: a future may be forgotten, and then no thread would wait for what it
//! posted. Nor are there receives: nothing could end them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::exec;
use crate::mem::Borrowed;
use crate::op::kind::{self, Kind};
use crate::op::{Asked, Completion, InFlight, Op};
use crate::qp::inner::{Place, QpInner};
use crate::qp::{Connected, QueuePair, Reliable, Transport};
use crate::remote::RemoteMemory;

/// Operations on borrowed bytes; see [`QueuePair::scope`]. It stays in the thread that made it.
pub struct Scope<'scope, 'env: 'scope, T: Transport> {
    qp: Arc<QpInner>,
    /// What was posted; each stays here until it is complete, whatever becomes of its [`ScopedOp`].
    posted: RefCell<Vec<Posted>>,
    /// The first of them that is perhaps under way: results that no caller has taken yet have an
    /// entry of the send queue each.
    first: Cell<usize>,
    /// Each value of borrowed bytes has a handle of it: where this is the only one, none is
    /// registered.
    registered: Arc<()>,
    _borrows: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
    _transport: PhantomData<fn() -> T>,
}

enum Posted {
    Send(InFlight<kind::Send, Borrowed>),
    Write(InFlight<kind::Write, Borrowed>),
    Read(InFlight<kind::Read, Borrowed>),
    Complete(Result<Completion>),
    /// The handle's owner has the result.
    Taken,
}

impl Posted {
    /// Ready once it is complete and its bytes are no longer registered.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = match self {
            Self::Send(op) => Pin::new(op).poll(cx),
            Self::Write(op) => Pin::new(op).poll(cx),
            Self::Read(op) => Pin::new(op).poll(cx),
            Self::Complete(_) | Self::Taken => return Poll::Ready(()),
        };
        polled.map(|(result, bytes)| {
            *self = Self::Complete(result);
            drop(bytes);
        })
    }
}

/// An operation of a [`Scope`]. Dropping it forgets its result; the scope still waits for it.
#[must_use = "dropping it loses the result"]
pub struct ScopedOp<'scope, 'env, T: Transport> {
    scope: &'scope Scope<'scope, 'env, T>,
    at: usize,
}

impl<T: Transport> ScopedOp<'_, '_, T> {
    /// Blocks until it is complete, as [`Op::wait`].
    ///
    /// # Errors
    ///
    /// `Completion` with the status; `Forked`.
    pub fn wait(self) -> Result<Completion> {
        self.scope.qp.stack().check("wait")?;
        let posted = &self.scope.posted;
        exec::block_on(poll_fn(|cx| posted.borrow_mut()[self.at].poll(cx)));
        match std::mem::replace(&mut posted.borrow_mut()[self.at], Posted::Taken) {
            Posted::Complete(result) => result,
            // Not there: it was complete, and only `self` takes it.
            other => {
                posted.borrow_mut()[self.at] = other;
                Err(Error::new(ErrorKind::WrongState, "wait"))
            }
        }
    }
}

impl<T: Connected> QueuePair<T> {
    /// Runs `f`, which may post operations on bytes that it borrows from outside, then waits until
    /// all of them are complete. Where `f` panics the queue pair goes to the error state first,
    /// so that nothing is waited for that the peer owes. The bytes are registered for
    /// the one operation: for those of a pool that cost is paid once.
    ///
    /// It neither returns nor unwinds while an operation has borrowed bytes, whatever panics
    /// meanwhile. A waker that this thread calls while it waits may panic: that is caught
    /// ([`caught_panics`](crate::caught_panics)). After a panic of this crate's own the queue pair
    /// goes to the error state, all is waited for again, and then the panic goes on. Where even
    /// that fails the process aborts.
    ///
    /// A SEND to a peer that never posts a receive is never complete, where the connection's
    /// `rnr_retry_count` says for ever: neither is the scope.
    ///
    /// ```no_run
    /// # fn f(conn: &verbena::Connection, from: verbena::RemoteMemory) -> verbena::Result<()> {
    /// let mut bytes = [0; 64];
    /// conn.scope(|s| s.read(&mut bytes, from)?.wait())?;
    /// println!("{bytes:?}");
    /// # Ok(()) }
    /// ```
    ///
    /// Nothing escapes:
    /// ```compile_fail,E0597
    /// fn f(conn: &verbena::Connection) -> verbena::Result<()> {
    ///     conn.scope(|s| {
    ///         let bytes = vec![0_u8; 64];
    ///         s.send(&bytes)?.wait()?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    /// and a destination is not readable meanwhile:
    /// ```compile_fail,E0502
    /// fn f(conn: &verbena::Connection, from: verbena::RemoteMemory) -> verbena::Result<()> {
    ///     let mut bytes = [0_u8; 64];
    ///     conn.scope(|s| {
    ///         let op = s.read(&mut bytes, from)?;
    ///         println!("{}", bytes[0]);
    ///         op.wait()?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// What `f` gives; `BlockingInSimulation` and `Forked` before it runs.
    pub fn scope<'env, R>(
        &self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, T>) -> Result<R>,
    ) -> Result<R> {
        const CALL: &str = "scope";
        let qp = self.inner();
        qp.stack().check(CALL)?;
        exec::may_block(qp.stack(), CALL)?;
        let scope = Scope {
            qp: qp.clone(),
            posted: RefCell::default(),
            first: Cell::new(0),
            registered: Arc::default(),
            _borrows: PhantomData,
            _transport: PhantomData,
        };
        let drain = Drain { posted: &scope.posted, registered: &scope.registered, qp, panics: true };
        let result = f(&scope);
        drain.end();
        result
    }
}

/// Waits, when it is dropped, until all that was posted is complete and nothing is registered any
/// more.
struct Drain<'a> {
    posted: &'a RefCell<Vec<Posted>>,
    registered: &'a Arc<()>,
    qp: &'a QpInner,
    panics: bool,
}

/// How often it begins again after a panic of the stack's own.
const ATTEMPTS: u32 = 10;
/// For how long it waits for what has no handle any more before it looks again.
const LOOK: Duration = Duration::from_millis(10);
/// How often it looks; nothing is under way any more after the first, as the queue pair is in the
/// error state.
const LOOKS: u32 = 100;

impl Drain<'_> {
    fn end(mut self) {
        self.panics = false;
    }

    /// Whether some of the borrowed bytes are registered.
    fn is_needed(&self) -> bool {
        Arc::strong_count(self.registered) > 1
    }

    fn drain(&self, posted: &mut Vec<Posted>) {
        if self.panics {
            self.qp.fail();
        }
        posted.iter_mut().for_each(|posted| exec::block_on(poll_fn(|cx| posted.poll(cx))));
        posted.clear();
        // After a panic there may be operations whose handles are gone: the thread that drains
        // drops their bytes.
        for _ in 0..LOOKS {
            if !self.is_needed() {
                return;
            }
            self.qp.fail();
            exec::block_on_for(self.qp.idle(), LOOK);
        }
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        let mut posted = self.posted.take();
        if !self.qp.stack().is_ours() {
            // The parent's operations, on the parent's memory.
            return std::mem::forget(posted);
        }
        let mut first = None;
        for _ in 0..ATTEMPTS {
            match catch_unwind(AssertUnwindSafe(|| self.drain(&mut posted))) {
                Ok(()) => break,
                Err(panic) => {
                    self.panics = true;
                    first.get_or_insert(panic);
                }
            }
        }
        if self.is_needed() {
            // The bytes are about to be the program's again, and an adapter may write them.
            eprintln!(
                "verbena: a scope can not end: operations on its bytes do not complete, even in the error state"
            );
            std::process::abort();
        }
        if let Some(panic) = first.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

impl<'scope, 'env, T: Connected> Scope<'scope, 'env, T> {
    /// SEND.
    ///
    /// # Errors
    ///
    /// Those of [`Op::post`] but `QueueFull`: it waits for room. `Exhausted` where the device has
    /// no more registrations.
    #[allow(unsafe_code, reason = "borrowed bytes are registered")]
    pub fn send(&'scope self, bytes: &'env [u8]) -> Result<ScopedOp<'scope, 'env, T>> {
        // SAFETY: 'env outlives the scope, which does not end, not by a panic either, before the
        // operation is complete and the registration gone (`Drain`).
        let bytes = unsafe { Borrowed::shared(self.qp.pd(), bytes, &self.registered)? };
        self.post(Asked::Send, bytes, Posted::Send)
    }
    /// RDMA WRITE.
    ///
    /// # Errors
    ///
    /// Those of [`Scope::send`]; `OutOfRange` for more bytes than `to` has.
    #[allow(unsafe_code, reason = "borrowed bytes are registered")]
    pub fn write(&'scope self, bytes: &'env [u8], to: RemoteMemory) -> Result<ScopedOp<'scope, 'env, T>> {
        // SAFETY: as in `send`.
        let bytes = unsafe { Borrowed::shared(self.qp.pd(), bytes, &self.registered)? };
        self.post(Asked::Write(to), bytes, Posted::Write)
    }

    /// Takes results in the order of posting, until there is room in the send queue.
    fn poll_room(&self, place: &mut Place, cx: &mut Context<'_>) -> Poll<()> {
        let mut posted = self.posted.borrow_mut();
        while posted.get_mut(self.first.get()).is_some_and(|posted| posted.poll(cx).is_ready()) {
            self.first.set(self.first.get() + 1);
        }
        if self.qp.wait_for_room(place, cx) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn post<K: Kind<Borrowed>>(
        &'scope self,
        asked: Asked,
        bytes: Borrowed,
        posted: impl FnOnce(InFlight<K, Borrowed>) -> Posted,
    ) -> Result<ScopedOp<'scope, 'env, T>> {
        let mut op = Op::<K, _>::new(&self.qp, asked, bytes);
        let mut place = Place::default();
        let in_flight = loop {
            match op.post() {
                Ok(in_flight) => break in_flight,
                Err(full) if full.error().kind() == ErrorKind::QueueFull => op = full.into_op(),
                Err(failed) => return Err(failed.into()),
            }
            exec::block_on(poll_fn(|cx| self.poll_room(&mut place, cx)));
        };
        let mut all = self.posted.borrow_mut();
        all.push(posted(in_flight));
        Ok(ScopedOp { scope: self, at: all.len() - 1 })
    }
}

impl<'scope, 'env, T: Reliable> Scope<'scope, 'env, T> {
    /// RDMA READ of as many bytes as `from` has, to the first of these.
    ///
    /// # Errors
    ///
    /// Those of [`Scope::send`]; `OutOfRange` where there are fewer.
    #[allow(unsafe_code, reason = "borrowed bytes are registered")]
    pub fn read(
        &'scope self,
        bytes: &'env mut [u8],
        from: RemoteMemory,
    ) -> Result<ScopedOp<'scope, 'env, T>> {
        // SAFETY: as in `send`; and they are borrowed exclusively for all of 'env.
        let bytes = unsafe { Borrowed::exclusive(self.qp.pd(), bytes, &self.registered)? };
        self.post(Asked::Read(from), bytes, Posted::Read)
    }
}

impl<T: Transport> std::fmt::Debug for Scope<'_, '_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scope")
    }
}

impl<T: Transport> std::fmt::Debug for ScopedOp<'_, '_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScopedOp")
    }
}
