//! Requests that fail because a link lost them on purpose ([`crate::faults`]): the requester or the
//! responder does what it would do if its peer, or its adapter, had said so.

use std::sync::Arc;
use std::time::Instant;

use locks::MutexGuard;
use transport::TxBatch;
use transport::op::Status;
use transport::rc::{AckDelay, State};
use wire::bth::{Aeth, Bth, Syndrome};
use wire::roce::{Header, Op, Packet, Service};
use wire::{Psn, Qpn};

use crate::device::Device;
use crate::faults::{Outcome, RequestFault, Told};
use crate::qp::attr::QpType;
use crate::qp::engine::Engine;
use crate::qp::{Inner, Qp};

/// Between RNR NAK and the next try, where the responder's own time is not known: 0.64 ms (IBA 1.4
/// table 45).
const RNR_TIMER: u8 = 12;

impl Device {
    /// Does to a request what its fault says. [`Told::NotYet`] where requests before it wait for
    /// their answers, or it is not over.
    pub fn fail_request(&self, now: Instant, fault: &RequestFault) -> Told {
        let is_sender = |qp: &Arc<Qp>| {
            let ends = qp.path().map(|path| (path.source, path.dest, path.dest_qpn));
            matches!(qp.init.kind, QpType::Rc | QpType::XrcSend)
                && ends == Some((fault.ours, fault.peer, fault.qpn))
        };
        match fault.is_out {
            true => match self.qps_one_by_one().find(is_sender).is_none_or(|qp| qp.fail_own(now, fault)) {
                true => Told::Done,
                false => Told::NotYet,
            },
            false => self.qp(fault.qpn).map_or(Told::Done, |qp| qp.refuse(now, fault)),
        }
    }
}

impl Qp {
    /// A request of ours fails; false where that is not possible yet, or not over.
    fn fail_own(&self, now: Instant, fault: &RequestFault) -> bool {
        let mut inner = self.lock();
        let qpn = self.qpn();
        let kind = self.init.kind;
        let (engine, mut context) = inner.split(self);
        let Engine::Rc(engine) = engine else { return true };
        if !matches!(engine.state(), State::Rts | State::Sqd) {
            return true;
        }
        let syndrome = match fault.outcome {
            Outcome::Unanswered => return false,
            // A NAK acknowledges all before its PSN: they shall have their own answers.
            _ if engine.oldest_psn().before(fault.psn) => return false,
            _ if engine.oldest_psn() != fault.psn => return true,
            Outcome::Status(status) => {
                engine.fail_oldest(status, &mut context);
                self.finish_step(inner, now);
                return true;
            }
            Outcome::Nak(code) => Syndrome::Nak(code),
            Outcome::RnrNak => Syndrome::RnrNak { timer: RNR_TIMER },
        };
        let header = answer(kind, qpn, fault.psn, syndrome);
        engine.receive(now, &Packet { header, payload: &[] }, AckDelay::No, &mut context);
        self.finish_step(inner, now);
        true
    }

    /// Answers a request of the peer, where it is the one that is expected next.
    fn refuse(&self, now: Instant, fault: &RequestFault) -> Told {
        let inner = self.lock();
        let next = inner.engine.rq_psn();
        if next.is_some_and(|next| fault.psn.before(next)) && matches!(inner.engine, Engine::Rc(_)) {
            return Told::Executed;
        }
        let is_next = next == Some(fault.psn);
        if let Outcome::Status(status) = fault.outcome {
            // Unreliable packets come once: each is the next.
            if is_next || !matches!(inner.engine, Engine::Rc(_)) {
                self.fail_receive(inner, now, status);
            }
            return Told::Done;
        }
        let syndrome = match fault.outcome {
            Outcome::Nak(code) => Syndrome::Nak(code),
            Outcome::RnrNak => Syndrome::RnrNak { timer: inner.attr.min_rnr_timer },
            Outcome::Unanswered | Outcome::Status(_) => return Told::Done,
        };
        if is_next {
            self.answer(inner, fault.psn, syndrome);
        }
        Told::Done
    }

    /// A message of the peer's finds its receive broken.
    fn fail_receive(&self, mut inner: MutexGuard<'_, Inner>, now: Instant, status: Status) {
        let (engine, mut context) = inner.split(self);
        match engine {
            Engine::Rc(engine) => engine.fail_receive(status, &mut context),
            Engine::Uc(engine) => engine.fail_receive(status, &mut context),
            Engine::Ud(engine) => engine.fail_receive(status, &mut context),
            Engine::Raw(_) | Engine::Iwarp(_) => return,
        }
        self.finish_step(inner, now);
    }

    fn answer(&self, inner: MutexGuard<'_, Inner>, psn: Psn, syndrome: Syndrome) {
        let Some(path) = inner.carrier.datagram().map(|carrier| carrier.path) else { return };
        drop(inner);
        let header = answer(self.init.kind, path.dest_qpn, psn, syndrome);
        let mut batch = TxBatch::new();
        if batch.push(&header, 0, |_| Ok(())).is_ok() {
            self.pd().device.link.send(&path, &mut batch);
        }
    }
}

/// What a responder says, to a queue pair. No requester looks at the MSN.
fn answer(kind: QpType, dest_qp: Qpn, psn: Psn, syndrome: Syndrome) -> Header {
    let service = match kind {
        QpType::XrcSend | QpType::XrcRecv => Service::Xrc(None),
        _ => Service::Rc,
    };
    let op = Op::Acknowledge(Aeth { syndrome, msn: 0 });
    Header { bth: Bth { dest_qp, psn, ..Bth::default() }, service, op }
}
