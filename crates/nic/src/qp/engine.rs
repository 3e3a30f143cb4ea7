//! The engine of a queue pair, whatever its transport service: the small differences in one place.

use std::sync::Arc;
use std::time::Instant;

use transport::op::{Context, SendWr, Status};
use transport::pacing::Pace;
use transport::rc::{AckDelay, FlushTask, RtrAttr, RtsAttr};
use transport::ud::Destination;
use transport::{Iwarp, Rc, TxBatch, Uc, Ud, iwarp, pacing, rc, uc};
use wire::roce::Packet;
use wire::run::Run;
use wire::{Mtu, Pkey, Psn, Qpn};

use crate::device::adapter::Transport;
use crate::link::Path;
use crate::qp::attr::{QpAttr, QpState, QpType, mask};
use crate::qp::raw_packet::Raw;

/// Whether a request of an unreliable service is to fail by a fault.
pub(crate) trait SendFault {
    /// The status that it ends with, if it is; `to` is where a datagram goes.
    fn send_fault(&self, wr: &SendWr, to: Option<&Destination<Path>>) -> Option<Status>;
}

/// One queue pair's engine.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost each packet of a reliable connection one more load"
)]
pub(crate) enum Engine {
    Rc(Rc),
    Uc(Uc),
    Ud(Ud<Path>),
    Raw(Raw),
    Iwarp(Box<Iwarp>),
}

