//! What the handles of a queue pair share. Completions come to one completion queue of its own,
//! which is large enough for all that may be under way. While a task waits it is armed: the thread
//! that brings a completion (one that polls, or the engine's) drains it when no lock is held
//! ([`nic::DeferredWork`]), puts each result where its owner looks, and wakes that owner. A future
//! looks and leaves its waker, and arms it, under the same lock, so no wake-up is lost. While no
//! task waits it is armed for errors only, and a thread that looks drains it.

#[cfg(all(test, feature = "sim"))]
mod census;
mod looking;
mod place;
mod spinning;
mod waiting;

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrayvec::ArrayVec;
use locks::{Mutex, MutexGuard, Rank};
use nic::{QpType, Work};
use transport::op::{Completed, RecvWr};
use wire::grh::GRH_LEN;
use wire::roce::SendTail;

use super::QueueConfig;
use super::afterwards::Afterwards;
use super::carrier::Carrier;
use super::completions::EventSignal;
use super::cq::Membership;
use super::message::{Home, Message, What};
use super::srq::SrqInner;
use crate::cm::waiters::Waiters;
use crate::error::{Error, ErrorKind, Result, WcStatus};
use crate::mem::{IoBufMut, Pool, RegBuf, SgeList};
use crate::op::kind::Kind;
use crate::op::slot::{Slots, Ticket};
use crate::op::{Completion, Request};
use crate::provider::{Pd, Stack};
use crate::thread_safe::ThreadSafe;
pub(crate) use place::Place;
use spinning::TaskSpin;

/// How a send request ended; of an atomic with the value that was there before.
pub(crate) type Ended = Result<(Completion, u64)>;

/// This bit of a wr_id says that it is a receive's.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Completions taken at once.
pub(super) const BATCH: usize = 32;

/// What the handles of a queue pair share; see the module.
pub(crate) struct QpInner(ThreadSafe<Parts>);

/// What a queue pair has.
pub(crate) struct Parts {
    me: Weak<QpInner>,
    pd: Pd,
    /// The domain's, at hand.
    stack: Stack,
    carrier: Carrier,
    pool: Pool,
    queues: Mutex<Queues>,
    /// Where its receives come from, where others share them.
    srq: Option<Arc<SrqInner>>,
    /// The queue pair's room in the completion queue, where others share that.
    cq: Option<Membership>,
    /// The object that looks when it fails: its connection.
    owner: OnceLock<Weak<dyn Work>>,
    /// One thread polls it, and no task is told of completions.
    polled: AtomicBool,
    /// Goes up with each completion that was taken, and with the end: a thread that polls again and
    /// again looks when it has changed.
    news: AtomicU32,
    /// Whether a task that waits for a message looks for a moment before it sleeps.
    task_spin: TaskSpin,
}

/// Both queues, as the program sees them.
pub(super) struct Queues {
    pub sends: Slots<Ended>,
    /// Tasks that wait for room in the send queue.
    room: Waiters,
    /// Tasks that wait until nothing is under way.
    idle: Waiters,
    /// The buffers that are posted, by the number in their wr_id.
    posted: Vec<Option<RegBuf>>,
    /// Numbers that are free.
    places: Vec<u32>,
    /// Messages that no task has taken.
    ready: VecDeque<Message>,
    /// Tasks that wait for a message.
    receivers: Waiters,
    /// One of them was woken, and has not looked yet.
    woken: bool,
    /// The connection is no more.
    ended: bool,
    failure: Option<Error>,
    failure_told: bool,
    pub destroyed: bool,
    /// The signal rings for errors only: no task waits.
    quiet: bool,
    /// Bytes before each message that came.
    head: usize,
}

