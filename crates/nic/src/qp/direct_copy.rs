//! WRITEs, READs and FLUSHes that need nothing of the target. They are those of a connection whose
//! peer is another process of this host, where the environment reaches its memory
//! ([`LocalLink`](crate::LocalLink)).
//!
//! Memory that both map is always reached so.
//!
//! Only while nothing of the queue pair is under way: so requests are executed in the order in
//! which they were posted. What the environment does not do leaves as packets, and the peer's
//! responder says why. Which requests are to go so the engine chooses (`transport::rc::local`).

use transport::likely::{likely, unlikely};
use transport::op::{AtomicOp, Completed, Data, DirectOutcome, MAX_DIRECT, Remote, SendOp, SendWr, Sge};
use wire::{Mtu, Rkey};

use crate::memory::peer_copy::PEER_RIGHTS;
use crate::peer_memory::{Copy, Grant, Transfer, terms};
use crate::qp::attr::{QpState, QpType};
use crate::qp::engine::Engine;
use crate::qp::engine_context::EngineContext;
use crate::qp::{Inner, Qp};

/// A WRITE or READ of one element.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneSided {
    /// Of its completion.
    pub wr_id: u64,
    /// Which of the two.
    pub what: Copy,
    /// Where the peer has the bytes.
    pub addr: u64,
    /// The peer's key for the bytes.
    pub rkey: Rkey,
    /// Where they come from, or go to here, and how many they are.
    pub sge: Sge,
    /// The request completes visibly.
    pub signaled: bool,
}

impl OneSided {
    /// What a request is, where it is one.
    #[inline]
    pub(super) fn of(wr: &SendWr) -> Option<Self> {
        let (what, addr, rkey) = match wr.op {
            SendOp::Write { addr, rkey, immediate: None } => (Copy::Write, addr, rkey),
            SendOp::Read { addr, rkey } => (Copy::Read, addr, rkey),
            _ => return None,
        };
        let Data::Sges(list) = &wr.data else { return None };
        let &[sge] = list.as_slice() else { return None };
        Some(Self { wr_id: wr.wr_id, what, addr, rkey, sge, signaled: wr.signaled })
    }
}

impl EngineContext<'_> {
    /// Whether a WRITE, READ or atomic seems to be of memory that both processes map: then no other
    /// way is faster.
    pub(super) fn is_mapped(&self, wr: &SendWr) -> bool {
        let (SendOp::Write { addr, rkey, .. }
        | SendOp::Read { addr, rkey }
        | SendOp::Atomic { addr, rkey, .. }) = wr.op
        else {
            return false;
        };
        let remote = Remote { addr, length: wr.data.len_bytes(), rkey };
        self.peer().is_some_and(|(local, path)| local.is_mapped(path, remote, &self.engine_state.cache))
    }

    /// Executes a request, if it may be.
    pub(super) fn copy_directly(&mut self, wr: &SendWr) -> DirectOutcome {
        let Some((local, path)) = self.peer() else { return DirectOutcome::Unavailable };
        let (from, mtu) = (self.qp.qpn, self.mtu());
        let to = |what, addr, rkey, length| {
            let remote = Remote { addr, length, rkey };
            Transfer { path, from, mtu, remote, what }
        };
        let len = wr.data.len_bytes();
        let outcome = match (&wr.op, &wr.data) {
            (&SendOp::Write { addr, rkey, .. }, data) => {
                let transfer = to(Copy::Write, addr, rkey, len);
                match data {
                    Data::Sges(list) => {
                        transfer.copy(local, list.as_slice(), &self.view(), &mut self.engine_state.cache)
                    }
                    Data::Inline(bytes) => transfer.write(local, bytes, &mut self.engine_state.cache),
                    Data::InlineLong(bytes) => transfer.write(local, bytes, &mut self.engine_state.cache),
                }
            }
            (&SendOp::Read { addr, rkey }, Data::Sges(list)) => to(Copy::Read, addr, rkey, len).copy(
                local,
                list.as_slice(),
                &self.view(),
                &mut self.engine_state.cache,
            ),
            // Where the peer has work to do it is told by a packet; nothing was refused.
            (&SendOp::Flush { addr, rkey, length, how }, _) => {
                if !to(Copy::Flush(how), addr, rkey, length.into()).flush(local, &mut self.engine_state.cache)
                {
                    return DirectOutcome::Unavailable;
                }
                DirectOutcome::Done
            }
            (&SendOp::Atomic { addr, rkey, op }, data) if self.is_mapped(wr) => {
                // An ATOMIC WRITE does not ask for what was there.
                let list = match data {
                    _ if matches!(op, AtomicOp::Write(_)) => None,
                    Data::Sges(list) => Some(list.as_slice()),
                    _ => Some(&[][..]),
                };
                to(Copy::Atomic(op), addr, rkey, 8).change(
                    local,
                    list,
                    &self.view(),
                    &mut self.engine_state.cache,
                )
            }
            _ => return DirectOutcome::Unavailable,
        };
        if outcome == DirectOutcome::Done && self.engine_state.counted.is_none() {
            self.engine_state.sq_occupancy.take();
            if wr.signaled {
                self.engine_state.sq_occupancy.ends(&self.qp.init.send_cq);
            }
        }
        outcome
    }
}

