//! Connecting by address: every property of rdma_connect(3) and rdma_accept(3), as builders that
//! are awaited, or blocked on by `.wait()`.
//!
//! ```no_run
//! # async fn f() -> verbena::Result<()> {
//! let listener = verbena::listen("0.0.0.0:7471").await?;
//! let request = listener.request().await?;
//! println!("{} says {:?}", request.peer_addr(), &request.private_data()[..5]);
//! let conn = request.accept().private_data(b"welcome").await?;
//! // and at the other end
//! let conn = verbena::connect("10.0.0.2:7471").private_data(b"hello").await?;
//! # Ok(()) }
//! ```
//!
//! Values out of range are errors when a builder is awaited, with name, value and limit
//! ([`Value::Number`](crate::Value::Number)); nothing is cut silently. What was begun and is
//! dropped is ended: the peer is told what its state calls for, and no call waits.
//!
//! | file | what lives there |
//! |---|---|
//! | this one | limits, addresses |
//! | `param` | connection parameters |
//! | `names` | from a text to addresses |
//! | `below` | identifiers of the stack below, and their events |
//! | `events` | an identifier, and what its events have told so far |
//! | `waiters` | the tasks that wait for an event |
//! | `resolve`, `connect` | the side that connects |
//! | `listener`, `request`, `requests`, `accept` | the side that is asked |
//! | `connection` | what stands, and how it ends |
//! | `operations` | its operations |
//! | `pending` | the same for programs that follow each step |
//! | [`raw`] | identifiers and events as they are |

mod accept;
pub(crate) mod below;
mod connect;
pub(crate) mod connection;
pub(crate) mod events;
pub(crate) mod listener;
pub(crate) mod names;
mod operations;
mod param;
mod pending;
#[cfg(any(feature = "software", feature = "sim"))]
pub mod raw;
mod request;
mod requests;
mod resolve;
pub(crate) mod waiters;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

pub use accept::Accept;
pub use connect::{Connect, connect};
pub use connection::Connection;
pub use listener::{Listen, Listener, listen};
pub use param::{ConnParam, FlowControl, RnrRetry};
pub use pending::Pending;
pub use request::Request;
pub use requests::Requests;
pub use resolve::{Resolve, Route, resolve};

use crate::error::{Error, ErrorKind, Result};
use crate::provider::{Pd, Provider};
use crate::qp::QueueConfig;

/// The largest values that a program may give; what is beyond is [`ErrorKind::OutOfRange`].
pub mod limits {
    /// Private data of a connection request (REQ): 56 bytes, after the 36 of the address header.
    pub const REQ_PRIVATE_DATA_MAX: usize = wire::mad::REQ_DATA;
    /// Private data of an acceptance (REP): 196 bytes.
    pub const REP_PRIVATE_DATA_MAX: usize = wire::mad::REP_DATA;
    /// Private data of a rejection (REJ): 148 bytes.
    pub const REJ_PRIVATE_DATA_MAX: usize = wire::mad::REJ_DATA;
    /// Private data of a request for a datagram service (SIDR_REQ): 180 bytes.
    pub const SIDR_REQ_PRIVATE_DATA_MAX: usize = wire::mad::SIDR_REQ_DATA;
    /// Private data of the response of a datagram service (SIDR_REP): 136 bytes.
    pub const SIDR_REP_PRIVATE_DATA_MAX: usize = wire::mad::SIDR_REP_DATA;
    /// READs and atomics outstanding at once, in either direction.
    pub const RD_ATOMIC_MAX: u8 = nic::limits::MAX_RD_ATOMIC;
    /// Retries after a timeout.
    pub const RETRY_COUNT_MAX: u8 = 7;
    /// Retries after an RNR NAK, in [`RnrRetry::Times`](super::RnrRetry::Times).
    pub const RNR_RETRY_COUNT_MAX: u8 = 6;
    /// Code n of the local ACK timeout, which is 4.096 us * 2^n.
    pub const ACK_TIMEOUT_MAX: u8 = 31;
    /// Connection requests that wait at a listener.
    pub const BACKLOG_MAX: u32 = nic::rdma_cm::MAX_BACKLOG as u32;
    /// A timeout of an address or route resolution, in milliseconds.
    pub const TIMEOUT_MAX_MS: u64 = i32::MAX as u64;
    /// Name lookups that run at once in a process.
    pub const CONCURRENT_LOOKUPS_MAX: usize = 256;
}

/// How long each step of connecting may take where the program does not say.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// What a builder becomes when it is awaited.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// An address with a port: `SocketAddr`, or text such as `10.0.0.2:7471`, `[fe80::1%2]:7471` or
/// `server:7471` (in a simulation: the hosts' names).
pub trait ToAddr {
    /// What it stands for.
    fn to_addr(self) -> Addr;
}

/// See [`ToAddr`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addr {
    /// As it is.
    Known(SocketAddr),
    /// To be looked up; where it stands for several they are tried in turn.
    Name(String),
}

