//! Completions by a queue in place of futures (rpma_cq_wait(3), rpma_cq_get_wc(3),
//! rpma_conn_wait(3)): operations are posted with a number of the program's, which comes back with
//! their completion, in the order in which they were posted.
//!
//! | configuration | [`Cq::next`] gives | [`Cq::next_of_both`] |
//! |---|---|---|
//! | the default | completions and messages | `NotSharedChannel` |
//! | `rcq_size` over 0 | completions; messages come by [`Conn::recv`] | `NotSharedChannel` |
//! | `shared_comp_channel` | `SharedChannel` | completions and messages |
//!
//! ```
//! use rpma::cq::{Flags, Wc};
//! use rpma::{ConnCfg, ConnReq, Ep, MrLocal, MrRemote, Peer, Usage};
//!
//! let peer = Peer::local("127.0.0.1".parse().unwrap())?;
//! let ep = Ep::blocking_listen(&peer, "127.0.0.1:0")?;
//! let theirs = MrLocal::zeroed(&peer, 4096, Usage::WRITE_DST)?;
//! let (to, told) = (ep.local_addr(), theirs.descriptor());
//! let server = std::thread::spawn(move || {
//!     let conn = ep.blocking_next_conn_req(&ConnCfg::default())?.connect(&told)?;
//!     while conn.blocking_next_event().is_ok() {}
//!     rpma::Result::Ok(())
//! });
//! let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default())?.connect(&[])?;
//! conn.blocking_next_event()?;
//! let remote = MrRemote::from_descriptor(conn.private_data().unwrap())?;
//! let entry = MrLocal::zeroed(&peer, 64, Usage::WRITE_SRC)?;
//! let mut cq = conn.take_cq().unwrap();
//! conn.write(entry.source(0..64)?, &remote, 0).post_to_cq(1, Flags::OnError)?;
//! conn.write(entry.source(0..64)?, &remote, 64).post_to_cq(2, Flags::Always)?;
//! let Wc::Completion { context, result } = cq.blocking_next()? else { unreachable!() };
//! assert_eq!((context, result.is_ok()), (2, true), "the first one went well");
//! drop((conn, cq));
//! server.join().unwrap()?;
//! # rpma::Result::Ok(())
//! ```

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use locks::{Mutex, Rank};
use nic::program::{self, Kept, wake_all};
use verbena::{Completion, Message};

use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::error::{Error, Result};

/// When an operation's completion is told of (`RPMA_F_COMPLETION_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flags {
    /// Only where it fails.
    OnError,
    /// In any case.
    Always,
}

/// What a queue gives.
#[derive(Debug)]
pub enum Wc {
    /// An operation is complete.
    Completion {
        /// The number that it was posted with.
        context: u64,
        /// How the operation went.
        result: Result<Completion>,
    },
    /// A message has come.
    Message(Message),
}

type Done = Pin<Box<dyn Future<Output = Result<Completion>> + Send>>;

struct Entry {
    context: u64,
    flags: Flags,
    done: Done,
}

/// What a connection has of its queue.
pub(crate) struct Posted {
    list: Mutex<List>,
    /// Entries of the queue.
    size: usize,
    /// Messages have a queue of their own.
    rcq: bool,
    shared: bool,
}

#[derive(Default)]
struct List {
    /// Posted, and not seen by the queue yet.
    new: Vec<Entry>,
    /// Posted, and not given to the program yet; those that are under way to the list among them.
    under_way: usize,
    /// The waker of the thread or task that waits for more.
    waker: Option<Kept<Waker>>,
    taken: bool,
}

impl Posted {
    pub(crate) fn new(cfg: &ConnCfg) -> Self {
        let list = Mutex::new(Rank::PostedCompletions, List::default());
        Self { list, size: cfg.cq_size as usize, rcq: cfg.rcq_size > 0, shared: cfg.shared_comp_channel }
    }

    /// Room for one more.
    pub(crate) fn reserve(&self) -> Result<()> {
        let mut list = self.list.lock();
        if list.under_way >= self.size {
            return Err(Error::Again);
        }
        list.under_way += 1;
        Ok(())
    }
    /// There was none posted after all.
    pub(crate) fn give_back(&self) {
        self.list.lock().under_way -= 1;
    }
    pub(crate) fn push(
        &self,
        context: u64,
        flags: Flags,
        done: impl Future<Output = Result<Completion>> + Send + 'static,
    ) {
        let entry = Entry { context, flags, done: Box::pin(done) };
        let waker = {
            let mut list = self.list.lock();
            list.new.push(entry);
            list.waker.take()
        };
        wake_all(waker);
    }
    /// Whether the queue was not taken before; it is taken then.
    pub(crate) fn take(&self) -> bool {
        !std::mem::replace(&mut self.list.lock().taken, true)
    }
}

