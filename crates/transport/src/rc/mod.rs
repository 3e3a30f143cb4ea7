//! The reliable connection service over RoCEv2 (IBA 1.4 §9.7): one queue pair.
//!
//! [`Rc`] holds the state and hands every packet to one of two halves that share nothing but the
//! connection: the requester (`requester`, its queue's entries in `request`) and the responder
//! (`responder`, what it still has to say in `answers`, what it may be asked for again in
//! `resources`). What both know of the connection is in `connection`, the way to a peer on the same
//! host in `local`. Either half may fail the queue pair; `Rc` then flushes both, in order.
//!
//! XRC (IBA annex A14) is the same with the halves on two queue pairs: an initiator only asks, a
//! target only answers. Each request names a shared receive queue in its XRCETH.

mod answers;
mod connection;
mod fast_path;
mod injected;
mod local;
mod observed;
mod request;
mod requester;
mod resources;
mod responder;
mod timers;

use std::time::Instant;

use wire::bth::{Aeth, Bth, NakCode};
use wire::icrc::ICRC_LEN;
use wire::roce::{Op, Packet, SendAt, Service, WriteAt};
use wire::{Mtu, Pkey, Psn, Qpn};

use crate::TxBatch;
pub use crate::op::MAX_MESSAGE;
use crate::op::{Context, Fault, LocalPath, QpEvent, SendWr, Status};
pub(crate) use answers::ack;
use connection::Connection;
pub use fast_path::Rest;
use local::Arrival;
pub use observed::{Failure, OutOfOrder, Recoveries};
use requester::Requester;
pub use responder::FlushTask;
use responder::{Broken, Responder};
pub use timers::{rnr_timer_of, timeout_of};

/// How long an ACK may wait, as the thread that reads the packets knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckDelay {
    /// Does not wait at all.
    #[default]
    No,
    /// For what else has arrived: one ACK answers for all of it.
    Briefly,
    /// Waits as `Briefly`. If the packet completes a receive, waits for the program's answer: a
    /// request to the same peer leaves together with it.
    ForProgram,
}

/// An ACK for so many packets does not wait for the program: the sender's window may be used up.
const MANY: u32 = 16;

/// Bytes of an ACK, BTH to ICRC.
const ACK_LEN: usize = Bth::LEN + Aeth::LEN + ICRC_LEN;

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
    /// Both sides work.
    Rts,
    /// The requester takes no new request to the wire, finishes those begun.
    Sqd,
    /// Everything is flushed.
    Error,
}

/// Which halves of a connection a queue pair is, and so what its packets carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Both halves, of an RC queue pair.
    Rc,
    /// The requester of an extended connection.
    Initiator,
    /// The responder of an extended connection.
    Target,
}

/// One RC queue pair, or an initiator or target of XRC.
///
/// An idle one takes less than a KiB; its queues grow with use. Before it is dropped it must be
/// failed ([`Rc::fail`]), so that it leaves the [`CongestionWindow`](crate::CongestionWindow) it
/// may have entered.
#[derive(Debug)]
pub struct Rc {
    state: State,
    established: bool,
    conn: Connection,
    requester: Requester,
    responder: Responder,
    /// How an ACK waits.
    held: AckDelay,
    /// Request packets that came since an answer left.
    unanswered: u32,
    failure: Option<Failure>,
}

