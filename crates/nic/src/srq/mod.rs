//! Shared receive queues (IBA 1.4 §10.2.9): receives for the messages of many queue pairs.
//!
//! Locks: a queue pair's comes before; what must be told goes to the notes of the thread that took
//! the receive.

pub mod tag_matching;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use locks::{Mutex, MutexGuard, Rank};
use transport::op::RecvWr;

use crate::cq::{Cq, Notification};
use crate::device::async_events::{AsyncEvent, AsyncEventQueue, Element, EventKind, Subject};
use crate::error::{Error, PostError, in_range};
use crate::faults::Object;
use crate::limits;
use crate::memory::pd::Pd;
use crate::qp::xrc::domain::Xrcd;
use crate::srq::tag_matching::TagMatching;

/// Sizes and limit of a shared receive queue (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives it holds at most, 1 to [`limits::MAX_SRQ_WR`].
    pub max_wr: u32,
    /// Elements of a receive, 1 to [`limits::MAX_SGE`]; 0 stands for 1.
    pub max_sge: u32,
    /// Once fewer receives than this are left, an event is raised, and the limit is 0 again; 0: no
    /// event.
    pub limit: u32,
}

/// A shared receive queue. It keeps its protection domain, and one for XRC its XRC domain and
/// completion queue; queue pairs keep it. Its domain lists it without keeping it, until
/// [`Srq::destroy`].
#[derive(Debug)]
pub struct Srq {
    me: Weak<Self>,
    number: u32,
    pd: Arc<Pd>,
    /// Of one for XRC: its domain, and where its receives complete.
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    /// Of one that matches tags.
    pub(crate) tags: Option<TagMatching>,
    max_sge: u32,
    inner: Mutex<Inner>,
    events: Arc<AsyncEventQueue>,
    /// The owner's mark, such as the address of its C structure.
    pub cookie: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    receives: VecDeque<RecvWr>,
    max_wr: u32,
    limit: u32,
}

impl Subject for Srq {
    fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }
}

impl Srq {
    /// An empty queue; its receives name memory of `pd`, whatever the domains of the queue pairs.
    /// `attr.limit` means nothing yet.
    pub fn create(pd: &Arc<Pd>, attr: SrqAttr, events: Arc<AsyncEventQueue>) -> Result<Arc<Self>, Error> {
        Self::make(pd, attr, events, None, None)
    }

    /// A shared receive queue for XRC. Requests to targets of `xrcd` name it by its number, and
    /// find memory of `pd`. Its receives complete in `cq`.
    pub fn create_xrc(
        pd: &Arc<Pd>,
        attr: SrqAttr,
        events: Arc<AsyncEventQueue>,
        xrcd: Arc<Xrcd>,
        cq: Arc<Cq>,
    ) -> Result<Arc<Self>, Error> {
        if !Arc::ptr_eq(&pd.device, xrcd.device()) {
            return Err(Error::Invalid("the XRC domain is of another device"));
        }
        Self::make(pd, attr, events, Some((xrcd, cq)), None)
    }

    /// A shared receive queue for tag matching with up to `max_tags` tags, 1 to
    /// [`limits::MAX_TAGS`]. Its receives, ordinary and tagged, complete in `cq`. Queue pairs that
    /// use it must be RC and of `pd`, and their send queues are its.
    pub fn create_tm(
        pd: &Arc<Pd>,
        attr: SrqAttr,
        events: Arc<AsyncEventQueue>,
        max_tags: u32,
        cq: Arc<Cq>,
    ) -> Result<Arc<Self>, Error> {
        Self::make(pd, attr, events, None, Some(TagMatching::new(max_tags, cq)?))
    }

