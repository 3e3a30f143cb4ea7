//! Identifiers (`struct rdma_cm_id`), call by call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nic::{QpState, QpType};
use wire::mad;

use super::{EventChannel, Parameters};
use crate::cm::events::RNR_TIMER;
use crate::cm::listener::taken;
use crate::cm::{at_most, check_private_data, check_timeout, limits};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::{Adapter, Device, Ours, Provider, node};
use crate::thread_safe::ThreadSafe;
use crate::verbs::ConnectAttr;

/// `enum rdma_port_space`: ports of one are none of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSpace {
    /// RDMA_PS_TCP: reliable connections.
    Tcp,
    /// RDMA_PS_UDP: datagram services, which are looked up; [`Id::accept`] says which queue pair
    /// serves.
    Udp,
    /// RDMA_PS_IB: connections of any service.
    Ib(Service),
}

/// What an identifier of [`PortSpace::Ib`] connects. A request for another service than the
/// listener's is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Extended reliable connections: the initiator asks, the target is asked.
    Xrc,
}

/// An identifier. Calls say at once what is wrong with them; what comes of them is an
/// [`Event`](super::Event) of its channel. Dropped: the peer is told what its state calls for (REJ,
/// DREQ), its events that the program has not taken vanish; a queue pair that was connected by it
/// stays as it is.
pub struct Id {
    provider: Provider,
    ours: Ours,
    node: ThreadSafe<Arc<stack::Id>>,
}

impl Id {
    /// A new identifier, whose events come to the channel (rdma_create_id(3)).
    ///
    /// # Errors
    ///
    /// `Forked`; `OutOfMemory` by a fault of a simulation.
    pub fn new(channel: &EventChannel, space: PortSpace) -> Result<Self> {
        let channel = &channel.0;
        channel.provider.stack().check("rdma_create_id")?;
        let (space, kind) = match space {
            PortSpace::Tcp => (mad::PortSpace::Tcp, QpType::Rc),
            PortSpace::Udp => (mad::PortSpace::Udp, QpType::Ud),
            PortSpace::Ib(Service::Rc) => (mad::PortSpace::Ib, QpType::Rc),
            PortSpace::Ib(Service::Uc) => (mad::PortSpace::Ib, QpType::Uc),
            // A request makes the other half of it: see `attributes`.
            PortSpace::Ib(Service::Xrc) => (mad::PortSpace::Ib, QpType::XrcSend),
        };
        let id = node!(&channel.ours, node => {
            node.allow_id().map(|()| node.create_id_for(&channel.node, space, kind))
        });
        let id = id.map_err(|error| Error::of_nic("rdma_create_id", error))?;
        Ok(Self::numbered(&channel.provider, channel.ours.clone(), id))
    }

    /// The one that came with a request.
    pub(super) fn of_request(provider: &Provider, ours: Ours, id: Arc<stack::Id>) -> Self {
        Self::numbered(provider, ours, id)
    }

    fn numbered(provider: &Provider, ours: Ours, node: Arc<stack::Id>) -> Self {
        node.cookie.store(provider.next_id_number(), Ordering::Relaxed);
        Self { provider: provider.clone(), ours, node: ThreadSafe::new(node) }
    }

