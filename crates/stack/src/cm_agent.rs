//! The connection manager of a node: the tables that join identifiers, listeners and connections,
//! and what its outputs do: messages leave through QP1, events move queue pairs and reach the
//! program.
//!
//! Every call and every message does the same three things: it takes the lock ([`CmAgent::lock`]),
//! tells the connection manager of its device ([`Node::with_cm`]), and ends in [`Node::carry_out`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use cm::{Cm, ConnId, Origin, Output, PortSpace, Refusal, Service};
use locks::{Mutex, MutexGuard, Rank};
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Device, DeviceId, Qp};
use transport::TxBatch;
use wire::mad::Mad;
use wire::{CommId, Qpn};

use crate::accept::Arrival;
use crate::datagram::on_sidr_reply;
use crate::device_events::Everyone;
use crate::env::{Env, HandedOver};
use crate::event::{Event, EventChannel};
use crate::flows::Acceptors;
use crate::graceful_close::Waiting;
use crate::gsi::asked_at;
use crate::id::{Id, Progress};
use crate::kept_ports::KeptPort;
use crate::listener::Listener;
use crate::number_blocks::process_of;
use crate::sa_client::SaQueries;
use crate::{Node, devices};

/// A connection: its device, and its number in that device's connection manager.
pub(crate) type ConnKey = (DeviceId, ConnId);

/// Where a listener listens.
pub(crate) type ListenKey = (PortSpace, IpAddr, u16);

/// The tables that join identifiers, listeners and connections, under one lock.
pub(crate) struct CmAgent {
    core: Mutex<Core>,
    timing: cm::Timing,
    /// Sequence number of the next packet from QP1.
    pub(crate) gsi_psn: AtomicU32,
    pub(crate) everyone: Everyone,
    /// Questions in [`Core::sa_queries`], to be read without the lock.
    pub(crate) asked: AtomicUsize,
    /// Queue pairs in [`Core::unheard`] and [`Core::waiting_ends`], to be read without the lock.
    awaited: AtomicUsize,
}

/// Everything under the connection manager's lock.
pub(crate) struct Core {
    /// One connection manager a channel adapter: peers key their tables on its GUID.
    pub(crate) cms: BTreeMap<DeviceId, Box<dyn Cm>>,
    pub(crate) ids: BTreeMap<ConnKey, Arc<Id>>,
    /// Listeners; those on all addresses under the unspecified address of their family.
    pub(crate) listeners: BTreeMap<ListenKey, Listener>,
    /// Ports that nothing listens on any more, and whose names still lead here.
    pub(crate) kept_ports: Vec<KeptPort>,
    /// The queue pairs that accepted connections of this process.
    pub(crate) acceptors: Acceptors,
    /// Accepted connections whose RTU has not come, by queue pair: data says as much.
    pub(crate) unheard: BTreeMap<Qpn, ConnKey>,
    /// Ends of connections that wait for ACKs, by the queue pair that these are for.
    pub(crate) waiting_ends: BTreeMap<Qpn, Waiting>,
    /// Requests that a listener takes, to be admitted when the lock has been given back.
    pub(crate) arrived: Vec<Arrival>,
    /// Requests that are refused whichever listener they are for: how many come before each, and
    /// why.
    pub(crate) refused: Vec<(u64, Refusal)>,
    pub(crate) resolving: BTreeMap<u64, (Arc<Id>, Instant)>,
    /// Questions to the administration of a subnet.
    pub(crate) sa_queries: SaQueries,
    /// Channels with events that are published when the lock has been given back.
    unpublished: Vec<Arc<EventChannel>>,
    /// What messages are made in, one after the other.
    batch: TxBatch,
    pub(crate) next_ticket: u64,
}

