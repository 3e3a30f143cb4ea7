//! What a queue pair receives: the requests that programs post for it, and the packets of its peer.

use std::time::Instant;

use locks::MutexGuard;
use transport::likely::unlikely;
use transport::op::RecvWr;
use transport::rc::AckDelay;
use wire::run::Run;
use wire::{Address, Pkey};

use crate::error::PostError;
use crate::fate::DropCounter;
use crate::qp::attr::{QpState, QpType};
use crate::qp::{Inner, Qp};

impl Qp {
    /// `ibv_post_recv`: posts one receive request; in the error state it is flushed at once.
    ///
    /// # Errors
    ///
    /// [`PostError::Invalid`] where the queue pair has no receive queue of its own, and in state
    /// Reset; [`PostError::Elements`] for more than `max_recv_sge`; [`PostError::Full`] at
    /// `max_recv_wr`.
    #[inline]
    pub fn post_receive(&self, wr: RecvWr) -> Result<(), PostError> {
        if unlikely(self.spread.get().is_some()) {
            return Err(PostError::Invalid("the queue pair takes its receives from work queues"));
        }
        if unlikely(matches!(self.init.kind, QpType::XrcSend | QpType::XrcRecv)) {
            return Err(PostError::Invalid("an XRC queue pair has no receive queue"));
        }
        if unlikely(self.init.srq.is_some()) {
            return Err(PostError::Invalid("the queue pair takes its receives from a shared queue"));
        }
        PostError::check_elements(wr.sges.as_slice().len(), self.init.cap.max_recv_sge)?;
        // What its engine does not know yet does not matter here ([`Inner::catch_up`]).
        let mut inner = self.inner.lock();
        match inner.current_state() {
            QpState::Reset => return Err(PostError::Invalid("queue pair is in state RESET")),
            QpState::Error => {
                inner.flush_receive(self, &wr);
                self.unlock(inner);
                return Ok(());
            }
            _ => {}
        }
        let full = inner.engine_state.receives.len() >= self.init.cap.max_recv_wr as usize;
        let fits = inner.engine_state.receives.len() < inner.engine_state.receives.capacity();
        if unlikely(full) || (unlikely(!fits) && inner.engine_state.receives.try_reserve(1).is_err()) {
            return Err(PostError::Full);
        }
        inner.engine_state.receives.push_back(wr);
        Ok(())
    }

    /// A packet for this queue pair, and those that came with it; `ack_delay` says whether an ACK
    /// for them may wait. Those that are not from its peer are counted and dropped.
    pub(crate) fn input<'a>(
        &self,
        now: Instant,
        source: Address,
        dest: Address,
        ack_delay: AckDelay,
        first: &Run<'a>,
        mut more: impl FnMut() -> Option<Run<'a>>,
    ) {
        if self.init.kind == QpType::Ud {
            return self.input_datagrams(now, source, dest, first, more);
        }
        match self.of_peer(source, dest) {
            Ok(mut inner) => {
                let mut next = inner.receive(self, now, ack_delay, first, &mut more);
                while let Some(run) = next {
                    next = inner.receive(self, now, ack_delay, &run, &mut more);
                }
                self.finish_step(inner, now);
            }
            Err(counter) => {
                let dropped = first.count() + std::iter::from_fn(more).map(|run| run.count()).sum::<u32>();
                counter.add(dropped);
            }
        }
    }

    /// The queue pair, if packets with these addresses are from its peer; else what counts them.
    #[inline]
    pub(super) fn of_peer(
        &self,
        source: Address,
        dest: Address,
    ) -> Result<MutexGuard<'_, Inner>, &DropCounter> {
        let inner = self.lock();
        match self.source_mismatch(&inner, source, dest) {
            Some(counter) => Err(counter),
            None if inner.destroyed => Err(&self.pd.device.counters.wrong_state),
            None => Ok(inner),
        }
    }

    /// What counts packets with these addresses, where they are not from the peer.
    #[inline]
    pub(super) fn source_mismatch(
        &self,
        inner: &Inner,
        source: Address,
        dest: Address,
    ) -> Option<&DropCounter> {
        let counters = &self.pd.device.counters;
        match inner.carrier.datagram() {
            None => Some(&counters.wrong_state),
            Some(carrier) if !carrier.is_from_peer(source, dest) => Some(&counters.wrong_peer),
            Some(_) => None,
        }
    }
}

impl Inner {
    /// Gives the engine a run from the peer, and those packets after it that change nothing but
    /// what they complete. The state need not be looked at again for these. Returns the next run,
    /// which is for another call.
    fn receive<'a>(
        &mut self,
        qp: &Qp,
        now: Instant,
        ack_delay: AckDelay,
        run: &Run<'a>,
        more: &mut impl FnMut() -> Option<Run<'a>>,
    ) -> Option<Run<'a>> {
        let pkey = run.first().header.bth.pkey;
        if !self.lets_in(qp, pkey, run.count()) {
            return more();
        }
        let own = self.pkey;
        let (engine, mut context) = self.split(qp);
        if run.count() == 1 || !engine.receive_run(now, run, ack_delay, &mut context) {
            run.packets().for_each(|packet| engine.receive(now, &packet, ack_delay, &mut context));
        }
        let (mut taken, mut next) = (run.count(), more());
        while let Some(run) = &next
            && run.count() == 1
            && own.matches(run.first().header.bth.pkey)
            && engine.receive_fast(run.first(), ack_delay, &mut context)
        {
            taken += 1;
            next = more();
        }
        qp.received.add(taken.into());
        self.begin_rendezvous(qp);
        next
    }

    /// Whether packets come in now, and so many with this key are of our partition; else counts
    /// them.
    #[inline]
    pub(super) fn lets_in(&self, qp: &Qp, pkey: Pkey, packets: u32) -> bool {
        let counters = &qp.pd.device.counters;
        if !matches!(self.current_state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            counters.wrong_state.add(packets);
            return false;
        }
        if !self.pkey.matches(pkey) {
            counters.wrong_pkey.add(packets);
            return false;
        }
        true
    }
}
