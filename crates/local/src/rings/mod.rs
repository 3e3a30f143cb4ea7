//! Packets between processes of this host, by memory that they share: no system call, no checksum,
//! no copy by the kernel.
//!
//! A process that sends to a queue pair of another one of its user, at one of this host's
//! addresses, makes a ring and hands its memory over the connection to the name of the other one's
//! block ([`NameOwner`]). From then on all packets for that process go by the ring, the first
//! one too: so they keep their order. There is one ring for each direction, and one for what a
//! process sends to itself. Packets to multicast groups go by the network, as it is unknown which
//! processes they are for. Messages of connection managers go by the ring, too, where there is one
//! (`messages`). Before one that came another way is dispatched the rings are read, so that it does
//! not overtake what was sent before it.
//!
//! Readers: a thread that polls looks at each ring, which costs it a load or two; while it does
//! (`lease`) no thread wakes another. Else the engine thread says in each ring that it sleeps, and
//! a writer then sends it a message over the connection to the name. Or a thread that waits for an
//! event does (`driver_slot`).
//!
//! Where there is no ring (another user's process, no memory, a process that takes none) packets go
//! by the network.
//!
//! | file | what |
//! |---|---|
//! | this one | which rings there are |
//! | `messages` | messages of connection managers |
//! | `polls` | what a thread that polls does with those that it reads |
//! | `ledger` | what the writer of a ring counts for its reader |
//! | `fragments` | what needs no packets: short messages, and many packets at once |
//! | `reached` | memory at the other end of one |
//! | `cached_peer` | what a queue pair keeps of its way |
//! | `tx_ring`, `rx_ring` | the two ends |
//! | `driver_slot`, `adaptive_spin` | the thread of the program that reads the rings while it waits; and that looks for a moment before it sleeps |
//! | `imports`, `exportable`, `brought_by` | what this process exports, and to which ring: that by which what is executed just now came |

pub mod adaptive_spin;
mod brought_by;
mod cached_peer;
pub mod driver_slot;
mod export_on_request;
mod fragments;
mod imports;
mod ledger;
mod messages;
mod peer_copy;
mod polls;
mod rx_ring;
mod tx_ring;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use locks::{Mutex, Rank, RwLock};
use nic::Path;
use sys::fork::Fd;
use transport::TxBatch;
use wire::Qpn;

use crate::counters::{Counters, add};
use crate::env::{Connection, Delivery, Drained, Env, NameOwner, PacketHandler};
use crate::exportable::Exportable;
use crate::lease::Lease;
use crate::peer_memory::{Cleared, ExportTable};
use crate::record::Ends;
use ledger::LastWords;
pub use ledger::{Ledger, Passed, Traffic};
pub use tx_ring::{Backlog, ROOM};

use driver_slot::DriverSlot;
use rx_ring::RxRing;
use tx_ring::{Head, Sent, TxRing};

/// How long a thread that reads counters waits for the lock over the rings.
const MAX_LOCK_WAIT: Duration = Duration::from_millis(100);
/// Most rings that are read: so much memory others can make us map.
const MAX_READ: usize = 512;
/// Where there was no ring to be had, no thread asks again for so long.
const ASK_AGAIN_NANOS: u64 = 200_000_000;
/// How many records the engine takes out of a ring before the others get their turn.
const RECORDS_PER_TURN: usize = 64;
/// Rounds of as many records in which a ring is emptied.
const SWEEP_ROUNDS: u32 = 256;

/// Whether packets for a process go by a ring.
enum PeerChannel {
    Ring(Arc<TxRing>),
    /// The process at the end of this connection declined.
    Declined {
        owner: u64,
    },
    /// There was no ring to be had. None is asked for until then, by the environment's clock.
    Network {
        until: u64,
    },
}

