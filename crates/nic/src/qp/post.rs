//! Posting send requests: what must hold of one, and many under one lock. [`Qp::sender`] locks the
//! queue pair, requests are posted to it one by one, and [`Sender::finish`] lets their packets
//! leave and unlocks.

use std::time::Instant;

use locks::MutexGuard;
use transport::likely::unlikely;
use transport::op::{AtomicOp, Data, SendOp, SendWr};
use transport::ud::Destination;

use crate::error::PostError;
use crate::link::Path;
use crate::qp::ah::Datagram;
use crate::qp::at_once::OneSided;
use crate::qp::attr::QpState;
use crate::qp::now::{Now, Time};
use crate::qp::short::OneSend;
use crate::qp::{Inner, Qp, QpCap};

/// A send request, with its destination where the queue pair is not connected.
#[derive(Clone, Debug)]
pub struct Request {
    /// The request.
    pub wr: SendWr,
    /// The destination of a datagram.
    pub to: Option<Datagram>,
    /// Number of the shared receive queue that an XRC request is for; means nothing to others.
    pub srq: u32,
}

/// Send requests being posted to one queue pair, its lock held. What was posted leaves with
/// [`Sender::finish`]; where that is not reached, because the thread panics, it leaves with the
/// queue pair's next step.
#[derive(Debug)]
#[must_use = "what is posted leaves with `finish`"]
pub struct Sender<'a> {
    pub(crate) qp: &'a Qp,
    now: Now<'a>,
    inner: MutexGuard<'a, Inner>,
}

impl Sender<'_> {
    /// Takes all requests or none; says of the first that can not be taken why.
    pub fn post_all(&mut self, requests: &[Request]) -> Result<(), PostError> {
        if let [Request { wr, to: None, srq: 0 }] = requests {
            return self.post_last(wr.clone());
        }
        self.inner.catch_up(self.qp);
        requests.iter().try_for_each(|r| self.qp.check_send(&self.inner, &r.wr))?;
        let room = self.qp.init().cap.max_send_wr as usize;
        if self.inner.places_taken(self.qp) + requests.len() > room {
            return Err(PostError::Full);
        }
        let to: Result<Vec<_>, _> = requests.iter().map(|r| self.destination(r.to.as_ref())).collect();
        requests.iter().zip(to?).try_for_each(|(r, to)| self.post_to(&mut r.wr.clone(), to, r.srq))
    }

    /// Takes a request of a connected or raw packet queue pair, or says why not; those before it
    /// stay posted.
    ///
    /// # Errors
    ///
    /// [`PostError::State`]: a state that does not send. [`PostError::Elements`],
    /// [`PostError::Inline`]: more than the queue pair was made for. [`PostError::Atomic`]: bytes
    /// that no atomic works on. [`PostError::Invalid`]: an operation that the transport service has
    /// not, or that takes no inline data, and queue pairs over tag-matching queues.
    /// [`PostError::Full`] at `max_send_wr`.
    #[inline]
    pub fn post(&mut self, mut wr: SendWr) -> Result<(), PostError> {
        self.take(&mut wr)
    }

    /// Like [`Sender::post`], for a request that has no use afterwards: it is copied once.
    #[inline]
    pub fn take(&mut self, wr: &mut SendWr) -> Result<(), PostError> {
        let to = self.destination(None)?;
        self.post_to(wr, to, 0)
    }

    /// Takes a request of an XRC initiator, for the shared receive queue of that number at the
    /// target.
    #[inline]
    pub fn post_to_srq(&mut self, mut wr: SendWr, srq: u32) -> Result<(), PostError> {
        let to = self.destination(None)?;
        self.post_to(&mut wr, to, srq)
    }

    #[inline]
    pub(crate) fn post_to(
        &mut self,
        wr: &mut SendWr,
        to: Option<Destination<Path>>,
        srq: u32,
    ) -> Result<(), PostError> {
        self.inner.catch_up(self.qp);
        self.accept(wr)?;
        let (engine, mut context) = self.inner.split(self.qp);
        engine.post(wr, to, srq & 0xff_ffff, &mut context);
        Ok(())
    }

    /// Like [`Sender::post`], for a request after which no other is posted now: it may leave before
    /// [`Sender::finish`], and in less than a packet.
    #[inline]
    pub fn post_last(&mut self, mut wr: SendWr) -> Result<(), PostError> {
        self.take_last(&mut wr)
    }

    /// Like [`Sender::post_last`], for a request that has no use afterwards: what leaves at once is
    /// not copied for that.
    #[inline]
    pub fn take_last(&mut self, wr: &mut SendWr) -> Result<(), PostError> {
        if OneSided::of(wr).is_some_and(|request| self.execute_now(request)) {
            return Ok(());
        }
        let to = self.destination(None)?;
        self.accept(wr)?;
        if !self.inner.execute_alone(self.qp, wr) {
            self.leave_or_wait(wr, to);
        }
        Ok(())
    }

    /// Like [`Sender::post_last`], for a request that will be posted again, and is as before
    /// afterwards: it is copied where it is not executed at once.
    #[inline]
    pub fn post_kept(&mut self, wr: &mut SendWr) -> Result<(), PostError> {
        if OneSided::of(wr).is_some_and(|request| self.execute_now(request)) {
            return Ok(());
        }
        let to = self.destination(None)?;
        let signaled = wr.signaled;
        self.accept(wr)?;
        if !self.inner.execute_alone(self.qp, wr) {
            self.leave_or_wait(&mut wr.clone(), to);
        }
        wr.signaled = signaled;
        Ok(())
    }

    /// Executes a WRITE or READ after which no other is posted now, where that is possible at once.
    /// False: it has had no effect, and is to be posted, which says why where it can not be.
    #[inline]
    pub fn execute_now(&mut self, request: OneSided) -> bool {
        let (inner, init) = (&mut *self.inner, self.qp.init());
        inner.catch_up(self.qp);
        let fits = init.cap.max_send_sge > 0 && init.cap.max_send_wr > 0;
        let is_ready = fits && inner.state == QpState::Rts && init.tags().is_none();
        if unlikely(!is_ready) || inner.places_taken(self.qp) > 0 {
            return false;
        }
        let request = OneSided { signaled: request.signaled || init.sq_sig_all, ..request };
        inner.copy_alone(self.qp, &request)
    }

    /// Sends a SEND after which no other request is posted now, where that is possible at once.
    /// False: it has had no effect, and is to be posted.
    #[inline]
    pub fn send_now(&mut self, mut message: OneSend) -> bool {
        let (inner, init) = (&mut *self.inner, self.qp.init());
        let is_ready = inner.state == QpState::Rts && inner.kit.counted.is_none() && init.tags().is_none();
        if unlikely(!is_ready || init.cap.max_send_sge == 0)
            || unlikely(inner.places_taken(self.qp) >= init.cap.max_send_wr as usize)
        {
            return false;
        }
        message.signaled |= init.sq_sig_all;
        inner.send_short(self.qp, &mut message, &mut self.now)
    }

    /// Sends a short message at once, or queues the request up; what is left in its place is of no
    /// use.
    #[inline]
    fn leave_or_wait(&mut self, wr: &mut SendWr, to: Option<Destination<Path>>) {
        if self.inner.send_short(self.qp, wr, &mut self.now) {
            return;
        }
        self.inner.catch_up(self.qp);
        let (engine, mut context) = self.inner.split(self.qp);
        engine.post(wr, to, 0, &mut context);
    }

    /// Whether the queue takes a request; if so it completes visibly where it is to.
    #[inline(always)]
    fn accept(&mut self, wr: &mut SendWr) -> Result<(), PostError> {
        let inner = &mut *self.inner;
        let init = self.qp.init();
        self.qp.check_send(inner, wr)?;
        let room = init.cap.max_send_wr as usize;
        if inner.places_taken(self.qp) >= room {
            inner.catch_up(self.qp);
            if inner.places_taken(self.qp) >= room {
                return Err(PostError::Full);
            }
        }
        wr.signaled |= init.sq_sig_all;
        if let Some(counted) = &mut inner.kit.counted {
            counted.posted(wr.signaled);
            wr.signaled = true;
        }
        Ok(())
    }

    /// Sends what was posted, as far as windows and turns allow, tells of what has completed and
    /// unlocks the queue pair.
    #[inline]
    pub fn finish(mut self) {
        self.qp.settle_asking(self.inner, || self.now.get());
    }
}

