//! Operations: a value that is a future, or waits, or is posted.
//!
//! | how | posts | with a full send queue | returns |
//! |---|---|---|---|
//! | `op.await` | when first polled | waits for room | what the kind says, e.g. `(Result<Completion>, B)` |
//! | `op.wait()` | now | waits for room | the same, blocking this thread; no runtime |
//! | `op.post()` | now | `QueueFull`, and the operation back | [`InFlight`] |
//! | `qp.post_all((op, op))` | now, all or none, one doorbell | `QueueFull`, and they back | a tuple of [`InFlight`] |
//!
//! From posting on the value lies in the queue pair (in a preallocated entry of the send queue:
//! values up to 40 bytes without an allocation), and wr_id is that entry and its generation. A
//! future that is dropped before it was posted drops the value; afterwards the entry keeps it until
//! the completion, or until the queue pair is destroyed, whatever the program forgets.
//!
//! | file | what |
//! |---|---|
//! | this one | [`Op`] |
//! | `in_flight` | [`InFlight`] |
//! | [`kind`] | what each kind of operation takes and gives |
//! | `request` | what is asked of the peer, and the work request that says it |
//! | `ops` | several at once |
//! | `slot` | where values are while they are in flight |

mod in_flight;
pub mod kind;
mod ops;
mod request;
#[allow(unsafe_code, reason = "values of any type lie in its entries")]
pub(crate) mod slot;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use transport::op::Flush;

use crate::error::{Error, ErrorKind, PostError, Result};
use crate::exec::{self, How};
use crate::qp::inner::{Place, QpInner};

pub use in_flight::{InFlight, Reading, Sending, Writing};
use kind::{Kind, Raw};
pub use ops::{Ops, Requests};
pub(crate) use request::{Asked, Request};

/// How far the bytes of a FLUSH have come when it completes: `enum ibv_placement_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// Global visibility: all processors and devices of the peer see the bytes. The peer's
    /// registration needs [`Access::FLUSH_GLOBAL`](crate::Access::FLUSH_GLOBAL).
    Global,
    /// Persistence: the bytes survive a loss of power. The peer's registration needs
    /// [`Access::FLUSH_PERSISTENT`](crate::Access::FLUSH_PERSISTENT).
    Persistent,
}

impl Placement {
    /// The operation on a range of bytes.
    pub(crate) fn flush(self) -> Flush {
        let persistent = self == Self::Persistent;
        Flush { global: !persistent, persistent, whole: false }
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// Bytes received or read; 0 of sends and writes.
    pub len: usize,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// The queue pair's number.
    pub qp_num: u32,
}

/// An operation on a queue pair. Nothing happens before it is awaited, waited for or posted.
#[must_use = "an operation does nothing unless awaited, waited for or posted"]
pub struct Op<'q, K: Kind<B>, B: Send + 'static = ()> {
    qp: &'q Arc<QpInner>,
    request: Request,
    state: State<K, B>,
}

enum State<K: Kind<B>, B: Send + 'static> {
    /// The place is that of the task that waits for room.
    New {
        value: B,
        place: Place,
    },
    Posted(InFlight<K, B>),
    Over,
}

impl<K: Kind<B>, B: Send + 'static> Unpin for Op<'_, K, B> {}

impl<K: Kind<B>, B: Send + 'static> std::fmt::Debug for Op<'_, K, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Op")
    }
}

