//! A queue pair: the engine of its transport, its receive queue, its attributes and what it travels
//! on. Here it is made and destroyed; the other files are its calls, one story each.
//!
//! A step of a queue pair is always the same: lock it, `Inner::split` it into its engine and what
//! the engine may use, let the engine work, and settle: what the engine has to send leaves, and the
//! lock is released.
//!
//! | files | story |
//! |---|---|
//! | [`post`], `now`, `receive` | send requests, and the time at which they are posted; receive requests and the packets of the peer |
//! | `modify`, [`attr`] | the states and the way between them; attributes, and which of them a transition takes |
//! | `finish_step`, `schedule`, `run_queue`, `delayed_ack` | what follows a step; when the queue pair is looked at again |
//! | `engine`, `engine_context`, `engine_state` | the engine of each transport, what it may use of its queue pair, and what of that it changes |
//! | `short` | short messages to and from processes of this host, which need no packets |
//! | `direct_copy`, `sq_occupancy` | WRITEs and READs that need nothing of the target; which of them still take a place in the send queue |
//! | `carrier`, `source_port`, `flow_priming`, `lid_path` | what messages travel on |
//! | `partition` | the partition of an InfiniBand subnet that the queue pair is in |
//! | `ud`, [`ah`], `multicast` | datagrams: without a peer, to address handles, to groups |
//! | [`raw_packet`] | whole Ethernet frames, and the rules that steer them |
//! | [`xrc`] | XRC: targets, and the domains that they share |
//! | `injected` | requests that fail on purpose |
//! | `flush`, `rendezvous` | work beside the engine: FLUSH to persistence, the READ of a tag that matched |
//! | [`streams`], `outgoing` | the stream of an iWARP queue pair |
//! | `scratch` | what a thread builds packets and frames in |
//! | [`snapshot`] | a queue pair as it is now, for an operator |

mod advertised;
pub mod ah;
pub mod attr;
#[cfg(test)]
mod by_lid;
pub(crate) mod carrier;
pub(crate) mod delayed_ack;
pub(crate) mod direct_copy;
pub(crate) mod engine;
pub(crate) mod engine_context;
mod engine_state;
mod finish_step;
mod flow_priming;
mod flush;
mod fragments;
mod injected;
mod lid_path;
mod local_path;
mod modify;
mod multicast;
pub(crate) mod now;
mod outgoing;
mod partition;
pub mod post;
pub mod raw_packet;
mod receive;
mod rendezvous;
pub(crate) mod run_queue;
mod schedule;
pub(crate) mod scratch;
pub(crate) mod short;
pub mod snapshot;
pub(crate) mod source_port;
mod sq_occupancy;
pub mod streams;
pub(crate) mod ud;
pub mod xrc;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use locks::{Mutex, MutexGuard, Rank};
use wire::{Pkey, Qpn};

use crate::cq::counter::CompletionCounter;
use crate::cq::{Cq, Notification};
use crate::deferred_counter::DeferredCounter;
use crate::device::async_events::{AsyncEvent, AsyncEventQueue, Element, EventKind, Subject};
use crate::device::{Device, Transport};
use crate::error::{Error, in_range};
use crate::faults::Object;
use crate::limits;
use crate::memory::lock_pinned::PinningLock;
use crate::memory::pd::Pd;
use crate::qp::attr::{QpAttr, QpState, QpType};
use crate::qp::carrier::Carrier;
use crate::qp::delayed_ack::Noted;
use crate::qp::engine::Engine;
use crate::qp::engine_state::EngineState;
use crate::qp::outgoing::Outgoing;
use crate::qp::xrc::domain::Xrcd;
use crate::srq::Srq;
use crate::steering::rss::Spread;

/// Sizes of a queue pair's queues (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests outstanding, 0 to [`limits::MAX_QP_WR`].
    pub max_send_wr: u32,
    /// Receive work requests outstanding; 0 where they come from a shared receive queue.
    pub max_recv_wr: u32,
    /// Elements of a send request, 0 to [`limits::MAX_SGE`].
    pub max_send_sge: u32,
    /// Elements of a receive request; 0 where they come from a shared receive queue.
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

/// A queue pair. It keeps its device, domain and queues, and its device keeps it, so handles alone
/// do not end it: [`Qp::destroy`] does.
#[derive(Debug)]
pub struct Qp {
    pub(crate) me: Weak<Self>,
    qpn: Qpn,
    /// In the table of regions.
    pinning_lock: u32,
    /// Packets and messages that its engine has had; the thread that has the lock counts.
    received: DeferredCounter,
    device: Arc<Device>,
    pd: Arc<Pd>,
    pub(crate) init: QpInit,
    /// Of an XRC target.
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    inner: Mutex<Inner>,
    /// Work queues in place of its receive queue.
    pub(crate) spread: OnceLock<Arc<Spread>>,
    /// What it sends to multicast groups does not come back to this host
    /// (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB).
    pub no_multicast_loop: AtomicBool,
    /// The owner's mark, such as the address of its C structure.
    pub cookie: AtomicU64,
    /// How many handles the owner has given out; the thread that takes the last back destroys it.
    pub handles: AtomicU32,
}

