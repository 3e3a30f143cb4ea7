//! Receives that many queue pairs share ([`Srq`]). Each message goes to the connection that it came
//! by; its buffer goes back here, whether or not that connection still is.

use std::future::Future;
use std::sync::Arc;

use locks::{Mutex, Rank};
use nic::SrqAttr;
use nic::device::async_events::AsyncEventQueue;
use transport::op::RecvWr;
use wire::grh::GRH_LEN;

use super::QueueConfig;
use super::inner::RECEIVE;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::{IoBufMut, Pool, RegBuf, SgeList};
use crate::provider::{Domain, Pd};
use crate::thread_safe::ThreadSafe;
use crate::verbs::AsyncEvents;

/// A shared receive queue: receives that the crate keeps posted for all queue pairs that have it in
/// their [`QueueConfig`], so that memory for a thousand quiet connections is that of the few that
/// talk. A handle, clones are the same one; it lives as long as its last queue pair or message.
///
/// ```no_run
/// # async fn f(listener: verbena::Listener, pd: verbena::Pd) -> verbena::Result<()> {
/// use verbena::{Cq, QueueConfig, Srq};
///
/// let (srq, cq) = (Srq::new(&pd, 256, 4096)?, Cq::new(pd.device())?);
/// let queues = QueueConfig::default().srq(&srq).cq(&cq);
/// loop {
///     let conn = listener.request().await?.accept().queues(queues.clone()).await?;
///     verbena::spawn(async move { conn.recv().await })?;
/// }
/// # }
/// ```
///
/// When all receives are out, because their messages are kept, the peers of all its connections
/// wait (RNR); datagrams are lost.
#[derive(Clone)]
pub struct Srq(Arc<SrqInner>);

/// The state that all handles of an [`Srq`] share.
pub(crate) struct SrqInner {
    pd: Pd,
    below: Below,
    pool: Pool,
    depth: u32,
    posted: Mutex<Posted>,
    /// Events of the queue's limit.
    events: Arc<AsyncEvents>,
}

/// The queue of the stack below.
enum Below {
    Ours(ThreadSafe<Arc<nic::Srq>>),
    #[cfg(feature = "system")]
    System(Arc<rdma_core::Srq>),
}

struct Posted {
    /// The buffers that are posted, by the number in their wr_id.
    buffers: Vec<Option<RegBuf>>,
    /// Numbers that are free.
    places: Vec<u32>,
}

impl Srq {
    /// `depth` receives (1 to 32768), each with a buffer of `size` bytes, all of them posted.
    ///
    /// # Errors
    ///
    /// `OutOfRange`; `Exhausted` where there is no memory for them, or the device has no more such
    /// queues; `Forked`.
    pub fn new(pd: &Pd, depth: u32, size: usize) -> Result<Self> {
        Self::make(pd, depth, size, nic::Srq::create)
    }

    /// Like [`Srq::new`], of a queue that `create` makes.
    pub(super) fn make(
        pd: &Pd,
        depth: u32,
        size: usize,
        create: impl FnOnce(&Arc<nic::Pd>, SrqAttr, Arc<AsyncEventQueue>) -> Result<Arc<nic::Srq>, nic::Error>,
    ) -> Result<Self> {
        const CALL: &str = "ibv_create_srq";
        pd.stack().check(CALL)?;
        let failed = |e| Error::of_nic(CALL, e);
        nic::in_range("depth", depth, 1_u32, nic::limits::MAX_SRQ_WR).map_err(failed)?;
        if size == 0 {
            return Err(Error::number(CALL, "size", 0, 1..=nic::limits::MAX_MESSAGE));
        }
        // Datagrams come after a header.
        let pool = Pool::new(pd, size.saturating_add(GRH_LEN), depth as usize)?;
        let attr = SrqAttr { max_wr: depth, max_sge: 1, limit: 0 };
        let events = AsyncEvents::new(pd.stack());
        let below = match pd.domain() {
            Domain::Ours(nic) => {
                let srq = create(nic, attr, events.queue().clone()).map_err(failed)?;
                Below::Ours(ThreadSafe::new(srq))
            }
            #[cfg(feature = "system")]
            Domain::System(domain) => Below::System(rdma_core::Srq::new(domain, depth).map_err(failed)?),
        };
        let buffers = (0..depth).map(|_| None).collect();
        let posted = Mutex::new(Rank::SharedReceives, Posted { buffers, places: (0..depth).rev().collect() });
        let srq = Self(Arc::new(SrqInner { pd: pd.clone(), below, pool, depth, posted, events }));
        for _ in 0..depth {
            srq.0.post(srq.0.pool.get()?)?;
        }
        Ok(srq)
    }