impl Deref for QpInner {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Work for QpInner {
    fn run(self: Arc<Self>) {
        match self.polled.load(Ordering::Acquire) {
            true => self.drain(),
            false => self.carrier.attend(|| self.drain(), || self.ring_again()),
        }
    }
}

impl QpInner {
    /// A queue pair in state Reset, nothing posted.
    pub(crate) fn create(pd: &Pd, config: &QueueConfig, kind: QpType) -> Result<Arc<Self>> {
        let failed = |e| Error::of_nic("ibv_create_qp", e);
        pd.stack().check("ibv_create_qp")?;
        config.check_shared(pd)?;
        let &QueueConfig { send_depth, recv_size, .. } = config;
        let recv_depth = if config.srq.is_some() { 0 } else { config.recv_depth };
        nic::in_range("send_depth", send_depth, 1_u32, nic::limits::MAX_QP_WR).map_err(failed)?;
        nic::in_range("recv_depth", recv_depth, 0_u32, nic::limits::MAX_QP_WR).map_err(failed)?;
        // Datagrams come after a header.
        let head = if kind == QpType::Ud { GRH_LEN } else { 0 };
        let pool = Pool::new(pd, recv_size.max(1).saturating_add(head), (recv_depth + send_depth) as usize)?;
        let signal = EventSignal::new(pd.stack().later());
        let cq = config.cq.as_ref().map(|cq| cq.inner().reserve(config)).transpose()?;
        let carrier = Carrier::create(pd, config, kind, &signal)?;
        let queues = Queues {
            sends: Slots::new(send_depth),
            room: Waiters::default(),
            idle: Waiters::default(),
            posted: (0..recv_depth).map(|_| None).collect(),
            places: (0..recv_depth).rev().collect(),
            ready: VecDeque::new(),
            receivers: Waiters::default(),
            woken: false,
            ended: false,
            failure: None,
            failure_told: false,
            destroyed: false,
            quiet: false,
            head,
        };
        let inner = Arc::new_cyclic(|me| {
            Self(ThreadSafe::new(Parts {
                me: me.clone(),
                pd: pd.clone(),
                stack: pd.stack().clone(),
                carrier,
                pool,
                queues: Mutex::new(Rank::Operations, queues),
                srq: config.srq.as_ref().map(|srq| srq.inner().clone()),
                cq,
                owner: OnceLock::new(),
                polled: AtomicBool::new(false),
                news: AtomicU32::new(0),
                task_spin: TaskSpin::new(),
            }))
        });
        signal.is_for(inner.me.clone());
        inner.cq.iter().for_each(|cq| cq.join(&inner));
        inner.carrier.attend(|| inner.drain(), || inner.ring_again());
        Ok(inner)
    }

    pub(crate) fn carrier(&self) -> &Carrier {
        &self.carrier
    }
    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }
    pub(crate) fn stack(&self) -> &Stack {
        &self.stack
    }
    pub(super) fn srq(&self) -> Option<&Arc<SrqInner>> {
        self.srq.as_ref()
    }
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
    /// Has `owner` look, when no lock is held, each time that something completes in error. Once.
    pub(crate) fn set_owner(&self, owner: Weak<dyn Work>) {
        _ = self.owner.set(owner);
    }
    pub(crate) fn failure(&self) -> Option<Error> {
        self.queues.lock().failure.clone()
    }
    /// Moves it to the error state: what is under way is flushed.
    pub(crate) fn fail(&self) {
        self.carrier.fail(&self.pd);
        self.drain();
        self.stack().later().run();
    }
    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    // ---- sending ----

    /// `WrongState` for an operation of another queue pair.
    pub(crate) fn check_is(&self, other: &Self) -> Result<()> {
        if std::ptr::eq(self, other) { Ok(()) } else { Err(Error::new(ErrorKind::WrongState, "post_all")) }
    }

    /// The pieces of registered memory that an operation names; it may be posted with them.
    #[inline]
    pub(crate) fn pieces<K: Kind<B>, B>(
        &self,
        request: &Request,
        value: &B,
    ) -> Result<transport::op::SgeList> {
        self.stack().check("ibv_post_send")?;
        let mut pieces = SgeList::new(&self.pd);
        K::gather(value, &mut pieces);
        request.cut(&mut pieces)?;
        let pieces = pieces.finish()?;
        request.check(&pieces)?;
        self.carrier.check(|| request.wr(0, pieces.clone()))?;
        Ok(pieces)
    }

