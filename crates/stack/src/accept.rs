//! The side that is asked: `rdma_listen`, the requests that arrive, `rdma_accept` and
//! `rdma_reject`.
//!
//! A request is looked at under the connection manager's lock: whether a listener takes it. Then
//! the routing table is asked for the way back, and a peer on this host is watched, with no lock of
//! the node held; last the request is admitted, if it still stands.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cm::{Ece, PrivateData, Refusal, Request, SidrRequest};
use nic::rdma_cm::{ConnParam, EventKind};
use wire::Qpn;

use crate::address::{everywhere, with_scope};
use crate::cm_agent::{ConnKey, Core, ListenKey, plain};
use crate::connect::refused;
use crate::datagram::toward;
use crate::env::{Env, Route, RouteQuery, Watch};
use crate::event::{Event, check_private_data, parameters, told};
use crate::id::{Claimed, Id, NOT_CONNECTED, Progress};
use crate::listener::Listener;
use crate::{Errno, Error, Node};

/// Consumer private data of an accept for RDMA_PS_TCP, in bytes (rdma_accept(3)): what the most
/// spacious protocol takes.
pub const ACCEPT_DATA: usize = PrivateData::MAX.reply;
/// Consumer private data of a reject, in bytes: what the most spacious protocol takes.
pub const REJECT_DATA: usize = PrivateData::MAX.rejection;

/// A request that a listener takes, before it is admitted.
pub(crate) struct Arrival {
    key: ConnKey,
    at: ListenKey,
    listener: Arc<Id>,
    asked: Asked,
}

/// The process that sent a request, as the system knows it.
pub(crate) struct Sender {
    /// The way back.
    route: Option<Route>,
    /// The watch over a process of this host, [`Watch::NONE`] over one of another; `None` where the
    /// process has ended already.
    watch: Option<Watch>,
}

/// What a request that has arrived asks for.
pub(crate) enum Asked {
    Connection(Box<Request>),
    Service(Box<SidrRequest>),
}

impl Core {
    /// Whether the request that has just come is one that [`Node::refuse_request`] was told of.
    fn refused_by_rule(&mut self) -> Option<Refusal> {
        let due =
            self.refused.iter().position(|(before, _)| *before == 0).map(|at| self.refused.remove(at).1);
        self.refused.iter_mut().for_each(|(before, _)| *before = before.saturating_sub(1));
        due
    }
}

