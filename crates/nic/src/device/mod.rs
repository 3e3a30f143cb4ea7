//! An adapter: one port over one network interface.

pub mod async_events;
pub mod event_queue;
pub mod gid;
pub mod port;
pub(crate) mod timers;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Instant;

use arc_swap::ArcSwap;
use transport::CongestionWindow;
use transport::pacing::Pace;
use transport::rc::Hold;
use transport::ud::Taken;
use wire::roce::Packet;
use wire::{Gid, Guid, Mtu, Qpn};

use crate::device::async_events::{AsyncEvent, AsyncEventQueue, Element, EventKind};
use crate::device::gid::{GidEntry, GidTable};
use crate::device::timers::Timers;
use crate::memory::Table;
use crate::qp::delayed_ack::DelayedAcks;
use crate::qp::turns::Turns;
use crate::qp::xrc;
use crate::steering::flow::Flows;
use crate::steering::multicast::Groups;
use crate::{Cq, Error, Frames, Link, Pd, Platform, Qp, Srq, limits};

/// Where queue pair numbers come from: unpredictable, and in blocks that belong to this process.
pub trait Numbers: Send + Sync {
    /// A number nobody uses.
    fn take(&self) -> Result<Qpn, Error>;
    /// It is free again.
    fn give(&self, qpn: Qpn);
}

/// What makes a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Name, such as `rxe_eth0`.
    pub name: String,
    /// Node GUID.
    pub guid: Guid,
    /// Interface index.
    pub interface: u32,
    /// Interface name.
    pub interface_name: String,
    /// Hardware address.
    pub mac: [u8; 6],
}

/// What changes about a port while the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Active: the interface is up.
    pub up: bool,
    /// Largest RDMA MTU that the link allows.
    pub mtu: Mtu,
    /// Link speed in Mb/s, where known.
    pub speed_mbps: Option<u32>,
    /// GID table.
    pub gids: GidTable,
}

/// What became of a device's packets, one counter a reason.
#[derive(Debug, Default)]
pub struct Counters {
    /// Dropped: for a queue pair that there is not.
    pub unknown_qp: AtomicU64,
    /// Dropped: for a queue pair that is connected to another address.
    pub wrong_peer: AtomicU64,
    /// Dropped: for a queue pair that is not connected or has failed.
    pub wrong_state: AtomicU64,
    /// Dropped: of another partition than its queue pair.
    pub wrong_pkey: AtomicU64,
    /// Dropped: a datagram with another Q_Key than its queue pair's.
    pub wrong_qkey: AtomicU64,
    /// Dropped: nobody waited for it.
    pub no_receive: AtomicU64,
    /// Handed to a queue pair.
    pub received: AtomicU64,
}

impl Counters {
    /// All of them with their names.
    pub fn snapshot(&self) -> [(&'static str, u64); 7] {
        [
            ("unknown_qp", &self.unknown_qp),
            ("wrong_peer", &self.wrong_peer),
            ("wrong_state", &self.wrong_state),
            ("wrong_pkey", &self.wrong_pkey),
            ("wrong_qkey", &self.wrong_qkey),
            ("no_receive", &self.no_receive),
            ("received", &self.received),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

/// Timers that are looked after before others are served; each may send a window again.
const TIMERS_AT_ONCE: usize = 16;
/// The same of turns; each is a few hundred KiB of READ responses.
const TURNS_AT_ONCE: usize = 4;

/// An adapter.
pub struct Device {
    /// What it was made from.
    pub config: DeviceConfig,
    /// What became of its packets.
    pub counters: Counters,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) frames: Arc<dyn Frames>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) memory: Table,
    pub(crate) timers: Timers,
    pub(crate) turns: Turns,
    pub(crate) delayed_acks: DelayedAcks,
    pub(crate) groups: Groups,
    pub(crate) flows: Flows,
    pub(crate) wqs: AtomicU32,
    pub(crate) xrcds: xrc::Named,
    pub(crate) pace: Arc<Pace>,
    numbers: Arc<dyn Numbers>,
    port: ArcSwap<Port>,
    /// The events of everybody who opened it.
    opened: Mutex<Vec<Weak<AsyncEventQueue>>>,
    /// Default GIDs of this host that no interface bears, and the addresses that stand in for them.
    aliases: ArcSwap<BTreeMap<Gid, IpAddr>>,
    qps: RwLock<BTreeMap<u32, Arc<Qp>>>,
    srqs: RwLock<BTreeMap<u32, Arc<Srq>>>,
    windows: Mutex<BTreeMap<IpAddr, Weak<CongestionWindow>>>,
    pds: AtomicU32,
    next_pd: AtomicU32,
    cqs: AtomicU32,
    pub(crate) completion_counters: AtomicU32,
    /// Completion queues that hold an event back, and until when.
    moderated: Mutex<Vec<(Instant, Weak<Cq>)>>,
    dm_bytes: AtomicU64,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.config.name).finish_non_exhaustive()
    }
}

