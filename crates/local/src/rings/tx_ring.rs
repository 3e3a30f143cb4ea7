//! The ring by which packets go to one process of this host.

mod imports;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use locks::{Mutex, MutexGuard, Rank};
use nic::link::Fill;
use nic::{DeferredCounter, Path};
use sys::fork::Fd;
use transport::Short;
use transport::batch::Run;
use transport::likely::unlikely;
use transport::op::{Fault, FragmentOutcome};

use crate::arena::Theirs;
use crate::counters::{Counters, add};
use crate::env::NameOwner;
use crate::memory::{Part, SharedMemory, shared};
use crate::peer_memory::{HAZARD_BYTES, RemoteView};
use crate::record::{self, Ends, HEADER, RING_BYTES, SIZE};
use crate::ring::{PushError, WakeTarget, Writer, memory_len};

/// Most bytes that wait because the ring is full: as many as the receive buffer of a socket holds.
const MAX_WAITING: usize = 16 << 20;
/// Payload that may be under way in a ring. Packets, with their headers, for which there is no room
/// wait here, copied once more.
pub const ROOM: u32 = RING_BYTES as u32 / 5 * 4;

/// The end of a ring that writes: packets to another process of this host.
pub(crate) struct TxRing {
    owner: Arc<dyn NameOwner>,
    state: Mutex<State>,
    /// Where we say what we use of the reader's memory.
    hazards: Part,
    /// What the reader exports us.
    remote_view: ArcSwapOption<RemoteView>,
    /// How often `remote_view` has changed: said after each change.
    remote_view_changes: AtomicU64,
    /// Buffers of the reader's that are mapped here, too. The engine changes them.
    theirs: Mutex<Theirs>,
    /// The inode of the ring's memory, and the word that the reader has to repeat.
    proof: (u64, u64),
    /// What wakes a thread of the reader's that waits.
    wake_fd: ArcSwapOption<Fd>,
    /// Short messages; the thread that has the lock counts.
    messages: DeferredCounter,
    /// The reader's engine is to be woken for what was sent, if it still sleeps
    /// ([`TxRing::send_pending_wakes`]).
    has_pending_wake: AtomicBool,
}

struct State {
    writer: Writer<Part>,
    /// The head of the last records.
    head: Option<Head>,
    /// The how many-th head it is.
    heads: u64,
    /// The last record in the ring, or that waits for room, has this head: the next one need not
    /// say it.
    is_said: bool,
    /// Records for which there was no room, the oldest first.
    waiting: VecDeque<Box<[u8]>>,
    waiting_bytes: usize,
    /// The other end wrote what can not be, or wants no ring.
    over: bool,
}

/// How records on a path begin.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    path: Path,
    /// What was known of the interfaces.
    version: u64,
    bytes: [u8; SIZE + HEADER],
}

impl Head {
    /// The head of packets on a path of these ends. `version`: that of the interfaces
    /// ([`Env::version`](crate::env::Env::version)).
    pub(crate) fn new(path: &Path, version: u64, ends: &Ends) -> Self {
        Self { path: *path, version, bytes: record::emit_record(ends) }
    }

    fn is_of(&self, path: &Path, version: u64) -> bool {
        let ours = &self.path;
        self.version == version
            && (ours.interface, ours.source, ours.dest) == (path.interface, path.source, path.dest)
    }
}

/// The outcome of packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All packets are in the ring.
    All,
    /// Some packets wait for room, or were dropped where too many do.
    Later,
    /// The ring is of no use.
    Over,
}

/// What waits for room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backlog {
    /// Nothing waits.
    None,
    /// As much waits as before.
    Stuck,
    /// Less than before.
    Moves,
}

