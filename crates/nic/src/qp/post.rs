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
use crate::qp::attr::QpState;
use crate::qp::direct_copy::OneSided;
use crate::qp::now::{Now, Time};
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

/// How a request is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostFlags {
    /// No other request is posted before [`Sender::finish`]. Such a request may leave or be
    /// executed before that, and without a packet.
    pub last: bool,
    /// The request stays as it is, to be posted again. Else its data is taken.
    pub keep: bool,
    /// The shared receive queue at the target that a request of an XRC initiator is for, by number
    /// (24 bits). Means nothing to others.
    pub srq: u32,
}

impl PostFlags {
    /// The flags of the last request of a list ([`PostFlags::last`]).
    pub const LAST: Self = Self { last: true, keep: false, srq: 0 };
}

impl Sender<'_> {
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
    pub fn post(&mut self, wr: &mut SendWr, flags: PostFlags) -> Result<(), PostError> {
        if flags.last && OneSided::of(wr).is_some_and(|request| self.execute_now(request)) {
            return Ok(());
        }
        let to = self.destination(None)?;
        let signaled = wr.signaled;
        self.accept(wr)?;
        let leaves = flags.last
            && (self.inner.execute_alone(self.qp, wr)
                || self.inner.send_short(self.qp, wr, flags.keep, &mut self.now));
        match leaves {
            true => {}
            false if flags.keep => self.enqueue(&mut wr.clone(), to, flags.srq),
            false => self.enqueue(wr, to, flags.srq),
        }
        if flags.keep {
            wr.signaled = signaled;
        }
        Ok(())
    }

    /// Takes a request of a datagram queue pair, or says why not; those before it stay posted.
    ///
    /// # Errors
    ///
    /// As of [`Sender::post`]; [`PostError::Unreachable`] where no path leads to the address.
    pub fn post_datagram(&mut self, wr: &mut SendWr, to: &Datagram) -> Result<(), PostError> {
        let to = self.destination(Some(to))?;
        self.accept(wr)?;
        self.enqueue(wr, to, 0);
        Ok(())
    }

    /// Takes all requests or none.
    ///
    /// # Errors
    ///
    /// Those of the first request that can not be taken.
    pub fn post_all(&mut self, requests: &[Request]) -> Result<(), PostError> {
        if let [Request { wr, to: None, srq: 0 }] = requests {
            return self.post(&mut wr.clone(), PostFlags::LAST);
        }
        self.inner.catch_up(self.qp);
        requests.iter().try_for_each(|r| self.qp.check_send(&self.inner, &r.wr))?;
        let room = self.qp.init().cap.max_send_wr as usize;
        if self.inner.sq_slots_taken(self.qp) + requests.len() > room {
            return Err(PostError::Full);
        }
        let to: Result<Vec<_>, _> = requests.iter().map(|r| self.destination(r.to.as_ref())).collect();
        for (request, to) in requests.iter().zip(to?) {
            let mut wr = request.wr.clone();
            self.accept(&mut wr)?;
            self.enqueue(&mut wr, to, request.srq);
        }
        Ok(())
    }

    /// Queues a request that was accepted.
    #[inline]
    fn enqueue(&mut self, wr: &mut SendWr, to: Option<Destination<Path>>, srq: u32) {
        self.inner.catch_up(self.qp);
        let (engine, mut context) = self.inner.split(self.qp);
        engine.post(wr, to, srq & 0xff_ffff, &mut context);
    }

    /// Executes a WRITE or READ after which no other is posted now, where that is possible at once.
    /// False: it has had no effect, and is to be posted, which says why where it can not be.
    #[inline]
    fn execute_now(&mut self, request: OneSided) -> bool {
        let (inner, init) = (&mut *self.inner, self.qp.init());
        inner.catch_up(self.qp);
        let fits = init.cap.max_send_sge > 0 && init.cap.max_send_wr > 0;
        let is_ready = fits && inner.state == QpState::Rts && init.tags().is_none();
        if unlikely(!is_ready) || inner.sq_slots_taken(self.qp) > 0 {
            return false;
        }
        let request = OneSided { signaled: request.signaled || init.sq_sig_all, ..request };
        inner.copy_alone(self.qp, &request)
    }

    /// Whether the queue takes a request; if so it completes visibly where it is to.
    #[inline(always)]
    fn accept(&mut self, wr: &mut SendWr) -> Result<(), PostError> {
        let inner = &mut *self.inner;
        let init = self.qp.init();
        self.qp.check_send(inner, wr)?;
        let room = init.cap.max_send_wr as usize;
        if inner.sq_slots_taken(self.qp) >= room {
            inner.catch_up(self.qp);
            if inner.sq_slots_taken(self.qp) >= room {
                return Err(PostError::Full);
            }
        }
        wr.signaled |= init.sq_sig_all;
        if let Some(counted) = &mut inner.engine_state.counted {
            counted.posted(wr.signaled);
            wr.signaled = true;
        }
        Ok(())
    }

    /// Sends what was posted, as far as windows and turns allow, tells of what has completed and
    /// unlocks the queue pair.
    #[inline]
    pub fn finish(mut self) {
        self.qp.finish_step_with(self.inner, || self.now.get());
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
    pub fn post_send(&self, now: Instant, mut wr: SendWr) -> Result<(), PostError> {
        let mut sender = self.sender(now);
        let posted = sender.post(&mut wr, PostFlags::LAST);
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
