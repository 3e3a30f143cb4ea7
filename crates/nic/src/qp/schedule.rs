//! When a queue pair is looked at again without a packet or a call for it: its timer has run out,
//! its turn has come, or an ACK has been held back for long enough.

use std::time::Instant;

use transport::rc::AckDelay;

use crate::qp::carrier::Carrier;
use crate::qp::{Inner, Qp};

impl Qp {
    /// The entry of `at` has fired: a timer may have run out. Where the queue pair has had another
    /// since, that stays.
    pub(crate) fn expire(&self, now: Instant, at: Instant) {
        let mut inner = self.lock();
        inner.timer.take_if(|entry| *entry == at);
        if inner.destroyed || matches!(inner.carrier, Carrier::Unconnected | Carrier::Frames) {
            return;
        }
        let (engine, mut context) = inner.split(self);
        engine.expire(now, &mut context);
        self.finish_step(inner, now);
    }

    /// The next share of the time for what this queue pair has to do for its peer, or to copy.
    pub(crate) fn run_quantum(&self, now: Instant) {
        let mut inner = self.lock();
        inner.is_queued_to_run = false;
        inner.engine.begin_quantum();
        self.finish_step(inner, now);
    }

    /// An ACK held back leaves; one that waits for the program until then only where `leaves` says
    /// so. Until when it still waits.
    pub(crate) fn release(&self, now: Instant, leaves: impl FnOnce(Instant) -> bool) -> Option<Instant> {
        let mut inner = self.lock();
        let waits = inner.noted.waits_until().filter(|until| !leaves(*until));
        if waits.is_some() {
            return waits;
        }
        inner.noted.leave();
        if inner.engine.held() != AckDelay::No {
            inner.engine.release();
            self.finish_step(inner, now);
        }
        None
    }
}

impl Inner {
    /// Has the device know how an ACK is held back now; when that wants to be looked at, where the
    /// environment may not know.
    #[inline(always)]
    pub(super) fn note_ack(&mut self, qp: &Qp, now: impl FnOnce() -> Instant) -> Option<Instant> {
        let held = self.engine.held();
        if !self.noted.differs(held) {
            return None;
        }
        let wakes = self.noted.change(held, now(), &qp.me, &qp.device.delayed_acks);
        if held == AckDelay::Briefly {
            qp.pd.device.platform.ack_waits();
        }
        wakes
    }
    /// The queue pair ends.
    pub(super) fn no_ack_waits(&mut self, qp: &Qp) {
        self.noted.end(&qp.device.delayed_acks);
    }

    /// Has the queue pair looked at when its engine wants to be; when that is, where the
    /// environment may not know.
    #[inline(always)]
    pub(crate) fn set_timer(&mut self, qp: &Qp) -> Option<Instant> {
        let at = self.engine.deadline()?;
        // An entry that comes before says it anew then.
        if self.timer.is_some_and(|entry| entry <= at) {
            return None;
        }
        self.move_timer(qp, at)
    }
    #[cold]
    fn move_timer(&mut self, qp: &Qp, at: Instant) -> Option<Instant> {
        let before = self.timer.replace(at);
        qp.device.timers.set(before, at, qp.qpn()).then_some(at)
    }
    /// The queue pair's timer is not looked at any more.
    pub(crate) fn forget_timer(&mut self, qp: &Qp) {
        if let Some(at) = self.timer.take() {
            qp.device.timers.forget(at, qp.qpn());
        }
    }

    /// Queues it up where the engine has more to answer, or to copy, than one turn allows; when it
    /// wants to be served.
    #[inline]
    pub(crate) fn queue_up(&mut self, qp: &Qp, now: Instant) -> Option<Instant> {
        if self.is_queued_to_run || !self.engine.needs_reschedule() {
            return None;
        }
        self.is_queued_to_run = true;
        Some(qp.device.run_queue.add(now, qp.me.clone()))
    }
}