/// All rings of this process, and what it exports by them. `O`: what is kept of the ring that a
/// packet came by ([`PacketHandler::Origin`]).
pub struct Rings<O> {
    enabled: bool,
    tx: RwLock<BTreeMap<u16, PeerChannel>>,
    /// Something waits because a ring is full.
    waiting: AtomicBool,
    rx: ArcSwap<Vec<Arc<RxRing<O>>>>,
    /// Held while `rx` changes.
    changing: Mutex<()>,
    /// Which ring's turn it is, where there are many.
    turn: AtomicU32,
    /// Whether polling threads read the rings, the engine, or both.
    pub lease: Lease,
    polled_at: AtomicU64,
    /// When the rings last brought something to a poll.
    delivered_at: AtomicU64,
    /// When a thread that polls last looked at the sockets.
    sockets_at: AtomicU64,
    /// When a look at the sockets last brought something.
    sockets_brought_at: AtomicU64,
    /// The sockets brought packets lately, when that was asked last.
    busy: AtomicBool,
    /// An ACK for what came waits until all is read that is there.
    ack_waits: AtomicBool,
    /// The driver slot of a thread that reads the rings while it waits.
    pub driver_slot: Arc<DriverSlot>,
    /// The thread in the driver slot owes wakes to readers of what it sent.
    has_pending_wake: AtomicBool,
    /// What the processes that write the rings may reach.
    exports: ExportTable,
    /// The regions that it is of.
    exportable: Exportable,
    last_words: LastWords,
    files: AtomicU64,
}

impl<O: Send> Rings<O> {
    /// No rings yet. `enabled`: whether there shall be any.
    ///
    /// # Errors
    ///
    /// Those of [`DriverSlot::new`].
    pub fn new(enabled: bool) -> std::io::Result<Self> {
        Ok(Self {
            enabled,
            tx: RwLock::new(Rank::TxRings, BTreeMap::new()),
            waiting: AtomicBool::new(false),
            rx: ArcSwap::default(),
            changing: Mutex::new(Rank::RxRings, ()),
            turn: AtomicU32::new(0),
            lease: Lease::default(),
            polled_at: AtomicU64::new(0),
            delivered_at: AtomicU64::new(0),
            sockets_at: AtomicU64::new(0),
            sockets_brought_at: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            ack_waits: AtomicBool::new(false),
            driver_slot: Arc::new(DriverSlot::new()?),
            has_pending_wake: AtomicBool::new(false),
            exports: ExportTable::default(),
            exportable: Exportable::default(),
            last_words: LastWords::default(),
            files: AtomicU64::new(0),
        })
    }

    /// Sends a batch to a process of this host; false where it has to go by the network.
    #[inline]
    pub fn send(&self, path: &Path, batch: &mut TxBatch, env: &impl Env) -> bool {
        if !self.enabled || path.dest_qpn == Qpn::GSI || path.dest.is_multicast() {
            return false;
        }
        let (block, version) = (block(path.dest_qpn), env.version());
        if let Some(PeerChannel::Ring(ring)) = self.tx.read().get(&block) {
            let (bytes, runs) = batch.parts_mut();
            if let Some(sent) = ring.send_again(path, version, bytes, runs, env.counters()) {
                return self.have_sent(sent, batch, env);
            }
        }
        let Some(ends) = self.ends_here(path, env) else { return false };
        let Some(ring) = self.to(block, env) else { return false };
        self.push(&ring, Head::new(path, version, &ends), batch, env)
    }

    /// The ends of a path, where it leads to this host and packets need not go by the network.
    #[inline]
    pub fn ends_here(&self, path: &Path, env: &impl Env) -> Option<Ends> {
        self.enabled.then(|| env.ends(path))?
    }

    /// Sends a batch by a ring; false where that is of no use.
    fn push(&self, ring: &TxRing, head: Head, batch: &mut TxBatch, env: &impl Env) -> bool {
        let (bytes, runs) = batch.parts_mut();
        self.have_sent(ring.send(head, bytes, runs, env.counters()), batch, env)
    }

