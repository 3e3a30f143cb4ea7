//! A listener as a stream of requests.

use std::task::{Context, Poll, ready};

use super::events::{Inbox, Seen};
use super::waiters::Standing;
use super::{Listener, Request};
use crate::error::Result;
use crate::qp::{Connected, Rc};

/// The requests of a listener, one after the other; see [`Listener::requests`]. Dropping it loses
/// none.
///
/// ```no_run
/// # fn f(listener: verbena::Listener) {
/// let mut requests = listener.requests();
/// // A stream of the futures crate: futures::stream::poll_fn(move |cx| requests.poll_request(cx).map(Some))
/// let next = std::future::poll_fn(move |cx| requests.poll_request(cx));
/// # drop(next); }
/// ```
#[must_use = "nothing is taken before it is polled"]
pub struct Requests<'l, T: Connected = Rc> {
    listener: &'l Listener<T>,
    place: Standing<Inbox, Seen>,
}

impl<T: Connected> Listener<T> {
    /// The listener's requests as a stream; other callers that wait take turns with it.
    pub fn requests(&self) -> Requests<'_, T> {
        Requests { listener: self, place: self.identifier().standing() }
    }
}

impl<T: Connected> Requests<'_, T> {
    /// The next request, where there is one; else the task is woken when there is.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::request`].
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Request<T>>> {
        loop {
            let (identifier, event) = ready!(self.listener.identifier().poll_request(&mut self.place, cx))?;
            // None where its device has gone meanwhile: the peer hears of that otherwise.
            if let Some(request) = Request::new(self.listener.provider(), identifier, event)? {
                return Poll::Ready(Ok(request));
            }
        }
    }
}

impl<T: Connected> std::fmt::Debug for Requests<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Requests({:?})", self.listener)
    }
}
