//! Events of identifiers as values (rdma_get_cm_event(3)).

use std::sync::atomic::Ordering;

use nic::Errno;
use nic::rdma_cm::EventKind;

use super::Id;
use crate::cm::ConnParam;
use crate::cm::events::{no_service, rejection};
use crate::error::{Error, Result};
use crate::provider::{Ours, Provider};
use crate::ud::UdAddress;

/// What both sides tell each other of a connection and its queue pairs (`struct rdma_conn_param`),
/// when these are the program's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameters {
    /// Depths and retries.
    pub param: ConnParam,
    /// Number of the queue pair, 24 bits.
    pub qp_num: u32,
    /// Whether the queue pair takes its receives from a shared queue. Told to the peer only.
    pub srq: bool,
}

impl Parameters {
    /// Parameters of the queue pair `qp_num`, with the defaults of [`ConnParam`].
    pub fn new(qp_num: u32) -> Self {
        Self { qp_num, ..Self::default() }
    }
    /// Sets [`Parameters::param`].
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }
    /// Sets [`Parameters::srq`].
    pub fn srq(mut self, srq: bool) -> Self {
        self.srq = srq;
        self
    }

    fn told(told: &nic::rdma_cm::ConnParam) -> Self {
        Self { param: ConnParam::told(told), qp_num: told.qp_num, srq: told.srq }
    }

    pub(super) fn to_node(&self, call: &'static str) -> Result<nic::rdma_cm::ConnParam> {
        self.param.check(call)?;
        let most = wire::Qpn::MULTICAST.get();
        if self.qp_num > most {
            return Err(Error::number(call, "qp_num", self.qp_num.into(), 0..=most.into()));
        }
        Ok(nic::rdma_cm::ConnParam { qp_num: self.qp_num, srq: self.srq, ..self.param.to_node() })
    }
}

/// Something has happened to an identifier.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The identifier's number ([`Id::number`]); for a request the listener's.
    pub id: u64,
    /// What.
    pub what: What,
    /// Of `ConnectRequest`, `ConnectResponse` and `Established`: what the peer has told, as it
    /// looks from here.
    pub parameters: Option<Parameters>,
    /// Of `Established` in [`PortSpace::Udp`](super::PortSpace::Udp): the destination to send to.
    pub ud: Option<UdAddress>,
    /// What the peer's program said: the whole field of the message, zero-padded; empty where there
    /// is none.
    pub private_data: Vec<u8>,
}

/// What has happened (`enum rdma_cm_event_type`).
#[derive(Debug)]
#[non_exhaustive]
pub enum What {
    /// There is a device, and an address of ours.
    AddrResolved,
    /// There is a path.
    RouteResolved,
    /// A peer wants to connect: to be accepted or rejected by this new identifier, whose events
    /// come to the listener's channel. Dropping it rejects.
    ConnectRequest(Id),
    /// The peer has accepted: [`Id::attributes`], then [`Id::establish`].
    ConnectResponse,
    /// The connection stands: of the side that accepted, and of datagram services.
    Established,
    /// The peer has disconnected, or has answered our disconnection.
    Disconnected,
    /// The device is gone.
    DeviceRemoval,
    /// The address of the interface has changed.
    AddrChange,
    /// Nothing of the connection is under way any more: the queue pair's number may be used again.
    TimewaitExit,
    /// `AddrError`, `RouteError`, `ConnectError`, `Unreachable` and `Rejected`: the call that
    /// failed, and how.
    Failed(Error),
}

impl Event {
    /// `None` for what only C functions bring about.
    pub(super) fn of_node(provider: &Provider, ours: &Ours, event: stack::Event) -> Option<Self> {
        let tells_parameters = matches!(
            event.kind,
            EventKind::ConnectRequest | EventKind::ConnectResponse | EventKind::Established
        );
        let parameters =
            (tells_parameters && !event.id.is_datagram()).then(|| Parameters::told(&event.param));
        let ud = event.ud.filter(|_| event.kind == EventKind::Established).map(|to| UdAddress::of(&to));
        let whose = event.listener.as_ref().unwrap_or(&event.id);
        let id = whose.cookie.load(Ordering::Relaxed);
        let errno = |call| Error::of_errno(call, Errno(event.status.saturating_neg()));
        let what = match event.kind {
            EventKind::AddrResolved => What::AddrResolved,
            EventKind::AddrError => What::Failed(errno("rdma_resolve_addr")),
            EventKind::RouteResolved => What::RouteResolved,
            EventKind::RouteError => What::Failed(errno("rdma_resolve_route")),
            EventKind::ConnectRequest => {
                What::ConnectRequest(Id::of_request(provider, ours.clone(), event.id.clone()))
            }
            EventKind::ConnectResponse => What::ConnectResponse,
            EventKind::Established => What::Established,
            EventKind::Disconnected => What::Disconnected,
            EventKind::DeviceRemoval => What::DeviceRemoval,
            EventKind::AddrChange => What::AddrChange,
            EventKind::TimewaitExit => What::TimewaitExit,
            EventKind::Rejected => What::Failed(Error::rejected(
                "rdma_connect",
                rejection(event.status, event.private_data.clone()),
            )),
            // A positive status is the answer of the peer asked for a datagram service.
            EventKind::Unreachable if event.status > 0 => What::Failed(Error::rejected(
                "rdma_connect",
                no_service(event.status, event.private_data.clone()),
            )),
            EventKind::Unreachable | EventKind::ConnectError => What::Failed(errno("rdma_connect")),
            EventKind::MulticastJoin
            | EventKind::MulticastError
            | EventKind::AddrinfoResolved
            | EventKind::AddrinfoError
            | EventKind::User => return None,
        };
        Some(Self { id, what, parameters, ud, private_data: event.private_data })
    }
}