    /// Where the answer of the atomic with this wr_id goes.
    pub(super) fn word(&self, wr_id: u64) -> transport::op::SgeList {
        std::iter::once(self.carrier.word(wr_id as u32)).collect()
    }

    /// Gives up a request whose result no task wants any more.
    pub(crate) fn abandon<B>(&self, ticket: &Ticket<B>) {
        let mut afterwards = Afterwards::default();
        {
            let mut queues = self.lock();
            afterwards.add(queues.sends.abandon(ticket));
            if queues.sends.room() > 0 {
                afterwards.wake(&mut queues.room);
            }
            // No task will look whether it is complete.
            if queues.sends.is_waited_for() {
                self.unlock_loud(queues);
            }
        }
        afterwards.run();
    }

    // ---- receiving ----

    /// Posts the receives that the crate keeps posted. The queue pair has left state Reset.
    pub(crate) fn post_receives(&self) -> Result<()> {
        loop {
            if self.lock().places.is_empty() {
                return Ok(());
            }
            self.post_receive(self.pool.get()?)?;
        }
    }

    /// Posts one receive; nothing where all are.
    pub(crate) fn post_receive(&self, buffer: RegBuf) -> Result<()> {
        let mut pieces = SgeList::new(&self.pd);
        buffer.gather_mut(&mut pieces);
        let sges = pieces.finish()?;
        let mut queues = self.lock();
        let destroyed = queues.destroyed;
        let Some(place) = queues.places.pop().filter(|_| !destroyed) else { return Ok(()) };
        queues.posted[place as usize] = Some(buffer);
        let posted = self.carrier.post_receive(RecvWr { wr_id: RECEIVE | u64::from(place), sges });
        let mut refused = None;
        if posted.is_err() {
            queues.places.push(place);
            refused = queues.posted[place as usize].take();
        }
        drop(queues);
        drop(refused);
        self.stack().later().run();
        posted
    }

    /// Notes that the connection is no more; receivers learn of it after the messages that came. An
    /// `error` other than `Disconnected` says what went wrong.
    pub(crate) fn ended(&self, error: Error) {
        self.drain();
        let mut afterwards = Afterwards::default();
        {
            let mut queues = self.lock();
            queues.ended = true;
            self.tell_pollers();
            if error.kind() != ErrorKind::Disconnected && queues.failure.is_none() {
                queues.failure = Some(error);
            }
            afterwards.wake(&mut queues.receivers);
        }
        afterwards.run();
    }

    // ---- completions ----

    /// Takes all completions that there are to the requests they are for.
    pub(crate) fn drain(&self) {
        if let Some(shared) = &self.cq {
            return shared.cq().drain();
        }
        let mut afterwards = Afterwards::default();
        {
            let mut queues = self.lock();
            let mut batch = ArrayVec::<transport::op::Completion, BATCH>::new();
            while self.carrier.poll(BATCH, |completion| batch.push(completion)) > 0 {
                for completion in batch.drain(..) {
                    queues.take(self, &completion, &mut afterwards);
                }
                self.tell_pollers();
            }
            if !queues.idle.is_empty() && !queues.sends.any_flying() {
                afterwards.wake(&mut queues.idle);
            }
        }
        if afterwards.failed {
            self.tell_owner();
        }
        afterwards.run();
    }

    /// Takes a completion of the shared queue. True: it is an error, for [`QpInner::tell_owner`]
    /// when no lock is held.
    pub(super) fn take_one(
        &self,
        completion: &transport::op::Completion,
        afterwards: &mut Afterwards,
    ) -> bool {
        let mut queues = self.lock();
        afterwards.failed = false;
        queues.take(self, completion, afterwards);
        self.tell_pollers();
        if !queues.idle.is_empty() && !queues.sends.any_flying() {
            afterwards.wake(&mut queues.idle);
        }
        afterwards.failed
    }

    /// Something has completed in error.
    pub(super) fn tell_owner(&self) {
        if let Some(owner) = self.owner.get().and_then(Weak::upgrade) {
            self.stack().later().add(owner);
        }
    }