impl<W: Env> Node<W> {
    /// `rdma_listen`: an identifier not bound gets a free port on all addresses first. A backlog of
    /// 0 or above [`MAX_BACKLOG`](nic::rdma_cm::MAX_BACKLOG) means that many. EADDRNOTAVAIL
    /// or EADDRINUSE where another that shares the port listens.
    pub fn listen(&self, id: &Arc<Id>, backlog: u32) -> Result<(), Error> {
        if id.lock().progress == Progress::Idle {
            self.bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let (address, place, device) = {
            let inner = id.lock();
            if inner.progress != Progress::Bound {
                return Err(inner.progress.refuses());
            }
            (inner.source.ok_or(inner.progress.refuses())?, inner.place, inner.device.clone())
        };
        let listens_by = device.clone();
        match device {
            Some(device) => self.attach(&device)?,
            None => self.attach_all()?,
        }
        // A port that others may share is the listener's alone from now on.
        let shared = place.filter(|place| place.reuse);
        let claim = shared.map(|place| self.claim_to_listen(place, address.port())).transpose()?;
        let streams = self.listen_for_streams(id, address, listens_by.as_deref())?;
        let mut core = self.cm_agent.lock();
        let mut inner = id.lock();
        if inner.progress != Progress::Bound || inner.place != place {
            return Err(inner.progress.refuses());
        }
        inner.listen_claim = claim.map(Claimed);
        inner.stream_claim = streams;
        inner.progress = Progress::Listening;
        let key = (place.map_or(id.space, |p| p.space), everywhere(address.ip()), address.port());
        core.listeners.insert(key, Listener::new(id.clone(), backlog));
        Ok(())
    }

    /// The listener's requests come as fast as the program fetches them, not [in
    /// turns](crate::listener): for programs that serve several at once and know it. Nothing
    /// where it does not listen.
    pub fn serve_out_of_turn(&self, listener: &Id) {
        let mut core = self.cm_agent.lock();
        let at = listener.lock().listens_at();
        if let Some(listening) = at.and_then(|at| core.listeners.get_mut(&at))
            && std::ptr::eq(&*listening.id, listener)
        {
            listening.out_of_turn();
        }
    }

    /// Opens the port of all devices; it is enough if one can be had.
    fn attach_all(&self) -> Result<(), Error> {
        let mut result = Err(Error::System(Errno::ENODEV));
        for device in self.devices() {
            match self.attach(&device) {
                Ok(()) => result = Ok(()),
                Err(e) if result.is_err() => result = Err(e),
                Err(_) => {}
            }
        }
        result
    }

    /// A request for a connection arrived, for one of our listeners or for none.
    pub(crate) fn on_request(&self, core: &mut Core, now: Instant, key: ConnKey, request: Box<Request>) {
        let ours = request.path.local_ip();
        if let Some(why) = core.refused_by_rule() {
            return self.refuse(core, now, key, why);
        }
        let Some((at, listener)) = core.listener(request.service, ours) else {
            return self.refuse(core, now, key, Refusal::InvalidService);
        };
        let fits = request.transport_service == listener.id.transport_service();
        let (listener, is_full) = (listener.id.clone(), listener.is_full(core.listeners.len()));
        if listener.is_datagram() || !fits {
            return self.refuse(core, now, key, Refusal::InvalidTransportService);
        }
        if self.device(key.0).is_some_and(|device| request.path.mtu > device.port().mtu) {
            return self.refuse(core, now, key, Refusal::InvalidMtu);
        }
        if is_full {
            return self.refuse(core, now, key, Refusal::NoResources);
        }
        core.arrived.push(Arrival { key, at, listener, asked: Asked::Connection(request) });
    }

    /// A peer asks for a datagram service of ours, or for one that is not served here.
    pub(crate) fn on_sidr_request(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        mut request: Box<SidrRequest>,
    ) {
        if request.path.lids.is_some() && request.path.ips.is_none() {
            // Neither the packet nor the message says GIDs.
            let own = self.device(key.0).and_then(|device| device.gid(0));
            request.path.local_gid = own.map_or(request.path.local_gid, |own| own.gid);
        }
        let ours = request.path.local_ip();
        let Some((at, listener)) = core.listener(request.service, ours) else {
            return self.refuse(core, now, key, Refusal::InvalidService);
        };
        let (listener, is_full) = (listener.id.clone(), listener.is_full(core.listeners.len()));
        if !listener.is_datagram() {
            return self.refuse(core, now, key, Refusal::InvalidService);
        }
        if is_full {
            return self.refuse(core, now, key, Refusal::NoResources);
        }
        if self.device(key.0).is_none() {
            return self.refuse(core, now, key, Refusal::NoQueuePair);
        }
        core.arrived.push(Arrival { key, at, listener, asked: Asked::Service(request) });
    }

    /// The `nth` connection request from now on, 1 for the next, is refused before a listener sees
    /// it: for tests of the asking side.
    pub fn refuse_request(&self, nth: u64, why: Refusal) {
        self.cm_agent.lock().refused.push((nth.saturating_sub(1), why));
    }

    /// Answers a request that no identifier of the program will see.
    pub(crate) fn refuse(&self, core: &mut Core, now: Instant, key: ConnKey, why: Refusal) {
        if why == Refusal::NoResources {
            self.counters.no_resources.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((cm, conn)) = core.cm(key) {
            // An error says that it is answered or gone.
            _ = cm.reject(now, conn, why, &[]);
        }
    }

    /// What is to be known of a request before it is admitted; the system is asked, so no lock is
    /// held.
    pub(crate) fn look_up(&self, arrival: &Arrival) -> Sender {
        let (path, process) = arrival.asked.by();
        let (source, dest) = (path.local_ip(), path.remote_ip());
        let query = RouteQuery { dest, scope: path.link, source: Some(source) };
        let route = self.env.route(query).ok();
        let watch = self.watch_peer(route.is_some_and(|route| route.local), process);
        Sender { route, watch }
    }

    /// A request gets an identifier, which its listener offers to the program, unless the request,
    /// the listener or the process that sent it has ended.
    pub(crate) fn admit(&self, core: &mut Core, now: Instant, arrival: Arrival, sender: Sender) {
        let Arrival { key, at, listener, asked } = arrival;
        let stands = core.cm(key).is_some_and(|(cm, conn)| cm.is_unanswered(conn));
        let listens = core.listeners.get(&at).is_some_and(|l| Arc::ptr_eq(&l.id, &listener));
        if !(sender.watch.is_some() && stands && listens) {
            // What lay in the socket of a process that was stopped, and whose sender is gone, among
            // others.
            if let Some((cm, conn)) = core.cm(key) {
                cm.destroy(now, conn);
            }
            return;
        }
        let id = self.incoming(&listener, key, at, &asked, sender.route);
        id.lock().watch = sender.watch;
        let event = asked.event(&id, &listener);
        core.ids.insert(key, id);
        if let Some(listener) = core.listeners.get_mut(&at) {
            listener.push(now, event);
        }
        core.offer(now, &at);
    }

    /// The identifier of a new request to a listener.
    fn incoming(
        &self,
        listener: &Id,
        key: ConnKey,
        at: ListenKey,
        asked: &Asked,
        route: Option<Route>,
    ) -> Arc<Id> {
        let (channel, ib) = {
            let inner = listener.lock();
            (inner.channel.clone(), inner.ib)
        };
        let id = Id::of_kind(listener.space, listener.kind, channel);
        let device = self.device(key.0);
        let (path, _) = asked.by();
        {
            let mut inner = id.lock();
            inner.progress = Progress::Requested;
            inner.source = Some(with_scope(path.local_ip(), at.2, path.link));
            inner.dest = Some(with_scope(path.remote_ip(), asked.peer_port(), path.link));
            if path.lids.is_some() {
                inner.gids = Some((path.local_gid, path.remote_gid));
                inner.record = Some(*path);
            }
            inner.device = device;
            inner.route = route;
            inner.conn = Some(key);
            inner.listener = Some(at);
            inner.ib = ib;
            if let Asked::Connection(request) = asked {
                inner.offered = told(&request.parameters);
                inner.remote_ece = request.parameters.ece;
            }
        }
        self.cm_agent.everyone.add(&id);
        id
    }

    /// `rdma_accept`: takes the queue pair to RTS and sends the reply. Without parameters, those of
    /// the request, cut to what the device has. A depth above the request's is the request's.
    pub fn accept(&self, id: &Arc<Id>, param: Option<&ConnParam>, private_data: &[u8]) -> Result<(), Error> {
        if id.is_datagram() {
            return self.serve(id, param.map_or(0, |p| p.qp_num), private_data);
        }
        check_private_data(id, private_data, |most| most.reply)?;
        let (now, random) = (self.env.now(), self.random_psn());
        let mut core = self.cm_agent.lock();
        let (key, param, parameters, has_qp) = {
            let inner = id.lock();
            if inner.progress != Progress::Requested {
                return Err(inner.progress.refuses());
            }
            let mut param = param.copied().unwrap_or(ConnParam { qp_num: 0, ..inner.offered.cut() });
            param.check()?;
            param.initiator_depth = param.initiator_depth.min(inner.offered.initiator_depth);
            // The vendor is the asker's, whichever ours is (rdma_set_local_ece(3)).
            let ece = Ece { vendor_id: inner.remote_ece.vendor_id, options: inner.local_ece.options };
            let starting_psn = inner.starting_psn.unwrap_or(random);
            let parameters = parameters(&param, inner.qp.as_deref(), starting_psn, ece);
            param.srq = parameters.srq;
            (inner.conn.ok_or(NOT_CONNECTED)?, param, parameters, inner.qp.is_some())
        };
        let accept = cm::Accept { parameters, private_data: private_data.to_vec() };
        let (cm, conn) = core.cm(key).ok_or(NOT_CONNECTED)?;
        cm.accept(now, conn, &accept).map_err(refused)?;
        core.begun(now, id);
        if has_qp {
            if let Err(e) = self.connect_qp(&mut core, now, key, id) {
                if let Some((cm, conn)) = core.cm(key) {
                    cm.destroy(now, conn);
                }
                self.carry_out(core, now);
                return Err(e);
            }
            self.cm_agent.await_data(&mut core, parameters.qpn, key);
        }
        {
            let mut inner = id.lock();
            inner.param = param;
            inner.accepted = true;
            inner.progress = Progress::Answered;
        }
        self.carry_out(core, now);
        Ok(())
    }

    /// `rdma_reject`: refuses a request with reason 28, consumer defined.
    pub fn reject(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        self.reject_for(id, Refusal::ConsumerDefined, private_data)
    }

    /// `rdma_reject_ece`: refuses a request because of its ECE options, reason 35.
    pub fn reject_ece(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        self.reject_for(id, Refusal::VendorOption, private_data)
    }

    fn reject_for(&self, id: &Arc<Id>, why: Refusal, private_data: &[u8]) -> Result<(), Error> {
        if id.is_datagram() {
            return self.decline(id, private_data);
        }
        check_private_data(id, private_data, |most| most.rejection)?;
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            let may = matches!(inner.progress, Progress::Requested | Progress::Answered);
            inner.conn.filter(|_| may).ok_or(inner.progress.refuses())?
        };
        let (cm, conn) = core.cm(key).ok_or(NOT_CONNECTED)?;
        cm.reject(now, conn, why, private_data).map_err(refused)?;
        core.begun(now, id);
        id.lock().progress = Progress::Disconnected;
        self.carry_out(core, now);
        Ok(())
    }

    /// `rdma_notify` of IBV_EVENT_COMM_EST: data has come on a queue pair that was accepted for, so
    /// the connection stands though no RTU came; Established follows. EISCONN where that was
    /// known already, EINVAL before an accept and after the end.
    pub fn communication_established(&self, id: &Arc<Id>) -> Result<(), Error> {
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            let key = inner.conn.ok_or(inner.progress.refuses())?;
            match inner.progress {
                Progress::Connected => return Err(Error::System(Errno::EISCONN)),
                // On the active side this is the state before rdma_establish.
                Progress::Answered if inner.accepted => key,
                progress => return Err(progress.refuses()),
            }
        };
        let (cm, conn) = core.cm(key).ok_or(NOT_CONNECTED)?;
        cm.established(now, conn).map_err(refused)?;
        self.carry_out(core, now);
        Ok(())
    }

