//! FLUSH to persistence (IBA annex A19). Waiting for the storage is nothing to do under a lock, nor
//! in a thread that receives. The engine remembers the FLUSH, the environment runs it where waiting
//! harms no thread ([`Platform::persist`](crate::Platform::persist)), and the engine is told.

use std::sync::Arc;
use std::time::Instant;

use transport::rc::FlushTask;

use crate::cq::Notification;
use crate::link::Persist;
use crate::qp::engine::Engine;
use crate::qp::{Inner, Qp};

/// One FLUSH of a queue pair, begun and not yet answered.
struct PendingFlush {
    qp: Arc<Qp>,
    task: FlushTask,
    /// Protection domain that the key is of.
    pd: u32,
    /// What the queue pair lets its peer do.
    access: u32,
    /// Which FLUSH of the queue pair it is.
    serial: u32,
}

impl PendingFlush {
    fn run(self, now: &mut dyn FnMut() -> Instant) {
        let Self { qp, task, pd, access, serial } = self;
        let view = qp.pd().device.memory.view(pd, access).on(qp.qpn());
        let done = view.persist(task.range, task.how);
        let mut inner = qp.lock();
        // The queue pair may have been reset meanwhile.
        if inner.flushes != serial {
            return;
        }
        let (Engine::Rc(rc), mut context) = inner.split(&qp) else { return };
        rc.flushed(done, &mut context);
        qp.finish_step(inner, now());
    }
}

impl Inner {
    /// What the engine wants to be done is told with what else there is to tell, when the queue
    /// pair is unlocked.
    #[inline]
    pub(crate) fn begin_flush(&mut self, qp: &Qp) {
        let Some(task) = self.engine.take_flush() else { return };
        let Some(me) = qp.me.upgrade() else { return };
        self.flushes = self.flushes.wrapping_add(1);
        let serial = self.flushes;
        let (_, mut context) = self.split(qp);
        if let Some(srq) = task.srq {
            // Where the queue is gone its memory is not found either.
            _ = context.choose(srq);
        }
        let (pd, access) = (context.view().pd(), context.access);
        let flush = PendingFlush { qp: me, task, pd, access, serial };
        let work = Persist::new(move |now| flush.run(now));
        self.engine_state.notifications.push(Notification::Persist(qp.pd().device.platform.clone(), work));
    }
}
