//! Extended reliable connections (IBA annex A14) as the program sees them: what an initiator can
//! do, [`ToSrq`], and the queue where it arrives, [`XrcSrq`]. Domains and targets are in
//! [`verbs`](crate::verbs).

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use locks::{Mutex, Rank};
use nic::Work;
use nic::program::wake_all;
use nic::qp::xrc::domain::Xrcd;
use transport::op::{AtomicOp, Data, Status};

use super::completions::{Completions, EventSignal};
use super::inner::BATCH;
use super::message::Message;
use super::srq::Srq;
use super::{HasPeer, QueuePair, Transport, sealed};
use crate::cm::wait;
use crate::cm::waiters::{Awaited, Owner, Waiters, until};
use crate::error::{Error, Result};
use crate::mem::{IoBuf, IoBufMut};
use crate::op::kind::Copied;
use crate::op::{Asked, Op, Placement, kind};
use crate::provider::Pd;
use crate::remote::RemoteMemory;

/// Initiator of an extended reliable connection. It receives nothing, and each of its operations
/// names a shared receive queue of the peer's domain: [`QueuePair::to_srq`].
/// ```compile_fail,E0599
/// fn f(qp: &verbena::QueuePair<verbena::XrcSend>) {
///     let _ = qp.send_inline(b"to whom?");
/// }
/// ```
#[derive(Debug)]
pub enum XrcSend {}
impl Transport for XrcSend {}
impl HasPeer for XrcSend {}
impl sealed::Service for XrcSend {
    const KIND: nic::QpType = nic::QpType::XrcSend;
}

/// Operations of an initiator on one shared receive queue of the peer's domain: its receives, and
/// the memory of its protection domain.
#[derive(Clone, Copy, Debug)]
pub struct ToSrq<'q> {
    qp: &'q QueuePair<XrcSend>,
    number: u32,
}

impl QueuePair<XrcSend> {
    /// For the queue of this number ([`XrcSrq::number`]), of which the low 24 bits count. A number
    /// that the peer's domain does not have fails the queue pair: `RemoteAccess` or its like.
    pub fn to_srq(&self, number: u32) -> ToSrq<'_> {
        ToSrq { qp: self, number }
    }
}

impl<'q> ToSrq<'q> {
    fn op<K: kind::Kind<B>, B: Send + 'static>(self, asked: Asked, value: B) -> Op<'q, K, B> {
        Op::new(self.qp.inner(), asked, value).map(|request| request.srq = self.number)
    }

    /// As [`QueuePair::send`].
    pub fn send<B: IoBuf>(self, buf: B) -> Op<'q, kind::Send, B> {
        self.op(Asked::Send, buf)
    }
    /// As [`QueuePair::send_inline`].
    pub fn send_inline(self, bytes: &[u8]) -> Op<'q, kind::Send, Copied> {
        self.op(Asked::Send, Copied(None)).map(|request| request.inline = Some(Data::inline(bytes)))
    }
    /// As [`QueuePair::write`].
    pub fn write<B: IoBuf>(self, buf: B, to: RemoteMemory) -> Op<'q, kind::Write, B> {
        self.op(Asked::Write(to), buf)
    }
    /// As [`QueuePair::write_inline`].
    pub fn write_inline(self, bytes: &[u8], to: RemoteMemory) -> Op<'q, kind::Write, Copied> {
        self.op(Asked::Write(to), Copied(None)).map(|request| request.inline = Some(Data::inline(bytes)))
    }
    /// As [`QueuePair::read`].
    pub fn read<B: IoBufMut>(self, buf: B, from: RemoteMemory) -> Op<'q, kind::Read, B> {
        self.op(Asked::Read(from), buf)
    }
    /// As [`QueuePair::compare_swap`].
    pub fn compare_swap(self, at: RemoteMemory, old: u64, new: u64) -> Op<'q, kind::Atomic> {
        self.op(Asked::Atomic(at, AtomicOp::CompareSwap { compare: old, swap: new }), ())
    }
    /// As [`QueuePair::fetch_add`].
    pub fn fetch_add(self, at: RemoteMemory, add: u64) -> Op<'q, kind::Atomic> {
        self.op(Asked::Atomic(at, AtomicOp::FetchAdd(add)), ())
    }
    /// As [`QueuePair::atomic_write`].
    pub fn atomic_write(self, at: RemoteMemory, value: u64) -> Op<'q, kind::Order> {
        self.op(Asked::Atomic(at, AtomicOp::Write(value)), ())
    }
    /// As [`QueuePair::flush`].
    pub fn flush(self, range: RemoteMemory, placement: Placement) -> Op<'q, kind::Order> {
        self.op(Asked::Flush(range, placement.flush()), ())
    }
}

