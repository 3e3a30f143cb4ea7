//! The ring by which packets go to one process of this host.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use locks::{Mutex, Rank};
use ring::{PushError, Writer, memory_len};

use crate::counters::{Counters, add};
use crate::names::Bearer;
use crate::rings::RING_BYTES;
use crate::rings::memory::SharedMemory;

/// Most bytes that wait because the ring is full: as many as the receive buffer of a socket holds.
const MOST_WAITING: usize = 16 << 20;

/// See the module.
pub(crate) struct TxRing {
    bearer: Arc<Bearer>,
    state: Mutex<State>,
}

struct State {
    writer: Writer<SharedMemory>,
    /// Records for which there was no room, the oldest first.
    waiting: VecDeque<Box<[u8]>>,
    waiting_bytes: usize,
    /// The other end wrote what can not be, or wants no ring.
    over: bool,
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is on its way.
    Sent,
    /// It waits for room, or was dropped where too much does.
    Waits,
    /// The ring is of no use.
    Over,
}

impl TxRing {
    /// A new ring, and its announcement to the process that reads it.
    pub(crate) fn offer(bearer: Arc<Bearer>) -> io::Result<TxRing> {
        let (memory, fd) = SharedMemory::create(memory_len(RING_BYTES))?;
        let writer = Writer::new(memory).ok_or(nic::Errno::EINVAL)?;
        bearer.offer_ring(&fd)?;
        let state = State { writer, waiting: VecDeque::new(), waiting_bytes: 0, over: false };
        Ok(TxRing { bearer, state: Mutex::new(Rank::TxRing, state) })
    }

    pub(crate) fn bearer(&self) -> &Arc<Bearer> {
        &self.bearer
    }

    /// Sends one record, these parts one behind the other. `packets` are counted where it is dropped.
    #[inline]
    pub(crate) fn push(&self, parts: &[&[u8]], packets: usize, counters: &Counters) -> Pushed {
        let mut state = self.state.lock();
        if state.over {
            return Pushed::Over;
        }
        if !state.waiting.is_empty() {
            state.flush();
        }
        let pushed = match state.waiting.is_empty() {
            true => state.writer.push(parts),
            false => Err(PushError::Full),
        };
        match pushed {
            Ok(()) => Pushed::Sent,
            Err(PushError::Full) => {
                let len: usize = parts.iter().map(|part| part.len()).sum();
                if state.waiting_bytes + len <= MOST_WAITING {
                    state.waiting.push_back(parts.concat().into_boxed_slice());
                    state.waiting_bytes += len;
                } else {
                    add(&counters.ring_drops, packets);
                }
                Pushed::Waits
            }
            Err(PushError::TooLong | PushError::Broken) => {
                state.over = true;
                Pushed::Over
            }
        }
    }

    /// Tells the reader that there is something, where it sleeps. Behind the last of some records.
    #[inline]
    pub(crate) fn wake(&self, counters: &Counters) {
        if self.state.lock().writer.must_wake() {
            add(&counters.ring_wakes, 1);
            self.bearer.wake_reader();
        }
    }

    /// Sends what waited for room; whether some of it still does.
    pub(crate) fn go_on(&self, counters: &Counters) -> bool {
        let waits = {
            let mut state = self.state.lock();
            if state.waiting.is_empty() {
                return false;
            }
            state.flush();
            !state.waiting.is_empty()
        };
        self.wake(counters);
        waits
    }

    /// The other end wants no ring, or is gone.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.over = true;
        state.waiting.clear();
    }
}

impl State {
    fn flush(&mut self) {
        while let Some(record) = self.waiting.front() {
            match self.writer.push(&[record]) {
                Ok(()) => {
                    self.waiting_bytes -= record.len();
                    self.waiting.pop_front();
                }
                Err(PushError::Full) => return,
                Err(PushError::TooLong | PushError::Broken) => {
                    self.over = true;
                    self.waiting.clear();
                    self.waiting_bytes = 0;
                }
            }
        }
    }
}