    /// By which its events name it: another one for each identifier of a provider, from 1 on.
    pub fn number(&self) -> u64 {
        self.node.cookie.load(Ordering::Relaxed)
    }
    /// Our address, where there is one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.node.lock().source
    }
    /// The peer's address, where there is one.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.node.lock().dest
    }
    /// The device that it leads over: after `AddrResolved`, after binding to an address of one
    /// device, and of a request.
    pub fn device(&self) -> Option<Device> {
        let nic = self.node.lock().device.clone()?;
        Some(self.provider.device(Adapter::Ours(nic)))
    }

    /// Type of service of what it sends and of its connection's packets: the IP header's byte
    /// (RDMA_OPTION_ID_TOS).
    pub fn set_tos(&self, tos: u8) {
        self.node.lock().tos = Some(tos);
    }
    /// Local ACK timeout of its connection: 4.096 us * 2^code, code 0 to 31
    /// (RDMA_OPTION_ID_ACK_TIMEOUT).
    ///
    /// # Errors
    ///
    /// `OutOfRange`.
    pub fn set_ack_timeout(&self, code: u8) -> Result<()> {
        at_most("rdma_set_option", "ack_timeout", code, limits::ACK_TIMEOUT_MAX)?;
        self.node.lock().ack_timeout = Some(code);
        Ok(())
    }
    /// Others may be bound to its port, but for listeners (RDMA_OPTION_ID_REUSEADDR). Before it is
    /// bound.
    ///
    /// # Errors
    ///
    /// `WrongState`, `Forked`.
    pub fn set_reuse_addr(&self, reuse: bool) -> Result<()> {
        self.call("rdma_set_option", |ours, id| node!(ours, node => node.set_reuse(id, reuse)))
    }
    /// A wildcard address of IPv6 takes IPv6 only (RDMA_OPTION_ID_AFONLY). Before it is bound.
    ///
    /// # Errors
    ///
    /// `WrongState`, `Forked`.
    pub fn set_v6_only(&self, v6_only: bool) -> Result<()> {
        self.call("rdma_set_option", |ours, id| node!(ours, node => node.set_v6_only(id, v6_only)))
    }

    /// Binds it to an address of ours; port 0 is a free one.
    ///
    /// # Errors
    ///
    /// `AddressInUse`, `Unreachable`, both with the address; `WrongState`, `Forked`.
    pub fn bind(&self, on: SocketAddr) -> Result<()> {
        self.call("rdma_bind_addr", |ours, id| node!(ours, node => node.bind(id, on)))
            .map_err(|e| taken(&self.provider, on, e))
    }
    /// Finds the device and the address by which an address is reached, within so long:
    /// `AddrResolved` follows.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `OutOfRange` for the timeout, `WrongState`, `Forked`.
    pub fn resolve_addr(&self, from: Option<SocketAddr>, to: SocketAddr, timeout: Duration) -> Result<()> {
        const CALL: &str = "rdma_resolve_addr";
        check_timeout(CALL, timeout)?;
        self.call(CALL, |ours, id| node!(ours, node => node.resolve_addr(id, from, to, timeout)))
    }
    /// Finds the path, on InfiniBand within two seconds: `RouteResolved` follows.
    ///
    /// # Errors
    ///
    /// `WrongState`, `Forked`.
    pub fn resolve_route(&self) -> Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(2);
        self.call("rdma_resolve_route", |ours, id| node!(ours, node => node.resolve_route(id, TIMEOUT)))
    }
    /// Takes requests: a `ConnectRequest` each. One that is not bound gets a free port of all
    /// addresses. So many may wait until their events are taken, 1 to [`limits::BACKLOG_MAX`].
    ///
    /// # Errors
    ///
    /// `AddressInUse`; `OutOfRange`, `WrongState`, `Forked`.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        const CALL: &str = "rdma_listen";
        if !(1..=limits::BACKLOG_MAX).contains(&backlog) {
            return Err(Error::number(CALL, "backlog", backlog.into(), 1..=limits::BACKLOG_MAX.into()));
        }
        self.call(CALL, |ours, id| {
            node!(ours, node => {
                node.listen(id, backlog)?;
                // Turns are for programs that have room for one request at a time.
                node.serve_out_of_turn(id);
                Ok(())
            })
        })
        .map_err(|e| match self.local_addr() {
            Some(on) => taken(&self.provider, on, e),
            None => e,
        })
    }

    /// Asks the peer to connect our queue pair of `qp_num`: `ConnectResponse` follows, or why not.
    /// In [`PortSpace::Udp`] it asks for the service, and `Established` says where to send to; the
    /// parameters mean nothing then. Data: at most [`limits::REQ_PRIVATE_DATA_MAX`] bytes, or
    /// [`limits::SIDR_REQ_PRIVATE_DATA_MAX`].
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `WrongState`, `Forked`.
    pub fn connect(&self, parameters: &Parameters, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "rdma_connect";
        let most = if self.node.is_datagram() {
            limits::SIDR_REQ_PRIVATE_DATA_MAX
        } else {
            limits::REQ_PRIVATE_DATA_MAX
        };
        check_private_data(CALL, private_data, most)?;
        let param = parameters.to_node(CALL)?;
        self.call(CALL, |ours, id| node!(ours, node => node.connect(id, &param, private_data)))
    }
    /// Accepts the request for our queue pair of `qp_num`, which can receive by now
    /// ([`Id::attributes`]): `Established` follows. Of the depths the smaller counts. In
    /// [`PortSpace::Udp`] that queue pair serves the peer that asked. Data: at most
    /// [`limits::REP_PRIVATE_DATA_MAX`] bytes, or [`limits::SIDR_REP_PRIVATE_DATA_MAX`].
    ///
    /// # Errors
    ///
    /// `OutOfRange`; `WrongState` where it is no request's, or that has ended; `Forked`.
    pub fn accept(&self, parameters: &Parameters, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "rdma_accept";
        let most = if self.node.is_datagram() {
            limits::SIDR_REP_PRIVATE_DATA_MAX
        } else {
            limits::REP_PRIVATE_DATA_MAX
        };
        check_private_data(CALL, private_data, most)?;
        let param = parameters.to_node(CALL)?;
        self.call(CALL, |ours, id| node!(ours, node => node.accept(id, Some(&param), private_data)))
    }
    /// Refuses the request, or the connection that the peer has not called established: reason 28.
    /// Data: at most [`limits::REJ_PRIVATE_DATA_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `WrongState`, `Forked`.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "rdma_reject";
        let most = if self.node.is_datagram() {
            limits::SIDR_REP_PRIVATE_DATA_MAX
        } else {
            limits::REJ_PRIVATE_DATA_MAX
        };
        check_private_data(CALL, private_data, most)?;
        self.call(CALL, |ours, id| node!(ours, node => node.reject(id, private_data)))
    }

    /// What a queue pair needs to be connected (rdma_init_qp_attr(3)): of the side that asked after
    /// `ConnectResponse`, of the other from the request on. For
    /// [`Unconnected::connect_with`](crate::verbs::Unconnected::connect_with).
    ///
    /// # Errors
    ///
    /// `WrongState` before that, and after the end; `Unreachable` where the device does not bear
    /// the address any more; `Forked`.
    pub fn attributes(&self) -> Result<ConnectAttr> {
        let (attr, _) = self
            .call("rdma_init_qp_attr", |ours, id| node!(ours, node => node.init_qp_attr(id, QpState::Rtr)))?;
        let mut attr = ConnectAttr::of(&attr);
        // librdmacm's 0 means 655 ms: a peer that sends before we are ready would wait that long.
        attr.min_rnr_timer = RNR_TIMER;
        Ok(attr)
    }
    /// The side that asked: the queue pair is connected, the peer may use it (RTU). No event
    /// follows.
    ///
    /// # Errors
    ///
    /// `WrongState` but after `ConnectResponse`; `Forked`.
    pub fn establish(&self) -> Result<()> {
        self.call("rdma_establish", |ours, id| node!(ours, node => node.establish(id)))
    }
    /// Tells the connection manager that the queue pair has received data, on the side that
    /// accepted. The connection is then established without the peer's RTU, and `Established`
    /// follows (rdma_notify(3) of IBV_EVENT_COMM_EST). False where it was established already.
    ///
    /// # Errors
    ///
    /// `WrongState` before [`Id::accept`] and after the end; `Forked`.
    pub fn note_data_received(&self) -> Result<bool> {
        let told =
            self.call("rdma_notify", |ours, id| node!(ours, node => node.communication_established(id)));
        match told {
            Err(e) if e.errno() == Some(libc::EISCONN) => Ok(false),
            told => told.map(|()| true),
        }
    }
    /// Tells the peer that the connection ends, or answers that it has: `Disconnected` follows on
    /// both sides. The queue pair is the program's to end:
    /// [`QueuePair::fail`](crate::QueuePair::fail), or its last handle.
    ///
    /// # Errors
    ///
    /// `WrongState` where there is no connection; `Forked`.
    pub fn disconnect(&self) -> Result<()> {
        self.call("rdma_disconnect", |ours, id| node!(ours, node => node.disconnect(id)))
    }

    /// Moves the identifier's events to this channel from now on; those of its own that wait go
    /// there (rdma_migrate_id(3)). Requests to a listener that have come to the old channel stay
    /// there, as do the events of their identifiers.
    ///
    /// # Errors
    ///
    /// `WrongDomain` for a channel of another provider, `Forked`.
    pub fn migrate(&self, to: &EventChannel) -> Result<()> {
        const CALL: &str = "rdma_migrate_id";
        if to.0.provider != self.provider {
            return Err(Error::new(ErrorKind::WrongDomain, CALL));
        }
        self.call(CALL, |ours, id| {
            node!(ours, node => node.migrate(id, &to.0.node));
            Ok(())
        })
    }

    /// What a call into the node says; events that it brought are told of.
    fn call<T>(
        &self,
        call: &'static str,
        f: impl FnOnce(&Ours, &Arc<stack::Id>) -> Result<T, nic::Error>,
    ) -> Result<T> {
        let stack = self.provider.stack();
        stack.check(call)?;
        let result = f(&self.ours, &self.node);
        stack.later().run();
        result.map_err(|e| Error::of_nic(call, e))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let stack = self.provider.stack();
        // In a forked child the parent's connections are the parent's.
        if stack.is_ours() {
            node!(&self.ours, node => node.destroy(&self.node));
            // Its last message may be the process's last.
            stack.drain_sent();
            stack.later().run();
        }
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Id({}, {})", self.number(), self.node.lock().progress.name())
    }
}