    /// Destroys the queue pair: what was under way is flushed, tasks that wait are told, memory is
    /// free. Once.
    pub(crate) fn destroy(&self) {
        if !self.stack().is_ours() || self.lock().destroyed {
            return;
        }
        self.carrier.fail(&self.pd);
        self.drain();
        let is_gone = self.carrier.destroy(|| self.drain());
        self.cq.iter().for_each(Membership::leave);
        let mut afterwards = Afterwards::default();
        {
            let mut queues = self.lock();
            if !is_gone {
                // What is under way stays there, and its memory with it.
                std::mem::forget(std::mem::replace(&mut queues.sends, Slots::new(0)));
                std::mem::forget(std::mem::take(&mut queues.posted));
            }
            queues.destroyed = true;
            queues.ended = true;
            queues.looks();
            self.tell_pollers();
            let flushed = || Err(Error::new(ErrorKind::Completion(WcStatus::Flushed), "ibv_destroy_qp"));
            queues.sends.complete_all(flushed).into_iter().for_each(|left| afterwards.add(Some(left)));
            afterwards.buffers.extend(queues.posted.iter_mut().filter_map(Option::take));
            let Queues { room, idle, receivers, .. } = &mut *queues;
            [room, idle, receivers].into_iter().for_each(|waiters| afterwards.wake(waiters));
        }
        afterwards.run();
        self.stack().later().run();
    }
}

impl Queues {
    #[inline]
    fn take(&mut self, qp: &QpInner, completion: &transport::op::Completion, afterwards: &mut Afterwards) {
        let error = WcStatus::of(completion.status).map(|status| self.failed(status, afterwards));
        if completion.wr_id & RECEIVE != 0 {
            return self.received(qp, completion, error.is_some(), afterwards);
        }
        let result = match error {
            Some(error) => Err(error),
            None => {
                let word = match completion.opcode {
                    Completed::CompareSwap | Completed::FetchAdd => {
                        qp.carrier.read_word(completion.wr_id as u32)
                    }
                    _ => 0,
                };
                Ok((seen(completion), word))
            }
        };
        afterwards.add(self.sends.complete(completion.wr_id, result));
        if self.sends.room() > 0 {
            afterwards.wake(&mut self.room);
        }
    }

    #[cold]
    fn failed(&mut self, status: WcStatus, afterwards: &mut Afterwards) -> Error {
        let error = Error::new(ErrorKind::Completion(status), "ibv_poll_cq");
        afterwards.failed = true;
        if status != WcStatus::Flushed && self.failure.is_none() {
            self.failure = Some(error.clone());
            afterwards.wake(&mut self.receivers);
        }
        error
    }

    fn received(
        &mut self,
        qp: &QpInner,
        completion: &transport::op::Completion,
        is_error: bool,
        afterwards: &mut Afterwards,
    ) {
        let place = completion.wr_id as u32;
        let taken = match &qp.srq {
            Some(srq) => srq.take(place).map(|buffer| (buffer, Home::Srq(srq.clone()))),
            None => {
                let buffer = self.posted.get_mut(place as usize).and_then(Option::take);
                buffer.map(|buffer| {
                    self.places.push(place);
                    (buffer, Home::Qp(qp.me.clone()))
                })
            }
        };
        let Some((mut buffer, home)) = taken else { return };
        let what = What::of(completion);
        if is_error {
            match home {
                Home::Qp(_) => afterwards.buffers.push(buffer),
                // Others need it.
                Home::Srq(_) => afterwards.unused.push(Message::new(home, buffer, 0, what)),
            }
            return;
        }
        buffer.set_filled(if what.written.is_some() { 0 } else { completion.byte_len as usize });
        self.ready.push_back(Message::new(home, buffer, self.head, what));
        if !self.receivers.is_empty() {
            self.wakes_for_message();
            afterwards.wake(&mut self.receivers);
        }
    }
}

fn seen(completion: &transport::op::Completion) -> Completion {
    let imm =
        if let SendTail::Immediate(imm) = completion.tail { Some(u32::from_be_bytes(imm)) } else { None };
    Completion { len: completion.byte_len as usize, imm, qp_num: completion.qpn.get() }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.destroy();
    }
}