impl Engine {
    /// In state Init.
    pub(crate) fn new(kind: QpType, transport: Transport, qpn: Qpn, pace: &Arc<Pace>) -> Self {
        let pkey = Pkey::default();
        match kind {
            // No other kind is made on such a device.
            _ if transport == Transport::Iwarp => Self::Iwarp(Box::new(Iwarp::new(qpn))),
            QpType::Rc => Self::Rc(Rc::new(qpn, pkey)),
            QpType::XrcSend => Self::Rc(Rc::xrc_initiator(qpn, pkey)),
            QpType::XrcRecv => Self::Rc(Rc::xrc_target(qpn, pkey)),
            QpType::Uc => Self::Uc(Uc::new(qpn, pkey, pace.clone())),
            QpType::Ud => Self::Ud(Ud::new(qpn, pkey, pace.clone())),
            QpType::RawPacket => Self::Raw(Raw::new(qpn)),
        }
    }
    /// Packets bear this P_Key from now on, where the transport has any.
    pub(crate) fn set_pkey(&mut self, pkey: Pkey) {
        match self {
            Self::Rc(e) => e.set_pkey(pkey),
            Self::Uc(e) => e.set_pkey(pkey),
            Self::Ud(e) => e.set_pkey(pkey),
            Self::Raw(_) | Self::Iwarp(_) => {}
        }
    }
    /// The error state that the engine went to by itself.
    #[inline]
    pub(crate) fn failed(&self) -> Option<QpState> {
        let state = match self {
            Self::Rc(e) if e.state() == rc::State::Error => return Some(QpState::Error),
            Self::Rc(_) => return None,
            Self::Iwarp(e) => return (e.state() == iwarp::State::Error).then_some(QpState::Error),
            Self::Uc(e) => e.state(),
            Self::Ud(e) => e.state(),
            Self::Raw(e) => e.state(),
        };
        match state {
            pacing::UnreliableState::Error => Some(QpState::Error),
            pacing::UnreliableState::Sqe => Some(QpState::Sqe),
            _ => None,
        }
    }
    /// Init to RTR; `port_mtu` bounds datagrams, which have no path MTU of their own.
    pub(crate) fn ready_to_receive(&mut self, attr: &QpAttr, port_mtu: Mtu) {
        match self {
            Self::Rc(e) => e.ready_to_receive(RtrAttr {
                dest_qpn: attr.dest_qpn,
                path_mtu: attr.path_mtu,
                rq_psn: attr.rq_psn,
                max_dest_rd_atomic: attr.max_dest_rd_atomic,
                min_rnr_timer: attr.min_rnr_timer,
            }),
            Self::Uc(e) => e.ready_to_receive(uc::RtrAttr {
                dest_qpn: attr.dest_qpn,
                path_mtu: attr.path_mtu,
                rq_psn: attr.rq_psn,
            }),
            Self::Ud(e) => {
                e.set_qkey(attr.qkey);
                e.ready_to_receive(port_mtu.bytes());
            }
            Self::Raw(e) => e.ready_to_receive(),
            // Its stream says when.
            Self::Iwarp(_) => {}
        }
    }
    /// RTR to RTS.
    pub(crate) fn ready_to_send(&mut self, attr: &QpAttr) {
        match self {
            Self::Rc(e) => e.ready_to_send(rts(attr)),
            Self::Uc(e) => e.ready_to_send(attr.sq_psn),
            Self::Ud(e) => {
                e.set_qkey(attr.qkey);
                e.ready_to_send(attr.sq_psn);
            }
            Self::Raw(e) => e.ready_to_send(),
            Self::Iwarp(_) => {}
        }
    }
    /// The attributes that `bits` name changed in state `from`, where they may also change later.
    pub(crate) fn changed(&mut self, attr: &QpAttr, from: QpState, bits: u32) {
        const RETRIES: u32 = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
        const DEPTHS: u32 = mask::MAX_QP_RD_ATOMIC | mask::MAX_DEST_RD_ATOMIC;
        match self {
            Self::Rc(e) => {
                if from == QpState::Sqd && bits & RETRIES != 0 {
                    e.set_retries(rts(attr));
                }
                if from == QpState::Sqd && bits & DEPTHS != 0 {
                    e.set_depths(attr.max_rd_atomic, attr.max_dest_rd_atomic);
                }
                if from != QpState::Init && bits & mask::MIN_RNR_TIMER != 0 {
                    e.set_min_rnr_timer(attr.min_rnr_timer);
                }
            }
            Self::Uc(_) | Self::Raw(_) | Self::Iwarp(_) => {}
            Self::Ud(e) => e.set_qkey(attr.qkey),
        }
    }
    /// Whether what was begun is done.
    pub(crate) fn drained(&self) -> bool {
        match self {
            Self::Rc(e) => e.drained(),
            Self::Uc(e) => e.drained(),
            // A message of one packet has begun only when it has left.
            Self::Ud(_) => true,
            Self::Raw(e) => e.outstanding() == 0,
            Self::Iwarp(e) => e.outstanding() == 0,
        }
    }
    /// The ACK held back, where there is one: the queue pair is about to go.
    pub(crate) fn on_exit(&mut self, batch: &mut TxBatch, cx: &mut impl Context) {
        if let Self::Rc(e) = self {
            e.on_exit(batch, cx);
        }
    }
    /// How an ACK is held back.
    #[inline]
    pub(crate) fn held(&self) -> AckDelay {
        if let Self::Rc(e) = self { e.held() } else { AckDelay::No }
    }
    /// An ACK held back may leave.
    pub(crate) fn release(&mut self) {
        if let Self::Rc(e) = self {
            e.release();
        }
    }
    /// RTS to SQD.
    pub(crate) fn drain(&mut self) {
        match self {
            Self::Rc(e) => e.drain(),
            Self::Uc(e) => e.drain(),
            Self::Ud(e) => e.drain(),
            Self::Raw(e) => e.drain(),
            // SQD is not a state of iWARP.
            Self::Iwarp(_) => {}
        }
    }
    /// SQD or SQE to RTS.
    pub(crate) fn resume(&mut self) {
        match self {
            Self::Rc(e) => e.resume(),
            Self::Uc(e) => e.resume(),
            Self::Ud(e) => e.resume(),
            Self::Raw(e) => e.resume(),
            Self::Iwarp(_) => {}
        }
    }
    /// To the error state.
    pub(crate) fn fail(&mut self, cx: &mut impl Context) {
        match self {
            Self::Rc(e) => e.fail(cx),
            Self::Uc(e) => e.fail(cx),
            Self::Ud(e) => e.fail(cx),
            Self::Raw(e) => e.fail(cx),
            Self::Iwarp(e) => e.fail(cx),
        }
    }
    /// Whether the peer of a reliable connection was heard in RTR.
    pub(crate) fn is_established(&self) -> bool {
        matches!(self, Self::Rc(e) if e.is_established())
    }
    /// Whether a request of the peer of a reliable connection was executed.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self, Self::Rc(e) if e.has_begun())
    }
    /// Like [`Engine::has_begun`], once ([`Rc::take_begun`]).
    pub(crate) fn take_begun(&mut self) -> bool {
        if let Self::Rc(e) = self { e.take_begun() } else { false }
    }
    /// Send work requests posted and not completed.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        match self {
            Self::Rc(e) => e.outstanding(),
            Self::Uc(e) => e.outstanding(),
            Self::Ud(e) => e.outstanding(),
            Self::Raw(e) => e.outstanding(),
            Self::Iwarp(e) => e.outstanding(),
        }
    }
    /// Whether the peer has answers to give.
    pub(crate) fn awaits_answers(&self) -> bool {
        matches!(self, Self::Rc(e) if e.outstanding() > 0)
    }
    /// Queues a request, which is taken from where it is; a datagram's needs a destination, which
    /// the caller has seen to; `srq` is for XRC.
    #[inline]
    pub(crate) fn post(
        &mut self,
        wr: &mut SendWr,
        to: Option<Destination<Path>>,
        srq: u32,
        cx: &mut (impl Context + SendFault),
    ) {
        match (self, to) {
            (Self::Rc(e), _) => e.post_to_srq(wr, srq, cx),
            (Self::Uc(e), _) => {
                let fault = cx.send_fault(wr, None);
                e.post(wr.take(), cx);
                fault.into_iter().for_each(|status| e.fail_last(status));
            }
            (Self::Ud(e), Some(to)) => {
                let fault = cx.send_fault(wr, Some(&to));
                e.post(wr.take(), to, cx);
                fault.into_iter().for_each(|status| e.fail_last(status));
            }
            (Self::Ud(_), None) => {}
            (Self::Raw(e), _) => {
                let fault = cx.send_fault(wr, None);
                e.post(wr.take(), cx);
                fault.into_iter().for_each(|status| e.fail_last(status));
            }
            (Self::Iwarp(e), _) => e.post(wr.take(), cx),
        }
    }
    /// A packet of a reliable connection, where it is a whole SEND in its turn, and nothing changes
    /// by it but what it completes; else nothing has changed.
    #[inline]
    pub(crate) fn receive_fast(
        &mut self,
        packet: &Packet<'_>,
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) -> bool {
        if let Self::Rc(e) = self { e.receive_fast(packet, ack_delay, cx) } else { false }
    }
    /// Several packets of a reliable connection, where they are in their turn, as one; else nothing
    /// has changed.
    #[inline]
    pub(crate) fn receive_run(
        &mut self,
        now: Instant,
        run: &Run<'_>,
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) -> bool {
        if let Self::Rc(e) = self { e.receive_run(now, run, ack_delay, cx) } else { false }
    }
    /// A packet of a connection; datagrams take another way ([`crate::datagram`]).
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) {
        match self {
            Self::Rc(e) => e.receive(now, packet, ack_delay, cx),
            Self::Uc(e) => e.receive(packet, cx),
            Self::Ud(_) | Self::Raw(_) | Self::Iwarp(_) => {}
        }
    }
    /// A FLUSH that takes long, to be begun now.
    #[inline]
    pub(crate) fn take_flush(&mut self) -> Option<FlushTask> {
        if let Self::Rc(e) = self { e.take_flush() } else { None }
    }
    /// Writes packets of a connection; datagrams take another way.
    pub(crate) fn fill(&mut self, now: Instant, batch: &mut TxBatch, cx: &mut impl Context) {
        match self {
            Self::Rc(e) => e.fill(now, batch, cx),
            Self::Uc(e) => e.fill(now, batch, cx),
            Self::Ud(_) | Self::Raw(_) | Self::Iwarp(_) => {}
        }
    }
    /// Whether [`Engine::fill`] is known to have nothing to write.
    #[inline]
    pub(crate) fn is_at_rest(&mut self) -> bool {
        if let Self::Rc(e) = self { e.is_at_rest() } else { false }
    }
    /// The next share of the time begins ([`Rc::begin_quantum`]).
    pub(crate) fn begin_quantum(&mut self) {
        if let Self::Rc(e) = self {
            e.begin_quantum();
        }
    }
    /// Whether the share of the time is used up, and there is more to do
    /// ([`Rc::needs_reschedule`]).
    #[inline]
    pub(crate) fn needs_reschedule(&self) -> bool {
        if let Self::Rc(e) = self { e.needs_reschedule() } else { false }
    }
    /// When [`Engine::expire`] wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Rc(e) => e.deadline(),
            Self::Uc(e) => e.deadline(),
            Self::Ud(e) => e.deadline(),
            Self::Raw(_) | Self::Iwarp(_) => None,
        }
    }
    /// A timer may have run out. Where nothing is acknowledged, timers only ask to send on.
    pub(crate) fn expire(&mut self, now: Instant, cx: &mut impl Context) {
        if let Self::Rc(e) = self {
            e.expire(now, cx);
        }
    }
    /// The PSN of the next new request, of a connection.
    pub(crate) fn sq_psn(&self) -> Option<Psn> {
        match self {
            Self::Rc(e) => Some(e.sq_psn()),
            Self::Uc(e) => Some(e.sq_psn()),
            Self::Ud(_) | Self::Raw(_) | Self::Iwarp(_) => None,
        }
    }
    /// The PSN expected next, of a connection.
    pub(crate) fn rq_psn(&self) -> Option<Psn> {
        match self {
            Self::Rc(e) => Some(e.rq_psn()),
            Self::Uc(e) => Some(e.rq_psn()),
            Self::Ud(_) | Self::Raw(_) | Self::Iwarp(_) => None,
        }
    }
    /// Whether the path is in doubt.
    #[inline]
    pub(crate) fn take_path_suspect(&mut self) -> bool {
        match self {
            Self::Rc(e) => e.take_path_suspect(),
            Self::Uc(_) | Self::Ud(_) | Self::Raw(_) | Self::Iwarp(_) => false,
        }
    }
}

fn rts(attr: &QpAttr) -> RtsAttr {
    RtsAttr {
        sq_psn: attr.sq_psn,
        max_rd_atomic: attr.max_rd_atomic,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
    }
}
