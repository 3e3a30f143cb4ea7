//! A queue pair: the engine of its transport, its receive queue, its attributes and its path.

pub mod ah;
pub mod attr;
pub(crate) mod carrier;
pub(crate) mod delayed_ack;
pub(crate) mod engine;
pub(crate) mod engine_context;
mod flow_priming;
mod flush;
pub mod post;
pub mod raw_packet;
pub(crate) mod scratch;
pub(crate) mod source_port;
pub(crate) mod turns;
pub(crate) mod ud;
pub mod xrc;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use transport::op::{RecvWr, Side, Status};
use transport::rc::Hold;
use wire::Qpn;
use wire::roce::Packet;

use crate::cq::counter::{CompletionCounter, Counted};
use crate::cq::{Cq, Note};
use crate::device::async_events::{AsyncEvent, AsyncEventQueue, Element, EventKind};
use crate::qp::attr::{QpAttr, QpState, QpType, mask};
use crate::qp::carrier::Carrier;
use crate::qp::engine::Engine;
use crate::qp::scratch::with_batch;
use crate::srq::tag_matching::Rendezvous;
use crate::steering::rss::Spread;
use crate::{Error, Path, Pd, PostError, Srq, Xrcd, limits};

/// Sizes of a queue pair's queues (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests outstanding, 0 to [`limits::MAX_QP_WR`].
    pub max_send_wr: u32,
    /// Receive work requests outstanding.
    pub max_recv_wr: u32,
    /// Elements of a send request, 0 to [`limits::MAX_SGE`].
    pub max_send_sge: u32,
    /// Elements of a receive request.
    pub max_recv_sge: u32,
    /// Inline bytes, 0 to [`limits::MAX_INLINE`].
    pub max_inline_data: u32,
}

/// What makes a queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Transport service.
    pub kind: QpType,
    /// Queue of send completions.
    pub send_cq: Arc<Cq>,
    /// Queue of receive completions.
    pub recv_cq: Arc<Cq>,
    /// Where its receives come from; without one it has its own queue.
    pub srq: Option<Arc<Srq>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send request completes visibly.
    pub sq_sig_all: bool,
    /// Where its asynchronous events go.
    pub events: Arc<AsyncEventQueue>,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(crate) me: Weak<Qp>,
    qpn: Qpn,
    pd: Arc<Pd>,
    pub(crate) init: QpInit,
    /// Of an XRC target.
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    inner: Mutex<Inner>,
    /// Work queues in place of its receive queue.
    pub(crate) spread: OnceLock<Arc<Spread>>,
    /// What it sends to multicast groups does not come back to this host (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB).
    pub no_multicast_loop: AtomicBool,
    /// The owner's mark, such as the address of its C structure.
    pub cookie: AtomicU64,
    /// How many handles the owner has given out; whoever takes the last back destroys it.
    pub handles: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) receives: VecDeque<RecvWr>,
    state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) carrier: Carrier,
    /// The program waits for IBV_EVENT_SQ_DRAINED.
    drain_awaited: bool,
    /// What the device's timers hold for this queue pair.
    pub(crate) timer: Option<Instant>,
    /// The device's queue of turns holds it.
    pub(crate) waits_for_turn: bool,
    /// To be told when the lock is released.
    pub(crate) notes: Vec<Note>,
    /// The completion counters it counts into, where there are some.
    pub(crate) counted: Option<Box<Counted>>,
    pub(crate) destroyed: bool,
    /// The device knows that an ACK may be held back here.
    listed: bool,
    /// FLUSHes begun that take long, and resets: tells the latest from those before.
    pub(crate) flushes: u32,
    /// A rendezvous that was matched just now.
    pub(crate) fetch: Option<Box<Rendezvous>>,
}

impl Qp {
    /// Makes a queue pair in state Reset; `cap` is granted as asked or refused.
    pub fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Qp>, Error> {
        match init.kind {
            QpType::XrcRecv => Err(Error::Invalid("an XRC target is made in an XRC domain")),
            QpType::XrcSend if init.srq.is_some() || init.cap.max_recv_wr > 0 => {
                Err(Error::Invalid("an XRC initiator receives nothing"))
            }
            _ if init.srq.as_ref().is_some_and(|srq| srq.xrc().is_some()) => {
                Err(Error::Invalid("the shared receive queue is for XRC"))
            }
            _ => {
                init.check_tags(pd)?;
                Qp::make(pd, init, None)
            }
        }
    }

