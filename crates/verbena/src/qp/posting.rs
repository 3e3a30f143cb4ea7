//! Work requests on their way into the send queue: both locks are held, the program's entries and
//! the queue pair's, so that entries and requests are in one order.

use std::collections::VecDeque;

use locks::MutexGuard;
use transport::op::{Data, SendWr};

use super::carrier::Sender;
use super::inner::{Place, QpInner, Queues};
use crate::error::{Error, ErrorKind, PostError, Result};
use crate::op::kind::Kind;
use crate::op::slot::Ticket;
use crate::op::{Ops, Request, Requests};

impl QpInner {
    /// Posts an operation; where it is refused its value comes back.
    #[inline]
    pub(crate) fn post_one<K: Kind<B>, B: Send + 'static>(
        &self,
        request: &Request,
        value: B,
    ) -> Result<Ticket<B>, (Error, B)> {
        let pieces = match self.pieces::<K, B>(request, &value) {
            Ok(pieces) => pieces,
            Err(error) => return Err((error, value)),
        };
        let mut posting = Posting::begin(self, false);
        let posted = posting.try_put(request, value, |wr_id| request.wr(wr_id, pieces));
        posting.finish();
        posted
    }

    /// Posts a SEND or WRITE on a connection, whose work request was made before, but for its
    /// number, and stays.
    #[inline]
    pub(crate) fn post_ready<B: Send + 'static>(
        &self,
        wr: &mut SendWr,
        value: B,
    ) -> Result<Ticket<B>, (Error, B)> {
        let mut posting = Posting::begin(self, false);
        let posted = posting.try_post(value, |sender, wr_id| {
            wr.wr_id = wr_id;
            sender.post_kept(wr)
        });
        posting.finish();
        posted
    }

    /// Posts several, or none.
    pub(crate) fn post_all<O: Ops>(&self, ops: O) -> Result<O::InFlight, PostError<O>> {
        let mut requests = Requests { qp: self, list: VecDeque::new() };
        if let Err(error) = ops.requests(&mut requests) {
            return Err(PostError::new(error, ops));
        }
        let mut posting = Posting::begin(self, true);
        if let Err(error) = posting.check_room(requests.list.len()) {
            posting.finish();
            return Err(PostError::new(error, ops));
        }
        let in_flight = ops.post(&mut posting, &mut requests);
        posting.finish();
        self.stack().later().run();
        Ok(in_flight)
    }
}

/// Requests being posted. What was posted leaves with [`Posting::finish`].
#[doc(hidden)]
pub struct Posting<'a> {
    qp: &'a QpInner,
    queues: MutexGuard<'a, Queues>,
    sender: Sender<'a>,
    /// Dropped when nothing is locked.
    pub(crate) unlocked: Vec<Place>,
}

impl<'a> Posting<'a> {
    /// Of one request, or of several.
    #[inline]
    pub(crate) fn begin(qp: &'a QpInner, several: bool) -> Self {
        let queues = qp.lock();
        let sender = qp.carrier().sender(qp.stack(), several);
        Posting { qp, queues, sender, unlocked: Vec::new() }
    }

    /// `QueueFull` where there is no room for so many, `Disconnected` where the queue pair is no
    /// more.
    #[inline]
    pub(crate) fn check_room(&self, count: usize) -> Result<()> {
        if self.queues.destroyed {
            return Err(Error::new(ErrorKind::Disconnected, "ibv_post_send"));
        }
        let enough = self.queues.sends.room() >= count;
        if enough { Ok(()) } else { Err(Error::new(ErrorKind::QueueFull, "ibv_post_send")) }
    }

    /// Posts a request, which `wr` makes of its number; where it is refused the value comes back.
    #[inline]
    pub(crate) fn try_put<B: Send + 'static>(
        &mut self,
        request: &Request,
        value: B,
        wr: impl FnOnce(u64) -> SendWr,
    ) -> Result<Ticket<B>, (Error, B)> {
        let qp = self.qp;
        self.try_post(value, |sender, wr_id| {
            let mut wr = wr(wr_id);
            if request.brings_a_word() {
                wr.data = Data::Sges(qp.word(wr_id));
            }
            match request.to() {
                Some(to) => sender.post_datagram(wr, to),
                None => sender.post(wr, request.srq),
            }
        })
    }

    #[allow(unsafe_code, reason = "the ticket is of this queue")]
    #[inline]
    fn try_post<B: Send + 'static>(
        &mut self,
        value: B,
        post: impl FnOnce(&mut Sender<'_>, u64) -> Result<()>,
    ) -> Result<Ticket<B>, (Error, B)> {
        if let Err(error) = self.check_room(1) {
            return Err((error, value));
        }
        let ticket = match self.queues.sends.put(value) {
            Ok(ticket) => ticket,
            Err(value) => return Err((Error::new(ErrorKind::QueueFull, "ibv_post_send"), value)),
        };
        let Err(error) = post(&mut self.sender, ticket.wr_id) else { return Ok(ticket) };
        // SAFETY: the ticket was given just now, by this queue; the request that would bear it was
        // refused.
        match unsafe { self.queues.sends.take_back(&ticket) } {
            Some(value) => Err((error, value)),
            // It has a value: that of just now.
            None => Ok(ticket),
        }
    }

    /// Like [`Posting::try_put`], for one of several: where it is refused the operation has failed.
    pub(crate) fn put<B: Send + 'static>(
        &mut self,
        request: &Request,
        wr: SendWr,
        value: B,
    ) -> Option<Ticket<B>> {
        match self.try_put(request, value, |wr_id| SendWr { wr_id, ..wr }) {
            Ok(ticket) => Some(ticket),
            Err((error, value)) => {
                let ticket = self.queues.sends.put(value).ok()?;
                // No task waits for it yet, and it has an owner: nothing is left over.
                drop(self.queues.sends.complete(ticket.wr_id, Err(error)));
                Some(ticket)
            }
        }
    }

    /// What was posted leaves.
    #[inline]
    pub(crate) fn finish(self) {
        let Posting { qp: _, mut queues, sender, unlocked } = self;
        let not_posted = sender.finish();
        if !not_posted.is_empty() {
            let complete = |(wr_id, error)| queues.sends.complete(wr_id, Err(error));
            let left: Vec<_> = not_posted.into_iter().filter_map(complete).collect();
            drop(queues);
            // No task waits for them yet: nothing is to be woken.
            drop(left);
        } else {
            drop(queues);
        }
        drop(unlocked);
    }
}
