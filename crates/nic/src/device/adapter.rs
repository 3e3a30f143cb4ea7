//! What all objects of a device share: its port, its registered memory, the ways out, and what it
//! counts. It knows no queue pair: domains, regions, completion queues and shared receive queues
//! hang from it, and [`Device`](super::Device) adds the queue pairs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use locks::{Mutex, Rank};
use transport::CongestionWindow;
use transport::iwarp::Carried;
use transport::pacing::Pace;
use transport::ud::Taken;
use wire::{Address, Gid, Guid, Qpn};

use crate::cq::moderation::Moderated;
use crate::device::async_events::{AsyncEvent, AsyncEventQueue, Element, EventKind};
use crate::device::gid::{GidEntry, is_interface_local};
use crate::device::listed::Listed;
use crate::device::mishaps::Mishaps;
use crate::device::port::Port;
use crate::device::presence::Presence;
use crate::errno::Errno;
use crate::error::Error;
use crate::fate::DropCounter;
use crate::faults::Object;
use crate::limits;
use crate::link::{Frames, Link, Platform};
use crate::memory::table::Table;
use crate::quota::Quotas;

/// Where queue pair numbers come from: unpredictable, and in blocks that belong to this process.
pub trait Numbers: Send + Sync {
    /// A number that no queue pair uses.
    fn take(&self) -> Result<Qpn, Error>;
    /// A number is free again.
    fn give(&self, qpn: Qpn);
}

/// Which device of its node it is: its place in the list of devices, from 0. Good in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// How a device's packets travel, the `name=TRANSPORT:interface` of VERBENA_DEVICES.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// RoCE version 2 (IBA 1.4, Annex A17): UDP port 4791 of each address of the interface.
    Roce,
    /// iWARP (RFC 5040, 5041, 5044): TCP connections from and to addresses of the interface.
    Iwarp,
    /// InfiniBand: packets between LIDs of a subnet, which the environment has.
    Ib,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Roce => f.write_str("RoCE"),
            Self::Iwarp => f.write_str("iWARP"),
            Self::Ib => f.write_str("InfiniBand"),
        }
    }
}

/// What makes a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Which one it is. An interface has at most one device of a transport.
    pub id: DeviceId,
    /// Name, such as `rxe_eth0`.
    pub name: String,
    /// How its packets travel.
    pub transport: Transport,
    /// Node GUID.
    pub guid: Guid,
    /// Interface index.
    pub interface: u32,
    /// Interface name.
    pub interface_name: String,
    /// Hardware address.
    pub mac: [u8; 6],
}

/// The outcome of a device's packets, one counter a reason.
#[derive(Debug)]
pub struct Counters {
    /// Packets dropped: the queue pair does not exist.
    pub unknown_qp: DropCounter,
    /// Packets dropped: from another address than the peer's, or to another port's LID.
    pub wrong_peer: DropCounter,
    /// Packets dropped: the queue pair is not connected or has failed.
    pub wrong_state: DropCounter,
    /// Packets dropped: their partition key is not that of the queue pair.
    pub wrong_pkey: DropCounter,
    /// Datagrams dropped: their Q_Key is not that of the queue pair.
    pub wrong_qkey: DropCounter,
    /// Datagrams and unreliable messages dropped: no receive was posted.
    pub no_receive: DropCounter,
    /// Packets delivered to a queue pair.
    pub received: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            unknown_qp: DropCounter::new("unknown_qp"),
            wrong_peer: DropCounter::new("wrong_peer"),
            wrong_state: DropCounter::new("wrong_state"),
            wrong_pkey: DropCounter::new("wrong_pkey"),
            wrong_qkey: DropCounter::new("wrong_qkey"),
            no_receive: DropCounter::new("no_receive"),
            received: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// All of them with their names.
    pub fn snapshot(&self) -> [(&'static str, u64); 7] {
        let Self { unknown_qp, wrong_peer, wrong_state, wrong_pkey, wrong_qkey, no_receive, received } = self;
        let [a, b, c, d, e, f] = [unknown_qp, wrong_peer, wrong_state, wrong_pkey, wrong_qkey, no_receive]
            .map(DropCounter::snapshot);
        [a, b, c, d, e, f, ("received", received.load(Ordering::Relaxed))]
    }
}

/// What has a window: an address, or the channel of this number to a process of this host.
type Destination = (Address, Option<u16>);

/// What a device's objects share: see the module.
pub struct Adapter {
    /// What it was made from.
    pub config: DeviceConfig,
    /// The outcome of its packets.
    pub counters: Counters,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) frames: Arc<dyn Frames>,
    /// Whether the link is asked which unreliable requests fail ([`crate::Faults::fails`]).
    pub(crate) has_faults: bool,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) memory: Table,
    pub(crate) pace: Arc<Pace>,
    pub(crate) quotas: Quotas,
    pub(crate) srq_numbers: SrqNumbers,
    pub(crate) next_pd: AtomicU32,
    /// What befell queue pairs that are gone.
    pub(crate) mishaps: Mutex<Mishaps>,
    /// What the streams of queue pairs that are gone have carried.
    pub(crate) carried: Mutex<Carried>,
    moderated: Arc<Moderated>,
    numbers: Arc<dyn Numbers>,
    port: ArcSwap<Port>,
    /// Default GIDs of this host that no interface bears, and the addresses that stand in for them.
    aliases: ArcSwap<BTreeMap<Gid, IpAddr>>,
    /// The events of all openings of the device.
    opened: Mutex<Vec<Weak<AsyncEventQueue>>>,
    pub(crate) presence: Presence,
    windows: Mutex<BTreeMap<Destination, Weak<CongestionWindow>>>,
    pub(crate) listed: Listed,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").field("name", &self.config.name).finish_non_exhaustive()
    }
}