impl Qp {
    /// Begins posting send requests: the [`Sender`] takes them one by one, and sends them when it
    /// is finished.
    pub fn sender(&self, now: Instant) -> Sender<'_> {
        Sender { qp: self, now: Now::Is(now), inner: self.lock() }
    }

    /// Like [`Qp::sender`], where the time is to be had by a call, which may come before or after
    /// what leaves.
    #[inline]
    pub fn sender_asking<'a>(&'a self, time: &'a dyn Time) -> Sender<'a> {
        // What it posts may leave before the engine knows all ([`Inner::catch_up`]).
        Sender { qp: self, now: Now::Ask(time), inner: self.inner.lock() }
    }

    /// Posts one request of a connected or raw packet queue pair and sends it; errors as of
    /// [`Sender::post`].
    pub fn post_send(&self, now: Instant, wr: SendWr) -> Result<(), PostError> {
        let mut sender = self.sender(now);
        let posted = sender.post_last(wr);
        sender.finish();
        posted
    }

    /// Whether a request may be posted in this state, room apart.
    #[inline]
    fn check_send(&self, inner: &Inner, wr: &SendWr) -> Result<(), PostError> {
        match inner.current_state() {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => {}
            state => return Err(PostError::State(state.name())),
        }
        self.init().kind.check_operation(&wr.op)?;
        if self.init().tags().is_some() {
            return Err(PostError::Invalid("the send queue belongs to the tag-matching queue"));
        }
        check_send(wr, &self.init().cap)
    }
}

/// What the verbs require of a send request whatever the transport.
#[inline]
fn check_send(wr: &SendWr, cap: &QpCap) -> Result<(), PostError> {
    match &wr.data {
        Data::Sges(list) => {
            PostError::check_elements(list.as_slice().len(), cap.max_send_sge)?;
        }
        // Its eight bytes are an operand, not data that the queue pair was made for.
        _ if matches!(wr.op, SendOp::Atomic { op: AtomicOp::Write(_), .. }) => {}
        data if data.len_bytes() > u64::from(cap.max_inline_data) => {
            return Err(PostError::Inline { len_bytes: data.len_bytes(), most: cap.max_inline_data });
        }
        _ => {
            if !matches!(wr.op, SendOp::Send(_) | SendOp::Write { .. }) {
                return Err(PostError::Invalid("only SEND and WRITE may be inline"));
            }
        }
    }
    if let SendOp::Atomic { addr, .. } = wr.op {
        let len = wr.data.len_bytes();
        if len != 8 || addr % 8 != 0 {
            return Err(PostError::Atomic { addr, len_bytes: u32::try_from(len).unwrap_or(u32::MAX) });
        }
    }
    Ok(())
}