    #[inline]
    fn have_sent(&self, sent: Sent, batch: &TxBatch, env: &impl Env) -> bool {
        match sent {
            Sent::All => {}
            Sent::Later => {
                if !self.waiting.swap(true, Ordering::AcqRel) {
                    env.wake_engine();
                }
            }
            // What went by it before may be lost; protocols above repeat it.
            Sent::Over => return false,
        }
        add(&env.counters().ring_packets_sent, batch.len());
        true
    }

    /// Makes the ring to the process that has a queue pair, where it is of this host.
    pub fn prepare(&self, qpn: Qpn, env: &impl Env) {
        _ = self.to(block(qpn), env);
    }

    /// The ring to the process that bears a block.
    #[inline]
    fn to(&self, block: u16, env: &impl Env) -> Option<Arc<TxRing>> {
        match self.tx.read().get(&block) {
            Some(PeerChannel::Ring(ring)) => return Some(ring.clone()),
            Some(PeerChannel::Declined { .. }) => return None,
            Some(PeerChannel::Network { until }) if *until > env.clock().roughly() => return None,
            _ => {}
        }
        self.make(block, env)
    }

    #[cold]
    fn make(&self, block: u16, env: &impl Env) -> Option<Arc<TxRing>> {
        let mut tx = self.tx.write();
        match tx.get(&block) {
            Some(PeerChannel::Ring(ring)) => return Some(ring.clone()),
            Some(PeerChannel::Declined { .. }) => return None,
            _ => {}
        }
        let owner = env.owner(block);
        if let Ok(owner) = &owner
            && owner.has_declined()
        {
            add(&env.counters().other_builds, owner.is_other_build().into());
            tx.insert(block, PeerChannel::Declined { owner: owner.token() });
            return None;
        }
        let counters = env.counters();
        let offer = |owner| TxRing::offer(owner).inspect_err(|_| add(&counters.rings_refused, 1));
        match owner.and_then(offer) {
            Ok(ring) => {
                let ring = Arc::new(ring);
                add(&env.counters().rings_offered, 1);
                tx.insert(block, PeerChannel::Ring(ring.clone()));
                Some(ring)
            }
            Err(_) => {
                tx.insert(block, PeerChannel::Network { until: env.clock().roughly() + ASK_AGAIN_NANOS });
                None
            }
        }
    }

    /// The process at the end of this connection reads no ring: packets go by the network for as
    /// long as it lives.
    pub fn declined(&self, owner: &dyn NameOwner, env: &impl Env) {
        self.replace(owner, env, Some(PeerChannel::Declined { owner: owner.token() }));
    }

    /// The owner is gone; another one that bears its block is asked anew.
    pub fn ended(&self, owner: &dyn NameOwner, env: &impl Env) {
        self.replace(owner, env, None);
    }

    fn replace(&self, owner: &dyn NameOwner, env: &impl Env, by: Option<PeerChannel>) {
        let Some(block) = owner.block() else { return };
        let mut tx = self.tx.write();
        match tx.get(&block) {
            Some(PeerChannel::Ring(ring)) if ring.owner().token() == owner.token() => {
                ring.end();
                ring.fold_counters(env.counters());
            }
            Some(PeerChannel::Declined { owner: token }) if *token == owner.token() => {}
            _ => return,
        }
        match by {
            Some(way) => tx.insert(block, way),
            None => tx.remove(&block),
        };
    }

