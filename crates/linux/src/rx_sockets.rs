//! The RoCEv2 port of this host's addresses: which sockets are open, which of them a polling thread
//! looks at, which flows have one of their own.
//!
//! The port is opened on each address, never on the wildcard, and shared with the other processes
//! of this user (SO_REUSEPORT): a hash decides which of them gets a packet. One that is not its
//! owner hands the packet over; a flow for which that happens again and again gets a socket at its
//! owner that is connected to the peer (`promotion`), and then the kernel itself takes it there.

mod promotion;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use local::Drained;
use local::lease::LEASE_NANOS;
use locks::{Mutex, MutexGuard, Rank};
use nic::Errno;
use socket2::{SockAddr, SockRef};
use stack::InputHandler;
use sys::clock::Clock;
use sys::fork::Fd;

use crate::Config;
use crate::counters::{Counters, add};
use crate::interfaces::Known;
use crate::leased::{COLD_NANOS, Leased, MAX_HOT, next_hot};
use crate::reactor::{IN, Reactor, Source};
use crate::rx_socket::{Delivery, RxSocket};
use crate::sockets::{self, ROCE_PORT, endpoint};

/// Every how many fruitless polls a socket is tried that is not hot.
const COLD_TURN: u32 = 16;
/// How often one poll reads a socket that brings bundles.
const READS_PER_POLL: usize = 8;
/// Batches that may leave between two polls of one thread without the
/// engine taking its place: more than the largest window.
const MAX_BATCHES: u32 = 64;
/// What one of them takes at most, the system call included.
const BATCH_NANOS: u64 = 30_000;
/// The port of the service that answers nothing (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Rounds of as many reads in which a process that may end empties a socket.
const SWEEP_ROUNDS: u32 = 1024;

/// All sockets that receive.
pub(crate) struct RxSockets {
    state: Mutex<State>,
    lineup: ArcSwap<Lineup>,
    /// Counts fruitless polls; says whose turn it is.
    turn: AtomicU32,
    /// When a thread last polled; later than now while that thread sends many packets.
    polled_at: AtomicU64,
    /// The thread that did, and how many batches may still count as polls of its.
    poller: AtomicU32,
    batches_left: AtomicU32,
}

#[derive(Default)]
struct State {
    attached: Vec<u32>,
    /// Addresses of attached interfaces whose port another user or the kernel's rdma_rxe has.
    in_use: Vec<(u32, IpAddr)>,
    /// Packets of each flow (peer, our address) that came by way of another process.
    forwarded: HashMap<(SocketAddr, SocketAddr), u32>,
}

/// The sockets in the order they are polled.
#[derive(Default)]
struct Lineup {
    sockets: Vec<Arc<RxSocket>>,
    /// So many at the start are hot: they brought the latest packets.
    hot: usize,
}

/// What opening sockets needs.
pub(crate) struct Opener<'a> {
    pub(crate) config: &'a Config,
    pub(crate) clock: &'a Clock,
    pub(crate) reactor: &'a Reactor,
    pub(crate) counters: &'a Counters,
}

impl Default for RxSockets {
    fn default() -> Self {
        Self {
            state: Mutex::new(Rank::RxSockets, State::default()),
            lineup: ArcSwap::default(),
            turn: AtomicU32::new(0),
            polled_at: AtomicU64::new(0),
            poller: AtomicU32::new(0),
            batches_left: AtomicU32::new(0),
        }
    }
}

