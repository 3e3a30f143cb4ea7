//! The real world under a node: interfaces and routes by netlink, UDP sockets, names shared between the processes of
//! this host, and the engine thread that serves whoever does not poll.
//!
//! [`Host::start`] makes the world, has the guest made on it, and runs both; [`RealWorld`] is what the guest sees.
//!
//! | file | what |
//! |---|---|
//! | `world` | the world's face: [`nic::Link`], [`nic::Frames`], [`nic::Platform`] and [`node::World`] |
//! | `progress`, `alarm`, `reactor` | the thread, when it wakes, what it waits for |
//! | `tx` | the send path |
//! | `rx_sockets`, `rx_socket`, `management` | the receive path: which sockets, one of them, what waits there |
//! | `sockets` | how both kinds are set up |
//! | `frames` over `packet` | whole frames of an interface |
//! | `names` over `name_messages`, `user` | names, and packets handed from process to process of one user |
//! | `interfaces`, `routes`, `neighbours` over `netlink` | what the kernel knows of the network |
//! | `mount_namespace` | a file system view for one program |
//! | `fork`, `sys` | descriptors that end with a fork; system calls. With `packet` the only unsafe code |

mod alarm;
mod clock;
mod counters;
mod fork;
mod frames;
mod host_id;
mod interfaces;
mod lease;
mod management;
pub mod mount_namespace;
pub mod name_messages;
mod names;
mod neighbours;
mod netlink;
mod packet;
mod progress;
mod reactor;
mod routes;
mod rx_socket;
mod rx_sockets;
mod sockets;
mod sys;
mod tx;
mod user;
mod world;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use node::world::Interface;
use node::{Guest, Input};

pub use counters::Counters;
pub use world::RealWorld;

use rx_socket::{Delivery, Drained};

/// The interfaces of this host as they are now, with nothing started.
///
/// # Errors
///
/// What netlink refused.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut requests = netlink::Netlink::for_requests()?;
    let interfaces = interfaces::Interfaces::open(&mut requests).map_err(io::Error::from_raw_os_error)?;
    Ok(interfaces.current().list.clone())
}

/// What tells this host and network namespace from all others, see [`node::devices::guid`]; 40 bits.
pub fn host_id() -> u64 {
    host_id::host_id()
}

/// The effective user of this process.
pub fn user() -> u32 {
    sys::own_uid()
}

/// Whether a shared object in this directory can be loaded: not where the file system is mounted with `noexec`.
///
/// # Errors
///
/// What statvfs(3) says.
pub fn may_load_from(dir: &std::path::Path) -> io::Result<bool> {
    Ok(!sys::refuses_execution(&mount_namespace::c_path(dir)?)?)
}

/// What can be chosen about a host.
#[derive(Clone, Debug)]
pub struct Config {
    /// Send runs of equal packets with one system call (UDP_SEGMENT).
    pub segmentation: bool,
    /// Receive buffer of each socket in bytes; the kernel caps it at net.core.rmem_max.
    pub receive_buffer_bytes: u32,
    /// Send buffer of each socket in bytes; the kernel caps it at net.core.wmem_max.
    pub send_buffer_bytes: u32,
    /// After so many packets that came by way of another process a flow gets a socket of its own; at least 1.
    pub promote_after: u32,
    /// Called on the engine's thread after it caught a panic of the guest, with nothing of the host locked.
    pub on_panic: fn(),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segmentation: true,
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 4 << 20,
            promote_after: 4,
            on_panic: || {},
        }
    }
}

/// A guest and the real world under it, running.
///
/// Dropping it stops it. In a forked child an inherited host is inert: its descriptors are closed, its calls do
/// nothing, and dropping it touches neither threads nor descriptors.
pub struct Host<G: Guest> {
    world: Arc<RealWorld>,
    guest: Arc<G>,
    stop: Arc<AtomicBool>,
    engine: Mutex<Option<JoinHandle<()>>>,
    /// Polls in a row that brought packets and let no ACK go.
    found: AtomicU32,
}

/// After so many polls in a row that bring packets their ACKs leave: a sender's window is wider.
const POLLS_PER_ACK: u32 = 16;

/// How often one poll looks for packets: about 100 us of small ones.
const LOOKS: u32 = 64;

/// How often a process that ends looks whether the engine has done what it was asked for.
const EXIT_PAUSE: Duration = Duration::from_micros(20);