    pub(crate) fn make(pd: &Arc<Pd>, init: QpInit, xrcd: Option<Arc<Xrcd>>) -> Result<Arc<Qp>, Error> {
        let cap = &init.cap;
        if cap.max_send_wr > limits::MAX_QP_WR || cap.max_recv_wr > limits::MAX_QP_WR {
            return Err(Error::Invalid("more work requests than max_qp_wr"));
        }
        if cap.max_send_sge > limits::MAX_SGE || cap.max_recv_sge > limits::MAX_SGE {
            return Err(Error::Invalid("more scatter/gather elements than max_sge"));
        }
        if cap.max_inline_data > limits::MAX_INLINE {
            return Err(Error::Invalid("more inline data than the device takes"));
        }
        let device = &pd.device;
        let kind = init.kind;
        if kind == QpType::RawPacket {
            device.frames.open_frames(device.config.interface).map_err(Error::System)?;
        }
        let qpn = device.take_qpn().inspect_err(|_| {
            if kind == QpType::RawPacket {
                device.frames.close_frames(device.config.interface);
            }
        })?;
        let qp = Arc::new_cyclic(|me| Qp {
            me: me.clone(),
            qpn,
            pd: pd.clone(),
            init,
            xrcd,
            inner: Mutex::new(Inner {
                engine: Engine::new(kind, qpn, &device.pace),
                receives: VecDeque::new(),
                state: QpState::Reset,
                attr: QpAttr::default(),
                carrier: Carrier::new(kind),
                drain_awaited: false,
                timer: None,
                waits_for_turn: false,
                notes: Vec::new(),
                counted: None,
                destroyed: false,
                listed: false,
                flushes: 0,
                fetch: None,
            }),
            spread: OnceLock::new(),
            no_multicast_loop: AtomicBool::new(false),
            cookie: AtomicU64::new(0),
            handles: AtomicU32::new(1),
        });
        device.insert_qp(qp.clone());
        Ok(qp)
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// What it was made from.
    pub fn init(&self) -> &QpInit {
        &self.init
    }
    /// Its protection domain; of an XRC target one that nobody registers memory in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Its XRC domain, where it is an XRC target.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrcd.as_ref()
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.lock().current_state()
    }

    /// Takes the queue pair off its device and forgets its events, what is under way, and its completions but for what its send
    /// queue had done. That stays, as with rdma_rxe: a program may hear of the end of a connection, and destroy the queue pair,
    /// before it polls for its last message.
    pub fn destroy(self: &Arc<Self>) {
        {
            let mut inner = self.lock();
            inner.on_exit(self);
            inner.destroyed = true;
            inner.forget_timer(self);
            // Leaves the window it may have packets in; nobody fetches these completions.
            let (engine, mut context) = inner.split(self);
            context.mute = true;
            engine.fail(&mut context);
            inner.receives.clear();
            inner.counted = None;
            // What a shared receive queue completes in its own queue.
            self.unlock(inner);
        }
        self.leave_groups();
        self.pd.device.remove_qp(self.qpn);
        if self.init.kind == QpType::RawPacket {
            self.pd.device.forget_flows(self);
            self.pd.device.frames.close_frames(self.pd.device.config.interface);
        }
        self.init.send_cq.forget_all_but_sent(self.qpn);
        self.init.recv_cq.forget_all_but_sent(self.qpn);
        self.init.events.forget_qp(self);
    }