impl CmAgent {
    pub(crate) fn new(timing: &cm::Timing) -> Self {
        let core = Core {
            cms: BTreeMap::new(),
            ids: BTreeMap::new(),
            listeners: BTreeMap::new(),
            kept_ports: Vec::new(),
            acceptors: Acceptors::default(),
            unheard: BTreeMap::new(),
            waiting_ends: BTreeMap::new(),
            arrived: Vec::new(),
            refused: Vec::new(),
            resolving: BTreeMap::new(),
            sa_queries: SaQueries::default(),
            unpublished: Vec::new(),
            batch: TxBatch::new(),
            next_ticket: 1,
        };
        Self {
            core: Mutex::new(Rank::ConnectionManager, core),
            timing: *timing,
            gsi_psn: AtomicU32::new(0),
            everyone: Everyone::default(),
            asked: AtomicUsize::new(0),
            awaited: AtomicUsize::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Locks for the end of the process, which waits for no thread.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let core = self.lock();
        let resolving = core.resolving.values().map(|(_, t)| *t);
        core.deadline().into_iter().chain(resolving).chain(core.sa_queries.deadline()).min()
    }

    /// The first data on a queue pair establishes its connection.
    pub(crate) fn await_data(&self, core: &mut Core, qpn: Qpn, key: ConnKey) {
        core.unheard.insert(qpn, key);
        self.count_awaited(core);
    }

    /// Packets of so many queue pairs are waited for.
    pub(crate) fn count_awaited(&self, core: &Core) {
        self.awaited.store(core.unheard.len() + core.waiting_ends.len(), Ordering::Relaxed);
    }

    /// The connection has come further, or ended.
    pub(crate) fn await_no_data(&self, core: &mut Core, key: ConnKey) {
        if !core.unheard.is_empty() {
            core.unheard.retain(|_, waiting| *waiting != key);
            self.count_awaited(core);
        }
    }

    /// Whether any queue pair's packets are waited for.
    #[inline]
    pub(crate) fn awaits_data(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) != 0
    }

    /// Whether a request to a device is for a listener of this process, or comes again about
    /// something that it knows.
    pub(crate) fn expects(
        &self,
        device: &Device,
        from: Origin,
        request: &Mad,
        service: Option<Service>,
    ) -> bool {
        let mut core = self.lock();
        let at = asked_at(device, from.dest, request);
        let listens = |service| at.is_some_and(|ip| core.listener(service, ip).is_some());
        service.is_some_and(listens)
            || core
                .cms
                .get_mut(&device.config.id)
                .and_then(|cm| cm.mads())
                .is_some_and(|it| it.has_asked(from, request))
    }
}

impl Core {
    /// When something is due, resolutions apart.
    fn deadline(&self) -> Option<Instant> {
        let cms = self.cms.values().filter_map(|cm| cm.deadline());
        let ends = self.waiting_ends.values().map(|waiting| waiting.until);
        let kept = self.kept_ports.iter().map(KeptPort::until);
        cms.chain(self.listeners.values().filter_map(Listener::deadline)).chain(ends).chain(kept).min()
    }

    /// The next thing that a connection manager has put out, and whose it is.
    fn output(&mut self) -> Option<(DeviceId, Output)> {
        self.cms.iter_mut().find_map(|(&device, cm)| Some((device, cm.poll()?)))
    }

    /// Forgets the identifier of a request that the program will not see; its connection is left to
    /// the caller.
    pub(crate) fn forget(&mut self, id: &Id) -> Option<ConnKey> {
        let key = {
            let mut inner = id.lock();
            inner.progress = Progress::Destroyed;
            inner.conn.take()
        }?;
        self.ids.remove(&key);
        Some(key)
    }

    /// The connection manager of a connection's device; it exists as long as the node once it was
    /// made.
    pub(crate) fn cm(&mut self, key: ConnKey) -> Option<(&mut dyn Cm, ConnId)> {
        Some((&mut **self.cms.get_mut(&key.0)?, key.1))
    }

    /// The queue pair of a connection, where its identifier has it.
    pub(crate) fn qp(&self, key: ConnKey) -> Option<Arc<Qp>> {
        self.ids.get(&key).and_then(|id| id.lock().qp.clone())
    }

    /// Gives an identifier an event. Its channel is told when the lock has been given back
    /// ([`Node::carry_out`]): the thread that is woken needs that lock, and an RTU leaves before.
    pub(crate) fn push(&mut self, event: Event) {
        let channel = event.id.lock().channel.clone();
        channel.enqueue(event);
        if !self.unpublished.iter().any(|known| Arc::ptr_eq(known, &channel)) {
            self.unpublished.push(channel);
        }
    }
}

