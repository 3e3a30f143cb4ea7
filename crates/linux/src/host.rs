//! An input handler and its environment, running: how they start and stop, what threads ask;
//! `waiting`: how a thread waits for an event.

mod waiting;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use local::Drained;
use locks::{Mutex, Rank};
use nic::cq::Stamp;
use nic::{Cq, DeferredWork, Error};
use stack::{Input, InputHandler};
use transport::likely::unlikely;
use transport::op::Completion;

use crate::env::LinuxEnv;
use crate::fabric::FabricPlace;
use crate::progress;

/// What can be chosen about a host.
#[derive(Clone, Debug)]
pub struct Config {
    /// Send runs of equal packets with one system call (UDP_SEGMENT).
    pub segmentation: bool,
    /// Receive buffer of each socket in bytes; the kernel caps it at net.core.rmem_max.
    pub receive_buffer_bytes: u32,
    /// Send buffer of each socket in bytes; the kernel caps it at net.core.wmem_max.
    pub send_buffer_bytes: u32,
    /// After so many packets that came by way of another process a flow gets a socket of its own;
    /// at least 1.
    pub promote_after: u32,
    /// Send to other processes of this host by memory that both map, where they are our user's.
    pub same_host: bool,
    /// Be on a host of a simulated InfiniBand fabric, whose ports are the only interfaces then.
    pub fabric: Option<FabricPlace>,
    /// Have registered memory lie in large pages where it can, which other processes of this host
    /// copy faster.
    pub large_pages: bool,
    /// Called on the engine's thread, with nothing of the host locked: after it caught a panic of
    /// the input handler, and before it ends because it cannot wait.
    pub on_failure: fn(),
    /// Called once, the first time that another user or the kernel's rdma_rxe has the UDP port of
    /// addresses of an interface: its name, and these addresses.
    pub on_port_in_use: fn(&str, &[IpAddr]),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            segmentation: true,
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 4 << 20,
            promote_after: 4,
            same_host: true,
            fabric: None,
            large_pages: true,
            on_failure: || {},
            on_port_in_use: |_, _| {},
        }
    }
}

/// An input handler and the real environment under it, running.
///
/// Dropping it stops it. In a forked child an inherited host is inert: its descriptors are closed,
/// its calls do nothing, and dropping it touches neither threads nor descriptors.
pub struct Host<G: InputHandler> {
    env: Arc<LinuxEnv>,
    handler: Arc<G>,
    stop: Arc<AtomicBool>,
    engine: Mutex<Option<JoinHandle<()>>>,
    /// Polls in a row that brought packets and let no ACK go.
    found: AtomicU32,
    /// When a poll last looked at a clock, in ticks.
    looked_at: AtomicU64,
    /// The clock's time at a poll's last look, or a later one.
    time: AtomicU64,
    /// `packets_sent` when the sockets were emptied last.
    drained: AtomicU64,
    later: Arc<DeferredWork>,
}

/// After so many polls in a row that bring packets their ACKs leave: a sender's window is wider.
const POLLS_PER_ACK: u32 = 16;

/// A poll looks at a clock once in so many ticks: two microseconds or less of any processor. Where
/// rings bring the packets it looks for others, and after its leases, no oftener.
const FEW_TICKS: u64 = 2_000;

/// How often one poll looks for packets: about 100 us of small ones.
const LOOKS: u32 = 64;

/// How often a process that ends looks whether the engine has done what it was asked for.
const EXIT_PAUSE: Duration = Duration::from_micros(20);

impl<G: InputHandler> Host<G> {
    /// Opens the environment, makes the input handler on it, tells it the interfaces
    /// ([`Input::Interfaces`]) and starts the engine thread, named "verbena". Returns when that
    /// thread is at work: programs write over the C library's functions of memory (libfabric's
    /// memory hooks: munmap and its like), and a thread that is just starting is in the midst
    /// of them.
    ///
    /// # Errors
    ///
    /// What the system refused: descriptors (EMFILE, ENFILE), memory, netlink, a thread (EAGAIN).
    pub fn start(
        make_handler: impl FnOnce(Arc<LinuxEnv>) -> Arc<G>,
        config: Config,
    ) -> io::Result<Arc<Self>> {
        let env = Arc::new(LinuxEnv::open(config)?);
        let handler = make_handler(env.clone());
        handler.input(Instant::now(), Input::Interfaces(&env.interfaces()));
        let stop = Arc::new(AtomicBool::new(false));
        let later = Arc::new(DeferredWork::default());
        let engine = {
            let (env, handler, stop, later) = (env.clone(), handler.clone(), stop.clone(), later.clone());
            let at_work = Arc::new(Barrier::new(2));
            let thread = std::thread::Builder::new().name("verbena".to_owned());
            let theirs = at_work.clone();
            let engine = sys::thread::with_signals_blocked(|| {
                thread.spawn(move || progress::run(env, handler, &later, &stop, theirs))
            })?;
            at_work.wait();
            engine
        };
        let engine = Mutex::new(Rank::Engine, Some(engine));
        Ok(Arc::new(Self {
            env,
            handler,
            stop,
            engine,
            found: AtomicU32::new(0),
            looked_at: AtomicU64::new(0),
            time: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            later,
        }))
    }