impl<G: Guest> Host<G> {
    /// Opens the world, makes the guest on it, tells it the interfaces ([`Input::Interfaces`]) and starts the engine
    /// thread, named "verbena". Returns when that thread is at work: programs write over the C library's functions of memory
    /// (libfabric's memory hooks: munmap and its like), and a thread that is just starting is in the midst of them.
    ///
    /// # Errors
    ///
    /// What the system refused: descriptors (EMFILE, ENFILE), memory, netlink, a thread (EAGAIN).
    pub fn start(
        make_guest: impl FnOnce(Arc<RealWorld>) -> Arc<G>,
        config: Config,
    ) -> io::Result<Arc<Host<G>>> {
        let world = Arc::new(RealWorld::open(config)?);
        let guest = make_guest(world.clone());
        guest.input(Instant::now(), Input::Interfaces(&world.interfaces()));
        let stop = Arc::new(AtomicBool::new(false));
        let engine = {
            let (world, guest, stop) = (world.clone(), guest.clone(), stop.clone());
            let at_work = Arc::new(Barrier::new(2));
            let thread = std::thread::Builder::new().name("verbena".to_owned());
            let theirs = at_work.clone();
            let engine = sys::with_signals_blocked(|| {
                thread.spawn(move || progress::run(world, guest, &stop, theirs))
            })?;
            at_work.wait();
            engine
        };
        Ok(Arc::new(Host { world, guest, stop, engine: Mutex::new(Some(engine)), found: AtomicU32::new(0) }))
    }

    /// The guest.
    pub fn guest(&self) -> &Arc<G> {
        &self.guest
    }

    /// The world under it.
    pub fn world(&self) -> &Arc<RealWorld> {
        &self.world
    }

    /// Whether this process started it; false in a forked child that inherited it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.world.is_ours()
    }

    /// For a thread that found its completion queue empty: takes what arrived from the sockets to the guest, in the
    /// calling thread; returns whether anything came. Where nothing did it costs one system call.
    ///
    /// While it is called again and again (within 200 us) the engine thread leaves those sockets to the caller. Call it
    /// with no lock of the guest held. A panic in the guest comes through.
    #[inline]
    pub fn poll(&self) -> bool {
        self.look() != Drained::Empty
    }

    /// The same for a thread that will not come back soon: where what arrived says nothing to the program (`says_something`), what it
    /// waits for may lie behind that, or be the answer to it. So it looks again, 64 times at most, but not where
    /// packets come in bulk, of which there is no end.
    #[inline]
    pub fn poll_until(&self, says_something: impl Fn() -> bool) {
        let mut looks = 1;
        while self.look() == (Drained::Some { bulk: false }) && looks < LOOKS && !says_something() {
            looks += 1;
        }
    }

    #[inline]
    fn look(&self) -> Drained {
        if !self.is_ours() {
            return Drained::Empty;
        }
        let RealWorld { clock, counters, rx_sockets, alarm, .. } = &*self.world;
        let drained = rx_sockets.poll(&Delivery { guest: &*self.guest, clock, counters, alarm });
        // One ACK for what is there and for what was there before, as long as the sender need not wait for it.
        let found = drained != Drained::Empty;
        let row = if found { self.found.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        if row == 0 || row >= POLLS_PER_ACK {
            self.found.store(0, Ordering::Relaxed);
            self.guest.release(true);
        }
        drained
    }

    /// For a thread whose process may end at once, after its last message: what it has sent to another process of this host may
    /// lie in a socket of its own, and is handed on. Call it with no lock of the guest held.
    pub fn drain_all(&self) {
        if self.is_ours() {
            let RealWorld { clock, counters, rx_sockets, alarm, .. } = &*self.world;
            rx_sockets.drain_all(&Delivery { guest: &*self.guest, clock, counters, alarm });
        }
    }

    /// For the end of the process, where other threads may hold any lock: the engine empties its sockets, and the caller waits for it for `limit`
    /// at most.
    pub fn drain_at_exit(&self, limit: Duration) {
        let runs = self.engine.try_lock().is_ok_and(|engine| engine.is_some());
        if !self.is_ours() || !runs || self.world.rx_sockets.is_empty() {
            return;
        }
        let end = Instant::now() + limit;
        self.world.sweep_asked.store(true, Ordering::Release);
        self.world.alarm.bell.ring();
        while self.world.sweep_asked.load(Ordering::Acquire) && Instant::now() < end {
            std::thread::sleep(EXIT_PAUSE);
        }
    }

    /// For a thread that polled and now is about to wait (on a completion channel): hands the sockets back to the
    /// engine at once. Without it the engine takes them back up to 200 us later.
    pub fn end_polling(&self) {
        if self.is_ours() {
            self.guest.release(true);
            self.world.rx_sockets.end_polling(&self.world.reactor);
        }
    }

    /// Stops the engine thread, waits until it has ended (unless it is the caller), and closes the sockets. Names are given
    /// back by those who hold them. Further calls do nothing.
    pub fn stop(&self) {
        if !self.is_ours() {
            return;
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(engine) = engine else { return };
        self.stop.store(true, Ordering::Release);
        self.world.alarm.bell.ring();
        if engine.thread().id() != std::thread::current().id() {
            // A panic of the engine itself: there is nothing left of it to tidy up.
            let _ = engine.join();
        }
        self.world.close();
    }
}

impl<G: Guest> Drop for Host<G> {
    fn drop(&mut self) {
        if self.is_ours() {
            self.stop();
        } else if let Ok(mut engine) = self.engine.try_lock() {
            // The thread does not exist in this process: a join handle must not even be dropped.
            std::mem::forget(engine.take());
        }
    }
}

impl<G: Guest> std::fmt::Debug for Host<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("world", &self.world).finish_non_exhaustive()
    }
}