/// A counted resource of a device: given back when dropped.
#[derive(Debug)]
pub struct CqSlot(Arc<Device>);

impl Drop for CqSlot {
    fn drop(&mut self) {
        self.0.cqs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts one of a kind in; `Limit` where there are so many.
pub(crate) fn take_one(counter: &AtomicU32, limit: u32, what: &'static str) -> Result<(), Error> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then_some(n + 1))
        .map(drop)
        .map_err(|_| Error::Limit(what))
}

impl Device {
    /// A device on a port, in a world.
    pub fn new<W: Link + Frames + Platform>(
        config: DeviceConfig,
        port: Port,
        world: Arc<W>,
        numbers: Arc<dyn Numbers>,
    ) -> Arc<Device> {
        Arc::new(Device {
            config,
            counters: Counters::default(),
            link: world.clone(),
            frames: world.clone(),
            platform: world,
            memory: Table::new(),
            timers: Timers::default(),
            turns: Turns::default(),
            delayed_acks: DelayedAcks::default(),
            groups: Groups::default(),
            flows: Flows::default(),
            wqs: AtomicU32::new(0),
            xrcds: xrc::Named::default(),
            pace: Arc::default(),
            numbers,
            port: ArcSwap::from_pointee(port),
            opened: Mutex::default(),
            aliases: ArcSwap::default(),
            qps: RwLock::default(),
            srqs: RwLock::default(),
            windows: Mutex::default(),
            pds: AtomicU32::new(0),
            next_pd: AtomicU32::new(1),
            cqs: AtomicU32::new(0),
            completion_counters: AtomicU32::new(0),
            moderated: Mutex::default(),
            dm_bytes: AtomicU64::new(0),
        })
    }

    /// It is gone.
    pub(crate) fn give_pd(&self) {
        self.pds.fetch_sub(1, Ordering::Relaxed);
    }

    /// 32 bits that nobody can foresee.
    pub(crate) fn random(&self) -> u32 {
        let mut random = [0; 4];
        self.platform.fill_random(&mut random);
        u32::from_ne_bytes(random)
    }

    /// The port as it is now.
    pub fn port(&self) -> Arc<Port> {
        self.port.load_full()
    }

    /// The interface changed. Whoever opened the device is told: port active or error, GID change.
    pub fn set_port(&self, port: Port) {
        let before = self.port.swap(Arc::new(port));
        let now = self.port.load();
        match (before.up, now.up) {
            (false, true) => self.announce(EventKind::PortActive, Element::Port(1)),
            (true, false) => self.announce(EventKind::PortError, Element::Port(1)),
            _ => {}
        }
        if before.gids != now.gids {
            self.announce(EventKind::GidChange, Element::Port(1));
        }
    }

    /// Whoever opened it wants to be told what concerns the device or its port.
    pub fn tell(&self, events: &Arc<AsyncEventQueue>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|e| e.strong_count() > 0);
        opened.push(Arc::downgrade(events));
    }

    /// Tells everybody who opened it.
    pub fn announce(&self, kind: EventKind, element: Element) {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opened = opened.iter().filter_map(Weak::upgrade);
        opened.for_each(|e| e.push(AsyncEvent { kind, element: element.clone() }));
    }

    /// The default GIDs of this host that no interface bears.
    pub fn set_aliases(&self, aliases: Arc<BTreeMap<Gid, IpAddr>>) {
        self.aliases.store(aliases);
    }

    /// The entry of our GID table.
    pub fn gid(&self, index: u8) -> Option<GidEntry> {
        self.port.load().gids.get(index.into()).copied()
    }

    /// The address that a peer's GID is on the wire, seen from one of our GIDs: its own, or inside this host the stand-in
    /// of a default GID that no interface bears.
    pub fn address_of(&self, gid: Gid, from: &GidEntry) -> Result<IpAddr, Error> {
        if let Some(&address) = self.aliases.load().get(&gid) {
            return Ok(address);
        }
        if from.borne {
            Ok(gid.ip())
        } else {
            Err(Error::Invalid("no interface bears the GID at sgid_index: it reaches this host only"))
        }
    }

    /// A new protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Pd, Error> {
        take_one(&self.pds, limits::MAX_PD, "protection domains")?;
        Ok(Pd { device: self.clone(), id: self.next_pd.fetch_add(1, Ordering::Relaxed) })
    }