    fn make(
        pd: &Arc<Pd>,
        attr: SrqAttr,
        events: Arc<AsyncEventQueue>,
        xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
        tags: Option<TagMatching>,
    ) -> Result<Arc<Self>, Error> {
        in_range("max_wr", attr.max_wr, 1_u32, limits::MAX_SRQ_WR)?;
        in_range("max_sge", attr.max_sge, 0_u32, limits::MAX_SGE)?;
        pd.device.allow(Object::Srq)?;
        let number = pd.device.srq_numbers.take(|| pd.device.random())?;
        let srq = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            number,
            pd: pd.clone(),
            xrc,
            tags,
            max_sge: attr.max_sge.max(1),
            inner: Mutex::new(Rank::Srq, Inner { receives: VecDeque::new(), max_wr: attr.max_wr, limit: 0 }),
            events,
            cookie: AtomicU64::new(0),
        });
        if let Some((xrcd, _)) = &srq.xrc {
            xrcd.insert_srq(&srq);
        }
        pd.device.listed.add(&srq);
        Ok(srq)
    }

    /// The shared receive queue's number, 24 bits, by which XRC messages name it.
    pub fn number(&self) -> u32 {
        self.number
    }
    /// The shared receive queue's protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// The number of the protection domain.
    pub fn pdn(&self) -> u32 {
        self.pd.id
    }
    /// Whether requests to XRC targets name it.
    pub fn is_for_xrc(&self) -> bool {
        self.xrc.is_some()
    }
    /// The shared receive queue's XRC domain and completion queue, where it is for XRC.
    pub(crate) fn xrc(&self) -> Option<&(Arc<Xrcd>, Arc<Cq>)> {
        self.xrc.as_ref()
    }
    /// Where its receives complete, where that is not at the queue pairs: it is for XRC, or matches
    /// tags.
    pub fn own_cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|(_, cq)| cq).or(self.tags.as_ref().map(|tags| tags.cq()))
    }
    /// Receives that are posted.
    pub fn posted(&self) -> usize {
        self.lock().receives.len()
    }
    /// Sizes and limit as they are.
    pub fn query(&self) -> SrqAttr {
        let inner = self.lock();
        SrqAttr { max_wr: inner.max_wr, max_sge: self.max_sge, limit: inner.limit }
    }

    /// Changes the size, the limit or both. The size stays at or above what is posted; a limit that
    /// is reached already raises its event now.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        let mut inner = self.lock();
        let size = max_wr.unwrap_or(inner.max_wr);
        let posted = inner.receives.len().max(1) as u64;
        in_range("max_wr", size, posted, limits::MAX_SRQ_WR)?;
        in_range("srq_limit", limit.unwrap_or(inner.limit), 0_u32, size)?;
        inner.max_wr = size;
        if let Some(limit) = limit {
            inner.limit = limit;
        }
        let note = self.limit_reached(&mut inner);
        drop(inner);
        note.into_iter().for_each(Notification::send);
        Ok(())
    }

    /// Posts a receive.
    pub fn post(&self, wr: RecvWr) -> Result<(), PostError> {
        PostError::check_elements(wr.sges.as_slice().len(), self.max_sge)?;
        let mut inner = self.lock();
        if inner.receives.len() >= inner.max_wr as usize || inner.receives.try_reserve(1).is_err() {
            return Err(PostError::Full);
        }
        inner.receives.push_back(wr);
        Ok(())
    }

    /// Takes the oldest receive; what must be told afterwards is added to `notifications`.
    pub(crate) fn take(&self, notifications: &mut Vec<Notification>) -> Option<RecvWr> {
        let mut inner = self.lock();
        let wr = inner.receives.pop_front()?;
        notifications.extend(self.limit_reached(&mut inner));
        Some(wr)
    }

    /// Takes the queue off its device and its domain, and forgets its events. Call it once, when no
    /// queue pair uses the queue.
    pub fn destroy(self: &Arc<Self>) {
        if let Some((xrcd, _)) = &self.xrc {
            xrcd.remove_srq(self.number);
        }
        self.pd.device.srq_numbers.give(self.number);
        self.events.forget(self);
    }

    fn limit_reached(&self, inner: &mut Inner) -> Option<Notification> {
        if inner.receives.len() >= inner.limit as usize {
            return None;
        }
        inner.limit = 0;
        let event = AsyncEvent { kind: EventKind::SrqLimit, element: Element::Srq(self.me.upgrade()?) };
        Some(Notification::Async(self.events.clone(), event))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}
