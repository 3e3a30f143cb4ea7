//! Identifiers of the connection manager (rdma_cm(7)): RDMA_PS_TCP for reliable connections,
//! RDMA_PS_IB for unreliable ones, RDMA_PS_UDP for datagram services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

use libc::c_int;
use locks::{Mutex, Rank};
use nic::rdma_cm::{ConnParam, EventKind};
use nic::{Errno, Error, QpType};
use rdma_core_abi::cma::{RDMA_PS_TCP, RDMA_PS_UDP, rdma_cm_id, rdma_conn_param};

use crate::device::{Device, mtu};
use crate::events::{Event, Inbox};
use crate::instance::System;
use crate::multicast::Join;
use crate::qp::{Connecting, Qp};
use crate::{minus_one, sockaddr};

/// Requests that may wait where the program does not say how many.
const BACKLOG: usize = 1024;

/// An identifier.
pub struct Id {
    system: Arc<System>,
    kind: QpType,
    /// The C object; an identifier for unreliable connections gets it with its address.
    raw: Mutex<Option<Raw>>,
    state: Mutex<State>,
}

struct Raw(NonNull<rdma_cm_id>);

// SAFETY: the connection manager may be called by any thread; the lock says that no thread destroys
// the identifier meanwhile.
unsafe impl Send for Raw {}

/// What it has come to.
struct State {
    inbox: Arc<Inbox>,
    /// Requests that may wait.
    backlog: usize,
    qp: Option<Arc<Qp>>,
    how: Connecting,
    /// What a request offered.
    offered: Option<ConnParam>,
    over: bool,
    joins: Vec<Join>,
    seen: Seen,
}

/// As the C object said it when it was looked at.
#[derive(Clone, Default)]
struct Seen {
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    device: Option<Arc<Device>>,
    path_mtu: Option<u32>,
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Id({:?} to {:?})", self.local_addr(), self.peer_addr())
    }
}

impl Id {
    /// A new identifier for queue pairs of a type (RC, UC, UD), whose events go to `inbox`.
    ///
    /// # Errors
    ///
    /// `Unsupported` for another type; errno of rdma_create_id(3).
    pub fn new(system: &Arc<System>, inbox: &Arc<Inbox>, kind: QpType) -> Result<Arc<Self>, Error> {
        let raw = match kind {
            QpType::Rc => Some(system.create_id(RDMA_PS_TCP)?),
            QpType::Ud => Some(system.create_id(RDMA_PS_UDP)?),
            QpType::Uc => None,
            _ => return Err(Error::Unsupported("this service over the machine's libraries")),
        };
        Ok(Self::with(system, kind, raw, inbox.clone(), None))
    }

    /// Makes an identifier for unreliable connections, at this address; others exist already.
    fn make(self: &Arc<Self>, on: SocketAddr) -> Result<(), Error> {
        let mut raw = self.raw.lock();
        if raw.is_none() && self.kind == QpType::Uc {
            let made = self.system.create_uc_id(on)?;
            *raw = Some(Raw(made));
            drop(raw);
            self.system.ids.lock().insert(made.as_ptr() as usize, Arc::downgrade(self));
        }
        Ok(())
    }

    /// The identifier that came with a request; `None` for none.
    ///
    /// # Safety
    ///
    /// It lives, and no other thread destroys it.
    pub(crate) unsafe fn of_request(
        system: &Arc<System>,
        kind: QpType,
        raw: *mut rdma_cm_id,
        offered: ConnParam,
    ) -> Option<Arc<Self>> {
        let id = Self::with(system, kind, Some(NonNull::new(raw)?), Inbox::deaf(), Some(offered));
        // SAFETY: as the caller says.
        unsafe { id.look(raw) };
        Some(id)
    }

    fn with(
        system: &Arc<System>,
        kind: QpType,
        raw: Option<NonNull<rdma_cm_id>>,
        inbox: Arc<Inbox>,
        offered: Option<ConnParam>,
    ) -> Arc<Self> {
        let (how, seen) = (Connecting::default(), Seen::default());
        let joins = Vec::new();
        let state = State { inbox, backlog: 0, qp: None, how, offered, over: false, joins, seen };
        let id = Arc::new(Self {
            system: system.clone(),
            kind,
            raw: Mutex::new(Rank::SystemCall, raw.map(Raw)),
            state: Mutex::new(Rank::SystemId, state),
        });
        if let Some(raw) = raw {
            system.ids.lock().insert(raw.as_ptr() as usize, Arc::downgrade(&id));
        }
        id
    }