    /// Counts a completion queue in.
    pub fn take_cq(self: &Arc<Self>) -> Result<CqSlot, Error> {
        take_one(&self.cqs, limits::MAX_CQ, "completion queues")?;
        Ok(CqSlot(self.clone()))
    }

    /// Counts bytes of device memory in.
    pub(crate) fn take_dm(&self, len: u64) -> Result<(), Error> {
        crate::memory::take_dm(&self.dm_bytes, len)
    }

    /// They are free again.
    pub(crate) fn give_dm(&self, len: u64) {
        self.dm_bytes.fetch_sub(len, Ordering::Relaxed);
    }

    /// The window shared by all that is sent to `dest`.
    pub(crate) fn window(&self, dest: IpAddr) -> Arc<CongestionWindow> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = windows.get(&dest).and_then(Weak::upgrade) {
            return window;
        }
        windows.retain(|_, w| w.strong_count() > 0);
        let window = Arc::new(CongestionWindow::default());
        windows.insert(dest, Arc::downgrade(&window));
        window
    }

    pub(crate) fn take_qpn(&self) -> Result<Qpn, Error> {
        self.numbers.take()
    }

    /// Counts what became of a message that nobody acknowledges.
    pub(crate) fn count(&self, taken: Taken) {
        let counter = match taken {
            Taken::Yes => &self.counters.received,
            Taken::NotForUs => &self.counters.wrong_state,
            Taken::QkeyViolation => &self.counters.wrong_qkey,
            Taken::NoRoom => &self.counters.no_receive,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn give_qpn(&self, qpn: Qpn) {
        self.numbers.give(qpn);
    }

    pub(crate) fn insert_qp(&self, qp: Arc<Qp>) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qp.qpn().get(), qp);
    }

    /// Takes a queue pair off the device: packets for it are unknown from now on.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        if self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&qpn.get()).is_some() {
            self.numbers.give(qpn);
        }
    }

    /// Makes a shared receive queue under a number that nobody can foresee.
    pub(crate) fn insert_srq(&self, make: impl FnOnce(u32) -> Arc<Srq>) -> Result<Arc<Srq>, Error> {
        let mut srqs = self.srqs.write().unwrap_or_else(PoisonError::into_inner);
        if srqs.len() >= limits::MAX_SRQ as usize {
            return Err(Error::Limit("shared receive queues"));
        }
        let number = loop {
            let number = self.random() & 0xff_ffff;
            // At most one number in 256 is taken.
            if number != 0 && !srqs.contains_key(&number) {
                break number;
            }
        };
        let srq = make(number);
        srqs.insert(number, srq.clone());
        Ok(srq)
    }

    pub(crate) fn remove_srq(&self, number: u32) {
        self.srqs.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// The shared receive queue of a number.
    pub fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.srqs.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// The queue pair of a number.
    pub fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn.get()).cloned()
    }

    /// All queue pairs.
    pub fn qps(&self) -> Vec<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A packet whose ICRC is good, for one of our queue pairs; `source` and `dest` as on the wire.
    /// `hold`: whether ACKs may wait until [`Device::release`].
    pub fn input(&self, now: Instant, source: IpAddr, dest: IpAddr, hold: Hold, packet: &Packet<'_>) {
        match self.qp(packet.header.bth.dest_qp) {
            Some(qp) => qp.input(now, source, dest, hold, packet),
            None => _ = self.counters.unknown_qp.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// ACKs held back leave: with `all` because the program is back, unless they left with what it did; without because
    /// everything was read that was there, and then not those that wait for the program. The program, being back, lends a
    /// hand with a turn that a peer waits for.
    pub fn release(&self, now: impl FnOnce() -> Instant, all: bool) {
        let turn = all && !self.turns.is_empty();
        if self.delayed_acks.is_empty() && !turn {
            return;
        }
        let now = now();
        if !self.delayed_acks.is_empty() {
            let until = self.delayed_acks.release(now, |qp| qp.release(now, all));
            until.into_iter().for_each(|at| self.platform.wake_at(at));
        }
        if turn {
            self.turns.take(now, 1, |qp| qp.take_turn(now));
        }
    }

    /// The process ends, while other threads go on and may hold any lock: ACKs held back leave as far as none must be waited
    /// for. Peers would ask in vain for what was done.
    pub fn on_exit(&self) {
        self.delayed_acks.try_each(|qp| qp.on_exit());
    }

    /// Timers that are set: of a queue pair one at most.
    pub fn timers(&self) -> usize {
        self.timers.len()
    }

    /// When [`Device::expire`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let events = self.moderated.lock().unwrap_or_else(PoisonError::into_inner);
        let event = events.iter().map(|(at, _)| *at).min();
        drop(events);
        let own = [self.timers.next(), self.turns.deadline(), self.delayed_acks.deadline(), event];
        own.into_iter().flatten().min()
    }

    /// A completion queue holds an event back until then.
    pub(crate) fn look_after_cq(&self, at: Instant, cq: &Arc<Cq>) {
        self.moderated.lock().unwrap_or_else(PoisonError::into_inner).push((at, Arc::downgrade(cq)));
        self.platform.wake_at(at);
    }

    /// Sends the events that were held back long enough.
    fn release_events(&self, now: Instant) {
        let mut events = self.moderated.lock().unwrap_or_else(PoisonError::into_inner);
        if events.is_empty() {
            return;
        }
        let (due, later) = events.drain(..).partition::<Vec<_>, _>(|(at, _)| *at <= now);
        *events = later;
        drop(events);
        due.iter().filter_map(|(_, cq)| cq.upgrade()).for_each(|cq| cq.period_over());
    }

    /// Looks after queue pairs whose timers may have run out or whose turn it is, a few of them: others want to be served
    /// too. Afterwards [`Device::deadline`] is later than `now`.
    pub fn expire(&self, now: Instant) {
        self.release_events(now);
        for (at, qpn) in self.timers.due(now, TIMERS_AT_ONCE) {
            if let Some(qp) = self.qp(qpn) {
                qp.expire(now, at);
            }
        }
        self.turns.take(now, TURNS_AT_ONCE, |qp| qp.take_turn(now));
        if self.delayed_acks.deadline().is_some_and(|until| until <= now) {
            self.release(|| now, true);
        }
    }
}
