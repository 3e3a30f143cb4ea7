//! Whoever looks by himself: at everything, again and again.

use std::sync::atomic::Ordering;

use super::QpInner;

impl QpInner {
    /// From now on completions are taken when somebody polls ([`QpInner::poll_now`]).
    pub fn only_polled(&self) {
        self.polled.store(true, Ordering::Release);
    }

    /// Whether its completions come to a queue of others, too.
    pub fn shares_completions(&self) -> bool {
        self.cq.is_some()
    }

    /// Takes what has arrived, in this thread, then all completions.
    #[inline]
    pub fn poll_now(&self) {
        if self.carrier.look(&self.pd) {
            self.drain();
            self.stack().later().run();
        }
    }

    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }
}