impl Adapter {
    /// An adapter on a port, in an environment. Packets leave by `link`.
    pub(crate) fn new<W: Frames + Platform>(
        config: DeviceConfig,
        port: Port,
        env: Arc<W>,
        link: Arc<dyn Link>,
        numbers: Arc<dyn Numbers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            counters: Counters::default(),
            frames: link.frames(env.clone()),
            has_faults: link.faults().is_some(),
            platform: env.clone(),
            memory: Table::of(env.clone()).on_link(link.clone()),
            link,
            pace: Arc::default(),
            quotas: Quotas::default(),
            srq_numbers: SrqNumbers::default(),
            next_pd: AtomicU32::new(1),
            mishaps: Mutex::new(Rank::Mishaps, Mishaps::default()),
            carried: Mutex::new(Rank::Carried, Carried::default()),
            moderated: Arc::new(Moderated::new(env)),
            numbers,
            port: ArcSwap::from_pointee(port),
            aliases: ArcSwap::default(),
            opened: Mutex::new(Rank::Listeners, Vec::new()),
            presence: Presence::default(),
            windows: Mutex::new(Rank::CongestionWindows, BTreeMap::new()),
            listed: Listed::default(),
        })
    }

    /// A range of addresses is about to be watched by userfaultfd(2): peers get what is there of
    /// it, and are told to come again for the rest.
    pub fn will_be_late(&self, range: &std::ops::Range<u64>) {
        self.memory.will_be_late(range);
    }

    /// 32 bits that no peer can foresee.
    pub(crate) fn random(&self) -> u32 {
        let mut random = [0; 4];
        self.platform.fill_random(&mut random);
        u32::from_ne_bytes(random)
    }

    /// The port as it is now.
    pub fn port(&self) -> Arc<Port> {
        self.port.load_full()
    }

    /// The port is another from now on; what it was.
    pub(crate) fn replace_port(&self, port: Port) -> Arc<Port> {
        self.port.swap(Arc::new(port))
    }

    /// An opening of the device wants to be told what concerns the device or its port.
    pub fn tell(&self, events: &Arc<AsyncEventQueue>) {
        let mut opened = self.opened.lock();
        opened.retain(|e| e.strong_count() > 0);
        opened.push(Arc::downgrade(events));
    }

    /// Tells all openings of the device.
    pub fn announce(&self, kind: EventKind, element: Element) {
        let opened = self.opened.lock().clone();
        let opened = opened.iter().filter_map(Weak::upgrade);
        opened.for_each(|e| e.push(AsyncEvent { kind, element: element.clone() }));
    }

    /// No opening of the device that there is now is told anything any more.
    pub(crate) fn forget_openings(&self) {
        self.opened.lock().clear();
    }

    /// The default GIDs of this host that no interface bears.
    pub fn set_aliases(&self, aliases: Arc<BTreeMap<Gid, IpAddr>>) {
        self.aliases.store(aliases);
    }

    /// The entry of our GID table.
    pub fn gid(&self, index: u8) -> Option<GidEntry> {
        self.port.load().gids.get(index.into()).copied()
    }

    /// The address that a peer's GID is on the wire, seen from one of our GIDs: its own, or inside
    /// this host the stand-in of a default GID that no interface bears.
    pub fn address_of(&self, gid: Gid, from: &GidEntry) -> Result<IpAddr, Error> {
        if let Some(&address) = self.aliases.load().get(&gid) {
            return Ok(address);
        }
        if from.borne {
            Ok(gid.ip())
        } else {
            Err(Error::address(
                "no interface bears the GID at sgid_index, which reaches this host only",
                gid.ip(),
            ))
        }
    }

    /// The address that what goes from a GID to an address leaves from. To an IPv6 group of this
    /// interface alone that is an IPv6 address of the port, though the GID be an IPv4 one: programs
    /// name such groups whatever their GID is (perftest), and the source is seen by this host only.
    pub(crate) fn source_to(&self, dest: IpAddr, from: &GidEntry) -> Option<IpAddr> {
        let own = from.address?;
        if own.is_ipv6() || !is_interface_local(dest) {
            return Some(own);
        }
        let port = self.port();
        let borne = port.gids.iter().filter(|(_, entry)| entry.borne);
        let own_v6 = borne.filter_map(|(_, entry)| entry.address).filter(IpAddr::is_ipv6);
        // A link-local address may still wait for duplicate address detection.
        let last = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Some(own_v6.min_by_key(last).unwrap_or(own))
    }

    /// The completion queues that hold an event back: those made with it in their
    /// [`CqExtras`](crate::CqExtras) may do so.
    pub fn moderated(&self) -> &Arc<Moderated> {
        &self.moderated
    }

    /// For what an iWARP device has not, as no packet of its own carries it.
    ///
    /// # Errors
    ///
    /// `Unsupported`, on such a device.
    pub(crate) fn needs_packets(&self, what: &'static str) -> Result<(), Error> {
        match self.config.transport {
            Transport::Iwarp => Err(Error::Unsupported(what)),
            Transport::Roce | Transport::Ib => Ok(()),
        }
    }

    /// Whether an object may be made.
    ///
    /// # Errors
    ///
    /// ENOMEM, by a fault.
    pub(crate) fn allow(&self, object: Object) -> Result<(), Error> {
        match self.link.faults() {
            Some(faults) if faults.refuses(Some(self.config.interface), object) => {
                Err(Error::System(Errno::ENOMEM))
            }
            _ => Ok(()),
        }
    }

    /// Counts a completion queue in.
    ///
    /// # Errors
    ///
    /// `Limit` at [`limits::MAX_CQ`]; `System` by a fault.
    pub fn take_cq(self: &Arc<Self>) -> Result<CqSlot, Error> {
        self.allow(Object::Cq)?;
        self.quotas.cqs.take(1)?;
        Ok(CqSlot(self.clone()))
    }

    /// The window shared by all that is sent to `dest`, by a channel of this number where that is
    /// so.
    pub(crate) fn window(&self, dest: Address, channel: Option<u16>) -> Arc<CongestionWindow> {
        let mut windows = self.windows.lock();
        if let Some(window) = windows.get(&(dest, channel)).and_then(Weak::upgrade) {
            return window;
        }
        windows.retain(|_, w| w.strong_count() > 0);
        let window =
            if channel.is_some() { CongestionWindow::of_a_channel() } else { CongestionWindow::new() };
        let window = Arc::new(window);
        windows.insert((dest, channel), Arc::downgrade(&window));
        window
    }

    pub(crate) fn take_qpn(&self) -> Result<Qpn, Error> {
        self.numbers.take()
    }

    /// Counts the outcome of a message that no peer acknowledges.
    pub(crate) fn count(&self, taken: Taken) {
        match taken {
            Taken::Yes => _ = self.counters.received.fetch_add(1, Ordering::Relaxed),
            Taken::NotForUs => self.counters.wrong_state.add(1),
            Taken::QkeyViolation => self.counters.wrong_qkey.add(1),
            Taken::NoRoom => self.counters.no_receive.add(1),
        }
    }

    pub(crate) fn give_qpn(&self, qpn: Qpn) {
        self.numbers.give(qpn);
    }
}

/// The numbers of a device's shared receive queues.
#[derive(Debug)]
pub(crate) struct SrqNumbers(Mutex<BTreeSet<u32>>);

impl Default for SrqNumbers {
    fn default() -> Self {
        Self(Mutex::new(Rank::Srqs, BTreeSet::new()))
    }
}

impl SrqNumbers {
    /// A number that no object has, and that no peer can foresee as far as `random` can not be
    /// foreseen.
    pub(crate) fn take(&self, random: impl Fn() -> u32) -> Result<u32, Error> {
        let mut numbers = self.0.lock();
        if numbers.len() >= limits::MAX_SRQ as usize {
            return Err(Error::Limit("shared receive queues"));
        }
        loop {
            let number = random() & 0xff_ffff;
            // At most one number in 256 is taken.
            if number != 0 && numbers.insert(number) {
                return Ok(number);
            }
        }
    }
    /// A number is free again.
    pub(crate) fn give(&self, number: u32) {
        self.0.lock().remove(&number);
    }
}

/// A counted resource of a device: given back when dropped.
#[derive(Debug)]
pub struct CqSlot(pub(crate) Arc<Adapter>);

impl Drop for CqSlot {
    fn drop(&mut self) {
        self.0.quotas.cqs.give(1);
    }
}