    /// Calls the connection manager, which must not destroy it.
    pub(crate) fn call<T>(&self, call: impl FnOnce(*mut rdma_cm_id) -> Result<T, Error>) -> Result<T, Error> {
        let raw = self.raw.lock();
        let Raw(id) = raw.as_ref().ok_or(Error::Missing("the identifier"))?;
        call(id.as_ptr())
    }

    /// Notes what the C object says.
    ///
    /// # Safety
    ///
    /// It lives, and the connection manager does not write to it just now.
    pub(crate) unsafe fn look(&self, raw: *mut rdma_cm_id) {
        // SAFETY: as the caller says.
        let (route, device) = unsafe { (&(*raw).route, self.system.device_of(raw)) };
        let path_mtu = if route.num_paths > 0 && !route.path_rec.is_null() {
            // SAFETY: so many records are there.
            Some(mtu(u32::from(unsafe { (*route.path_rec).mtu } & 0x3f)))
        } else {
            None
        };
        let (local, peer) = (sockaddr::of_c(&route.addr.src), sockaddr::of_c(&route.addr.dst));
        self.state.lock().seen = Seen { local, peer, device, path_mtu };
    }

    pub(crate) fn system(&self) -> &Arc<System> {
        &self.system
    }
    /// The queue pair is to have this timeout.
    pub(crate) fn note_ack_timeout(&self, code: u8) {
        self.state.lock().how.ack_timeout = Some(code);
    }
    pub(crate) fn qp(&self) -> Option<Arc<Qp>> {
        self.state.lock().qp.clone()
    }
    /// The groups that were asked for.
    pub(crate) fn joins(&self, change: impl FnOnce(&mut Vec<Join>)) {
        change(&mut self.state.lock().joins);
    }
    /// What its queue pairs are.
    pub(crate) fn kind(&self) -> QpType {
        self.kind
    }
    /// Our address, where there is one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.state.lock().seen.local
    }
    /// The peer's address, where there is one.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state.lock().seen.peer
    }
    /// The device that it leads over, where there is one.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.state.lock().seen.device.clone()
    }
    /// Largest payload of a packet of its route, in bytes.
    pub fn path_mtu(&self) -> Option<u32> {
        self.state.lock().seen.path_mtu
    }

    // ---- events ----

    /// From now on its events go there; first those that wait.
    pub fn adopt(&self, inbox: &Arc<Inbox>) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.inbox, inbox.clone());
        let waiting = before.take_all();
        waiting.into_iter().for_each(|event| inbox.push(event));
    }
    pub(crate) fn tell(&self, event: Event) {
        use EventKind::{ConnectError, DeviceRemoval, Disconnected, Rejected, Unreachable};
        let mut state = self.state.lock();
        state.over |=
            matches!(event.kind, ConnectError | DeviceRemoval | Disconnected | Rejected | Unreachable);
        state.inbox.push(event);
    }
    /// Whether an event has told of its end.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }
    /// Whether a further request may wait.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.inbox.len() < state.backlog
    }
    /// The peer has accepted: its answer is accepted, too.
    ///
    /// # Safety
    ///
    /// It lives.
    pub(crate) unsafe fn respond(&self, raw: *mut rdma_cm_id) -> Result<(), Error> {
        let (qp, how) = {
            let state = self.state.lock();
            (state.qp.clone(), state.how)
        };
        let qp = qp.ok_or(Error::Invalid("a connection without a queue pair"))?;
        // SAFETY: as the caller says.
        unsafe {
            qp.connect(raw, &Connecting { responder_resources: None, initiator_depth: None, ..how })?;
            minus_one((self.system.calls.rdma_establish)(raw))
        }
    }

    // ---- calls ----

    /// The kernel tells nothing of a request's end before it is accepted (ucma_event_handler):
    /// calls fail then, and so it is told here.
    fn or_over<T>(&self, called: Result<T, Error>) -> Result<T, Error> {
        if called.as_ref().is_err_and(|e| *e == GONE) && !self.is_over() {
            let (kind, param) = (EventKind::Disconnected, ConnParam::default());
            self.tell(Event { request: None, kind, status: 0, param, ud: None, private_data: Vec::new() });
        }
        called
    }

    /// Finds the device and the neighbour; an event says how it went.
    ///
    /// # Errors
    ///
    /// Errno of rdma_resolve_addr(3).
    pub fn resolve_addr(
        self: &Arc<Self>,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        self.make(from.unwrap_or((any, 0).into()))?;
        // One that was made there is bound.
        let from = from.filter(|_| self.kind != QpType::Uc);
        let (mut source, mut dest) = (from.map(sockaddr::to_c), sockaddr::to_c(to));
        let source = source.as_mut().map_or(null_mut(), |source| (&raw mut *source).cast());
        let resolve = self.system.calls.rdma_resolve_addr;
        self.call(|id| {
            // SAFETY: the identifier lives; both addresses are read.
            minus_one(unsafe { resolve(id, source, (&raw mut dest).cast(), milliseconds(timeout)) })
        })
    }
    /// Finds the route; an event says how it went.
    ///
    /// # Errors
    ///
    /// Errno of rdma_resolve_route(3).
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        let resolve = self.system.calls.rdma_resolve_route;
        // SAFETY: the identifier lives.
        self.call(|id| minus_one(unsafe { resolve(id, milliseconds(timeout)) }))
    }
    /// Sets the queue pair, which goes to INIT, and to RTS when the connection is made.
    ///
    /// # Errors
    ///
    /// Errno of rdma_init_qp_attr, ibv_modify_qp(3).
    pub fn set_qp(&self, qp: &Arc<Qp>, min_rnr_timer: u8) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        let begun = self.call(|id| unsafe { qp.init(id) });
        self.or_over(begun)?;
        let mut state = self.state.lock();
        state.how.min_rnr_timer = min_rnr_timer;
        state.qp = Some(qp.clone());
        Ok(())
    }

    /// Sets the address; port 0 is a free one.
    ///
    /// # Errors
    ///
    /// Errno of rdma_bind_addr(3).
    pub fn bind(self: &Arc<Self>, on: SocketAddr) -> Result<(), Error> {
        if self.kind == QpType::Uc {
            self.make(on)?;
            // SAFETY: it lives, and no event of it is on its way.
            return self.call(|id| unsafe {
                self.look(id);
                Ok(())
            });
        }
        let (mut addr, bind) = (sockaddr::to_c(on), self.system.calls.rdma_bind_addr);
        self.call(|id| {
            // SAFETY: the identifier lives; the address is read.
            minus_one(unsafe { bind(id, (&raw mut addr).cast()) })?;
            // SAFETY: it lives, and no event of it is on its way.
            unsafe { self.look(id) };
            Ok(())
        })
    }
    /// Takes requests, of which so many wait at most; 0 is what the system has.
    ///
    /// # Errors
    ///
    /// Errno of rdma_listen(3).
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.state.lock().backlog = if backlog == 0 { BACKLOG } else { backlog as usize };
        let listen = self.system.calls.rdma_listen;
        self.call(|id| {
            // SAFETY: the identifier lives.
            minus_one(unsafe { listen(id, c_int::try_from(backlog).unwrap_or(c_int::MAX)) })?;
            // SAFETY: it lives; of a listener no event but requests comes, which have identifiers
            // of their own.
            unsafe { self.look(id) };
            Ok(())
        })
    }

    fn ends(&self) -> Result<(Arc<Qp>, Arc<Device>), Error> {
        let state = self.state.lock();
        let qp = state.qp.clone().ok_or(Error::Invalid("there is no queue pair"))?;
        Ok((qp, state.seen.device.clone().ok_or(Error::Missing("the device"))?))
    }

    /// Asks the peer. Depths that are not said are the device's.
    ///
    /// # Errors
    ///
    /// A depth that the device does not have; errno of rdma_connect(3).
    pub fn connect(
        &self,
        responder_resources: Option<u8>,
        initiator_depth: Option<u8>,
        param: &ConnParam,
        data: &[u8],
    ) -> Result<(), Error> {
        if self.kind == QpType::Ud {
            // A question: there is no queue pair to be connected.
            let mut c = conn_param(&ConnParam::default(), data);
            // SAFETY: the identifier lives; parameters and data are read.
            return self.call(|id| minus_one(unsafe { (self.system.calls.rdma_connect)(id, &raw mut c) }));
        }
        let (qp, device) = self.ends()?;
        let responder = depth("responder_resources", responder_resources, device.max_responder)?;
        let initiator = depth("initiator_depth", initiator_depth, device.max_initiator)?;
        let (responder_resources, initiator_depth, qp_num) = (responder, initiator, qp.qpn().get());
        let asked = ConnParam { responder_resources, initiator_depth, qp_num, ..*param };
        let mut c = conn_param(&asked, data);
        // SAFETY: the identifier lives; parameters and data are read.
        self.call(|id| minus_one(unsafe { (self.system.calls.rdma_connect)(id, &raw mut c) }))
    }

    /// Accepts a request: depths are cut to what it offered, and to what the device has.
    ///
    /// # Errors
    ///
    /// Errno of rdma_accept(3), rdma_init_qp_attr, ibv_modify_qp(3).
    pub fn accept(&self, param: &ConnParam, data: &[u8]) -> Result<(), Error> {
        if self.kind == QpType::Ud {
            // The answer: which queue pair serves.
            let mut c = conn_param(param, data);
            // SAFETY: the identifier lives; parameters and data are read.
            return self.call(|id| minus_one(unsafe { (self.system.calls.rdma_accept)(id, &raw mut c) }));
        }
        let (qp, device) = self.ends()?;
        let (how, offered) = {
            let state = self.state.lock();
            (state.how, state.offered)
        };
        let offered = offered.ok_or(Error::Invalid("it has not come with a request"))?;
        let cut = |asked: u8, offered: u8, most: u8| asked.min(offered).min(most);
        let granted = ConnParam {
            responder_resources: cut(
                param.responder_resources,
                offered.responder_resources,
                device.max_responder,
            ),
            initiator_depth: cut(param.initiator_depth, offered.initiator_depth, device.max_initiator),
            qp_num: qp.qpn().get(),
            ..*param
        };
        let how = Connecting {
            responder_resources: Some(granted.responder_resources),
            initiator_depth: Some(granted.initiator_depth),
            ..how
        };
        let mut c = conn_param(&granted, data);
        let accepted = self.call(|id| {
            // SAFETY: the identifier lives.
            unsafe { qp.connect(id, &how)? };
            // SAFETY: the identifier lives; parameters and data are read.
            minus_one(unsafe { (self.system.calls.rdma_accept)(id, &raw mut c) }).map_err(gone)
        });
        self.or_over(accepted)
    }

    /// Refuses a request.
    ///
    /// # Errors
    ///
    /// Errno of rdma_reject(3).
    pub fn reject(&self, data: &[u8]) -> Result<(), Error> {
        let len =
            u8::try_from(data.len()).map_err(|_| Error::number("private_data_len", data.len() as u64))?;
        // SAFETY: the identifier lives; so many bytes are read.
        self.call(|id| minus_one(unsafe { (self.system.calls.rdma_reject)(id, data.as_ptr().cast(), len) }))
    }

    /// Ends the connection: the peer is told, what is under way is flushed.
    ///
    /// # Errors
    ///
    /// Errno of rdma_disconnect(3): there is no connection.
    pub fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        let told = self.call(|id| minus_one(unsafe { (self.system.calls.rdma_disconnect)(id) }));
        let qp = self.state.lock().qp.clone();
        qp.iter().for_each(|qp| qp.fail());
        told
    }

    /// Tells the peer what the state calls for; no event follows. Later calls do nothing. No lock.
    pub fn destroy(&self) {
        if !self.system.is_ours() {
            return;
        }
        let Some(Raw(raw)) = self.raw.lock().take() else { return };
        self.system.ids.lock().remove(&(raw.as_ptr() as usize));
        let qp = self.state.lock().qp.take();
        drop(qp);
        // SAFETY: it lives, and no thread has it any more: this waits for events of it that are
        // being read, which need no lock that is held here.
        if unsafe { (self.system.calls.rdma_destroy_id)(raw.as_ptr()) } != 0 {
            self.system.leak();
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// What EINVAL means of a call that is right for the state that the identifier was in last.
const GONE: Error = Error::Invalid("the connection is no more");

pub(crate) fn gone(error: Error) -> Error {
    if error == Error::System(Errno::EINVAL) { GONE } else { error }
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

/// A depth as the device has it.
fn depth(what: &'static str, asked: Option<u8>, most: u8) -> Result<u8, Error> {
    match asked {
        Some(asked) if asked > most => {
            Err(Error::OutOfRange { what, value: asked.into(), least: 0, most: most.into() })
        }
        asked => Ok(asked.unwrap_or(most)),
    }
}

fn conn_param(param: &ConnParam, data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: 0,
        qp_num: param.qp_num,
    }
}
