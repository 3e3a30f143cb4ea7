//! Connecting: the calls of rdma_cm that exchange messages, and the requests that arrive.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nic::{Device, Qp, QpAttr, QpState};
use wire::mad::{Ece, IpCm, reason};
use wire::{CommId, Psn, Qkey, Qpn, ServiceId};

use crate::cm_agent::{ConnKey, Core, INIT_MASK, ListenKey, plain};
use crate::event::{ConnParam, Event, EventKind};
use crate::id::{Claimed, Id, Inner, Progress, WRONG_STATE, everywhere, libc_errno, with_scope};
use crate::listener::Listener;
use crate::world::{Route, RouteQuery, World};
use crate::{Error, Node};

/// Consumer private data of a request for RDMA_PS_TCP, in bytes (rdma_connect(3)).
pub const CONNECT_DATA: usize = 56;
/// Consumer private data of an accept for RDMA_PS_TCP, in bytes (rdma_accept(3)).
pub const ACCEPT_DATA: usize = 196;
/// Consumer private data of a reject, in bytes.
pub const REJECT_DATA: usize = 148;

impl<W: World> Node<W> {
    /// Gives an identifier its queue pair, in state Reset, and takes it to INIT as `rdma_create_qp` does; one for datagrams
    /// to RTS.
    pub fn set_qp(&self, id: &Arc<Id>, qp: &Arc<Qp>) -> Result<(), Error> {
        {
            let mut inner = id.lock();
            if inner.qp.is_some() || inner.device.is_none() {
                return Err(WRONG_STATE);
            }
            inner.qp = Some(qp.clone());
        }
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        core.begun(now, id);
        self.settle(core, now);
        let begun = if id.is_datagram() {
            self.begin_datagram_qp(id, now, qp)
        } else {
            let attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
            qp.modify(now, &attr, INIT_MASK)
        };
        begun.inspect_err(|_| id.lock().qp = None)
    }

    /// The identifier's queue pair from now on, `None` for none: one that the program has made itself, in whatever state, or the one
    /// that it has. Connecting announces it and moves it. EINVAL for another device's.
    pub fn take_in_qp(&self, id: &Id, qp: Option<Arc<Qp>>) -> Result<(), Error> {
        let mut inner = id.lock();
        if let (Some(qp), Some(device)) = (&qp, &inner.device)
            && !Arc::ptr_eq(qp.device(), device)
        {
            return Err(Error::Invalid("the queue pair is another device's"));
        }
        inner.qp = qp;
        Ok(())
    }