impl TxRing {
    /// A new ring, and its announcement to the process that reads it.
    pub(crate) fn offer(owner: Arc<dyn NameOwner>) -> io::Result<Self> {
        let (memory, fd) = SharedMemory::create(memory_len(RING_BYTES) + HAZARD_BYTES)?;
        let (memory, hazards) = memory.split(memory_len(RING_BYTES)).ok_or(nic::Errno::EINVAL)?;
        let writer = Writer::new(memory).ok_or(nic::Errno::EINVAL)?;
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|_| nic::Errno::EAGAIN)?;
        let proof = (sys::inode(&fd)?, u64::from_ne_bytes(nonce));
        owner.offer_ring(&fd, proof.1)?;
        let state = State {
            writer,
            head: None,
            heads: 0,
            is_said: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            over: false,
        };
        let state = Mutex::new(Rank::TxRing, state);
        Ok(Self {
            owner,
            state,
            hazards,
            remote_view: ArcSwapOption::empty(),
            remote_view_changes: AtomicU64::new(0),
            theirs: Mutex::new(Rank::TheirBuffers, Theirs::default()),
            proof,
            wake_fd: ArcSwapOption::empty(),
            messages: DeferredCounter::default(),
            has_pending_wake: AtomicBool::new(false),
        })
    }

    pub(crate) fn owner(&self) -> &Arc<dyn NameOwner> {
        &self.owner
    }

    /// Sends these packets, a record for each run of equal ones, and wakes the reader where it
    /// sleeps.
    pub(crate) fn send(&self, head: Head, bytes: &[u8], runs: &[Run], counters: &Counters) -> Sent {
        let mut state = self.state.lock();
        (state.head, state.is_said) = (Some(head), false);
        state.heads += 1;
        self.send_locked(state, bytes, runs, counters)
    }

    /// Like [`TxRing::send`], for messages, which come alone. `may_defer_wake`: an engine that
    /// sleeps is not woken, as a thread of its process may be about to look; true where that is
    /// owed.
    pub(crate) fn send_message(
        &self,
        head: Head,
        bytes: &[u8],
        runs: &[Run],
        may_defer_wake: bool,
        counters: &Counters,
    ) -> (Sent, bool) {
        let mut state = self.state.lock();
        (state.head, state.is_said) = (Some(head), false);
        if state.waiting.is_empty() {
            state.writer.begin_again();
        }
        let sent = state.send(bytes, runs, counters);
        let has_pending_wake = may_defer_wake && state.writer.sleeper() == Some(WakeTarget::Engine);
        if has_pending_wake {
            self.has_pending_wake.store(true, Ordering::Release);
        }
        let wakes = if has_pending_wake { None } else { state.writer.must_wake() };
        drop(state);
        self.wake_reader(wakes, counters);
        (sent, has_pending_wake)
    }

    /// Wakes the reader, where that is owed and it still sleeps.
    pub(crate) fn send_pending_wakes(&self, counters: &Counters) {
        if self.has_pending_wake.swap(false, Ordering::AcqRel) {
            let wakes = self.state.lock().writer.must_wake();
            self.wake_reader(wakes, counters);
        }
    }

    /// Like [`TxRing::send`], where the last packets took that path, and the interfaces are what
    /// they were.
    #[inline]
    pub(crate) fn send_again(
        &self,
        path: &Path,
        version: u64,
        bytes: &[u8],
        runs: &[Run],
        counters: &Counters,
    ) -> Option<Sent> {
        let state = self.state.lock();
        state.head.as_ref().filter(|head| head.is_of(path, version))?;
        Some(self.send_locked(state, bytes, runs, counters))
    }

    /// Sends a short message where the last packets took that path, and nothing waits for room;
    /// false where it has to be a packet. `known`: which head was found to be of this path.
    #[inline]
    pub(crate) fn send_short(
        &self,
        (path, known): (&Path, &mut u64),
        version: u64,
        short: &Short,
        bytes: &[u8],
        counters: &Counters,
    ) -> bool {
        let mut state = self.state.lock();
        let (goes, heads) = (state.is_said && !state.over && state.waiting.is_empty(), state.heads);
        let is_ours = |head: &Head| match heads == *known {
            true => head.version == version,
            false => head.is_of(path, version),
        };
        if unlikely(!goes || !state.head.as_ref().is_some_and(is_ours)) {
            return false;
        }
        *known = heads;
        if unlikely(record::write_short(&mut state.writer, short, bytes).is_err()) {
            // What is wrong is found by the packet.
            return false;
        }
        self.messages.add(1);
        let wakes = state.writer.must_wake();
        drop(state);
        self.wake_reader(wakes, counters);
        true
    }

    /// Sends several packets as one fragment, where the last ones took that path, and nothing waits
    /// for room.
    ///
    /// # Errors
    ///
    /// Those of `fill`.
    pub(crate) fn send_fragment(
        &self,
        path: &Path,
        version: u64,
        (headers, len): (&[u8], usize),
        fill: &mut Fill<'_>,
        counters: &Counters,
    ) -> Result<FragmentOutcome, Fault> {
        let mut state = self.state.lock();
        let goes =
            state.is_said && !state.over && state.head.as_ref().is_some_and(|head| head.is_of(path, version));
        let Some((head, head_len)) = record::fragment_head(headers).filter(|_| goes) else {
            return Ok(FragmentOutcome::Unavailable);
        };
        state.flush();
        let pushed = match state.waiting.is_empty() {
            true => state.writer.push_with(&head[..head_len], len, |words| fill(shared(words, len))),
            false => Err(PushError::Full),
        };
        // Also for what had waited.
        let wakes = state.writer.must_wake();
        drop(state);
        self.wake_reader(wakes, counters);
        match pushed {
            Ok(filled) => filled.map(|()| FragmentOutcome::Sent),
            Err(PushError::Full) => Ok(FragmentOutcome::Full),
            // What is wrong is found by the packet.
            Err(PushError::TooLong | PushError::Broken) => Ok(FragmentOutcome::Unavailable),
        }
    }

    #[inline]
    fn send_locked(
        &self,
        mut state: MutexGuard<'_, State>,
        bytes: &[u8],
        runs: &[Run],
        counters: &Counters,
    ) -> Sent {
        let sent = state.send(bytes, runs, counters);
        let wakes = state.writer.must_wake();
        drop(state);
        self.wake_reader(wakes, counters);
        sent
    }

    /// Whether its reader has not taken all that was sent.
    pub(crate) fn has_unread(&self) -> bool {
        let state = self.state.lock();
        !state.over && (!state.waiting.is_empty() || state.writer.has_unread())
    }

    /// Sends what waited for room.
    pub(crate) fn go_on(&self, counters: &Counters) -> Backlog {
        let mut state = self.state.lock();
        let before = state.waiting.len();
        state.flush();
        let backlog = match state.waiting.len() {
            0 => Backlog::None,
            left if left < before => Backlog::Moves,
            _ => Backlog::Stuck,
        };
        let wakes = if before > 0 { state.writer.must_wake() } else { None };
        drop(state);
        self.wake_reader(wakes, counters);
        backlog
    }

    /// From now on this wakes a thread of the reader's that waits.
    pub(crate) fn given(&self, wake_fd: Fd) {
        self.wake_fd.store(Some(Arc::new(wake_fd)));
    }

    /// Brings what it has counted to the counters.
    pub(crate) fn fold_counters(&self, counters: &Counters) {
        self.messages.fold_into(&counters.ring_messages_sent);
    }

    /// The other end wants no ring, or is gone.
    pub(crate) fn end(&self) {
        self.state.lock().end();
        // Queue pairs may know it still.
        self.set_remote_view(None);
    }

    #[inline]
    fn wake_reader(&self, wakes: Option<WakeTarget>, counters: &Counters) {
        if let Some(wake_target) = wakes {
            self.wake(wake_target, counters);
        }
    }

    #[cold]
    fn wake(&self, wake_target: WakeTarget, counters: &Counters) {
        add(&counters.ring_wakes, 1);
        let rings = || self.wake_fd.load().as_ref().is_some_and(|wake_fd| sys::wake(wake_fd));
        if wake_target == WakeTarget::Engine || !rings() {
            self.owner.wake_reader();
        }
    }
}