/// What the lock of a queue pair protects; no code outside of this folder sees it.
#[derive(Debug)]
struct Inner {
    engine: Engine,
    engine_state: EngineState,
    state: QpState,
    /// The entry of the port's P_Key table that the attributes name.
    pkey: Pkey,
    attr: QpAttr,
    carrier: Carrier,
    /// The program waits for IBV_EVENT_SQ_DRAINED.
    drain_awaited: bool,
    /// What the device's timers hold for this queue pair.
    timer: Option<Instant>,
    /// The device's queue of turns holds it.
    is_queued_to_run: bool,
    destroyed: bool,
    /// What the device knows of an ACK that is held back.
    noted: Noted,
    /// FLUSHes begun that take long, and resets: tells the latest from those before.
    flushes: u32,
    /// Since when the oldest send request is acknowledged, though the engine does not know it yet:
    /// [`Inner::catch_up`].
    acknowledged: Option<Instant>,
    /// The peer may reach memory by itself.
    is_open: bool,
    /// The peer could reach memory once, and may be at it still.
    was_open: bool,
    /// When the engine failed by itself.
    failed_at: Option<Instant>,
    /// The stream of an iWARP queue pair that is connected.
    outgoing: Option<Box<Outgoing>>,
}

impl PinningLock for Qp {
    #[inline]
    fn number(&self) -> u32 {
        self.pinning_lock
    }
    fn wait(&self) {
        drop(self.lock());
    }
    fn weak(&self) -> Weak<dyn PinningLock> {
        self.me.clone()
    }
}

impl Subject for Qp {
    fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }
}

impl Qp {
    /// Makes a queue pair in state Reset, of a domain of `device`; `cap` is granted as asked or
    /// refused. Beside a shared receive queue its `max_recv_wr` and `max_recv_sge` are ignored
    /// (ibv_create_qp(3)).
    ///
    /// # Errors
    ///
    /// `OutOfRange`: sizes beyond the device's. `Invalid`: queues that do not fit the kind, another
    /// device's domain. `Limit`: no number is left. `System`: the environment has no frames for a
    /// raw packet queue pair.
    pub fn create(device: &Arc<Device>, pd: &Arc<Pd>, mut init: QpInit) -> Result<Arc<Self>, Error> {
        if init.srq.is_some() {
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        }
        match init.kind {
            QpType::XrcRecv => Err(Error::Invalid("an XRC target is made in an XRC domain")),
            QpType::XrcSend if init.srq.is_some() || init.cap.max_recv_wr > 0 => Err(Error::Invalid(
                "an XRC initiator receives nothing: its max_recv_wr is 0 and its srq NULL",
            )),
            _ if init.srq.as_ref().is_some_and(|srq| srq.xrc().is_some()) => {
                Err(Error::Invalid("the shared receive queue is for XRC"))
            }
            _ => {
                init.check_tags(pd)?;
                Self::make(device, pd, init, None)
            }
        }
    }

