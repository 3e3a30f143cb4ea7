//! All streams of a host, and those that threads read by themselves which poll.
//!
//! The engine is told of a stream by epoll(7). Where a thread polls, a stream by which something
//! came, or that has room again, becomes hot: the thread reads it at each poll, and sends what
//! there was no room for. The engine leaves it alone for as long as that goes on
//! ([`Lease`](local::lease::Lease)). So a poll costs the same however many streams there are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use local::Drained;
use local::lease::LEASE_NANOS;
use locks::{Mutex, Rank};
use socket2::SockRef;
use stack::InputHandler;
use sys::clock::Clock;
use sys::fork::Fd;

use crate::alarm::Alarm;
use crate::leased::{COLD_NANOS, Leased, MAX_HOT, next_hot};
use crate::reactor::Reactor;
use crate::tcp::closing::Closing;
use crate::tcp::parked::Parked;
use crate::tcp::{TcpListener, TcpStream};

pub(crate) struct Streams {
    pub(super) reactor: Arc<Reactor>,
    clock: Clock,
    alarm: Arc<Alarm>,
    parked: Parked,
    closing: Closing,
    /// How many there are.
    count: AtomicUsize,
    hot: ArcSwap<Vec<Arc<TcpStream>>>,
    /// Held while the hot ones change.
    changing: Mutex<()>,
    /// Counts fruitless polls; says whose turn it is.
    turn: AtomicU32,
    /// When a thread last polled.
    polled_at: AtomicU64,
}

impl Streams {
    pub(crate) fn new(reactor: Arc<Reactor>, clock: Clock, alarm: Arc<Alarm>) -> Self {
        Self {
            reactor,
            clock,
            alarm,
            parked: Parked::default(),
            closing: Closing::default(),
            count: AtomicUsize::new(0),
            hot: ArcSwap::default(),
            changing: Mutex::new(Rank::RxSockets, ()),
            turn: AtomicU32::new(0),
            polled_at: AtomicU64::new(0),
        }
    }

    /// A program gives a listener up.
    pub(super) fn park(&self, listener: &Arc<TcpListener>) {
        listener.pause();
        self.alarm.set(self.parked.add(self.clock.now(), listener));
    }

    /// A listener that was given up a moment ago, and listened so.
    pub(super) fn unpark(&self, at: SocketAddr, v6_only: bool) -> Option<Arc<TcpListener>> {
        self.parked.take(at, v6_only)
    }

    /// A queue pair lets go of a stream: where the peer's TCP has not acknowledged all that was
    /// sent, the socket stays until then.
    pub(super) fn let_go(&self, fd: &Fd) {
        let is_sending = sys::unacknowledged(fd).is_ok_and(|bytes| bytes > 0);
        // Without a descriptor the kernel does as it does for every closed socket.
        if is_sending && let Ok(copy) = Fd::open(|| SockRef::from(fd).try_clone()) {
            self.alarm.set(self.closing.add(self.clock.now(), copy));
        }
    }

    /// For the engine: closes listeners that were given up, and streams that were let go of; when
    /// to come back.
    pub(crate) fn close_due(&self, now: u64) -> u64 {
        self.parked.close_due(now).min(self.closing.close_due(now))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    pub(super) fn opened(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// When a thread last polled, in nanoseconds of the clock.
    pub(crate) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// Reads the hot stream whose turn it is, for a thread that polls a completion queue. One that
    /// another thread reads counts as empty.
    #[inline]
    pub(crate) fn poll(&self, at: Instant, now: u64, handler: &impl InputHandler) -> Drained {
        if self.is_empty() {
            return Drained::Empty;
        }
        self.polled_at.store(now, Ordering::Relaxed);
        let hot = self.hot.load();
        if hot.is_empty() {
            return Drained::Empty;
        }
        let turn = self.turn.load(Ordering::Relaxed);
        let index = next_hot(hot.len(), turn, now, |index| hot[index].delivered_at.load(Ordering::Relaxed));
        let stream = &hot[index];
        stream.lease.renew(now);
        stream.send_more(at, false, handler);
        match stream.read(1, at, false, handler) {
            (found @ Drained::Some { .. }, _) => {
                stream.delivered_at.store(now, Ordering::Relaxed);
                stream.lease.poll_found();
                found
            }
            _ => {
                self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
                Drained::Empty
            }
        }
    }

    /// Hands all streams back to the engine at once: the calling thread stops polling.
    pub(crate) fn end_polling(&self) {
        for stream in &**self.hot.load() {
            stream.lease.end();
            stream.arm(&self.reactor);
        }
    }

    /// The engine read something from a stream: where a thread polls, that is for it from now on.
    pub(crate) fn delivered_by_engine(&self, stream: &Arc<TcpStream>, now: u64) {
        stream.delivered_at.store(now, Ordering::Relaxed);
        let is_polled = now.saturating_sub(self.polled_at()) < LEASE_NANOS;
        if is_polled && self.hot.load().iter().all(|hot| hot.token != stream.token) {
            self.heat(stream, now);
        }
    }

    /// Makes a stream hot, where there is room or another went cold.
    fn heat(&self, stream: &Arc<TcpStream>, now: u64) {
        let _changing = self.changing.lock();
        // One that ends now waits for the lock, to be forgotten.
        if !stream.may_come() {
            return;
        }
        let mut hot = Vec::clone(&self.hot.load());
        if hot.len() >= MAX_HOT {
            let delivered_at = |stream: &TcpStream| stream.delivered_at.load(Ordering::Relaxed);
            let Some(coldest) = hot.iter().min_by_key(|stream| delivered_at(stream)).cloned() else { return };
            if now.saturating_sub(delivered_at(&coldest)) < COLD_NANOS {
                return;
            }
            hot.retain(|stream| stream.token != coldest.token);
            coldest.lease.end();
            coldest.arm(&self.reactor);
        }
        hot.push(stream.clone());
        self.hot.store(Arc::new(hot));
    }

    /// Nothing more is told of a stream.
    pub(super) fn forget(&self, token: u64) {
        let _changing = self.changing.lock();
        if self.hot.load().iter().any(|stream| stream.token == token) {
            let stays = |stream: &&Arc<TcpStream>| stream.token != token;
            self.hot.store(Arc::new(self.hot.load().iter().filter(stays).cloned().collect()));
        }
    }
}
