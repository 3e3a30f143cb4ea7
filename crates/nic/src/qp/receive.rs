//! What a queue pair receives: the requests that programs post for it, and the packets of its peer.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use transport::op::RecvWr;
use transport::rc::Hold;
use wire::roce::Packet;

use crate::device::port;
use crate::error::PostError;
use crate::qp::Qp;
use crate::qp::attr::{QpState, QpType};

impl Qp {
    /// `ibv_post_recv`: posts one receive request; in the error state it is flushed at once.
    ///
    /// # Errors
    ///
    /// [`PostError::Invalid`] where the queue pair has no receive queue of its own, in state Reset, and for more elements than
    /// `max_recv_sge`; [`PostError::Full`] at `max_recv_wr`.
    pub fn post_receive(&self, wr: RecvWr) -> Result<(), PostError> {
        if self.spread.get().is_some() {
            return Err(PostError::Invalid("the queue pair takes its receives from work queues"));
        }
        if matches!(self.init.kind, QpType::XrcSend | QpType::XrcRecv) {
            return Err(PostError::Invalid("an XRC queue pair has no receive queue"));
        }
        if self.init.srq.is_some() {
            return Err(PostError::Invalid("the queue pair takes its receives from a shared queue"));
        }
        if wr.sges.as_slice().len() > self.init.cap.max_recv_sge as usize {
            return Err(PostError::Invalid("more elements than max_recv_sge"));
        }
        let mut inner = self.lock();
        match inner.current_state() {
            QpState::Reset => return Err(PostError::Invalid("queue pair is in state RESET")),
            QpState::Error => {
                inner.flush_receive(self, &wr);
                self.unlock(inner);
                return Ok(());
            }
            _ => {}
        }
        let full = inner.receives.len() >= self.init.cap.max_recv_wr as usize;
        if full || inner.receives.try_reserve(1).is_err() {
            return Err(PostError::Full);
        }
        inner.receives.push_back(wr);
        Ok(())
    }

    /// A packet for this queue pair, `hold` says whether an ACK for it may wait. One that is not from its peer is
    /// counted and dropped.
    pub(crate) fn input(&self, now: Instant, source: IpAddr, dest: IpAddr, hold: Hold, packet: &Packet<'_>) {
        if self.init.kind == QpType::Ud {
            return self.input_datagram(now, source, dest, packet);
        }
        let counters = &self.pd.device.counters;
        let mut inner = self.lock();
        let Some(carrier) = inner.carrier.datagram().filter(|_| !inner.destroyed) else {
            counters.wrong_state.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if !carrier.is_from_peer(source, dest) {
            counters.wrong_peer.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if !matches!(inner.current_state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            counters.wrong_state.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if !port::is_of_partition(packet) {
            counters.wrong_pkey.fetch_add(1, Ordering::Relaxed);
            return;
        }
        counters.received.fetch_add(1, Ordering::Relaxed);
        let (engine, mut context) = inner.split(self);
        engine.receive(now, packet, hold, &mut context);
        inner.begin_rendezvous(self);
        if inner.engine.held() != Hold::No && !std::mem::replace(&mut inner.listed, true) {
            self.device.delayed_acks.add(self.me.clone());
        }
        self.settle(inner, now);
    }
}
