//! The connection manager of a node: the tables that join identifiers, listeners and connections, and what its outputs
//! do: messages leave through QP1, events move queue pairs and reach the program.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cm::{Cm, ConnId, Origin, Output};
use nic::{Device, DeviceId, Path, Qp, QpAttr, QpState, mask};
use transport::TxBatch;
use wire::bth::{Bth, Deth};
use wire::mad::{GSI_QKEY, MAD_LEN, Mad, Message, PortSpace, reason};
use wire::roce::{Header, Op, SendAt, SendTail, Service};
use wire::{CommId, Gid, Guid, Pkey, Psn, Qpn};

use crate::device_events::Everyone;
use crate::dispatch::family_fits;
use crate::event::{ConnParam, Event, EventChannel, EventKind};
use crate::farewell::{self, Waiting};
use crate::id::{Id, Progress};
use crate::listener::Listener;
use crate::number_blocks::{COMM_BITS, comm_owner};
use crate::world::{Datagram, Name, World};
use crate::{Error, Node};

/// A connection: its device, and its number in that device's connection manager.
pub type ConnKey = (DeviceId, ConnId);

/// Where a listener listens.
pub(crate) type ListenKey = (PortSpace, IpAddr, u16);

/// See the module.
pub(crate) struct CmAgent {
    core: Mutex<Core>,
    timing: cm::Timing,
    gsi_psn: AtomicU32,
    pub(crate) everyone: Everyone,
    /// Queue pairs in [`Core::unheard`] and [`Core::waiting_ends`], to be read without the lock.
    awaited: AtomicUsize,
}

/// Everything under the connection manager's lock.
pub(crate) struct Core {
    /// One connection manager a channel adapter: peers key their tables on its GUID.
    pub(crate) cms: BTreeMap<DeviceId, Cm>,
    pub(crate) ids: BTreeMap<ConnKey, Arc<Id>>,
    /// Listeners; those on all addresses under the unspecified address of their family.
    pub(crate) listeners: BTreeMap<ListenKey, Listener>,
    /// Accepted connections whose RTU has not come, by queue pair: data says as much.
    unheard: BTreeMap<Qpn, ConnKey>,
    /// Ends of connections that wait for ACKs, by the queue pair that these are for.
    pub(crate) waiting_ends: BTreeMap<Qpn, Waiting>,
    resolving: BTreeMap<u64, (Arc<Id>, Instant)>,
    next_ticket: u64,
}

