//! Queue pairs over a tag-matching queue: what is asked of them, and the READ and FIN of a
//! rendezvous on their send queues.

use std::sync::Arc;

use crate::error::Error;
use crate::memory::pd::Pd;
use crate::qp::attr::QpType;
use crate::qp::{Inner, Qp, QpInit};
use crate::srq::Srq;
use crate::srq::tag_matching::TagMatching;

impl Inner {
    /// What a rendezvous that was matched wants goes on the send queue.
    #[inline]
    pub(crate) fn begin_rendezvous(&mut self, qp: &Qp) {
        if self.engine_state.fetch.is_some() {
            self.post_rendezvous(qp);
        }
    }

    #[cold]
    fn post_rendezvous(&mut self, qp: &Qp) {
        let Some(rendezvous) = self.engine_state.fetch.take() else { return };
        if self.engine.failed().is_some() {
            return;
        }
        let (engine, mut context) = self.split(qp);
        for mut wr in rendezvous.requests() {
            engine.post(&mut wr, None, 0, &mut context);
        }
    }
}

impl QpInit {
    /// Whether it takes its receives from a tag-matching queue.
    #[inline]
    pub(crate) fn tags(&self) -> Option<(&Srq, &TagMatching)> {
        let srq = self.srq.as_deref()?;
        Some((srq, srq.tags.as_ref()?))
    }

    /// What a tag-matching queue wants of its queue pairs: it reads into its own domain's memory on
    /// their send queues.
    pub(crate) fn check_tags(&self, pd: &Arc<Pd>) -> Result<(), Error> {
        match self.tags() {
            Some(_) if self.kind != QpType::Rc => {
                Err(Error::name("only RC messages are matched by tags", self.kind.name()))
            }
            Some((srq, _)) if !Arc::ptr_eq(srq.pd(), pd) => {
                Err(Error::Invalid("the tag-matching queue is of another protection domain"))
            }
            _ => Ok(()),
        }
    }
}