impl RxSockets {
    /// Opens the port on all addresses of an interface. The error is that of the first address that
    /// was refused, where none could be opened.
    pub(crate) fn attach(&self, interface: u32, known: &Known, with: &Opener<'_>) -> Result<(), Errno> {
        let mut state = self.lock();
        if known.by_index(interface).is_none() {
            return Err(Errno::ENODEV);
        }
        let new = !state.attached.contains(&interface);
        if new {
            state.attached.push(interface);
        }
        let result = self.open_missing(&mut state, known, with);
        let opened = self.lineup.load().sockets.iter().any(|socket| socket.interface == interface);
        match result {
            Err(error) if !opened => {
                if new {
                    state.attached.retain(|attached| *attached != interface);
                }
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    /// Follows a change of addresses: closes what is gone, opens what is new.
    pub(crate) fn follow(&self, known: &Known, with: &Opener<'_>) {
        let mut state = self.lock();
        let lineup = self.lineup.load_full();
        let stays = |socket: &&Arc<RxSocket>| {
            let address = socket.dest.ip();
            known
                .by_index(socket.interface)
                .is_some_and(|interface| address.is_multicast() || interface.addresses.contains(&address))
        };
        let gone = lineup.sockets.iter().filter(|socket| !stays(socket));
        gone.for_each(|socket| with.reactor.remove(socket.token, &**socket));
        let hot = lineup.sockets[..lineup.hot].iter().filter(stays).count();
        let sockets = lineup.sockets.iter().filter(stays).cloned().collect();
        self.lineup.store(Arc::new(Lineup { sockets, hot }));
        // A refused address is counted; there is no caller to return the error to.
        let _ = self.open_missing(&mut state, known, with);
    }

    /// The addresses of an interface whose port another user or the kernel's rdma_rxe had when it
    /// was last tried: no packet for them arrives here.
    pub(crate) fn in_use(&self, interface: u32) -> Vec<IpAddr> {
        let state = self.lock();
        state.in_use.iter().filter(|(index, _)| *index == interface).map(|(_, address)| *address).collect()
    }

    /// The first error is returned, after all addresses have been tried.
    fn open_missing(&self, state: &mut State, known: &Known, with: &Opener<'_>) -> io::Result<()> {
        let mut result = Ok(());
        for interface in known.list.iter().filter(|interface| state.attached.contains(&interface.index)) {
            for &address in &interface.addresses {
                let dest = endpoint(address, ROCE_PORT, interface.index);
                if self
                    .lineup
                    .load()
                    .sockets
                    .iter()
                    .any(|socket| socket.dest == dest && socket.peer.is_none())
                {
                    continue;
                }
                let opened = self.open(dest, interface.index, None, with);
                state.in_use.retain(|known| *known != (interface.index, address));
                if let Err(error) = opened {
                    add(&with.counters.addresses_refused, 1);
                    if error.kind() == io::ErrorKind::AddrInUse {
                        state.in_use.push((interface.index, address));
                    }
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    fn open(
        &self,
        dest: SocketAddr,
        interface: u32,
        peer: Option<SocketAddr>,
        with: &Opener<'_>,
    ) -> io::Result<()> {
        let fd = sockets::receiver(dest, peer, with.config)?;
        self.add(fd, dest, interface, peer, with)
    }

    /// Opens the port on the address of a multicast group, for what comes in through one interface.
    /// Every process that does gets its own copy of each packet.
    pub(crate) fn join(&self, interface: u32, group: IpAddr, with: &Opener<'_>) -> io::Result<()> {
        let _state = self.lock();
        let (fd, dest) = sockets::group_receiver(group, interface, with.config)?;
        self.add(fd, dest, interface, None, with)
    }

    /// Undoes [`RxSockets::join`].
    pub(crate) fn leave(&self, interface: u32, group: IpAddr, reactor: &Reactor) {
        let _state = self.lock();
        let lineup = self.lineup.load_full();
        let goes = |socket: &&Arc<RxSocket>| socket.dest.ip() == group && socket.interface == interface;
        let stays = |socket: &&Arc<RxSocket>| !goes(socket);
        lineup.sockets.iter().filter(goes).for_each(|socket| reactor.remove(socket.token, &**socket));
        let hot = lineup.sockets[..lineup.hot].iter().filter(stays).count();
        let sockets = lineup.sockets.iter().filter(stays).cloned().collect();
        self.lineup.store(Arc::new(Lineup { sockets, hot }));
    }

    fn add(
        &self,
        fd: Fd,
        dest: SocketAddr,
        interface: u32,
        peer: Option<SocketAddr>,
        with: &Opener<'_>,
    ) -> io::Result<()> {
        let (token, now) = (with.reactor.token(), with.clock.now());
        let socket = Arc::new(RxSocket::new(fd, token, dest, interface, peer, now));
        with.reactor.add(socket.token, &*socket, IN, Source::Receive(socket.clone()))?;
        let lineup = self.lineup.load();
        let mut sockets = lineup.sockets.clone();
        sockets.push(socket);
        self.lineup.store(Arc::new(Lineup { sockets, hot: lineup.hot }));
        Ok(())
    }

    /// Tries the socket whose turn it is, for a thread that polls a completion queue, at this time.
    /// One that another thread reads counts as empty.
    #[inline]
    pub(crate) fn poll<G: InputHandler>(&self, instant: Instant, to: &Delivery<'_, G>) -> Drained {
        let lineup = self.lineup.load();
        let Lineup { sockets, hot } = &**lineup;
        if sockets.is_empty() {
            return Drained::Empty;
        }
        let now = to.clock.nanos(instant);
        self.polled_at.store(now, Ordering::Relaxed);
        self.poller.store(sys::thread::own_thread(), Ordering::Relaxed);
        self.batches_left.store(MAX_BATCHES, Ordering::Relaxed);
        let turn = self.turn.load(Ordering::Relaxed);
        let cold = sockets.len() - hot;
        let index = if *hot == 0 {
            turn as usize % cold
        } else if cold > 0 && turn % COLD_TURN == COLD_TURN - 1 {
            hot + (turn / COLD_TURN) as usize % cold
        } else {
            next_hot(*hot, turn, now, |index| sockets[index].delivered_at())
        };
        let socket = &sockets[index];
        if index < *hot {
            socket.lease.renew(now);
        }
        match socket.drain(READS_PER_POLL, Some(instant), to) {
            found @ Drained::Some { .. } => {
                if index >= *hot {
                    self.heat(socket, now);
                }
                socket.lease.poll_found();
                found
            }
            nothing => {
                // The engine reads it: it leaves a hot socket to the thread that polls.
                if nothing == Drained::Busy && index >= *hot {
                    self.heat(socket, now);
                    socket.lease.renew(now);
                }
                self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
                Drained::Empty
            }
        }
    }

    /// The calling thread sends a batch. If it is the one that polls, and the batch is long or not
    /// the first since that poll, it will be back at the sockets when all has left that windows let
    /// go: the engine would only take the processor and the queue pair's lock from it meanwhile. A
    /// program that sends and polls no more has its packets later by [`MAX_BATCHES`] at most.
    pub(crate) fn sends(&self, is_long: bool, clock: &Clock) {
        let left = self.batches_left.load(Ordering::Relaxed);
        if left == 0 || self.poller.load(Ordering::Relaxed) != sys::thread::own_thread() {
            return;
        }
        self.batches_left.store(left - 1, Ordering::Relaxed);
        if left == MAX_BATCHES && !is_long {
            return;
        }
        let now = clock.now();
        self.polled_at.store(now + BATCH_NANOS, Ordering::Relaxed);
        let lineup = self.lineup.load();
        for socket in &lineup.sockets[..lineup.hot] {
            if socket.lease.ends_at(now).is_some() {
                socket.lease.renew(now);
            }
        }
    }

    /// Takes what waits at any of the sockets now to the input handler, [`SWEEP_ROUNDS`] times a
    /// socket at most because peers may go on sending; where another thread does, waits until
    /// it has.
    pub(crate) fn drain_all<G: InputHandler>(&self, to: &Delivery<'_, G>) {
        // One call for many of them: most are empty, and a server has one for each flow that found
        // it.
        for sockets in self.lineup.load().sockets.chunks(sys::ASKED_AT_ONCE) {
            let readable = sys::readable(sockets.iter().map(|socket| socket.fd()));
            for (socket, readable) in sockets.iter().zip(readable) {
                if !readable && socket.is_quiet() {
                    continue;
                }
                for _ in 0..SWEEP_ROUNDS {
                    if socket.drain_in_turn(READS_PER_POLL, to) == Drained::Empty {
                        break;
                    }
                }
            }
        }
    }

    /// From now on packets go past the sockets of our addresses, to the other processes that share
    /// the port. A connected socket gets those of its peer alone (net/core/sock_reuseport.c leaves
    /// it out), and no thread sends from this one's. What lies in them stays there. Where it fails
    /// all is as before.
    pub(crate) fn leave_reuseport_group(&self) {
        for socket in &self.lineup.load().sockets {
            if socket.peer.is_none() && !socket.dest.ip().is_multicast() {
                let nobody = endpoint(socket.dest.ip(), DISCARD_PORT, socket.interface);
                let _ = SockRef::from(socket.fd()).connect(&SockAddr::from(nobody));
            }
        }
    }

    /// Whether nothing is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.lineup.load().sockets.is_empty()
    }

    /// Calls `serve` for each socket at which messages of connection managers wait.
    pub(crate) fn each_with_backlog(&self, mut serve: impl FnMut(&RxSocket)) {
        let lineup = self.lineup.load();
        lineup.sockets.iter().filter(|socket| socket.has_backlog()).for_each(|socket| serve(socket));
    }

    /// When a thread last polled, in nanoseconds of the clock.
    pub(crate) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// Hands all sockets back to the engine at once: the calling thread stops polling.
    pub(crate) fn end_polling(&self, reactor: &Reactor) {
        let lineup = self.lineup.load();
        for socket in &lineup.sockets[..lineup.hot] {
            socket.lease.end();
            socket.arm(reactor);
        }
    }

    /// The engine got packets out of a socket: where a thread polls, that is for it from now on.
    pub(crate) fn delivered_by_engine(&self, socket: &Arc<RxSocket>, now: u64) {
        if now.saturating_sub(self.polled_at.load(Ordering::Relaxed)) < LEASE_NANOS {
            self.heat(socket, now);
        }
    }

    /// Makes a socket hot, where there is room or another went cold.
    fn heat(&self, socket: &Arc<RxSocket>, now: u64) {
        let place = |lineup: &Lineup| {
            let index = lineup.sockets.iter().position(|other| other.token == socket.token)?;
            if index < lineup.hot {
                return None;
            }
            if lineup.hot < MAX_HOT {
                return Some((index, lineup.hot, lineup.hot + 1));
            }
            let hot = &lineup.sockets[..lineup.hot];
            let coldest = (0..hot.len()).min_by_key(|&index| hot[index].delivered_at())?;
            let idle = now.saturating_sub(hot[coldest].delivered_at());
            (idle > COLD_NANOS).then_some((index, coldest, lineup.hot))
        };
        // Most calls end here, without the lock.
        if place(&self.lineup.load()).is_none() {
            return;
        }
        let _state = self.lock();
        let lineup = self.lineup.load();
        if let Some((from, to, hot)) = place(&lineup) {
            let mut sockets = lineup.sockets.clone();
            sockets.swap(from, to);
            self.lineup.store(Arc::new(Lineup { sockets, hot }));
        }
    }

    /// Closes all sockets, but for those that a thread is reading just now: these a moment later.
    pub(crate) fn close(&self, reactor: &Reactor) {
        let _state = self.lock();
        let lineup = self.lineup.swap(Arc::default());
        for socket in &lineup.sockets {
            reactor.remove(socket.token, &**socket);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
