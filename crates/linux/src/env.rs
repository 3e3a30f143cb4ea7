//! The real environment, as a node sees it.

mod by_lid;
mod local_link;
mod rings;

pub(crate) use local_link::pass_on_local;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use local::Rings;
use locks::{Mutex, Rank};
use nic::{Errno, Link, Path, Persist, Platform};
use stack::env::{Claim, ClaimError, Datagram, HandedOver, Interface, Route, RouteQuery};
use stack::{Env, Name, Watch};
use sys::clock::Clock;
use sys::{WakeFd, fork};
use transport::TxBatch;
use wire::mad::{MAD_LEN, PortSpace};
use wire::{Address, Gid, LidAddress};

use crate::alarm::Alarm;
use crate::counters::Counters;
use crate::fabric::{FabricHost, ipoib};
use crate::frames::Frames;
use crate::interfaces::Interfaces;
use crate::names::{self, Names};
use crate::neighbours::Neighbours;
use crate::netlink::Netlink;
use crate::random::Randomness;
use crate::reactor::{IN, Reactor, Source};
use crate::routes::Routes;
use crate::rx_socket::{BULK, Delivery};
use crate::rx_sockets::{Opener, RxSockets};
use crate::tcp::{self, Streams};
use crate::to_handler::Origin;
use crate::tx::{self, Sender, Tx};
use crate::{Config, host_id, interfaces, neighbours};

/// Packets that leave together: a program that posts so many in a list waits for none of them by
/// watching memory.
const MANY: usize = 8;

/// This host: its interfaces, routes, neighbours, sockets and the other processes on it. Shared by
/// an input handler and the [`Host`](crate::Host) that runs it.
///
/// In a forked child the object is inert: it sends nothing, and what can fail fails with ENODEV.
pub struct LinuxEnv {
    generation: u32,
    host_id: u64,
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) requests: Mutex<Netlink>,
    pub(crate) interfaces: Interfaces,
    /// The fabric that this process is on a host of.
    pub(crate) fabric: Option<Arc<FabricHost>>,
    routes: Mutex<Routes>,
    random: Mutex<Randomness>,
    pub(crate) neighbours: Neighbours,
    pub(crate) rx_sockets: RxSockets,
    pub(crate) streams: Arc<Streams>,
    /// `Config::on_port_in_use` was called.
    told_of_port: AtomicBool,
    pub(crate) tx: Arc<Tx>,
    /// When sockets may be closed as nothing went by them for seconds, by the clock.
    idle_at: AtomicU64,
    pub(crate) rings: Rings<Origin>,
    pub(crate) frames: Frames,
    pub(crate) names: Names,
    /// The process ends: the engine empties its sockets, then clears this.
    pub(crate) sweep_asked: AtomicBool,
}

impl LinuxEnv {
    pub(crate) fn open(config: Config) -> io::Result<Self> {
        let reactor = Arc::new(Reactor::new()?);
        let alarm = Arc::new(Alarm::new(WakeFd::new()?));
        reactor.add(reactor.token(), &alarm.wake_fd, IN, Source::WakeFd)?;
        let mut requests = Netlink::for_requests()?;
        let (interfaces, fabric) = match &config.fabric {
            None => (Interfaces::open(&mut requests)?, None),
            Some(place) => {
                let (host, ports) = FabricHost::enter(place)?;
                (Interfaces::given(ports), Some(Arc::new(host)))
            }
        };
        if let Some(changes) = interfaces.changes() {
            reactor.add(reactor.token(), &*changes, IN, Source::Interfaces)?;
        }
        if let Some(fabric) = &fabric {
            by_lid::listen(fabric, &reactor)?;
        }
        let tx = Arc::new(Tx::default());
        let names = Names::new(tx.clone(), fabric.is_some());
        let clock = Clock::start();
        let streams = Arc::new(Streams::new(reactor.clone(), clock, alarm.clone()));
        Ok(Self {
            generation: fork::generation(),
            host_id: host_id::host_id(),
            // Packets between hosts of a fabric have no other way.
            rings: Rings::new(config.same_host || fabric.is_some())?,
            config,
            clock,
            counters: Counters::default(),
            reactor,
            alarm,
            requests: Mutex::new(Rank::NetlinkRequests, requests),
            interfaces,
            fabric,
            routes: Mutex::new(Rank::Routes, Routes::default()),
            random: Mutex::new(Rank::Random, Randomness::default()),
            neighbours: Neighbours::default(),
            rx_sockets: RxSockets::default(),
            streams,
            told_of_port: AtomicBool::new(false),
            names,
            tx,
            idle_at: AtomicU64::new(u64::MAX),
            frames: Frames::default(),
            sweep_asked: AtomicBool::new(false),
        })
    }

