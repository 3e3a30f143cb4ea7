//! The states of a queue pair, and the way from one to another (ibv_modify_qp(3), IBA 1.4 §10.3.1).

use std::time::Instant;

use transport::op::{RecvWr, Side, Status};
use wire::{Mtu, Pkey};

use crate::cq::Notification;
use crate::device::async_events::EventKind;
use crate::error::{Error, in_range};
use crate::link::Persist;
use crate::qp::attr::{self, QpAttr, QpState, QpType, mask};
use crate::qp::carrier::Carrier;
use crate::qp::engine::Engine;
use crate::qp::sq_occupancy::SqOccupancy;
use crate::qp::{Inner, Qp};

impl Qp {
    /// `ibv_modify_qp`: changes the attributes that `bits` ([`mask`]) name, and the state where
    /// STATE is among them.
    ///
    /// # Errors
    ///
    /// `State` for a transition that there is not; `Value` for attributes that it does not take or
    /// lacks, with their bits, and a peer that can not be reached; `Vacant` for a `sgid_index`
    /// without a GID; `OutOfRange`; `Invalid` once it is destroyed. Nothing has changed then.
    pub fn modify(&self, now: Instant, new: &QpAttr, bits: u32) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.destroyed {
            return Err(Error::Invalid("the queue pair is destroyed"));
        }
        let from = inner.current_state();
        let to = attr::check(self.init.kind, from, new, bits)?;
        if matches!(inner.engine, Engine::Iwarp(_)) && matches!(to, QpState::Rtr | QpState::Sqd) {
            return Err(Error::Invalid("the queue pair gets a stream by the connection manager"));
        }
        match to {
            QpState::Reset => {
                inner.on_exit(self);
                inner.reset(self);
            }
            QpState::Error => inner.fail(self),
            _ => inner.advance(self, from, to, new, bits)?,
        }
        inner.state = to;
        let closed = inner.open_or_close(self);
        self.finish_step(inner, now);
        if closed {
            self.await_peer();
        }
        Ok(())
    }

    /// To the error state, as `ibv_modify_qp` does, whatever the state is.
    pub fn fail(&self, now: Instant) {
        let mut inner = self.lock();
        if inner.state != QpState::Reset && !inner.destroyed {
            inner.fail(self);
        }
        self.finish_step(inner, now);
    }
}

impl Inner {
    /// The engine knows first when it failed.
    #[inline]
    pub(crate) fn current_state(&self) -> QpState {
        if self.state > QpState::Init { self.engine.failed().unwrap_or(self.state) } else { self.state }
    }

    fn reset(&mut self, qp: &Qp) {
        let (engine, mut context) = self.split(qp);
        context.discard_completions = true;
        engine.fail(&mut context);
        self.leave_counts(qp);
        self.drop_stream(qp);
        let device = &qp.device;
        self.engine = Engine::new(qp.init.kind, device.config.transport, qp.qpn, &qp.pd.device.pace);
        self.flushes = self.flushes.wrapping_add(1);
        self.engine_state.receives.clear();
        self.engine_state.advertised.forget();
        self.engine_state.sq_occupancy = SqOccupancy::default();
        self.attr = QpAttr::default();
        self.pkey = Pkey::default();
        self.failed_at = None;
        self.carrier = Carrier::new(qp.init.kind);
        self.engine_state.cache.clear();
        qp.init.send_cq.forget_qp(qp.qpn);
        qp.init.recv_cq.forget_qp(qp.qpn);
    }

    pub(crate) fn fail(&mut self, qp: &Qp) {
        let (engine, mut context) = self.split(qp);
        engine.fail(&mut context);
        if self.state != QpState::Error && qp.init.srq.is_some() {
            // What it had taken is flushed, and it takes no more (IBA 1.4 §10.2.9.5).
            self.engine_state.notifications.extend(qp.note(EventKind::LastWqeReached));
        }
        self.state = QpState::Error;
        self.engine_state.cache.forget();
        self.open_or_close(qp);
        while let Some(wr) = self.engine_state.receives.pop_front() {
            self.flush_receive(qp, &wr);
        }
        self.await_pusher(qp);
    }

