//! Completion events held back (ibv_modify_cq(3)), and the list of the queues that hold one, which
//! is looked through when the time has come.

use std::sync::{Arc, Weak};
use std::time::Instant;

use locks::{Mutex, Rank};

use crate::cq::Cq;
use crate::link::Platform;

/// How events are held back: until so many completions came, or so long after the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions; 0 and 1 hold nothing back.
    pub count: u16,
    /// Microseconds; 0 holds nothing back.
    pub period_us: u16,
}

/// The completion queues of a device that hold an event back, and until when.
pub struct Moderated {
    queues: Mutex<Vec<(Instant, Weak<Cq>)>>,
    platform: Arc<dyn Platform>,
}

impl std::fmt::Debug for Moderated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Moderated")
    }
}

impl Moderated {
    /// None yet.
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Self {
        Self { queues: Mutex::new(Rank::ModeratedCqs, Vec::new()), platform }
    }

    /// A completion queue holds an event back until then.
    pub(crate) fn add(&self, at: Instant, cq: &Arc<Cq>) {
        self.queues.lock().push((at, Arc::downgrade(cq)));
        self.platform.wake_at(at);
    }

    /// When [`Moderated::expire`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let queues = self.queues.lock();
        queues.iter().map(|(at, _)| *at).min()
    }

    /// Sends the events that were held back long enough.
    pub(crate) fn expire(&self, now: Instant) {
        let mut queues = self.queues.lock();
        if queues.is_empty() {
            return;
        }
        let (due, later) = queues.drain(..).partition::<Vec<_>, _>(|(at, _)| *at <= now);
        *queues = later;
        drop(queues);
        due.iter().filter_map(|(_, cq)| cq.upgrade()).for_each(|cq| cq.period_over());
    }
}
