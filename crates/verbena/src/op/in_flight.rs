//! An operation that is posted.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::exec::{self, How};
use crate::op::kind::{self, Kind, Raw};
use crate::op::slot::Ticket;
use crate::qp::inner::{Ended, QpInner};

/// An operation that is posted. Without lifetime, so it can lie in any structure: it holds the
/// queue pair. Dropping it forgets the result, not the memory.
#[must_use = "dropping it loses the buffer and the result"]
pub struct InFlight<K: Kind<B>, B: Send + 'static = ()> {
    qp: Arc<QpInner>,
    /// `None` once the result was taken.
    ticket: Option<Ticket<B>>,
    _kind: PhantomData<fn() -> K>,
}

/// A SEND under way.
pub type Sending<B> = InFlight<kind::Send, B>;
/// A WRITE under way.
pub type Writing<B> = InFlight<kind::Write, B>;
/// A READ under way.
pub type Reading<B> = InFlight<kind::Read, B>;

impl<K: Kind<B>, B: Send + 'static> Unpin for InFlight<K, B> {}

impl<K: Kind<B>, B: Send + 'static> InFlight<K, B> {
    pub(crate) fn new(qp: Arc<QpInner>, ticket: Ticket<B>) -> Self {
        Self::of(qp, Some(ticket))
    }
    pub(crate) fn of(qp: Arc<QpInner>, ticket: Option<Ticket<B>>) -> Self {
        Self { qp, ticket, _kind: PhantomData }
    }

    #[inline]
    fn look(&mut self, cx: Option<&mut Context<'_>>) -> Poll<K::Output> {
        let Some(ticket) = &self.ticket else { return Poll::Pending };
        let polled = self.qp.poll_ticket(ticket, cx);
        polled.map(|taken| self.end(taken))
    }

    /// Notes that the result was taken, and makes the operation's output of it.
    #[inline]
    fn end(&mut self, (result, mut value): (Ended, B)) -> K::Output {
        self.ticket = None;
        if let Ok((completion, _)) = &result {
            K::set_filled(&mut value, completion.len);
        }
        K::output(Raw(result), value)
    }

    /// Takes the operation's result, where there is one; polls nothing.
    ///
    /// # Errors
    ///
    /// Itself, where it is under way.
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
    /// let mut sending = conn.send_inline(b"hello").post()?;
    /// loop {
    ///     match sending.try_take() {
    ///         Ok(sent) => break drop(sent?),
    ///         Err(not_yet) => sending = not_yet,
    ///     }
    ///     std::thread::yield_now();
    /// }
    /// # drop(peer);
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn try_take(mut self) -> Result<K::Output, Self> {
        match self.look(None) {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => Err(self),
        }
    }

    /// Blocks until it is complete, polling in this thread for 50 to 200 us and sleeping then.
    ///
    /// # Panics
    ///
    /// On simulated hosts: there is no way to give the buffer back, and nothing would happen while
    /// it blocks. `await` it there.
    pub fn wait(mut self) -> K::Output {
        assert!(self.qp.stack().may_block(), "blocking on a simulated host: await it instead");
        match self.look(None) {
            Poll::Ready(output) => output,
            Poll::Pending => exec::ended(self.block(How::default()).ok()),
        }
    }

    /// Blocks for so long.
    ///
    /// # Errors
    ///
    /// Itself, where it is still under way; at once on simulated hosts.
    pub fn wait_for(self, time: Duration) -> Result<K::Output, Self> {
        if !self.qp.stack().may_block() {
            return self.try_take();
        }
        self.block(How { never_sleeps: false, until: Instant::now().checked_add(time) })
    }

    /// Itself where it takes too long.
    pub(super) fn block(mut self, how: How) -> Result<K::Output, Self> {
        if let Poll::Ready(output) = self.look(None) {
            return Ok(output);
        }
        if let Some(ticket) = &self.ticket
            && let Some(taken) = exec::poll_on(&self.qp, how, || self.qp.take_result(ticket))
        {
            return Ok(self.end(taken));
        }
        let has_polled = self.qp.gains_by_polling();
        exec::go_on(&mut self, how, has_polled).ok_or(self)
    }
}

impl<K: Kind<B>, B: Send + 'static> Future for InFlight<K, B> {
    type Output = K::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<K::Output> {
        self.look(Some(cx))
    }
}

impl<K: Kind<B>, B: Send + 'static> Drop for InFlight<K, B> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.qp.abandon(&ticket);
        }
    }
}

impl<K: Kind<B>, B: Send + 'static> std::fmt::Debug for InFlight<K, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InFlight")
    }
}