/// A connection's completion queue, for one thread or task at a time; there is one
/// ([`Conn::take_cq`]). It keeps the connection. Its order is that in which operations were posted.
pub struct Cq {
    conn: Conn,
    entries: VecDeque<Entry>,
}

impl Cq {
    pub(crate) fn new(conn: Conn) -> Self {
        Self { conn, entries: VecDeque::new() }
    }

    /// Waits for the next completion or, where messages have no queue of their own, message.
    /// Cancelling loses none.
    ///
    /// # Errors
    ///
    /// `NoCompletion` when the connection has ended, and all was given; `SharedChannel`; `Provider`
    /// for what the connection failed by, once, where messages come here.
    pub async fn next(&mut self) -> Result<Wc> {
        let posted = self.conn.posted();
        if posted.shared {
            return Err(Error::SharedChannel);
        }
        let messages = !posted.rcq;
        self.next_with(messages).await
    }
    /// The next completion of both queues, where they share a channel (rpma_conn_wait(3)).
    ///
    /// # Errors
    ///
    /// `NotSharedChannel`; those of [`Cq::next`].
    pub async fn next_of_both(&mut self) -> Result<Wc> {
        match self.conn.posted().shared {
            true => self.next_with(true).await,
            false => Err(Error::NotSharedChannel),
        }
    }
    /// [`Cq::next`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_next(&mut self) -> Result<Wc> {
        let provider = self.conn.pd().device().provider().clone();
        provider.wait(self.next())?
    }
    /// [`Cq::next_of_both`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_next_of_both(&mut self) -> Result<Wc> {
        let provider = self.conn.pd().device().provider().clone();
        provider.wait(self.next_of_both())?
    }
    /// What is there already (rpma_cq_get_wc(3)), whatever shares a channel.
    ///
    /// # Errors
    ///
    /// `NoCompletion` where there is nothing; `Provider` as for [`Cq::next`].
    pub fn try_next(&mut self) -> Result<Wc> {
        let messages = !self.conn.posted().rcq;
        let next = pin!(self.next_with(messages));
        match next.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => next,
            Poll::Pending => Err(Error::NoCompletion),
        }
    }

    async fn next_with(&mut self, messages: bool) -> Result<Wc> {
        let Self { conn, entries } = self;
        let (mut recv, mut ended) = (pin!(conn.recv()), pin!(conn.ended()));
        let (mut has_recv, mut has_ended) = (messages, false);
        poll_fn(|cx| {
            // What is under way survives a waker that panics.
            let waker = program::calm(cx);
            let cx = &mut Context::from_waker(&waker);
            loop {
                if let Poll::Ready(wc) = poll_entries(conn, entries, cx) {
                    return Poll::Ready(Ok(wc));
                }
                if has_recv && let Poll::Ready(message) = recv.as_mut().poll(cx) {
                    has_recv = false;
                    if let Some(message) = message.transpose() {
                        return Poll::Ready(message.map(Wc::Message));
                    }
                }
                // What was under way is complete then, or will be at once.
                if !has_ended && ended.as_mut().poll(cx).is_ready() {
                    has_ended = true;
                    continue;
                }
                return match has_ended && !has_recv && entries.is_empty() {
                    true => Poll::Ready(Err(Error::NoCompletion)),
                    false => Poll::Pending,
                };
            }
        })
        .await
    }
}

/// The first completion to be told of; where there is none the waker is left.
fn poll_entries(conn: &Conn, entries: &mut VecDeque<Entry>, cx: &mut Context<'_>) -> Poll<Wc> {
    loop {
        let waker = Kept::of(cx);
        let before = {
            let mut list = conn.posted().list.lock();
            entries.extend(list.new.drain(..));
            list.waker.replace(waker)
        };
        drop(before);
        let Some(first) = entries.front_mut() else { return Poll::Pending };
        let Poll::Ready(result) = first.done.as_mut().poll(cx) else { return Poll::Pending };
        let Some(Entry { context, flags, .. }) = entries.pop_front() else { return Poll::Pending };
        conn.posted().give_back();
        if result.is_err() || flags == Flags::Always {
            return Poll::Ready(Wc::Completion { context, result });
        }
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cq({:?})", self.conn)
    }
}