impl CmAgent {
    pub fn new(timing: &cm::Timing) -> CmAgent {
        CmAgent {
            core: Mutex::new(Core {
                cms: BTreeMap::new(),
                ids: BTreeMap::new(),
                listeners: BTreeMap::new(),
                unheard: BTreeMap::new(),
                waiting_ends: BTreeMap::new(),
                resolving: BTreeMap::new(),
                next_ticket: 1,
            }),
            timing: *timing,
            gsi_psn: AtomicU32::new(0),
            everyone: Everyone::default(),
            awaited: AtomicUsize::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn start_resolving(&self, id: &Arc<Id>, until: Instant) -> u64 {
        let mut core = self.lock();
        let ticket = core.next_ticket;
        core.next_ticket += 1;
        core.resolving.insert(ticket, (id.clone(), until));
        ticket
    }

    pub fn take_resolving(&self, ticket: u64) -> Option<Arc<Id>> {
        Some(self.lock().resolving.remove(&ticket)?.0)
    }

    /// Resolutions whose time is over.
    pub fn overdue(&self, now: Instant) -> Vec<Arc<Id>> {
        let mut core = self.lock();
        let late: Vec<u64> =
            core.resolving.iter().filter(|(_, (_, until))| *until <= now).map(|(t, _)| *t).collect();
        late.into_iter().filter_map(|t| Some(core.resolving.remove(&t)?.0)).collect()
    }

    pub fn deadline(&self) -> Option<Instant> {
        let core = self.lock();
        core.deadline().into_iter().chain(core.resolving.values().map(|(_, t)| *t)).min()
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
    fn await_no_data(&self, core: &mut Core, key: ConnKey) {
        if !core.unheard.is_empty() {
            core.unheard.retain(|_, waiting| *waiting != key);
            self.count_awaited(core);
        }
    }

    /// Whether a request to a device is for a listener of this process, or comes again about something that it knows.
    pub fn expects(
        &self,
        device: DeviceId,
        d: &Datagram<'_>,
        request: &Mad,
        target: Option<(PortSpace, u16)>,
    ) -> bool {
        let core = self.lock();
        let (guid, id) = match &request.message {
            Message::Req(req) => (req.local_ca_guid, req.local_comm_id),
            // SIDR messages name no adapter.
            Message::SidrReq(req) => (Guid(0), req.request_id),
            _ => return true,
        };
        let gid = d.source.ip().into();
        target.is_some_and(|(space, port)| core.listener(space, d.dest.ip(), port).is_some())
            || core.cms.get(&device).is_some_and(|cm| cm.has_peer(guid, gid, id))
    }
}

impl Core {
    /// The listener for a request: the one on its address before those on all.
    pub fn listener(&self, space: PortSpace, ip: IpAddr, port: u16) -> Option<ListenKey> {
        let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let takes = |(a, v6_only)| a == ip || family_fits(a, v6_only, ip);
        std::iter::once(ip)
            .chain(any)
            .map(|a| (space, a, port))
            .find(|key| self.listeners.get(key).is_some_and(|l| takes((key.1, l.id.lock().v6_only))))
    }

    /// When something is due, resolutions apart.
    fn deadline(&self) -> Option<Instant> {
        let cms = self.cms.values().filter_map(Cm::deadline);
        let ends = self.waiting_ends.values().map(|waiting| waiting.until);
        cms.chain(self.listeners.values().filter_map(Listener::deadline)).chain(ends).min()
    }

    /// Offers the listener's next request to the program if it is its turn.
    pub(crate) fn offer(&mut self, now: Instant, key: &ListenKey) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        let Some(event) = listener.offer(now) else { return };
        let channel = listener.id.lock().channel.clone();
        event.id.lock().channel = channel.clone();
        channel.push(event);
    }

    /// The program has begun to serve a request.
    pub(crate) fn begun(&mut self, now: Instant, id: &Arc<Id>) {
        let Some(key) = id.lock().listener.take() else { return };
        if let Some(listener) = self.listeners.get_mut(&key) {
            listener.begun(id);
            self.offer(now, &key);
        }
    }

    /// Takes back a request that the program has not seen. False for all others.
    pub(crate) fn withdraw(&mut self, now: Instant, id: &Arc<Id>) -> bool {
        let Some(key) = id.lock().listener else { return false };
        let unseen = self.listeners.get_mut(&key).is_some_and(|l| l.withdraw(id));
        if let Some(key) = unseen.then(|| self.forget(id)).flatten()
            && let Some((cm, conn)) = self.cm(key)
        {
            cm.destroy(now, conn);
        }
        unseen
    }

    /// Forgets the identifier of a request that the program will not see; its connection is left to the caller.
    pub(crate) fn forget(&mut self, id: &Id) -> Option<ConnKey> {
        let key = {
            let mut inner = id.lock();
            inner.progress = Progress::Destroyed;
            inner.conn.take()
        }?;
        self.ids.remove(&key);
        Some(key)
    }

    /// The connection manager of a connection's device; it exists as long as the node once it was made.
    pub fn cm(&mut self, key: ConnKey) -> Option<(&mut Cm, ConnId)> {
        Some((self.cms.get_mut(&key.0)?, key.1))
    }

    /// The queue pair of a connection, where its identifier has it.
    pub(crate) fn qp(&self, key: ConnKey) -> Option<Arc<Qp>> {
        self.ids.get(&key).and_then(|id| id.lock().qp.clone())
    }

    pub(crate) fn push(&mut self, event: Event) {
        let channel = event.id.lock().channel.clone();
        channel.push(event);
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

impl<W: World> Node<W> {
    /// Connections that the connection manager knows, in whatever state: time wait and remembered refusals included.
    pub fn connections(&self) -> usize {
        self.cm_agent.lock().cms.values().map(Cm::len).sum()
    }

    /// Takes the oldest event of a channel. A request leaves its listener's backlog.
    pub fn next_event(&self, channel: &EventChannel) -> Option<Event> {
        let mut event = channel.pop()?;
        if event.kind == EventKind::MulticastJoin {
            self.complete_join(&mut event);
        }
        if event.kind == EventKind::ConnectRequest {
            let now = self.world.now();
            let mut core = self.cm_agent.lock();
            let key = event.id.lock().listener;
            if let Some(listener) = key.and_then(|key| core.listeners.get_mut(&key)) {
                listener.fetched(now, &event.id);
            }
            self.settle(core, now);
        }
        Some(event)
    }

    /// Gives an identifier an event that comes from no message.
    pub(crate) fn tell(&self, id: &Arc<Id>, kind: EventKind, status: i32) {
        let channel = id.lock().channel.clone();
        channel.push(plain(id, kind, status));
    }

    /// Runs `f` on the connection manager of a device, made at its first use.
    pub(crate) fn with_cm<T>(&self, core: &mut Core, device: &Device, f: impl FnOnce(&mut Cm) -> T) -> T {
        let (blocks, world) = (self.blocks.clone(), self.world.clone());
        let cm = core.cms.entry(device.config.id).or_insert_with(|| {
            let config = cm::Config {
                timing: self.cm_agent.timing,
                is_kin: crate::devices::is_ours,
                process_of: |id| id.0 >> COMM_BITS,
                max_pending_requests: crate::listener::MAX_PENDING,
                ..cm::Config::new(device.config.guid)
            };
            // Where the host has no block left, identifier 0 is refused by the table as taken.
            let comm_ids = move || blocks.comm_id().unwrap_or(CommId(0));
            let transaction_ids = move || {
                let mut bytes = [0; 8];
                world.fill_random(&mut bytes);
                u64::from_ne_bytes(bytes)
            };
            Cm::new(config, comm_ids, transaction_ids)
        });
        f(cm)
    }

    /// Does what the connection manager put out, and unlocks.
    pub(crate) fn settle(&self, mut core: MutexGuard<'_, Core>, now: Instant) {
        let devices: Vec<DeviceId> = core.cms.keys().copied().collect();
        for device in devices {
            while let Some(output) = core.cms.get_mut(&device).and_then(Cm::poll) {
                match output {
                    Output::Transmit { conn: None, path, mad, .. } => self.answer_stranger(now, &path, &mad),
                    Output::Transmit { conn, path, mad, attempt } => {
                        let way = self.way(&core, now, (device, conn), &path, &mad, attempt);
                        self.send_mad(&way, path.pkey, &mad);
                    }
                    Output::Event { conn, event } => self.on_event(&mut core, now, (device, conn), event),
                    Output::Released { conn, .. } => {
                        self.cm_agent.await_no_data(&mut core, (device, conn));
                        core.ids.remove(&(device, conn));
                    }
                }
            }
        }
        let deadline = core.deadline();
        drop(core);
        if let Some(at) = deadline {
            self.world.wake_at(at);
        }
    }

    /// The process ends: what a kernel would say to its peers is said, once. Nobody here is left to be told of anything.
    pub(crate) fn leave_connections(&self, now: Instant) {
        let Ok(mut core) = self.cm_agent.core.try_lock() else { return };
        for cm in core.cms.values_mut() {
            cm.leave(now);
            while let Some(output) = cm.poll() {
                if let Output::Transmit { path, mad, attempt, .. } = output {
                    // Whoever has a queue pair in hand may never let it go.
                    self.send_mad(&farewell::way(&path, &mad, attempt, None), path.pkey, &mad);
                }
            }
        }
    }

    pub(crate) fn manager_input(&self, now: Instant, device: &Device, d: &Datagram<'_>, mad: &Mad) {
        self.counters.mads.fetch_add(1, Ordering::Relaxed);
        let origin = Origin { source: d.source.ip().into(), dest: d.dest.ip().into(), link: d.interface };
        let mut core = self.cm_agent.lock();
        if !self.must_wait(&mut core, now, device.config.id, origin, mad) {
            self.hear(&mut core, now, device, origin, mad);
        }
        self.settle(core, now);
    }

    /// A message comes to the connection manager of the device it came by.
    pub(crate) fn hear(&self, core: &mut Core, now: Instant, device: &Device, origin: Origin, mad: &Mad) {
        let unmatched = self.with_cm(core, device, |cm| {
            let before = cm.unmatched();
            cm.input(now, origin, mad);
            cm.unmatched() - before
        });
        self.counters.cm_unmatched.fetch_add(unmatched, Ordering::Relaxed);
    }

    pub(crate) fn expire_manager(&self, now: Instant) {
        let mut core = self.cm_agent.lock();
        self.end_waits(&mut core, now);
        core.cms.values_mut().for_each(|cm| cm.expire(now));
        let keys: Vec<ListenKey> = core.listeners.keys().copied().collect();
        for key in keys {
            core.offer(now, &key);
            while let Some(late) = core.listeners.get_mut(&key).and_then(|l| l.overdue(now)) {
                match core.forget(&late) {
                    Some(key) if late.is_datagram() => self.no_room(&mut core, now, key),
                    Some(key) => self.refuse(&mut core, now, key, reason::NO_RESOURCES),
                    None => {}
                }
            }
        }
        self.settle(core, now);
    }

    /// An ICMP error came for a message of ours.
    ///
    /// `ours` is its communication id of ours; `process` the block it was for, where the error says that nobody has the port.
    pub(crate) fn peer_unreachable(
        &self,
        now: Instant,
        dest: IpAddr,
        ours: Option<CommId>,
        process: Option<u32>,
    ) {
        let mut core = self.cm_agent.lock();
        for cm in core.cms.values_mut() {
            if ours.is_some() {
                cm.peer_unreachable(now, dest, ours);
            }
            if let Some(process) = process {
                cm.process_unreachable(now, dest, process);
            }
        }
        self.settle(core, now);
    }

    /// A packet came for a queue pair. The first that counts on one whose peer's RTU is missing establishes the connection; the
    /// last that one waits for lets its peer end it.
    pub(crate) fn manager_heard(&self, now: Instant, qpn: Qpn) {
        if self.cm_agent.awaited.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut core = self.cm_agent.lock();
        let established = core.unheard.get(&qpn).copied().filter(|&key| {
            let qp = core.qp(key);
            qp.is_some_and(|qp| qp.qpn() == qpn && qp.heard())
        });
        if let Some(key) = established {
            if let Some((cm, conn)) = core.cm(key) {
                // An error says that the connection has ended.
                _ = cm.established(now, conn);
            }
            self.cm_agent.await_no_data(&mut core, key);
        }
        if self.end_wait(&mut core, now, qpn) || established.is_some() {
            self.settle(core, now);
        }
    }

    /// A process of this host ended. What it said last may still be under way.
    pub(crate) fn peer_gone(&self, now: Instant, name: Name) {
        let mut core = self.cm_agent.lock();
        let local = |ip: IpAddr| self.devices().iter().any(|d| d.port().gids.index_of(ip).is_some());
        let is_it = |remote: Option<CommId>, gid: Gid| {
            remote.is_some_and(|r| comm_owner(r) == name) && local(gid.ip())
        };
        let of_cm =
            |(&device, cm): (&DeviceId, &Cm)| cm.with_peer(is_it).into_iter().map(move |c| (device, c));
        let ended: Vec<ConnKey> = core.cms.iter().flat_map(of_cm).collect();
        ended.into_iter().for_each(|key| self.end_by_exit(&mut core, now, key));
        self.settle(core, now);
    }

    /// The sequence number of the next packet from QP1. Nobody looks at it, but it counts.
    pub(crate) fn gsi_psn(&self) -> u32 {
        self.cm_agent.gsi_psn.load(Ordering::Relaxed)
    }

    /// Sends a MAD from QP1 to QP1.
    pub(crate) fn send_mad(&self, way: &Path, pkey: Pkey, mad: &Mad) {
        let psn = Psn::new(self.cm_agent.gsi_psn.fetch_add(1, Ordering::Relaxed));
        let header = Header {
            bth: Bth { dest_qp: Qpn::GSI, psn, pkey, ..Bth::default() },
            service: Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI }),
            op: Op::Send(SendAt::Only(SendTail::None)),
        };
        let bytes = mad.emit();
        let mut batch = TxBatch::new();
        let filled = batch.push(&header, MAD_LEN, |to| {
            to.copy_from_slice(&bytes);
            Ok(())
        });
        if filled.is_ok() {
            self.world.send(way, &mut batch);
        }
    }

    fn on_event(&self, core: &mut Core, now: Instant, key: ConnKey, event: cm::Event) {
        if let cm::Event::Request(request) = event {
            return self.on_request(core, now, key, &request);
        }
        if let cm::Event::SidrRequest { request, path } = event {
            return self.on_sidr_request(core, now, key, &request, &path);
        }
        let Some(id) = core.ids.get(&key).cloned() else { return };
        if core.withdraw(now, &id) {
            return;
        }
        match event {
            cm::Event::Reply(rep) => self.on_reply(core, now, key, &id, &rep),
            cm::Event::Established => {
                self.cm_agent.await_no_data(core, key);
                id.lock().progress = Progress::Connected;
                let param = id.lock().param;
                core.push(Event { param, ..plain(&id, EventKind::Established, 0) });
            }
            cm::Event::Rejected { reason, private_data, .. } => {
                self.end(&id, now, true);
                let event = plain(&id, EventKind::Rejected, reason.into());
                core.push(Event { private_data: private_data.to_vec(), ..event });
            }
            cm::Event::Unreachable { status } => {
                self.end(&id, now, !id.is_datagram());
                core.push(plain(&id, EventKind::Unreachable, status));
            }
            cm::Event::Disconnected { .. } => {
                self.end(&id, now, false);
                core.push(plain(&id, EventKind::Disconnected, 0));
            }
            cm::Event::TimewaitExit => core.push(plain(&id, EventKind::TimewaitExit, 0)),
            cm::Event::SidrReply { status, qpn, qkey, private_data } => {
                self.on_sidr_reply(core, &id, status, qpn, qkey, &private_data);
            }
            cm::Event::Request(_) | cm::Event::SidrRequest { .. } => {}
        }
    }

    /// The connection is no more. A connection that failed takes its queue pair to the error state; one that the peer ended
    /// leaves that to the program, as librdmacm does.
    fn end(&self, id: &Arc<Id>, now: Instant, failed: bool) {
        let qp = {
            let mut inner = id.lock();
            inner.progress = Progress::Disconnected;
            inner.qp.clone()
        };
        if let Some(qp) = qp.filter(|_| failed) {
            qp.fail(now);
        }
    }

    /// The peer accepted: the queue pair goes to RTS, then the peer is told.
    fn on_reply(&self, core: &mut Core, now: Instant, key: ConnKey, id: &Arc<Id>, rep: &wire::mad::Rep) {
        let xrc = id.transport_service() == cm::TransportService::Xrc;
        let param = ConnParam {
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qp_num: cm::answering_qpn(rep, xrc).get(),
        };
        id.lock().remote_ece = rep.ece;
        let lives = self.watch_peer(id, rep.local_comm_id);
        let has_qp = id.lock().qp.is_some();
        let kind = if has_qp {
            if self.join(core, now, key, id).is_err() {
                return core.push(plain(id, EventKind::ConnectError, -crate::id::libc_errno::EINVAL));
            }
            EventKind::Established
        } else {
            id.lock().progress = Progress::Answered;
            EventKind::ConnectResponse
        };
        core.push(Event { param, private_data: rep.private_data.to_vec(), ..plain(id, kind, 0) });
        if !lives && let Some((cm, _)) = core.cm(key) {
            cm.peer_gone(now, |remote, _| remote == Some(rep.local_comm_id));
        }
    }

    /// The active side's queue pair goes to RTS, then the peer is told; where it can not, the peer is refused.
    pub(crate) fn join(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        id: &Arc<Id>,
    ) -> Result<(), Error> {
        if let Err(why) = self.connect_qp(core, now, key, id) {
            if let Some((cm, conn)) = core.cm(key) {
                _ = cm.reject(now, conn, reason::CONSUMER_DEFINED, &[], [0; 148]);
            }
            self.end(id, now, true);
            return Err(why);
        }
        if let Some((cm, conn)) = core.cm(key) {
            _ = cm.established(now, conn);
        }
        id.lock().progress = Progress::Connected;
        Ok(())
    }

    /// Where a process of this host is at the other end: be told when it ends, because nobody sends a DREQ for one that was
    /// killed. False where it has ended already.
    pub(crate) fn watch_peer(&self, id: &Id, remote: CommId) -> bool {
        let local = id.lock().route.is_some_and(|r| r.local);
        let owner = comm_owner(remote);
        !local || self.blocks.owns(owner) || self.world.watch(owner)
    }

    /// Takes an identifier's queue pair to RTS with what the connection manager negotiated.
    pub(crate) fn connect_qp(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        id: &Arc<Id>,
    ) -> Result<(), Error> {
        let wants = core
            .cm(key)
            .and_then(|(cm, conn)| cm.qp_attr(conn))
            .ok_or(Error::Invalid("the connection has no attributes yet"))?;
        let (qp, device) = {
            let inner = id.lock();
            let missing = Error::Invalid("the identifier has no queue pair");
            (inner.qp.clone().ok_or(missing)?, inner.device.clone().ok_or(missing)?)
        };
        let attr = self.rtr_attributes(id, &device, &wants)?;
        let lacks = qp.init().kind.lacks();
        qp.modify(now, &attr.with_state(QpState::Init), INIT_MASK)?;
        qp.modify(now, &attr.with_state(QpState::Rtr), RTR_MASK & !lacks)?;
        qp.modify(now, &attr.with_state(QpState::Rts), RTS_MASK & !lacks)
    }

    /// The attributes of all steps to RTS.
    pub(crate) fn rtr_attributes(
        &self,
        id: &Id,
        device: &Device,
        wants: &cm::QpAttributes,
    ) -> Result<QpAttr, Error> {
        use nic::memory::Access;
        let source = wants.path.local_gid.ip();
        let sgid_index = device.port().gids.index_of(source);
        let ack_timeout = id.lock().ack_timeout;
        // As the kernel grants: writes always, READs and atomics where the connection accepts any.
        let reads = match wants.max_dest_rd_atomic {
            0 => 0,
            _ => Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        };
        Ok(QpAttr {
            port: 1,
            access: Access::REMOTE_WRITE | reads,
            path_mtu: wants.path_mtu.min(device.port().mtu),
            dest_qpn: wants.dest_qpn,
            rq_psn: wants.rq_psn,
            sq_psn: wants.sq_psn,
            max_rd_atomic: wants.max_rd_atomic,
            max_dest_rd_atomic: wants.max_dest_rd_atomic,
            min_rnr_timer: wants.min_rnr_timer,
            timeout: ack_timeout.unwrap_or(wants.timeout),
            retry_cnt: wants.retry_cnt,
            rnr_retry: wants.rnr_retry,
            av: nic::AddressVector {
                dgid: wants.path.remote_gid,
                sgid_index: sgid_index
                    .ok_or(Error::Invalid("the device does not bear the address any more"))?,
                flow_label: wants.path.flow_label,
                hop_limit: wants.path.hop_limit,
                traffic_class: wants.path.traffic_class,
                sl: wants.path.service_level,
                is_global: true,
                port: 1,
            },
            ..QpAttr::default()
        })
    }
}

/// What `rdma_init_qp_attr` sets for INIT.
pub const INIT_MASK: u32 = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
/// ... for RTR.
pub const RTR_MASK: u32 = mask::STATE
    | mask::AV
    | mask::PATH_MTU
    | mask::DEST_QPN
    | mask::RQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::MIN_RNR_TIMER;
/// ... for RTS.
pub const RTS_MASK: u32 =
    mask::STATE | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC;