impl Inner {
    /// Executes a WRITE, READ or atomic that is posted now, where it may be; else it is to be
    /// posted.
    #[inline]
    pub(super) fn execute_alone(&mut self, qp: &Qp, wr: &SendWr) -> bool {
        if !matches!(wr.op, SendOp::Write { .. } | SendOp::Read { .. } | SendOp::Atomic { .. }) {
            return false;
        }
        self.catch_up(qp);
        let (engine, mut context) = self.split(qp);
        if let Engine::Rc(engine) = engine { engine.execute_alone(wr, &mut context) } else { false }
    }

    /// Copies a WRITE or READ of one element while no other request takes a place in the queue.
    /// Most requests that a program waits for are such: what only others need is not made ready.
    /// False: it is none of these, or it is to be posted.
    #[inline]
    pub(super) fn copy_alone(&mut self, qp: &Qp, request: &OneSided) -> bool {
        let OneSided { wr_id, what, addr, rkey, ref sge, signaled } = *request;
        let remote = Remote { addr, length: sge.length.into(), rkey };
        let is_simple = qp.init.kind == QpType::Rc
            && self.engine_state.counted.is_none()
            && self.engine_state.sq_occupancy.are_free();
        if unlikely(!is_simple || !(1..=MAX_DIRECT).contains(&remote.length)) {
            return false;
        }
        let Engine::Rc(engine) = &mut self.engine else { return false };
        let (Some(carrier), Some(local)) = (self.carrier.datagram(), qp.pd.device.link.local()) else {
            return false;
        };
        let (opcode, byte_len) = match what {
            Copy::Write => (Completed::Write, 0),
            Copy::Read => (Completed::Read, sge.length),
            Copy::Pull | Copy::Put | Copy::Flush(_) | Copy::Atomic(_) => return false,
        };
        if unlikely(!carrier.is_local || !engine.begins_alone(what == Copy::Read)) {
            return false;
        }
        let view = qp.pd.device.memory.view(qp.pd.id, self.attr.access).pinned_by(qp);
        let transfer = Transfer { path: &carrier.path, from: qp.qpn, mtu: carrier.mtu, remote, what };
        let outcome = transfer.copy_one(local, sge, &view, &mut self.engine_state.cache);
        let done = engine.executed_alone(outcome, sge.length);
        if likely(done) {
            self.engine_state.sq_occupancy.take();
            if signaled {
                self.engine_state.sq_occupancy.ends(&qp.init.send_cq);
                qp.init.send_cq.push(
                    engine.completion_of(wr_id, opcode, byte_len),
                    &mut self.engine_state.notifications,
                );
            }
        }
        done
    }

    /// Requests that take a place in the send queue.
    #[inline]
    pub(super) fn sq_slots_taken(&mut self, qp: &Qp) -> usize {
        let taken = self.engine.outstanding() + self.engine_state.sq_occupancy.taken(&qp.init.send_cq);
        self.engine_state.sq_occupancy.note_outstanding(taken, &qp.init.send_cq);
        taken
    }

    /// Lets the peer of a queue pair reach memory, or does not any more, as its state and its
    /// rights are now; whether the latter, and then [`Qp::await_peer`] waits until it does not,
    /// and lets it reach memory again where that changes only. In RTR only once the peer was heard,
    /// which is an event; all else is made ready before.
    pub(super) fn open_or_close(&mut self, qp: &Qp) -> bool {
        let Some(local) = qp.pd.device.link.local() else { return false };
        let state = self.current_state();
        let may = qp.init.kind == QpType::Rc && !self.destroyed;
        let carrier = self.carrier.datagram().filter(|carrier| may && carrier.is_local);
        if let (QpState::Rtr, Some(carrier)) = (state, carrier) {
            local.prepare(&carrier.path);
        }
        let ready = match state {
            QpState::Rtr => self.engine.is_established(),
            state => state == QpState::Rts,
        };
        if ready
            && let Some(carrier) = carrier
            && let Some(table) = qp.pd.device.memory.peer_table()
        {
            let access = if self.engine.has_begun() { self.granted(carrier.mtu) } else { 0 };
            qp.pd.device.memory.has_neighbours();
            let grant = Grant { qpn: qp.qpn, path: &carrier.path, pd: qp.pd.id, table, access };
            let was_open = std::mem::replace(&mut self.is_open, local.open(&grant));
            self.was_open = true;
            // Where it is opened anew the peer is heard anew.
            self.engine_state.has_received &= was_open && self.is_open;
            return !self.is_open;
        }
        if std::mem::take(&mut self.is_open) {
            local.close(qp.qpn, false);
        }
        self.was_open
    }

    /// What the peer may do without the responder, once that has executed a request of it: then the
    /// peer is connected to this queue pair and its numbers are those that are expected. What they
    /// have to agree on beside that is said here.
    fn granted(&self, mtu: Mtu) -> u32 {
        let resources = if self.attr.max_dest_rd_atomic > 0 { terms::RESOURCES } else { 0 };
        self.attr.access & PEER_RIGHTS | terms::of_mtu(mtu) | resources
    }
}

impl Qp {
    /// Waits until the peer uses nothing of what was closed. Not with the lock held. How long it
    /// takes is the peer's matter, and a thread that has a packet for the queue pair would wait for
    /// the lock.
    pub(super) fn await_peer(&self) {
        if let Some(local) = self.pd.device.link.local() {
            local.close(self.qpn, true);
            self.lock().open_or_close(self);
        }
    }
}
