//! The reliable connection service over RoCEv2 (IBA 1.4 §9.7): requester and responder of one queue pair.

use std::time::{Duration, Instant};

use wire::roce::Packet;
use wire::{Mtu, Pkey, Psn, Qpn};

use crate::op::{Context, SendWr};
use crate::TxBatch;

/// What the responder needs to work: set on the way to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Payload bytes of a full packet.
    pub path_mtu: Mtu,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// READs and atomics accepted at once, 0 to 255.
    pub max_dest_rd_atomic: u8,
    /// Code of the timer in RNR NAKs sent, 0 to 31 (0: 655.36 ms).
    pub min_rnr_timer: u8,
}

/// What the requester needs to work: set on the way to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics started at once, 0 to 255.
    pub max_rd_atomic: u8,
    /// Local ACK timeout code, 0 to 31: 4.096 us * 2^code, 0 never.
    pub timeout: u8,
    /// Times a timed-out request is sent again, 0 to 7 (finite).
    pub retry_cnt: u8,
    /// Times an RNR NAK is obeyed, 0 to 7 (7: for ever).
    pub rnr_retry: u8,
}

/// The state of a queue pair (IBA 1.4 figure 124), as far as the engine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither side works; receives may be posted.
    Init,
    /// The responder works.
    Rtr,
    /// Both work.
    Rts,
    /// The requester takes no new request to the wire, finishes those begun.
    Sqd,
    /// Everything is flushed.
    Error,
}

/// One RC queue pair.
#[derive(Debug)]
pub struct Rc {}

impl Rc {
    /// A queue pair in state Init.
    pub fn new(qpn: Qpn, pkey: Pkey) -> Rc {
        todo!("{qpn:?} {pkey:?}")
    }
    /// Current state.
    pub fn state(&self) -> State {
        todo!()
    }
    /// Init to RTR.
    pub fn ready_to_receive(&mut self, attr: RtrAttr) {
        todo!("{attr:?}")
    }
    /// RTR to RTS.
    pub fn ready_to_send(&mut self, attr: RtsAttr) {
        todo!("{attr:?}")
    }
    /// To the error state: everything outstanding on the send queue, and a receive half filled, completes with
    /// `WrFlush`, in order. Posted receives that no packet has touched are the adapter's to flush.
    pub fn fail(&mut self, cx: &mut impl Context) {
        let _ = cx;
        todo!()
    }
    /// Send work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        todo!()
    }
    /// Queues a request; the adapter has checked queue depth and state. In the error state it is flushed at once.
    pub fn post(&mut self, wr: SendWr, cx: &mut impl Context) {
        let _ = (wr, cx);
        todo!()
    }
    /// A packet for this queue pair, whose ICRC and source address are checked already.
    pub fn receive(&mut self, now: Instant, packet: &Packet<'_>, cx: &mut impl Context) {
        let _ = (now, packet, cx);
        todo!()
    }
    /// Writes as many packets as there are to send and as fit; call again with an emptied batch until it stays empty.
    pub fn fill(&mut self, now: Instant, batch: &mut TxBatch, cx: &mut impl Context) {
        let _ = (now, batch, cx);
        todo!()
    }
    /// When [`Rc::expire`] wants to be called at the latest; early calls do nothing.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// A timer may have run out: retransmission or the end of an RNR wait. Follow with [`Rc::fill`].
    pub fn expire(&mut self, now: Instant, cx: &mut impl Context) {
        let _ = (now, cx);
        todo!()
    }
    /// Whether retransmissions happened since the last call: the adapter then lets the packets leave from
    /// another source port, because the old flow may end at a process that is stopped.
    pub fn take_path_suspect(&mut self) -> bool {
        todo!()
    }
}

/// A local ACK timeout or packet life time code as a duration: 4.096 us * 2^code (IBA 1.4 §9.7.6.1.3).
pub fn timeout_of(code: u8) -> Option<Duration> {
    (code & 31 != 0).then(|| Duration::from_nanos(4096 << (code & 31)))
}
