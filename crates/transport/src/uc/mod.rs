//! The unreliable connection service over RoCEv2 (IBA 1.4 §9.8.2): one queue pair.
//!
//! The receiver acknowledges nothing: a request completes when its last packet has left. A receiver
//! may be unable to take a message, be it for a lost packet, a wrong key or the want of a receive.
//! Then it drops that message whole, in silence.

mod requester;
mod responder;

use std::sync::Arc;
use std::time::Instant;

use wire::bth::Bth;
use wire::roce::{Header, Op, Packet, Service};
use wire::{Mtu, Pkey, Psn, Qpn};

use crate::TxBatch;
use crate::execute::Ends;
use crate::op::{Context, QpEvent, SendWr, Status};
pub use crate::pacing::{Pace, UnreliableState};
use requester::Requester;
use responder::Responder;

/// What receiving needs: set on the way to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Payload bytes of a full packet.
    pub path_mtu: Mtu,
    /// First PSN expected.
    pub rq_psn: Psn,
}

/// One UC queue pair.
#[derive(Debug)]
pub struct Uc {
    state: UnreliableState,
    established: bool,
    conn: Connection,
    requester: Requester,
    responder: Responder,
}

impl Uc {
    /// A queue pair in state Init that sends at the port's pace.
    pub fn new(qpn: Qpn, pkey: Pkey, pace: Arc<Pace>) -> Self {
        Self {
            state: UnreliableState::Init,
            established: false,
            conn: Connection { qpn, dest: Qpn::default(), pkey, mtu: Mtu::default().bytes() },
            requester: Requester::new(pace),
            responder: Responder::default(),
        }
    }
    /// Sets the P_Key that packets bear from now on.
    pub fn set_pkey(&mut self, pkey: Pkey) {
        self.conn.pkey = pkey;
    }
    /// Current state.
    pub fn state(&self) -> UnreliableState {
        self.state
    }
    /// Init to RTR.
    pub fn ready_to_receive(&mut self, attr: RtrAttr) {
        self.conn.dest = attr.dest_qpn;
        self.conn.mtu = attr.path_mtu.bytes();
        self.responder.start(attr.rq_psn);
        self.state = UnreliableState::Rtr;
    }
    /// RTR to RTS; `sq_psn` is the first PSN sent.
    pub fn ready_to_send(&mut self, sq_psn: Psn) {
        self.requester.start(sq_psn);
        self.state = UnreliableState::Rts;
    }
    /// RTS to SQD: no message is begun any more. Nothing in other states.
    pub fn drain(&mut self) {
        self.state.drain();
    }
    /// SQD or SQE back to RTS. Follow with [`Uc::fill`]. Nothing in other states.
    pub fn resume(&mut self) {
        self.state.resume();
    }
    /// Whether no message is half sent (IBV_EVENT_SQ_DRAINED is due once this holds in SQD).
    pub fn drained(&self) -> bool {
        self.requester.between_messages()
    }
    /// The PSN the next packet will bear.
    pub fn sq_psn(&self) -> Psn {
        self.requester.psn()
    }
    /// The PSN expected next.
    pub fn rq_psn(&self) -> Psn {
        self.responder.expected()
    }
    /// To the error state: everything outstanding on the send queue, and a receive half filled,
    /// completes with `WrFlush`, in order. Posted receives that no packet has touched are the
    /// adapter's to flush.
    pub fn fail(&mut self, cx: &mut impl Context) {
        self.state = UnreliableState::Error;
        self.requester.flush(self.conn.qpn, cx);
        self.responder.flush(&self.conn, cx);
    }
    /// Send work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.requester.outstanding()
    }
    /// Queues a SEND or WRITE; the adapter has checked queue depth and state. In the states SQE and
    /// Error it is flushed at once. Follow with [`Uc::fill`].
    pub fn post(&mut self, wr: SendWr, cx: &mut impl Context) {
        self.requester.post(wr);
        if self.state.flushes() {
            self.requester.flush(self.conn.qpn, cx);
        }
    }
    /// The request that was posted last fails with a status when its turn comes, and the state is
    /// then SQE. Nothing where none is outstanding.
    pub fn fail_last(&mut self, status: Status) {
        self.requester.fail_last(status);
    }
    /// A packet for this queue pair, whose ICRC and source address are checked already.
    pub fn receive(&mut self, packet: &Packet<'_>, cx: &mut impl Context) {
        if packet.header.service != Service::Uc || !self.state.receives() {
            return;
        }
        if self.state == UnreliableState::Rtr && !self.established {
            self.established = true;
            cx.event(QpEvent::CommunicationEstablished);
        }
        if self.responder.request(&self.conn, packet, cx).is_err() {
            cx.event(QpEvent::Fatal);
            self.fail(cx);
        }
    }
    /// The adapter ends the next receive with a status, and the state is the error state. Nothing
    /// where no receive is posted.
    pub fn fail_receive(&mut self, status: Status, cx: &mut impl Context) {
        if self.state.receives() && self.responder.fail_receive(&self.conn, status, cx) {
            cx.event(QpEvent::Fatal);
            self.fail(cx);
        }
    }
    /// Writes as many packets as there are to send, as the pace allows and as fit; call again with
    /// an emptied batch until it stays empty.
    pub fn fill(&mut self, now: Instant, batch: &mut TxBatch, cx: &mut impl Context) {
        if !matches!(self.state, UnreliableState::Rts | UnreliableState::Sqd) {
            return;
        }
        let draining = self.state == UnreliableState::Sqd;
        if let Err(status) = self.requester.fill(now, &self.conn, draining, batch, cx) {
            self.state = UnreliableState::Sqe;
            self.requester.fail_oldest(status, self.conn.qpn, cx);
            self.requester.flush(self.conn.qpn, cx);
        }
    }
    /// When [`Uc::fill`] wants to be called again, because the pace held something back.
    pub fn deadline(&self) -> Option<Instant> {
        self.requester.deadline()
    }
}

/// What every packet of a connection has in common.
#[derive(Clone, Copy, Debug)]
struct Connection {
    qpn: Qpn,
    dest: Qpn,
    pkey: Pkey,
    /// Payload bytes of a full packet.
    mtu: usize,
}

impl Connection {
    /// What completions of receives name.
    fn ends(&self) -> Ends {
        Ends { local: self.qpn, peer: self.dest }
    }
    fn header(&self, psn: Psn, op: Op) -> Header {
        let bth = Bth { pkey: self.pkey, dest_qp: self.dest, psn, ..Bth::default() };
        Header { bth, service: Service::Uc, op }
    }
}