impl ToAddr for Addr {
    fn to_addr(self) -> Addr {
        self
    }
}
impl ToAddr for SocketAddr {
    fn to_addr(self) -> Addr {
        Addr::Known(self)
    }
}
impl ToAddr for &str {
    fn to_addr(self) -> Addr {
        Addr::Name(self.to_owned())
    }
}
impl ToAddr for &String {
    fn to_addr(self) -> Addr {
        Addr::Name(self.clone())
    }
}
impl ToAddr for String {
    fn to_addr(self) -> Addr {
        Addr::Name(self)
    }
}

/// Whether a value is at most so much; [`ErrorKind::OutOfRange`] with its name where it is more.
fn at_most(call: &'static str, name: &'static str, is: impl Into<u64>, most: impl Into<u64>) -> Result<()> {
    let (is, most) = (is.into(), most.into());
    if is <= most { Ok(()) } else { Err(Error::number(call, name, is, 0..=most)) }
}

pub(crate) fn check_private_data(call: &'static str, data: &[u8], most: usize) -> Result<()> {
    at_most(call, "private_data_len", data.len() as u64, most as u64)
}

pub(crate) fn check_timeout(call: &'static str, timeout: Duration) -> Result<()> {
    let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    at_most(call, "timeout_ms", ms, limits::TIMEOUT_MAX_MS)
}

/// What either side says of the connection that is to be.
#[derive(Default)]
struct Properties {
    data: Vec<u8>,
    param: ConnParam,
    queues: QueueConfig,
    pd: Option<Pd>,
    ack_timeout: Option<u8>,
}

impl Properties {
    fn check(&self, call: &'static str, most_data: usize) -> Result<()> {
        check_private_data(call, &self.data, most_data)?;
        if let Some(code) = self.ack_timeout {
            at_most("rdma_set_option", "ack_timeout", code, limits::ACK_TIMEOUT_MAX)?;
        }
        self.param.check(call)
    }
}

/// The methods that set the [`Properties`] of a builder with the given name for them.
macro_rules! properties {
    () => {
        /// Bytes for the peer's program. It sees them padded with zeros to the message's field.
        pub fn private_data(mut self, data: impl AsRef<[u8]>) -> Self {
            self.properties.data = data.as_ref().to_vec();
            self
        }
        /// Connection parameters, all at once.
        pub fn param(mut self, param: ConnParam) -> Self {
            self.properties.param = param;
            self
        }
        /// READs and atomics of the peer that we serve at once: [`ConnParam::responder_resources`].
        pub fn responder_resources(mut self, n: u8) -> Self {
            self.properties.param.responder_resources = Some(n);
            self
        }
        /// READs and atomics that we start at once: [`ConnParam::initiator_depth`].
        pub fn initiator_depth(mut self, n: u8) -> Self {
            self.properties.param.initiator_depth = Some(n);
            self
        }
        /// Told to the peer only: [`ConnParam::flow_control`].
        pub fn flow_control(mut self, flow_control: FlowControl) -> Self {
            self.properties.param.flow_control = flow_control;
            self
        }
        /// Retries after a timeout, 0 to 7: [`ConnParam::retry_count`].
        pub fn retry_count(mut self, n: u8) -> Self {
            self.properties.param.retry_count = n;
            self
        }
        /// Retries of the peer where we have no receive posted.
        pub fn rnr_retry_count(mut self, n: RnrRetry) -> Self {
            self.properties.param.rnr_retry_count = n;
            self
        }
        /// Sizes, and which completion and shared receive queue (rdma_conn_param's `srq` follows
        /// from it).
        pub fn queues(mut self, queues: QueueConfig) -> Self {
            self.properties.queues = queues;
            self
        }
        /// In this domain; [`ErrorKind::WrongDomain`](crate::ErrorKind::WrongDomain) where it is
        /// another device's than the connection's.
        pub fn pd(mut self, pd: &Pd) -> Self {
            self.properties.pd = Some(pd.clone());
            self
        }
        /// Our queue pair's local ACK timeout, 4.096 us * 2^n, n up to 31; 0: none
        /// (RDMA_OPTION_ID_ACK_TIMEOUT). Default: what the connection manager computes from the
        /// path.
        pub fn ack_timeout(mut self, n: u8) -> Self {
            self.properties.ack_timeout = Some(n);
            self
        }
    };
}
use properties;

/// The provider that was named, else the current one.
pub(crate) fn chosen(provider: Option<Provider>) -> Result<Provider> {
    match provider {
        Some(provider) => Ok(provider),
        None => Provider::current(),
    }
}

/// Blocks until a future is ready; [`ErrorKind::BlockingInSimulation`] where nothing could happen
/// meanwhile.
pub(crate) fn wait<T>(
    provider: &Provider,
    call: &'static str,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    if !provider.stack().may_block() {
        return Err(Error::new(ErrorKind::BlockingInSimulation, call));
    }
    crate::exec::block_on(future)
}

/// The first address that works, in turn; where none does, why the last did not.
pub(crate) async fn first_of<T, F: Future<Output = Result<T>>>(
    call: &'static str,
    addresses: Vec<SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> F,
) -> Result<T> {
    let mut last = Error::new(ErrorKind::NotFound, call);
    for address in addresses {
        match attempt(address).await {
            Ok(done) => return Ok(done),
            // A listener there has decided.
            Err(e) if e.rejection().is_some_and(|r| r.reason == crate::RejectReason::Consumer) => {
                return Err(e);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}