    /// A packet came for a queue pair. The first that counts on one whose peer's RTU is missing
    /// establishes the connection; the last that one waits for lets its peer end it.
    #[inline]
    pub(crate) fn data_came(&self, now: Instant, qpn: Qpn) {
        if self.cm_agent.awaits_data() {
            self.awaited_data_came(now, qpn);
        }
    }

    #[inline(never)]
    fn awaited_data_came(&self, now: Instant, qpn: Qpn) {
        let mut core = self.cm_agent.lock();
        let established = core.unheard.get(&qpn).copied().filter(|&key| {
            let qp = core.qp(key);
            qp.is_some_and(|qp| qp.qpn() == qpn && qp.has_received())
        });
        if let Some(key) = established {
            if let Some((cm, conn)) = core.cm(key) {
                // An error says that the connection has ended.
                _ = cm.established(now, conn);
            }
            self.cm_agent.await_no_data(&mut core, key);
        }
        if self.end_wait(&mut core, now, qpn) || established.is_some() {
            self.carry_out(core, now);
        }
    }
}

impl Asked {
    /// The way back to the peer that asks, and its process.
    fn by(&self) -> (&cm::PathRecord, u32) {
        match self {
            Self::Connection(request) => (&request.path, request.process),
            Self::Service(request) => (&request.path, request.process),
        }
    }

    fn peer_port(&self) -> u16 {
        match self {
            Self::Connection(request) => request.peer_port,
            Self::Service(request) => request.peer_port,
        }
    }

    /// What the program sees of it.
    fn event(self, id: &Arc<Id>, listener: &Arc<Id>) -> Event {
        let (param, ud, header, data) = match self {
            Self::Connection(r) => (told(&r.parameters), None, r.header, r.private_data),
            Self::Service(r) => {
                let ud = toward(id, Qpn::default(), wire::Qkey::default());
                (ConnParam::default(), ud, r.header, r.private_data)
            }
        };
        // A program that listens by an `AF_IB` address reads the header too.
        let private_data = if id.lock().ib.is_some() { [header, data].concat() } else { data };
        let listener = Some(listener.clone());
        Event { listener, param, ud, private_data, ..plain(id, EventKind::ConnectRequest, 0) }
    }
}
