//! Extended reliable connections (IBA annex A14): targets, and what they take from their domains
//! ([`domain`]).
//!
//! A target has neither protection domain nor completion queue of its own. Each request names a
//! shared receive queue of the target's domain: the memory is that of the queue's protection
//! domain, and completions go to the queue's CQ. That it has taken its last receive is no event of
//! it: that is told of queue pairs with a shared receive queue of their own.

pub mod domain;

use std::sync::Arc;

use transport::op::Fault;

use crate::cq::Cq;
use crate::device::Device;
use crate::device::async_events::AsyncEventQueue;
use crate::error::Error;
use crate::qp::attr::QpType;
use crate::qp::engine_context::EngineContext;
use crate::qp::xrc::domain::Xrcd;
use crate::qp::{Qp, QpCap, QpInit};

impl Qp {
    /// Makes an XRC target in state Reset.
    pub fn create_target(
        device: &Arc<Device>,
        xrcd: &Arc<Xrcd>,
        events: Arc<AsyncEventQueue>,
    ) -> Result<Arc<Self>, Error> {
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
        Self::make(device, &xrcd.pd, init, Some(xrcd.clone()))
    }
}

impl EngineContext<'_> {
    /// See [`transport::op::Context::choose_srq`].
    pub(crate) fn choose(&mut self, number: u32) -> Result<(), Fault> {
        if self.chosen.as_ref().is_some_and(|s| s.number() == number) {
            return Ok(());
        }
        self.chosen = None;
        let domain = self.qp.xrcd.as_ref().ok_or(Fault::Key)?;
        self.chosen = Some(domain.srq(number).ok_or(Fault::Key)?);
        Ok(())
    }
}
