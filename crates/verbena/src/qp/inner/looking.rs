//! Whoever looks by himself: at messages, with a waker for the next one; or at everything, again and again.

use std::sync::atomic::Ordering;
use std::task::Context;

use super::QpInner;
use super::place::{For, Place};

impl QpInner {
    /// Leaves a waker until a message comes or the connection ends. What was there before does not wake it: look again afterwards.
    pub fn wake_on_message(&self, place: &mut Place, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let mut queues = self.lock();
        let unused = place.leave(self, &mut queues, For::Message, waker);
        drop(queues);
        drop(unused);
    }

    /// Whether there is a message that nobody has taken, or never will be one.
    pub fn has_messages(&self) -> bool {
        let queues = self.lock();
        !queues.ready.is_empty() || queues.ended || queues.failure.is_some()
    }

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
        if self.carrier.look(&self.stack) {
            self.drain();
            self.stack().later().run();
        }
    }

    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }
}