    /// `ibv_modify_qp`: checks masks and ranges, then goes.
    pub fn modify(&self, now: Instant, new: &QpAttr, bits: u32) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.destroyed {
            return Err(Error::Invalid("the queue pair is destroyed"));
        }
        let from = inner.current_state();
        let to = attr::check(self.init.kind, from, new, bits)?;
        match to {
            QpState::Reset => {
                inner.on_exit(self);
                inner.reset(self);
            }
            QpState::Error => {
                inner.fail(self);
                self.settle(inner, now);
                return Ok(());
            }
            _ => inner.advance(self, from, to, new, bits)?,
        }
        inner.state = to;
        self.settle(inner, now);
        Ok(())
    }

    /// Counts these operations ([`crate::cq::counter::ops`]) into a completion counter, until it is destroyed.
    ///
    /// # Errors
    ///
    /// `Invalid` for no operations or a state beyond Init, `Busy` where one is counted already, `Unsupported` for what peers
    /// do.
    pub fn count_into(&self, counter: &Arc<CompletionCounter>, ops: u32) -> Result<(), Error> {
        let mut inner = self.lock();
        if !matches!(inner.current_state(), QpState::Reset | QpState::Init) {
            return Err(Error::Invalid("the queue pair is beyond INIT"));
        }
        let mut counted = inner.counted.take().unwrap_or_default();
        let attached = counted.attach(counter, ops);
        inner.counted = counted.is_used().then_some(counted);
        attached
    }

    /// All attributes as they are.
    pub fn query(&self) -> QpAttr {
        let inner = self.lock();
        let state = inner.current_state();
        let sq_draining = state == QpState::Sqd && !inner.engine.drained();
        QpAttr { state, cur_state: state, sq_draining, ..inner.attr }
    }

    /// Whether a request of the peer has been taken, since the queue pair became ready to receive.
    pub fn heard(&self) -> bool {
        let inner = self.lock();
        inner.engine.rq_psn().is_some_and(|psn| psn != inner.attr.rq_psn)
    }

    /// Posts receive requests one by one through `post`.
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
        if !crate::device::port::is_of_partition(packet) {
            counters.wrong_pkey.fetch_add(1, Ordering::Relaxed);
            return;
        }
        counters.received.fetch_add(1, Ordering::Relaxed);
        let (engine, mut context) = inner.split(self);
        engine.receive(now, packet, hold, &mut context);
        inner.begin_rendezvous(self);
        if inner.engine.held() != Hold::No && !std::mem::replace(&mut inner.listed, true) {
            self.pd.device.delayed_acks.add(self.me.clone());
        }
        self.settle(inner, now);
    }

    /// An ACK held back leaves, those that wait for the program only with `all`. Whether one still waits.
    pub(crate) fn release(&self, now: Instant, all: bool) -> bool {
        let mut inner = self.lock();
        if inner.engine.held() == Hold::ForProgram && !all {
            return true;
        }
        inner.listed = false;
        inner.engine.release();
        self.settle(inner, now);
        false
    }

    /// An ACK held back leaves now; by which way. What is said next by the same way does not overtake it.
    pub fn let_acks_go(&self, now: Instant) -> Option<Path> {
        let mut inner = self.lock();
        inner.engine.release();
        inner.transmit(self, now);
        let path = inner.carrier.datagram().map(|carrier| carrier.path);
        self.settle(inner, now);
        path
    }

    /// Whether the peer has requests of this queue pair still to answer.
    pub fn awaits_answers(&self) -> bool {
        self.lock().engine.awaits_answers()
    }

    /// The process ends: an ACK held back leaves, unless a thread that goes on has the queue pair in hand.
    pub(crate) fn on_exit(&self) {
        if let Ok(mut inner) = self.inner.try_lock()
            && !inner.destroyed
        {
            inner.on_exit(self);
        }
    }

    /// To the error state, as `ibv_modify_qp` does, whatever the state is.
    pub fn fail(&self, now: Instant) {
        let mut inner = self.lock();
        if inner.state != QpState::Reset && !inner.destroyed {
            inner.fail(self);
        }
        self.settle(inner, now);
    }

    /// What follows every step of the engine: packets leave, an engine that failed takes the queue pair with it, the timer
    /// is set, a turn asked for, then everything is unlocked and told.
    pub(crate) fn settle(&self, mut inner: MutexGuard<'_, Inner>, now: Instant) {
        if inner.destroyed {
            return;
        }
        if inner.current_state() == QpState::Error && inner.state != QpState::Error {
            inner.fail(self);
        }
        inner.transmit(self, now);
        if inner.current_state() == QpState::Error && inner.state != QpState::Error {
            inner.fail(self);
        }
        if inner.drain_awaited && inner.state == QpState::Sqd && inner.engine.drained() {
            inner.drain_awaited = false;
            inner.notes.extend(self.note(EventKind::SqDrained));
        }
        inner.begin_flush(self);
        let wake = inner.set_timer(self).into_iter().chain(inner.queue_up(self, now)).min();
        self.unlock(inner);
        if let Some(at) = wake {
            self.pd.device.platform.wake_at(at);
        }
    }

    /// An asynchronous event of this queue pair, to be told when it is unlocked.
    pub(crate) fn note(&self, kind: EventKind) -> Option<Note> {
        let event = AsyncEvent { kind, element: Element::Qp(self.me.upgrade()?) };
        Some(Note::Async(self.init.events.clone(), event))
    }

    /// Unlocks, then tells what there is to tell.
    fn unlock(&self, mut inner: MutexGuard<'_, Inner>) {
        if inner.notes.is_empty() {
            return;
        }
        let notes = std::mem::take(&mut inner.notes);
        drop(inner);
        notes.into_iter().for_each(Note::send);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The engine knows first when it failed.
    pub(crate) fn current_state(&self) -> QpState {
        if self.state > QpState::Init { self.engine.failed().unwrap_or(self.state) } else { self.state }
    }

    fn reset(&mut self, qp: &Qp) {
        let (engine, mut context) = self.split(qp);
        context.mute = true;
        engine.fail(&mut context);
        self.engine = Engine::new(qp.init.kind, qp.qpn, &qp.pd.device.pace);
        self.flushes = self.flushes.wrapping_add(1);
        self.receives.clear();
        self.attr = QpAttr::default();
        self.carrier = Carrier::new(qp.init.kind);
        qp.init.send_cq.forget_qp(qp.qpn);
        qp.init.recv_cq.forget_qp(qp.qpn);
    }

    fn fail(&mut self, qp: &Qp) {
        let (engine, mut context) = self.split(qp);
        engine.fail(&mut context);
        if self.state != QpState::Error && qp.init.srq.is_some() {
            // What it had taken is flushed, and it takes no more (IBA 1.4 §10.2.9.5).
            self.notes.extend(qp.note(EventKind::LastWqeReached));
        }
        self.state = QpState::Error;
        while let Some(wr) = self.receives.pop_front() {
            self.flush_receive(qp, &wr);
        }
    }

    /// A posted receive completes in the error state.
    fn flush_receive(&mut self, qp: &Qp, wr: &RecvWr) {
        let flushed = wr.completion(Status::WrFlush, qp.qpn);
        if let Some(counted) = &mut self.counted {
            counted.completed(Side::Receive, &flushed);
        }
        qp.init.recv_cq.push(flushed, &mut self.notes);
    }

    /// Takes over the attributes that `bits` name and moves the engine.
    fn advance(&mut self, qp: &Qp, from: QpState, to: QpState, new: &QpAttr, bits: u32) -> Result<(), Error> {
        let mut next = self.attr;
        next.merge(new, bits);
        let path = match bits & mask::AV {
            0 => None,
            _ => Some(qp.pd.path_to(&next.av, next.dest_qpn)?),
        };
        if bits & mask::PATH_MTU != 0 && new.path_mtu > qp.pd.device.port().mtu {
            return Err(Error::Invalid("path_mtu is larger than the port's active MTU"));
        }
        if let Some(path) = path {
            self.carrier.connect(path, &qp.pd.device);
        }
        self.attr = next;
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

    /// An ACK held back leaves, nothing else.
    fn on_exit(&mut self, qp: &Qp) {
        let Some(path) = self.carrier.datagram().map(|carrier| carrier.path) else { return };
        with_batch(|batch| {
            batch.clear();
            let (engine, mut context) = self.split(qp);
            engine.on_exit(batch, &mut context);
            if !batch.is_empty() {
                qp.pd.device.link.send(&path, batch);
            }
        });
    }

    /// Sends what the engine has, batch by batch.
    fn transmit(&mut self, qp: &Qp, now: Instant) {
        match &mut self.carrier {
            Carrier::Unconnected => {}
            Carrier::Datagram(carrier) => {
                if self.engine.take_path_suspect() {
                    carrier.suspect(now, self.attr.timeout);
                }
                let path = carrier.path;
                self.transmit_connected(qp, now, &path);
            }
            Carrier::AddressHandles => self.transmit_datagrams(qp, now),
            Carrier::Frames => self.transmit_frames(qp),
        }
    }

    /// The same for a connection, whose packets all go one way.
    fn transmit_connected(&mut self, qp: &Qp, now: Instant, path: &Path) {
        with_batch(|batch| {
            loop {
                batch.clear();
                let (engine, mut context) = self.split(qp);
                engine.fill(now, batch, &mut context);
                if batch.is_empty() {
                    break;
                }
                qp.pd.device.link.send(path, batch);
            }
        });
    }
}

impl QpAttr {
    fn merge(&mut self, new: &QpAttr, bits: u32) {
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if bits & mask::$bit != 0 { $(self.$field = new.$field;)+ })*
            };
        }
        take! {
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port;
            QKEY: qkey;
            AV: av;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            DEST_QPN: dest_qpn;
        }
    }
}