impl State {
    /// Publishes these packets, a record for each run, or has them wait.
    #[inline]
    fn send(&mut self, mut bytes: &[u8], runs: &[Run], counters: &Counters) -> Sent {
        self.flush();
        for run in runs {
            let (packets, rest) = bytes.split_at(run.len);
            bytes = rest;
            if self.is_said {
                self.push(&[&record::same_head(run.size), packets], run.count, counters);
            } else if let Some(Head { mut bytes, .. }) = self.head {
                record::set_size(&mut bytes, run.size);
                self.is_said = self.push(&[&bytes, packets], run.count, counters);
            }
        }
        match (self.over, self.waiting.is_empty()) {
            (true, _) => Sent::Over,
            (false, true) => Sent::All,
            (false, false) => Sent::Later,
        }
    }

    /// Publishes a record of so many packets, these parts one after the other; or has it wait.
    /// False where it is lost.
    #[inline]
    fn push(&mut self, parts: &[&[u8]], packets: usize, counters: &Counters) -> bool {
        if self.over {
            return false;
        }
        let pushed = if self.waiting.is_empty() { self.writer.push(parts) } else { Err(PushError::Full) };
        match pushed {
            Ok(()) => true,
            Err(PushError::Full) => {
                let len: usize = parts.iter().map(|part| part.len()).sum();
                if self.waiting_bytes + len <= MAX_WAITING {
                    self.waiting.push_back(parts.concat().into_boxed_slice());
                    self.waiting_bytes += len;
                    return true;
                }
                add(&counters.ring_drops, packets);
                false
            }
            Err(PushError::TooLong | PushError::Broken) => {
                self.end();
                false
            }
        }
    }

    /// Publishes what waits, as far as there is room.
    #[inline]
    fn flush(&mut self) {
        while let Some(record) = self.waiting.front() {
            match self.writer.push(&[record]) {
                Ok(()) => {
                    self.waiting_bytes -= record.len();
                    self.waiting.pop_front();
                }
                Err(PushError::Full) => return,
                Err(PushError::TooLong | PushError::Broken) => self.end(),
            }
        }
    }

    fn end(&mut self) {
        self.over = true;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use wire::Qpn;

    use super::*;

    #[test]
    fn what_a_record_begins_with_serves_for_the_same_addresses_while_the_interfaces_are_the_same() {
        let path = Path {
            source: [127, 0, 0, 1].into(),
            dest: [127, 0, 0, 2].into(),
            interface: 1,
            dest_qpn: Qpn::new(0x1000),
            traffic_class: 0,
            hop_limit: 64,
            source_port_epoch: 0,
            no_multicast_loop: false,
        };
        let end = |host| wire::Endpoint::from(([127, 0, 0, host], 4791));
        let ends = Ends { source: end(1), dest: end(2), interface: 1 };
        let head = Head::new(&path, 3, &ends);
        assert!(head.is_of(&path, 3) && head.is_of(&Path { dest_qpn: Qpn::new(0x1fff), ..path }, 3));
        assert!(!head.is_of(&path, 4), "the interfaces have changed");
        let others = [
            Path { source: path.dest, ..path },
            Path { dest: path.source, ..path },
            Path { interface: 2, ..path },
        ];
        assert!(others.iter().all(|other| !head.is_of(other, 3)));
    }
}
