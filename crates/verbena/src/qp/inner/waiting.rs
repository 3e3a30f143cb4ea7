//! Tasks that wait: a future looks and leaves its waker under one lock, under which completions are
//! taken, so no wake-up is lost.

use std::task::{Context, Poll, Waker};

use locks::MutexGuard;
use nic::program::{Kept, wake_all};

use super::place::{For, Place};
use super::{Ended, Message, QpInner, Queues};
use crate::error::Result;
use crate::op::slot::Ticket;

impl QpInner {
    /// Leaves the waker until there is room in the send queue; false where there is some.
    pub(crate) fn wait_for_room(&self, place: &mut Place, cx: &mut Context<'_>) -> bool {
        let waker = Kept::of(cx);
        let queues = self.lock();
        let full = queues.sends.room() == 0 && !queues.destroyed;
        if full {
            self.leave(queues, place, For::Room, waker);
        }
        full
    }

    #[allow(unsafe_code, reason = "tickets are of this queue")]
    /// The result of a request, and the value that went with it, where it is complete.
    #[inline]
    pub(crate) fn take_result<B>(&self, ticket: &Ticket<B>) -> Option<(Ended, B)> {
        let mut queues = self.lock();
        // SAFETY: an `InFlight` holds its ticket with the queue pair that gave it, and gives the
        // ticket up with its result.
        let taken = unsafe { queues.sends.take(ticket) }?;
        if !queues.room.is_empty() {
            let waiting = queues.room.take();
            drop(queues);
            wake_all(waiting);
        }
        Some(taken)
    }

    /// Like [`QpInner::take_result`], also of completions that woke no task; the waker is left
    /// where it is not complete, and there is one.
    #[inline]
    pub(crate) fn poll_ticket<B>(
        &self,
        ticket: &Ticket<B>,
        cx: Option<&mut Context<'_>>,
    ) -> Poll<(Ended, B)> {
        if let Some(taken) = self.take_result(ticket) {
            return Poll::Ready(taken);
        }
        if self.catch_up()
            && let Some(taken) = self.take_result(ticket)
        {
            return Poll::Ready(taken);
        }
        if let Some(cx) = cx {
            // Cloned and dropped with no lock held: it may be the program's code.
            let waker = Kept::of(cx);
            let mut queues = self.lock();
            let left = queues.sends.leave(ticket, waker);
            self.unlock_loud(queues);
            // It has become complete since that look.
            if left.is_err()
                && let Some(taken) = self.take_result(ticket)
            {
                return Poll::Ready(taken);
            }
        }
        self.is_waited_for();
        Poll::Pending
    }

    /// Waits until no send is under way.
    pub(crate) async fn idle(&self) {
        let mut place = Place::default();
        std::future::poll_fn(|cx| {
            let waker = Kept::of(cx);
            let queues = self.lock();
            if !queues.sends.any_flying() {
                drop(queues);
                return Poll::Ready(());
            }
            self.leave(queues, &mut place, For::Idle, waker);
            Poll::Pending
        })
        .await;
    }

    /// The next message; where there is none the waker is left at the place, where one is given.
    pub(crate) fn poll_recv(
        &self,
        waits: Option<(&mut Place, &mut Context<'_>)>,
    ) -> Poll<Result<Option<Message>>> {
        let waits = waits.map(|(place, cx)| (place, Kept::of(cx)));
        let mut queues = self.lock();
        queues.looks();
        if queues.ready.is_empty() && self.carrier.has_completions() {
            drop(queues);
            self.catch_up();
            queues = self.lock();
        }
        if let Some(message) = queues.ready.pop_front() {
            return Poll::Ready(Ok(Some(message)));
        }
        if let Some(failure) = queues.failure.clone()
            && !std::mem::replace(&mut queues.failure_told, true)
        {
            return Poll::Ready(Err(failure));
        }
        if queues.ended || queues.failure_told {
            return Poll::Ready(Ok(None));
        }
        if let Some((place, waker)) = waits {
            self.leave(queues, place, For::Message, waker);
        }
        self.is_waited_for();
        Poll::Pending
    }

    /// Leaves a waker until a message comes or the connection ends. What was there before does not
    /// wake it: look again afterwards.
    pub(crate) fn wake_on_message(&self, place: &mut Place, cx: &Context<'_>) {
        let waker = Kept::of(cx);
        self.leave(self.lock(), place, For::Message, waker);
    }

    /// The thread that waits for it polls it itself, where the stack below does not poll all at
    /// once.
    fn is_waited_for(&self) {
        #[cfg(feature = "system")]
        if matches!(self.carrier, crate::qp::carrier::Carrier::System(_)) {
            crate::qp::waited::note(&self.me);
        }
    }

    /// Leaves a waker, and gives the lock back.
    fn leave(&self, mut queues: MutexGuard<'_, Queues>, place: &mut Place, what: For, waker: Kept<Waker>) {
        let before = place.leave(self, &mut queues, what, waker);
        self.unlock_loud(queues);
        drop(before);
    }
}