    /// What has been done so far. Waits 100 ms at most, for the lock over the rings.
    pub fn counters(&self) -> &Counters {
        self.rings.fold_counters(&self.counters.local);
        self.tx.fold_counters(&self.counters);
        &self.counters
    }

    /// The interfaces as they are now.
    pub fn interfaces(&self) -> Vec<Interface> {
        self.interfaces.current().list.clone()
    }

    /// The Ethernet address, and the VLAN if any, by which packets for `query` leave. Waits up to
    /// three seconds for a neighbour that is not known yet. EHOSTUNREACH where it does not
    /// answer, and those of [`Env::route`](stack::Env::route).
    pub fn ethernet_address(&self, query: RouteQuery) -> Result<([u8; 6], Option<u16>), Errno> {
        let route = self.route(query)?;
        let known = self.interfaces.current();
        let address = neighbours::ethernet(&route, &known, &self.requests)?;
        Ok((address, known.by_index(route.interface).and_then(|interface| interfaces::vlan(&interface.name))))
    }

    /// Whether this process made it; false in a forked child that inherited it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Sends packets; whether they went by a ring.
    #[inline]
    pub(crate) fn send_by(&self, path: &Path, batch: &mut TxBatch) -> bool {
        if !self.is_ours() {
            return false;
        }
        let is_by_ring = self.rings.send(path, batch, self);
        if let (false, Some(fabric)) = (is_by_ring, &self.fabric) {
            self.send_by_fabric(fabric, path, batch);
        } else if !is_by_ring {
            let Self { config, clock, reactor, counters, .. } = self;
            self.rx_sockets.sends(batch.len_bytes() >= BULK || batch.len() >= MANY, clock);
            if self.tx.send(path, batch, &Sender { config, clock, reactor, counters }) {
                self.alarm.set(self.look_for_idle());
            }
        }
        is_by_ring
    }

    /// Where packets go.
    #[inline]
    pub(crate) fn delivery<'a, G>(&'a self, handler: &'a G) -> Delivery<'a, G> {
        let Self { clock, counters, rings, alarm, .. } = self;
        Delivery { handler, clock, counters, rings, alarm, env: self }
    }

    /// The addresses of an interface whose UDP port another user or the kernel's rdma_rxe has.
    pub fn addresses_in_use(&self, interface: u32) -> Vec<IpAddr> {
        if self.is_ours() { self.rx_sockets.in_use(interface) } else { Vec::new() }
    }

    pub(crate) fn opener(&self) -> Opener<'_> {
        let Self { config, clock, reactor, counters, .. } = self;
        Opener { config, clock, reactor, counters }
    }

    /// A socket was opened: when the engine looks whether it is idle.
    pub(crate) fn look_for_idle(&self) -> u64 {
        let at = self.clock.roughly() + tx::IDLE.as_nanos() as u64;
        self.idle_at.fetch_min(at, Ordering::Relaxed);
        at
    }

    /// For the engine: closes sockets by which nothing went for seconds; when to come back.
    pub(crate) fn close_idle(&self, now: u64) -> u64 {
        let at = self.idle_at.load(Ordering::Relaxed);
        if at > now {
            return at;
        }
        // One that is opened meanwhile says so again.
        self.idle_at.store(u64::MAX, Ordering::Relaxed);
        let sends = self.tx.close_idle(now, &self.reactor);
        let receives = self.rx_sockets.close_silent(now, &self.opener());
        let next = sends.into_iter().chain(receives).min().unwrap_or(u64::MAX);
        self.idle_at.fetch_min(next, Ordering::Relaxed).min(next)
    }

    /// The system has no descriptor left: closes a socket that can be opened again. False where
    /// there is none.
    pub(crate) fn give_up_socket(&self) -> bool {
        self.rx_sockets.give_up_silent(&self.opener()) || self.tx.give_up_one(&self.reactor)
    }

    /// Tells the writers of rings that are of no use so.
    pub(crate) fn decline_broken_rings(&self) {
        for token in self.rings.take_broken() {
            if let Some(Source::Connection(connection)) = self.reactor.get(token) {
                connection.decline_ring();
            }
        }
    }

    /// Closes everything but the names, which their holders give back.
    pub(crate) fn close(&self) {
        self.rx_sockets.close(&self.reactor);
        self.frames.close_all(&self.reactor);
        self.rings.close(&self.counters.local);
        self.names.close(&self.reactor);
        self.tx.retain(|_| false, &self.reactor);
    }

    fn check_ours(&self) -> Result<(), Errno> {
        if self.is_ours() { Ok(()) } else { Err(Errno::ENODEV) }
    }
}