    /// The input handler.
    pub fn handler(&self) -> &Arc<G> {
        &self.handler
    }

    /// The environment under it.
    pub fn env(&self) -> &Arc<LinuxEnv> {
        &self.env
    }

    /// Work that is to be done when no lock is held, by the engine thread and by threads that poll.
    pub fn later(&self) -> &Arc<DeferredWork> {
        &self.later
    }

    /// Whether this process started it; false in a forked child that inherited it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.env.is_ours()
    }

    /// For a thread that found its completion queue empty: takes what arrived from the sockets to
    /// the input handler, in the calling thread; returns whether anything came. Where nothing did
    /// it costs one system call.
    ///
    /// While it is called again and again (within 200 us) the engine thread leaves those sockets to
    /// the caller. Call it with no lock of the input handler held. A panic in the input handler
    /// comes through.
    #[inline]
    pub fn poll(&self) -> bool {
        self.look() != Drained::Empty
    }

    /// Like [`Host::poll`], for a thread that will not come back soon. Where what arrived says
    /// nothing to the program (`says_something`), what it waits for may come after that, or be the
    /// answer to it. So it looks again, 64 times at most, but not where packets come in bulk, of
    /// which there is no end.
    #[inline(always)]
    pub fn poll_until(&self, says_something: impl Fn() -> bool) {
        let mut looks = 1;
        while self.look() == (Drained::Some { bulk: false }) && looks < LOOKS && !says_something() {
            looks += 1;
        }
    }

    /// `ibv_poll_cq`: hands at most `most` completions to `each`, the oldest first; how many there
    /// were. Where the queue is empty what has arrived is first taken from the sockets, in the
    /// calling thread ([`Host::poll`]). Call it with no lock of the input handler held.
    ///
    /// # Errors
    ///
    /// Those of [`Cq::poll`].
    #[inline]
    pub fn poll_cq(&self, cq: &Cq, most: usize, each: impl FnMut(Completion)) -> Result<usize, Error> {
        self.fill(cq);
        cq.poll(most, each)
    }

    /// Like [`Host::poll_cq`], for one completion (`ibv_start_poll`, `ibv_next_poll`), with its
    /// time stamp; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Those of [`Cq::poll_one`].
    #[inline]
    pub fn poll_cq_one(&self, cq: &Cq) -> Result<Option<(Completion, Stamp)>, Error> {
        self.fill(cq);
        cq.poll_one()
    }

    /// Before a look at a queue: where it is empty, what has arrived is taken from the sockets. A
    /// completion of another queue is news, too: the program may poll that next.
    #[inline(always)]
    fn fill(&self, cq: &Cq) {
        if cq.is_empty() {
            let before = nic::cq::added();
            self.poll_until(|| !cq.is_empty() || nic::cq::added() != before);
        }
    }

    #[inline(always)]
    fn look(&self) -> Drained {
        if unlikely(!self.is_ours()) {
            return Drained::Empty;
        }
        let LinuxEnv { clock, rings, .. } = &*self.env;
        let (ticks, list) = (sys::time::ticks(), rings.list());
        let is_new = ticks.wrapping_sub(self.looked_at.load(Ordering::Acquire)) >= FEW_TICKS;
        // Most looks find nothing in the rings, soon after one that saw to all else.
        if !is_new && self.found.load(Ordering::Relaxed) == 0 && rings.are_quiet(&list) {
            return Drained::Empty;
        }
        let now = if is_new { self.look_at_clock(ticks) } else { self.time.load(Ordering::Relaxed) };
        let (to, at) = (self.env.delivery(&*self.handler), clock.instant(now));
        rings.go_on(&*self.env);
        let by_rings = rings.poll(&list, at, now, &to.of_rings());
        drop(list);
        let mut drained = by_rings.unwrap_or(Drained::Empty);
        // Nothing comes by a socket to a host of a fabric.
        let has_sockets = || self.env.fabric.is_none();
        if drained == Drained::Empty && (by_rings.is_none() || rings.sockets_are_due(now)) && has_sockets() {
            drained = self.poll_sockets(at, now);
            if matches!(drained, Drained::Some { .. }) {
                rings.sockets_brought(now);
            }
        }
        // One ACK for what is there and for what was there before, as long as the sender need not
        // wait for it.
        let found = drained != Drained::Empty;
        // Two threads that count at once may count one: no more than an ACK a little later.
        let row = if found { self.found.load(Ordering::Relaxed) + 1 } else { 0 };
        let leave = row == 0 || row >= POLLS_PER_ACK;
        self.found.store(if leave { 0 } else { row }, Ordering::Relaxed);
        if leave {
            self.handler.release(true);
        }
        self.later.run();
        drained
    }

    /// Reads the socket, or the stream, whose turn it is.
    fn poll_sockets(&self, at: Instant, now: u64) -> Drained {
        match self.env.rx_sockets.poll(at, &self.env.delivery(&*self.handler)) {
            Drained::Empty => self.env.streams.poll(at, now, &*self.handler),
            found => found,
        }
    }

    /// The time, as it was a moment ago at most: where a thread polls, that of its last look at a
    /// clock, which takes longer than all the rest of many calls.
    #[inline]
    pub fn just_now(&self) -> Instant {
        let ticks = sys::time::ticks();
        let is_new = ticks.wrapping_sub(self.looked_at.load(Ordering::Acquire)) >= FEW_TICKS;
        let now = if is_new { self.look_at_clock(ticks) } else { self.time.load(Ordering::Relaxed) };
        self.env.clock.instant(now)
    }

    /// The time, for this look and for those of the next moment.
    fn look_at_clock(&self, ticks: u64) -> u64 {
        let now = self.env.clock.now();
        // A thread that was put to sleep in here does not set it back.
        let before = self.time.fetch_max(now, Ordering::Relaxed);
        self.looked_at.store(ticks, Ordering::Release);
        now.max(before)
    }

    /// For a thread whose process may end at once, after its last message: what it has sent to
    /// another process of this host may lie in a socket of its own, and is handed on. Costs
    /// nothing where nothing was sent since it was done before. Call it with no lock of the
    /// input handler held.
    pub fn drain_sent(&self) {
        let sent = self.env.counters.packets_sent.load(Ordering::Relaxed);
        if self.drained.load(Ordering::Relaxed) != sent {
            self.drain_all();
            // What was sent meanwhile may lie in a socket that was read before.
            self.drained.store(sent, Ordering::Relaxed);
        }
    }

    /// Takes all that has arrived to the input handler. Call it with no lock of the input handler
    /// held.
    pub fn drain_all(&self) {
        if self.is_ours() {
            let to = self.env.delivery(&*self.handler);
            self.env.rings.drain_all(&to.of_rings());
            self.env.rx_sockets.drain_all(&to);
        }
    }

    /// For the end of the process, where other threads may hold any lock: the engine empties its
    /// sockets, and the caller waits for it for `limit` at most.
    pub fn drain_at_exit(&self, limit: Duration) {
        let runs = self.engine.try_lock().is_some_and(|engine| engine.is_some());
        if !self.is_ours() || !runs || self.env.rx_sockets.is_empty() {
            return;
        }
        let end = Instant::now() + limit;
        self.env.sweep_asked.store(true, Ordering::Release);
        self.env.alarm.wake_fd.wake();
        while self.env.sweep_asked.load(Ordering::Acquire) && Instant::now() < end {
            std::thread::sleep(EXIT_PAUSE);
        }
    }

    /// For the very end of the process, when nothing of the program is left that would use it: the
    /// other processes that share its port get all packets from now on, and what lies in its
    /// sockets is handed on as by [`Host::drain_at_exit`]. Packets for others that landed here
    /// after that one would end with the process.
    pub fn leave_port(&self, limit: Duration) {
        if self.is_ours() {
            self.env.rx_sockets.leave_reuseport_group();
            self.drain_at_exit(limit);
        }
    }

    /// For a thread that polled and now is about to wait (on a completion channel): hands the
    /// sockets back to the engine at once. Without it the engine takes them back up to 200 us
    /// later.
    pub fn end_polling(&self) {
        if self.is_ours() {
            self.handler.release(true);
            self.env.rx_sockets.end_polling(&self.env.reactor);
            self.env.streams.end_polling();
            if !self.env.rings.end_polling() {
                self.env.alarm.set(0);
            }
        }
    }

    /// Stops the engine thread, waits until it has ended (unless it is the caller), and closes the
    /// sockets. Names are given back by their owners. Further calls do nothing.
    pub fn stop(&self) {
        if !self.is_ours() {
            return;
        }
        let engine = self.engine.lock().take();
        let Some(engine) = engine else { return };
        self.stop.store(true, Ordering::Release);
        self.env.alarm.wake_fd.wake();
        if engine.thread().id() != std::thread::current().id() {
            // A panic of the engine itself: there is nothing left of it to tidy up.
            let _ = engine.join();
        }
        self.env.close();
    }
}

impl<G: InputHandler> Drop for Host<G> {
    fn drop(&mut self) {
        if self.is_ours() {
            self.stop();
        } else if let Some(mut engine) = self.engine.try_lock() {
            // The thread does not exist in this process: a join handle must not even be dropped.
            std::mem::forget(engine.take());
        }
    }
}

impl<G: InputHandler> std::fmt::Debug for Host<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("environment", &self.env).finish_non_exhaustive()
    }
}