    pub(crate) fn make(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        init: QpInit,
        xrcd: Option<Arc<Xrcd>>,
    ) -> Result<Arc<Self>, Error> {
        if !Arc::ptr_eq(device.adapter(), &pd.device) {
            return Err(Error::Invalid("the protection domain is of another device"));
        }
        let cap = &init.cap;
        in_range("max_send_wr", cap.max_send_wr, 0_u32, limits::MAX_QP_WR)?;
        in_range("max_recv_wr", cap.max_recv_wr, 0_u32, limits::MAX_QP_WR)?;
        in_range("max_send_sge", cap.max_send_sge, 0_u32, limits::MAX_SGE)?;
        in_range("max_recv_sge", cap.max_recv_sge, 0_u32, limits::MAX_SGE)?;
        in_range("max_inline_data", cap.max_inline_data, 0_u32, limits::MAX_INLINE)?;
        device.allow(Object::Qp)?;
        let kind = init.kind;
        if device.config.transport == Transport::Iwarp && kind != QpType::Rc {
            return Err(Error::Unsupported("queue pairs other than RC, which iWARP has not"));
        }
        if kind == QpType::RawPacket {
            device.frames.open_frames(device.config.interface).map_err(Error::System)?;
        }
        let qpn = device.take_qpn().inspect_err(|_| {
            if kind == QpType::RawPacket {
                device.frames.close_frames(device.config.interface);
            }
        })?;
        let qp = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            qpn,
            pinning_lock: pd.device.memory.new_pinning_lock(),
            received: DeferredCounter::default(),
            device: device.clone(),
            pd: pd.clone(),
            init,
            xrcd,
            inner: Mutex::new(
                Rank::Qp,
                Inner {
                    engine: Engine::new(kind, device.config.transport, qpn, &device.pace),
                    engine_state: EngineState::default(),
                    state: QpState::Reset,
                    pkey: Pkey::default(),
                    attr: QpAttr::default(),
                    carrier: Carrier::new(kind),
                    drain_awaited: false,
                    timer: None,
                    is_queued_to_run: false,
                    destroyed: false,
                    noted: Noted::default(),
                    flushes: 0,
                    acknowledged: None,
                    is_open: false,
                    was_open: false,
                    failed_at: None,
                    outgoing: None,
                },
            ),
            spread: OnceLock::new(),
            no_multicast_loop: AtomicBool::new(false),
            cookie: AtomicU64::new(0),
            handles: AtomicU32::new(1),
        });
        device.insert_qp(qp.clone());
        Ok(qp)
    }

    /// The queue pair's number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// The queue pair's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// What it was made from.
    #[inline]
    pub fn init(&self) -> &QpInit {
        &self.init
    }
    /// The queue pair's protection domain; of an XRC target one that no program registers memory
    /// in.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// The queue pair's XRC domain, where it is an XRC target.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrcd.as_ref()
    }
    /// The queue pair's state.
    pub fn state(&self) -> QpState {
        self.lock().current_state()
    }

    /// Takes the queue pair off its device and forgets its events, what is under way, and its
    /// completions but for what its send queue had done. That stays, as with rdma_rxe: a
    /// program may hear of the end of a connection, and destroy the queue pair, before it polls
    /// for its last message.
    pub fn destroy(self: &Arc<Self>) {
        let closed = {
            let mut inner = self.lock();
            inner.on_exit(self);
            inner.destroyed = true;
            let closed = inner.open_or_close(self);
            inner.forget_timer(self);
            // Leaves the window it may have packets in; no thread fetches these completions.
            let (engine, mut context) = inner.split(self);
            context.discard_completions = true;
            engine.fail(&mut context);
            inner.drop_stream(self);
            inner.engine_state.receives.clear();
            inner.engine_state.cache.clear();
            self.tell_received();
            inner.leave_counts(self);
            self.pd.device.memory.forget_pinning_lock(self.as_ref());
            inner.no_ack_waits(self);
            inner.engine_state.counted = None;
            // What a shared receive queue completes in its own queue.
            self.unlock(inner);
            closed
        };
        if closed {
            self.await_peer();
        }
        self.leave_groups();
        self.device.remove_qp(self.qpn);
        if self.init.kind == QpType::RawPacket {
            self.device.forget_flows(self);
            self.device.frames.close_frames(self.device.config.interface);
        }
        self.init.send_cq.forget_all_but_sent(self.qpn);
        self.init.recv_cq.forget_all_but_sent(self.qpn);
        self.init.events.forget(self);
    }

    /// Counts these operations ([`crate::cq::counter::ops`]) into a completion counter, until it is
    /// destroyed.
    ///
    /// # Errors
    ///
    /// `Invalid` for no operations, `Value` for a state beyond Init, `Busy` where one is counted
    /// already, `Unsupported` for what peers do.
    pub fn count_into(&self, counter: &Arc<CompletionCounter>, ops: u32) -> Result<(), Error> {
        let mut inner = self.lock();
        let state = inner.current_state();
        if !matches!(state, QpState::Reset | QpState::Init) {
            return Err(Error::name(
                "counting begins in state RESET or INIT, and the queue pair is in",
                state.name(),
            ));
        }
        let mut counted = inner.engine_state.counted.take().unwrap_or_default();
        let attached = counted.attach(counter, ops);
        inner.engine_state.counted = counted.is_used().then_some(counted);
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
    pub fn has_received(&self) -> bool {
        let inner = self.lock();
        inner.engine.rq_psn().is_some_and(|psn| psn != inner.attr.rq_psn)
    }

    /// Whether the peer has requests of this queue pair still to answer.
    pub fn awaits_answers(&self) -> bool {
        self.lock().engine.awaits_answers()
    }

    /// Whether the program has not fetched all that it was sent: completions of messages that came.
    pub fn has_unread_messages(&self) -> bool {
        self.init.recv_cq.has_received(self.qpn)
    }

    /// What came is counted at the device, too.
    pub(crate) fn tell_received(&self) {
        self.received.fold_into(&self.pd.device.counters.received);
    }

    /// An asynchronous event of this queue pair, to be told when it is unlocked.
    pub(crate) fn note(&self, kind: EventKind) -> Option<Notification> {
        let event = AsyncEvent { kind, element: Element::Qp(self.me.upgrade()?) };
        Some(Notification::Async(self.init.events.clone(), event))
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        inner.catch_up(self);
        inner
    }
}