    /// A posted receive completes in the error state.
    pub(crate) fn flush_receive(&mut self, qp: &Qp, wr: &RecvWr) {
        let flushed = wr.completion(Status::WrFlush, qp.qpn);
        if let Some(counted) = &mut self.engine_state.counted {
            counted.completed(Side::Receive, &flushed);
        }
        if !self.engine_state.advertised.keeps(Side::Receive, &flushed) {
            qp.init.recv_cq.push(flushed, &mut self.engine_state.notifications);
        }
    }

    /// Takes over the attributes that `bits` name and moves the engine.
    fn advance(&mut self, qp: &Qp, from: QpState, to: QpState, new: &QpAttr, bits: u32) -> Result<(), Error> {
        let mut next = self.attr;
        next.merge(new, bits);
        let path = match bits & mask::AV {
            0 => None,
            _ => Some(qp.peer_path(&next.av, next.dest_qpn)?),
        };
        if bits & mask::PATH_MTU != 0 {
            let active = qp.pd.device.port().mtu;
            let bytes = |mtu: Mtu| mtu.bytes() as u64;
            in_range("path_mtu in bytes", bytes(new.path_mtu), bytes(Mtu::M256), bytes(active))?;
        }
        let pkey = qp.named_pkey(new, bits)?;
        if let Some(path) = path {
            self.carrier.connect(path, next.path_mtu, &qp.pd.device);
            self.engine_state.cache.clear();
        }
        self.attr = next;
        self.enter_partition(pkey.unwrap_or(self.pkey));
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.engine.ready_to_receive(&next, qp.pd.device.port().mtu),
            (QpState::Rtr, QpState::Rts) => {
                self.engine.ready_to_send(&next);
                if let Some(carrier) = self.carrier.datagram().filter(|_| qp.init.kind == QpType::Uc) {
                    qp.prime_flow(&carrier.path);
                }
            }
            (QpState::Rts, QpState::Sqd) => {
                self.engine.release();
                self.engine.drain();
                self.drain_awaited = bits & mask::EN_SQD_ASYNC_NOTIFY == 0 || new.en_sqd_async_notify;
            }
            (QpState::Sqd | QpState::Sqe, QpState::Rts) => {
                self.drain_awaited = false;
                self.engine.resume();
            }
            _ => {}
        }
        self.engine.changed(&next, from, bits);
        Ok(())
    }
}

impl Inner {
    /// Completes what waits where the peer copies nothing any more; else a thread waits for that.
    pub(super) fn await_pusher(&mut self, qp: &Qp) {
        if !self.engine_state.advertised.is_any() || self.engine_state.advertised.is_awaited {
            return;
        }
        if qp.pd.device.link.local().is_none_or(|local| local.is_closed(qp.qpn)) {
            return self.complete_kept(qp);
        }
        let Some(me) = qp.me.upgrade() else { return };
        self.engine_state.advertised.is_awaited = true;
        let serial = self.engine_state.advertised.serial;
        let work = Persist::new(move |now| complete(&me, serial, now));
        self.engine_state.notifications.push(Notification::Persist(qp.pd.device.platform.clone(), work));
    }

    fn complete_kept(&mut self, qp: &Qp) {
        for (side, completion) in std::mem::take(&mut self.engine_state.advertised.kept) {
            let cq = match side {
                Side::Send => {
                    self.engine_state.sq_occupancy.ends(&qp.init.send_cq);
                    &qp.init.send_cq
                }
                Side::Receive => &qp.init.recv_cq,
            };
            cq.push(completion, &mut self.engine_state.notifications);
        }
        self.engine_state.advertised.forget();
    }
}

/// Waits until the peer copies nothing any more, and completes what waited for that.
fn complete(qp: &Qp, serial: u32, now: &mut dyn FnMut() -> Instant) {
    // Where it is connected anew by now its next peer reaches it as before.
    qp.await_peer();
    let mut inner = qp.lock();
    // It may have been reset, or destroyed, which waits for the peer, too.
    if inner.destroyed || inner.engine_state.advertised.serial != serial {
        return;
    }
    inner.complete_kept(qp);
    qp.finish_step(inner, now());
}