impl Rc {
    /// A queue pair in state Init.
    pub fn new(qpn: Qpn, pkey: Pkey) -> Self {
        Self::with_role(qpn, pkey, Role::Rc)
    }
    /// An XRC initiator in state Init. It executes no requests; post with [`Rc::post_to_srq`].
    pub fn xrc_initiator(qpn: Qpn, pkey: Pkey) -> Self {
        Self::with_role(qpn, pkey, Role::Initiator)
    }
    /// An XRC target in state Init. It has no requests of its own; its context chooses queues
    /// ([`Context::choose_srq`]).
    pub fn xrc_target(qpn: Qpn, pkey: Pkey) -> Self {
        Self::with_role(qpn, pkey, Role::Target)
    }
    fn with_role(qpn: Qpn, pkey: Pkey, role: Role) -> Self {
        Self {
            state: State::Init,
            established: false,
            conn: Connection { qpn, dest: Qpn::default(), pkey, mtu: Mtu::default().bytes(), role },
            requester: Requester::default(),
            responder: Responder::default(),
            held: AckDelay::No,
            unanswered: 0,
            failure: None,
        }
    }
    /// Current state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }
    /// Whether a request has come while the state was RTR.
    pub fn is_established(&self) -> bool {
        self.established
    }
    /// Whether a request of the peer was executed since the way to RTR: so it is connected to this
    /// queue pair, and bears the numbers that this one expects.
    pub fn has_begun(&self) -> bool {
        self.responder.begun
    }
    /// Like [`Rc::has_begun`], once: whether that is so since the last call.
    pub fn take_begun(&mut self) -> bool {
        self.responder.take_begun()
    }
    /// Init to RTR.
    pub fn ready_to_receive(&mut self, attr: RtrAttr) {
        self.conn.dest = attr.dest_qpn;
        self.conn.mtu = attr.path_mtu.bytes();
        self.responder.start(attr);
        self.state = State::Rtr;
    }
    /// RTR to RTS.
    pub fn ready_to_send(&mut self, attr: RtsAttr) {
        self.requester.start(attr);
        self.state = State::Rts;
    }
    /// RTS to SQD: no request that has not begun goes to the wire; [`Rc::drained`] tells when those
    /// begun are complete. Nothing in other states.
    pub fn drain(&mut self) {
        if self.state == State::Rts {
            self.state = State::Sqd;
        }
    }
    /// SQD back to RTS. Follow with [`Rc::fill`]. Nothing in other states.
    pub fn resume(&mut self) {
        if self.state == State::Sqd {
            self.state = State::Rts;
        }
    }
    /// Whether every request begun is complete (IBV_EVENT_SQ_DRAINED is due once this holds in
    /// SQD).
    pub fn drained(&self) -> bool {
        self.requester.nothing_under_way()
    }
    /// Changes the code of the timer in RNR NAKs sent, 0 to 31; allowed in RTR, RTS and SQD.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.responder.set_min_rnr_timer(code);
    }
    /// Changes the requester's timeouts and retries, as a running queue pair may (SQD to RTS):
    /// everything of `attr` but `sq_psn` and `max_rd_atomic`.
    pub fn set_retries(&mut self, attr: RtsAttr) {
        self.requester.set_retries(attr);
    }
    /// Changes how many READs and atomics may be outstanding, in SQD: initiator depth and responder
    /// resources. Those under way finish whatever the numbers say.
    pub fn set_depths(&mut self, initiator_depth: u8, responder_resources: u8) {
        self.requester.set_depth(initiator_depth);
        self.responder.set_resources(responder_resources);
    }
    /// To the error state: everything outstanding on the send queue, and a receive half filled,
    /// completes with `WrFlush`, in order. Posted receives that no packet has touched are the
    /// adapter's to flush. No READ is answered any more, unless it failed before, by a request:
    /// what came before that one is answered, then the NAK says why.
    pub fn fail(&mut self, cx: &mut impl Context) {
        if self.state != State::Error {
            self.responder.cut_off();
        }
        self.enter_error(cx);
    }
    /// Send work requests posted and not completed.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.requester.outstanding()
    }
    /// Queues a request; the adapter has checked queue depth and state. In the error state it is
    /// flushed at once.
    pub fn post(&mut self, mut wr: SendWr, cx: &mut impl Context) {
        self.post_to_srq(&mut wr, 0, cx);
    }
    /// Like [`Rc::post`], of an XRC initiator, for a shared receive queue at the target (24 bits).
    /// The key of a READ or WRITE must be of its protection domain. See [`SendWr::take`].
    #[inline]
    pub fn post_to_srq(&mut self, wr: &mut SendWr, srq: u32, cx: &mut impl Context) {
        self.requester.post(wr, srq);
        if self.state == State::Error {
            self.requester.flush(&self.conn, cx);
        }
    }
    /// A packet for this queue pair, whose ICRC and source address are checked already. Follow with
    /// [`Rc::fill`].
    ///
    /// `ack_delay` says whether an ACK may wait, for more to acknowledge or for a request to leave
    /// with. Call [`Rc::release`] when it has waited for long enough.
    #[inline]
    pub fn receive(&mut self, now: Instant, packet: &Packet<'_>, ack_delay: AckDelay, cx: &mut impl Context) {
        if !self.receive_fast(packet, ack_delay, cx) {
            self.receive_any(now, packet, ack_delay, cx);
        }
    }
    /// Like [`Rc::receive`], for a packet that is not as most are ([`Rc::receive_fast`]).
    #[inline(never)]
    pub(super) fn receive_any(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) {
        let srq = match (self.conn.role, packet.header.service) {
            (Role::Rc, Service::Rc) | (Role::Initiator, Service::Xrc(None)) => None,
            (Role::Target, Service::Xrc(Some(eth))) => Some(eth.srq),
            _ => return,
        };
        match packet.header.op {
            Op::CongestionNotification => {}
            Op::Acknowledge(_) | Op::AtomicAcknowledge(..) | Op::ReadResponse(_) => {
                if matches!(self.state, State::Rts | State::Sqd) {
                    let outcome = self.requester.response(now, &self.conn, &Arrival::of(packet), cx);
                    self.fail_if(outcome, cx);
                }
            }
            op => {
                self.request(&Arrival::of(packet), srq, cx);
                self.delay_ack(op, 1, ack_delay);
            }
        }
    }
    /// Notes how long what answers so many request packets may wait.
    #[inline]
    fn delay_ack(&mut self, op: Op, packets: u32, ack_delay: AckDelay) {
        self.unanswered = self.unanswered.saturating_add(packets);
        // A target has no request that an ACK could leave with.
        let ack_delay = match (ack_delay, self.conn.role) {
            (AckDelay::ForProgram, Role::Target) => AckDelay::Briefly,
            (AckDelay::ForProgram, _) if self.unanswered >= MANY => AckDelay::Briefly,
            _ => ack_delay,
        };
        self.held = match ack_delay {
            _ if !self.responder.has_sole_ack() => AckDelay::No,
            AckDelay::ForProgram if self.held == AckDelay::ForProgram || completes_receive(op) => ack_delay,
            AckDelay::No => AckDelay::No,
            AckDelay::Briefly | AckDelay::ForProgram => AckDelay::Briefly,
        };
    }
    /// An ACK held back leaves with the next [`Rc::fill`].
    pub fn release(&mut self) {
        self.held = AckDelay::No;
    }
    /// The delayed ACK, if any: the queue pair is about to go. The peer, which may stay, is told of
    /// the PSNs of requests that sent no packet, so a later queue pair finds these used.
    pub fn on_exit(&mut self, batch: &mut TxBatch, cx: &mut impl Context) {
        if std::mem::take(&mut self.held) != AckDelay::No {
            self.respond(batch, cx);
        }
        if let Some((psn, count)) = self.requester.take_unsent_psns() {
            cx.local().report_unsent(&self.conn.header(psn, Op::Acknowledge(ack(0))), count);
        }
    }
    /// How an ACK is held back.
    #[inline]
    pub fn held(&self) -> AckDelay {
        self.held
    }

    /// Writes as many packets as there are to send and as fit; call again with an emptied batch
    /// until it stays empty. Responses come before requests, but for an ACK that nothing follows:
    /// at the end it is the short last packet of a segmented send.
    pub fn fill(&mut self, now: Instant, batch: &mut TxBatch, cx: &mut impl Context) {
        let ack_last = self.responder.has_sole_ack();
        if ack_last {
            batch.set_aside(ACK_LEN);
        } else {
            self.respond(batch, cx);
        }
        self.ask(now, batch, cx);
        if ack_last && !(self.held != AckDelay::No && batch.is_empty()) {
            batch.set_aside(0);
            self.held = AckDelay::No;
            self.respond(batch, cx);
        }
    }

    /// Whether [`Rc::fill`] has nothing to write; then it need not be called, as what it would note
    /// is noted here.
    #[inline(always)]
    pub fn is_at_rest(&mut self) -> bool {
        let is_silent = self.responder.has_no_answers();
        let waits = self.held != AckDelay::No && self.responder.has_sole_ack();
        let asks = matches!(self.state, State::Rts | State::Sqd) && !self.requester.is_at_rest();
        if asks || !(is_silent || waits) {
            return false;
        }
        if is_silent {
            self.unanswered = 0;
        }
        true
    }

    /// Whether a queue pair in RTS has nothing to do after this step. [`Rc::fill`] has nothing to
    /// write ([`Rc::is_at_rest`]), there is nothing to take ([`Rc::take_flush`],
    /// [`Rc::take_path_suspect`]), nor a turn to wait for. So it is after most steps.
    #[inline]
    pub fn has_nothing_due(&mut self) -> bool {
        // Where answers are ACKs at most none of them wants a turn.
        self.state == State::Rts
            && self.responder.is_idle()
            && !self.requester.is_path_suspect()
            && self.is_at_rest()
    }

    fn respond(&mut self, batch: &mut TxBatch, cx: &mut impl Context) {
        self.unanswered = 0;
        if self.responder.fill(&self.conn, batch, cx).is_err() && self.state != State::Error {
            self.failure = Some(Failure::Refused(NakCode::RemoteAccess));
            cx.event(QpEvent::AccessError);
            self.enter_error(cx);
        }
    }

    fn ask(&mut self, now: Instant, batch: &mut TxBatch, cx: &mut impl Context) {
        if matches!(self.state, State::Rts | State::Sqd) {
            let draining = self.state == State::Sqd;
            let outcome = self.requester.fill(now, &self.conn, draining, batch, cx);
            self.executed_directly();
            self.fail_if(outcome, cx);
        }
    }

    /// Requests may have been executed: no packet of theirs leaves that an ACK could wait for.
    fn executed_directly(&mut self) {
        if self.requester.local.take_executed() {
            self.held = AckDelay::No;
        }
    }

    /// The next turn begins: [`Rc::fill`] answers READs up to a limit, and the rest waits for
    /// another turn. Our own requests have the window as limit, direct copies one of their own.
    pub fn begin_quantum(&mut self) {
        self.responder.begin_quantum();
        self.requester.begin_quantum();
    }
    /// Whether READs, or what is to be copied, wait for the next turn: see [`Rc::begin_quantum`]. A
    /// caller that holds a lock over [`Rc::fill`] gives it up before it begins one.
    #[inline]
    pub fn needs_reschedule(&self) -> bool {
        self.responder.needs_reschedule() || self.requester.needs_reschedule()
    }
    /// When [`Rc::expire`] wants to be called at the latest; early calls do nothing.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.requester.deadline()
    }
    /// A timer may have run out: retransmission or the end of an RNR wait. Follow with
    /// [`Rc::fill`].
    pub fn expire(&mut self, now: Instant, cx: &mut impl Context) {
        let outcome = self.requester.expire(now, cx);
        self.fail_if(outcome, cx);
    }
    /// Whether no answer came since the last call, or the peer repeated a request. The adapter then
    /// changes the source port, as the old flow may end at a stopped process. A NAK is an answer.
    #[inline]
    pub fn take_path_suspect(&mut self) -> bool {
        self.responder.take_path_suspect() | self.requester.take_path_suspect()
    }

    /// A FLUSH that takes long, to be begun now; say with [`Rc::flushed`] when it is done. Told
    /// once.
    #[inline]
    pub fn take_flush(&mut self) -> Option<FlushTask> {
        self.responder.take_flush()
    }
    /// The FLUSH that [`Rc::take_flush`] told of is done, or can not be: the peer learns of it with
    /// the next [`Rc::fill`].
    pub fn flushed(&mut self, result: Result<(), Fault>, cx: &mut impl Context) {
        if let Err(Broken(code)) = self.responder.flushed(result, cx) {
            self.failure = Some(Failure::Refused(code));
            self.enter_error(cx);
        }
    }

    /// Whether requests are executed in this state. The first is an event.
    fn takes_requests(&mut self, cx: &mut impl Context) -> bool {
        match self.state {
            State::Init | State::Error => return false,
            State::Rtr if !self.established => {
                self.established = true;
                cx.event(QpEvent::CommunicationEstablished);
            }
            _ => {}
        }
        true
    }

    fn request(&mut self, packet: &Arrival<'_>, srq: Option<u32>, cx: &mut impl Context) {
        if !self.takes_requests(cx) {
            return;
        }
        if let Err(Broken(code)) = self.responder.request(&self.conn, packet, srq, cx) {
            self.failure = Some(Failure::Refused(code));
            self.enter_error(cx);
        }
    }

    /// Where the requester says that its oldest request failed: that completes with the status, all
    /// others are flushed.
    fn fail_if(&mut self, outcome: Result<(), Status>, cx: &mut impl Context) {
        if let Err(status) = outcome {
            self.failure = Some(Failure::Request(status));
            self.requester.fail_oldest(status, &self.conn, cx);
            self.responder.cut_off();
            self.enter_error(cx);
        }
    }

    /// Answers queued before still leave: the NAK that says why must.
    fn enter_error(&mut self, cx: &mut impl Context) {
        self.state = State::Error;
        self.held = AckDelay::No;
        cx.local().revoke();
        self.requester.flush(&self.conn, cx);
        self.responder.flush(&self.conn, cx);
    }
}

/// Whether the program gets a receive completion by this packet.
#[inline]
fn completes_receive(op: Op) -> bool {
    matches!(
        op,
        Op::Send(SendAt::Last(_) | SendAt::Only(_))
            | Op::Write(WriteAt::Last(Some(_)) | WriteAt::Only(_, Some(_)))
    )
}