    /// Where what comes by these rings goes.
    #[inline(always)]
    pub fn delivery<'a, H: PacketHandler<Origin = O>>(
        &'a self,
        handler: H,
        counters: &'a Counters,
    ) -> Delivery<'a, H> {
        Delivery { handler, counters, ack_waits: &self.ack_waits }
    }

    /// Sends what waited for room in rings.
    #[inline]
    pub fn go_on(&self, env: &impl Env) -> Backlog {
        if self.waiting.load(Ordering::Acquire) { self.go_on_now(env) } else { Backlog::None }
    }

    #[cold]
    fn go_on_now(&self, env: &impl Env) -> Backlog {
        // Noted anew by a thread that finds a ring full meanwhile.
        self.waiting.store(false, Ordering::Release);
        let mut backlog = Backlog::None;
        for way in self.tx.read().values() {
            if let PeerChannel::Ring(ring) = way {
                backlog = backlog.max(ring.go_on(env.counters()));
            }
        }
        if backlog != Backlog::None {
            self.waiting.store(true, Ordering::Release);
        }
        backlog
    }

    /// A process offers a ring by which it will send.
    ///
    /// # Errors
    ///
    /// Where it can not be read, or there are too many.
    pub fn add(
        &self,
        (fd, nonce): (&Fd, u64),
        connection: Arc<dyn Connection>,
        env: &impl Env,
    ) -> std::io::Result<()> {
        let token = connection.token();
        let _changing = self.changing.lock();
        let rings = self.rx.load();
        if !self.enabled || rings.len() >= MAX_READ || rings.iter().any(|ring| ring.token() == token) {
            return Err(nic::Errno::ENOMEM.into());
        }
        let ring = Arc::new(RxRing::open(fd, nonce, connection.clone())?);
        self.say_files(ring.ledger());
        self.rx.store(Arc::new(rings.iter().cloned().chain([ring.clone()]).collect()));
        add(&env.counters().rings_taken, 1);
        self.driver_slot.wake_fd().into_iter().for_each(|wake_fd| connection.give(wake_fd));
        Ok(())
    }

    /// The process at the end of this connection took our ring, and this wakes a thread of it that
    /// waits.
    pub fn given(&self, owner: &dyn NameOwner, wake_fd: Fd) {
        if let Some(ring) = self.ring_over(owner) {
            ring.given(wake_fd);
        }
    }

    /// The ring that was offered over this connection.
    fn ring_over(&self, owner: &dyn NameOwner) -> Option<Arc<TxRing>> {
        self.ring_to(owner.block()?).filter(|ring| ring.owner().token() == owner.token())
    }

    /// Whether the process at the end of a path has not taken all that was sent to it.
    pub fn has_unread(&self, path: &Path) -> bool {
        self.known(path).is_some_and(|ring| ring.has_unread())
    }

    /// Whether there is a ring to the process at the end of a path.
    pub fn carries(&self, path: &Path) -> bool {
        self.known(path).is_some()
    }

    /// The ring to the process at the end of a path, if it is there.
    fn known(&self, path: &Path) -> Option<Arc<TxRing>> {
        self.ring_to(block(path.dest_qpn))
    }

    /// Waits until no process uses what was taken back.
    pub(crate) fn wait_for(&self, cleared: Cleared, env: &impl Env) {
        let mut began = None;
        self.rx.load().iter().for_each(|ring| ring.wait_for(cleared, &mut began, &self.exports, env));
    }

    /// The ring that is read by this name of it.
    pub(crate) fn reading(&self, token: u64) -> Option<Arc<RxRing<O>>> {
        self.rx.load().iter().find(|ring| ring.token() == token).cloned()
    }

    /// Whether no process says that it uses what was taken back.
    pub(crate) fn is_unused(&self, cleared: Cleared) -> bool {
        !self.rx.load().iter().any(|ring| ring.uses(cleared))
    }

    /// What came by the ring of this connection is dispatched, then the ring is forgotten.
    pub fn remove<H: PacketHandler<Origin = O>>(&self, token: u64, to: &Delivery<'_, H>) {
        let rings = self.rx.load();
        let Some(ring) = rings.iter().find(|ring| ring.token() == token) else { return };
        sweep(ring, to);
        ring.fold_counters(to.counters);
        self.keep_traffic(ring);
        let _changing = self.changing.lock();
        let left = self.rx.load().iter().filter(|ring| ring.token() != token).cloned().collect();
        self.rx.store(Arc::new(left));
        self.exports.forget(token);
    }

    /// Whether no process sends by a ring.
    pub fn is_empty(&self) -> bool {
        self.rx.load().is_empty()
    }

    /// Takes in all that came by rings, waiting for other threads that do so. Before what
    /// was sent by other ways is dispatched that must not overtake it.
    pub fn drain_all<H: PacketHandler<Origin = O>>(&self, to: &Delivery<'_, H>) {
        self.rx.load().iter().for_each(|ring| sweep(ring, to));
    }

    /// The engine's turn: takes in what came. Whether packets came, and bulk among them.
    pub fn drain<H: PacketHandler<Origin = O>>(&self, to: &Delivery<'_, H>) -> Drained {
        let mut drained = Drained::Empty;
        for ring in self.rx.load().iter().filter(|ring| !ring.seems_empty()) {
            drained = drained.plus(ring.drain_unpolled(RECORDS_PER_TURN, to));
        }
        drained
    }

    /// Has a writer wake the engine, or the thread in the driver slot; false where something is
    /// there to read. `wait`: for threads that read; else that is false, too.
    pub fn sleep(&self, wait: bool) -> bool {
        let mut all = true;
        for ring in self.rx.load().iter() {
            all &= ring.sleep(wait, &self.driver_slot);
        }
        all
    }

    /// A thread of ours looks from now on: a writer wakes no thread.
    pub fn stay_awake(&self) {
        self.rx.load().iter().for_each(|ring| ring.stay_awake());
    }

    /// For a thread that is about to wait: where it, or another one, polled, the engine reads the
    /// rings from now on; false where there is something to read already.
    pub fn end_polling(&self) -> bool {
        !self.lease.end() || self.sleep(false)
    }

    /// When a thread last polled, in nanoseconds of the clock.
    pub fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// The connections whose rings are of no use: their writers shall know. Each is told once; the
    /// ring stays until its connection ends, as calls of its writer may still be under way that
    /// reach our memory.
    pub fn take_broken(&self) -> Vec<u64> {
        let rings = self.rx.load();
        rings.iter().filter(|ring| ring.must_tell()).map(|ring| ring.token()).collect()
    }

    /// Brings what the rings have counted to the counters. The engine thread may just then remove a
    /// ring whose peer has ended: that is waited for, up to `MAX_LOCK_WAIT`. The lock's holder
    /// may itself be what reads the counters, in a signal handler that ends the process.
    pub fn fold_counters(&self, counters: &Counters) {
        self.rx.load().iter().for_each(|ring| ring.fold_counters(counters));
        for _ in 0..MAX_LOCK_WAIT.as_millis() {
            if let Some(tx) = self.tx.try_read() {
                let rings = tx
                    .values()
                    .filter_map(|way| if let PeerChannel::Ring(ring) = way { Some(ring) } else { None });
                return rings.for_each(|ring| ring.fold_counters(counters));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets all of them.
    pub fn close(&self, counters: &Counters) {
        self.fold_counters(counters);
        let tx = std::mem::take(&mut *self.tx.write());
        // Queue pairs may know their way without asking here.
        for way in tx.values() {
            if let PeerChannel::Ring(ring) = way {
                ring.end();
                ring.fold_counters(counters);
            }
        }
        let _changing = self.changing.lock();
        self.rx.store(Arc::default());
    }
}

/// The block of a queue pair number; one process bears its name.
#[inline]
pub fn block(qpn: Qpn) -> u16 {
    (qpn.get() >> 12) as u16
}

fn sweep<H: PacketHandler>(ring: &RxRing<H::Origin>, to: &Delivery<'_, H>) {
    for _ in 0..SWEEP_ROUNDS {
        if ring.drain_in_turn(RECORDS_PER_TURN, to) == Drained::Empty {
            break;
        }
    }
}
