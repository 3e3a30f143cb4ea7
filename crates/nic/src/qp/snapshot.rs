//! A queue pair as it is now, for an operator: a copy of what its lock guards.

use std::sync::Arc;
use std::time::Instant;

use transport::iwarp::Carried;
use transport::rc::{Failure, Recoveries};
use wire::{Mtu, Psn, Qpn};

use crate::cq::Cq;
use crate::device::mishaps::Mishaps;
use crate::device::{Device, Transport};
use crate::link::Path;
use crate::qp::attr::{QpState, QpType};
use crate::qp::engine::Engine;
use crate::qp::{Inner, Qp, QpCap};

/// A queue pair as it is now.
#[derive(Clone, Debug)]
pub struct QpSnapshot {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// Transport service.
    pub kind: QpType,
    /// State.
    pub state: QpState,
    /// The path to its peer, of a connection that has one.
    pub path: Option<Path>,
    /// Whether its packets take a way by memory of this host.
    pub by_memory: bool,
    /// Path MTU.
    pub mtu: Mtu,
    /// The PSN of the next new request, of a connection.
    pub sq_psn: Option<Psn>,
    /// The PSN that is expected next, of a connection.
    pub rq_psn: Option<Psn>,
    /// Send requests that take a place in the send queue.
    pub sends: usize,
    /// Receives in its own queue.
    pub receives: usize,
    /// How many requests its queues hold.
    pub cap: QpCap,
    /// Packets and messages that came.
    pub received: u64,
    /// What the stream of an iWARP queue pair has carried.
    pub carried: Option<Carried>,
    /// What else a reliable connection knows.
    pub reliable: Option<Reliable>,
    /// The protection domain's number.
    pub pd: u32,
    /// The queue of send completions.
    pub send_cq: Arc<Cq>,
    /// The queue of receive completions.
    pub recv_cq: Arc<Cq>,
    /// The number of the shared receive queue that it takes receives from.
    pub srq: Option<u32>,
}

/// What the engine of a reliable connection knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reliable {
    /// PSNs sent and not acknowledged.
    pub in_flight: u32,
    /// Send requests that have completed without an error.
    pub completed: u64,
    /// How often its requests were sent again, and why.
    pub recoveries: Recoveries,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u32,
    /// READs and atomics that it may have under way.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that it serves at a time.
    pub max_dest_rd_atomic: u8,
    /// Why it went to the error state by itself, and when.
    pub failure: Option<(Failure, Instant)>,
}

impl Qp {
    /// Copies what an operator may see. The queue pair is locked for the copy only.
    pub fn snapshot(&self) -> QpSnapshot {
        let mut inner = self.lock();
        let waiting = inner.engine_state.sq_occupancy.taken(&self.init.send_cq);
        let reliable = match &inner.engine {
            Engine::Rc(engine) => Some(Reliable {
                in_flight: engine.in_flight(),
                completed: engine.completed(),
                recoveries: engine.recoveries(),
                rnr_naks_sent: engine.rnr_naks_sent(),
                max_rd_atomic: inner.attr.max_rd_atomic,
                max_dest_rd_atomic: inner.attr.max_dest_rd_atomic,
                failure: engine.failure().zip(inner.failed_at),
            }),
            _ => None,
        };
        let carried = match &inner.engine {
            Engine::Iwarp(engine) => Some(engine.carried()),
            _ => None,
        };
        let mut snapshot = QpSnapshot {
            qpn: self.qpn,
            kind: self.init.kind,
            state: inner.current_state(),
            path: inner.carrier.datagram().map(|carrier| carrier.path),
            by_memory: false,
            mtu: inner.attr.path_mtu,
            sq_psn: inner.engine.sq_psn(),
            rq_psn: inner.engine.rq_psn(),
            sends: inner.engine.outstanding() + waiting,
            receives: inner.engine_state.receives.len(),
            cap: self.init.cap,
            received: self.received.count(),
            carried,
            reliable,
            pd: self.pd.id,
            send_cq: self.init.send_cq.clone(),
            recv_cq: self.init.recv_cq.clone(),
            srq: self.init.srq.as_ref().map(|srq| srq.number()),
        };
        self.unlock(inner);
        let local = self.pd.device.link.local();
        snapshot.by_memory = local.zip(snapshot.path).is_some_and(|(local, path)| local.carries(&path));
        snapshot
    }
}

impl Inner {
    /// The engine goes: what it has counted stays with the device.
    pub(super) fn leave_counts(&self, qp: &Qp) {
        match &self.engine {
            Engine::Rc(engine) => qp.pd.device.mishaps.lock().add(engine),
            Engine::Iwarp(engine) => qp.pd.device.carried.lock().add(&engine.carried()),
            _ => {}
        }
    }
}

impl Device {
    /// What befell the queue pairs of this device, those that are gone among them. Each queue pair
    /// is locked for itself, so one that goes meanwhile may be missing in the sum; the next sum has
    /// it again.
    pub fn mishaps(&self) -> Mishaps {
        let mut mishaps = *self.mishaps.lock();
        self.each_engine(|engine| {
            if let Engine::Rc(engine) = engine {
                mishaps.add(engine);
            }
        });
        mishaps
    }

    /// What the streams of this device have carried, added up likewise.
    pub fn carried(&self) -> Carried {
        let mut carried = *self.carried.lock();
        if self.config.transport == Transport::Iwarp {
            self.each_engine(|engine| {
                if let Engine::Iwarp(engine) = engine {
                    carried.add(&engine.carried());
                }
            });
        }
        carried
    }

    /// Looks at the engine of each queue pair that is there.
    fn each_engine(&self, mut look: impl FnMut(&Engine)) {
        for qp in self.qps_one_by_one() {
            let inner = qp.inner.lock();
            if !inner.destroyed {
                look(&inner.engine);
            }
        }
    }
}
