//! A completion queue that many queue pairs share ([`Cq`]): one event for whatever has come to any
//! of them. The thread that brings a completion drains it, and hands each to the queue pair whose
//! number it bears.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrayvec::ArrayVec;
use locks::{Mutex, Rank};
use nic::Work;

use super::QueueConfig;
use super::afterwards::Afterwards;
use super::completions::{Completions, EventSignal};
use super::inner::{BATCH, QpInner};
use super::message::Message;
use super::srq::SrqInner;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Device;

/// A completion queue for all queue pairs that have it in their [`QueueConfig`]. It grows with
/// them, so that it can not be overrun. Nothing else changes for them: results and messages go to
/// the queue pairs they are for. A handle, clones are the same one; it lives as long as its last
/// queue pair.
#[derive(Clone)]
pub struct Cq(Arc<CqInner>);

/// See [`Cq`].
pub(crate) struct CqInner {
    device: Device,
    completions: Completions,
    users: Mutex<Users>,
}

/// The queue pairs that share a queue.
#[derive(Default)]
struct Users {
    /// Completions that all of them may have there at once.
    reserved: u32,
    /// Shared receive queues, by where they are, each with its users here: its receives complete
    /// once, whichever user takes them.
    srqs: BTreeMap<usize, usize>,
    /// Queue pairs, with their shared receive queues.
    by_number: BTreeMap<u32, (Weak<QpInner>, Option<Arc<SrqInner>>)>,
}

/// Room for one queue pair, given back when it is dropped or left.
pub(super) struct Membership {
    cq: Arc<CqInner>,
    own: u32,
    /// Where its shared receive queue is, and how many receives that has.
    srq: Option<(usize, u32)>,
    number: OnceLock<u32>,
    has_left: AtomicBool,
}

impl Cq {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// `Exhausted` where the device has no more; `Forked`.
    pub fn new(device: &Device) -> Result<Self> {
        const CALL: &str = "ibv_create_cq";
        device.stack().check(CALL)?;
        let signal = EventSignal::new(device.stack().later());
        let completions = Completions::new(device, 1, &signal).map_err(|e| Error::of_nic(CALL, e))?;
        let users = Mutex::new(Rank::SharedCompletions, Users::default());
        let inner = Arc::new(CqInner { device: device.clone(), completions, users });
        let me: Weak<CqInner> = Arc::downgrade(&inner);
        signal.is_for(me);
        inner.completions.attend(|| {});
        Ok(Self(inner))
    }
    /// The queue's device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
    /// Queue pairs that share it.
    pub fn users(&self) -> usize {
        self.0.users.lock().by_number.len()
    }
    pub(super) fn inner(&self) -> &Arc<CqInner> {
        &self.0
    }
}

impl CqInner {
    pub(super) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Room for all that a queue pair may have there at once. `OutOfRange` where the queue would be
    /// longer than the device's may be.
    pub(super) fn reserve(self: &Arc<Self>, config: &QueueConfig) -> Result<Membership> {
        let at = |srq: &super::Srq| (Arc::as_ptr(srq.inner()).addr(), srq.depth());
        let srq = config.srq.as_ref().map(at);
        let own = config.send_depth + if srq.is_some() { 0 } else { config.recv_depth };
        let mut users = self.users.lock();
        let more = match srq {
            Some((at, depth)) if !users.srqs.contains_key(&at) => own + depth,
            _ => own,
        };
        let reserved = users.reserved.checked_add(more);
        let reserved = reserved.ok_or_else(|| Error::new(ErrorKind::Exhausted, "ibv_resize_cq"))?;
        self.completions.grow(reserved).map_err(|e| Error::of_nic("ibv_resize_cq", e))?;
        users.reserved = reserved;
        if let Some((at, _)) = srq {
            *users.srqs.entry(at).or_default() += 1;
        }
        let (number, has_left) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Membership { cq: self.clone(), own, srq, number, has_left })
    }

    /// Takes all completions that there are to the queue pairs they are for. One thread at a time,
    /// so that those of a queue pair keep their order.
    pub(super) fn drain(&self) {
        let mut afterwards = Afterwards::default();
        // The last handle of one may be ours by now: it goes when the lock is given back.
        let (mut kept, mut failed) = (Vec::new(), Vec::new());
        {
            let users = self.users.lock();
            let mut batch = ArrayVec::<transport::op::Completion, BATCH>::new();
            // It can not be overrun: it has room for all that may be under way.
            while self.completions.poll(BATCH, |completion| batch.push(completion)) > 0 {
                for completion in batch.drain(..) {
                    let Some((qp, srq)) = users.by_number.get(&completion.qpn.get()) else { continue };
                    let Some(qp) = qp.upgrade() else {
                        // Its last handle is being dropped: others need the receive.
                        afterwards
                            .unused
                            .extend(srq.as_ref().and_then(|srq| Message::unseen(srq, &completion)));
                        continue;
                    };
                    if qp.take_one(&completion, &mut afterwards) {
                        failed.push(qp.clone());
                    }
                    let is_last = |last: &Arc<QpInner>| Arc::ptr_eq(last, &qp);
                    if !kept.last().is_some_and(is_last) {
                        kept.push(qp);
                    }
                }
            }
        }
        failed.iter().for_each(|qp| qp.tell_owner());
        afterwards.run();
    }
}

impl Work for CqInner {
    fn run(self: Arc<Self>) {
        self.completions.attend(|| self.drain());
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // In a forked child a lock may be held by a thread that is not there.
        if self.device.stack().is_ours() {
            self.completions.end();
        }
    }
}

impl Membership {
    pub(super) fn cq(&self) -> &CqInner {
        &self.cq
    }
    /// From now on its completions are taken to it.
    pub(super) fn join(&self, qp: &Arc<QpInner>) {
        let number = *self.number.get_or_init(|| qp.carrier().qpn().get());
        let user = (Arc::downgrade(qp), qp.srq().cloned());
        self.cq.users.lock().by_number.insert(number, user);
    }
    /// Removes a queue pair that is no more from the queue. Once.
    pub(super) fn leave(&self) {
        if !self.cq.device.stack().is_ours() || self.has_left.swap(true, Ordering::AcqRel) {
            return;
        }
        // Dropped when the lock has been given back.
        let _gone;
        let mut users = self.cq.users.lock();
        _gone = self.number.get().and_then(|number| users.by_number.remove(number));
        users.reserved -= self.own;
        if let Some((at, depth)) = self.srq
            && let Some(count) = users.srqs.get_mut(&at)
        {
            *count -= 1;
            if *count == 0 {
                users.srqs.remove(&at);
                users.reserved -= depth;
            }
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

impl PartialEq for Cq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cq({} of {})", self.users(), self.device().name())
    }
}