/// An event without parameters.
pub(crate) fn plain(id: &Arc<Id>, kind: EventKind, status: i32) -> Event {
    Event {
        id: id.clone(),
        listener: None,
        kind,
        status,
        param: ConnParam::default(),
        ud: None,
        arg: 0,
        private_data: Vec::new(),
    }
}

impl<W: Env> Node<W> {
    /// Connections that the connection manager knows, in whatever state: time wait and remembered
    /// refusals included.
    pub fn connections(&self) -> usize {
        self.cm_agent.lock().cms.values().map(|cm| cm.connections()).sum()
    }

    /// Takes the oldest event of a channel. A request leaves its listener's backlog.
    pub fn next_event(&self, channel: &EventChannel) -> Option<Event> {
        let mut event = channel.pop()?;
        if event.kind == EventKind::MulticastJoin {
            self.complete_join(&mut event);
        }
        if event.kind == EventKind::ConnectRequest {
            let now = self.env.now();
            let mut core = self.cm_agent.lock();
            let key = event.id.lock().listener;
            if let Some(listener) = key.and_then(|key| core.listeners.get_mut(&key)) {
                listener.fetched(now, &event.id);
            }
            if let Some(key) = key {
                core.offer(now, &key);
            }
            self.carry_out(core, now);
        }
        Some(event)
    }

    /// Gives an identifier an event that comes from no message.
    pub(crate) fn tell(&self, id: &Arc<Id>, kind: EventKind, status: i32) {
        let channel = id.lock().channel.clone();
        channel.push(plain(id, kind, status));
    }

    /// Runs `f` on the connection manager of a device, made at its first use.
    pub(crate) fn with_cm<T>(&self, core: &mut Core, device: &Device, f: impl FnOnce(&mut dyn Cm) -> T) -> T {
        let (blocks, env) = (self.blocks.clone(), self.env.clone());
        let cm = core.cms.entry(device.config.id).or_insert_with(|| {
            let random = move || {
                let mut bytes = [0; 8];
                env.fill_random(&mut bytes);
                u64::from_ne_bytes(bytes)
            };
            devices::protocol_of(device.config.transport).start(cm::Setup {
                guid: device.config.guid,
                timing: self.cm_agent.timing,
                crc: self.link.faults().is_some_and(|faults| faults.damages_streams()),
                max_pending_requests: crate::listener::MAX_PENDING,
                is_kin: devices::is_ours,
                process_of,
                // Where the host has no block left, identifier 0 is refused by the table as taken.
                comm_ids: Box::new(move || blocks.comm_id().unwrap_or(CommId(0))),
                random: Box::new(random),
            })
        });
        f(&mut **cm)
    }

    /// A message comes to the connection manager.
    pub(crate) fn on_mad(&self, now: Instant, device: &Device, from: Origin, mad: &Mad) {
        self.counters.mads.fetch_add(1, Ordering::Relaxed);
        let mut core = self.cm_agent.lock();
        if !self.must_wait(&mut core, now, device.config.id, from, mad) {
            self.hear(&mut core, now, device, from, mad);
        }
        self.carry_out(core, now);
    }

    /// A message comes to the connection manager of the device it came by.
    pub(crate) fn hear(&self, core: &mut Core, now: Instant, device: &Device, origin: Origin, mad: &Mad) {
        let unmatched = self.with_cm(core, device, |cm| {
            // No MAD is for a protocol whose messages go another way.
            let Some(mads) = cm.mads() else { return 0 };
            let before = mads.unmatched();
            mads.input(now, origin, mad);
            mads.unmatched() - before
        });
        if unmatched > 0 {
            // One message.
            self.counters.cm_unmatched.add(1);
        }
    }

    /// Timers of connections and listeners may have run out.
    pub(crate) fn expire_connections(&self, now: Instant) {
        let mut core = self.cm_agent.lock();
        self.end_waits(&mut core, now);
        self.streams_due(&mut core, now);
        core.cms.values_mut().for_each(|cm| cm.expire(now));
        let keys: Vec<ListenKey> = core.listeners.keys().copied().collect();
        for key in keys {
            core.offer(now, &key);
            while let Some(late) = core.listeners.get_mut(&key).and_then(|l| l.overdue(now)) {
                if let Some(key) = core.forget(&late) {
                    self.refuse(&mut core, now, key, Refusal::NoResources);
                }
            }
        }
        self.carry_out(core, now);
    }