    /// Receives in all.
    pub fn depth(&self) -> u32 {
        self.0.depth
    }
    /// Receives that are posted and wait for messages: the others are in messages that the program
    /// keeps, or about to be posted again.
    pub fn posted(&self) -> u32 {
        self.0.depth - self.0.posted.lock().places.len() as u32
    }
    /// Waits until fewer than `limit` receives are posted (1 to [`Srq::depth`]): soon peers will
    /// have to wait. It looks from the first poll on; of several callers that wait at once the last
    /// one's limit counts for all. Dropping it leaves the limit, which wakes no task then.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `Forked`; `Unsupported` over the machine's rdma-core.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn runs_low(&self, limit: u32) -> impl Future<Output = Result<()>> + Send + '_ {
        async move {
            const CALL: &str = "ibv_modify_srq";
            let stack = self.0.pd.stack();
            stack.check(CALL)?;
            if !(1..=self.0.depth).contains(&limit) {
                let (is, most) = (limit.into(), self.0.depth.into());
                return Err(Error::number(CALL, "srq_limit", is, 1..=most));
            }
            // What an earlier limit has told counts as before.
            let (nic, before) = (self.0.below()?, self.0.events.count());
            nic.modify(None, Some(limit)).map_err(|e| Error::of_nic(CALL, e))?;
            stack.later().run();
            self.0.events.more_than(before).await;
            Ok(())
        }
    }
    /// The queue's protection domain: that of its buffers.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }
    pub(super) fn inner(&self) -> &Arc<SrqInner> {
        &self.0
    }
}

impl SrqInner {
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }
    /// Verbena's own.
    ///
    /// # Errors
    ///
    /// `Unsupported` for another stack's.
    #[allow(clippy::unnecessary_wraps, reason = "not all queues are")]
    pub(super) fn below(&self) -> Result<&Arc<nic::Srq>> {
        match &self.below {
            Below::Ours(nic) => Ok(nic),
            #[cfg(feature = "system")]
            Below::System(_) => Err(crate::stack::unsupported()),
        }
    }
    /// The machine's libraries'.
    ///
    /// # Errors
    ///
    /// `Unsupported` for Verbena's own.
    #[cfg(feature = "system")]
    pub(super) fn system(&self) -> Result<&Arc<rdma_core::Srq>, nic::Error> {
        match &self.below {
            Below::System(srq) => Ok(srq),
            Below::Ours(_) => Err(nic::Error::Unsupported("a shared receive queue of another stack")),
        }
    }
    /// The queue's number: initiators name a queue of an XRC domain so.
    pub(super) fn number(&self) -> u32 {
        match &self.below {
            Below::Ours(nic) => nic.number(),
            #[cfg(feature = "system")]
            Below::System(_) => 0,
        }
    }

    /// Posts one receive; nothing where all are.
    pub(super) fn post(&self, buffer: RegBuf) -> Result<()> {
        // In a forked child the queue is the parent's.
        self.pd.stack().check("ibv_post_srq_recv")?;
        let mut pieces = SgeList::new(&self.pd);
        buffer.gather_mut(&mut pieces);
        let sges = pieces.finish()?;
        let (result, refused) = {
            let mut posted = self.posted.lock();
            let Some(place) = posted.places.pop() else { return Ok(()) };
            // Before it may complete.
            posted.buffers[place as usize] = Some(buffer);
            match self.below.post(RecvWr { wr_id: RECEIVE | u64::from(place), sges }) {
                Ok(()) => (Ok(()), None),
                Err(e) => {
                    posted.places.push(place);
                    (Err(e), posted.buffers[place as usize].take())
                }
            }
        };
        drop(refused);
        result
    }

    /// The buffer of a receive that is complete.
    pub(super) fn take(&self, place: u32) -> Option<RegBuf> {
        let mut posted = self.posted.lock();
        let buffer = posted.buffers.get_mut(place as usize)?.take()?;
        posted.places.push(place);
        Some(buffer)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // No queue pair has it any more. In a forked child it is the parent's.
        if !self.pd.stack().is_ours() {
            return;
        }
        match &self.below {
            Below::Ours(nic) => nic.destroy(),
            #[cfg(feature = "system")]
            Below::System(srq) => {
                if !srq.destroy() {
                    // What is posted stays there, and its memory with it.
                    std::mem::forget(std::mem::take(&mut self.posted.lock().buffers));
                }
            }
        }
    }
}

impl Below {
    fn post(&self, wr: RecvWr) -> Result<()> {
        const CALL: &str = "ibv_post_srq_recv";
        match self {
            Self::Ours(nic) => nic.post(wr).map_err(|e| Error::of_errno(CALL, e.errno())),
            #[cfg(feature = "system")]
            Self::System(srq) => srq.post(&wr).map_err(|e| super::carrier::of_refusal(CALL, e)),
        }
    }
}

impl QueueConfig {
    /// Whether what is shared is of the device; `WrongDomain`.
    pub(super) fn check_shared(&self, pd: &Pd) -> Result<()> {
        let is_ours = |device| device == pd.device();
        let fits = self.srq.iter().all(|srq| is_ours(srq.pd().device()))
            && self.cq.iter().all(|cq| is_ours(cq.device()));
        if fits { Ok(()) } else { Err(Error::new(ErrorKind::WrongDomain, "ibv_create_qp")) }
    }
}

impl PartialEq for Srq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Srq({} of {} posted)", self.posted(), self.depth())
    }
}
