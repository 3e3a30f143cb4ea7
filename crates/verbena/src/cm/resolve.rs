//! The first half of connecting (rdma_resolve_addr(3), rdma_resolve_route(3)): which device leads
//! to an address.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::time::Duration;

use nic::QpType;

use super::events::Identifier;
use super::names::look_up;
use super::{Addr, Boxed, Connect, TIMEOUT, ToAddr, check_timeout, chosen, first_of, wait};
use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::{Device, Pd, Provider};

/// Finds the way to an address: the first half of [`connect`](super::connect), for programs to
/// which it matters which device it will be. Such a program can register memory and tell the peer
/// of it in the request.
///
/// ```no_run
/// # async fn f() -> verbena::Result<()> {
/// let route = verbena::resolve("10.0.0.2:7471").await?;
/// println!("{} from {}", route.pd().device().name(), route.local_addr());
/// let conn = route.connect().await?;
/// # Ok(()) }
/// ```
pub fn resolve(to: impl ToAddr) -> Resolve {
    Resolve { to: to.to_addr(), from: None, provider: None, timeout: TIMEOUT }
}

/// A route to be: configure, then `.await` or `.wait()`.
///
/// # Errors
///
/// `NotFound` for a name that does not resolve, `Unreachable` without a way or where no device of
/// ours is on it, `TimedOut` where the neighbour does not answer, `OutOfRange`, `AddressInUse`
/// where the UDP port of the device belongs to another user.
#[must_use = "nothing happens before it is awaited"]
pub struct Resolve {
    to: Addr,
    from: Option<Addr>,
    provider: Option<Provider>,
    timeout: Duration,
}

impl Resolve {
    /// From this address of ours; of several the first of the destination's family. Port 0: any.
    pub fn bind(mut self, from: impl ToAddr) -> Self {
        self.from = Some(from.to_addr());
        self
    }
    /// Resolves over this provider, not the current one.
    pub fn provider(mut self, provider: &Provider) -> Self {
        self.provider = Some(provider.clone());
        self
    }
    /// How long the neighbour may take to answer, up to 2^31 - 1 ms, for each address; 2 s where it
    /// is not said. How long a name takes the system's resolver says.
    pub fn timeout(mut self, each: Duration) -> Self {
        self.timeout = each;
        self
    }
    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(mut self) -> Result<Route> {
        let provider = chosen(self.provider.take())?;
        wait(&provider, "rdma_resolve_addr", self.provider(&provider).into_future())
    }
}

impl IntoFuture for Resolve {
    type Output = Result<Route>;
    type IntoFuture = Boxed<Route>;

    fn into_future(self) -> Boxed<Route> {
        Box::pin(async move {
            check_timeout("rdma_resolve_addr", self.timeout)?;
            let provider = chosen(self.provider)?;
            let to = look_up(provider.stack(), &self.to).await?;
            let from = sources(&provider, self.from.as_ref()).await?;
            let (provider, from, timeout) = (&provider, &from, self.timeout);
            first_of("rdma_resolve_addr", to, |to| async move {
                Route::find(QpType::Rc, provider, pick(from, to)?, to, timeout).await
            })
            .await
        })
    }
}

/// Our addresses, as the program said them; `None` where it said none.
pub(super) async fn sources(provider: &Provider, from: Option<&Addr>) -> Result<Option<Vec<SocketAddr>>> {
    match from {
        Some(from) => Ok(Some(look_up(provider.stack(), from).await?)),
        None => Ok(None),
    }
}

/// The one that is of the destination's family.
pub(super) fn pick(from: &Option<Vec<SocketAddr>>, to: SocketAddr) -> Result<Option<SocketAddr>> {
    let Some(from) = from else { return Ok(None) };
    let fits = from.iter().find(|from| from.is_ipv4() == to.is_ipv4());
    let none = || Error::new(ErrorKind::Unreachable, "rdma_resolve_addr").with(Value::Address(to));
    Ok(Some(*fits.ok_or_else(none)?))
}

/// A way to a peer, found by [`resolve`].
pub struct Route {
    pub(super) identifier: Identifier,
    pub(super) provider: Provider,
    pub(super) device: Device,
    pd: Pd,
}

impl Route {
    /// For queue pairs of this type.
    pub(super) async fn find(
        kind: QpType,
        provider: &Provider,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Self> {
        let identifier = Identifier::new(provider.stack(), kind)?;
        identifier.resolve(from, to, timeout).await?;
        let adapter = identifier.below().device();
        let gone = || Error::of_errno("rdma_resolve_addr", nic::Errno::ENODEV);
        let device = provider.device(adapter.ok_or_else(gone)?);
        let pd = device.pd()?;
        Ok(Self { identifier, provider: provider.clone(), device, pd })
    }

    /// The default domain of the device that it leads over; connections that get no other are made
    /// in it.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// Our address.
    pub fn local_addr(&self) -> SocketAddr {
        self.identifier.local_addr()
    }
    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.identifier.peer_addr()
    }
    /// Largest payload of a packet, 256 to 4096 bytes, as far as this side knows: the link's and
    /// the route's.
    pub fn mtu(&self) -> u32 {
        self.identifier.below().path_mtu().min(self.device.mtu())
    }
    /// Connects that way.
    pub fn connect(self) -> Connect {
        Connect::by(self)
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Route({} to {} by {})", self.local_addr(), self.peer_addr(), self.device.name())
    }
}
