//! Threads that look by themselves, again and again: one that has the connection to itself
//! ([`QpInner::only_polled`]), or one that waits for something of the queue pair and polls for a
//! while before it sleeps. And when completions are told: the signal rings for each while a task
//! has left a waker, or a request has no owner that would look. Else it rings for errors only, and
//! a thread that looks takes what has come.

use std::sync::atomic::Ordering;

use locks::MutexGuard;
use nic::Arm;

use super::{QpInner, Queues};

impl QpInner {
    /// From now on completions are taken when a thread polls ([`QpInner::poll_now`]).
    pub(crate) fn only_polled(&self) {
        self.polled.store(true, Ordering::Release);
    }

    /// Whether its completions come to a queue of others, too.
    pub(crate) fn shares_completions(&self) -> bool {
        self.cq.is_some()
    }

    /// Takes what has arrived, in this thread, then all completions.
    #[inline]
    pub(crate) fn poll_now(&self) {
        if self.carrier.look(&self.stack) {
            self.drain();
            self.stack().later().run();
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Changes whenever something was taken that a look may find, or the connection has ended.
    #[inline]
    pub(crate) fn news(&self) -> u32 {
        self.news.load(Ordering::Acquire)
    }

    /// Tells threads that poll to look; with the queues locked, after the change that they are to
    /// find.
    #[inline]
    pub(super) fn tell_pollers(&self) {
        self.news.store(self.news.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Whether a thread that waits gains by polling it: not where its completions come to a queue
    /// of others, or to another stack's, and not on a simulated host.
    pub(crate) fn gains_by_polling(&self) -> bool {
        !self.shares_completions() && self.stack().gains_by_polling()
    }

    /// Takes what has come without waking a task; whether there was something.
    #[inline]
    pub(super) fn catch_up(&self) -> bool {
        let is_behind = self.carrier.has_completions();
        if is_behind {
            self.drain();
            self.stack().later().run();
        }
        is_behind
    }

    /// Unlocks after a task has left a waker: completions ring the signal from now on.
    #[inline]
    pub(super) fn unlock_loud(&self, mut queues: MutexGuard<'_, Queues>) {
        let was_quiet = std::mem::replace(&mut queues.quiet, false);
        if was_quiet {
            self.carrier.ring_for(Arm::Next);
        }
        drop(queues);
        if was_quiet {
            self.catch_up();
        }
    }

    /// The signal has fired: it rings again for what is next, or for the next error where no task
    /// waits.
    pub(super) fn ring_again(&self) {
        let mut queues = self.lock();
        queues.quiet = !queues.is_waited_for();
        self.carrier.ring_for(if queues.quiet { Arm::Solicited } else { Arm::Next });
    }
}

impl Queues {
    /// Whether a completion is to be taken at once.
    fn is_waited_for(&self) -> bool {
        let Self { sends, room, idle, receivers, .. } = self;
        sends.is_waited_for() || ![room, idle, receivers].into_iter().all(|waiters| waiters.is_empty())
    }
}