    /// Does what the connection managers put out, unlocks, tells of events, and lets in the
    /// requests that came.
    pub(crate) fn carry_out<'a>(&'a self, mut core: MutexGuard<'a, Core>, now: Instant) {
        loop {
            self.do_outputs(&mut core, now);
            let not_kept = core.ports_not_kept_any_longer(now);
            let (deadline, arrived) = (core.deadline(), std::mem::take(&mut core.arrived));
            let unpublished = std::mem::take(&mut core.unpublished);
            drop(core);
            drop(not_kept);
            unpublished.iter().for_each(|channel| channel.publish());
            if let Some(at) = deadline {
                self.env.wake_at(at);
            }
            if arrived.is_empty() {
                return;
            }
            // The system is asked about them while no other thread waits for the lock.
            let known: Vec<_> = arrived.into_iter().map(|a| (self.look_up(&a), a)).collect();
            core = self.cm_agent.lock();
            for (sender, arrival) in known {
                self.admit(&mut core, now, arrival, sender);
            }
        }
    }

    fn do_outputs(&self, core: &mut Core, now: Instant) {
        while let Some((device, output)) = core.output() {
            match output {
                Output::Transmit { conn: None, path, mad, .. } => self.answer_unsolicited(now, &path, &mad),
                Output::Transmit { conn, path, mad, attempt } => {
                    let way = self.way(core, now, (device, conn), &path, &mad, attempt);
                    if self.send_mad(&way, &path, &mad, &mut core.batch) == HandedOver::Unclaimed {
                        self.unclaimed(core, now, device, (&path, &mad));
                    }
                }
                Output::Stream { stream, action } => {
                    self.act_on_stream(core, now, (device, stream), action);
                }
                Output::Event { conn, event } => self.on_event(core, now, (device, conn), event),
                Output::Released { conn, .. } => {
                    self.cm_agent.await_no_data(core, (device, conn));
                    core.ids.remove(&(device, conn));
                }
            }
        }
    }

    fn on_event(&self, core: &mut Core, now: Instant, key: ConnKey, event: cm::Event) {
        let event = match event {
            cm::Event::Request(request) => return self.on_request(core, now, key, request),
            cm::Event::SidrRequest(request) => return self.on_sidr_request(core, now, key, request),
            event => event,
        };
        let Some(id) = core.ids.get(&key).cloned() else { return };
        if core.withdraw(now, &id) {
            return;
        }
        match event {
            cm::Event::Reply(reply) => self.on_reply(core, now, key, &id, *reply),
            cm::Event::Established => {
                self.cm_agent.await_no_data(core, key);
                let param = {
                    let mut inner = id.lock();
                    inner.progress = Progress::Connected;
                    inner.param
                };
                core.push(Event { param, ..plain(&id, EventKind::Established, 0) });
            }
            cm::Event::Rejected { reason, private_data } => {
                self.end(&id, now, true);
                core.push(Event { private_data, ..plain(&id, EventKind::Rejected, reason) });
            }
            cm::Event::Unreachable { status } => {
                self.end(&id, now, !id.is_datagram());
                core.push(plain(&id, EventKind::Unreachable, status));
            }
            cm::Event::ConnectError { status } => {
                self.end(&id, now, true);
                core.push(plain(&id, EventKind::ConnectError, status));
            }
            cm::Event::Disconnected { .. } => {
                self.end(&id, now, false);
                core.push(plain(&id, EventKind::Disconnected, 0));
            }
            cm::Event::TimewaitExit => core.push(plain(&id, EventKind::TimewaitExit, 0)),
            cm::Event::SidrReply { status, qpn, qkey, private_data } => {
                on_sidr_reply(core, &id, status, qpn, qkey, private_data);
            }
            cm::Event::Request(_) | cm::Event::SidrRequest(_) => {}
        }
    }
}