impl Link for LinuxEnv {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        self.send_by(path, batch);
    }

    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        // A wrong LID is found out by retries.
        if dest.ip().is_some() != self.fabric.is_some() { Ok(()) } else { Err(Errno::ENETUNREACH) }
    }

    fn source_port(&self, path: &Path) -> Option<u16> {
        self.tx.source_port(path)
    }

    fn local(&self) -> Option<&dyn nic::LocalLink> {
        (self.config.same_host && self.is_ours()).then_some(self)
    }

    fn has_unread(&self, path: &Path) -> bool {
        self.is_ours() && self.leads_here(path) && self.rings.has_unread(path)
    }

    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno> {
        self.check_ours()?;
        Ok(self.rx_sockets.join(interface, group, &self.opener())?)
    }

    fn leave(&self, interface: u32, group: IpAddr) {
        if self.is_ours() {
            self.rx_sockets.leave(interface, group, &self.reactor);
        }
    }
}

impl nic::Frames for LinuxEnv {
    fn open_frames(&self, interface: u32) -> Result<(), Errno> {
        self.check_ours()?;
        self.frames.open(interface)
    }

    fn close_frames(&self, interface: u32) {
        if self.is_ours() {
            self.frames.close(interface, &self.reactor);
        }
    }

    fn send_frame(&self, interface: u32, frame: &[u8]) -> Result<(), Errno> {
        self.check_ours()?;
        self.frames.send(interface, frame, &self.counters)
    }

    fn watch_frames(&self, interface: u32, watch: bool) -> Result<(), Errno> {
        self.check_ours()?;
        self.frames.watch(interface, watch, &self.config, &self.reactor)
    }
}

impl Platform for LinuxEnv {
    fn persist(&self, work: Persist) {
        if !self.is_ours() {
            return;
        }
        // Waiting for a storage is rare, and takes far longer than a thread takes to start; each
        // queue pair waits for one at most, and for a peer once.
        let work = Arc::new(Mutex::new(Rank::Storage, Some(work)));
        let theirs = work.clone();
        let run = move |work: &Mutex<Option<Persist>>| {
            let taken = work.lock().take();
            if let Some(work) = taken {
                work.run(Instant::now);
            }
        };
        let thread = std::thread::Builder::new().name("verbena-flush".to_owned());
        if sys::thread::with_signals_blocked(|| thread.spawn(move || run(&theirs))).is_err() {
            run(&work);
        }
    }

    fn in_background(&self, work: Box<dyn FnOnce() + Send>) -> bool {
        let thread = std::thread::Builder::new().name("verbena-pages".to_owned());
        self.is_ours() && sys::thread::with_signals_blocked(|| thread.spawn(work)).is_ok()
    }

    fn is_late(&self, addr: u64, len: u64) -> bool {
        self.is_ours() && self.rings.is_late(addr, len)
    }