/// A shared receive queue of an XRC domain: what initiators send to its number comes here, by
/// whichever target. A handle, clones are the same one; it lives as long as its last handle or
/// message. The crate keeps its receives posted.
#[derive(Clone)]
pub struct XrcSrq(Arc<Inner>);

struct Inner {
    srq: Srq,
    completions: Completions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Messages that no task has taken.
    ready: VecDeque<Message>,
    waiters: Waiters,
}

impl Awaited for State {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Owner<State> for Inner {
    fn is_ours(&self) -> bool {
        self.srq.pd().stack().is_ours()
    }
}

impl AsRef<Mutex<State>> for Inner {
    fn as_ref(&self) -> &Mutex<State> {
        &self.state
    }
}

/// The C function that errors name.
const CALL: &str = "ibv_create_srq_ex";

impl XrcSrq {
    /// In a domain of XRC; its memory is that of the protection domain.
    pub(crate) fn new(xrcd: &Arc<Xrcd>, pd: &Pd, depth: u32, size: usize) -> Result<Self> {
        pd.stack().check(CALL)?;
        nic::in_range("depth", depth, 1_u32, nic::limits::MAX_SRQ_WR).map_err(|e| Error::of_nic(CALL, e))?;
        let signal = EventSignal::new(pd.stack().later());
        let failed = |e| Error::of_nic(CALL, e);
        let completions = Completions::new(pd.device(), depth, &signal).map_err(failed)?;
        let cq = completions.ours().map_err(failed)?.clone();
        let srq = Srq::make(pd, depth, size, |pd, attr, events| {
            nic::Srq::create_xrc(pd, attr, events, xrcd.clone(), cq)
        })?;
        let state = Mutex::new(Rank::Awaited, State::default());
        let inner = Arc::new(Inner { srq, completions, state });
        let me: Weak<Inner> = Arc::downgrade(&inner);
        signal.is_for(me);
        inner.completions.attend(|| inner.drain());
        Ok(Self(inner))
    }

    /// By which initiators name it, 24 bits.
    pub fn number(&self) -> u32 {
        self.0.srq.inner().number()
    }
    /// Receives in all.
    pub fn depth(&self) -> u32 {
        self.0.srq.depth()
    }
    /// Receives that are posted: the others are in messages.
    pub fn posted(&self) -> u32 {
        self.0.srq.posted()
    }
    /// The queue's protection domain: memory of it is what initiators reach that name this queue.
    pub fn pd(&self) -> &Pd {
        self.0.srq.pd()
    }

    /// The next message. Cancelling loses none. It says nothing of connections that end.
    ///
    /// # Errors
    ///
    /// `Forked`.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn recv(&self) -> impl Future<Output = Result<Message>> + Send + '_ {
        async {
            self.pd().stack().check(CALL)?;
            Ok(until(&self.0, |state: &mut State| state.ready.pop_front()).await)
        }
    }
    /// Like [`XrcSrq::recv`], blocking.
    ///
    /// # Errors
    ///
    /// `Forked`; `BlockingInSimulation` in a task of a simulated host.
    pub fn blocking_recv(&self) -> Result<Message> {
        let provider = self.pd().device().provider().clone();
        wait(&provider, "blocking_recv", self.recv())
    }
    /// A message that has come already.
    pub fn try_recv(&self) -> Option<Message> {
        self.0.state.lock().ready.pop_front()
    }
}

impl Inner {
    /// Takes all completions that there are. Receives are all that completes here.
    fn drain(&self) {
        // Dropped when nothing is locked: these receives are posted again.
        let mut unused = Vec::new();
        let wakers = {
            let mut state = self.state.lock();
            let mut batch = ArrayVec::<transport::op::Completion, BATCH>::new();
            // It can not be overrun: it has room for all receives.
            while self.completions.poll(BATCH, |completion| batch.push(completion)) > 0 {
                for completion in batch.drain(..) {
                    let Some(message) = Message::of_srq(self.srq.inner(), &completion) else { continue };
                    match completion.status {
                        Status::Success => state.ready.push_back(message),
                        _ => unused.push(message),
                    }
                }
            }
            if state.ready.is_empty() { Vec::new() } else { state.waiters.take() }
        };
        drop(unused);
        wake_all(wakers);
    }
}

impl Work for Inner {
    fn run(self: Arc<Self>) {
        self.completions.attend(|| self.drain());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child a lock may be held by a thread that is not there.
        if self.srq.pd().stack().is_ours() {
            self.completions.end();
        }
    }
}

impl std::fmt::Debug for XrcSrq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "XrcSrq({:#x}, {} of {} posted)", self.number(), self.posted(), self.depth())
    }
}