impl<'q, K: Kind<B>, B: Send + 'static> Op<'q, K, B> {
    #[inline]
    pub(crate) fn new(qp: &'q Arc<QpInner>, asked: Asked, value: B) -> Self {
        Op { qp, request: Request::new(asked), state: State::New { value, place: Place::default() } }
    }

    pub(crate) fn map(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    /// Not before READs and atomics posted earlier are complete (IBA 1.4 §10.8.3.3).
    pub fn fence(self) -> Self {
        self.map(|request| request.fence = true)
    }

    /// Posts, and blocks until it is complete, polling in this thread for 50 to 200 us and sleeping
    /// then. `BlockingInSimulation` on simulated hosts, where nothing would happen meanwhile.
    pub fn wait(self) -> K::Output {
        self.block(How::default())
    }

    /// Like [`Op::wait`], without ever giving the processor away.
    pub fn spin(self) -> K::Output {
        self.block(How { never_sleeps: true, until: None })
    }

    fn block(mut self, how: How) -> K::Output {
        if !self.qp.stack().may_block()
            && let State::New { value, .. } = std::mem::replace(&mut self.state, State::Over)
        {
            return K::output(Raw(Err(Error::new(ErrorKind::BlockingInSimulation, "wait"))), value);
        }
        exec::ended(match self.post() {
            Ok(in_flight) => in_flight.block(how).ok(),
            // It waits for room, or says at once what is wrong.
            Err(failed) => exec::go_on(failed.into_op(), how, false),
        })
    }

    /// Posts now.
    ///
    /// # Errors
    ///
    /// `QueueFull`; `OutOfRange` for more bytes than the peer's memory has, or than the queue pair
    /// takes inline or in pieces; `WrongDomain`; `Forked`. The operation comes back with each.
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// // Both are on their way at once.
    /// let first = conn.send_copy(b"one")?.post()?;
    /// let second = conn.send_copy(b"two")?.post()?;
    /// first.wait()?;
    /// second.wait()?;
    /// # drop(peer);
    /// # Ok::<(), verbena::Error>(())
    /// ```
    #[expect(clippy::result_large_err, reason = "the operation comes back as it was")]
    #[inline]
    pub fn post(self) -> Result<InFlight<K, B>, PostError<Self>> {
        let Op { qp, request, state } = self;
        match state {
            State::New { value, place } => {
                let posted = qp.post_one::<K, B>(&request, value);
                let posted = posted.map(|ticket| InFlight::new(qp.clone(), ticket));
                // When the ticket has an owner, which gives the value up in an orderly way if that
                // unwinds.
                qp.stack().later().run();
                posted.map_err(|(error, value)| {
                    PostError::new(error, Op { qp, request, state: State::New { value, place } })
                })
            }
            State::Posted(in_flight) => Ok(in_flight),
            state @ State::Over => {
                let error = Error::new(ErrorKind::WrongState, "ibv_post_send");
                Err(PostError::new(error, Op { qp, request, state }))
            }
        }
    }
}

impl<B: Send + 'static> Op<'_, kind::Send, B>
where
    kind::Send: Kind<B>,
{
    /// With immediate data.
    pub fn imm(self, imm: u32) -> Self {
        self.map(|request| request.set_imm(imm))
    }
    /// The receiver's completion raises a solicited event.
    pub fn solicited(self) -> Self {
        self.map(|request| request.solicited = true)
    }
    /// Takes back the right to memory that the peer exposed. Instead of immediate data.
    pub fn invalidate(self, rkey: u32) -> Self {
        self.map(|request| request.set_invalidate(rkey))
    }
}

impl<B: Send + 'static> Op<'_, kind::Write, B>
where
    kind::Write: Kind<B>,
{
    /// With immediate data: takes a receive of the peer, which gets a [`Message`](crate::Message)
    /// without bytes.
    pub fn imm(self, imm: u32) -> Self {
        self.map(|request| request.set_imm(imm))
    }
    /// The receiver's completion raises a solicited event.
    pub fn solicited(self) -> Self {
        self.map(|request| request.solicited = true)
    }
}

impl<K: Kind<B>, B: Send + 'static> Future for Op<'_, K, B> {
    type Output = K::Output;

    /// # Panics
    ///
    /// Where it is polled again after its result was taken.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<K::Output> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::New { value, place } => {
                    let posted = self.qp.post_one::<K, B>(&self.request, value);
                    let full = match posted {
                        Ok(ticket) => {
                            self.state = State::Posted(InFlight::new(self.qp.clone(), ticket));
                            false
                        }
                        Err((error, value)) if error.kind() == ErrorKind::QueueFull => {
                            self.state = State::New { value, place };
                            true
                        }
                        Err((error, value)) => return Poll::Ready(K::output(Raw(Err(error)), value)),
                    };
                    self.qp.stack().later().run();
                    // There may be room by now: then the waker was not left.
                    let this = &mut *self;
                    if full
                        && let State::New { place, .. } = &mut this.state
                        && this.qp.wait_for_room(place, cx)
                    {
                        return Poll::Pending;
                    }
                }
                State::Posted(mut in_flight) => {
                    let polled = Pin::new(&mut in_flight).poll(cx);
                    if polled.is_pending() {
                        self.state = State::Posted(in_flight);
                    }
                    return polled;
                }
                #[allow(clippy::panic, reason = "the contract of Future::poll")]
                State::Over => panic!("an operation was polled after it was complete"),
            }
        }
    }
}

/// `(Result, B)`, with `?`.
pub trait WithBuf<T, B> {
    /// The result with the buffer; in an error the buffer goes back to its pool.
    ///
    /// # Errors
    ///
    /// The operation's.
    fn both(self) -> Result<(T, B)>;
    /// The buffer, after success.
    ///
    /// # Errors
    ///
    /// The operation's.
    fn buf(self) -> Result<B>;
}

impl<T, B> WithBuf<T, B> for (Result<T>, B) {
    fn both(self) -> Result<(T, B)> {
        Ok((self.0?, self.1))
    }
    fn buf(self) -> Result<B> {
        Ok(self.both()?.1)
    }
}
