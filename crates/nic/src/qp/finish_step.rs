//! What follows every step of a queue pair's engine: packets leave, timers are set, and what there
//! is to tell is told when the lock is released.

use std::time::Instant;

use locks::MutexGuard;
use transport::likely::{likely, unlikely};

use crate::cq::Notification;
use crate::device::async_events::EventKind;
use crate::link::Path;
use crate::qp::attr::QpState;
use crate::qp::carrier::Carrier;
use crate::qp::engine::Engine;
use crate::qp::scratch::with_batch;
use crate::qp::{Inner, Qp};

impl Qp {
    /// What follows every step of the engine: packets leave, an engine that failed takes the queue
    /// pair with it, the timer is set, a turn asked for, then everything is unlocked and told.
    #[inline]
    pub(super) fn finish_step(&self, inner: MutexGuard<'_, Inner>, now: Instant) {
        self.finish_step_with(inner, || now);
    }

    /// Like [`Qp::finish_step`], where the time is to be had by a call. After a step that has
    /// nothing for a later time the call is not made.
    #[inline(always)]
    pub(super) fn finish_step_with(&self, mut inner: MutexGuard<'_, Inner>, now: impl FnOnce() -> Instant) {
        if unlikely(inner.destroyed) {
            return;
        }
        if likely(inner.has_nothing_due()) {
            let ack = inner.note_ack(self, now);
            let wake = inner.set_timer(self);
            self.unlock_and_notify(inner, wake, ack);
        } else {
            self.finish_step_in_full(inner, now());
        }
    }

    /// Like [`Qp::finish_step`], after a step that leaves more to do.
    #[inline(never)]
    fn finish_step_in_full(&self, mut inner: MutexGuard<'_, Inner>, now: Instant) {
        inner.follow_engine(self, now);
        // Before the answer leaves: the peer that has it may reach us.
        let is_heard = inner.state == QpState::Rtr && !inner.is_open && inner.engine.is_established();
        if inner.engine.take_begun() || is_heard {
            inner.open_or_close(self);
        }
        inner.transmit(self, now);
        inner.follow_engine(self, now);
        if inner.drain_awaited && inner.state == QpState::Sqd && inner.engine.drained() {
            inner.drain_awaited = false;
            inner.engine_state.notifications.extend(self.note(EventKind::SqDrained));
        }
        inner.begin_flush(self);
        let ack = inner.note_ack(self, || now);
        let wake = inner.set_timer(self).into_iter().chain(inner.queue_up(self, now)).min();
        self.unlock_and_notify(inner, wake, ack);
    }

    /// Unlocks, then tells what there is to tell, and the environment when it is to wake: then, and
    /// about then.
    #[inline(always)]
    pub(super) fn unlock_and_notify(
        &self,
        inner: MutexGuard<'_, Inner>,
        wake: Option<Instant>,
        about: Option<Instant>,
    ) {
        if wake.is_some() || about.is_some() {
            self.unlock_notify_and_wake(inner, wake, about);
        } else {
            self.unlock(inner);
        }
    }

    #[cold]
    fn unlock_notify_and_wake(
        &self,
        inner: MutexGuard<'_, Inner>,
        wake: Option<Instant>,
        about: Option<Instant>,
    ) {
        self.unlock(inner);
        let platform = &self.pd.device.platform;
        wake.inspect(|at| platform.wake_at(*at));
        about.inspect(|at| platform.wake_about(*at));
    }

    /// Unlocks, then tells what there is to tell.
    #[inline(always)]
    pub(super) fn unlock(&self, inner: MutexGuard<'_, Inner>) {
        if !inner.engine_state.notifications.is_empty() {
            self.unlock_and_deliver(inner);
        }
    }

    #[inline(never)]
    fn unlock_and_deliver(&self, mut inner: MutexGuard<'_, Inner>) {
        // Mostly there is one, and its place stays for the next.
        let (only, several) = match inner.engine_state.notifications.len() {
            1 => (inner.engine_state.notifications.pop(), Vec::new()),
            _ => (None, std::mem::take(&mut inner.engine_state.notifications)),
        };
        drop(inner);
        only.into_iter().chain(several).for_each(Notification::send);
    }

    /// The path of its packets; `None` where it has no peer.
    pub fn path(&self) -> Option<Path> {
        self.lock().carrier.datagram().map(|carrier| carrier.path)
    }

    /// An ACK held back leaves now; by which way. What is said next by the same way does not
    /// overtake it.
    pub fn let_acks_go(&self, now: Instant) -> Option<Path> {
        let mut inner = self.lock();
        inner.engine.release();
        inner.transmit(self, now);
        let path = inner.carrier.datagram().map(|carrier| carrier.path);
        self.finish_step(inner, now);
        path
    }

    /// The process ends: an ACK held back leaves, unless a thread that goes on has the queue pair
    /// in hand.
    pub(crate) fn on_exit(&self) {
        if let Some(mut inner) = self.inner.try_lock()
            && !inner.destroyed
        {
            inner.on_exit(self);
        }
    }
}

impl Inner {
    /// An ACK held back leaves, nothing else.
    pub(crate) fn on_exit(&mut self, qp: &Qp) {
        let Some(path) = self.carrier.datagram().map(|carrier| carrier.path) else { return };
        with_batch(|batch| {
            batch.clear();
            let (engine, mut context) = self.split(qp);
            engine.on_exit(batch, &mut context);
            if !batch.is_empty() {
                qp.pd.device.link.send(&path, batch);
            }
        });
    }

    /// Whether all is done after this step of the engine, but for what is told of it: so it is
    /// after most of them.
    #[inline]
    fn has_nothing_due(&mut self) -> bool {
        match &mut self.engine {
            // Its engine is in RTS with it, or has failed.
            Engine::Rc(engine) => self.state == QpState::Rts && engine.has_nothing_due(),
            _ => false,
        }
    }

    /// An engine that failed takes the queue pair with it.
    fn follow_engine(&mut self, qp: &Qp, now: Instant) {
        if self.current_state() == QpState::Error && self.state != QpState::Error {
            self.failed_at = Some(now);
            self.fail(qp);
        }
    }

    /// Sends what the engine has, batch by batch.
    fn transmit(&mut self, qp: &Qp, now: Instant) {
        match &mut self.carrier {
            Carrier::Unconnected => self.transmit_stream(qp),
            Carrier::Datagram(carrier) => {
                if self.engine.take_path_suspect() {
                    carrier.suspect(now, self.attr.timeout);
                }
                if !self.engine.is_at_rest() {
                    let path = carrier.path;
                    self.transmit_connected(qp, now, &path);
                }
            }
            Carrier::AddressHandles => self.transmit_datagrams(qp, now),
            Carrier::Frames => self.transmit_frames(qp),
        }
    }

    /// Sends what there is to send for a connection, whose packets all go one way.
    fn transmit_connected(&mut self, qp: &Qp, now: Instant, path: &Path) {
        with_batch(|batch| {
            loop {
                batch.clear();
                let (engine, mut context) = self.split(qp);
                engine.fill(now, batch, &mut context);
                if batch.is_empty() {
                    break;
                }
                qp.pd.device.link.send_connected(path, batch, &mut self.engine_state.cache);
                if self.engine.is_at_rest() {
                    break;
                }
            }
        });
    }
}
