//! Both directions of a stream, as its halves share them: what came, what may be sent, and how it
//! ended.
//!
//! A task that waits leaves a waker with the queue pair (for messages, for room in the send queue),
//! then looks again. Messages are taken from the queue pair and their credits counted under one
//! lock, so either half sees all that came before it looks; and a task that waits for a message is
//! woken by its arrival, whichever half takes it. So no waker is kept here, and none can be lost.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use locks::{Mutex, Rank};

use super::split::{End, Places};
use super::wire::{CONTROL, Greeting, Word, worth_telling};
use crate::cm::Connection;
use crate::error::{Error, ErrorKind, Result, WcStatus};
use crate::op::Sending;
use crate::op::kind::Copied;
use crate::qp::Message;

/// Bytes that are copied into the work request itself.
pub(super) const INLINE: usize = 64;

/// Bytes of a message of which there may be many.
const BULK: usize = 16 << 10;

/// What both halves share. Dropped, it ends the connection.
pub(super) struct Core {
    conn: Connection,
    /// The smaller of both sides': data messages on their way, and bytes of each, in either
    /// direction.
    agreed: Greeting,
    state: Mutex<State>,
}

struct State {
    /// Data messages, in order, that no task has read.
    incoming: VecDeque<Message>,
    /// Data messages that came and that the peer was not told of as read.
    outstanding: u32,
    /// Of the outstanding messages, how many were read.
    owed: u32,
    /// Data messages that may be sent.
    credits: u32,
    /// Nothing comes after `incoming`.
    fin: bool,
    /// Why nothing more comes or goes.
    over: Option<Over>,
}

/// Why nothing more comes or goes.
#[derive(Clone)]
enum Over {
    Ended(Error),
    /// The peer did what the protocol does not allow.
    Violated(&'static str),
}

/// Messages without bytes, to be dropped when the lock is released: that posts their receives
/// again.
type Empty = ArrayVec<Message, { CONTROL as usize }>;

impl Core {
    /// Over a connection whose private data is the peer's greeting, and which nothing was received
    /// on.
    pub(super) fn new(conn: Connection, mine: Greeting) -> Result<Self> {
        let agreed = Greeting::from_bytes(conn.private_data())?.smaller(mine);
        let state = State {
            incoming: VecDeque::new(),
            outstanding: 0,
            owed: 0,
            credits: agreed.window.into(),
            fin: false,
            over: None,
        };
        Ok(Self { conn, agreed, state: Mutex::new(Rank::Stream, state) })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.conn
    }
    /// Bytes of a message at most.
    pub(super) fn message_size(&self) -> usize {
        self.agreed.message_size as usize
    }

