//! A place among the tasks that wait for something of a queue pair. A future keeps it, and gives it
//! up where it is dropped: neither its waker nor the task of that waker stays here until something
//! happens.

use std::sync::Arc;
use std::task::Waker;

use nic::program::Kept;

use super::{QpInner, Queues};
use crate::cm::waiters::Waiters;

/// What a task waits for.
#[derive(Clone, Copy)]
pub(super) enum For {
    /// Room in the send queue.
    Room,
    /// No send is under way.
    Idle,
    /// A message, or the end.
    Message,
}

/// A place among the tasks that wait; see the module. It is dropped with no lock held.
#[derive(Default)]
pub(crate) struct Place {
    /// From the first wait on. Most operations never wait: a place is moved with them, so it is
    /// small.
    taken: Option<Box<Taken>>,
}

struct Taken {
    among: Arc<QpInner>,
    what: For,
    key: Option<u64>,
}

impl Place {
    /// Leaves a waker; the one that was there, for the caller to drop unlocked.
    pub(super) fn leave(
        &mut self,
        qp: &QpInner,
        queues: &mut Queues,
        what: For,
        waker: Kept<Waker>,
    ) -> Option<Kept<Waker>> {
        if self.taken.is_none() {
            self.taken = qp.me.upgrade().map(|among| Box::new(Taken { among, what, key: None }));
        }
        match &mut self.taken {
            Some(taken) => queues.waiters(what).leave(&mut taken.key, waker),
            // No handle of the queue pair is left, and so no task waits.
            None => Some(waker),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        // In a forked child the lock may be held by a thread that is not there.
        if self.among.stack().is_ours() {
            let waker = self.among.lock().waiters(self.what).remove(key);
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