    fn bring(&self, addr: u64, len: u64) {
        /// Ranges that are being brought, by a thread each, by their addresses; what is asked for
        /// beside them is asked for again.
        static COMING: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
        if !self.is_ours() || COMING.iter().any(|coming| coming.load(Ordering::Relaxed) == addr) {
            return;
        }
        let free = |coming: &&AtomicU64| {
            coming.compare_exchange(0, addr, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = COMING.iter().find(free) else { return };
        let started = self.in_background(Box::new(move || {
            sys::touch(addr, len);
            place.store(0, Ordering::Release);
        }));
        if !started {
            place.store(0, Ordering::Release);
        }
    }

    fn large_pages(&self) -> bool {
        self.config.same_host && self.config.large_pages
    }

    #[inline]
    fn wake_at(&self, at: Instant) {
        if self.is_ours() {
            self.alarm.set(self.clock.nanos(at));
        }
    }

    #[inline]
    fn wake_about(&self, at: Instant) {
        if self.is_ours() {
            self.alarm.set_about(self.clock.nanos(at));
        }
    }

    #[inline]
    fn ack_waits(&self) {
        self.rings.ack_waits();
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        if self.is_ours() {
            self.random.lock().fill(bytes);
        } else {
            // What a parent has left would be given out twice.
            Randomness::default().fill(bytes);
        }
    }
}

impl Env for LinuxEnv {
    fn attach(&self, interface: u32) -> Result<(), Errno> {
        self.check_ours()?;
        let known = self.interfaces.current();
        let attached = self.rx_sockets.attach(interface, &known, &self.opener());
        let in_use = self.addresses_in_use(interface);
        if !in_use.is_empty() && !self.told_of_port.swap(true, Ordering::Relaxed) {
            let name = known.by_index(interface).map_or("", |interface| &interface.name);
            (self.config.on_port_in_use)(name, &in_use);
        }
        attached
    }

    fn route(&self, query: RouteQuery) -> Result<Route, Errno> {
        self.check_ours()?;
        if self.fabric.is_some() {
            return ipoib::route(&self.interfaces.current().list, query);
        }
        self.routes.lock().ask(query, self.clock.now(), &self.interfaces, &self.requests)
    }

    fn is_resolved(&self, route: &Route) -> bool {
        if !self.is_ours() {
            return false;
        }
        if neighbours::has_none(route, &self.interfaces.current()) {
            return true;
        }
        let forgotten = {
            let routes = self.routes.lock();
            if routes.is_resolved(route) {
                return true;
            }
            routes.forgotten()
        };
        let is_resolved = neighbours::is_resolved(route, &self.requests);
        if is_resolved {
            self.routes.lock().resolved(route, forgotten);
        }
        is_resolved
    }

    fn resolve_neighbour(&self, ticket: u64, route: &Route) {
        if self.is_ours() {
            self.neighbours.reach(ticket, route, &self.interfaces.current(), &self.requests, &self.reactor);
            self.alarm.set(0);
        }
    }

    fn gid_of(&self, _interface: u32, address: IpAddr) -> Option<Gid> {
        self.fabric.as_ref().filter(|_| self.is_ours())?.gid_of(address)
    }

    fn send_mad(&self, interface: u32, to: LidAddress, mad: &[u8; MAD_LEN]) {
        self.send_mad_by_fabric(interface, to, mad);
    }

    fn claim(&self, name: Name) -> Result<Box<dyn Claim>, ClaimError> {
        self.check_ours().map_err(ClaimError::System)?;
        let claim = self.names.claim(self.as_shared(name), self.config.same_host, &self.reactor)?;
        match &self.fabric {
            Some(fabric) => fabric.claimed(name, claim),
            None => Ok(claim),
        }
    }

    fn port_names(&self, space: PortSpace, port: u16) -> Vec<Name> {
        self.as_own(names::port_names(space, port))
    }

    fn forward(&self, name: Name, datagram: &Datagram<'_>) -> bool {
        self.is_ours() && self.names.forward(self.as_shared(name), datagram, &self.reactor, &self.counters)
    }

    fn hand_over(&self, names: &[Name], path: &Path, batch: &mut TxBatch) -> HandedOver {
        if self.is_ours() { self.hand_over_here(names, path, batch) } else { HandedOver::NotHere }
    }

    fn has_flow(&self, path: &Path) -> bool {
        // A ring to a process of this host is no port: a request must not go to its reader by it.
        let by_ring = || self.config.same_host && self.leads_here(path);
        self.is_ours() && self.tx.has_flow(path) && !by_ring()
    }

    fn is_known(&self, name: Name) -> bool {
        self.names.known(self.as_shared(name)).is_some()
    }

    fn watch(&self, name: Name) -> Option<Watch> {
        if self.is_ours() { self.names.watch(self.as_shared(name), &self.reactor) } else { None }
    }

    fn open_stream(&self, from: SocketAddr, to: SocketAddr) -> Result<(u64, Arc<dyn nic::Stream>), Errno> {
        self.check_ours()?;
        Ok(tcp::open(from, to, &self.streams)?)
    }

    fn listen_streams(&self, at: SocketAddr, v6_only: bool) -> Result<Box<dyn Claim>, Errno> {
        self.check_ours()?;
        Ok(tcp::listen(at, v6_only, &self.streams)?)
    }

    fn host_id(&self) -> u64 {
        self.host_id
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl std::fmt::Debug for LinuxEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinuxEnv").field("counters", &self.counters).finish_non_exhaustive()
    }
}
