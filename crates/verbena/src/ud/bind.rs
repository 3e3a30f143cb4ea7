//! A socket to be: its address, sizes and domain.

use std::future::IntoFuture;
use std::net::SocketAddr;

use nic::QpType;

use super::{UdSocket, service::Service};
use crate::cm::connection::Attached;
use crate::cm::events::Identifier;
use crate::cm::listener::taken;
use crate::cm::names::look_up;
use crate::cm::{Addr, Boxed, TIMEOUT, check_private_data, chosen, first_of, limits, wait};
use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::{Pd, Provider};
use crate::qp::{QueueConfig, Ud};

/// The C function that this file is about, as errors name it.
const CALL: &str = "rdma_bind_addr";

/// A socket to be: configure, then `.await` or `.wait()`.
///
/// # Errors
///
/// `AddressInUse` where the port is taken, `Unreachable` where the address is not ours, both with
/// the address; `WrongState` for `0.0.0.0` and `[::]`, since a queue pair is on one device;
/// `NotFound` for a name that does not resolve, `WrongDomain`, `OutOfRange`, `Exhausted`.
#[must_use = "nothing happens before it is awaited"]
pub struct Bind {
    on: Addr,
    wants: Wants,
    provider: Option<Provider>,
}

/// What is asked of the socket.
#[derive(Default)]
pub(super) struct Wants {
    queues: QueueConfig,
    pd: Option<Pd>,
    tos: Option<u8>,
    data: Vec<u8>,
}

impl Bind {
    pub(super) fn new(on: Addr) -> Self {
        Self { on, wants: Wants::default(), provider: None }
    }
    /// Sizes. A datagram longer than `recv_size` bytes is lost, as is one that finds no receive
    /// posted: it is not repeated.
    pub fn queues(mut self, queues: QueueConfig) -> Self {
        self.wants.queues = queues;
        self
    }
    /// In this domain; `WrongDomain` where it is another device's than the address's.
    pub fn pd(mut self, pd: &Pd) -> Self {
        self.wants.pd = Some(pd.clone());
        self
    }
    /// Type of service: the traffic class of all packets (RDMA_OPTION_ID_TOS).
    pub fn tos(mut self, tos: u8) -> Self {
        self.wants.tos = Some(tos);
        self
    }
    /// Bytes for peers that look the socket up, at most [`limits::SIDR_REP_PRIVATE_DATA_MAX`]. They
    /// see them padded with zeros.
    pub fn private_data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.wants.data = data.as_ref().to_vec();
        self
    }
    /// Binds over this provider, not the current one.
    pub fn provider(mut self, provider: &Provider) -> Self {
        self.provider = Some(provider.clone());
        self
    }
    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(mut self) -> Result<UdSocket> {
        let provider = chosen(self.provider.take())?;
        wait(&provider, CALL, self.provider(&provider).into_future())
    }
}

impl IntoFuture for Bind {
    type Output = Result<UdSocket>;
    type IntoFuture = Boxed<UdSocket>;

    fn into_future(self) -> Boxed<UdSocket> {
        Box::pin(async move {
            let Self { on, wants, provider } = self;
            check_private_data("rdma_accept", &wants.data, limits::SIDR_REP_PRIVATE_DATA_MAX)?;
            let provider = chosen(provider)?;
            let addresses = look_up(provider.stack(), &on).await?;
            let (provider, wants) = (&provider, &wants);
            first_of(CALL, addresses, |on| wants.bind(provider, on)).await
        })
    }
}

impl Wants {
    async fn bind(&self, provider: &Provider, on: SocketAddr) -> Result<UdSocket> {
        if on.ip().is_unspecified() {
            return Err(Error::new(ErrorKind::WrongState, CALL).with(Value::Address(on)));
        }
        // The queue pair's identifier, which joins groups; one that listens could not
        // (rdma_join_multicast(3)). The way to ourselves is the device that bears the address, of a
        // loopback address too.
        let identifier = Identifier::new(provider.stack(), QpType::Ud)?;
        identifier.below().set_options(self.tos, None);
        let mut from = on;
        from.set_port(0);
        let begun = identifier.below().resolve_addr(Some(from), on, TIMEOUT);
        identifier.called(CALL, begun).map_err(|e| taken(provider, on, e))?;
        identifier.until(|seen| seen.address.clone()).await?;
        let device = identifier.below().device();
        let gone = || Error::of_errno(CALL, nic::Errno::ENODEV).with(Value::Address(on));
        let device = provider.device(device.ok_or_else(gone)?);
        let pd = match &self.pd {
            Some(pd) => pd.clone(),
            None => device.pd()?,
        };
        let ends = Attached::new::<Ud>(identifier, &device, &pd, &self.queues)?;
        let service = Service::begin(provider, on, ends.qp().carrier().qpn().get(), &self.data)?;
        Ok(UdSocket::new(service, ends, self.tos))
    }
}
