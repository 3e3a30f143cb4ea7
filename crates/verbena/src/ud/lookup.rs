//! Asking for the service at an address: service id resolution (IBA 1.4 §12.11), which
//! rdma_connect(3) does for datagrams.

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use nic::QpType;

use super::{UdAddress, UdSocket};
use crate::cm::events::Identifier;
use crate::cm::names::look_up;
use crate::cm::{Addr, ConnParam, TIMEOUT, check_private_data, check_timeout, first_of, limits, wait};
use crate::error::{Error, ErrorKind, Result, Value};

/// The C function that this file is about, as errors name it.
const CALL: &str = "rdma_connect";

/// A question to be: configure, then `.await` or `.wait()`.
///
/// # Errors
///
/// `Rejected` where there is no service, or it says no
/// ([`Error::rejection`](crate::Error::rejection)); `TimedOut` without an answer; `Unreachable`
/// without a way from the socket's address; `NotFound` for a name that does not resolve,
/// `OutOfRange`.
#[must_use = "nothing happens before it is awaited"]
pub struct Lookup<'s> {
    socket: &'s UdSocket,
    service: Addr,
    data: Vec<u8>,
    timeout: Duration,
}

impl<'s> Lookup<'s> {
    pub(super) fn new(socket: &'s UdSocket, service: Addr) -> Self {
        Lookup { socket, service, data: Vec::new(), timeout: TIMEOUT }
    }
    /// Bytes for the service that answers, at most [`limits::SIDR_REQ_PRIVATE_DATA_MAX`]. A
    /// [`UdSocket`] answers whatever they are.
    pub fn private_data(mut self, data: impl AsRef<[u8]>) -> Self {
        self.data = data.as_ref().to_vec();
        self
    }
    /// How long the neighbour may take to answer, and then the service, up to 2^31 - 1 ms, for each
    /// address; 2 s where it is not said.
    pub fn timeout(mut self, each: Duration) -> Self {
        self.timeout = each;
        self
    }
    /// Looks up the address, and what the service says of itself:
    /// [`limits::SIDR_REP_PRIVATE_DATA_MAX`] bytes, padded with zeros.
    ///
    /// # Errors
    ///
    /// Likewise.
    pub async fn with_data(self) -> Result<(UdAddress, Vec<u8>)> {
        let Lookup { socket, service, data, timeout } = self;
        check_private_data(CALL, &data, limits::SIDR_REQ_PRIVATE_DATA_MAX)?;
        check_timeout(CALL, timeout)?;
        let addresses = look_up(socket.inner.stack(), &service).await?;
        let data = &data;
        first_of(CALL, addresses, |to| async move { ask(socket, to, data, timeout).await }).await
    }
    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(self) -> Result<UdAddress> {
        let provider = self.socket.inner.pd().device().provider().clone();
        wait(&provider, CALL, self.into_future())
    }
}

impl<'s> IntoFuture for Lookup<'s> {
    type Output = Result<UdAddress>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<UdAddress>> + Send + 's>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.with_data().await?.0) })
    }
}

async fn ask(
    socket: &UdSocket,
    to: SocketAddr,
    data: &[u8],
    timeout: Duration,
) -> Result<(UdAddress, Vec<u8>)> {
    let stack = socket.inner.stack();
    let mut from = socket.local_addr();
    from.set_port(0);
    if from.is_ipv4() != to.is_ipv4() {
        return Err(Error::new(ErrorKind::Unreachable, "rdma_resolve_addr").with(Value::Address(to)));
    }
    let identifier = Identifier::new(stack, QpType::Ud)?;
    identifier.below().set_options(socket.inner.tos, None);
    identifier.resolve(Some(from), to, timeout).await?;
    let begun = identifier.below().connect(&ConnParam::default(), data, timeout);
    identifier.called(CALL, begun)?;
    let answer = identifier.answer_in(timeout).await?;
    // The device may have lost its address just now.
    let nowhere = || Error::of_errno(CALL, nic::Errno::EADDRNOTAVAIL);
    let address = UdAddress::of(&answer.ud.ok_or_else(nowhere)?);
    Ok((address.known_as(to.ip()), answer.private_data))
}
