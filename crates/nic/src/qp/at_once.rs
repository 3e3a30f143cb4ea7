//! WRITEs and READs that need nobody at the target: those of a connection whose peer is another process of this host, where the world reaches
//! its memory ([`Reach`](crate::Reach)); and long SENDs, whose bytes the peer copies itself.
//!
//! A WRITE or READ only while nothing of the queue pair is under way: so requests are executed in the order in which they were posted. What the world does not
//! do leaves as packets, and the peer's responder says why.

use transport::op::{AtOnce, Data, Pull, RecvWr, Remote, SendOp, SendWr};
use wire::Rkey;

use crate::memory::reached::{REACHED, Transfer};
use crate::qp::attr::{QpState, QpType};
use crate::qp::engine_context::EngineContext;
use crate::qp::{Inner, Qp};
use crate::reach::{Copy, Grant};

/// Most bytes of a request: what has come for the queue pair waits meanwhile.
const MOST: u64 = 16 << 20;
/// Fewer bytes are copied to the ring and out of it sooner than the system is asked to copy them.
const FEWEST_OFFERED: u64 = 32 << 10;

impl EngineContext<'_> {
    /// Whether the peer's memory is reached for a request like this.
    pub(super) fn reaches_for(&self, wr: &SendWr) -> bool {
        self.peer
            .is_some_and(|(reach, path)| (1..=MOST).contains(&wr.data.len_bytes()) && reach.reaches(path))
    }

    /// Executes a request, if it may be.
    pub(super) fn at_once(&mut self, wr: &SendWr) -> AtOnce {
        let Some((reach, path)) = self.peer.filter(|_| self.reaches_for(wr)) else { return AtOnce::NoWay };
        let (addr, rkey, what) = match wr.op {
            SendOp::Write { addr, rkey, .. } => (addr, rkey, Copy::Write),
            SendOp::Read { addr, rkey } => (addr, rkey, Copy::Read),
            _ => return AtOnce::NoWay,
        };
        let remote = Remote { addr, length: wr.data.len_bytes(), rkey };
        let transfer = Transfer { reach, path, from: self.qp.qpn, remote };
        let done = match &wr.data {
            Data::Sges(list) => transfer.copy(what, list.as_slice(), &self.view),
            _ if what == Copy::Read => false,
            Data::Inline(bytes) => transfer.write(bytes),
            Data::InlineLong(bytes) => transfer.write(bytes),
        };
        if !done {
            return AtOnce::Refused;
        }
        if self.counted.is_none() {
            self.places.take();
            if wr.signaled {
                self.places.ends(&self.qp.init.send_cq);
            }
        }
        AtOnce::Done
    }
}

impl EngineContext<'_> {
    /// Where the peer finds bytes of a SEND, if it may reach our memory, as we reach its.
    pub(super) fn offered(&self, wr: &SendWr, at: u64, len: u64) -> Option<Pull> {
        let (reach, path) = self.peer.filter(|_| self.is_open)?;
        let Data::Sges(list) = &wr.data else { return None };
        if len < FEWEST_OFFERED {
            return None;
        }
        reach.reaches(path).then(|| self.view.offer(list.as_slice(), at, len))?
    }

    /// Copies what the peer offers to where a receive says.
    pub(super) fn pulled(&self, receive: &RecvWr, at: u64, pull: Pull) -> bool {
        let Some((reach, path)) = self.peer else { return false };
        let remote = Remote { addr: pull.addr, length: pull.len.into(), rkey: Rkey(0) };
        let view = self.srq_view.as_ref().unwrap_or(&self.view);
        let transfer = Transfer { reach, path, from: self.qp.qpn, remote };
        transfer.copy_part(Copy::Pull, receive.sges.as_slice(), at, view)
    }

    /// A request failed, and the program may use its memory again when it learns of it: nothing of it is to be pulled then.
    pub(super) fn withdraw_offers(&self) {
        if let Some((reach, _)) = self.peer.filter(|_| self.is_open) {
            reach.close(self.qp.qpn, false);
        }
    }
}

impl Inner {
    /// Requests that take a place in the send queue.
    pub(super) fn places_taken(&mut self, qp: &Qp) -> usize {
        self.engine.outstanding() + self.places.taken(&qp.init.send_cq)
    }

    /// Lets the peer of a queue pair reach memory, or does not any more, as its state and its rights are now; whether the latter, and then
    /// [`Qp::await_peer`] waits until it does not. In RTR only once the peer was heard, which is an event.
    pub(super) fn open_or_close(&mut self, qp: &Qp) -> bool {
        let Some(reach) = qp.pd.device.platform.others_memory() else { return false };
        let ready = match self.current_state() {
            _ if self.destroyed || qp.init.kind != QpType::Rc => false,
            QpState::Rtr => self.engine.is_established(),
            state => state == QpState::Rts,
        };
        let access = self.attr.access & REACHED;
        if ready
            && let Some(carrier) = self.carrier.datagram().filter(|carrier| carrier.is_here)
            && let Some(table) = qp.pd.device.memory.reached_as()
        {
            reach.open(&Grant { qpn: qp.qpn, path: &carrier.path, pd: qp.pd.id, table, access });
            (self.is_open, self.was_open) = (true, true);
            return false;
        }
        if std::mem::take(&mut self.is_open) {
            reach.close(qp.qpn, false);
        }
        self.was_open
    }
}

impl Qp {
    /// Waits until the peer uses nothing of what was closed. Not with the lock held: how long it takes is the peer's matter, and whoever
    /// has a packet for the queue pair would wait for the lock.
    pub(super) fn await_peer(&self) {
        if let Some(reach) = self.pd.device.platform.others_memory() {
            reach.close(self.qpn, true);
        }
    }
}