    /// Takes in what has come, then looks.
    fn look<T>(&self, mut look: impl FnMut(&mut State) -> T) -> T {
        loop {
            let mut empty = Empty::new();
            let mut state = self.state.lock();
            state.take_in(self, &mut empty);
            let found = (!empty.is_full()).then(|| look(&mut state));
            drop(state);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Looks, for a moment where that is likely to be of use, leaves a waker for the next message,
    /// and looks again.
    fn wait<T>(
        &self,
        places: &mut Places,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&mut State) -> Poll<T>,
    ) -> Poll<T> {
        if let Poll::Ready(found) = self.look(&mut look) {
            return Poll::Ready(found);
        }
        let inner = self.conn.inner();
        if inner.lets_others_run(cx) {
            return Poll::Pending;
        }
        let found = inner.spin(|| match self.look(&mut look) {
            Poll::Ready(found) => Some(found),
            Poll::Pending => None,
        });
        if let Some(found) = found {
            return Poll::Ready(found);
        }
        inner.wake_on_message(&mut places.messages, cx);
        self.look(look)
    }

    // ---- receiving ----

    /// The next data message; `None` after the last one.
    pub(super) fn poll_message(
        &self,
        places: &mut Places,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Message>>> {
        self.tell_credits(Some((places, cx)));
        self.wait(places, cx, |state| match (state.incoming.pop_front(), &state.over) {
            (Some(message), _) => Poll::Ready(Ok(Some(message))),
            (None, _) if state.fin => Poll::Ready(Ok(None)),
            (None, Some(over)) => Poll::Ready(Err(over.to_io())),
            (None, None) => Poll::Pending,
        })
    }

    /// A data message was read to its end: its receive is posted again, and the peer told when that
    /// is due.
    pub(super) fn was_read(&self, message: Message) {
        drop(message);
        self.state.lock().owed += 1;
        self.tell_credits(None);
    }

    /// Tells the peer of what was read, where that is due. While the send queue is full every call
    /// of the stream's tries again; a waker is left until there is room.
    fn tell_credits(&self, mut waits: Option<(&mut Places, &mut Context<'_>)>) {
        loop {
            let owed = {
                let mut state = self.state.lock();
                let due = state.owed >= worth_telling(self.agreed.window.into());
                if due && state.over.is_none() { state.take_owed() } else { return }
            };
            match self.post_word(Word { credits: owed, fin: false }) {
                Ok(_) => return,
                Err(error) => {
                    self.state.lock().untold(Word { credits: owed, fin: false });
                    let full = error.kind() == ErrorKind::QueueFull;
                    let Some((places, cx)) = waits.as_mut().filter(|_| full) else { return };
                    if self.conn.inner().wait_for_room(&mut places.room, cx) {
                        return;
                    }
                }
            }
        }
    }

    // ---- sending ----

    /// Sends as many of the bytes as there are credits and room for, one at least.
    pub(super) fn poll_send(
        &self,
        places: &mut Places,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (total, most) = (bufs.iter().map(|buf| buf.len()).sum::<usize>(), self.message_size());
        let mut bytes = Gather { bufs, at: 0 };
        let mut sent = 0;
        while sent < total {
            let reserved = match sent {
                0 => self.wait(places, cx, State::reserve),
                _ => self.look(State::reserve),
            };
            let word = match reserved {
                Poll::Ready(Ok(word)) => word,
                // What was sent was sent; the next call learns of it.
                _ if sent > 0 => break,
                Poll::Ready(Err(over)) => return Poll::Ready(Err(over.to_io())),
                Poll::Pending => {
                    // A peer that waits for credits itself is not to wait for ours.
                    self.tell_credits(Some((places, cx)));
                    return Poll::Pending;
                }
            };
            let len = most.min(total - sent);
            let before = bytes.clone();
            let Err(error) = self.post_bytes(word, &mut bytes, len) else {
                sent += len;
                continue;
            };
            bytes = before;
            {
                let mut state = self.state.lock();
                state.credits += 1;
                state.untold(word);
            }
            match error.kind() {
                _ if sent > 0 => break,
                // A queue that is full of messages with buffers is out of buffers, too: credits
                // come back before ACKs do.
                ErrorKind::QueueFull | ErrorKind::Exhausted
                    if self.conn.inner().wait_for_room(&mut places.room, cx) =>
                {
                    self.conn.inner().sleeps();
                    return Poll::Pending;
                }
                ErrorKind::QueueFull => {}
                // An entry is free before its buffer is: a moment.
                ErrorKind::Exhausted => {
                    nic::program::wake_now(cx);
                    return Poll::Pending;
                }
                _ => return Poll::Ready(Err(self.why(error))),
            }
        }
        Poll::Ready(Ok(sent))
    }

    /// Sends the FIN, once, and waits until the peer's adapter has it and all before it.
    pub(super) fn poll_end(
        &self,
        places: &mut Places,
        cx: &mut Context<'_>,
        end: &mut End,
    ) -> Poll<io::Result<()>> {
        loop {
            match end {
                End::Open => {
                    let owed = self.look(State::end);
                    let posted = match &owed {
                        Ok(owed) => self.post_word(Word { credits: *owed, fin: true }),
                        // It has ended its direction, and left.
                        Err(Over::Ended(error)) if error.kind() == ErrorKind::Disconnected => {
                            *end = End::Over(self.all_the_same(error.clone()));
                            continue;
                        }
                        Err(over) => return Poll::Ready(Err(over.to_io())),
                    };
                    let Err(error) = posted.map(|sending| *end = End::Sent(sending)) else { continue };
                    self.state.lock().untold(Word { credits: owed.unwrap_or(0), fin: true });
                    if error.kind() != ErrorKind::QueueFull {
                        return Poll::Ready(Err(self.why(error)));
                    }
                    if self.conn.inner().wait_for_room(&mut places.room, cx) {
                        self.conn.inner().sleeps();
                        return Poll::Pending;
                    }
                }
                End::Sent(sending) => {
                    self.conn.inner().sleeps();
                    let ended = ready!(Pin::new(sending).poll(cx)).map(drop);
                    *end = End::Over(ended.or_else(|error| self.all_the_same(error)));
                }
                End::Over(Ok(())) => return Poll::Ready(Ok(())),
                End::Over(Err(error)) => return Poll::Ready(Err(self.why(error.clone()))),
            }
        }
    }

    /// A peer that has ended its own direction, and leaves in order, has what it wanted: it may
    /// leave before its ACK has come, or our end.
    fn all_the_same(&self, error: Error) -> Result<()> {
        let flushed = ErrorKind::Completion(WcStatus::Flushed);
        let left =
            [flushed, ErrorKind::Disconnected].contains(&error.kind()) && self.conn.failure().is_none();
        if left && self.look(|state| state.fin) { Ok(()) } else { Err(error) }
    }

    fn post_word(&self, word: Word) -> Result<Sending<Copied>> {
        self.conn.send_inline(&[]).imm(word.to_imm()).post().map_err(Error::from)
    }

    fn post_bytes(&self, word: Word, bytes: &mut Gather<'_>, len: usize) -> Result<()> {
        let (inline, imm) = (&mut [0; INLINE], word.to_imm());
        if let Some(inline) = inline.get_mut(..len) {
            bytes.copy_to(inline);
            // The completion has no owner: a failure ends the connection.
            return self.conn.send_inline(inline).imm(imm).post().map(drop).map_err(Error::from);
        }
        if len >= BULK && self.conn.inner().task_polls() {
            // ACKs and credits that have come: cheaper now than by the engine thread in the midst
            // of the next message.
            self.conn.inner().stack().poll();
        }
        let mut buf = self.conn.buffer()?.sized(len)?;
        bytes.copy_to(&mut buf);
        self.conn.send(buf).imm(imm).post().map(drop).map_err(Error::from)
    }

    /// Why a call failed, as far as that is known.
    fn why(&self, error: Error) -> io::Error {
        let over = self.look(|state| state.over.clone());
        over.unwrap_or_else(|| Over::Ended(self.conn.failure().unwrap_or(error))).to_io()
    }
}

impl State {
    /// Takes in all messages that have come, or as many as there is room for in `empty`.
    fn take_in(&mut self, core: &Core, empty: &mut Empty) {
        while self.over.is_none() && !empty.is_full() {
            match core.conn.inner().poll_recv(None) {
                Poll::Pending => return,
                Poll::Ready(Ok(Some(message))) => {
                    let taken = self.take(core, message);
                    taken.map_or_else(|violated| self.over = Some(violated), |message| empty.extend(message));
                }
                Poll::Ready(Ok(None)) => {
                    let failure = core.conn.failure();
                    let ended = || Error::new(ErrorKind::Disconnected, "rdma_disconnect");
                    self.over = Some(Over::Ended(failure.unwrap_or_else(ended)));
                }
                Poll::Ready(Err(failure)) => self.over = Some(Over::Ended(failure)),
            }
        }
    }

    /// A message; it comes back where it has no bytes.
    fn take(&mut self, core: &Core, message: Message) -> Result<Option<Message>, Over> {
        let word = message.imm().filter(|_| message.written().is_none()).and_then(Word::from_imm);
        let Some(word) = word else { return Err(Over::Violated("a message of another protocol")) };
        if message.is_empty() && word == Word::default() {
            return Err(Over::Violated("a message that says nothing"));
        }
        if self.fin && (word.fin || !message.is_empty()) {
            return Err(Over::Violated("bytes behind the FIN"));
        }
        self.fin |= word.fin;
        self.credits += u32::from(word.credits);
        if self.credits > core.agreed.window.into() {
            return Err(Over::Violated("more credits than messages"));
        }
        if message.is_empty() {
            return Ok(Some(message));
        }
        self.outstanding += 1;
        if self.outstanding > core.agreed.window.into() {
            return Err(Over::Violated("more messages than credits"));
        }
        self.incoming.push_back(message);
        Ok(None)
    }

    /// What the peer is owed, which it will be told now.
    fn take_owed(&mut self) -> u16 {
        // At most a window, which is 16 bits.
        let owed = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(owed);
        self.outstanding = self.outstanding.saturating_sub(owed.into());
        owed
    }

    /// One credit, for a data message, and what it says beside its bytes.
    fn reserve(&mut self) -> Poll<Result<Word, Over>> {
        if let Some(over) = &self.over {
            return Poll::Ready(Err(over.clone()));
        }
        if self.credits == 0 {
            return Poll::Pending;
        }
        self.credits -= 1;
        Poll::Ready(Ok(Word { credits: self.take_owed(), fin: false }))
    }

    /// What the FIN says beside.
    fn end(&mut self) -> Result<u16, Over> {
        self.over.clone().map_or_else(|| Ok(self.take_owed()), Err)
    }

    /// What the peer was to be told could not be posted.
    fn untold(&mut self, word: Word) {
        self.owed += u32::from(word.credits);
        self.outstanding += u32::from(word.credits);
    }
}

impl Over {
    fn to_io(&self) -> io::Error {
        match self {
            Self::Violated(what) => {
                io::Error::new(io::ErrorKind::InvalidData, format!("the peer sent {what}"))
            }
            Self::Ended(error) => match error.kind() {
                ErrorKind::Disconnected | ErrorKind::Completion(_) | ErrorKind::WrongState => {
                    io::Error::new(io::ErrorKind::ConnectionReset, error.clone())
                }
                _ => error.clone().into(),
            },
        }
    }
}

/// Bytes of several slices, in order.
#[derive(Clone)]
struct Gather<'a> {
    bufs: &'a [IoSlice<'a>],
    /// Bytes of the first that are taken.
    at: usize,
}

impl Gather<'_> {
    /// The next ones; there are so many.
    fn copy_to(&mut self, mut to: &mut [u8]) {
        while let (Some(first), false) = (self.bufs.first(), to.is_empty()) {
            let left = first.get(self.at..).unwrap_or_default();
            let n = left.len().min(to.len());
            let (now, rest) = to.split_at_mut(n);
            now.copy_from_slice(&left[..n]);
            to = rest;
            self.at += n;
            if self.at >= first.len() {
                (self.bufs, self.at) = (&self.bufs[1..], 0);
            }
        }
    }
}
