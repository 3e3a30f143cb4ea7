//! Extended reliable connections (IBA annex A14): domains, and what their targets take from them.
//!
//! A target has neither protection domain nor completion queue of its own. Each request names a shared receive queue of the
//! target's domain: the memory is that of the queue's protection domain, and completions go to the queue's CQ.
//! That it has taken its last receive is no event of it: that is told of queue pairs with a shared receive queue of their own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use transport::op::Fault;

use crate::device::async_events::AsyncEventQueue;
use crate::qp::engine_context::EngineContext;
use crate::{Cq, Device, Error, Pd, Qp, QpCap, QpInit, QpType, Srq};

/// What names a domain that several open: device and number of a file's inode.
pub type Inode = (u64, u64);

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// Of a domain in which nothing is registered: what its targets see before a request chose a queue.
    pub(crate) pd: Arc<Pd>,
}

/// The domains of a device that have names.
#[derive(Debug, Default)]
pub(crate) struct Named(Mutex<BTreeMap<Inode, Weak<Xrcd>>>);

impl Device {
    /// Opens the domain of an inode, or a new one that nobody else can open. `create`: it need not exist; `exclusive`: it must
    /// not.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] for one that is not there and not to be created, [`Error::Invalid`] for one that is there and must
    /// not be, or neither named nor to be created; [`Error::Limit`].
    pub fn open_xrcd(
        self: &Arc<Self>,
        inode: Option<Inode>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>, Error> {
        let make = || Ok(Arc::new(Xrcd { pd: Arc::new(self.alloc_pd()?) }));
        let Some(inode) = inode else {
            return if create { make() } else { Err(Error::Invalid("a domain without a file is created")) };
        };
        let mut named = self.xrcds.0.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|_, x| x.strong_count() > 0);
        match named.get(&inode).and_then(Weak::upgrade) {
            Some(_) if create && exclusive => Err(Error::Invalid("the file has an XRC domain")),
            Some(found) => Ok(found),
            None if create => {
                let made = make()?;
                named.insert(inode, Arc::downgrade(&made));
                Ok(made)
            }
            None => Err(Error::Missing("the file has no XRC domain")),
        }
    }
}

impl Xrcd {
    /// The device it is of.
    pub fn device(&self) -> &Arc<Device> {
        &self.pd.device
    }
}

impl Qp {
    /// Makes an XRC target in state Reset.
    pub fn create_target(xrcd: &Arc<Xrcd>, events: Arc<AsyncEventQueue>) -> Result<Arc<Qp>, Error> {
        // Nothing completes here: see the module.
        let cq = Cq::new(1, None, events.clone())?;
        let init = QpInit {
            kind: QpType::XrcRecv,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: false,
            events,
        };
        Qp::make(&xrcd.pd, init, Some(xrcd.clone()))
    }
}

impl EngineContext<'_> {
    /// See [`transport::op::Context::choose_srq`].
    pub(crate) fn choose(&mut self, number: u32) -> Result<(), Fault> {
        if self.chosen.as_ref().is_some_and(|s| s.number() == number) {
            return Ok(());
        }
        self.chosen = None;
        let qp = self.qp;
        let domain = qp.xrcd.as_ref().ok_or(Fault::Key)?;
        let srq = domain.device().srq(number).filter(|srq| srq.is_in(domain)).ok_or(Fault::Key)?;
        let memory = &qp.pd().device.memory;
        self.view = memory.view(srq.pd().id, self.access).on(qp.qpn());
        self.srq_view = Some(memory.view(srq.pd().id, 0));
        self.chosen = Some(srq);
        Ok(())
    }
}

impl Srq {
    /// Whether requests to the targets of a domain may name it.
    fn is_in(&self, domain: &Arc<Xrcd>) -> bool {
        self.xrc().is_some_and(|(mine, _)| Arc::ptr_eq(mine, domain))
    }
}