    /// The active side's identifier was given a queue pair after the peer accepted: it goes to RTS, then the peer is told.
    /// Where it can not be moved the peer is refused.
    pub fn finish_connect(&self, id: &Arc<Id>) -> Result<(), Error> {
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            let waits = inner.progress == Progress::Answered && !inner.accepted;
            inner.conn.filter(|_| waits).ok_or(WRONG_STATE)?
        };
        let joined = self.join(&mut core, now, key, id);
        self.settle(core, now);
        joined
    }

    /// Takes the queue pair from the identifier, `rdma_destroy_qp`.
    pub fn take_qp(&self, id: &Arc<Id>) -> Option<Arc<Qp>> {
        self.detach_all(id);
        id.lock().qp.take()
    }

    /// `rdma_listen`: an identifier not bound gets a free port on all addresses first. A backlog of 0 or above
    /// [`MAX_BACKLOG`](crate::listener::MAX_BACKLOG) means that many. EADDRNOTAVAIL or EADDRINUSE where another that shares
    /// the port listens.
    pub fn listen(&self, id: &Arc<Id>, backlog: u32) -> Result<(), Error> {
        if id.lock().progress == Progress::Idle {
            self.bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let (address, device) = {
            let inner = id.lock();
            if inner.progress != Progress::Bound {
                return Err(WRONG_STATE);
            }
            (inner.source.ok_or(WRONG_STATE)?, inner.device.clone())
        };
        match device {
            Some(device) => self.attach(&device)?,
            None => self.attach_all()?,
        }
        // A port that others may share is the listener's alone from now on.
        let place = id.lock().place;
        let shared = place.filter(|place| place.reuse);
        let claim = shared.map(|place| self.claim_to_listen(place, address.port())).transpose()?;
        let mut core = self.cm_agent.lock();
        let mut inner = id.lock();
        if inner.progress != Progress::Bound || inner.place != place {
            return Err(WRONG_STATE);
        }
        inner.listen_claim = claim.map(Claimed);
        inner.progress = Progress::Listening;
        let key = (place.map_or(id.space, |p| p.space), everywhere(address.ip()), address.port());
        core.listeners.insert(key, Listener::new(id.clone(), backlog));
        Ok(())
    }

    /// Opens the port of all devices; it is enough if one can be had.
    fn attach_all(&self) -> Result<(), Error> {
        let mut result = Err(Error::System(libc_errno::ENODEV));
        for device in self.devices() {
            match self.attach(&device) {
                Ok(()) => result = Ok(()),
                Err(e) if result.is_err() => result = Err(e),
                Err(_) => {}
            }
        }
        result
    }

    /// `rdma_connect`: sends a request. EINVAL for parameters beyond the device's limits or more than [`CONNECT_DATA`]
    /// bytes of private data; what comes of it is an event.
    pub fn connect(&self, id: &Arc<Id>, param: &ConnParam, private_data: &[u8]) -> Result<(), Error> {
        if id.is_datagram() {
            return self.ask(id, private_data);
        }
        check(param)?;
        if private_data.len() > CONNECT_DATA {
            return Err(Error::Invalid("more than 56 bytes of private data"));
        }
        let (now, starting_psn) = (self.world.now(), self.random_psn());
        let mut core = self.cm_agent.lock();
        let (device, connect) = {
            let inner = id.lock();
            if inner.progress != Progress::RouteResolved {
                return Err(WRONG_STATE);
            }
            let (Some(source), Some(dest), Some(route), Some(device)) =
                (inner.source, inner.dest, inner.route, &inner.device)
            else {
                return Err(WRONG_STATE);
            };
            let header = IpCm { source: route.source, source_port: source.port(), dest: route.dest };
            let mut data = [0; 92];
            data[..IpCm::LEN].copy_from_slice(&header.emit());
            data[IpCm::LEN..][..private_data.len()].copy_from_slice(private_data);
            let connect = cm::Connect {
                service_id: ServiceId::from_port(id.space, dest.port()),
                path: path(device, &route, &inner),
                private_data: data,
                qpn: inner.qp.as_ref().map_or(Qpn::new(param.qp_num), |qp| qp.qpn()),
                starting_psn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                flow_control: param.flow_control,
                retry_count: param.retry_count.min(7),
                rnr_retry_count: param.rnr_retry_count.min(7),
                srq: inner.qp.as_ref().map_or(param.srq, |qp| qp.init().srq.is_some()),
                transport_service: id.transport_service(),
                qkey: Qkey(0),
                ece: inner.local_ece,
            };
            (device.clone(), connect)
        };
        let conn = self.with_cm(&mut core, &device, |cm| cm.connect(now, &connect)).map_err(refused)?;
        core.ids.insert((device.config.id, conn), id.clone());
        {
            let mut inner = id.lock();
            inner.conn = Some((device.config.id, conn));
            inner.param = *param;
            inner.progress = Progress::Connecting;
        }
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_accept`: takes the queue pair to RTS and sends the reply. Without parameters, those of the request, cut to what
    /// the device has. A depth above the request's is the request's.
    pub fn accept(&self, id: &Arc<Id>, param: Option<&ConnParam>, private_data: &[u8]) -> Result<(), Error> {
        if id.is_datagram() {
            return self.serve(id, param.map_or(0, |p| p.qp_num), private_data);
        }
        if private_data.len() > ACCEPT_DATA {
            return Err(Error::Invalid("more than 196 bytes of private data"));
        }
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let (key, param, qpn, told, ece) = {
            let inner = id.lock();
            if inner.progress != Progress::Requested {
                return Err(WRONG_STATE);
            }
            let mut param = param.copied().unwrap_or(ConnParam { qp_num: 0, ..cut(&inner.offered) });
            check(&param)?;
            param.initiator_depth = param.initiator_depth.min(inner.offered.initiator_depth);
            let qpn = inner.qp.as_ref().map_or(Qpn::new(param.qp_num), |qp| qp.qpn());
            param.srq = inner.qp.as_ref().map_or(param.srq, |qp| qp.init().srq.is_some());
            // The vendor is the asker's, whoever ours is (rdma_set_local_ece(3)).
            let ece = Ece { vendor_id: inner.remote_ece.vendor_id, options: inner.local_ece.options };
            (inner.conn.ok_or(WRONG_STATE)?, param, qpn, inner.starting_psn, ece)
        };
        let mut data = [0; ACCEPT_DATA];
        data[..private_data.len()].copy_from_slice(private_data);
        let accept = cm::Accept {
            qpn,
            starting_psn: told.unwrap_or_else(|| self.random_psn()),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq,
            qkey: Qkey(0),
            ece,
            private_data: data,
        };
        let (cm, conn) = core.cm(key).ok_or(WRONG_STATE)?;
        cm.accept(now, conn, &accept).map_err(refused)?;
        core.begun(now, id);
        if id.lock().qp.is_some()
            && let Err(e) = self.connect_qp(&mut core, now, key, id)
        {
            if let Some((cm, conn)) = core.cm(key) {
                cm.destroy(now, conn);
            }
            self.settle(core, now);
            return Err(e);
        }
        if id.lock().qp.is_some() {
            self.cm_agent.await_data(&mut core, qpn, key);
        }
        {
            let mut inner = id.lock();
            inner.param = param;
            inner.accepted = true;
            inner.progress = Progress::Answered;
        }
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_reject`: refuses a request with reason 28, consumer defined.
    pub fn reject(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        self.reject_for(id, reason::CONSUMER_DEFINED, private_data)
    }

    /// `rdma_reject_ece`: refuses a request because of its ECE options, reason 35.
    pub fn reject_ece(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        self.reject_for(id, reason::VENDOR_OPTION_NOT_SUPPORTED, private_data)
    }

    fn reject_for(&self, id: &Arc<Id>, why: u16, private_data: &[u8]) -> Result<(), Error> {
        if id.is_datagram() {
            return self.decline(id, private_data);
        }
        if private_data.len() > REJECT_DATA {
            return Err(Error::Invalid("more than 148 bytes of private data"));
        }
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            let may = matches!(inner.progress, Progress::Requested | Progress::Answered);
            inner.conn.filter(|_| may).ok_or(WRONG_STATE)?
        };
        let mut data = [0; REJECT_DATA];
        data[..private_data.len()].copy_from_slice(private_data);
        let (cm, conn) = core.cm(key).ok_or(WRONG_STATE)?;
        cm.reject(now, conn, why, &[], data).map_err(refused)?;
        core.begun(now, id);
        id.lock().progress = Progress::Disconnected;
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_establish`: the active side's queue pair, not owned by the identifier, is ready.
    pub fn establish(&self, id: &Arc<Id>) -> Result<(), Error> {
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let mut inner = id.lock();
            if inner.progress != Progress::Answered || inner.qp.is_some() {
                return Err(WRONG_STATE);
            }
            inner.progress = Progress::Connected;
            inner.conn.ok_or(WRONG_STATE)?
        };
        let (cm, conn) = core.cm(key).ok_or(WRONG_STATE)?;
        cm.established(now, conn).map_err(refused)?;
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_notify` of IBV_EVENT_COMM_EST: data has come on a queue pair that was accepted for, so the connection stands though no RTU
    /// came; Established follows. EISCONN where that was known already, EINVAL before an accept and after the end.
    pub fn communication_established(&self, id: &Arc<Id>) -> Result<(), Error> {
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            let key = inner.conn.ok_or(WRONG_STATE)?;
            match inner.progress {
                Progress::Connected => return Err(Error::System(libc_errno::EISCONN)),
                // On the active side this is the state before rdma_establish.
                Progress::Answered if inner.accepted => key,
                _ => return Err(WRONG_STATE),
            }
        };
        let (cm, conn) = core.cm(key).ok_or(WRONG_STATE)?;
        cm.established(now, conn).map_err(refused)?;
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_disconnect`: the queue pair goes to the error state, the peer is told. On an identifier whose connection
    /// has ended it does the former only.
    pub fn disconnect(&self, id: &Arc<Id>) -> Result<(), Error> {
        if id.is_datagram() {
            return self.stop(id);
        }
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let (key, qp) = {
            let inner = id.lock();
            match inner.progress {
                Progress::Connected | Progress::Answered | Progress::Disconnected | Progress::Connecting => {}
                _ => return Err(WRONG_STATE),
            }
            (inner.conn.ok_or(WRONG_STATE)?, inner.qp.clone())
        };
        if let Some(qp) = qp {
            qp.fail(now);
        }
        if let Some((cm, conn)) = core.cm(key) {
            // An error says that the connection has ended already.
            _ = cm.disconnect(now, conn, [0; 220]);
        }
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_destroy_id`, whatever the state: peers are told what their state calls for, events not yet fetched vanish, and
    /// with a listener the requests that wait.
    pub fn destroy(&self, id: &Arc<Id>) {
        self.detach_all(id);
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let (key, channel, listened, was, names) = {
            let mut inner = id.lock();
            let was = std::mem::replace(&mut inner.progress, Progress::Destroyed);
            let names = (inner.claim.take(), inner.listen_claim.take());
            (inner.conn.take(), inner.channel.clone(), inner.listens_at(), was, names)
        };
        drop(names);
        let qp = id.lock().qp.clone();
        if let Some(qp) = qp {
            // The queue pair may outlive it, and its peer hears no more after the end of the connection.
            qp.let_acks_go(now);
        }
        if let (Progress::Listening, Some(listened)) = (was, listened) {
            self.stop_listening(&mut core, now, &listened);
        }
        core.begun(now, id);
        if let Some(key) = key {
            core.ids.remove(&key);
            if let Some((cm, conn)) = core.cm(key) {
                cm.destroy(now, conn);
            }
        }
        let gone = channel
            .take_back(|e| Arc::ptr_eq(&e.id, id) || e.listener.as_ref().is_some_and(|l| Arc::ptr_eq(l, id)));
        self.settle(core, now);
        // Requests nobody will see: their identifiers never reached the program.
        for event in gone.into_iter().filter(|e| e.kind == EventKind::ConnectRequest) {
            if event.id.cookie.load(Ordering::Relaxed) == 0 && !Arc::ptr_eq(&event.id, id) {
                self.destroy(&event.id);
            }
        }
    }

    /// A listener is no more; requests that wait at it are refused.
    pub(crate) fn stop_listening(&self, core: &mut Core, now: Instant, at: &ListenKey) {
        let Some(listener) = core.listeners.remove(at) else { return };
        for unseen in listener.into_waiting() {
            if let Some(key) = core.forget(&unseen)
                && let Some((cm, conn)) = core.cm(key)
            {
                cm.destroy(now, conn);
            }
        }
    }

    /// The attributes that `rdma_init_qp_attr` gives for a move to `state`, with their mask.
    pub fn init_qp_attr(&self, id: &Arc<Id>, state: QpState) -> Result<(QpAttr, u32), Error> {
        use crate::cm_agent::{RTR_MASK, RTS_MASK};
        if id.is_datagram() {
            id.lock().device.as_ref().ok_or(WRONG_STATE)?;
            return self.datagram_attr(id, state);
        }
        let (key, device) = {
            let inner = id.lock();
            (inner.conn, inner.device.clone().ok_or(WRONG_STATE)?)
        };
        let wants = key.and_then(|key| {
            let mut core = self.cm_agent.lock();
            let (cm, conn) = core.cm(key)?;
            cm.qp_attr(conn).or_else(|| cm.requested_qp_attr(conn))
        });
        let mut attr = match &wants {
            Some(wants) => self.rtr_attributes(id, &device, wants)?,
            None => QpAttr { port: 1, ..QpAttr::default() },
        };
        let (is_requested, told) = {
            let inner = id.lock();
            (inner.progress == Progress::Requested, inner.starting_psn)
        };
        if is_requested {
            // The program moves its queue pair before it accepts: the PSN is chosen now, and the REP will tell it.
            let chosen = told.unwrap_or_else(|| self.random_psn());
            attr.rq_psn = *id.lock().starting_psn.get_or_insert(chosen);
        }
        let bits = match state {
            QpState::Init => INIT_MASK,
            QpState::Rtr if wants.is_some() => RTR_MASK & !id.kind.lacks(),
            QpState::Rts if wants.is_some() => RTS_MASK & !id.kind.lacks(),
            _ => return Err(WRONG_STATE),
        };
        Ok((attr.with_state(state), bits))
    }

    /// A request arrived for one of our listeners, or for nobody.
    pub(crate) fn on_request(&self, core: &mut Core, now: Instant, key: ConnKey, request: &cm::Request) {
        let refuse = |core: &mut Core, why: u16| self.refuse(core, now, key, why);
        let req = &request.req;
        let target = req.service_id.ip_port();
        let header = IpCm::parse(&req.private_data[..IpCm::LEN]);
        let (Some((space, port)), Ok(header)) = (target, header) else {
            return refuse(core, reason::INVALID_SERVICE_ID);
        };
        let ours = request.path.local_gid.ip();
        let Some(listen) = core.listener(space, ours, port) else {
            return refuse(core, reason::INVALID_SERVICE_ID);
        };
        let service = cm::TransportService::from_codes(req.transport_service, req.extended_transport);
        let asked_for_xrc = service == Some(cm::TransportService::Xrc);
        let fits = |l: &Id| {
            !l.is_datagram() && asked_for_xrc == (l.transport_service() == cm::TransportService::Xrc)
        };
        if service.is_none() || core.listeners.get(&listen).is_some_and(|l| !fits(&l.id)) {
            return refuse(core, reason::INVALID_TRANSPORT_SERVICE);
        }
        if self.device(key.0).is_some_and(|device| req.path_mtu > device.port().mtu) {
            return refuse(core, reason::INVALID_MTU);
        }
        let listeners = core.listeners.len();
        let free = core.listeners.get(&listen).filter(|l| !l.is_full(listeners));
        let Some(listener) = free.map(|l| l.id.clone()) else {
            return refuse(core, reason::NO_RESOURCES);
        };
        let id = self.incoming(&listener, key, &request.path, &header, port);
        let param = ConnParam {
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qp_num: req.local_qpn.get(),
        };
        {
            let mut inner = id.lock();
            inner.offered = param;
            inner.remote_ece = req.ece;
        }
        let private_data = req.private_data[consumer_data(&id)..].to_vec();
        let event = Event { param, private_data, ..plain(&id, EventKind::ConnectRequest, 0) };
        self.admit(core, now, key, listen, req.local_comm_id, event);
    }

    /// Answers a request that no identifier of the program will see.
    pub(crate) fn refuse(&self, core: &mut Core, now: Instant, key: ConnKey, why: u16) {
        if why == reason::NO_RESOURCES {
            self.counters.no_resources.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((cm, conn)) = core.cm(key) {
            _ = cm.reject(now, conn, why, &[], [0; 148]);
        }
    }

    /// The identifier of a new request to a listener.
    pub(crate) fn incoming(
        &self,
        listener: &Id,
        key: ConnKey,
        path: &cm::Path,
        header: &IpCm,
        port: u16,
    ) -> Arc<Id> {
        let (channel, ib) = {
            let inner = listener.lock();
            (inner.channel.clone(), inner.ib)
        };
        let id = Id::of_kind(listener.space, listener.kind, channel);
        self.cm_agent.everyone.add(&id);
        let (ours, theirs) = (path.local_gid.ip(), path.remote_gid.ip());
        let query = RouteQuery { dest: theirs, scope: path.link, source: Some(ours) };
        let (device, route) = (self.device(key.0), self.world.route(query).ok());
        let mut inner = id.lock();
        inner.progress = Progress::Requested;
        inner.source = Some(with_scope(ours, port, path.link));
        inner.dest = Some(with_scope(theirs, header.source_port, path.link));
        inner.device = device;
        inner.route = route;
        inner.conn = Some(key);
        inner.ib = ib;
        drop(inner);
        id
    }

    /// Hands the event of a new request to its listener, unless whoever sent it (`remote`) has ended.
    pub(crate) fn admit(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        listen: ListenKey,
        remote: CommId,
        event: Event,
    ) {
        let lives = self.watch_peer(&event.id, remote);
        let Some(listener) = core.listeners.get_mut(&listen).filter(|_| lives) else {
            // It lay in the socket of a process that was stopped, and whoever sent it is gone.
            if let Some((cm, conn)) = core.cm(key) {
                cm.destroy(now, conn);
            }
            return;
        };
        let id = event.id.clone();
        id.lock().listener = Some(listen);
        listener.push(now, Event { listener: Some(listener.id.clone()), ..event });
        core.ids.insert(key, id);
        core.offer(now, &listen);
    }

    pub(crate) fn random_psn(&self) -> Psn {
        let mut bytes = [0; 4];
        self.world.fill_random(&mut bytes);
        Psn::new(u32::from_ne_bytes(bytes))
    }
}

/// Ranges of rdma_connect(3) and rdma_accept(3).
fn check(param: &ConnParam) -> Result<(), Error> {
    let most = nic::limits::MAX_RD_ATOMIC;
    if param.responder_resources > most {
        return Err(Error::Invalid("responder_resources is above max_qp_rd_atom"));
    }
    if param.initiator_depth > most {
        return Err(Error::Invalid("initiator_depth is above max_qp_init_rd_atom"));
    }
    Ok(())
}

/// What a request offers, cut to what the device has.
fn cut(offered: &ConnParam) -> ConnParam {
    let most = nic::limits::MAX_RD_ATOMIC;
    ConnParam {
        responder_resources: offered.responder_resources.min(most),
        initiator_depth: offered.initiator_depth.min(most),
        ..*offered
    }
}

/// The way that messages and data take, with what the program said about it.
pub(crate) fn path(device: &Device, route: &Route, inner: &Inner) -> cm::Path {
    let mtu = wire::Mtu::for_link(route.mtu).unwrap_or(wire::Mtu::M256).min(device.port().mtu);
    let path = cm::Path::new(route.source.into(), route.dest.into(), device.config.interface, mtu);
    let path = match &inner.path {
        None => path,
        Some(chosen) => cm::Path {
            mtu: path.mtu.min(chosen.mtu),
            traffic_class: chosen.traffic_class,
            flow_label: chosen.flow_label,
            hop_limit: if chosen.hop_limit == 0 { path.hop_limit } else { chosen.hop_limit },
            service_level: chosen.service_level,
            packet_life_time: chosen.packet_life_time,
            ..path
        },
    };
    cm::Path { traffic_class: inner.tos.unwrap_or(path.traffic_class), ..path }
}

/// Where the program's part of a request's private data begins: whoever listens by an `AF_IB` address reads the header too.
pub(crate) fn consumer_data(id: &Id) -> usize {
    if id.lock().ib.is_some() { 0 } else { IpCm::LEN }
}

pub(crate) fn refused(e: cm::Error) -> Error {
    match e {
        cm::Error::Full(_) | cm::Error::CommIds(_) => Error::Limit("connections"),
        cm::Error::State(..) | cm::Error::Unknown(_) | cm::Error::Parameter(_) => WRONG_STATE,
    }
}
