//! A place among those who wait for something of a queue pair. A future keeps it, and gives it up where it is dropped: neither its waker nor
//! the task behind that stays here until something happens.

use std::sync::Arc;
use std::task::Waker;

use super::{QpInner, Queues};
use crate::cm::waiters::Waiters;

/// What somebody waits for.
#[derive(Clone, Copy)]
pub(super) enum For {
    /// Room in the send queue.
    Room,
    /// No send is under way.
    Idle,
    /// A message, or the end.
    Message,
}

/// See the module. It is dropped with no lock held.
#[derive(Default)]
pub(crate) struct Place {
    /// Among whom, from the first wait on.
    among: Option<(Arc<QpInner>, For)>,
    key: Option<u64>,
}

impl Place {
    /// Leaves a waker; the one that was there, for the caller to drop unlocked.
    pub(super) fn leave(
        &mut self,
        qp: &QpInner,
        queues: &mut Queues,
        what: For,
        waker: Waker,
    ) -> Option<Waker> {
        if self.among.is_none() {
            self.among = qp.me.upgrade().map(|qp| (qp, what));
        }
        queues.waiters(what).leave(&mut self.key, waker)
    }
}

impl Drop for Place {
    #[inline]
    fn drop(&mut self) {
        let (Some((qp, what)), Some(key)) = (self.among.take(), self.key) else { return };
        // In a forked child the lock may be held by a thread that is not there.
        if qp.stack().is_ours() {
            let waker = qp.lock().waiters(what).remove(key);
            drop(waker);
        }
    }
}

impl Queues {
    fn waiters(&mut self, what: For) -> &mut Waiters {
        match what {
            For::Room => &mut self.room,
            For::Idle => &mut self.idle,
            For::Message => &mut self.receivers,
        }
    }
}
